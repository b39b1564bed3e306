//! What the log does when something is wrong with it: it is not replayed beyond what is missing, says so, and is not
//! taken for another volume's.

use crate::volumes::*;
use native::{Durability, FormatOptions, Volume, check, format, preen};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, Error, FallocateMode, FileSystem, ROOT_INO, XattrMode};

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

/// The bytes of the records at the beginning of the newest half.
fn records(image: &[u8], start: usize) -> Vec<std::ops::Range<usize>> {
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
    let epoch = |half: &&std::ops::Range<usize>| word(start + half.start * BLOCK + 4);
    let mut at = start + HALVES.iter().max_by_key(epoch).unwrap().start * BLOCK + 64;
    let mut found = Vec::new();
    loop {
        let length = word(at + 4) as usize;
        if length == 0 || length > 4096 || !length.is_multiple_of(64) {
            return found;
        }
        found.push(at..at + length);
        at += length;
    }
}

fn count(volume: &Volume) -> usize {
    names(volume, ROOT_INO).unwrap().len()
}

/// A transaction in the middle of the log rots. Everything before it is there, and can only be read, until a check lets
/// go of the rest.
#[test]
fn a_damaged_transaction_ends_it() {
    let (mut image, start) = killed(300);
    let hurt = &records(&image, start)[21];
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
    let before = zone.snapshot_image();
    let left = preen(&region).unwrap();
    assert!(left.needs_recovery && !left.is_clean(), "{left:?}");
    assert!(zone.snapshot_image() == before, "who preens drops no transactions");
    let mended = check(&region, true).unwrap();
    assert!(mended.is_clean() && mended.transactions_dropped > 100, "{mended:?}");
    let volume = mount(&region, Durability::Operation);
    assert!(volume.failure().is_none() && (5..30).contains(&count(&volume)));
    write_file(&volume, ROOT_INO, "new", b"").unwrap();
    drop(volume);
    assert_sound(&region);
    drop(zone);
}

/// Who is refused has not written over it.
#[test]
fn a_log_that_cannot_be_replayed_stays_as_it_was_found() {
    let (mut image, start) = killed(300);
    let hurt = &records(&image, start)[21];
    image[hurt.start + 30] ^= 4;
    let (zone, region) = zone_of(&image);
    let volume = mount(&region, Durability::Operation);
    assert!(volume.failure().is_some());
    for n in 0..50 {
        assert!(write_file(&volume, ROOT_INO, &format!("new {n}"), b"").is_err());
    }
    volume.close().unwrap();
    drop(volume);
    let after = zone.snapshot_image();
    for half in HALVES {
        let bytes = start + half.start * BLOCK..start + half.end * BLOCK;
        assert!(image[bytes.clone()] == after[bytes]);
    }
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

/// A transaction changes bytes in place and then cannot be applied. It was left out, but its bytes had been stored.
#[test]
fn bytes_of_a_transaction_that_cannot_be_applied_stay_away() {
    let (zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let (root, at) = (Caller::root(), 150 * BLOCK + 3072);
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
    volume.write(&root, file.handle, 0, &[b'o'; 160 * BLOCK]).unwrap();
    volume.checkpoint().unwrap();
    // The rest of a block, which is a difference, and all of the next, whose pointer is in a node.
    volume.write(&root, file.handle, at as u64, &[b'n'; 1024 + BLOCK]).unwrap();
    let mut old = Vec::new();
    volume
        .read_slices(file.handle, 150 * BLOCK as u64, BLOCK, &mut |bytes| old.extend_from_slice(bytes))
        .unwrap();
    assert_eq!((old[3071], old[3072]), (b'o', b'n'));
    let mut image = zone.snapshot_image();
    let start = region.entry().start as usize;
    let main = start + (4 << 20);
    let is_direct =
        |at: &usize| image[*at] == 3 && image[*at + 8..*at + 12] == (file.attr.ino as u32).to_le_bytes();
    let direct: Vec<usize> = (main..image.len()).step_by(BLOCK).filter(is_direct).collect();
    assert!(!direct.is_empty());
    let changed = |image: &[u8]| (main..image.len()).step_by(BLOCK).find(|at| image[*at..*at + BLOCK] == old);
    // As if the power had gone before the bytes came: replay is to store them.
    let block = changed(&image).expect("the block");
    image[block + 3072..block + BLOCK].fill(b'o');
    let (whole, whole_region) = zone_of(&image);
    drop(mount(&whole_region, Durability::Operation));
    assert_eq!(changed(&whole.snapshot_image()), Some(block));
    direct.iter().for_each(|at| image[*at + 40] ^= 1);
    let (zone, region) = zone_of(&image);
    let volume = mount(&region, Durability::Operation);
    assert!(volume.failure().expect("it says so").to_string().contains("cannot be applied"));
    drop(volume);
    assert_eq!(changed(&zone.snapshot_image()), None, "the bytes are there, and what came with them is not");
}

/// One thread's transaction is damaged in the middle of what it wrote, and nothing else was going on: fifteen lanes that had
/// written nothing explained the gap, and what came behind it in the chunk was not looked at.
#[test]
fn damage_is_not_taken_for_a_power_cut() {
    let (image, start) = killed(10); // which fit a chunk
    let (_zone, region) = zone_of(&image);
    let transactions = mount(&region, Durability::Operation).recovery().transactions_replayed as usize;
    assert!(transactions >= 20);
    // Behind them lies what an earlier epoch left.
    for (nth, hurt) in records(&image, start).iter().take(transactions).enumerate() {
        let mut image = image.clone();
        image[hurt.start + 30] ^= 4;
        let (_zone, region) = zone_of(&image);
        let volume = mount(&region, Durability::Operation);
        let is_last = nth == transactions - 1;
        assert_eq!(volume.failure().is_none(), is_last, "transaction {nth}");
        let expected = if is_last { 0 } else { transactions - nth };
        assert_eq!(volume.recovery().transactions_left_out, expected as u64, "transaction {nth}");
        assert_eq!(volume.recovery().transactions_replayed, nth as u64);
    }
}

/// The hidden directory was damaged, and with it the whole volume could not be mounted.
#[test]
fn a_damaged_hidden_directory_keeps_nobody_out() {
    let (zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let root = Caller::root();
    write_file(&volume, ROOT_INO, "named", b"bytes").unwrap();
    let unnamed = volume.create(&root, ROOT_INO, b"unnamed", 0o644, RW).unwrap();
    volume.write(&root, unnamed.handle, 0, &[7; 3 * BLOCK]).unwrap();
    volume.unlink(&root, ROOT_INO, b"unnamed").unwrap();
    volume.checkpoint().unwrap();
    let mut image = zone.snapshot_image();
    let start = region.entry().start as usize;
    // Its bucket: kind 5, and of inode 2.
    let is_hidden = |at: &usize| image[*at] == 5 && image[*at + 8..*at + 12] == [2, 0, 0, 0];
    let buckets: Vec<usize> = (start + (4 << 20)..image.len()).step_by(BLOCK).filter(is_hidden).collect();
    assert!(!buckets.is_empty());
    buckets.iter().for_each(|at| image[*at + 40] ^= 1);
    let (_zone, region) = zone_of(&image);
    for _ in 0..2 {
        let volume = mount(&region, Durability::Operation);
        assert!(volume.failure().is_none());
        assert_eq!(read_file(&volume, ROOT_INO, "named").unwrap(), b"bytes");
        let open = volume.create(&root, ROOT_INO, b"open", 0o644, RW).unwrap();
        assert!(matches!(volume.unlink(&root, ROOT_INO, b"open"), Err(Error::Corrupt(_))));
        volume.release(open.handle).unwrap();
        volume.unlink(&root, ROOT_INO, b"open").unwrap();
        assert_eq!(volume.getattr(unnamed.attr.ino).unwrap().nlink, 0, "it stays");
        volume.close().unwrap();
    }
    assert!(!check(&region, false).unwrap().is_clean());
    let mended = check(&region, true).unwrap();
    assert!(mended.is_clean() && !mended.problems.is_empty(), "{mended:?}");
    assert_sound(&region);
    let volume = mount(&region, Durability::Operation);
    assert_eq!(volume.getattr(unnamed.attr.ino), Err(Error::Stale));
    let open = volume.create(&root, ROOT_INO, b"open", 0o644, RW).unwrap();
    volume.unlink(&root, ROOT_INO, b"open").unwrap();
    volume.release(open.handle).unwrap();
    drop(volume);
    assert_sound(&region);
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
