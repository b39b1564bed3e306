//! What must hold for every kind of disk.
#![allow(dead_code)]

use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;

use disk::{Buffer, Disk, Error, OpenOptions, Purpose, Queue, Write};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn image(dir: &tempfile::TempDir, bytes: u64) -> std::path::PathBuf {
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

pub(crate) fn open(path: &Path) -> Disk {
    Disk::open_path(path, &OpenOptions::default()).unwrap()
}

pub(crate) fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|n| (n as u8).wrapping_mul(31).wrapping_add((n >> 8) as u8).wrapping_add(salt)).collect()
}

/// What must hold for every disk of at least 16 MiB that can be written.
pub(crate) fn behaves(disk: Disk) {
    let sector = u64::from(disk.sector());
    let (whole, name) = (disk.bytes(), disk.name().to_string());
    // Reads of any range, in memory of any alignment.
    let written = pattern(64 << 10, 1);
    disk.write(Purpose::Data, MIB, &written).unwrap();
    let mut read = vec![0; 10_001];
    disk.read(Purpose::Data, MIB + 777, &mut read).unwrap();
    assert_eq!(read, written[777..777 + 10_001], "{name}");
    // Several places at once, some empty, more than the kernel takes in one request.
    let parts: Vec<Vec<u8>> = (0..1500).map(|n| pattern((n % 3) * sector as usize, n as u8)).collect();
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    disk.write_vectored(Purpose::Metadata, 2 * MIB, &slices, true).unwrap();
    let mut back: Vec<Vec<u8>> = parts.iter().map(|part| vec![0; part.len()]).collect();
    let mut into: Vec<IoSliceMut<'_>> = back.iter_mut().map(|part| IoSliceMut::new(part)).collect();
    disk.read_vectored(Purpose::Metadata, 2 * MIB, &mut into).unwrap();
    assert!(back == parts, "{name}");
    disk.flush().unwrap();
    // The last sector, and nothing behind it.
    disk.write(Purpose::Data, whole - sector, &pattern(sector as usize, 9)).unwrap();
    let far = disk.write(Purpose::Data, whole, &pattern(sector as usize, 9)).unwrap_err();
    assert!(matches!(far, Error::OutOfRange { .. }), "{far}");
    assert!(matches!(disk.read(Purpose::Data, u64::MAX, &mut [0; 2]), Err(Error::OutOfRange { .. })));
    let torn = disk.write(Purpose::Data, 1, &pattern(sector as usize, 9)).unwrap_err();
    assert!(matches!(torn, Error::NotSectors { .. }), "{torn}");

    let account = disk.account();
    let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
    assert_eq!(account.of(Purpose::Metadata).writes, 1, "{name}");
    assert_eq!(account.of(Purpose::Metadata).bytes_written, bytes, "{name}");
    assert_eq!(account.of(Purpose::Metadata).reads, 1, "{name}");
    assert_eq!((account.of(Purpose::Data).writes, account.of(Purpose::Data).reads), (2, 1), "{name}");
    assert_eq!(account.of(Purpose::Data).bytes_written, (64 << 10) + sector, "{name}");
    assert_eq!((account.flushes, account.requests()), (1, 6), "{name}");

    let disk = Arc::new(disk);
    for queue in [Queue::new(disk.clone(), 4), Queue::with_threads(disk.clone(), 16)] {
        queues(&disk, &queue);
    }
}

/// Writes that are handed over arrive, the later of two to one place last; each is counted.
pub(crate) fn queues(disk: &Disk, queue: &Queue) {
    let before = disk.account();
    let length = 64 << 10;
    for round in 0..3u8 {
        for n in 0..32u64 {
            let salt = round * 50 + n as u8;
            let write = Write {
                purpose: Purpose::Data,
                at: n * length,
                buffer: Buffer::of(&pattern(length as usize, salt)),
                token: n,
            };
            queue.submit(write).unwrap();
        }
    }
    queue.drain().unwrap();
    let mut read = vec![0; length as usize];
    for n in 0..32u64 {
        disk.read(Purpose::Metadata, n * length, &mut read).unwrap();
        assert!(read == pattern(length as usize, 100 + n as u8), "{} {n}", disk.name());
    }
    let spent = disk.account() - before;
    assert_eq!((spent.of(Purpose::Data).writes, spent.of(Purpose::Data).bytes_written), (96, 96 * length));
    let far = Write { purpose: Purpose::Data, at: disk.bytes(), buffer: Buffer::zeroed(4096), token: 7 };
    let (write, error) = *queue.submit(far).unwrap_err();
    assert!(write.token == 7 && matches!(error, Error::OutOfRange { .. }));
}
