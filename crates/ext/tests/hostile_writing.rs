//! Writing to file systems whose metadata is damaged: it fails, or does what it can, and neither panics nor goes on forever.

use std::sync::Arc;

use crate::support::random::Random;
use crate::support::{Image, specimens};
use disk::Disk;
use ext::{Options, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{
    Caller, DirEntry, FallocateMode, FileSystem, Ino, OpenFlags, ROOT_INO, RenameFlags, SetAttr, XattrMode,
};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// Where the file system's own metadata is, and most directories: the first part of each specimen.
const BYTES: u64 = 1 << 20;
const ROUNDS: u64 = 150;

/// Entries of a directory, no more than there could be.
fn list(fs: &Volume, dir: Ino) -> Vec<(Vec<u8>, Ino)> {
    let mut all = Vec::new();
    let mut note = |entry: DirEntry<'_>| {
        if entry.name != b"." && entry.name != b".." {
            all.push((entry.name.to_vec(), entry.ino));
        }
        all.len() < 500
    };
    drop(fs.readdir(dir, 0, &mut note));
    all
}

/// Does something of everything in each directory that is found; what fails, fails.
fn use_it(fs: &Volume) {
    let root = &Caller::root();
    let mut dirs = vec![(ROOT_INO, Vec::new())];
    for (name, ino) in list(fs, ROOT_INO) {
        if fs.getattr(ino).is_ok_and(|attr| attr.is_dir()) {
            dirs.push((ino, name));
        }
    }
    for (dir, _) in &dirs {
        let dir = *dir;
        for n in 0..12 {
            let name = format!("a new name that takes some room in its directory, the {n}th");
            let Ok(made) = fs.create(root, dir, name.as_bytes(), 0o644, RW) else { continue };
            drop(fs.write(root, made.handle, n * 7000, &[n as u8; 5000]));
            drop(fs.fallocate(root, made.handle, FallocateMode::empty(), 0, 30_000));
            drop(fs.fsync(made.handle, false));
            drop(fs.release(made.handle));
            drop(fs.setxattr(root, made.attr.ino, b"user.a", &[7; 200], XattrMode::Either));
        }
        drop(fs.mkdir(root, dir, b"new dir", 0o755));
        drop(fs.symlink(root, dir, b"new link", &[b't'; 200]));
        for (n, (name, ino)) in list(fs, dir).into_iter().enumerate().take(40) {
            drop(match n % 6 {
                0 => fs.unlink(root, dir, &name),
                1 => fs.rename(root, dir, &name, ROOT_INO, &name, RenameFlags::empty()),
                2 => fs.rename(root, dir, &name, dir, b"renamed", RenameFlags::empty()),
                3 => fs.setxattr(root, ino, b"user.large", &[9; 300], XattrMode::Either),
                4 => {
                    fs.setattr(root, ino, &SetAttr { size: Some(5000), ..SetAttr::default() }, None).map(drop)
                }
                _ => fs.rmdir(root, dir, &name),
            });
        }
        if let Ok(made) = fs.tmpfile(root, dir, 0o600, RW) {
            drop(fs.write(root, made.handle, 100_000, b"bytes"));
            drop(fs.release(made.handle));
        }
    }
    drop(fs.syncfs());
    drop(fs.detach());
}

fn damage(options: &[&str]) {
    let sound = specimens::make(options);
    for seed in 0..ROUNDS {
        let random = &mut Random::new(seed);
        let mut image = sound.clone();
        for _ in 0..1 + random.below(4) {
            // Something that means something: neither zeros nor what the specimens' files hold.
            let at = std::iter::repeat_with(|| 2048 + random.below(BYTES / 4 - 512) as usize * 4)
                .find(|at| image[*at..at + 4] != [0; 4] && image[*at..at + 4] != *b"xxxx")
                .unwrap();
            let value =
                [0, 1, u64::MAX, random.below(1 << 13), random.below(u64::MAX)][random.below(5) as usize];
            let bytes = 1 << random.below(3);
            image[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
        let disk = Arc::new(Disk::memory(image));
        let zone = Zone::anonymous(16 << 20, &OpenOptions::default()).unwrap();
        zone.create_volume("disk", VolumeKind::Ext, Some(12 << 20)).unwrap();
        let region = zone.volume("disk").unwrap();
        if ext::attach(&region, &disk).is_ok()
            && let Ok(fs) = Volume::mount(&region, disk, &Options::default())
        {
            use_it(&fs);
        }
    }
}

#[test]
fn block_maps_and_no_checksums() {
    damage(&["-t", "ext2", "-b", "1024", "-I", "128"]);
}

#[test]
fn extents_and_no_checksums() {
    damage(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal"]);
}

#[test]
fn checksums() {
    damage(&["-t", "ext4", "-b", "4096", "-O", "^has_journal"]);
}

/// It was counted what is free, which cannot be where a descriptor is damaged: such a disk could never be detached.
#[test]
fn a_disk_whose_descriptors_are_damaged_is_given_back() {
    let image = Image::make("16M", &["-t", "ext4", "-b", "4096"]);
    let mut bytes = image.bytes();
    // The free blocks of group 0, whose checksum is wrong then.
    bytes[4096 + 0xC] ^= 1;
    let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
    let disk = Arc::new(Disk::memory(bytes));
    ext::attach(&region, &disk).unwrap();
    let volume = Volume::mount(&region, disk.clone(), &Options::default()).unwrap();
    assert!(volume.statfs().is_err());
    volume.unmount().unwrap();
    volume.detach().unwrap();
    assert!(ext::info(&disk).unwrap().has_errors, "whoever has it next is told");
    let mut after = vec![0; disk.bytes() as usize];
    disk.read(disk::Purpose::Data, 0, &mut after).unwrap();
    let image = Image::of(&after);
    let mended = std::process::Command::new("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
    assert_eq!(mended.status.code(), Some(1), "{mended:?}");
    image.fsck();
}

/// All groups whose descriptors are in one block were out with one that is damaged: nothing could be made, and nobody told what is free.
#[test]
fn one_damaged_descriptor_took_its_neighbours_with_it() {
    const GROUP: usize = 2;
    let image =
        Image::make("32M", &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^resize_inode,^flex_bg"]);
    let sound = image.bytes();
    let free = |image: &[u8]| {
        let disk = Arc::new(Disk::memory(image.to_vec()));
        Volume::open(disk, &Options::default()).unwrap().statfs().unwrap()
    };
    let mut bytes = sound.clone();
    // One of the free blocks of the group, whose checksum is wrong then.
    let descriptor = 2048 + GROUP * 64;
    let free_there = u16::from_le_bytes([bytes[descriptor + 0xC], bytes[descriptor + 0xD]]);
    bytes[descriptor + 0xC] ^= 1;
    let (before, after) = (free(&sound), free(&bytes));
    assert_eq!(after.blocks_free + u64::from(free_there), before.blocks_free);
    assert!(after.files_free < before.files_free);

    let zone = Zone::anonymous(24 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(20 << 20)).unwrap();
    let disk = Arc::new(Disk::memory(bytes.clone()));
    ext::attach(&region, &disk).unwrap();
    let volume = Volume::mount(&region, disk.clone(), &Options::default()).unwrap();
    let root = Caller::root();
    for n in 0..3 {
        assert_eq!(volume.statfs().unwrap().blocks_free, after.blocks_free, "{n}");
    }
    assert_eq!(volume.damage().count, 1, "it is told once");
    assert!(volume.damage().first.contains("group 2"), "{:?}", volume.damage());
    // All that is free elsewhere is given out.
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
    let mut written = 0u64;
    while let Ok(some) = volume.write(&root, file.handle, written, &[7; 64 << 10]) {
        written += some as u64;
        volume.fsync(file.handle, false).unwrap();
    }
    assert!(written / 1024 + 500 > after.blocks_free, "{written} bytes of {} blocks", after.blocks_free);
    let mut made = 0;
    while volume.mknod(&root, ROOT_INO, format!("{made}").as_bytes(), 0o100_644, 0).is_ok() {
        made += 1;
    }
    assert!(made > 100, "{made}");
    assert_eq!(volume.damage().count, 1, "nor do those that pass it over count it");
    volume.release(file.handle).unwrap();
    volume.detach().unwrap();
    assert!(ext::info(&disk).unwrap().has_errors, "whoever has it next is told");
    let mut given_back = vec![0; disk.bytes() as usize];
    disk.read(disk::Purpose::Data, 0, &mut given_back).unwrap();
    assert_eq!(given_back[descriptor..descriptor + 64], bytes[descriptor..descriptor + 64], "as it was");
    let image = Image::of(&given_back);
    let mended = std::process::Command::new("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
    assert_eq!(mended.status.code(), Some(1), "{mended:?}");
    image.fsck();
}
