//! What tests of mounts begin with, and what they do on them.

use std::path::Path;
use std::process::Command;

use super::{Run, Scratch, can_mount};

/// A scratch directory, its zone with a volume `home`, and its directory `mnt` to mount that on; none where nothing can be
/// mounted.
pub fn place() -> Option<(Scratch, String, String)> {
    can_mount().then(|| {
        let scratch = Scratch::new();
        let (zone, dir) = (scratch.zone(), scratch.mount_point("mnt"));
        (scratch, zone, dir)
    })
}

/// Mounts a tmpfs of this test's own on a new directory `name`: who mounts something in it can move that.
pub fn memory(scratch: &Scratch, name: &str) -> String {
    let dir = scratch.mount_point(name);
    shell(&format!("mount -t tmpfs -o size=256M tmpfs {dir} && mount --make-private {dir}")).ok();
    dir
}

pub fn shell(line: &str) -> Run {
    Run::of(Command::new("sh").args(["-c", line]).output().unwrap())
}

/// The names in a directory, in order.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
