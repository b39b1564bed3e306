//! A disk at the end of a network: an NBD server that loses what was not flushed when it ends, and comes back.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{Image, contents, tree};
use disk::{Disk, Source};
use ext::{Options, Volume};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use servers::NbdServer;
use vfs::{Caller, Error, FileSystem, OpenFlags, ROOT_INO, RenameFlags};

#[path = "../../disk/tests/servers/mod.rs"]
mod servers;

const MIB: u64 = 1 << 20;

fn region() -> (Zone, Region) {
    let zone = Zone::anonymous(24 * MIB, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(16 * MIB)).unwrap();
    (zone, region)
}

fn open(server: &NbdServer) -> Arc<Disk> {
    let source: Source = server.uri.parse().unwrap();
    Arc::new(Disk::open(&source, &disk::OpenOptions::default()).unwrap())
}

/// What the server has of its own and does not flush goes with it.
fn forgetful(image: &Path) -> NbdServer {
    NbdServer::nbdkit(&["--filter=cache", "file", &format!("file={}", image.display()), "cache=writeback"])
}

fn mount(region: &Region, disk: Arc<Disk>) -> Volume {
    Volume::mount(region, disk, &Options { page_bytes: 4 * MIB, ..Options::default() }).unwrap()
}

/// Makes a file, or writes it over, and syncs it.
fn write(volume: &Volume, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let root = Caller::root();
    let made = volume.create(&root, ROOT_INO, name.as_bytes(), 0o644, OpenFlags::READ | OpenFlags::WRITE)?;
    let written = volume.write(&root, made.handle, 0, bytes);
    let synced = written.and_then(|_| volume.fsync(made.handle, false));
    volume.release(made.handle).unwrap();
    synced
}

/// The disk looks for its server now and then only.
fn until_it_is_back<R>(attempt: impl Fn() -> Result<R, Error>) -> R {
    let began = Instant::now();
    loop {
        match attempt() {
            Ok(result) => return result,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Which bytes which file has.
fn files() -> Vec<(String, Vec<u8>)> {
    let lengths = [100, 5000, 70_000, 3 << 20];
    (0..12).map(|n| (format!("file {n}"), contents::pattern(lengths[n % 4], n as u64))).collect()
}

fn check(image: &Image, expected: &[(String, Vec<u8>)]) {
    image.fsck();
    let volume = image.open();
    for (name, bytes) in expected {
        let attr = volume.lookup(&Caller::root(), ROOT_INO, name.as_bytes()).unwrap();
        let handle = volume.open(&Caller::root(), attr.ino, OpenFlags::READ).unwrap();
        let mut read = vec![0; bytes.len() + 1];
        assert_eq!(volume.read(handle, 0, &mut read).unwrap(), bytes.len(), "{name}");
        assert!(read[..bytes.len()] == bytes[..], "{name}");
        volume.release(handle).unwrap();
    }
}

/// Killed between operations and mounted again each time: what was synced is there, by way of NVM or of the server.
#[test]
fn what_was_synced_outlives_the_server_and_the_mount() {
    let image = Image::make("64M", &["-t", "ext4", "-b", "4096"]);
    let (_zone, region) = region();
    let mut server = forgetful(&image.path);
    ext::attach(&region, &open(&server)).unwrap();
    let files = files();
    for files in files.chunks(4) {
        let volume = mount(&region, open(&server));
        for (name, bytes) in files {
            write(&volume, name, bytes).unwrap();
        }
        // Neither is asked to come to an end.
        server.kill();
        drop(volume);
        server.again();
    }
    let volume = mount(&region, open(&server));
    assert!(volume.replayed().transactions > 0);
    volume.detach().unwrap();
    drop((volume, server));
    check(&image, &files);
}

/// Killed below a mounted volume: what NVM cannot do alone fails meanwhile, and then all goes on.
#[test]
fn a_mounted_volume_finds_its_server_again() {
    let image = Image::make("64M", &["-t", "ext4", "-b", "1024"]);
    let (_zone, region) = region();
    let mut server = forgetful(&image.path);
    ext::attach(&region, &open(&server)).unwrap();
    let volume = mount(&region, open(&server));
    let files = files();
    let (before, behind) = files.split_at(6);
    for (name, bytes) in before {
        write(&volume, name, bytes).unwrap();
    }
    write(&volume, "first", &[0; 1000]).unwrap();
    server.kill();
    // What NVM has, and has room for, needs no disk.
    let (root, none) = (Caller::root(), RenameFlags::empty());
    volume.rename(&root, ROOT_INO, b"first", ROOT_INO, b"small", none).unwrap();
    write(&volume, "small", &[1; 1000]).unwrap();
    let large = files.iter().find(|(_, bytes)| bytes.len() > 1 << 20).unwrap();
    assert!(matches!(write(&volume, "large", &large.1), Err(Error::Io(_))));
    assert!(matches!(volume.syncfs(), Err(Error::Io(_))), "nothing is said to be durable that is not");
    server.again();
    until_it_is_back(|| volume.syncfs());
    for (n, (name, bytes)) in behind.iter().enumerate() {
        // Twice more, in the middle of it.
        if n == 2 || n == 4 {
            server.kill();
            server.again();
        }
        until_it_is_back(|| write(&volume, name, bytes));
    }
    let there = tree::of_volume(&volume).unwrap();
    volume.detach().unwrap();
    drop((volume, server));
    let more = [("small".into(), vec![1; 1000]), ("large".into(), large.1.clone())];
    check(&image, &[&files[..], &more].concat());
    tree::compare(&tree::of_volume(&image.open()).unwrap(), &there);
}

/// Another kind of server.
#[test]
fn qemu_nbd_serves_a_disk_that_is_written() {
    let image = Image::make("64M", &["-t", "ext3", "-b", "2048"]);
    let (_zone, region) = region();
    let mut server = NbdServer::qemu(&image.path, &["--cache=writeback"]);
    ext::attach(&region, &open(&server)).unwrap();
    let volume = mount(&region, open(&server));
    let files = files();
    for (n, (name, bytes)) in files.iter().enumerate() {
        if n == 7 {
            server.kill();
            server.again();
        }
        until_it_is_back(|| write(&volume, name, bytes));
    }
    volume.detach().unwrap();
    drop((volume, server));
    check(&image, &files);
}
