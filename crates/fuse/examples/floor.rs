//! The floor under every request: a server that answers at once and keeps nothing.
//!
//! `cargo run --release -p amberfs-fuse --example floor [-- REQUESTS]` mounts it and prints what a request costs before any
//! file system has done anything. Nothing of amberfs is in it but the way to mount; set beside `latency`, the difference is
//! ours.

use std::ffi::OsStr;
use std::fs;
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, MountOption, ReplyAttr,
    ReplyEntry, ReplyStatfs, Request,
};

struct Floor;

fn attr(ino: INodeNo, kind: FileType) -> FileAttr {
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Floor {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "file" {
            // Believed for no time at all: each stat asks again.
            reply.entry(&Duration::ZERO, &attr(INodeNo(2), FileType::RegularFile), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let kind = if ino == INodeNo::ROOT { FileType::Directory } else { FileType::RegularFile };
        reply.attr(&Duration::from_secs(3600), &attr(ino, kind));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, 4096, 255, 4096);
    }
}

fn main() {
    let requests = std::env::args().nth(1).map_or(20_000, |count| count.parse().expect("a number"));
    for threads in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("floor".to_owned())];
        config.n_threads = Some(threads);
        config.clone_fd = threads > 1;
        let session = fuser::spawn_mount(Floor, dir.path(), &config).unwrap();
        let statfs = median(requests, || assert!(rustix::fs::statvfs(dir.path()).is_ok()));
        let file = dir.path().join("file");
        let lookup = median(requests, || assert!(fs::metadata(&file).is_ok()));
        println!(
            "{threads} server thread(s): statfs {statfs:.1} us, lookup {lookup:.1} us (median of {requests})"
        );
        session.umount_and_join().unwrap();
    }
}

/// Microseconds.
fn median(count: usize, mut request: impl FnMut()) -> f64 {
    let mut times: Vec<Duration> = (0..count)
        .map(|_| {
            let start = Instant::now();
            request();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[count / 2].as_nanos() as f64 / 1000.0
}
