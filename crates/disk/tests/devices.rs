//! The same things asked of every kind of disk.

use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;

use disk::{Buffer, Disk, Engine, Error, OpenOptions, Purpose, Queue, Source, Write};
use servers::{LoopDevice, NbdServer};

mod servers;

const MIB: u64 = 1 << 20;

fn image(dir: &tempfile::TempDir, bytes: u64) -> std::path::PathBuf {
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

fn open(path: &Path) -> Disk {
    Disk::open_path(path, &OpenOptions::default()).unwrap()
}

fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|n| (n as u8).wrapping_mul(31).wrapping_add((n >> 8) as u8).wrapping_add(salt)).collect()
}

/// What must hold for every disk of at least 16 MiB that can be written.
fn behaves(disk: Disk) {
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
fn queues(disk: &Disk, queue: &Queue) {
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
fn block_special_file() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::attach(&image(&dir, 16 * MIB), &[]) else { return };
    behaves(open(&device.path));
}

#[test]
fn block_special_file_with_large_sectors() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::attach(&image(&dir, 16 * MIB), &["--sector-size", "4096"]) else { return };
    let disk = open(&device.path);
    assert_eq!(disk.sector(), 4096);
    behaves(disk);
}

#[test]
fn a_read_only_block_special_file_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::attach(&image(&dir, 16 * MIB), &["--read-only"]) else { return };
    let disk = open(&device.path);
    assert!(disk.is_read_only());
    assert!(matches!(disk.write(Purpose::Data, 0, &[0; 512]), Err(Error::ReadOnly { .. })));
}

#[test]
fn a_mounted_disk_is_refused_by_device_and_by_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 16 * MIB);
    assert!(std::process::Command::new("mke2fs").args(["-q", "-F"]).arg(&path).status().unwrap().success());
    let Some(device) = LoopDevice::attach(&path, &[]) else { return };
    let mounted = device.mount(&dir.path().join("mnt"));
    let busy = Disk::open_path(&device.path, &OpenOptions::default()).unwrap_err();
    assert!(matches!(busy, Error::Busy { .. }), "{busy}");
    drop(mounted);
    let busy = Disk::open_path(&path, &OpenOptions::default()).unwrap_err();
    assert!(busy.to_string().contains(&device.path.display().to_string()), "{busy}");
    // While it is open here, the kernel does not mount it.
    let disk = open(&device.path);
    assert!(!device.try_mount(&dir.path().join("mnt")));
    drop(disk);
    drop(device.mount(&dir.path().join("mnt")));
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

/// A loop device over an image that somebody had open was opened beside it, and so were two over the same image.
#[test]
fn an_image_was_in_use_by_its_name_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, MIB);
    let Some(device) = LoopDevice::attach(&path, &[]) else { return };
    let disk = open(&device.path);
    let Some(other) = LoopDevice::attach(&path, &[]) else { return };
    let busy = Disk::open_path(&other.path, &OpenOptions::default()).unwrap_err();
    assert!(matches!(&busy, Error::Busy { by, .. } if by.contains("image")), "{busy}");
    drop(disk);
    let disk = open(&other.path);
    let Some(part) = LoopDevice::attach(&path, &["-o", "524288"]) else { return };
    drop(open(&part.path));
    drop((disk, part, device, other));

    let disk = open(&path);
    let Some(device) = LoopDevice::attach(&path, &[]) else { return };
    let reading = OpenOptions { read_only: true, ..OpenOptions::default() };
    for options in [OpenOptions::default(), reading.clone()] {
        let busy = Disk::open_path(&device.path, &options).unwrap_err();
        assert!(busy.to_string().contains(&path.display().to_string()), "{busy}");
    }
    drop((disk, device));
    let _first = Disk::open_path(&path, &reading).unwrap();
    let Some(device) = LoopDevice::attach(&path, &[]) else { return };
    drop(Disk::open_path(&device.path, &reading).unwrap());
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
