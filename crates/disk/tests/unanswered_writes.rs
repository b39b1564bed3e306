//! NBD disks whose server did not answer a write to the beginning, by which they are known again: it may be there or not.

use std::time::{Duration, Instant};

use disk::{Disk, OpenOptions, Purpose};
use servers::own::{FLUSHES, Manner, OwnServer, PLAIN};

mod servers;

const AT: u64 = 1024;

/// A disk whose superblock was written, and is durable.
fn open(server: &OwnServer) -> Disk {
    let disk = Disk::open(&server.source, &OpenOptions::default()).unwrap();
    disk.write(Purpose::Metadata, AT, &[1; 1024]).unwrap();
    disk.flush().unwrap();
    disk
}

/// Whether the server is found again; else it was refused as another disk.
fn is_found(disk: &Disk) -> bool {
    let began = Instant::now();
    loop {
        match disk.read(Purpose::Data, 0, &mut [0; 512]) {
            Ok(()) => return true,
            Err(error) if error.to_string().contains("it shows another disk") => return false,
            Err(error) => {
                assert!(error.is_vanished() && began.elapsed() < Duration::from_secs(60), "{error}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Its own disk was refused as another one as long as it was mounted.
#[test]
fn a_server_that_carried_out_what_it_did_not_answer_is_found_again() {
    std::thread::scope(|threads| {
        for flags in [PLAIN, FLUSHES] {
            for manner in [Manner::CutsWrites, Manner::FailsWrites] {
                threads.spawn(move || is_found_after_an_unanswered_write(flags, manner));
            }
        }
    });
}

fn is_found_after_an_unanswered_write(flags: u16, manner: Manner) {
    let server = OwnServer::new(flags);
    let disk = open(&server);
    server.behave(manner);
    let error = disk.write(Purpose::Metadata, AT, &[2; 1024]).unwrap_err();
    assert_eq!(error.is_vanished(), manner == Manner::CutsWrites, "{error}");
    assert_eq!(server.image()[1024], 2);
    server.behave(Manner::Well);
    server.cut();
    assert!(is_found(&disk));
    let mut read = [0; 1024];
    disk.read(Purpose::Metadata, AT, &mut read).unwrap();
    assert_eq!(read, [2; 1024]);
    // Or a part of it was carried out.
    server.put(1024, &[1; 512]);
    server.cut();
    assert!(is_found(&disk));
    // What is durable later leaves no doubt.
    disk.write(Purpose::Metadata, AT, &[3; 1024]).unwrap();
    disk.flush().unwrap();
    server.put(1024, &[2; 1024]);
    server.cut();
    assert!(!is_found(&disk), "an older state of it");
    server.put(1024, &[3; 1024]);
    assert!(is_found(&disk));
}

#[test]
fn another_disk_is_refused_whatever_is_in_doubt() {
    let server = OwnServer::new(FLUSHES);
    let disk = open(&server);
    server.behave(Manner::CutsWrites);
    disk.write(Purpose::Metadata, AT, &[2; 1024]).unwrap_err();
    server.behave(Manner::Well);
    // In what is in doubt, and beside it.
    for (at, then) in [(1024, 2), (2048, 0)] {
        server.put(at, &[9; 512]);
        server.cut();
        assert!(!is_found(&disk), "at {at}");
        server.put(at, &[then; 512]);
    }
    assert!(is_found(&disk));
    assert_eq!(server.image()[1024..2048], [2; 1024], "nothing was written to another");
}

/// Which of two writes at once was the last one the server knows alone.
#[test]
fn writes_of_the_beginning_at_once_go_one_after_the_other() {
    let server = OwnServer::new(PLAIN);
    let disk = open(&server);
    server.behave(Manner::TurnsRound);
    std::thread::scope(|threads| {
        for byte in [4, 5] {
            let disk = &disk;
            threads.spawn(move || disk.write(Purpose::Metadata, AT, &[byte; 1024]).unwrap());
        }
    });
    server.behave(Manner::Well);
    server.cut();
    assert!(is_found(&disk));
}
