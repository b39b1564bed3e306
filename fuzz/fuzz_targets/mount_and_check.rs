//! A valid volume with some of its bytes changed is opened, checked, read as a whole, written to, and compared with a
//! snapshot of it. Whatever it holds: no panic, no hang, no overflow of the stack.
//!
//! `cargo +nightly fuzz run mount_and_check -- -max_total_time=60 -timeout=20 -len_control=0 -max_len=64`
//!
//! The input is a list of changes, 2 bytes of place and 1 to 8 bytes each. Places are not addresses: most of a volume is
//! free, so a place counts the blocks that mean something. The checksums are switched off (see `Cargo.toml`).

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use native::{FormatOptions, MountOptions, Volume, check, format, info};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use vfs::{Caller, FileKind, FileSystem, Ino, OpenFlags, ROOT_INO, RenameFlags, SetAttr, XattrMode};

const BLOCK: usize = 4096;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

struct Specimen {
    image: Vec<u8>,
    /// Where blocks that are not all zeros begin.
    places: Vec<usize>,
}

fn options() -> MountOptions {
    MountOptions { commit_interval: std::time::Duration::from_secs(3600), ..MountOptions::default() }
}

/// A volume with files and directories of all layouts; killed, with a log to replay, or closed.
fn specimens() -> &'static [Specimen; 2] {
    static SPECIMENS: OnceLock<[Specimen; 2]> = OnceLock::new();
    SPECIMENS.get_or_init(|| [specimen(true), specimen(false)])
}

fn specimen(clean: bool) -> Specimen {
    let root = &Caller::root();
    let zone = Zone::anonymous(18 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    format(&region, &FormatOptions { log_bytes: Some(1), ..FormatOptions::default() }).unwrap();
    let volume = Volume::open(region.clone(), &options()).unwrap();
    let write = |dir: Ino, name: &str, at: u64, length: usize| {
        let file = volume.create(root, dir, name.as_bytes(), 0o644, RW).unwrap();
        volume.write(root, file.handle, at, &vec![b'x'; length]).unwrap();
        volume.release(file.handle).unwrap();
        file.attr.ino
    };
    let small = volume.mkdir(root, ROOT_INO, b"small", 0o755).unwrap().ino;
    let large = volume.mkdir(root, ROOT_INO, b"large", 0o755).unwrap().ino;
    for n in 0..60 {
        volume.symlink(root, large, format!("{}{n}", "long name ".repeat(20)).as_bytes(), b"target").unwrap();
    }
    let inline = write(small, "inline", 0, 100);
    write(small, "mapped", 0, 20_000);
    write(ROOT_INO, "direct", 800_000, 9_000);
    write(ROOT_INO, "indirect", 300 << 20, 100);
    volume.setxattr(root, inline, b"user.small", b"value", XattrMode::Create).unwrap();
    volume.setxattr(root, large, b"user.large", &[1; 2000], XattrMode::Create).unwrap();
    volume.take_snapshot("kept", "").unwrap();
    write(ROOT_INO, "late", 100, 5000);
    volume.unlink(root, small, b"mapped").unwrap();
    volume.link(root, inline, ROOT_INO, b"linked").unwrap();
    let _orphan = volume.tmpfile(root, ROOT_INO, 0o600, RW).unwrap();
    if clean {
        volume.close().unwrap();
    }
    let image = zone.snapshot_image();
    let start = region.entry().start as usize;
    let places = (start..image.len())
        .step_by(BLOCK)
        .filter(|at| image[*at..at + BLOCK].iter().any(|byte| *byte != 0 && *byte != b'x'))
        .collect();
    Specimen { image, places }
}

fn walk(volume: &Volume) {
    let root = &Caller::root();
    let mut todo = vec![(ROOT_INO, 0)];
    let mut inodes = 0;
    while let Some((ino, depth)) = todo.pop() {
        inodes += 1;
        if inodes > 2000 {
            return; // a forged tree may be as large as it likes
        }
        let Ok(attr) = volume.getattr(ino) else { continue };
        for name in volume.listxattr(root, ino).unwrap_or_default().split(|byte| *byte == 0) {
            let _ = volume.getxattr(root, ino, name);
        }
        match attr.kind() {
            FileKind::Directory => {
                let mut count = 0;
                let _ = volume.readdir(ino, 0, &mut |entry| {
                    count += 1;
                    if entry.name != b"." && entry.name != b".." && depth < 20 {
                        todo.push((entry.ino, depth + 1));
                    }
                    count < 1000
                });
            }
            FileKind::Symlink => drop(volume.readlink(ino)),
            FileKind::Regular => {
                let Ok(handle) = volume.open(root, ino, RW) else { continue };
                let mut bytes = vec![0; 10_000];
                for at in [0, attr.size / 2, attr.size.saturating_sub(5000)] {
                    let _ = volume.read(handle, at, &mut bytes);
                }
                let _ = volume.seek(handle, vfs::SeekFrom::Data(1));
                let _ = volume.release(handle);
            }
            _ => {}
        }
    }
}

fn write_some(volume: &Volume) {
    let root = &Caller::root();
    let find = |dir: Ino, name: &[u8]| volume.lookup(root, dir, name).map(|attr| attr.ino);
    let small = find(ROOT_INO, b"small").unwrap_or(ROOT_INO);
    let large = find(ROOT_INO, b"large").unwrap_or(ROOT_INO);
    for name in ["direct", "indirect", "late", "linked", "new"] {
        let Ok(file) = volume.create(root, ROOT_INO, name.as_bytes(), 0o644, RW) else { continue };
        let _ = volume.write(root, file.handle, 700, &[1; 100]);
        let _ = volume.write(root, file.handle, 805_000, &[2; 10_000]);
        let cut = SetAttr { size: Some(1000), ..SetAttr::default() };
        let _ = volume.setattr(root, file.attr.ino, &cut, None);
        let _ = volume.release(file.handle);
    }
    for n in 0..40 {
        let _ = volume.mkdir(root, large, format!("{}{n}", "another ".repeat(20)).as_bytes(), 0o755);
    }
    let _ = volume.rename(root, ROOT_INO, b"large", small, b"moved", RenameFlags::empty());
    let _ = volume.rename(root, ROOT_INO, b"small", large, b"moved", RenameFlags::empty());
    let _ = volume.setxattr(root, large, b"user.x", &[3; 900], XattrMode::Either);
    let _ = volume.removexattr(root, large, b"user.large");
    let _ = volume.unlink(root, ROOT_INO, b"indirect");
    let _ = volume.unlink(root, small, b"inline");
    let _ = volume.syncfs();
}

fn regions(image: &[u8]) -> Option<(Zone, Region)> {
    let zone = Zone::from_bytes(image, &OpenOptions::default()).ok()?;
    let region = zone.volume("v").ok()?;
    Some((zone, region))
}

fuzz_target!(|input: &[u8]| {
    let Some((first, changes)) = input.split_first() else { return };
    let specimen = &specimens()[usize::from(first & 1)];
    let mut image = specimen.image.clone();
    let mut rest = changes;
    while let [low, high, length, tail @ ..] = rest {
        let (block, length) = (usize::from(*low) % specimen.places.len(), usize::from(length % 8) + 1);
        let (bytes, next) = tail.split_at(length.min(tail.len()));
        // High and the length's upper bits: 13 bits, steps of the 8 bytes of most fields, or odd ones.
        let within = (usize::from(*high) << 4 | usize::from(tail.first().unwrap_or(&0) >> 4)) % (BLOCK - 8);
        let at = specimen.places[block] + within;
        image[at..at + bytes.len()].copy_from_slice(bytes);
        rest = next;
    }
    let Some((_zone, region)) = regions(&image) else { return };
    let _ = info(&region);
    let _ = check(&region, false);
    if let Ok(volume) = Volume::open(region.clone(), &options()) {
        walk(&volume);
        write_some(&volume);
        let _ = volume.diff("kept", None);
        let _ = volume.close();
    }
    let _ = check(&region, true);
});
