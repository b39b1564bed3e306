//! A valid ext file system with some of its bytes changed is opened, its journal replayed, everything in it read and checked.
//! Whatever it holds: no panic, no hang.
//!
//! `cargo +nightly fuzz run read_ext -- -max_total_time=60 -timeout=20 -len_control=0 -max_len=64`
//!
//! What the input means: [`ext_specimens`].

#![no_main]

use std::sync::Arc;

use disk::Disk;
use ext::{Options, Volume};
use libfuzzer_sys::fuzz_target;
use vfs::{Caller, FileKind, FileSystem, Ino, OpenFlags, ROOT_INO, SeekFrom};

mod ext_specimens;

fn walk(volume: &Volume) {
    let root = &Caller::root();
    let mut todo = vec![ROOT_INO];
    let mut inodes = 0;
    while let Some(ino) = todo.pop() {
        inodes += 1;
        if inodes > 300 {
            return; // a forged tree may be as large as it likes
        }
        let Ok(attr) = volume.getattr(ino) else { continue };
        for name in volume.listxattr(root, ino).unwrap_or_default().split(|byte| *byte == 0) {
            let _ = volume.getxattr(root, ino, name);
        }
        match attr.kind() {
            FileKind::Directory => directory(volume, ino, &mut todo),
            FileKind::Regular => file(volume, ino),
            _ => drop(volume.readlink(ino)),
        }
    }
}

fn directory(volume: &Volume, dir: Ino, todo: &mut Vec<Ino>) {
    let mut names = Vec::new();
    let _ = volume.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        if entry.name != b"." && entry.name != b".." {
            todo.push(entry.ino);
        }
        names.len() < 200
    });
    names.push(b"nowhere".to_vec());
    for name in names {
        let _ = volume.lookup(&Caller::root(), dir, &name);
    }
}

fn file(volume: &Volume, ino: Ino) {
    let Ok(handle) = volume.open(&Caller::root(), ino, OpenFlags::READ) else { return };
    let mut bytes = [0; 3000];
    let mut at = 0;
    for _ in 0..50 {
        let Ok(start) = volume.seek(handle, SeekFrom::Data(at)) else { break };
        let _ = volume.read(handle, start, &mut bytes);
        let Ok(end) = volume.seek(handle, SeekFrom::Hole(start)) else { break };
        assert!(end > start, "a hole begins behind the data before it");
        at = end;
    }
    volume.release(handle).unwrap();
}

fuzz_target!(|input: &[u8]| {
    let Some((first, changes)) = input.split_first() else { return };
    let image = ext_specimens::changed(*first, changes);
    let disk = Arc::new(Disk::memory(image));
    let _ = ext::info(&disk);
    if let Ok(volume) = Volume::open(disk.clone(), &Options { cache_bytes: 1 << 20, ..Options::default() }) {
        walk(&volume);
        let _ = volume.statfs();
    }
    let _ = ext::check(disk.clone(), &Options::default());
    let _ = ext::recover(&disk);
});
