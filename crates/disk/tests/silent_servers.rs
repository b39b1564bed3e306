//! NBD servers that do not answer, or too slowly, and disks of which they give nothing.

use std::time::{Duration, Instant};

use disk::{Disk, Error, OpenOptions, Purpose, Source};
use servers::NbdServer;
use servers::own::{Manner, OwnServer, PLAIN};

mod servers;

fn source(server: &NbdServer) -> Source {
    server.uri.parse().unwrap()
}

/// What was opened without its beginning was never found again, because it was taken for another disk.
#[test]
fn a_disk_whose_beginning_cannot_be_read_is_not_opened() {
    let server =
        NbdServer::nbdkit(&["--filter=error", "memory", "16M", "error-pread=EIO", "error-pread-rate=1"]);
    let error = Disk::open(&source(&server), &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Open { .. }), "{error}");
    let told = error.to_string();
    assert!(told.contains("its first 4096 bytes, by which it is known again, cannot be read"), "{told}");
    // One that has nothing to be read is opened.
    let empty = NbdServer::nbdkit(&["memory", "0"]);
    assert_eq!(Disk::open(&source(&empty), &OpenOptions::default()).unwrap().bytes(), 0);
}

#[test]
fn a_server_that_is_stopped_is_waited_for_as_long_as_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let options = OpenOptions { patience: Duration::from_millis(300), ..OpenOptions::default() };
    let over_tcp = NbdServer::nbdkit(&["memory", "1M"]);
    for server in [over_tcp, NbdServer::qemu(&image, &[])] {
        let disk = Disk::open(&source(&server), &options).unwrap();
        server.signal("STOP");
        let began = Instant::now();
        let error = disk.read(Purpose::Data, 0, &mut [0; 512]).unwrap_err();
        assert!(error.is_vanished() && error.to_string().contains("did not answer within"), "{error}");
        // More than its queue has room for.
        for _ in 0..12 {
            assert!(matches!(Disk::open(&source(&server), &options), Err(Error::Open { .. })));
        }
        assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
        server.signal("CONT");
        Disk::open(&source(&server), &OpenOptions::default()).unwrap();
    }
}

/// Each byte of it had the whole patience, so that it took as long as the server wanted; meanwhile all requests waited.
#[test]
fn a_server_that_dribbles_its_greeting_is_not_waited_for() {
    let server = OwnServer::new(PLAIN);
    let options = OpenOptions { patience: Duration::from_secs(1), ..OpenOptions::default() };
    let disk = Disk::open(&server.source, &options).unwrap();
    server.behave(Manner::Dribbles);
    // All of it takes 7 s.
    let began = Instant::now();
    let error = Disk::open(&server.source, &options).unwrap_err();
    assert!(matches!(error, Error::Open { .. }) && began.elapsed() < Duration::from_secs(5), "{error}");
    server.cut();
    let began = Instant::now();
    let error = loop {
        match disk.read(Purpose::Data, 0, &mut [0; 512]) {
            Ok(()) => panic!("all of the greeting was waited for"),
            Err(error) if error.to_string().contains("cannot be used again") => break error,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert!(error.is_vanished() && began.elapsed() < Duration::from_secs(5), "{error}");
    server.behave(Manner::Well);
    while let Err(error) = disk.read(Purpose::Data, 0, &mut [0; 512]) {
        assert!(error.is_vanished() && began.elapsed() < Duration::from_secs(60), "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The patience began anew with each part of a request that it took, and who wanted to send another waited for it.
#[test]
fn a_server_that_sips_a_request_is_not_waited_for() {
    let server = OwnServer::new(PLAIN);
    let options = OpenOptions { patience: Duration::from_millis(500), ..OpenOptions::default() };
    let disk = Disk::open(&server.source, &options).unwrap();
    server.behave(Manner::Sips);
    let began = Instant::now();
    std::thread::scope(|threads| {
        // It takes more than 10 s for it.
        let writes = threads.spawn(|| disk.write(Purpose::Data, 1 << 20, &vec![1; 5 << 20]).unwrap_err());
        std::thread::sleep(Duration::from_millis(100));
        let error = disk.read(Purpose::Data, 0, &mut [0; 512]).unwrap_err();
        assert!(error.is_vanished(), "{error}");
        let error = writes.join().unwrap();
        assert!(error.is_vanished() && error.to_string().contains("did not take a request"), "{error}");
    });
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}
