//! NBD servers that do not answer, and disks of which they give nothing.

use std::time::{Duration, Instant};

use disk::{Disk, Error, OpenOptions, Purpose, Source};
use servers::NbdServer;

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
