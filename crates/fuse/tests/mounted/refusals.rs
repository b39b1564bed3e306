//! With a writeback cache, what the volume does not take of it.

use std::fs::{self, File};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::time::Instant;

use super::support::Mounted;

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
