//! What the kernel made on everything that mke2fs makes is read as the kernel reads it.

use crate::support;
use crate::support::cases::{self, Case};
use crate::support::contents;
use crate::support::maker::Kernel;
use crate::support::{Image, tree};
use ext::{Options, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, FileSystem, ROOT_INO};

fn check(cases: Vec<Case>) {
    if !support::can_mount() {
        return;
    }
    for case in cases {
        eprintln!("{case}");
        check_one(&case);
    }
}

fn check_one(case: &Case) {
    let (image, scale) = (case.image(), case.scale());
    contents::fill(&mut Kernel::below(&image.mount("").dir), scale);
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
    let cluster = if case.has("bigalloc") { 16 } else { 1 };
    let kept = if case.extents { ((400 << 20) / case.block / cluster / 50).min(4096) * cluster } else { 0 };
    assert_eq!(
        (ours.blocks, ours.blocks_free, ours.blocks_available - kept, ours.files, ours.files_free),
        (space.f_blocks, space.f_bfree, space.f_bavail, space.f_files, space.f_ffree),
        "space"
    );
}

#[test]
fn ext2() {
    check(cases::of_kind("ext2"));
}

#[test]
fn ext3() {
    check(cases::of_kind("ext3"));
}

#[test]
fn ext4() {
    check(cases::of_kind("ext4"));
}

#[test]
fn newer_defaults() {
    check(cases::newer_defaults());
}

#[test]
fn older_defaults() {
    check(cases::older_defaults());
}

#[test]
fn inline_data() {
    check(cases::inline_data());
}

#[test]
fn bigalloc() {
    check(cases::bigalloc());
}

#[test]
fn meta_bg() {
    check(cases::meta_bg());
    check(cases::multiple_mount_protection());
}

#[test]
fn hash_functions() {
    check(cases::hash_functions());
}

#[test]
fn large_things() {
    check(cases::large_things().into());
}

/// Linux gives inodes no checksums where another system made the file system: what it had written was damage, and the disk was said to have errors.
#[test]
fn what_another_system_made() {
    if !support::can_mount() {
        return;
    }
    let image = Image::make("64M", &["-t", "ext4", "-o", "FreeBSD", "-O", "metadata_csum"]);
    let mounted = image.mount("");
    std::fs::create_dir(mounted.dir.join("dir")).unwrap();
    std::fs::write(mounted.dir.join("dir/file"), "by the kernel").unwrap();
    drop(mounted);
    let disk = image.disk(false);
    let zone = Zone::anonymous(40 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(32 << 20)).unwrap();
    ext::attach(&region, &disk).unwrap();
    let volume = Volume::mount(&region, disk.clone(), &Options::default()).unwrap();
    let root = Caller::root();
    let dir = volume.lookup(&root, ROOT_INO, b"dir").unwrap().ino;
    assert_eq!(volume.lookup(&root, dir, b"file").unwrap().size, 13);
    volume.mkdir(&root, dir, b"by us", 0o755).unwrap();
    assert!(ext::check_volume(&volume).unwrap().is_clean());
    volume.detach().unwrap();
    drop((volume, disk));
    assert!(!ext::info(&image.disk(true)).unwrap().has_errors);
    let mounted = image.mount("ro");
    assert!(mounted.dir.join("dir/by us").is_dir() && mounted.dir.join("dir/file").is_file());
}
