//! A disk that vanishes while it is used, and comes back.

use std::sync::Arc;

use disk::{Disk, Memory};
use ext::{Options, Volume};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use support::{Image, tree};
use vfs::{Caller, Error, FileSystem, OpenFlags, ROOT_INO};

mod support;

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

/// Makes a file, or writes it over, and syncs it.
fn write(volume: &Volume, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let made = volume.create(&Caller::root(), ROOT_INO, name.as_bytes(), 0o644, flags)?;
    volume.write(&Caller::root(), made.handle, 0, bytes)?;
    let synced = volume.fsync(made.handle, false);
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
