//! NBD disks whose server ends and comes back: nothing that a write has returned for is lost.

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use disk::{Disk, Error, OpenOptions, Purpose, Source};
use servers::NbdServer;

mod servers;

const MIB: u64 = 1 << 20;

fn image(dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(16 * MIB).unwrap();
    path
}

/// A server with a cache of its own that nobody else sees, and that goes with it: only what is flushed is in the file.
fn forgetful(image: &Path) -> NbdServer {
    NbdServer::nbdkit(&["--filter=cache", "file", &format!("file={}", image.display()), "cache=writeback"])
}

fn open(server: &NbdServer) -> Disk {
    let source: Source = server.uri.parse().unwrap();
    Disk::open(&source, &OpenOptions::default()).unwrap()
}

/// The disk looks for its server now and then only.
fn wait_for(disk: &Disk) {
    let began = Instant::now();
    while let Err(error) = disk.read(Purpose::Data, 0, &mut [0; 512]) {
        assert!(error.is_vanished() && began.elapsed() < Duration::from_secs(60), "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn sector(byte: u8) -> [u8; 512] {
    [byte; 512]
}

#[test]
fn what_was_not_flushed_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let mut server = forgetful(&path);
    let disk = open(&server);
    let in_file = |at: u64| std::fs::read(&path).unwrap()[at as usize];
    for (n, byte) in [(0, 1), (MIB, 1), (2 * MIB, 1)] {
        disk.write(Purpose::Data, n, &sector(byte)).unwrap();
    }
    disk.flush().unwrap();
    assert_eq!(in_file(MIB), 1);
    // At the beginning, too, by which the disk is known again. Written over twice, the last time durably: so it stays.
    disk.write(Purpose::Data, 0, &sector(2)).unwrap();
    disk.write(Purpose::Data, MIB, &sector(2)).unwrap();
    disk.write(Purpose::Data, 2 * MIB, &sector(2)).unwrap();
    disk.write_vectored(Purpose::Data, 2 * MIB, &[IoSlice::new(&sector(3))], true).unwrap();
    assert_eq!((in_file(0), in_file(MIB), in_file(2 * MIB)), (1, 1, 3), "the server has it alone");
    server.kill();
    let gone = disk.flush().unwrap_err();
    assert!(gone.is_vanished(), "{gone}");
    assert!(disk.write(Purpose::Data, 0, &sector(9)).unwrap_err().is_vanished());
    server.again();
    wait_for(&disk);
    let mut read = sector(0);
    for (at, expected) in [(0, 2), (MIB, 2), (2 * MIB, 3)] {
        disk.read(Purpose::Data, at, &mut read).unwrap();
        assert_eq!(read[0], expected, "at {at}");
    }
    disk.flush().unwrap();
    assert_eq!((in_file(0), in_file(MIB), in_file(2 * MIB)), (2, 2, 3));
    // What is durable is not written again: another user's bytes stay.
    server.kill();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[MIB as usize..][..512].fill(7);
    std::fs::write(&path, bytes).unwrap();
    server.again();
    wait_for(&disk);
    disk.flush().unwrap();
    assert_eq!(in_file(MIB), 7);
}

/// A server that is asked to end may answer everything with that, and wait for its clients to go: who stayed failed for good.
#[test]
fn a_server_that_says_that_it_ends_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let (file, opened) = (path.display(), dir.path().join("opened"));
    let server = NbdServer::nbdkit(&[
        "eval",
        // A connection is known by how many there were.
        &format!("open=echo >> {0}; wc -l < {0}", opened.display()),
        "get_size=echo 16777216",
        "can_write=exit 0",
        &format!("pread=dd if={file} iflag=skip_bytes,count_bytes skip=$4 count=$3 status=none"),
        &format!(
            "pwrite=if [ $2 = 1 ]; then cat > /dev/null; echo ESHUTDOWN >&2; exit 1; fi; dd of={file} oflag=seek_bytes seek=$4 conv=notrunc status=none"
        ),
    ]);
    let disk = open(&server);
    let error = disk.write(Purpose::Data, MIB, &sector(1)).unwrap_err();
    assert!(error.is_vanished() && error.to_string().contains("the server shuts down"), "{error}");
    wait_for(&disk);
    disk.write(Purpose::Data, MIB, &sector(2)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[MIB as usize], 2);
}

#[test]
fn a_server_that_is_restarted_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let mut server = forgetful(&path);
    let disk = open(&server);
    disk.write(Purpose::Data, MIB, &sector(1)).unwrap();
    disk.flush().unwrap();
    disk.write(Purpose::Data, MIB, &sector(2)).unwrap();
    server.signal("TERM");
    let began = Instant::now();
    while !server.has_ended() {
        if let Err(error) = disk.write(Purpose::Data, 2 * MIB, &sector(3)) {
            assert!(error.is_vanished(), "{error}");
        }
        assert!(began.elapsed() < Duration::from_secs(60), "it waits for us to go");
        std::thread::sleep(Duration::from_millis(5));
    }
    server.again();
    wait_for(&disk);
    let mut read = sector(0);
    disk.read(Purpose::Data, MIB, &mut read).unwrap();
    assert_eq!(read[0], 2, "what had not been flushed");
    disk.write(Purpose::Data, 2 * MIB, &sector(4)).unwrap();
    disk.flush().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes[MIB as usize], bytes[2 * MIB as usize]), (2, 4));
}

#[test]
fn another_disk_at_the_same_address_is_not_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let mut server = forgetful(&path);
    let disk = open(&server);
    disk.write(Purpose::Data, 1024, &sector(1)).unwrap();
    disk.flush().unwrap();
    disk.write(Purpose::Data, MIB, &sector(2)).unwrap();
    server.kill();
    let own = std::fs::read(&path).unwrap();
    for other in [vec![0; 16 << 20], vec![0; 8 << 20]] {
        std::fs::write(&path, &other).unwrap();
        server.again();
        let began = Instant::now();
        let told = loop {
            let error = disk.write(Purpose::Data, MIB, &sector(3)).unwrap_err();
            assert!(error.is_vanished() && began.elapsed() < Duration::from_secs(60), "{error}");
            if error.to_string().contains("it shows") {
                break error.to_string();
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(
            told.contains(if other.len() == 16 << 20 { "another disk" } else { "another size" }),
            "{told}"
        );
        server.kill();
        assert!(std::fs::read(&path).unwrap() == other);
    }
    std::fs::write(&path, own).unwrap();
    server.again();
    wait_for(&disk);
    disk.flush().unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[MIB as usize], 2);
}

/// What the server is asked, as it logs it.
#[test]
fn durable_writes_and_flushes_reach_the_server_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log) = (image(&dir), dir.path().join("log"));
    let file = format!("file={}", path.display());
    let to = format!("logfile={}", log.display());
    for (mode, expected) in [(&["fuamode=native"][..], (1, 1)), (&[], (0, 2))] {
        let _ = std::fs::remove_file(&log);
        // Where the filter, by default, does not offer it, it is a flush that makes a write durable.
        let server =
            NbdServer::nbdkit(&[&["--filter=log", "--filter=fua", "file", &file, &to], mode].concat());
        let disk = open(&server);
        disk.write(Purpose::Data, 0, &sector(1)).unwrap();
        disk.write_vectored(Purpose::Data, MIB, &[IoSlice::new(&sector(2))], true).unwrap();
        disk.flush().unwrap();
        drop((disk, server));
        let log = std::fs::read_to_string(&log).unwrap();
        let count =
            |what: &str| log.lines().filter(|line| line.contains(what) && line.contains("...")).count();
        assert_eq!((count("fua=1"), count(" Flush ")), expected, "{mode:?}: {log}");
        assert_eq!(count(" Write "), 2, "{log}");
    }
}

/// Bytes that wait for a flush are bounded: who never asks for one does not fill the memory.
#[test]
fn a_server_is_asked_to_flush_when_much_has_been_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir);
    let mut server = forgetful(&path);
    let disk = open(&server);
    for n in 0..72 {
        disk.write(Purpose::Data, n % 16 * MIB, &vec![n as u8; MIB as usize]).unwrap();
    }
    let before = std::fs::read(&path).unwrap();
    assert!(before[0] == 64 || before[0] == 48, "the server was asked to flush by itself: {}", before[0]);
    server.kill();
    server.again();
    wait_for(&disk);
    disk.flush().unwrap();
    let after = std::fs::read(&path).unwrap();
    let expected = |n: usize| if n < 8 { 64 + n } else { 48 + n };
    assert!((0..16).all(|n| after[n << 20] == expected(n) as u8));
    let error = disk.write(Purpose::Data, 16 * MIB, &sector(1)).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }));
}
