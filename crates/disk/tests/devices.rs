//! What is asked of every kind of disk, and what else, of memory, images and NBD servers.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use disk::{Buffer, Disk, Engine, Error, OpenOptions, Purpose, Queue, Source, Write};
use kinds::{MIB, behaves, image, open, pattern, queues};
use servers::NbdServer;

mod kinds;
mod servers;

#[test]
fn memory() {
    behaves(Disk::memory(vec![0; 16 << 20]));
}

#[test]
fn image_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 16 * MIB + 100);
    let disk = open(&path);
    assert_eq!((disk.bytes(), disk.sector()), (16 * MIB, 512), "a last part of a sector is not there");
    behaves(disk);
}

#[test]
fn image_file_around_the_page_cache() {
    // tmpfs takes O_DIRECT since Linux 6.6; where the temporary directory doesn't, opening says so.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(&dir, 16 * MIB);
    let disk = Disk::open_path(&path, &OpenOptions { direct: Some(true), ..OpenOptions::default() }).unwrap();
    assert_eq!(disk.sector(), 4096);
    behaves(disk);
}

#[test]
fn one_process_has_an_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, MIB);
    let reading = OpenOptions { read_only: true, ..OpenOptions::default() };
    let disk = open(&path);
    assert!(matches!(Disk::open_path(&path, &OpenOptions::default()), Err(Error::Busy { .. })));
    assert!(matches!(Disk::open_path(&path, &reading), Err(Error::Busy { .. })));
    drop(disk);
    let first = Disk::open_path(&path, &reading).unwrap();
    let second = Disk::open_path(&path, &reading).unwrap();
    assert!(first.is_read_only() && second.is_read_only());
}

#[test]
fn what_is_no_disk_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for (path, word) in [(dir.path(), "directory"), (Path::new("/dev/null"), "character device")] {
        let error = Disk::open_path(path, &OpenOptions::default()).unwrap_err();
        assert!(matches!(error, Error::NotADisk { .. }) && error.to_string().contains(word), "{error}");
    }
    let missing = Disk::open_path(&dir.path().join("none"), &OpenOptions::default()).unwrap_err();
    assert!(matches!(missing, Error::Open { .. }), "{missing}");
}

#[test]
fn an_image_cut_short_while_open_is_out_of_range() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, MIB);
    let disk = open(&path);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1000).unwrap();
    let error = disk.read(Purpose::Data, 4096, &mut [0; 512]).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { bytes: 1000, .. }), "{error}");
}

#[test]
fn a_disk_that_vanishes_gives_writes_back_and_may_return() {
    let memory = Arc::new(disk::Memory::new(vec![0; 1 << 20], false));
    let disk = Arc::new(Disk::over("memory".into(), memory.clone()));
    let queue = Queue::new(disk.clone(), 2);
    assert_eq!(queue.engine(), Engine::Threads);
    memory.vanish(true);
    for token in 0..5 {
        let buffer = Buffer::of(&pattern(512, token as u8));
        queue.submit(Write { purpose: Purpose::Metadata, at: token * 512, buffer, token }).unwrap();
    }
    let mut unwritten = queue.drain().unwrap_err();
    assert!(unwritten.iter().all(|(_, error)| error.is_vanished()));
    assert!(disk.flush().unwrap_err().is_vanished());
    memory.vanish(false);
    unwritten.sort_by_key(|(write, _)| write.token);
    let tokens: Vec<u64> = unwritten.iter().map(|(write, _)| write.token).collect();
    assert_eq!(tokens, [0, 1, 2, 3, 4]);
    unwritten.into_iter().for_each(|(write, _)| queue.submit(write).unwrap());
    queue.drain().unwrap();
    assert_eq!(memory.image()[4 * 512..5 * 512], pattern(512, 4));
}

#[test]
fn the_kernel_carries_writes_to_files_where_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(open(&image(&dir, 16 * MIB)));
    let queue = Queue::new(disk.clone(), 8);
    println!("{:?} carries writes to image files here", queue.engine());
    queues(&disk, &queue);
    // Left in flight: dropping the queue waits.
    let buffer = Buffer::of(&pattern(1 << 20, 3));
    queue.submit(Write { purpose: Purpose::Data, at: 0, buffer, token: 0 }).unwrap();
    drop(queue);
    let mut read = vec![0; 1 << 20];
    disk.read(Purpose::Data, 0, &mut read).unwrap();
    assert!(read == pattern(1 << 20, 3));
}

fn over_nbd(server: &NbdServer) -> Disk {
    let source: Source = server.uri.parse().unwrap();
    Disk::open(&source, &OpenOptions::default()).unwrap()
}

#[test]
fn nbdkit_in_memory_over_tcp() {
    let server = NbdServer::nbdkit(&["memory", "16M"]);
    behaves(over_nbd(&server));
}

#[test]
fn nbdkit_on_a_file_with_small_requests() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 16 * MIB);
    let file = format!("file={}", path.display());
    let limits =
        ["--filter=blocksize-policy", "file", &file, "blocksize-maximum=64K", "blocksize-minimum=4096"];
    let server = NbdServer::nbdkit(&[&limits[..], &["blocksize-error-policy=error"]].concat());
    let disk = over_nbd(&server);
    assert_eq!(disk.sector(), 4096);
    behaves(disk);
}

/// A server with neither has no cache to flush.
#[test]
fn nbdkit_without_flush_and_fua() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 16 * MIB);
    let read =
        format!("pread=dd if={} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none", path.display());
    let write =
        format!("pwrite=dd of={} seek=$4 oflag=seek_bytes conv=notrunc bs=1M status=none", path.display());
    let server = NbdServer::nbdkit(&["eval", "get_size=echo 16M", &read, &write]);
    let disk = over_nbd(&server);
    disk.write_vectored(Purpose::Data, 512, &[IoSlice::new(&pattern(1024, 1))], true).unwrap();
    disk.flush().unwrap();
    let mut read = vec![0; 1024];
    disk.read(Purpose::Data, 512, &mut read).unwrap();
    assert_eq!(read, pattern(1024, 1));
}

#[test]
fn qemu_nbd_over_a_socket_with_an_export_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = NbdServer::qemu(&image(&dir, 16 * MIB), &[]);
    behaves(over_nbd(&server));
}

#[test]
fn qemu_nbd_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let server = NbdServer::qemu(&image(&dir, MIB), &["--read-only"]);
    assert!(over_nbd(&server).is_read_only());
}

#[test]
fn an_export_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let server = NbdServer::qemu(&image(&dir, MIB), &[]);
    let source: Source = server.uri.replace("///work", "///other").parse().unwrap();
    let error = Disk::open(&source, &OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("no export 'other'"), "{error}");
}

#[test]
fn a_server_that_ends_is_a_disk_that_vanished() {
    let mut server = NbdServer::nbdkit(&["memory", "16M"]);
    let disk = Arc::new(over_nbd(&server));
    let queue = Queue::new(disk.clone(), 4);
    disk.write(Purpose::Data, 0, &[1; 512]).unwrap();
    server.kill();
    let error = disk.read(Purpose::Data, 0, &mut [0; 512]).unwrap_err();
    assert!(error.is_vanished(), "{error}");
    queue.submit(Write { purpose: Purpose::Data, at: 0, buffer: Buffer::zeroed(512), token: 1 }).unwrap();
    assert!(queue.drain().unwrap_err()[0].1.is_vanished());
    assert!(disk.flush().unwrap_err().is_vanished());
}

#[test]
fn an_error_of_the_server_is_no_end() {
    let dir = tempfile::tempdir().unwrap();
    let begin = dir.path().join("begin");
    let errors =
        ["error-pread=EIO", "error-pread-rate=100%", &format!("error-pread-file={}", begin.display())];
    let server = NbdServer::nbdkit(&[&["--filter=error", "memory", "16M"], &errors[..]].concat());
    let disk = over_nbd(&server);
    std::fs::write(begin, "").unwrap();
    let error = disk.read(Purpose::Data, 0, &mut [0; 512]).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    disk.write(Purpose::Data, 0, &[1; 512]).unwrap();
}
