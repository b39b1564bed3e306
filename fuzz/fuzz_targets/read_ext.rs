//! A valid ext file system with some of its bytes changed is opened, its journal replayed, everything in it read and checked.
//! Whatever it holds: no panic, no hang.
//!
//! `cargo +nightly fuzz run read_ext -- -max_total_time=60 -timeout=20 -len_control=0 -max_len=64`
//!
//! The input is a list of changes, 2 bytes of place and 1 to 8 bytes each; a place counts the blocks that mean something. The
//! specimens have no checksums, so that what is changed is not refused at the door. mke2fs, e2fsck and debugfs make them, once.

#![no_main]

use std::fs;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use disk::Disk;
use ext::{Options, Volume};
use libfuzzer_sys::fuzz_target;
use vfs::{Caller, FileKind, FileSystem, Ino, OpenFlags, ROOT_INO, SeekFrom};

const BLOCK: usize = 1024;

struct Specimen {
    image: Vec<u8>,
    /// Where blocks that are not all zeros, or all contents, begin.
    places: Vec<usize>,
}

/// One of each way to lay things out; the second has a journal to replay.
const KINDS: [&[&str]; 4] = [
    &["-t", "ext2", "-I", "128"],
    &["-t", "ext3", "-J", "size=1"],
    &["-t", "ext4", "-O", "^metadata_csum,^64bit,^has_journal"],
    &["-t", "ext4", "-O", "^metadata_csum,inline_data,bigalloc,^has_journal", "-C", "4096"],
];

fn run(program: &str, arguments: &[&str], most: i32) {
    let status = Command::new(program).args(arguments).status().expect("e2fsprogs is installed");
    assert!(status.code().is_some_and(|code| code <= most), "{program}: {status}");
}

fn specimens() -> &'static [Specimen] {
    static SPECIMENS: OnceLock<Vec<Specimen>> = OnceLock::new();
    SPECIMENS.get_or_init(|| KINDS.iter().map(|options| specimen(options)).collect())
}

fn specimen(options: &[&str]) -> Specimen {
    let dir = std::env::temp_dir().join(format!("amberfs-fuzz-ext.{}", std::process::id()));
    let source = dir.join("source");
    fs::create_dir_all(source.join("large")).unwrap();
    for n in 0..100 {
        fs::write(source.join(format!("large/{n} with a name that fills the directory's blocks")), "x")
            .unwrap();
    }
    fs::create_dir_all(source.join("a/b")).unwrap();
    fs::write(source.join("a/file"), vec![b'x'; 300_000]).unwrap();
    std::os::unix::fs::symlink("t".repeat(80), source.join("link")).unwrap();
    let (image, commands, blocks) = (dir.join("image"), dir.join("commands"), dir.join("blocks"));
    let text = |path: &std::path::Path| path.display().to_string();
    let _ = fs::remove_file(&image);
    let make = ["-q", "-F", "-b", "1024", "-N", "256", "-d", &text(&source)];
    run("mke2fs", &[&make[..], options, &[&text(&image), "6M"]].concat(), 0);
    run("e2fsck", &["-fyD", &text(&image)], 1);
    fs::write(&blocks, vec![b'y'; 4 * BLOCK]).unwrap();
    let journal = format!(
        "ea_set a/file user.name value\njo\njw -b 900,901 {0}\njw -r 901\njw -b 902 {0}\njc\n",
        text(&blocks)
    );
    let attributes = "ea_set a/file user.name value\n".to_string();
    fs::write(&commands, if options.contains(&"-J") { journal } else { attributes }).unwrap();
    run("debugfs", &["-w", "-f", &text(&commands), &text(&image)], 0);
    let image = fs::read(&image).unwrap();
    let _ = fs::remove_dir_all(&dir);
    let means = |at: &usize| image[*at..*at + BLOCK].iter().any(|byte| !matches!(byte, 0 | b'x'));
    let places = (0..image.len()).step_by(BLOCK).filter(means).collect();
    Specimen { image, places }
}

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
    let specimen = &specimens()[usize::from(*first) % KINDS.len()];
    let mut image = specimen.image.clone();
    let mut rest = changes;
    while let [low, high, length, tail @ ..] = rest {
        let (block, length) = (usize::from(*low) % specimen.places.len(), usize::from(length % 8) + 1);
        let (bytes, next) = tail.split_at(length.min(tail.len()));
        let at = specimen.places[block] + usize::from(*high) * 4 % (BLOCK - 8);
        image[at..at + bytes.len()].copy_from_slice(bytes);
        rest = next;
    }
    let disk = Arc::new(Disk::memory(image));
    let _ = ext::info(&disk);
    if let Ok(volume) = Volume::open(disk.clone(), &Options { cache_bytes: 1 << 20, ..Options::default() }) {
        walk(&volume);
        let _ = volume.statfs();
    }
    let _ = ext::check(disk.clone(), &Options::default());
    let _ = ext::recover(&disk);
});
