//! Blocks of files that DRAM keeps as the disk has them: they spare requests, take no more room than they may, and are never older than the disk's.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use crate::support::Image;
use crate::support::random::Random;
use disk::{Device, Disk, Geometry, Memory, Purpose};
use ext::{Options, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, FallocateMode, FileSystem, Handle, OpenFlags, ROOT_INO, SetAttr};

const BLOCK: u64 = 4096;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

struct Scene {
    zone: Zone,
    memory: Arc<Memory>,
    volume: Volume,
}

impl Scene {
    fn new(options: &Options) -> Scene {
        let image = Image::make("64M", &["-t", "ext4", "-b", "4096"]);
        let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
        zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
        let memory = Arc::new(Memory::new(image.bytes(), false));
        ext::attach(&zone.volume("disk").unwrap(), &Scene::disk(&memory)).unwrap();
        let volume = Scene::mount(&zone, &memory, options);
        Scene { zone, memory, volume }
    }

    fn disk(memory: &Arc<Memory>) -> Arc<Disk> {
        Arc::new(Disk::over("disk".into(), memory.clone()))
    }

    fn mount(zone: &Zone, memory: &Arc<Memory>, options: &Options) -> Volume {
        Volume::mount(&zone.volume("disk").unwrap(), Scene::disk(memory), options).unwrap()
    }

    /// Unmounted and mounted: nothing is in DRAM.
    fn remounted(self, options: &Options) -> Scene {
        self.volume.unmount().unwrap();
        let Scene { zone, memory, volume } = self;
        drop(volume);
        let volume = Scene::mount(&zone, &memory, options);
        Scene { zone, memory, volume }
    }

    fn open(&self, name: &str) -> Handle {
        self.volume.create(&Caller::root(), ROOT_INO, name.as_bytes(), 0o644, RW).unwrap().handle
    }

    fn write(&self, file: Handle, at: u64, bytes: &[u8]) {
        assert_eq!(self.volume.write(&Caller::root(), file, at, bytes).unwrap(), bytes.len());
    }

    fn read(&self, file: Handle, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0xEE; length];
        let read = self.volume.read(file, at, &mut bytes).unwrap();
        bytes.truncate(read);
        bytes
    }

    /// Requests for files' bytes that went to the disk while `run` ran.
    fn reads(&self, run: impl FnOnce()) -> u64 {
        let before = self.volume.disk().account().of(Purpose::Data).reads;
        run();
        self.volume.disk().account().of(Purpose::Data).reads - before
    }
}

/// Bytes that tell each block from the others.
fn numbered(blocks: u64) -> Vec<u8> {
    (0..blocks).flat_map(|n| (n + 1).to_le_bytes().repeat(BLOCK as usize / 8)).collect()
}

#[test]
fn what_was_written_or_read_is_not_read_from_the_disk_again() {
    let options = Options::default();
    let scene = Scene::new(&options);
    let file = scene.open("f");
    let bytes = numbered(100);
    scene.write(file, 0, &bytes);
    scene.volume.syncfs().unwrap();
    let whole = |scene: &Scene, file| assert!(scene.read(file, 0, 100 * BLOCK as usize) == bytes);
    assert_eq!(scene.reads(|| whole(&scene, file)), 0, "it has just gone there");
    assert_eq!(scene.volume.stats().clean_hits, 100);
    scene.volume.release(file).unwrap();
    let scene = scene.remounted(&options);
    let file = scene.open("f");
    assert_eq!(scene.reads(|| whole(&scene, file)), 1);
    assert_eq!(scene.reads(|| whole(&scene, file)), 0);
    assert_eq!(scene.volume.stats().clean_misses, 1, "what follows is looked up without being asked for");
    // Parts of blocks, too, and a part of what is there already.
    assert_eq!(scene.reads(|| assert_eq!(scene.read(file, 4090, 20), bytes[4090..4110])), 0);
}

#[test]
fn who_reads_on_is_read_ahead_of_and_who_looks_here_and_there_is_not() {
    let options = Options::default();
    let scene = Scene::new(&options);
    let file = scene.open("f");
    let bytes = numbered(300);
    scene.write(file, 0, &bytes);
    scene.write(file, 300 * BLOCK, b"the end");
    scene.volume.release(file).unwrap();
    let scene = scene.remounted(&options);
    let file = scene.open("f");
    for at in [7u64, 3, 290, 100] {
        let here = (at * BLOCK) as usize;
        let read = || assert_eq!(scene.read(file, at * BLOCK, 100), bytes[here..here + 100]);
        assert_eq!(scene.reads(read), 1);
    }
    assert_eq!(scene.volume.disk().account().of(Purpose::Data).bytes_read, 4 * BLOCK);
    let scene = scene.remounted_keeping(&options, file);
    let file = scene.open("f");
    let reads = scene.reads(|| {
        for at in (0..301 * BLOCK).step_by(BLOCK as usize) {
            let expected = match at / BLOCK {
                300 => b"the end",
                n => &bytes[(n * BLOCK) as usize..][..7],
            };
            assert_eq!(scene.read(file, at, BLOCK as usize)[..7], *expected);
        }
    });
    assert!((9..=12).contains(&reads), "{reads} requests for 301 blocks, 32 ahead of each");
}

impl Scene {
    fn remounted_keeping(self, options: &Options, file: Handle) -> Scene {
        self.volume.release(file).unwrap();
        self.remounted(options)
    }
}

#[test]
fn no_more_is_kept_than_may_be() {
    for (limit, kept) in [(0, 0..=0), (1 << 20, 1 << 19..=1 << 20)] {
        let options = Options { clean_bytes: limit, ..Options::default() };
        let scene = Scene::new(&options);
        let file = scene.open("f");
        for part in 0..16 {
            scene.write(file, part << 20, &numbered(256));
        }
        scene.volume.syncfs().unwrap();
        for part in 0..16 {
            assert!(scene.read(file, part << 20, 1 << 20) == numbered(256));
        }
        let stats = scene.volume.stats();
        assert_eq!(stats.clean_limit_bytes, limit);
        assert!(kept.contains(&stats.clean_bytes), "{stats:?}");
    }
}

/// Everything that changes what the disk has of a file, in any order, with so little room that blocks come and go: what is read is what was written.
#[test]
fn what_is_read_is_what_was_written_whichever_way_it_went() {
    for (seed, clean_bytes) in [(1, 64 << 10), (2, 1 << 20), (3, 64 << 20)] {
        let options = Options { clean_bytes, page_bytes: 256 << 10, ..Options::default() };
        let mut scene = Scene::new(&options);
        let random = &mut Random::new(seed);
        let mut models: Vec<Vec<u8>> = vec![Vec::new(); 4];
        let mut handles: Vec<Handle> = (0..4).map(|n| scene.open(&n.to_string())).collect();
        for step in 0..3000 {
            let n = random.below(4) as usize;
            let (file, model) = (handles[n], &mut models[n]);
            let root = &Caller::root();
            match random.below(20) {
                0..8 => {
                    let (at, length) = (random.below(600_000) as usize, 1 + random.below(20_000) as usize);
                    let bytes = vec![random.below(255) as u8 + 1; length];
                    scene.write(file, at as u64, &bytes);
                    model.resize(model.len().max(at + length), 0);
                    model[at..at + length].copy_from_slice(&bytes);
                }
                8 => {
                    let size = random.below(700_000);
                    let set = SetAttr { size: Some(size), ..SetAttr::default() };
                    let ino = scene.volume.lookup(root, ROOT_INO, n.to_string().as_bytes()).unwrap().ino;
                    scene.volume.setattr(root, ino, &set, Some(file)).unwrap();
                    model.resize(size as usize, 0);
                }
                9 => {
                    let (at, length) = (random.below(600_000), 1 + random.below(50_000));
                    let mode = [
                        FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE,
                        FallocateMode::ZERO_RANGE | FallocateMode::KEEP_SIZE,
                    ][random.below(2) as usize];
                    scene.volume.fallocate(root, file, mode, at, length).unwrap();
                    let end = model.len().min((at + length) as usize);
                    model[(at as usize).min(end)..end].fill(0);
                }
                10 => scene.volume.fsync(file, false).unwrap(),
                11 => scene.volume.write_out_all().unwrap(),
                12 => scene.volume.checkpoint().unwrap(),
                13 if random.below(4) == 0 => {
                    scene.volume.release(file).unwrap();
                    scene.volume.unlink(root, ROOT_INO, n.to_string().as_bytes()).unwrap();
                    handles[n] = scene.open(&n.to_string());
                    model.clear();
                }
                14 if random.below(20) == 0 => {
                    handles.drain(..).for_each(|handle| scene.volume.release(handle).unwrap());
                    scene = scene.remounted(&options);
                    handles = (0..4).map(|n| scene.open(&n.to_string())).collect();
                }
                _ => {
                    let (at, length) = (random.below(700_000), 1 + random.below(100_000) as usize);
                    let from = model.len().min(at as usize);
                    let expected = &model[from..model.len().min(from + length)];
                    assert!(scene.read(file, at, length) == *expected, "seed {seed}, step {step}");
                }
            }
            let stats = scene.volume.stats();
            assert!(stats.clean_bytes <= clean_bytes);
        }
        handles.into_iter().for_each(|handle| scene.volume.release(handle).unwrap());
        assert!(scene.volume.stats().clean_hits > 0);
        scene.volume.detach().unwrap();
        Image::of(&scene.memory.image()).fsck();
    }
}

/// Of a block that could not be written it is not certain what the disk has: what is read is what was synced, from NVM.
#[test]
fn what_the_disk_refuses_is_not_what_it_had_before() {
    let scene = Scene::new(&Options::default());
    let file = scene.open("bad");
    scene.write(file, 0, &[1; 3 * BLOCK as usize]);
    scene.volume.syncfs().unwrap();
    assert_eq!(scene.read(file, 0, 20_000), [1; 3 * BLOCK as usize]);
    let image = scene.memory.image();
    let at =
        image.chunks(BLOCK as usize).position(|block| block == [1; BLOCK as usize]).unwrap() as u64 * BLOCK;
    scene.memory.refuse(at + BLOCK..at + BLOCK + 512);
    for fill in [2, 3] {
        scene.write(file, 0, &[fill; 3 * BLOCK as usize]);
        scene.volume.fsync(file, false).unwrap();
        scene.volume.checkpoint().unwrap();
        assert_eq!(scene.volume.stats().blocks_refused, 1);
        for _ in 0..2 {
            assert_eq!(scene.read(file, 0, 20_000), [fill; 3 * BLOCK as usize]);
        }
    }
    scene.memory.refuse(0..0);
    scene.write(file, BLOCK, &[4; BLOCK as usize]);
    scene.volume.syncfs().unwrap();
    assert_eq!(scene.read(file, BLOCK, 4096), [4; BLOCK as usize]);
}

/// A disk of which a range cannot be read.
struct Scratched {
    memory: Arc<Memory>,
    bad: Range<u64>,
}

impl Device for Scratched {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let length: usize = into.iter().map(|part| part.len()).sum();
        if at < self.bad.end && self.bad.start < at + length as u64 {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.memory.read(at, into)
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], durable: bool) -> io::Result<()> {
        self.memory.write(at, from, durable)
    }

    fn flush(&self) -> io::Result<()> {
        self.memory.flush()
    }
}

/// Who read one block behind the other missed all those that were read ahead together with a bad one.
#[test]
fn a_bad_sector_took_what_was_read_with_it_along() {
    let scene = Scene::new(&Options::default());
    let file = scene.open("file");
    scene.write(file, 0, &numbered(64));
    scene.volume.release(file).unwrap();
    scene.volume.unmount().unwrap();
    let Scene { zone, memory, volume } = scene;
    drop(volume);
    let wanted = numbered(64);
    let image = memory.image();
    let block = BLOCK as usize;
    let at = image.chunks(block).position(|found| *found == wanted[40 * block..41 * block]).unwrap() as u64
        * BLOCK;
    let scratched = Arc::new(Scratched { memory, bad: at..at + 512 });
    for clean_bytes in [0, 64 << 10, 256 << 20] {
        let options = Options { clean_bytes, ..Options::default() };
        let disk = Arc::new(Disk::over("disk".into(), scratched.clone()));
        let volume = Volume::mount(&zone.volume("disk").unwrap(), disk, &options).unwrap();
        let ino = volume.lookup(&Caller::root(), ROOT_INO, b"file").unwrap().ino;
        let file = volume.open(&Caller::root(), ino, RW).unwrap();
        let mut bytes = vec![0; block];
        for n in 0..64 {
            let read = volume.read(file, n * BLOCK, &mut bytes);
            assert_eq!(read.is_err(), n == 40, "block {n} with {clean_bytes} bytes of DRAM");
            let at = n as usize * block;
            assert!(n == 40 || bytes[..] == wanted[at..at + block], "block {n}");
        }
        volume.release(file).unwrap();
        volume.unmount().unwrap();
    }
}
