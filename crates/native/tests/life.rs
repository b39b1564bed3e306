//! A volume's life: made, used, closed, opened again; and opened after its zone was copied in mid-life, which is
//! what a crash of the server leaves.

use crate::volumes::image_at_rest;
use native::{FormatOptions, MountOptions, Volume, format};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO, RenameFlags};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn made(bytes: u64) -> (Zone, Region) {
    let zone = Zone::anonymous(bytes, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    (zone, region)
}

fn crashed(zone: &Zone) -> Region {
    Zone::from_bytes(&image_at_rest(zone), &OpenOptions::default()).unwrap().volume("v").unwrap()
}

fn write_file(volume: &Volume, name: &str, bytes: &[u8]) {
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, name.as_bytes(), 0o644, RW).unwrap();
    assert_eq!(volume.write(&root, file.handle, 0, bytes).unwrap(), bytes.len());
    volume.release(file.handle).unwrap();
}

fn read_file(volume: &Volume, name: &str) -> Vec<u8> {
    let root = Caller::root();
    let attr = volume.lookup(&root, ROOT_INO, name.as_bytes()).unwrap();
    let handle = volume.open(&root, attr.ino, OpenFlags::READ).unwrap();
    let mut bytes = vec![0xee; attr.size as usize + 1];
    let n = volume.read(handle, 0, &mut bytes).unwrap();
    bytes.truncate(n);
    volume.release(handle).unwrap();
    bytes
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((i >> 8) as u8)).collect()
}

#[test]
fn files_of_all_sizes_survive_unmount_and_crash() {
    let (zone, region) = made(256 << 20);
    let sizes = [0, 1, 100, 128, 129, 3000, 4096, 5000, 10_000, 65_536, 65_537, 589_824, 800_000, 5_000_000];
    let volume = Volume::open(region.clone(), &MountOptions::default()).unwrap();
    for (n, size) in sizes.iter().enumerate() {
        write_file(&volume, &format!("f{n}"), &pattern(*size, n as u8));
    }
    let check = |volume: &Volume| {
        for (n, size) in sizes.iter().enumerate() {
            assert!(read_file(volume, &format!("f{n}")) == pattern(*size, n as u8), "file of {size} bytes");
        }
    };
    check(&volume);
    let after_crash = Volume::open(crashed(&zone), &MountOptions::default()).unwrap();
    assert!(!after_crash.recovery().was_clean);
    assert!(after_crash.recovery().transactions_replayed > 0);
    check(&after_crash);
    volume.checkpoint().unwrap();
    check(&volume);
    volume.close().unwrap();
    drop(volume);
    let again = Volume::open(region, &MountOptions::default()).unwrap();
    assert!(again.recovery().was_clean);
    assert_eq!(again.recovery().transactions_replayed, 0);
    check(&again);
}

#[test]
fn a_directory_of_many_files_keeps_them_all() {
    let (zone, region) = made(512 << 20);
    let volume = Volume::open(region, &MountOptions::default()).unwrap();
    let root = Caller::root();
    let count = 30_000;
    for n in 0..count {
        let name = format!("file-with-a-name-{n}");
        let file = volume.create(&root, ROOT_INO, name.as_bytes(), 0o644, RW).unwrap();
        volume.release(file.handle).unwrap();
    }
    for n in (0..count).step_by(3) {
        volume.unlink(&root, ROOT_INO, format!("file-with-a-name-{n}").as_bytes()).unwrap();
    }
    for n in (1..count).step_by(3) {
        let (old, new) = (format!("file-with-a-name-{n}"), format!("renamed-{n}"));
        volume
            .rename(&root, ROOT_INO, old.as_bytes(), ROOT_INO, new.as_bytes(), RenameFlags::empty())
            .unwrap();
    }
    let check = |volume: &Volume| {
        let mut seen = std::collections::BTreeSet::new();
        volume
            .readdir(ROOT_INO, 0, &mut |entry| {
                assert!(
                    seen.insert(String::from_utf8(entry.name.to_vec()).unwrap()),
                    "twice: {:?}",
                    entry.name
                );
                true
            })
            .unwrap();
        assert_eq!(seen.len(), 2 + 2 * count / 3);
        for n in 0..count {
            let found = volume.lookup(&root, ROOT_INO, format!("file-with-a-name-{n}").as_bytes());
            assert_eq!(found.is_ok(), n % 3 == 2, "{n}: {found:?}");
            assert_eq!(seen.contains(&format!("renamed-{n}")), n % 3 == 1);
        }
    };
    check(&volume);
    check(&Volume::open(crashed(&zone), &MountOptions::default()).unwrap());
    volume.close().unwrap();
    check(&Volume::open(crashed(&zone), &MountOptions::default()).unwrap());
}

/// Formatting took the superblocks away, and only then found the volume mounted.
#[test]
fn a_mounted_volume_was_formatted() {
    let (_zone, region) = made(18 << 20);
    let volume = Volume::open(region.clone(), &MountOptions::default()).unwrap();
    write_file(&volume, "kept", &pattern(10_000, 3));
    assert!(matches!(format(&region, &FormatOptions::default()), Err(native::Error::Mounted)));
    volume.close().unwrap();
    drop(volume);
    let volume = Volume::open(region.clone(), &MountOptions::default()).unwrap();
    assert_eq!(read_file(&volume, "kept"), pattern(10_000, 3));
    volume.close().unwrap();
    drop(volume);
    format(&region, &FormatOptions::default()).unwrap();
}
