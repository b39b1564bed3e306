//! A check finds nothing in what is sound, and whatever debugfs put wrong.

use crate::support;
use std::sync::Arc;

use crate::support::{Image, specimens};
use disk::Disk;
use ext::{Options, Report};

fn check(image: &[u8]) -> Report {
    ext::check(Arc::new(Disk::memory(image.to_vec())), &Options::default()).unwrap()
}

#[test]
fn sound_file_systems_are_clean() {
    for (name, image) in specimens::all() {
        let found = check(&image);
        assert!(found.is_clean(), "{name}: {:#?}", found.findings);
        assert!(found.inodes > 20 && found.blocks > 100);
    }
}

/// What debugfs is told to do to a sound file system, and a word that the finding has.
const DAMAGE: [(&str, &str); 16] = [
    ("sif a/small links_count 5", "1 names and 5 links"),
    ("sif a/small links_count 0", "not among the orphans"),
    ("unlink a/small", "has no name"),
    ("unlink a/b", "is in no directory"),
    ("ln a/small a/b/small", "2 names and 1 links"),
    ("freei a/small", "its bitmap says that it is free"),
    ("seti <300>", "its bitmap says that it is"),
    ("clri a/small", "is not in use"),
    ("sif a/some blocks 2", "sectors and says 2"),
    ("freeb 2 1", "its bitmap says that it is free"),
    ("setb 6000 3", "its bitmap says that it is in use"),
    ("set_bg 0 free_blocks_count 7", "free clusters and says 7"),
    ("set_bg 0 free_inodes_count 7", "free inodes and says 7"),
    ("set_bg 0 used_dirs_count 7", "directories and says 7"),
    ("sif a/some block[0] 2", "somebody else's"),
    ("sif a/b mode 0100644", "another kind"),
];

#[test]
fn what_is_wrong_is_found() {
    let image = specimens::make(&["-t", "ext2", "-b", "1024", "-I", "128"]);
    assert!(check(&image).is_clean());
    for (command, word) in DAMAGE {
        let damaged = Image::of(&image);
        let path = damaged.path.display().to_string();
        support::run("debugfs", &["-w", "-R", command, &path]);
        let found = check(&damaged.bytes());
        assert!(found.findings.iter().any(|what| what.contains(word)), "{command}: {:#?}", found.findings);
        let status = std::process::Command::new("e2fsck").args(["-fn", &path]).output().unwrap().status;
        assert_eq!(status.code(), Some(4), "e2fsck finds it, too: {command}");
    }
}

/// How many inodes share a block of attributes is counted, and is in the block.
#[test]
fn blocks_of_attributes_count_their_inodes() {
    let image = specimens::make(&["-t", "ext2", "-b", "1024", "-I", "128"]);
    let is_block = |bytes: &[u8]| bytes[..4] == 0xEA02_0000u32.to_le_bytes();
    let at = image.chunks(1024).position(is_block).expect("one of attributes") * 1024;
    let mut damaged = image.clone();
    damaged[at + 4] += 1;
    let found = check(&damaged);
    let says = format!("block {} of attributes is that of 1 inodes and says 2", at / 1024);
    assert_eq!(found.findings, [says]);
    let damaged = Image::of(&damaged);
    let path = damaged.path.display().to_string();
    let status = std::process::Command::new("e2fsck").args(["-fn", &path]).output().unwrap().status;
    assert_eq!(status.code(), Some(4), "e2fsck finds it, too");
}

/// Backups are there, and say where things are.
#[test]
fn backups_say_the_same() {
    let layouts: [&[&str]; 4] = [
        &["-t", "ext4", "-b", "1024", "-g", "512"],
        &["-t", "ext2", "-b", "1024", "-g", "512", "-O", "^sparse_super,^resize_inode"],
        &["-t", "ext4", "-b", "1024", "-g", "512", "-O", "meta_bg,^resize_inode"],
        &["-t", "ext4", "-b", "1024", "-g", "512", "-O", "sparse_super2"],
    ];
    for options in layouts {
        let made = Image::make("32M", options);
        let image = made.bytes();
        assert!(check(&image).is_clean(), "{options:?}: {:#?}", check(&image).findings);
        let shown = support::run("dumpe2fs", &[&made.path.display().to_string()]);
        let backup = shown.lines().find_map(|line| line.trim().strip_prefix("Backup superblock at "));
        let backup: usize = backup.unwrap().split(',').next().unwrap().parse().unwrap();
        let damage = |at: usize| {
            let mut damaged = image.clone();
            damaged[at] ^= 1;
            check(&damaged).findings
        };
        let found = damage(backup * 1024 + 0x68);
        assert!(
            found.len() == 1 && found[0].contains("the backup of the superblock"),
            "{options:?}: {found:?}"
        );
        // Where the inodes of the first group of those in the block are. With meta_bg, group 1 has the first backup.
        let at = shown.lines().filter_map(|line| line.split("Group descriptor at ").nth(1)).nth(1);
        let descriptors = at.map_or(backup + 1, |number| number.trim().parse().unwrap());
        let found = damage(descriptors * 1024 + 8);
        assert!(found.len() == 1 && found[0].contains("of the descriptor"), "{options:?}: {found:?}");
    }
}

#[test]
fn quota_files_are_named() {
    let found = check(&Image::make("16M", &["-t", "ext4", "-O", "quota"]).bytes());
    assert!(found.is_clean(), "{:#?}", found.findings);
    assert_eq!(found.not_checked, ["the quota file of users, inode 3", "the quota file of groups, inode 4"]);
    assert!(check(&specimens::make(&["-t", "ext2"])).not_checked.is_empty());
}

/// A directory that leads to its parent is reached twice, and the walk ends.
#[test]
fn a_directory_in_itself_is_found() {
    let damaged = Image::of(&specimens::make(&["-t", "ext2", "-b", "1024", "-I", "128"]));
    support::run("debugfs", &["-w", "-R", "ln a a/b/itself", &damaged.path.display().to_string()]);
    let found = check(&damaged.bytes());
    assert!(found.findings.iter().any(|what| what.contains("in itself")), "{:#?}", found.findings);
}

/// Names that a hash tree does not lead to are found, and so is a name that is there twice.
#[test]
fn hash_trees_are_checked_name_by_name() {
    let image = specimens::make(&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let name = b"77 with a name that fills the directory's blocks";
    let at = image.windows(name.len()).position(|bytes| bytes == name).unwrap();
    let renamed = |new: &[u8; 2]| {
        let mut image = image.clone();
        image[at..at + 2].copy_from_slice(new);
        check(&image).findings
    };
    // The hash of one name or another leads to another block.
    let all: Vec<String> =
        [b"zz", b"zy", b"zx", b"zw", b"zv", b"zu", b"zt", b"zs", b"zr", b"zq", b"zp", b"zo"]
            .into_iter()
            .flat_map(renamed)
            .collect();
    assert!(all.iter().any(|what| what.contains("not found by its hash tree")), "{all:?}");
}

/// What nobody uses is right, too, or e2fsck minds: ends of bitmaps, removed inodes, reserved ones, the map by which the file system can grow.
#[test]
fn what_is_not_in_use_is_checked() {
    let made = Image::of(&specimens::make(&["-t", "ext4", "-b", "1024"]));
    let path = made.path.display().to_string();
    let debugfs = |path: &str, command: &str| support::run("debugfs", &["-w", "-R", command, path]);
    let number = |text: &str, before: &str| -> usize {
        let behind = text.split(before).nth(1).unwrap().trim_start();
        behind.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    debugfs(&path, "mknod gone p");
    let removed = number(&debugfs(&path, "stat gone"), "Inode:");
    debugfs(&path, "rm gone");
    let image = made.bytes();
    assert!(check(&image).is_clean(), "{:#?}", check(&image).findings);
    let shown = support::run("dumpe2fs", &[&path]);
    let table = number(&shown, "Inode table at ") * 1024;
    let inode = |n: usize| table + (n - 1) * number(&shown, "Inode size:");
    let bitmap = number(&shown, "Inode bitmap at ") * 1024;
    let patched = |at: usize| {
        let mut image = image.clone();
        image[at] ^= 0x10;
        Image::of(&image)
    };
    let told = |command: &str| {
        let image = Image::of(&image);
        debugfs(&image.path.display().to_string(), command);
        image
    };
    for (damaged, words) in [
        (patched(bitmap + 1023), "not all bits behind the end of its bitmap of inodes"),
        (patched(inode(removed) + 0x24), "not in use, has a wrong checksum"),
        (patched(inode(9) + 0x7C), "inode 9, which is not in use, has a wrong checksum"),
        (told(&format!("sif <{removed}> dtime 0")), "was removed, and does not say when"),
        (told("clri <7>"), "inode 7 does not lead"),
        (told("sif <7> block[DIND] 0"), "inode 7 does not lead"),
    ] {
        let found = check(&damaged.bytes());
        assert!(found.findings.iter().any(|what| what.contains(words)), "{words}: {:#?}", found.findings);
        let path = damaged.path.display().to_string();
        let status = std::process::Command::new("e2fsck").args(["-fn", &path]).output().unwrap().status;
        assert!(status.code() >= Some(4), "e2fsck finds it, too: {words}");
    }
}
