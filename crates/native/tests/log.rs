//! What the log does when something is wrong with it: it is not replayed beyond what is missing, says so, and is not
//! taken for another volume's.

mod volumes;

use native::{Durability, FormatOptions, Volume, check, format};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, Error, FallocateMode, FileSystem, ROOT_INO, XattrMode};
use volumes::*;

const BLOCK: usize = 4096;
/// Where the halves of the log of a 16 MiB volume lie, in blocks.
const HALVES: [std::ops::Range<usize>; 2] = [8..264, 264..520];

/// A volume that was killed with so many files made since its last checkpoint: its bytes, and where it begins in them.
fn killed(files: usize) -> (Vec<u8>, usize) {
    let (zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    for n in 0..files {
        write_file(&volume, ROOT_INO, &format!("{n}"), b"bytes").unwrap();
    }
    let image = zone.snapshot_image();
    (image, region.entry().start as usize)
}

/// The bytes of the `nth` record of the half with most of them.
fn record(image: &[u8], start: usize, nth: usize) -> std::ops::Range<usize> {
    let records = |half: &std::ops::Range<usize>| {
        let mut at = start + half.start * BLOCK + 64;
        let mut found = Vec::new();
        loop {
            let length = u32::from_le_bytes(image[at + 4..at + 8].try_into().unwrap()) as usize;
            if length == 0 || length > 4096 || !length.is_multiple_of(64) {
                return found;
            }
            found.push(at..at + length);
            at += length;
        }
    };
    HALVES.iter().map(records).max_by_key(Vec::len).unwrap()[nth].clone()
}

fn count(volume: &Volume) -> usize {
    names(volume, ROOT_INO).unwrap().len()
}

/// A transaction in the middle of the log rots. Everything before it is there, and can only be read, until a check lets
/// go of the rest.
#[test]
fn a_damaged_transaction_ends_it() {
    let (mut image, start) = killed(300);
    let hurt = record(&image, start, 21);
    image[hurt.start + 30] ^= 4;
    let (zone, region) = zone_of(&image);
    for _ in 0..2 {
        let volume = mount(&region, Durability::Operation);
        let failure = volume.failure().expect("it says so").to_string();
        assert!(failure.contains("fsck --repair") && failure.contains("missing"), "{failure}");
        assert!(volume.recovery().transactions_left_out > 100, "{:?}", volume.recovery());
        let left = count(&volume);
        assert!((5..30).contains(&left), "{left} files before the damage");
        assert_eq!(read_file(&volume, ROOT_INO, "3").unwrap(), b"bytes");
        assert!(matches!(write_file(&volume, ROOT_INO, "new", b""), Err(Error::Corrupt(_))));
        assert!(volume.syncfs().is_err());
        volume.close().unwrap();
        drop(volume);
    }
    let seen = check(&region, false).unwrap();
    assert!(seen.needs_recovery && !seen.is_clean(), "{seen:?}");
    let mended = check(&region, true).unwrap();
    assert!(mended.is_clean() && mended.transactions_dropped > 100, "{mended:?}");
    let volume = mount(&region, Durability::Operation);
    assert!(volume.failure().is_none() && (5..30).contains(&count(&volume)));
    write_file(&volume, ROOT_INO, "new", b"").unwrap();
    drop(volume);
    assert_sound(&region);
    drop(zone);
}

/// A transaction that is whole but cannot be applied ends it likewise: here because the directory that it changes is
/// damaged.
#[test]
fn a_transaction_that_cannot_be_applied_ends_it() {
    let (zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let dir = volume.mkdir(&Caller::root(), ROOT_INO, b"d", 0o755).unwrap().ino;
    write_file(&volume, dir, "first", b"bytes").unwrap();
    volume.checkpoint().unwrap();
    write_file(&volume, ROOT_INO, "before", b"bytes").unwrap();
    write_file(&volume, dir, "within", b"bytes").unwrap();
    write_file(&volume, ROOT_INO, "after", b"bytes").unwrap();
    let mut image = zone.snapshot_image();
    drop(volume);
    // The directory's bucket: kind 5, and whose it is.
    let header = |block: &[u8]| block[0] == 5 && block[8..12] == (dir as u32).to_le_bytes();
    let start = region.entry().start as usize;
    let blocks: Vec<usize> =
        (start + (4 << 20)..image.len()).step_by(BLOCK).filter(|at| header(&image[*at..*at + 16])).collect();
    assert!(!blocks.is_empty());
    for at in blocks {
        image[at + 40] ^= 1;
    }
    let (_zone, region) = zone_of(&image);
    let volume = mount(&region, Durability::Operation);
    let failure = volume.failure().expect("it says so").to_string();
    assert!(failure.contains("cannot be applied"), "{failure}");
    assert_eq!(read_file(&volume, ROOT_INO, "before").unwrap(), b"bytes");
    assert!(read_file(&volume, ROOT_INO, "after").is_err());
    drop(volume);
    assert_eq!(check(&region, true).unwrap().transactions_dropped, 4, "two creates, two writes");
    let volume = mount(&region, Durability::Operation);
    write_file(&volume, ROOT_INO, "after", b"bytes").unwrap();
}

/// A header of the log is damaged, and the other half's is not: the two don't join, and nothing is skipped silently.
#[test]
fn a_half_that_does_not_follow_is_not_replayed() {
    // A volume whose newest checkpoint is older than the half says: the log of a later moment of its life.
    let (zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    write_file(&volume, ROOT_INO, "first", b"bytes").unwrap();
    let mut image = zone.snapshot_image();
    volume.checkpoint().unwrap();
    write_file(&volume, ROOT_INO, "second", b"bytes").unwrap();
    let later = zone.snapshot_image();
    let start = region.entry().start as usize;
    // The half that the later epoch uses; the one before it is lost.
    let epoch = |half: &std::ops::Range<usize>| {
        let at = start + half.start * BLOCK;
        u32::from_le_bytes(later[at + 4..at + 8].try_into().unwrap())
    };
    let newest = HALVES.iter().max_by_key(|half| epoch(half)).unwrap();
    for half in &HALVES {
        let bytes = start + half.start * BLOCK..start + half.end * BLOCK;
        match half == newest {
            true => image[bytes.clone()].copy_from_slice(&later[bytes]),
            false => image[bytes].fill(0),
        }
    }
    let (_zone, region) = zone_of(&image);
    let volume = mount(&region, Durability::Operation);
    let failure = volume.failure().expect("it says so").to_string();
    assert!(failure.contains("missing"), "{failure}");
    assert_eq!(count(&volume), 0);
    drop(volume);
    assert!(check(&region, true).unwrap().is_clean());
    assert!(mount(&region, Durability::Operation).failure().is_none());
}

/// A volume was made where another had been, and both had been mounted equally often: the salts of their logs were the
/// same, and where the new one's log was still empty, the old one's transactions passed for its own.
#[test]
fn another_volumes_log_was_replayed() {
    let made = |file: &str| {
        let zone = Zone::anonymous(18 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
        format(&region, &FormatOptions::default()).unwrap();
        let volume = mount(&region, Durability::Operation);
        write_file(&volume, ROOT_INO, file, b"bytes").unwrap();
        (zone.snapshot_image(), region.entry().start as usize)
    };
    let ((old, start), (mut new, _)) = (made("old"), made("new"));
    let log = start + HALVES[0].start * BLOCK..start + HALVES[1].end * BLOCK;
    new[log.clone()].copy_from_slice(&old[log]);
    let (_zone, region) = zone_of(&new);
    let volume = mount(&region, Durability::Operation);
    assert_eq!(volume.recovery().transactions_replayed, 0);
    assert_eq!(count(&volume), 0);
}

/// Operations that failed behind their reservation had taken all of the log between them, but there was nothing for a
/// checkpoint to write down: who needed room made one after the other and never got any.
#[test]
fn a_log_full_of_operations_that_failed() {
    let zone = Zone::anonymous(18 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    format(&region, &FormatOptions { log_bytes: Some(1), ..FormatOptions::default() }).unwrap();
    for durability in [Durability::Operation, Durability::Fsync] {
        let volume = mount(&region, durability);
        let root = Caller::root();
        let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
        volume.checkpoint().unwrap();
        // Each thread has another lane, and each lane a chunk.
        for _ in 0..40 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let replaced =
                        volume.setxattr(&root, file.attr.ino, b"user.x", b"value", XattrMode::Replace);
                    assert_eq!(replaced, Err(Error::NoAttribute));
                });
            });
        }
        // The longest transaction there is.
        volume.fallocate(&root, file.handle, FallocateMode::empty(), 0, 4 << 20).unwrap();
        volume.release(file.handle).unwrap();
        volume.unlink(&root, ROOT_INO, b"file").unwrap();
        drop(volume);
        assert_sound(&region);
    }
}

/// Replay took numbers for index nodes beyond all that had been used, because it doesn't know which below are to be free.
/// On a volume that had used them all once there were none, and its log could not be replayed.
#[test]
fn replay_without_unused_numbers() {
    let (zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
    volume.checkpoint().unwrap();
    // Beyond what the inode itself points to; and an inode of its own.
    volume.write(&root, file.handle, 1 << 20, &[7; 4096]).unwrap();
    write_file(&volume, ROOT_INO, "other", b"bytes").unwrap();
    let mut image = zone.snapshot_image();
    let start = region.entry().start as usize;
    let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let slots = [2, 3].map(|block| start + block * BLOCK);
    let slot = slots.into_iter().max_by_key(|slot| word(slot + 8)).unwrap();
    let number = word(slot + 16);
    let checkpoint = start + number as usize * BLOCK;
    image[checkpoint + 88..checkpoint + 92].copy_from_slice(&(1u32 << 28).to_le_bytes());
    let crc = crc32c::crc32c(&number.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &image[checkpoint + 68..checkpoint + 192]);
    image[checkpoint + 64..checkpoint + 68].copy_from_slice(&crc.to_le_bytes());
    let (_zone, region) = zone_of(&image);
    let volume = mount(&region, Durability::Operation);
    assert!(volume.failure().is_none(), "{:?}", volume.failure());
    assert_eq!(read_file(&volume, ROOT_INO, "file").unwrap()[1 << 20..], [7; 4096]);
    assert_eq!(read_file(&volume, ROOT_INO, "other").unwrap(), b"bytes");
    drop(volume);
    assert_sound(&region);
}
