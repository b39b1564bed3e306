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

/// Runs a line of shell. As [`super::amberfs`] does, it unmounts a moment later what a process that has just begun keeps busy.
pub fn shell(line: &str) -> Run {
    const UMOUNT: &str = r#"
        umount() {
            for _ in $(seq 50); do
                said=$(command umount "$@" 2>&1) && code=0 || code=$?
                case "$code $said" in
                    0*) [ -z "$said" ] || echo "$said"; return 0 ;;
                    *"target is busy"* | *"is in use: close what is open"*) sleep 0.02 ;;
                    *) break ;;
                esac
            done
            echo "$said" >&2
            return $code
        }
    "#;
    Run::of(Command::new("sh").args(["-c", &format!("{UMOUNT}{line}")]).output().unwrap())
}

/// The names in a directory, in order.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
