//! Small file systems with something of everything, made without mounting anything.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use super::{Image, run};

/// The options of mke2fs for each.
const KINDS: [&[&str]; 7] = [
    &["-t", "ext2", "-b", "1024", "-I", "128"],
    &["-t", "ext3", "-b", "2048", "-I", "256", "-J", "size=2"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit,uninit_bg", "-J", "size=1"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,inline_data,meta_bg,^resize_inode,^has_journal"],
    &["-t", "ext4", "-b", "1024", "-J", "size=1"],
    &["-t", "ext4", "-b", "4096", "-O", "inline_data,^has_journal"],
    &["-t", "ext4", "-b", "4096", "-O", "bigalloc,^has_journal,^metadata_csum", "-C", "16384"],
];

pub(crate) fn all() -> Vec<(String, Vec<u8>)> {
    KINDS.iter().map(|options| (options.join(" "), make(options))).collect()
}

pub(crate) fn make(options: &[&str]) -> Vec<u8> {
    let source = tempfile::tempdir().unwrap();
    fill(source.path());
    let image = Image::empty();
    let (path, source) = (image.path.display().to_string(), source.path().display().to_string());
    run("mke2fs", &[&["-q", "-F", "-N", "512", "-d", &source], options, &[&path, "8M"]].concat());
    // Hash trees are made by checking; it says that something was changed.
    let checked = std::process::Command::new("e2fsck").args(["-fyD", &path]).output().unwrap();
    assert!(checked.status.code().is_some_and(|code| code < 2), "e2fsck: {}", checked.status);
    image.bytes()
}

fn fill(root: &Path) {
    let large = root.join("large");
    fs::create_dir(&large).unwrap();
    for n in 0..120 {
        File::create(large.join(format!("{n} with a name that fills the directory's blocks"))).unwrap();
    }
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::write(root.join("a/small"), "small").unwrap();
    fs::write(root.join("a/some"), vec![b'x'; 20_000]).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    for n in 0..200 {
        sparse.write_all_at(&vec![b'x'; 4096], n * 12_288).unwrap();
    }
    sparse.write_all_at(b"xxxx", 80 << 20).unwrap();
    symlink("short", root.join("short link")).unwrap();
    symlink("t".repeat(100), root.join("long link")).unwrap();
    for (n, name) in ["a/small", "a", "sparse"].into_iter().enumerate() {
        let set = |key: &str, value: &[u8]| {
            rustix::fs::lsetxattr(root.join(name), key, value, rustix::fs::XattrFlags::empty()).unwrap();
        };
        set("user.small", b"value");
        set("user.large", &vec![b'v'; 100 + n * 200]);
    }
}
