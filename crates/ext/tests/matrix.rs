//! What the kernel made on everything that mke2fs makes is read as the kernel reads it.

use support::contents::{self, Scale};
use support::{Image, tree};
use vfs::FileSystem;

mod support;

const GIB: u64 = 1 << 30;

/// One way to make a file system.
struct Case<'a> {
    options: &'a [&'a str],
    block: u64,
    /// Inodes have room for more than 128 bytes.
    large_inodes: bool,
    extents: bool,
    /// For tune2fs, before it is filled.
    tuned: &'a [&'a str],
    scale: Option<Scale>,
}

fn check(case: &Case<'_>) {
    if !support::can_mount() {
        return;
    }
    let block = case.block.to_string();
    let inode = if case.large_inodes { "256" } else { "128" };
    let image = Image::make("400M", &[&["-b", &block, "-I", inode, "-N", "40000"], case.options].concat());
    if !case.tuned.is_empty() {
        support::run("tune2fs", &[case.tuned, &[&image.path.display().to_string()]].concat());
    }
    let scale = case.scale.unwrap_or(Scale {
        entries: 3000,
        directories: 50,
        pieces: 500,
        far: if case.block == 1024 { 5 * GIB } else { 40 * GIB },
        extents: case.extents,
        block: case.block as usize,
    });
    contents::fill(&image.mount("").dir, scale);
    let mounted = image.mount("ro");
    let kernel = tree::of_kernel(&mounted.dir, case.large_inodes);
    let space = rustix::fs::statvfs(&mounted.dir).unwrap();
    drop(mounted);
    assert!(kernel.len() > scale.entries as usize * 6 / 7, "the kernel made what it was asked");
    let volume = image.open();
    tree::compare(&tree::of_volume(&volume).unwrap(), &kernel);
    let found = ext::check(volume.disk().clone(), &ext::Options::default()).unwrap();
    assert!(
        found.is_clean(),
        "{} findings: {:#?}",
        found.count,
        found.findings.iter().take(20).collect::<Vec<_>>()
    );
    let ours = volume.statfs().unwrap();
    // What the kernel keeps for itself, for extents that are split later.
    let cluster = if case.options.contains(&"bigalloc") { 16 } else { 1 };
    let kept = if case.extents { ((400 << 20) / case.block / cluster / 50).min(4096) * cluster } else { 0 };
    assert_eq!(
        (ours.blocks, ours.blocks_free, ours.blocks_available - kept, ours.files, ours.files_free),
        (space.f_blocks, space.f_bfree, space.f_bavail, space.f_files, space.f_ffree),
        "space"
    );
}

/// The file systems of one kind: three sizes of blocks and two of inodes.
fn check_kind(kind: &str, extents: bool) {
    for block in [1024, 2048, 4096] {
        for large_inodes in [false, true] {
            eprintln!("{kind}, blocks of {block}, large inodes: {large_inodes}");
            check(&Case { options: &["-t", kind], block, large_inodes, extents, tuned: &[], scale: None });
        }
    }
}

fn check_ext4(block: u64, options: &[&str]) {
    check(&Case { options, block, large_inodes: true, extents: true, tuned: &[], scale: None });
}

#[test]
fn ext2() {
    check_kind("ext2", false);
}

#[test]
fn ext3() {
    check_kind("ext3", false);
}

#[test]
fn ext4() {
    check_kind("ext4", true);
}

/// What Debian 13 makes, and what it may.
#[test]
fn newer_defaults() {
    check_ext4(4096, &["-t", "ext4", "-O", "metadata_csum_seed,orphan_file"]);
    check_ext4(1024, &["-t", "ext4", "-O", "metadata_csum_seed,orphan_file"]);
}

#[test]
fn older_defaults() {
    check_ext4(4096, &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"]);
    check_ext4(1024, &["-t", "ext4", "-O", "^metadata_csum,^uninit_bg,^64bit,^flex_bg"]);
    check_ext4(4096, &["-t", "ext4", "-O", "^metadata_csum,uninit_bg,^64bit"]);
    check_ext4(2048, &["-t", "ext4", "-O", "^has_journal,^resize_inode,sparse_super2"]);
    check(&Case {
        options: &["-t", "ext2", "-O", "^filetype,^dir_index,^sparse_super,^large_file,^resize_inode"],
        block: 1024,
        large_inodes: false,
        extents: false,
        tuned: &[],
        scale: Some(Scale {
            entries: 500,
            directories: 5,
            pieces: 100,
            far: GIB,
            extents: false,
            block: 1024,
        }),
    });
}

#[test]
fn inline_data() {
    check_ext4(4096, &["-t", "ext4", "-O", "inline_data"]);
    check_ext4(1024, &["-t", "ext4", "-O", "inline_data,^metadata_csum"]);
}

#[test]
fn bigalloc() {
    check_ext4(4096, &["-t", "ext4", "-O", "bigalloc", "-C", "65536", "-N", "20000"]);
    check_ext4(1024, &["-t", "ext4", "-O", "bigalloc", "-C", "16384", "-N", "8000"]);
}

#[test]
fn meta_bg() {
    check_ext4(1024, &["-t", "ext4", "-O", "meta_bg,^resize_inode", "-g", "1024"]);
    check_ext4(4096, &["-t", "ext4", "-O", "meta_bg,^resize_inode,mmp"]);
}

#[test]
fn hash_functions() {
    for hash in ["half_md4", "tea", "legacy"] {
        let (options, hash) = (["-t", "ext4", "-O", "large_dir"], format!("hash_alg={hash}"));
        let tuned = ["-E", hash.as_str()];
        let scale = Scale { entries: 2000, directories: 5, pieces: 10, far: GIB, extents: true, block: 1024 };
        check(&Case {
            options: &options,
            block: 1024,
            large_inodes: true,
            extents: true,
            tuned: &tuned,
            scale: Some(scale),
        });
    }
}

/// A directory of 10,000 entries in small blocks has a tree of two levels, one of 70,000 directories no count of them, and a file
/// of so many pieces a tree of extents two levels high.
#[test]
fn large_things() {
    let scale =
        Scale { entries: 12_000, directories: 100, pieces: 6000, far: 12 * GIB, extents: true, block: 1024 };
    check(&Case {
        options: &["-t", "ext4"],
        block: 1024,
        large_inodes: true,
        extents: true,
        tuned: &[],
        scale: Some(scale),
    });
    let scale = Scale {
        entries: 11_000,
        directories: 66_000,
        pieces: 4000,
        far: 900 * GIB,
        extents: true,
        block: 4096,
    };
    let options = ["-t", "ext4", "-N", "90000"];
    check(&Case {
        options: &options,
        block: 4096,
        large_inodes: true,
        extents: true,
        tuned: &[],
        scale: Some(scale),
    });
}
