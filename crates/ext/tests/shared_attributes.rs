//! Blocks of attributes that the kernel has as many inodes share as it lets: what we change of some is nobody else's, and each block says
//! how many have it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::support::random::Random;
use crate::support::{Image, can_mount, run};
use disk::Disk;
use ext::{Options, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use rustix::fs::XattrFlags;
use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO, XattrMode};

/// Most inodes that share a block, by the kernel (`EXT4_XATTR_REFCOUNT_MAX`).
const SHARERS_MAX: usize = 1024;
const FILES: usize = 1500;

/// Each file's attributes, which no inode of 128 bytes has room for.
type Files = BTreeMap<String, BTreeMap<&'static str, Vec<u8>>>;

fn value(fill: u8) -> Vec<u8> {
    vec![fill; 300]
}

fn made_by_the_kernel(dir: &Path, names: impl Iterator<Item = usize>, files: &mut Files) {
    for n in names {
        let path = dir.join(n.to_string());
        std::fs::write(&path, "").unwrap();
        rustix::fs::setxattr(&path, "user.same", &value(1), XattrFlags::empty()).unwrap();
        files.insert(n.to_string(), BTreeMap::from([("user.same", value(1))]));
    }
}

/// The kernel finds these attributes. Blocks that it has read are those that it lets others share.
fn compare(dir: &Path, files: &Files) {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        names.extend(entry.unwrap().file_name().into_string().ok().filter(|name| name != "lost+found"));
    }
    assert!(names.iter().eq(files.keys()), "not the same files");
    let (mut list, mut bytes) = (vec![0u8; 4096], vec![0u8; 4096]);
    for (name, expected) in files {
        let path = dir.join(name);
        let length = rustix::fs::listxattr(&path, &mut list[..]).unwrap();
        assert_eq!(length, expected.keys().map(|key| key.len() + 1).sum::<usize>(), "{name}");
        for (key, value) in expected {
            let length = rustix::fs::getxattr(&path, *key, &mut bytes[..]).unwrap();
            assert!(&bytes[..length] == value, "{key} of {name}");
        }
    }
}

/// How many inodes each block of attributes says it has, and how many it has.
fn sharers(image: &Image, files: &Files) -> Vec<usize> {
    let commands: String = files.keys().map(|name| format!("stat /{name}\n")).collect();
    let list = image.path.with_extension("commands");
    std::fs::write(&list, commands).unwrap();
    let told = run("debugfs", &["-f", &list.display().to_string(), &image.path.display().to_string()]);
    let mut owners: BTreeMap<usize, usize> = BTreeMap::new();
    for number in told.lines().filter_map(|line| line.split_once("File ACL: ")) {
        let number = number.1.split_whitespace().next().unwrap().parse().unwrap();
        *owners.entry(number).or_default() += 1;
    }
    owners.remove(&0);
    let block = run("dumpe2fs", &["-h", &image.path.display().to_string()]);
    let block = block.lines().find_map(|line| line.strip_prefix("Block size:")).unwrap();
    let (block, bytes) = (block.trim().parse::<usize>().unwrap(), image.bytes());
    for (number, owners) in &owners {
        let said = u32::from_le_bytes(bytes[number * block + 4..][..4].try_into().unwrap());
        assert_eq!(said as usize, *owners, "block {number}");
    }
    let mut all: Vec<usize> = owners.into_values().collect();
    all.sort_unstable_by_key(|owners| std::cmp::Reverse(*owners));
    all
}

/// What a volume of ours does to an image, which is detached then.
fn attached(image: &Image, change: impl FnOnce(&Volume)) {
    let zone = Zone::anonymous(20 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(16 << 20)).unwrap();
    let disk: std::sync::Arc<Disk> = image.disk(false);
    ext::attach(&region, &disk).unwrap();
    let volume = Volume::mount(&region, disk.clone(), &Options::default()).unwrap();
    change(&volume);
    volume.detach().unwrap();
    drop((volume, disk));
    image.fsck();
    let found = ext::check(image.disk(true), &Options::default()).unwrap();
    assert!(found.is_clean(), "{:#?}", found.findings);
}

/// Sets, replaces and removes attributes of some files, or the files.
fn change(volume: &Volume, files: &mut Files, random: &mut Random) {
    let root = Caller::root();
    let names: Vec<String> = files.keys().cloned().collect();
    for name in names {
        let ino = volume.lookup(&root, ROOT_INO, name.as_bytes()).unwrap().ino;
        let all = files.get_mut(&name).unwrap();
        let mut set = |key: &'static str, value: Vec<u8>| {
            volume.setxattr(&root, ino, key.as_bytes(), &value, XattrMode::Either).unwrap();
            all.insert(key, value);
        };
        match random.below(8) {
            0 => set("user.same", value(2)),
            1 => set("user.other", value(3)),
            // As it was.
            2 => set("user.same", value(1)),
            3 if all.remove("user.same").is_some() => {
                volume.removexattr(&root, ino, b"user.same").unwrap();
            }
            4 => {
                volume.unlink(&root, ROOT_INO, name.as_bytes()).unwrap();
                files.remove(&name);
            }
            _ => {}
        }
    }
    for n in 0..50 {
        let name = format!("ours-{}-{n}", files.len());
        let made = volume.create(&root, ROOT_INO, name.as_bytes(), 0o644, OpenFlags::WRITE).unwrap();
        volume.release(made.handle).unwrap();
        volume.setxattr(&root, made.attr.ino, b"user.same", &value(4), XattrMode::Either).unwrap();
        files.insert(name, BTreeMap::from([("user.same", value(4))]));
    }
}

#[test]
fn blocks_that_many_inodes_share_are_counted_right() {
    if !can_mount() {
        return;
    }
    for (seed, options) in
        (1..).zip([&["-t", "ext2", "-b", "1024"][..], &["-t", "ext4", "-b", "4096", "-O", "^has_journal"]])
    {
        let random = &mut Random::new(seed);
        let image = Image::make("24M", &[options, &["-I", "128", "-N", "4096"]].concat());
        let mut files = Files::new();
        made_by_the_kernel(&image.mount("user_xattr").dir, 0..FILES, &mut files);
        assert_eq!(sharers(&image, &files), [SHARERS_MAX, FILES - SHARERS_MAX]);
        attached(&image, |volume| change(volume, &mut files, random));
        let counted = sharers(&image, &files);
        assert!((1..SHARERS_MAX).contains(&counted[0]) && counted[2] == 1, "{counted:?}");
        {
            // What we have left is shared by who comes, up to the limit, and what we have made, too.
            let mounted = image.mount("user_xattr");
            compare(&mounted.dir, &files);
            made_by_the_kernel(&mounted.dir, FILES..2 * FILES, &mut files);
            let path = mounted.dir.join("as-ours");
            std::fs::write(&path, "").unwrap();
            rustix::fs::setxattr(&path, "user.same", &value(4), XattrFlags::empty()).unwrap();
            files.insert("as-ours".into(), BTreeMap::from([("user.same", value(4))]));
        }
        image.fsck();
        let counted = sharers(&image, &files);
        assert!(counted[0] == SHARERS_MAX && counted.contains(&2), "{counted:?}");
        attached(&image, |volume| change(volume, &mut files, random));
        compare(&image.mount("user_xattr,ro").dir, &files);
        sharers(&image, &files);
        // All that shared a block go; the last of them has it.
        attached(&image, |volume| {
            for name in files.keys() {
                volume.unlink(&Caller::root(), ROOT_INO, name.as_bytes()).unwrap();
            }
            let space = volume.statfs().unwrap();
            assert_eq!(space.files - space.files_free, 11, "those that mke2fs uses");
        });
    }
}
