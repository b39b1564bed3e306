//! A disk that vanishes while it is used, and comes back.

use crate::support;
use std::sync::Arc;

use crate::support::{Image, tree};
use disk::{Disk, Memory};
use ext::{Options, Sync, Volume};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use vfs::{Caller, Error, FileSystem, Handle, OpenFlags, ROOT_INO, RenameFlags, SetAttr, Time, XattrMode};

struct Scene {
    region: Region,
    memory: Arc<Memory>,
    disk: Arc<Disk>,
    volume: Volume,
}

fn scene() -> Scene {
    let image = Image::make("16M", &["-t", "ext4", "-b", "4096"]);
    let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
    let memory = Arc::new(Memory::new(std::fs::read(&image.path).unwrap(), false));
    let disk = Arc::new(Disk::over("disk".into(), memory.clone()));
    ext::attach(&region, &disk).unwrap();
    let volume = Volume::mount(&region, disk.clone(), &Options::default()).unwrap();
    Scene { region, memory, disk, volume }
}

/// The same, mounted anew so that every operation is durable when it returns.
fn synced_scene() -> Scene {
    let Scene { region, memory, disk, volume } = scene();
    drop(volume);
    let options = Options { sync: Sync::Sync, ..Options::default() };
    let volume = Volume::mount(&region, disk.clone(), &options).unwrap();
    Scene { region, memory, disk, volume }
}

/// Makes a file, or writes it over, and syncs it.
fn write(volume: &Volume, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let made = volume.create(&Caller::root(), ROOT_INO, name.as_bytes(), 0o644, flags)?;
    let written = volume.write(&Caller::root(), made.handle, 0, bytes);
    let synced = written.and_then(|_| volume.fsync(made.handle, false));
    volume.release(made.handle).unwrap();
    synced
}

#[test]
fn a_disk_that_vanishes_comes_back_without_loss() {
    let Scene { region, memory, disk, volume } = scene();
    let root = Caller::root();
    write(&volume, "before", &[1; 5000]).unwrap();
    memory.vanish(true);
    // What NVM has room for needs no disk.
    write(&volume, "meanwhile", &[2; 5000]).unwrap();
    volume.mkdir(&root, ROOT_INO, b"dir", 0o755).unwrap();
    let large = vec![3; 3 << 20];
    assert!(matches!(write(&volume, "large", &large), Err(Error::Io(_))), "larger than what goes to NVM");
    assert!(matches!(volume.syncfs(), Err(Error::Io(_))), "nothing is said to be durable that is not");
    assert!(volume.unmount().is_err());
    // It comes back: nothing was given up.
    memory.vanish(false);
    volume.syncfs().unwrap();
    let there = tree::of_volume(&volume).unwrap();
    drop(volume);

    // Gone again, for the server as well; what NVM has waits for the disk.
    memory.vanish(true);
    assert!(Volume::mount(&region, disk.clone(), &Options::default()).is_err());
    memory.vanish(false);
    let volume = Volume::mount(&region, disk.clone(), &Options::default()).unwrap();
    assert!(tree::of_volume(&volume).unwrap() == there);
    assert_eq!(volume.lookup(&root, ROOT_INO, b"large").unwrap().size, 3 << 20);
    assert!(ext::check_volume(&volume).unwrap().is_clean());
    volume.detach().unwrap();
    let plain = Image::of(&memory.image());
    support::run("e2fsck", &["-fn", &plain.path.display().to_string()]);
}

/// A checkpoint that failed leaves both halves of the log in use: detaching empties both.
#[test]
fn what_two_halves_of_the_log_have_is_on_the_disk_when_it_is_detached() {
    let Scene { memory, disk, volume, .. } = scene();
    write(&volume, "one", &[1; 5000]).unwrap();
    memory.vanish(true);
    assert!(volume.checkpoint().is_err());
    write(&volume, "two", &[2; 5000]).unwrap();
    write(&volume, "one", &[3; 100]).unwrap();
    assert!(volume.checkpoint().is_err());
    memory.vanish(false);
    volume.detach().unwrap();
    drop(volume);
    let plain = Volume::open(disk, &Options::default()).unwrap();
    for (name, expected) in [("one", [&[3; 100][..], &[1; 4900]].concat()), ("two", vec![2; 5000])] {
        let attr = plain.lookup(&Caller::root(), ROOT_INO, name.as_bytes()).unwrap();
        let handle = plain.open(&Caller::root(), attr.ino, OpenFlags::READ).unwrap();
        let mut bytes = vec![0; 6000];
        assert_eq!(plain.read(handle, 0, &mut bytes).unwrap(), 5000);
        assert!(bytes[..5000] == expected, "{name}");
    }
}

/// An operation that could not be made durable said so, and was done all the same: a kernel, which believes what it is told, had names that were gone.
#[test]
fn what_is_said_to_have_failed_is_not_done() {
    let Scene { memory, volume, .. } = synced_scene();
    let root = Caller::root();
    write(&volume, "kept", &[1; 4096]).unwrap();
    let there = volume.mknod(&root, ROOT_INO, b"there", 0o100_644, 0).unwrap().ino;
    memory.vanish(true);
    let mut made = 0u64;
    let error = loop {
        // The log has of them what the disk is to have.
        let _ = write(&volume, "kept", &[made as u8; 4096]);
        match volume.mknod(&root, ROOT_INO, format!("new {made}").as_bytes(), 0o100_644, 0) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 100_000);
    };
    assert!(matches!(error, Error::Io(_)), "{error}");
    let is_there = |name: &str| volume.lookup(&root, ROOT_INO, name.as_bytes()).is_ok();
    assert!(!is_there(&format!("new {made}")));
    let failed = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Io(_))), "{result:?}");
    failed(volume.unlink(&root, ROOT_INO, b"there"));
    failed(volume.rename(&root, ROOT_INO, b"there", ROOT_INO, b"elsewhere", RenameFlags::empty()));
    failed(volume.mkdir(&root, ROOT_INO, b"dir", 0o755).map(drop));
    failed(volume.link(&root, there, ROOT_INO, b"linked").map(drop));
    failed(volume.create(&root, ROOT_INO, b"file", 0o644, OpenFlags::READ).map(drop));
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    failed(volume.setattr(&root, there, &mode, None).map(drop));
    failed(volume.setxattr(&root, there, b"user.some", b"value", XattrMode::Either));
    memory.vanish(false);
    volume.mkdir(&root, ROOT_INO, b"again", 0o755).unwrap();
    assert!(is_there("there") && is_there("again"));
    for name in ["elsewhere", "dir", "linked", "file"] {
        assert!(!is_there(name), "{name}");
    }
    let attr = volume.getattr(there).unwrap();
    assert_eq!((attr.mode & 0o777, attr.nlink), (0o644, 1));
    assert_eq!(volume.getxattr(&root, there, b"user.some"), Err(Error::NoAttribute));
    assert!(ext::check_volume(&volume).unwrap().is_clean());
}

/// Whoever is told that a file could not be made durably has nothing to close.
#[test]
fn what_could_not_be_made_durably_is_not_left_open() {
    let Scene { memory, volume, .. } = synced_scene();
    let (root, rw) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
    type Open<'a> = &'a dyn Fn() -> Result<Handle, Error>;
    let ways: [(&str, Open<'_>); 4] = [
        ("create", &|| volume.create(&root, ROOT_INO, b"new", 0o644, rw).map(|made| made.handle)),
        ("again", &|| {
            let flags = rw | OpenFlags::TRUNCATE;
            volume.create(&root, ROOT_INO, b"there", 0o644, flags).map(|made| made.handle)
        }),
        ("cut", &|| {
            let there = volume.lookup(&root, ROOT_INO, b"there").unwrap().ino;
            volume.open(&root, there, rw | OpenFlags::TRUNCATE)
        }),
        ("nameless", &|| volume.tmpfile(&root, ROOT_INO, 0o644, rw).map(|made| made.handle)),
    ];
    write(&volume, "there", &[1; 100]).unwrap();
    write(&volume, "kept", &[1; 100]).unwrap();
    for (way, open) in ways {
        // Once with the disk, so that NVM has all that it takes.
        let mut opened = 0;
        volume.release(open().unwrap()).unwrap();
        memory.vanish(true);
        let error = loop {
            // The log has to be emptied to the disk sooner or later.
            match open() {
                Ok(handle) => volume.release(handle).unwrap(),
                Err(error) => break error,
            }
            opened += 1;
            assert!(opened < 100_000, "{way}");
            // Each time is another, so that to empty an empty file changes something.
            Time::stop(Some(Time { sec: 1_000_000_000 + opened, nsec: 0 }));
            let _ = volume.unlink(&root, ROOT_INO, b"new");
            // A whole block, which needs nothing of the disk but to go there.
            let _ = write(&volume, "kept", &[opened as u8; 4096]);
        };
        assert!(matches!(error, Error::Io(_)), "{way}: {error}");
        assert!(!matches!(volume.detach(), Err(ext::Error::Volume(Error::Busy))), "{way}: a handle is left");
        memory.vanish(false);
        volume.checkpoint().unwrap();
        let _ = volume.unlink(&root, ROOT_INO, b"new");
    }
    volume.detach().unwrap();
    drop(volume);
    Image::of(&memory.image()).fsck();
}

/// With `sync`, a file that is opened to be written anew is empty before anything is written.
#[test]
fn a_file_that_is_cut_when_it_is_opened_stays_cut() {
    let image = Image::make("16M", &["-t", "ext4", "-b", "4096"]);
    let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
    let memory = Arc::new(Memory::new(image.bytes(), false));
    let disk = Arc::new(Disk::over("disk".into(), memory.clone()));
    ext::attach(&region, &disk).unwrap();
    let options = Options { sync: Sync::Sync, ..Options::default() };
    let volume = Volume::mount(&region, disk, &options).unwrap();
    write(&volume, "file", &[1; 5000]).unwrap();
    let ino = volume.lookup(&Caller::root(), ROOT_INO, b"file").unwrap().ino;
    volume.open(&Caller::root(), ino, OpenFlags::WRITE | OpenFlags::TRUNCATE).unwrap();
    // The power is cut.
    let zone = Zone::from_bytes(&zone.snapshot_image(), &OpenOptions::default()).unwrap();
    let disk = Arc::new(Disk::memory(memory.image()));
    let volume = Volume::mount(&zone.volume("disk").unwrap(), disk, &Options::default()).unwrap();
    assert_eq!(volume.getattr(ino).unwrap().size, 0);
}
