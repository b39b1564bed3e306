//! What every volume must do, and random operations beside the model, on disks that are attached: with detaching, e2fsck and crashes in between.

use std::sync::Arc;

use crate::support::{Image, run};
use disk::Disk;
use ext::{Options, Volume};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use vfs::torture::{Limits, Torture};
use vfs::{Caller, Error, FileSystem, ROOT_INO, SetAttr, SetTime, conformance};

const STEPS: u64 = 1_500;
const ROUNDS: u64 = 6;

/// A disk that is attached to NVM in DRAM.
struct Machine {
    zone: Zone,
    disk: Arc<Disk>,
}

impl Machine {
    fn new(disk: Arc<Disk>) -> Machine {
        let zone = Zone::anonymous(64 << 20, &OpenOptions::default()).unwrap();
        zone.create_volume("disk", VolumeKind::Ext, Some(48 << 20)).unwrap();
        let machine = Machine { zone, disk };
        machine.attach();
        machine
    }

    /// The disk in DRAM, too.
    fn in_memory(options: &[&str]) -> Machine {
        Machine::new(Arc::new(Disk::memory(Image::make("96M", options).bytes())))
    }

    fn region(&self) -> Region {
        self.zone.volume("disk").unwrap()
    }

    fn attach(&self) {
        ext::attach(&self.region(), &self.disk).unwrap();
    }

    fn mount(&self) -> Volume {
        let options = Options { page_bytes: 1 << 20, ..Options::default() };
        Volume::mount(&self.region(), self.disk.clone(), &options).unwrap()
    }

    fn image(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.disk.bytes() as usize];
        self.disk.read(disk::Purpose::Data, 0, &mut bytes).unwrap();
        bytes
    }

    /// The machine as it is after a crash at this moment.
    fn crashed(&self) -> Machine {
        let zone = Zone::from_bytes(&self.zone.snapshot_image(), &OpenOptions::default()).unwrap();
        Machine { zone, disk: Arc::new(Disk::memory(self.image())) }
    }

    /// Fails unless neither e2fsck nor our own check finds anything on the detached disk.
    fn fsck(&self) {
        let said = Image::of(&self.image()).fsck();
        assert!(!said.contains("wrong"), "{said}");
        let found = ext::check(self.disk.clone(), &Options::default()).unwrap();
        assert!(found.is_clean(), "{:#?}", found.findings);
    }
}

/// Tools that change features leave the superblock's word of what no file can have as it was, and what is free was cut to the rest.
#[test]
fn what_is_free_is_counted_whatever_the_superblock_says() {
    let image = Image::make("96M", &["-t", "ext4", "-b", "4096"]);
    let said = |image: &Image| Volume::open(image.disk(true), &Options::default()).unwrap().statfs().unwrap();
    let before = said(&image);
    run("debugfs", &["-w", "-R", "ssv overhead_clusters 12000", &image.path.display().to_string()]);
    assert_eq!(said(&image).blocks, before.blocks);
    let machine = Machine::new(Arc::new(Disk::memory(image.bytes())));
    machine.mount().detach().unwrap();
    machine.fsck();
}

/// Each case on one of so many disks, which are at work beside each other.
fn conforms(options: &[&str], disks: usize) {
    let conforms = |first: usize| {
        // Some cases are of gigabytes that nobody writes.
        let image = Image::make("8G", options);
        let machine = Machine::new(image.disk(false));
        let volume = machine.mount();
        for (name, case) in conformance::all().iter().skip(first).step_by(disks) {
            eprintln!("{name}");
            case(&volume);
        }
        volume.detach().unwrap();
        drop(volume);
        image.fsck();
    };
    std::thread::scope(|scope| (0..disks).for_each(|first| drop(scope.spawn(move || conforms(first)))));
}

/// A root directory is empty for the model, and has a directory for e2fsck.
fn lost_and_found(volume: &Volume, is_there: bool) {
    let root = Caller::root();
    let before = volume.getattr(ROOT_INO).unwrap();
    if is_there {
        volume.mkdir(&root, ROOT_INO, b"lost+found", 0o700).map(drop).unwrap();
    } else {
        volume.rmdir(&root, ROOT_INO, b"lost+found").unwrap();
    }
    let mtime = Some(SetTime::At(before.mtime));
    let times = SetAttr { mtime, ctime: Some(before.ctime), ..SetAttr::default() };
    volume.setattr(&root, ROOT_INO, &times, None).unwrap();
}

fn torture(options: &[&str], limits: Limits) {
    // Small blocks have no room for long links.
    let mut torture =
        Torture::new(Torture::seed_from_environment()).with_limits(limits).tolerating(&[Error::NameTooLong]);
    let mut machine = Machine::in_memory(options);
    for round in 0..ROUNDS {
        let volume = machine.mount();
        if round % 2 == 0 {
            lost_and_found(&volume, false);
        }
        if round > 0 {
            torture.compare(&volume);
        }
        torture.run(&volume, STEPS);
        torture.close(&volume);
        if round % 2 == 0 {
            volume.syncfs().unwrap();
            machine = machine.crashed();
            continue;
        }
        lost_and_found(&volume, true);
        volume.detach().unwrap();
        drop(volume);
        machine.fsck();
        machine.attach();
    }
}

/// An inode's attributes fit into a block.
fn limits(block: usize) -> Limits {
    Limits { inodes: 200, file_bytes: 1 << 24, xattr_bytes: block / 16, ..Limits::default() }
}

#[test]
fn ext4_conforms() {
    conforms(&["-t", "ext4", "-b", "4096", "-I", "256"], 1);
}

#[test]
fn ext3_conforms() {
    // Its times are whole seconds, and cases wait for the next one.
    conforms(&["-t", "ext3", "-b", "4096", "-I", "128"], 6);
}

#[test]
fn ext2_conforms() {
    conforms(&["-t", "ext2", "-b", "1024", "-I", "256"], 1);
}

#[test]
fn ext4_is_as_the_model() {
    torture(&["-t", "ext4", "-b", "4096", "-I", "256"], limits(4096));
    torture(&["-t", "ext4", "-b", "1024", "-I", "256"], limits(1024));
}

#[test]
fn ext3_is_as_the_model() {
    torture(&["-t", "ext3", "-b", "4096", "-I", "256"], limits(4096));
}

#[test]
fn ext2_is_as_the_model() {
    torture(&["-t", "ext2", "-b", "1024", "-I", "256"], limits(1024));
}
