//! A scratch directory in memory, and the program run in it.
#![allow(unreachable_pub, missing_docs)]

pub mod mounted;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use tempfile::TempDir;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_amberfs");

/// Puts a copy of the program there, for a user who may not look where it was built. Another process writes it: while a copy of this one, on its
/// way to become another program, has it open for writing, nobody can run it (`ETXTBSY`).
pub fn copy_program(to: &Path) {
    assert!(Command::new("cp").arg(PROGRAM).arg(to).status().unwrap().success());
}

/// What a run left: exit code and both outputs.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    pub fn of(output: Output) -> Run {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Run { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Demands success.
    pub fn ok(self) -> Run {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self
    }

    /// Demands a failure with this code, whose message has these words.
    pub fn fails(self, code: i32, words: &[&str]) -> Run {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        for word in words {
            assert!(self.err.contains(word), "no '{word}' in: {}", self.err);
        }
        self
    }

    pub fn json(&self) -> Json {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

/// A process that another test has just begun has copies of all files open in this one, until it becomes another program: so
/// a mount that is in use is unmounted a moment later.
pub fn amberfs<S: AsRef<OsStr>>(arguments: &[S]) -> Run {
    let patience = Instant::now() + Duration::from_secs(1);
    loop {
        let run = Run::of(Command::new(PROGRAM).args(arguments).output().unwrap());
        let is_umount = arguments.first().is_some_and(|first| first.as_ref() == "umount");
        if !is_umount || !run.err.contains("is in use: close what is open") || Instant::now() > patience {
            return run;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Splits at blanks: for arguments without any.
pub fn run(line: &str) -> Run {
    amberfs(&line.split_whitespace().collect::<Vec<_>>())
}

/// Waits for what happens by itself, a minute at most: a busy machine may take long for anything.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < patience, "{what}: it does not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A directory of this test's own, with a zone in it; unmounts what is left.
pub struct Scratch {
    dir: TempDir,
}

impl Scratch {
    pub fn new() -> Scratch {
        let memory = Path::new("/dev/shm");
        // A container's /dev/shm often has 64 MiB.
        let room = rustix::fs::statvfs(memory).is_ok_and(|fs| fs.f_bavail * fs.f_frsize >= 1 << 30);
        let in_memory = if room { TempDir::new_in(memory).ok() } else { None };
        Scratch { dir: in_memory.unwrap_or_else(|| TempDir::new().unwrap()) }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A zone of 64 MiB with a volume `home` of 32 MiB, formatted.
    pub fn zone(&self) -> String {
        let zone = self.text("zone");
        run(&format!("zone create {zone} --size 64M")).ok();
        run(&format!("mkfs {zone}:home --size 32M --label mine")).ok();
        zone
    }

    /// A directory to mount on.
    pub fn mount_point(&self, name: &str) -> String {
        std::fs::create_dir(self.path(name)).unwrap();
        self.text(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let here = self.dir.path().display().to_string();
        // The newest first: what is mounted in others, or on them.
        for line in mounts.lines().rev() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, dir, kind, ..] = fields[..] else { continue };
            if !dir.starts_with(&here) {
                continue;
            }
            if kind == "fuse.amberfs" {
                amberfs(&["umount", "--lazy", dir]);
            } else {
                let _ = Command::new("umount").args(["--lazy", dir]).status();
            }
        }
    }
}

/// Whether volumes can be mounted here; says so if not, past the harness, which keeps what passing tests print.
pub fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        let _ = writeln!(std::io::stderr(), "LEFT OUT: mounting needs root and /dev/fuse");
    }
    can
}
