//! A log of which something is damaged that was committed, and whole ones are behind it: no crash leaves that. It is told, and nothing is changed;
//! who says so goes on with what is whole.

use std::sync::Arc;

use crate::support::Image;
use crate::support::attached::Attached;
use crate::support::cuts::{Luck, Machine, recorded};
use crate::support::random::Random;
use disk::{Disk, Memory};
use ext::{Error, Options, Volume};
use nvm::{EventKind, OpenOptions, RecordingOptions, Region, VolumeKind, Zone};
use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO};

const FILES: u8 = 20;

fn name(n: u8) -> Vec<u8> {
    format!("file {n}").into_bytes()
}

fn content(n: u8) -> Vec<u8> {
    [n + 100, 0xA5].repeat(3000)
}

/// Writes a file, and syncs it.
fn write(volume: &Volume, n: u8) {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let made = volume.create(&Caller::root(), ROOT_INO, &name(n), 0o644, flags).unwrap();
    volume.write(&Caller::root(), made.handle, 0, &content(n)).unwrap();
    volume.fsync(made.handle, false).unwrap();
    volume.release(made.handle).unwrap();
}

/// NVM and disk, in the middle of being used: each of the files was synced when it was written.
fn in_use() -> (Vec<u8>, Vec<u8>) {
    let scene = Attached::new();
    (0..FILES).for_each(|n| write(&scene.volume, n));
    (scene.zone.snapshot_image(), scene.memory.image())
}

/// Where NVM has the bytes of a file: in the record of its transaction.
fn in_log(nvm: &[u8], n: u8) -> usize {
    let content = content(n);
    nvm.windows(4096).position(|bytes| *bytes == content[..4096]).expect("its bytes are in the log")
}

/// A machine behind the crash.
struct Left {
    zone: Zone,
    memory: Arc<Memory>,
}

impl Left {
    fn of((nvm, disk): &(Vec<u8>, Vec<u8>)) -> Left {
        let zone = Zone::from_bytes(nvm, &OpenOptions::default()).unwrap();
        Left { zone, memory: Arc::new(Memory::new(disk.clone(), false)) }
    }

    fn images(&self) -> (Vec<u8>, Vec<u8>) {
        (self.zone.snapshot_image(), self.memory.image())
    }

    fn mount(&self, options: &Options) -> Result<Volume, Error> {
        let disk = Arc::new(Disk::over("disk".into(), self.memory.clone()));
        Volume::mount(&self.zone.volume("disk").unwrap(), disk, options)
    }

    fn damage(&self) -> Option<String> {
        ext::log_damage(&self.zone.volume("disk").unwrap()).unwrap()
    }
}

fn past_damage() -> Options {
    Options { past_damage: true, ..Options::default() }
}

/// What the volume has of a file, if it has it.
fn read(volume: &Volume, n: u8) -> Result<Vec<u8>, vfs::Error> {
    let attr = volume.lookup(&Caller::root(), ROOT_INO, &name(n))?;
    let handle = volume.open(&Caller::root(), attr.ino, OpenFlags::READ)?;
    let mut bytes = vec![0; attr.size as usize];
    let read = volume.read(handle, 0, &mut bytes);
    volume.release(handle)?;
    bytes.truncate(read?);
    Ok(bytes)
}

/// Each of them was the end of the log, and all behind it lost without a word.
#[test]
fn a_damaged_transaction_is_told_and_nothing_is_changed() {
    let whole = in_use();
    assert_eq!(Left::of(&whole).damage(), None);
    for n in 0..FILES - 1 {
        let mut damaged = whole.clone();
        let at = in_log(&damaged.0, n);
        damaged.0[at] ^= 4;
        let left = Left::of(&damaged);
        let error = left.mount(&Options::default()).map(drop).unwrap_err();
        assert!(matches!(error, Error::LogDamaged { .. }), "{error}");
        for word in ["its log in NVM is damaged", "behind which", "nothing was changed", "fsck --repair"] {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
        assert!(left.images() == damaged, "{n}: something was changed");
    }
    // The last one may be one that was torn, and the crash that tore it takes it.
    let mut torn = whole.clone();
    let at = in_log(&torn.0, FILES - 1);
    torn.0[at] ^= 4;
    let left = Left::of(&torn);
    assert_eq!(left.damage(), None);
    let volume = left.mount(&Options::default()).unwrap();
    for n in 0..FILES - 1 {
        assert_eq!(read(&volume, n).unwrap(), content(n));
    }
}

/// Who goes on has all the others; whoever has the disk next is told, and e2fsck makes it sound.
#[test]
fn what_is_whole_is_had_past_the_damage() {
    let whole = in_use();
    for n in [0, 7, FILES - 2] {
        let mut damaged = whole.clone();
        let at = in_log(&damaged.0, n);
        damaged.0[at + 1000] ^= 0x80;
        let left = Left::of(&damaged);
        let volume = left.mount(&past_damage()).unwrap();
        assert!(volume.has_errors().unwrap());
        assert!(volume.damage().first.contains("behind which"));
        for other in (0..FILES).filter(|other| *other != n) {
            assert_eq!(read(&volume, other).unwrap(), content(other), "{other} without {n}");
        }
        // Its process ends there, and what comes next knows nothing of it.
        drop(volume);
        let left = Left::of(&left.images());
        assert_eq!(left.damage(), None);
        let volume = left.mount(&Options::default()).unwrap();
        assert!(volume.has_errors().unwrap());
        volume.detach().unwrap();
        drop(volume);
        let image = Image::of(&left.memory.image());
        let disk = image.disk(true);
        assert!(ext::info(&disk).unwrap().has_errors);
        drop(disk);
        let path = image.path.display().to_string();
        let mended = std::process::Command::new("e2fsck").args(["-fy", &path]).output().unwrap();
        assert!(mended.status.code().is_some_and(|code| code <= 1), "{mended:?}");
        image.fsck();
        let plain = image.open();
        for other in (0..FILES).filter(|other| *other != n) {
            assert_eq!(read(&plain, other).unwrap(), content(other), "{other} without {n}, on the disk");
        }
    }
}

/// The log is emptied when the superblock says that there are errors, not before: wherever the power goes, one of the two tells.
#[test]
fn going_on_past_damage_is_cut_short_anywhere_and_it_is_still_told() {
    let (mut nvm, disk) = in_use();
    let at = in_log(&nvm, 11);
    nvm[at] ^= 1;
    let left = Left::of(&(nvm.clone(), disk.clone()));
    let region = left.zone.volume("disk").unwrap();
    let over = recorded(&region, left.memory.clone());
    left.zone.start_recording(RecordingOptions::default());
    Volume::mount(&region, over, &past_damage()).unwrap().unmount().unwrap();
    let recording = left.zone.stop_recording().unwrap();
    let (mut machine, mut random) = (Machine::new(&recording, nvm, disk), Random::new(3));
    let (mut damaged, mut noted) = (0, 0);
    for event in &recording.events {
        if !machine.is_settled() && event.kind != EventKind::Store {
            let luck = [Luck::None, Luck::All, Luck::Nvm, Luck::Disk, Luck::Some][random.below(5) as usize];
            let left = Left::of(&machine.cut(luck, &mut random));
            if left.damage().is_some() {
                let volume = left.mount(&past_damage()).unwrap();
                assert!(volume.has_errors().unwrap());
                damaged += 1;
            } else {
                let volume = left.mount(&Options::default()).unwrap();
                assert!(volume.has_errors().unwrap(), "before {event:?}, {luck:?}");
                for other in (0..FILES).filter(|other| *other != 11) {
                    assert_eq!(read(&volume, other).unwrap(), content(other));
                }
                noted += 1;
            }
        }
        machine.step(event);
    }
    assert!(damaged > 20 && noted > 5, "{damaged} {noted}");
}

/// A volume is removed when its server has died, another is made in its place, and its server dies, too: nothing of the first one's log is on the second one's disk.
#[test]
fn a_new_volume_has_nothing_of_the_log_of_the_one_before() {
    let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
    let image = Image::make("16M", &["-t", "ext4", "-b", "1024"]).bytes();
    let attach = || {
        let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
        let disk = Arc::new(Disk::over("disk".into(), Arc::new(Memory::new(image.clone(), false))));
        ext::attach(&region, &disk).unwrap();
        (region, disk)
    };
    let mount =
        |region: &Region, disk: &Arc<Disk>| Volume::mount(region, disk.clone(), &Options::default()).unwrap();
    let (region, disk) = attach();
    let volume = mount(&region, &disk);
    (0..10).for_each(|n| write(&volume, n));
    drop((volume, region));
    zone.remove_volume("disk").unwrap();
    let (region, disk) = attach();
    for own in 0..3 {
        let volume = mount(&region, &disk);
        (0..own).for_each(|n| write(&volume, n));
        drop(volume);
        let volume = mount(&region, &disk);
        for n in 0..10 {
            assert_eq!(read(&volume, n).ok(), (n < own).then(|| content(n)), "file {n} of {own}");
        }
    }
}

/// The zone's file lost its end, as if that could not be read: it reads as zeros, and is taken neither for an empty log nor for a damaged one.
#[test]
fn a_log_that_cannot_be_read_is_not_emptied() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("zone");
    let image = Image::make("16M", &["-t", "ext4", "-b", "4096"]).bytes();
    let disk = Arc::new(Disk::over("disk".into(), Arc::new(Memory::new(image, false))));
    let zone = Zone::create(&path, 16 << 20, false, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, None).unwrap();
    ext::attach(&region, &disk).unwrap();
    let volume = Volume::mount(&region, disk.clone(), &Options::default()).unwrap();
    (0..FILES).for_each(|n| write(&volume, n));
    drop((volume, region, zone));
    let whole = std::fs::read(&path).unwrap();
    let zone = Zone::open(&path, &OpenOptions::default()).unwrap();
    let region = zone.volume("disk").unwrap();
    let cut = in_log(&whole, 3) as u64 / 4096 * 4096;
    std::fs::File::options().write(true).open(&path).unwrap().set_len(cut).unwrap();
    assert!(matches!(ext::log_damage(&region), Err(Error::Volume(vfs::Error::Io(_)))));
    for past_damage in [false, true] {
        let options = Options { past_damage, ..Options::default() };
        let mounted = Volume::mount(&region, disk.clone(), &options).map(drop);
        assert!(matches!(mounted, Err(Error::Volume(vfs::Error::Io(_)))));
    }
    drop((region, zone));
    let left = std::fs::read(&path).unwrap();
    assert!(left == whole[..cut as usize], "something was changed");
    // What was lost is back.
    std::fs::write(&path, whole).unwrap();
    let zone = Zone::open(&path, &OpenOptions::default()).unwrap();
    let volume = Volume::mount(&zone.volume("disk").unwrap(), disk, &Options::default()).unwrap();
    for n in 0..FILES {
        assert_eq!(read(&volume, n).unwrap(), content(n));
    }
}
