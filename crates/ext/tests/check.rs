//! A check finds nothing in what is sound, and whatever debugfs put wrong.

use std::sync::Arc;

use disk::Disk;
use ext::{Options, Report};
use support::{Image, specimens};

mod support;

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
    let found = renamed(b"zz");
    let other = renamed(b"76");
    assert!(
        found.iter().chain(&other).any(|what| what.contains("not found by its hash tree")),
        "{found:?} {other:?}"
    );
}
