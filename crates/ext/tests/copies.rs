//! Disk and NVM are one file system together, as both are now: a copy of either from another time is told, also one of the same attachment, which
//! was mounted without a word once.

use std::sync::Arc;

use crate::support::Image;
use crate::support::attached::{Attached as Scene, mount};
use crate::support::cuts::{Luck, Machine, recorded};
use crate::support::random::Random;
use disk::{Disk, Memory};
use ext::{Error, Options, Volume};
use nvm::{EventKind, OpenOptions, RecordingOptions, Region, VolumeKind, Zone};
use vfs::{Caller, FileSystem, ROOT_INO};

/// Opens the disk of these bytes with the NVM of those.
fn open(nvm: &[u8], disk: &[u8]) -> Result<(), Error> {
    let zone = Zone::from_bytes(nvm, &OpenOptions::default()).unwrap();
    let memory = Arc::new(Memory::new(disk.to_vec(), false));
    let region = zone.volume("disk").unwrap();
    let over = Arc::new(Disk::over("the disk".into(), memory.clone()));
    let space = ext::at_rest(&region, &over).map(drop);
    let opened = Volume::mount(&region, over, &Options::default());
    assert_eq!(space.is_ok(), opened.is_ok());
    if opened.is_err() {
        assert!(memory.image() == disk, "the disk was changed");
        assert!(zone.snapshot_image() == nvm, "the NVM was changed");
    }
    opened.map(drop)
}

impl Scene {
    fn images(&self) -> (Vec<u8>, Vec<u8>) {
        (self.zone.snapshot_image(), self.memory.image())
    }

    fn make(&self, name: &str) {
        self.volume.mkdir(&Caller::root(), ROOT_INO, name.as_bytes(), 0o755).unwrap();
        self.volume.syncfs().unwrap();
    }

    /// The same, mounted once more.
    fn again(self) -> Scene {
        let Scene { zone, memory, volume } = self;
        drop(volume);
        let volume = mount(&zone, &memory);
        Scene { zone, memory, volume }
    }
}

/// What is refused says which of the two is older, and what to do.
fn is_older(result: Result<(), Error>, words: &[&str]) {
    let error = result.unwrap_err().to_string();
    for word in words.iter().chain(&["nothing was changed", "amberfs attach --force-from-disk the disk"]) {
        assert!(error.contains(word), "{word}: {error}");
    }
}

const DISK: &[&str] = &["the disk: this is an older copy"];
const NVM: &[&str] = &["the NVM of volume 'disk' is an older copy"];

#[test]
fn an_older_copy_of_the_same_attachment_was_mounted_without_a_word() {
    let scene = Scene::new();
    scene.make("in the first mount");
    let (nvm_in_use, disk_in_use) = scene.images();
    scene.volume.unmount().unwrap();
    let (nvm_at_rest, disk_at_rest) = scene.images();
    let scene = scene.again();
    scene.make("in the second");
    let (nvm, disk) = scene.images();
    // What belongs together: as it was, as it is, whether it was unmounted or not.
    for (nvm, disk) in [(&nvm_in_use, &disk_in_use), (&nvm_at_rest, &disk_at_rest), (&nvm, &disk)] {
        open(nvm, disk).unwrap();
    }
    // A copy of an image that is in use is no copy of what it is when it has been unmounted.
    for old in [&disk_in_use, &disk_at_rest] {
        is_older(open(&nvm, old), DISK);
    }
    is_older(open(&nvm_at_rest, &disk_in_use), DISK);
    for old in [&nvm_in_use, &nvm_at_rest] {
        is_older(open(old, &disk), NVM);
    }
    is_older(open(&nvm_in_use, &disk_at_rest), NVM);
}

/// Both were copied, and each pair was used for itself, equally often.
#[test]
fn what_was_used_apart_since_it_was_copied_is_told() {
    let scene = Scene::new();
    scene.volume.unmount().unwrap();
    let (nvm, disk) = scene.images();
    let zone = Zone::from_bytes(&nvm, &OpenOptions::default()).unwrap();
    let memory = Arc::new(Memory::new(disk, false));
    let volume = mount(&zone, &memory);
    let other = Scene { zone, memory, volume };
    let scene = scene.again();
    for n in 0..3 {
        scene.make(&format!("dir-{n}"));
    }
    other.make("another");
    for scene in [&scene, &other] {
        scene.volume.unmount().unwrap();
    }
    let ((nvm, disk), (other_nvm, other_disk)) = (scene.images(), other.images());
    open(&nvm, &disk).unwrap();
    open(&other_nvm, &other_disk).unwrap();
    is_older(open(&nvm, &other_disk), DISK);
    is_older(open(&other_nvm, &disk), NVM);
}

/// A disk that cannot be written is read, and stays what it is.
#[test]
fn a_disk_that_is_read_only_is_the_same_afterwards() {
    let scene = Scene::new();
    scene.volume.unmount().unwrap();
    let (_, disk) = scene.images();
    let Scene { zone, volume, .. } = scene;
    drop(volume);
    for _ in 0..2 {
        let read_only = Arc::new(Disk::over("disk".into(), Arc::new(Memory::new(disk.clone(), true))));
        Volume::mount(&zone.volume("disk").unwrap(), read_only, &Options::default())
            .unwrap()
            .unmount()
            .unwrap();
    }
    open(&zone.snapshot_image(), &disk).unwrap();
}

/// Mounting and unmounting say on both media that they have been: cut short anywhere, the two still belong together.
#[test]
fn cut_short_between_the_two_they_belong_together() {
    let Scene { zone, memory, volume } = Scene::new();
    drop(volume);
    let (nvm, disk) = (zone.snapshot_image(), memory.image());
    let over = recorded(&zone.volume("disk").unwrap(), memory);
    zone.start_recording(RecordingOptions::default());
    for _ in 0..2 {
        let volume = Volume::mount(&zone.volume("disk").unwrap(), over.clone(), &Options::default()).unwrap();
        volume.unmount().unwrap();
    }
    let recording = zone.stop_recording().unwrap();
    let (mut machine, mut random) = (Machine::new(&recording, nvm, disk), Random::new(1));
    let mut states = 0;
    for event in &recording.events {
        if !machine.is_settled() {
            for luck in [Luck::None, Luck::All, Luck::Nvm, Luck::Disk, Luck::Some] {
                let (nvm, disk) = machine.cut(luck, &mut random);
                open(&nvm, &disk).unwrap_or_else(|error| panic!("before {event:?}, {luck:?}: {error}"));
                states += 1;
            }
        }
        machine.step(event);
    }
    assert!(states > 100, "{states}");
}

fn region(zone: &Zone, name: &str) -> Region {
    zone.create_volume(name, VolumeKind::Ext, Some(8 << 20)).unwrap()
}

/// Detaching is cut short at its very end, and another volume gets the disk, which was taken away from it when the first one was mounted: the
/// superblock of then was written over the newer one.
#[test]
fn a_disk_that_another_volume_has_was_taken_back_by_one_that_had_emptied_itself() {
    let zone = Zone::anonymous(24 << 20, &OpenOptions::default()).unwrap();
    let image = Image::make("16M", &["-t", "ext4"]);
    let memory = Arc::new(Memory::new(image.bytes(), false));
    let disk = Arc::new(Disk::over("disk".into(), memory.clone()));
    let (one, other) = (region(&zone, "one"), region(&zone, "other"));
    ext::attach(&one, &disk).unwrap();
    let volume = Volume::mount(&one, disk.clone(), &Options::default()).unwrap();
    zone.start_recording(RecordingOptions::default());
    let before = zone.snapshot_image();
    volume.detach().unwrap();
    drop(volume);
    // All but the last store of the area's superblock.
    let recording = zone.stop_recording().unwrap();
    let mut machine = Machine::new(&recording, before, memory.image());
    let stores = recording.events.iter().rposition(|event| event.kind == EventKind::Stream).unwrap();
    recording.events[..stores].iter().for_each(|event| machine.step(event));
    let left = machine.cut(Luck::None, &mut Random::new(1)).0;
    let zone = Zone::from_bytes(&left, &OpenOptions::default()).unwrap();
    let (one, other) = (zone.volume("one").unwrap(), zone.volume(other.name()).unwrap());
    ext::attach(&other, &disk).unwrap();
    let marked = memory.image();
    let error = Volume::mount(&one, disk.clone(), &Options::default()).map(drop).unwrap_err();
    assert!(matches!(&error, Error::OtherDisk { .. }), "{error}");
    assert!(memory.image() == marked, "the disk was changed");
    Volume::mount(&other, disk, &Options::default()).unwrap().detach().unwrap();
}
