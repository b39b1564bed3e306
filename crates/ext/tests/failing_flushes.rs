//! A disk that fails to flush has lost what was written since the last time, and says of the next flush that all is well, as a kernel does whose page
//! cache could not be written: what a volume had from there stays.

use std::io::{Error, IoSlice, IoSliceMut, Result};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::support::Image;
use disk::{Device, Disk, Geometry, Memory};
use ext::{Options, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, FileSystem, Handle, OpenFlags, ROOT_INO};

const BLOCK: usize = 4096;
const EIO: i32 = 5;

/// A disk with a cache.
struct Cached {
    memory: Memory,
    cache: Mutex<Vec<(u64, Vec<u8>)>>,
    /// The next flush fails, and the cache is lost.
    fails: AtomicBool,
}

impl Cached {
    fn new(image: Vec<u8>) -> Arc<Cached> {
        Arc::new(Cached {
            memory: Memory::new(image, false),
            cache: Mutex::default(),
            fails: AtomicBool::new(false),
        })
    }
}

impl Device for Cached {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> Result<()> {
        let mut image = self.memory.image();
        for (at, bytes) in &*self.cache.lock().unwrap() {
            image[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        Memory::new(image, false).read(at, into)
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], _durable: bool) -> Result<()> {
        let bytes: Vec<u8> = from.iter().flat_map(|part| part.iter().copied()).collect();
        let refused = self.memory.refused();
        if at < refused.end && refused.start < at + bytes.len() as u64 {
            return Err(Error::from_raw_os_error(EIO));
        }
        self.cache.lock().unwrap().push((at, bytes));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let written = std::mem::take(&mut *self.cache.lock().unwrap());
        if self.fails.swap(false, Relaxed) {
            return Err(Error::from_raw_os_error(EIO));
        }
        written.iter().try_for_each(|(at, bytes)| self.memory.write(*at, &[IoSlice::new(bytes)], false))
    }
}

struct Scene {
    zone: Zone,
    disk: Arc<Cached>,
    volume: Volume,
}

impl Scene {
    fn new() -> Scene {
        let image = Image::make("16M", &["-t", "ext4", "-b", "4096"]);
        let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
        let disk = Cached::new(image.bytes());
        ext::attach(&region, &Arc::new(Disk::over("disk".into(), disk.clone()))).unwrap();
        Scene::mount(zone, disk)
    }

    fn mount(zone: Zone, disk: Arc<Cached>) -> Scene {
        let over = Arc::new(Disk::over("disk".into(), disk.clone()));
        let volume = Volume::mount(&zone.volume("disk").unwrap(), over, &Options::default()).unwrap();
        Scene { zone, disk, volume }
    }

    /// The same behind a power cut now.
    fn cut(&self) -> Scene {
        let zone = Zone::from_bytes(&self.zone.snapshot_image(), &OpenOptions::default()).unwrap();
        Scene::mount(zone, Cached::new(self.disk.memory.image()))
    }

    fn open(&self) -> Handle {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        self.volume.create(&Caller::root(), ROOT_INO, b"file", 0o644, flags).unwrap().handle
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let handle = self.open();
        assert_eq!(self.volume.write(&Caller::root(), handle, at as u64, bytes).unwrap(), bytes.len());
        self.volume.release(handle).unwrap();
    }

    fn fsync(&self) {
        let handle = self.open();
        self.volume.fsync(handle, false).unwrap();
        self.volume.release(handle).unwrap();
    }

    fn contents(&self) -> Vec<u8> {
        let handle = self.open();
        let mut bytes = vec![0; 16 * BLOCK];
        let length = self.volume.read(handle, 0, &mut bytes).unwrap();
        self.volume.release(handle).unwrap();
        bytes.truncate(length);
        bytes
    }
}

#[test]
fn the_log_keeps_what_a_flush_has_lost() {
    let scene = Scene::new();
    scene.write(0, &[1; 5 * BLOCK]);
    scene.fsync();
    scene.disk.fails.store(true, Relaxed);
    assert!(scene.volume.checkpoint().is_err());
    assert!(scene.cut().contents() == [1; 5 * BLOCK]);
    scene.volume.checkpoint().unwrap();
    assert!(scene.cut().contents() == [1; 5 * BLOCK]);
}

#[test]
fn what_a_flush_has_lost_is_written_again() {
    let scene = Scene::new();
    scene.write(0, &[1; 5 * BLOCK]);
    scene.disk.fails.store(true, Relaxed);
    assert!(scene.volume.write_out_all().is_err());
    scene.volume.commit_all().unwrap();
    assert!(scene.cut().contents().is_empty(), "no length covers what is not there");
    scene.fsync();
    assert!(scene.cut().contents() == [1; 5 * BLOCK]);
}

/// The disk had taken it.
#[test]
fn what_the_disk_refused_stays_if_a_flush_has_lost_it() {
    let scene = Scene::new();
    scene.write(0, &[1; BLOCK]);
    scene.fsync();
    scene.volume.checkpoint().unwrap();
    let image = scene.disk.memory.image();
    let at = image.chunks(BLOCK).position(|block| block == [1; BLOCK]).unwrap() * BLOCK;
    scene.disk.memory.refuse(at as u64..(at + 512) as u64);
    scene.write(0, &[2; BLOCK]);
    scene.fsync();
    scene.volume.checkpoint().unwrap();
    assert_eq!(scene.volume.stats().blocks_refused, 1);
    scene.disk.memory.refuse(0..0);
    scene.disk.fails.store(true, Relaxed);
    scene.volume.checkpoint().unwrap();
    assert!(!scene.disk.fails.load(Relaxed), "it was offered again");
    assert_eq!(scene.volume.stats().blocks_refused, 1);
    assert!(scene.cut().contents() == [2; BLOCK]);
    scene.volume.checkpoint().unwrap();
    assert_eq!(scene.volume.stats().blocks_refused, 0);
    assert!(scene.cut().contents() == [2; BLOCK]);
}
