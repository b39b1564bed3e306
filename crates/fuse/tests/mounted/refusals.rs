//! With a writeback cache, what the volume does not take of it.

use std::fs::{self, File};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::Command;
use std::time::{Duration, Instant};

use fuse::{MountOptions, Request};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::support::{Mounted, disturbing, eventually, undisturbed};

const PIECE: usize = 256 << 10;
/// What a file may have, between two pieces.
const ROOM: u64 = (1 << 20) + 100_000;

/// Who only wrote was never told that the volume was full, and the file grew for as long as he did.
#[test]
fn writing_without_end_to_a_full_volume_never_failed() {
    let mounted = Mounted::writing_back();
    mounted.volume.set_room(ROOM);
    let mut file = File::create(mounted.path("file")).unwrap();
    let (mut written, begun) = (0u64, Instant::now());
    let error = loop {
        match file.write(&[7; PIECE]) {
            Ok(some) => written += some as u64,
            Err(error) => break error,
        }
        assert!(written < 4 << 30, "{written} bytes taken in {:?}", begun.elapsed());
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "after {written} bytes");
    // Looking is free, and who goes on is told again.
    assert_eq!(fs::metadata(mounted.path("file")).unwrap().len(), written);
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), written);
    let again = loop {
        match file.write(&[7; PIECE]) {
            Ok(some) => written += some as u64,
            Err(error) => break error,
        }
        assert!(written < 8 << 30, "{written} bytes taken in {:?}", begun.elapsed());
    };
    assert_eq!(again.kind(), ErrorKind::StorageFull);
    // With room, or without what did not fit, there is something to be written again.
    mounted.volume.set_room(u64::MAX);
    let _ = file.sync_all();
    let _ = file.write(&[7; PIECE]); // what was refused last may not have been told
    file.write_all(&[7; PIECE]).unwrap();
    mounted.volume.set_room(ROOM);
    file.set_len(0).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let _ = file.sync_all(); // the kernel keeps what was refused for the first who asks
    file.write_all(&[8; PIECE]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(fs::read(mounted.again().path("file")).unwrap(), vec![8; PIECE]);
}

/// The kernel does not look at how much of its pages was written, so a part that was left out was lost without a word.
#[test]
fn half_a_page_cache_was_taken_for_all_of_it() {
    let mounted = Mounted::writing_back();
    mounted.volume.set_room(100_000);
    let mut file = File::create(mounted.path("file")).unwrap();
    file.write_all(&[7; PIECE]).unwrap();
    assert_eq!(file.sync_all().unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.write(&[7]).unwrap_err().kind(), ErrorKind::StorageFull);
}

/// Programs that set times before they close are told there that something did not fit, go on, and heed `close`, which said nothing.
#[test]
fn mv_removed_the_source_of_what_did_not_fit() {
    let options = MountOptions { writeback_cache: true, checked_close: true, ..MountOptions::default() };
    let mounted = Mounted::with(&options);
    mounted.volume.set_room(100_000);
    let elsewhere = tempfile::tempdir().unwrap();
    let (source, file) = (elsewhere.path().join("source"), mounted.path("file"));
    fs::write(&source, vec![7; PIECE]).unwrap();
    let disturbed = disturbing();
    let moving = Command::new("mv").args([&source, &file]).output().unwrap();
    assert!(!moving.status.success(), "{moving:?}");
    assert_eq!(fs::read(&source).unwrap(), vec![7; PIECE], "{moving:?}");

    // A program that has inherited the file closes it as well, and is not told in the writer's place.
    let closes = || {
        let output = format!("of={}", file.display());
        let opening = Command::new("dd").args(["if=/dev/null", "conv=notrunc", &output]).output();
        opening.unwrap().status.success()
    };
    assert!(!closes() && !closes());
    File::options().write(true).open(&file).unwrap().set_len(0).unwrap();
    assert!(closes(), "what was refused is cut off");
    drop(disturbed);
    let ((), requests) = mounted.requests(|| drop(File::open(&file).unwrap()));
    assert_eq!(requests.of(Request::Flush), 1, "{requests}");
}

/// The kernel says behind a removal that it lets go of the file, which has its room until then.
#[test]
fn what_was_just_removed_had_its_room_still() {
    let mounted = Mounted::new();
    mounted.volume.have_room_for_one();
    let _undisturbed = undisturbed();
    let allocate = |name: &str| {
        let file = File::create(mounted.path(name)).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 4096)
    };
    let mut refused = 0;
    for _ in 0..300 {
        if allocate("file").is_err() {
            // Nobody waits for a while behind one for whom, on a busy machine, it took too long.
            refused += 1;
            assert!(refused <= 3, "{refused} times");
            std::thread::sleep(Duration::from_millis(1100));
        }
        fs::remove_file(mounted.path("file")).unwrap();
    }

    // One that is held takes room, and nobody waits for that: of a full volume thousands of pages may be refused.
    eventually("the last one is gone", || allocate("file").is_ok());
    let held = File::open(mounted.path("file")).unwrap();
    fs::remove_file(mounted.path("file")).unwrap();
    assert_eq!(allocate("other"), Err(Errno::NOSPC));
    let other = File::create(mounted.path("other")).unwrap();
    let begun = Instant::now();
    for _ in 0..1000 {
        assert_eq!(rustix::fs::fallocate(&other, FallocateFlags::empty(), 0, 4096), Err(Errno::NOSPC));
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    drop((held, other));
    eventually("what was held is gone", || allocate("other").is_ok());
}

/// Mounts that keep pages and that don't, on which direct writes go on side by side.
fn with_async_direct_io() -> impl Iterator<Item = Mounted> {
    [true, false].into_iter().map(|writeback_cache| {
        Mounted::with(&MountOptions { writeback_cache, async_direct_io: true, ..MountOptions::default() })
    })
}

/// A direct write that would make the file longer and fails has the kernel cut the file to what it takes for its length: what others
/// have appended meanwhile is in that, since it locks the file for each of them.
#[test]
fn a_direct_write_that_fails_takes_nothing_from_others() {
    const ROUNDS: u64 = 200;
    for mounted in with_async_direct_io() {
        let pages = vec![7; PIECE + 4096];
        let pages = &pages[pages.as_ptr().align_offset(4096)..][..PIECE];
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let file = File::options().write(true).create(true).custom_flags(direct).clone();
        let file = file.open(mounted.path("file")).unwrap();
        let mut appended = File::options().append(true).open(mounted.path("file")).unwrap();
        let room = ROUNDS.next_multiple_of(4096) + 4096;
        mounted.volume.set_room(room);
        let appending = std::thread::spawn(move || {
            (0..ROUNDS).for_each(|n| appended.write_all(&[n as u8]).unwrap());
        });
        while !appending.is_finished() {
            let error = file.write_at(pages, room - 4096).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull);
        }
        appending.join().unwrap();
        drop(file);
        let expected: Vec<u8> = (0..ROUNDS).map(|n| n as u8).collect();
        assert_eq!(fs::read(mounted.again().path("file")).unwrap(), expected);
    }
}

/// Of a direct write that only a part had room for, the kernel made an I/O error, and programs took the medium for broken.
#[test]
fn a_direct_write_that_half_fitted_was_an_io_error() {
    for mounted in with_async_direct_io() {
        let pages = vec![7; PIECE + 4096];
        let pages = &pages[pages.as_ptr().align_offset(4096)..][..PIECE];
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let file = File::options().write(true).create(true).custom_flags(direct).clone();
        let file = file.open(mounted.path("file")).unwrap();
        mounted.volume.set_room(PIECE as u64 + 8192);
        file.write_all_at(pages, 0).unwrap();
        let error = file.write_at(pages, PIECE as u64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert_eq!(file.metadata().unwrap().len(), PIECE as u64, "it is as long as before");
        // Where it fits it is written.
        assert_eq!(file.write_at(&pages[..8192], PIECE as u64).unwrap(), 8192);
        drop(file);
        assert_eq!(fs::read(mounted.again().path("file")).unwrap(), vec![7; PIECE + 8192]);
    }
}

/// Of a direct write in several requests, of which the last had room for a part, the volume kept more than the program was told of.
#[test]
fn a_direct_write_that_ended_within_a_request_left_more_than_was_told() {
    const MIB: usize = 1 << 20;
    for async_direct_io in [false, true] {
        for writeback_cache in [true, false] {
            let options = MountOptions { writeback_cache, async_direct_io, ..MountOptions::default() };
            let mounted = Mounted::with(&options);
            let pages = vec![7; 2 * MIB + 4096];
            let pages = &pages[pages.as_ptr().align_offset(4096)..][..2 * MIB];
            let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
            let file = File::options().write(true).create(true).custom_flags(direct).clone();
            let file = file.open(mounted.path("file")).unwrap();
            mounted.volume.set_room(MIB as u64 + 8192);
            let told = file.write_at(pages, 0);
            let told =
                told.or_else(|error| (error.kind() == ErrorKind::StorageFull).then_some(0).ok_or(error));
            let told = told.unwrap() as u64;
            assert_eq!(told, if async_direct_io { 0 } else { MIB as u64 + 8192 }, "{options:?}");
            assert_eq!(file.metadata().unwrap().len(), told);
            drop(file);
            assert_eq!(fs::metadata(mounted.again().path("file")).unwrap().len(), told, "{options:?}");
        }
    }
}

/// A mount with a file `kept` in it, of four bytes, that nobody can change.
fn with_protected(options: &MountOptions) -> Mounted {
    let mounted = Mounted::with(options);
    fs::write(mounted.path("kept"), b"kept").unwrap();
    let mounted = Mounted::of(mounted.end(), options);
    mounted.volume.protect(fs::metadata(mounted.path("kept")).unwrap().ino());
    mounted
}

/// With a writeback cache `write` succeeded, and until it was forgotten the file showed what was written.
#[test]
fn what_nobody_can_change_took_writes_into_the_kernels_pages() {
    for (writeback_cache, durable_operations) in [(true, true), (false, true), (false, false), (true, false)]
    {
        let options = MountOptions { writeback_cache, durable_operations, ..MountOptions::default() };
        let mounted = with_protected(&options);
        let path = mounted.path("kept");
        let before = fs::metadata(&path).unwrap();
        let refused = |error: std::io::Error| assert_eq!(Errno::from_io_error(&error), Some(Errno::ROFS));
        for open in [File::options().write(true).clone(), File::options().append(true).read(true).clone()] {
            let mut file = open.open(&path).unwrap();
            refused(file.write(b"lost").unwrap_err());
            refused(file.write(b"lost").unwrap_err());
            refused(file.write_at(b"lost", 1 << 20).unwrap_err());
            refused(file.set_len(0).unwrap_err());
            file.sync_all().unwrap();
            refused(fs::write(&path, b"lost").unwrap_err());
            assert_eq!(fs::read(&path).unwrap(), b"kept");
        }
        let after = fs::metadata(&path).unwrap();
        assert_eq!((after.len(), after.mtime_nsec()), (before.len(), before.mtime_nsec()));
        for len in [0, 100] {
            let found = rustix::fs::getxattr(&path, "security.capability", &mut vec![0; len]);
            assert_eq!(found, Err(Errno::NODATA), "it has none");
        }
    }
}

/// Before the first write the kernel asks whether there are capabilities, and before no other.
#[test]
fn a_file_that_can_be_changed_is_asked_for_capabilities_once() {
    let mounted = Mounted::writing_back();
    fs::write(mounted.path("file"), b"some").unwrap();
    let mounted =
        Mounted::of(mounted.end(), &MountOptions { writeback_cache: true, ..MountOptions::default() });
    let mut file = File::options().write(true).open(mounted.path("file")).unwrap();
    let ((), requests) = mounted.requests(|| (0..100).for_each(|_| file.write_all(b"more").unwrap()));
    assert_eq!(requests.to_string(), "read 1, getxattr 1");
}
