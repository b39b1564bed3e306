//! A disk that refuses some of its sectors, below bytes that were synced: they stay in NVM, and nobody else is kept from anything.

use crate::support;
use std::sync::Arc;
use std::time::Duration;

use crate::support::Image;
use crate::support::attached::{Attached as Scene, mount};
use disk::{Disk, Memory};
use ext::{Background, Options, Room, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, Error, FileSystem, Handle, OpenFlags, ROOT_INO};

const BLOCK: usize = 4096;

impl Scene {
    /// A scene with a file of three blocks on the disk, `fill` in all of them, of which the middle one has a sector that the disk refuses from now on.
    fn with_bad_sector(fill: u8) -> Scene {
        let scene = Scene::new();
        scene.write("bad", 0, &[fill; 3 * BLOCK]).unwrap();
        scene.volume.checkpoint().unwrap();
        let at = scene.find(&[fill; 3 * BLOCK]) + BLOCK as u64 + 1024;
        scene.memory.refuse(at..at + 512);
        scene
    }

    /// Where the disk has these bytes.
    fn find(&self, bytes: &[u8]) -> u64 {
        let image = self.memory.image();
        let at = image.chunks(BLOCK).zip(0..).position(|(_, n)| image[n * BLOCK..].starts_with(bytes));
        (at.expect("they are on the disk") * BLOCK) as u64
    }

    fn open(&self, name: &str) -> Handle {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        self.volume.create(&Caller::root(), ROOT_INO, name.as_bytes(), 0o644, flags).unwrap().handle
    }

    /// Writes, and syncs.
    fn write(&self, name: &str, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let handle = self.open(name);
        let written = self.volume.write(&Caller::root(), handle, at, bytes);
        let synced = written.and_then(|_| self.volume.fsync(handle, false));
        self.volume.release(handle).unwrap();
        synced
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let handle = self.open(name);
        let mut bytes = vec![0; 64 << 10];
        let length = self.volume.read(handle, 0, &mut bytes).unwrap();
        self.volume.release(handle).unwrap();
        bytes.truncate(length);
        bytes
    }

    /// Syncs more than both halves of the log have room for.
    fn fill_log(&self) {
        let log = 2 * self.volume.stats().log_bytes;
        for n in 0..2 * log / (16 << 10) {
            self.write(&format!("other-{}", n % 50), 0, &vec![n as u8; 16 << 10]).unwrap();
        }
    }

    fn refused(&self) -> u64 {
        self.volume.stats().blocks_refused
    }

    /// The same behind a power cut now.
    fn cut(&self) -> Scene {
        let zone = Zone::from_bytes(&self.zone.snapshot_image(), &OpenOptions::default()).unwrap();
        let memory = Arc::new(Memory::new(self.memory.image(), false));
        memory.refuse(self.memory.refused());
        let volume = mount(&zone, &memory);
        Scene { zone, memory, volume }
    }

    /// Back to the disk, which takes everything now, and is a sound ext then.
    fn detach(self) -> Arc<Disk> {
        self.memory.refuse(0..0);
        self.volume.detach().unwrap();
        Image::of(&self.memory.image()).fsck();
        Arc::new(Disk::memory(self.memory.image()))
    }
}

/// What a plain disk has in a file.
fn plain(disk: Arc<Disk>, name: &str) -> Vec<u8> {
    let volume = Volume::open(disk, &Options::default()).unwrap();
    let attr = volume.lookup(&Caller::root(), ROOT_INO, name.as_bytes()).unwrap();
    let handle = volume.open(&Caller::root(), attr.ino, OpenFlags::READ).unwrap();
    let mut bytes = vec![0; attr.size as usize];
    assert_eq!(volume.read(handle, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Below bytes that were synced, it kept the log from being emptied, until nobody could commit anything.
#[test]
fn a_sector_that_cannot_be_written_keeps_nobody_from_committing() {
    let scene = Scene::with_bad_sector(1);
    let expected = [vec![1; BLOCK], vec![2; 2 * BLOCK]].concat();
    scene.write("bad", BLOCK as u64, &[2; 2 * BLOCK]).unwrap();
    scene.fill_log();
    assert_eq!(scene.refused(), 1, "its neighbours are on the disk");
    assert!(scene.volume.refusal().unwrap().contains("writing"), "{:?}", scene.volume.refusal());
    assert!(scene.read("bad") == expected);
    let attachment = ext::attachment(&scene.zone.volume("disk").unwrap()).unwrap().unwrap();
    assert_eq!(attachment.blocks_refused, 1);
    // Power cuts, with and without something of it in the log; and a mount that ends well.
    let scene = scene.cut();
    assert!(scene.read("bad") == expected);
    scene.write("bad", BLOCK as u64, &[3; 10]).unwrap();
    let scene = scene.cut();
    let expected = [vec![1; BLOCK], vec![3; 10], vec![2; 2 * BLOCK - 10]].concat();
    assert_eq!((scene.read("bad") == expected, scene.refused()), (true, 1));
    assert!(ext::check_volume(&scene.volume).unwrap().is_clean());
    scene.volume.unmount().unwrap();
    let scene = scene.cut();
    assert!(scene.read("bad") == expected);
    assert!(matches!(scene.volume.detach(), Err(ext::Error::Volume(Error::Io(_)))), "the disk has not all");
    // It can be written again.
    scene.memory.refuse(0..0);
    scene.volume.checkpoint().unwrap();
    assert_eq!((scene.refused(), scene.volume.refusal()), (0, None));
    assert_eq!(scene.find(&expected[BLOCK..]) % BLOCK as u64, 0);
    assert!(scene.read("bad") == expected);
    assert!(plain(scene.detach(), "bad") == expected);
}

/// Who tends the volume tells of it, and offers it to the disk again.
#[test]
fn what_the_disk_refuses_is_told_and_offered_again() {
    let Scene { zone, memory, volume } = Scene::with_bad_sector(1);
    let volume = Arc::new(volume);
    let (tell, told) = std::sync::mpsc::channel();
    let tell = move |what: &str| tell.send(what.to_string()).unwrap();
    let background = Background::begin(&volume, Duration::from_millis(5), tell).unwrap();
    let handle = volume.create(&Caller::root(), ROOT_INO, b"bad", 0o644, OpenFlags::WRITE).unwrap().handle;
    volume.write(&Caller::root(), handle, 0, &[2; 3 * BLOCK]).unwrap();
    volume.fsync(handle, false).unwrap();
    volume.release(handle).unwrap();
    volume.checkpoint().unwrap();
    let first = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(first.contains("offered to it again: 1") && first.contains("writing"), "{first}");
    memory.refuse(0..0);
    let second = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(second.contains("has taken all"), "{second}");
    drop(background);
    let volume = Arc::into_inner(volume).unwrap();
    let scene = Scene { zone, memory, volume };
    assert!(plain(scene.detach(), "bad") == [2; 3 * BLOCK]);
}

/// The frame must not stand above what is newer.
#[test]
fn what_the_disk_takes_later_is_what_is_read() {
    for way in ["synced", "written out", "written out and cut"] {
        let scene = Scene::with_bad_sector(1);
        scene.write("bad", 0, &[2; 3 * BLOCK]).unwrap();
        scene.volume.checkpoint().unwrap();
        assert_eq!(scene.refused(), 1);
        scene.memory.refuse(0..0);
        let handle = scene.open("bad");
        scene.volume.write(&Caller::root(), handle, 0, &[3; 3 * BLOCK]).unwrap();
        if way == "synced" {
            scene.volume.fsync(handle, false).unwrap();
        }
        scene.volume.syncfs().unwrap();
        scene.volume.release(handle).unwrap();
        if way != "synced" {
            assert_eq!(scene.refused(), 0, "{way}");
        }
        let scene = if way == "written out and cut" { scene.cut() } else { scene };
        assert!(scene.read("bad") == [3; 3 * BLOCK], "{way}");
        assert!(plain(scene.detach(), "bad") == [3; 3 * BLOCK], "{way}");
    }
}

/// Its block is another's then, who must not find what was in it.
#[test]
fn a_refused_block_that_is_freed_is_given_out_without_what_was_in_it() {
    for is_cut in [false, true] {
        let scene = Scene::with_bad_sector(1);
        scene.write("bad", 0, &[2; 3 * BLOCK]).unwrap();
        scene.volume.checkpoint().unwrap();
        let bad = scene.find(&[2; BLOCK]) + BLOCK as u64;
        scene.volume.unlink(&Caller::root(), ROOT_INO, b"bad").unwrap();
        scene.volume.syncfs().unwrap();
        assert_eq!(scene.refused(), 0);
        scene.memory.refuse(0..0);
        let scene = if is_cut { scene.cut() } else { scene };
        // Until the block is used again; nothing of it is in the log then.
        let mut n = 0;
        while scene.memory.image()[bad as usize] != 7 {
            let handle = scene.open(&format!("next-{n}"));
            scene.volume.write(&Caller::root(), handle, 0, &[7; 16 * BLOCK]).unwrap();
            scene.volume.release(handle).unwrap();
            scene.volume.syncfs().unwrap();
            n += 1;
        }
        let scene = if is_cut { scene.cut() } else { scene };
        for n in 0..n {
            assert!(scene.read(&format!("next-{n}")) == [7; 16 * BLOCK], "{n}, {is_cut}");
        }
        scene.detach();
    }
}

/// What is too much for NVM waits in the log, as before, and everybody is told when that is full.
#[test]
fn a_disk_that_refuses_everything_is_an_error() {
    let scene = Scene::new();
    scene.write("file", 0, &[1; BLOCK]).unwrap();
    scene.memory.refuse(0..u64::MAX);
    let mut synced = 0;
    let error = loop {
        match scene.write(&format!("file-{synced}"), 0, &[2; 64 << 10]) {
            Ok(()) => synced += 1,
            Err(error) => break error,
        }
        assert!(synced < 1000);
    };
    assert!(matches!(error, Error::Io(_)), "{error}");
    assert!(scene.volume.checkpoint().is_err());
    // Nothing was given up.
    scene.memory.refuse(0..0);
    scene.volume.checkpoint().unwrap();
    assert_eq!(scene.refused(), 0);
    for n in 0..synced {
        assert!(scene.read(&format!("file-{n}")) == [2; 64 << 10], "{n}");
    }
    scene.detach();
}

/// One sector below one file kept everything from being synced that had not been written before.
#[test]
fn what_cannot_be_written_of_one_file_keeps_no_other_from_being_synced() {
    let scene = Scene::with_bad_sector(1);
    let write = |name: &str, bytes: &[u8]| {
        let handle = scene.open(name);
        assert_eq!(scene.volume.write(&Caller::root(), handle, 0, bytes).unwrap(), bytes.len());
        scene.volume.release(handle).unwrap();
    };
    write("bad", &[2; 5 * BLOCK]);
    for n in 0..20 {
        write(&format!("other-{n}"), &[n; 10 * BLOCK]);
    }
    // In the ordinary way, what is mapped is what the disk has taken, and nothing lies behind the end.
    assert!(matches!(scene.volume.write_out_all(), Err(Error::Io(_))));
    scene.volume.commit_all().unwrap();
    let cut = scene.cut();
    assert!(ext::check_volume(&cut.volume).unwrap().is_clean());
    let expected = [vec![2; BLOCK], vec![1; BLOCK], vec![2; BLOCK]].concat();
    assert!(cut.read("bad") == expected);
    assert!((0..20).all(|n| cut.read(&format!("other-{n}")) == [n; 10 * BLOCK]));
    // What it refuses has been synced, too: the log has it, and then a frame.
    write("other-3", &[99; 10 * BLOCK]);
    scene.volume.syncfs().unwrap();
    let cut = scene.cut();
    assert!(cut.read("bad") == [2; 5 * BLOCK] && cut.read("other-3") == [99; 10 * BLOCK]);
    scene.volume.checkpoint().unwrap();
    assert_eq!(scene.refused(), 1);
    assert!(plain(scene.detach(), "bad") == [2; 5 * BLOCK]);
}

/// More than an fsync hands to the log, new and where it is already.
#[test]
fn a_large_file_with_a_sector_that_cannot_be_written_is_synced() {
    const LENGTH: usize = 400 * BLOCK;
    for is_new in [false, true] {
        let scene = Scene::new();
        let name = if is_new { "new" } else { "there" };
        scene.write("there", 0, &[1; LENGTH]).unwrap();
        scene.volume.checkpoint().unwrap();
        let there = scene.find(&[1; LENGTH]);
        // What comes next is put behind it.
        let bad = there + if is_new { LENGTH + 200 * BLOCK } else { 200 * BLOCK } as u64;
        scene.memory.refuse(bad..bad + 512);
        scene.write(name, 0, &[2; LENGTH]).unwrap();
        scene.volume.checkpoint().unwrap();
        assert_eq!(scene.refused(), 1, "{name}");
        let scene = scene.cut();
        assert!(ext::check_volume(&scene.volume).unwrap().is_clean());
        assert!(plain(scene.detach(), name) == [2; LENGTH], "{name}");
    }
}

/// Where frames are few, metadata goes to the disk. What is refused of it waits in its frame, and others' go on.
#[test]
fn a_block_of_metadata_that_cannot_be_written_keeps_nobody_from_committing() {
    let image = Image::make("16M", &["-t", "ext4", "-b", "4096"]);
    let told = support::run("dumpe2fs", &[&image.path.display().to_string()]);
    let table = told.split("Inode table at ").nth(1).unwrap().split('-').next().unwrap();
    let table: u64 = table.parse::<u64>().unwrap() * BLOCK as u64;
    let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
    let memory = Arc::new(Memory::new(image.bytes(), false));
    let disk = Arc::new(Disk::over("disk".into(), memory.clone()));
    ext::attach_within(&region, &disk, Some(Room { frames: 16, half_bytes: 256 << 10 })).unwrap();
    let scene = Scene { volume: mount(&zone, &memory), zone, memory };
    let root = Caller::root();
    // The first inodes of files are there, those of the directories among them.
    scene.memory.refuse(table..table + BLOCK as u64);
    for n in 0..40 {
        let dir = scene.volume.mkdir(&root, ROOT_INO, format!("dir-{n}").as_bytes(), 0o755).unwrap();
        scene.volume.mkdir(&root, dir.ino, b"inside", 0o755).unwrap();
        scene.volume.syncfs().unwrap();
    }
    let scene = scene.cut();
    assert!(ext::check_volume(&scene.volume).unwrap().is_clean());
    scene.detach();
}

/// A power cut came before the disk had what the log had of the block: older bytes would stand above that.
#[test]
fn what_the_disk_takes_in_a_replay_is_what_is_read() {
    let scene = Scene::with_bad_sector(1);
    scene.write("bad", BLOCK as u64, &[2; BLOCK]).unwrap();
    scene.volume.checkpoint().unwrap();
    assert_eq!(scene.refused(), 1);
    scene.write("bad", BLOCK as u64, &[3; BLOCK]).unwrap();
    scene.memory.refuse(0..0);
    let scene = scene.cut();
    assert!(scene.read("bad") == [vec![1; BLOCK], vec![3; BLOCK], vec![1; BLOCK]].concat());
    assert_eq!(scene.refused(), 0);
    drop(scene.detach());
}

/// A power cut came before the log was emptied that says so.
#[test]
fn a_refused_block_that_is_freed_is_so_in_a_replay() {
    let scene = Scene::with_bad_sector(1);
    scene.write("bad", BLOCK as u64, &[2; BLOCK]).unwrap();
    scene.volume.checkpoint().unwrap();
    assert_eq!(scene.refused(), 1);
    scene.volume.unlink(&Caller::root(), ROOT_INO, b"bad").unwrap();
    scene.volume.commit_all().unwrap();
    assert_eq!(scene.cut().refused(), 0);
}
