//! Contents of files on disks that are cut, full, or fail; random changes are in [`ordeal`].

mod ordeal;
mod scarcity;

use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::{Disk, Purpose};
use nvm::{OpenOptions as ZoneOptions, Region, VolumeKind, Zone};
use vfs::{Caller, Error, FallocateMode, FileSystem, Handle, OpenFlags, ROOT_INO, SetAttr};

use crate::core::inode;
use crate::options::Options;
use crate::support::{self, Image};
use crate::volume::Volume;

const FILES: usize = 5;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// A disk in DRAM that is attached to NVM in DRAM.
struct Machine {
    zone: Zone,
    disk: Arc<Disk>,
}

/// What mke2fs makes, with some empty files.
fn made(size: &str, options: &[&str]) -> Image {
    let source = tempfile::tempdir().unwrap();
    (0..2 * FILES).for_each(|n| std::fs::write(source.path().join(n.to_string()), "").unwrap());
    let from = source.path().display().to_string();
    Image::make(size, &[options, &["-d", &from]].concat())
}

impl Machine {
    fn new(options: &[&str]) -> Machine {
        Machine::of(Arc::new(Disk::memory(made("48M", options).bytes())))
    }

    fn of(disk: Arc<Disk>) -> Machine {
        let zone = Zone::anonymous(64 << 20, &ZoneOptions::default()).unwrap();
        zone.create_volume("disk", VolumeKind::Ext, Some(48 << 20)).unwrap();
        let machine = Machine { zone, disk };
        crate::attach(&machine.region(), &machine.disk).unwrap();
        machine
    }

    fn region(&self) -> Region {
        self.zone.volume("disk").unwrap()
    }

    fn mount(&self) -> Volume {
        // Little room for pages, so that writers wait.
        let options = Options { page_bytes: 256 << 10, ..Options::default() };
        Volume::mount(&self.region(), self.disk.clone(), &options).unwrap()
    }

    /// The machine as it is after a crash at this moment.
    fn crashed(&self) -> Machine {
        let zone = Zone::from_bytes(&self.zone.snapshot_image(), &ZoneOptions::default()).unwrap();
        Machine { zone, disk: Arc::new(Disk::memory(self.image())) }
    }

    fn image(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.disk.bytes() as usize];
        self.disk.read(disk::Purpose::Data, 0, &mut bytes).unwrap();
        bytes
    }
}

fn number(volume: &Volume, n: usize) -> u32 {
    let attr = volume.lookup(&Caller::root(), ROOT_INO, n.to_string().as_bytes()).unwrap();
    inode::from_vfs(&volume.core.superblock, attr.ino).unwrap()
}

fn open(volume: &Volume, n: usize, flags: OpenFlags) -> Handle {
    let attr = volume.lookup(&Caller::root(), ROOT_INO, n.to_string().as_bytes()).unwrap();
    volume.open(&Caller::root(), attr.ino, flags).unwrap()
}

/// The log keeps bytes of two transactions, and only the first is durable when it is drained: the page goes to the disk all the same.
#[test]
fn a_page_that_is_logged_again_is_drained() {
    let machine = Machine::new(&["-t", "ext4", "-b", "4096"]);
    let volume = machine.mount();
    let handle = open(&volume, 0, RW);
    volume.write(&Caller::root(), handle, 0, b"first").unwrap();
    volume.fsync(handle, true).unwrap();
    volume.write(&Caller::root(), handle, 500, b"second").unwrap();
    volume.collect(&volume.files.get(number(&volume, 0))).unwrap();
    volume.home.as_ref().unwrap().checkpoint(&volume).unwrap();
    let crashed = machine.crashed().mount();
    let mut found = [0; 5];
    crashed.read(open(&crashed, 0, RW), 0, &mut found).unwrap();
    assert_eq!(&found, b"first");
    volume.release(handle).unwrap();
}

/// Whatever lies behind a file's end on the disk, it is zeros when the file grows.
#[test]
fn what_lies_behind_the_end_is_zeros() {
    let machine = Machine::new(&["-t", "ext4", "-b", "4096"]);
    let volume = machine.mount();
    for grows in 0..3 {
        let n = grows;
        let handle = open(&volume, n, RW);
        volume.write(&Caller::root(), handle, 0, &[7; 3000]).unwrap();
        volume.write_out_all().unwrap();
        volume.commit_all().unwrap();
        let inode = inode::read(&volume.core, number(&volume, n)).unwrap();
        let block = crate::map::block(&volume.core, &inode, 0).unwrap().unwrap();
        machine.disk.write(disk::Purpose::Data, block * 4096, &[9; 4096]).unwrap();
        volume.core.store.clean.forget(block); // as if it had been there before
        let root = Caller::root();
        match grows {
            0 => drop(volume.write(&root, handle, 3500, &[7; 10]).unwrap()),
            1 => drop(volume.write(&root, handle, 9000, &[7; 10]).unwrap()),
            _ => volume.cut_file(&root, &volume.files.get(inode.number), 6000).unwrap(),
        }
        // What is logged is enough for that.
        volume.fsync(handle, false).unwrap();
        let crashed = machine.crashed().mount();
        for volume in [&volume, &crashed] {
            let mut found = vec![1; 4096];
            let read = volume.read(open(volume, n, RW), 0, &mut found).unwrap();
            assert_eq!(found[..3000], [9; 3000], "what was on the disk");
            assert!(nvm::is_zero(&found[3000..read.min(3500)]), "way {grows}");
        }
        volume.release(handle).unwrap();
    }
}

/// More than one operation frees is freed in several, whoever unlinks the file meanwhile.
#[test]
fn large_files_are_cut_in_steps() {
    let image = made("8G", &["-t", "ext4", "-b", "4096"]);
    let machine = Machine::of(image.disk(false));
    let volume = machine.mount();
    let root = Caller::root();
    let free = || volume.statfs().unwrap().blocks_free;
    let before = free();
    for n in 0..4 {
        let handle = open(&volume, n, RW);
        volume.fallocate(&root, handle, FallocateMode::empty(), 0, 1 << 30).unwrap();
        let name = n.to_string();
        std::thread::scope(|threads| {
            if n > 0 {
                threads.spawn(|| volume.unlink(&root, ROOT_INO, name.as_bytes()).unwrap());
            }
            if n < 3 {
                volume
                    .cut_file(&root, &volume.files.get(volume.handles.get(handle).unwrap().0.number), 10)
                    .unwrap();
            }
        });
        volume.release(handle).unwrap();
    }
    assert_eq!(free(), before - 1);
    volume.detach().unwrap();
    drop(volume);
    image.fsck();
}

/// A crash shows no length that covers what had not been written.
#[test]
fn a_length_waits_for_its_bytes() {
    let machine = Machine::new(&["-t", "ext4", "-b", "4096"]);
    let volume = machine.mount();
    let handle = open(&volume, 0, RW);
    let root = Caller::root();
    let file = volume.files.get(number(&volume, 0));
    let size_behind_crash = || {
        volume.commit_all().unwrap();
        machine.crashed().mount().attr(file.number).unwrap().size
    };
    volume.write(&root, handle, 0, &[7; 5000]).unwrap();
    assert_eq!((volume.attr(file.number).unwrap().size, size_behind_crash()), (5000, 0));
    volume.cut_file(&root, &file, 9000).unwrap();
    assert_eq!((volume.attr(file.number).unwrap().size, size_behind_crash()), (9000, 0));
    volume.write_out_all().unwrap();
    assert_eq!(size_behind_crash(), 9000);
    volume.cut_file(&root, &file, 20_000).unwrap();
    assert_eq!(size_behind_crash(), 20_000, "nothing is to be waited for");
    volume.release(handle).unwrap();
}

/// A full disk refuses what it has no room for, keeps all that it took, and takes as much again when that is gone.
#[test]
fn a_full_disk() {
    for options in [["-t", "ext4", "-b", "1024"], ["-t", "ext2", "-b", "1024"]] {
        let machine = Machine::new(&options);
        let volume = machine.mount();
        let root = Caller::root();
        let mut taken = Vec::new();
        for round in 0..3 {
            let handle = open(&volume, 0, RW);
            let mut at = 0;
            for piece in [300 << 10, 10 << 10, 1] {
                let bytes = vec![round as u8 + 1; piece];
                loop {
                    match volume.write(&root, handle, at, &bytes) {
                        Ok(length) => at += length as u64,
                        Err(error) => break assert_eq!(error, Error::NoSpace),
                    }
                }
            }
            let attr = volume.attr(number(&volume, 0)).unwrap();
            assert_eq!(attr.size, at, "a write that failed has changed nothing");
            assert_eq!(
                volume.fallocate(&root, handle, FallocateMode::empty(), at, 10 << 20),
                Err(Error::NoSpace)
            );
            assert_eq!(volume.attr(number(&volume, 0)).unwrap().size, at);
            volume.syncfs().unwrap();
            let mut found = vec![0; at as usize];
            assert_eq!(volume.read(handle, 0, &mut found), Ok(at as usize));
            assert!(found.iter().all(|byte| *byte == round as u8 + 1));
            taken.push(at);
            volume.cut_file(&root, &volume.files.get(number(&volume, 0)), 0).unwrap();
            volume.release(handle).unwrap();
            assert_eq!(volume.core.space.promised(), 0);
        }
        assert!(taken.iter().all(|at| *at > 20 << 20 && *at >= taken[0] - (64 << 10)), "{taken:?}");
        volume.detach().unwrap();
        Image::of(&machine.image()).fsck();
    }
}

/// A disk that fails loses nothing that was written before: it is written when the disk is back, and until then `fsync` says so.
#[test]
fn a_disk_that_fails_and_is_back() {
    let image = made("48M", &["-t", "ext4", "-b", "4096"]);
    let memory = Arc::new(disk::Memory::new(image.bytes(), false));
    let machine = Machine::of(Arc::new(Disk::over("memory".into(), memory.clone())));
    let volume = machine.mount();
    let root = Caller::root();
    let handle = open(&volume, 0, RW);
    let bytes: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
    volume.write(&root, handle, 0, &bytes).unwrap();
    memory.vanish(true);
    assert!(matches!(volume.write_out_all(), Err(Error::Io(_))));
    assert!(matches!(volume.write_out_all(), Err(Error::Io(_))), "and again");
    let mut found = vec![0; bytes.len()];
    assert_eq!(volume.read(handle, 0, &mut found), Ok(bytes.len()));
    assert!(found == bytes);
    memory.vanish(false);
    volume.write_out_all().unwrap();
    volume.release(handle).unwrap();
    assert!(volume.files.all().is_empty(), "the disk has it");
    volume.detach().unwrap();
    let image = Image::of(&machine.image());
    image.fsck();
    if support::can_mount() {
        assert!(std::fs::read(image.mount("ro").dir.join("0")).unwrap() == bytes);
    }
}

/// All that fills the pages was offered to the disk with each write, block by block: a minute for 160 MiB that it would not have.
#[test]
fn a_disk_that_refuses_all_is_let_rest() {
    let memory = Arc::new(disk::Memory::new(made("48M", &["-t", "ext4", "-b", "1024"]).bytes(), false));
    let machine = Machine::of(Arc::new(Disk::over("memory".into(), memory.clone())));
    let volume = machine.mount();
    let (root, handle, mebibyte) = (Caller::root(), open(&volume, 0, RW), vec![1; 1 << 20]);
    memory.refuse(0..48 << 20);
    let mut writes = (0..).map(|n| volume.write(&root, handle, n << 20, &mebibyte));
    let refused = writes.find_map(Result::err).unwrap();
    assert!(matches!(refused, Error::Io(_)), "{refused:?}");
    let offered = || volume.disk().account().of(Purpose::Data).writes;
    let before = offered();
    assert!(writes.by_ref().take(5).all(|written| written.as_ref() == Err(&refused)));
    assert_eq!(offered(), before);
    memory.refuse(0..0);
    std::thread::sleep(Duration::from_secs(5));
    writes.next().unwrap().unwrap();
    assert!(offered() > before);
    volume.release(handle).unwrap();
    volume.detach().unwrap();
    Image::of(&machine.image()).fsck();
}

/// A file that seems to have a bitmap is not written: not a byte of the bitmap changes, and a neighbour is written as ever.
#[test]
fn a_file_does_not_have_the_file_systems_own_structures() {
    let machine = Machine::new(&["-t", "ext2", "-b", "1024"]);
    let volume = machine.mount();
    let root = Caller::root();
    let inos = ["0", "1"].map(|name| volume.lookup(&root, ROOT_INO, name.as_bytes()).unwrap().ino);
    let bitmap = crate::core::group::read(&volume.core, 0).unwrap().blocks.block;
    let before = volume.core.store.read(crate::kind::Kind::Bitmap, bitmap, |_| Ok(())).unwrap().to_vec();
    let changed = volume.change(|core| {
        let mut inode = inode::read(core, inos[0] as u32)?;
        crate::map::insert(core, &mut inode, 0, bitmap, 1, true)?;
        inode.size = 1024;
        inode::write(core, &inode)
    });
    changed.unwrap();
    let [damaged, sound] = inos.map(|ino| volume.open(&root, ino, RW).unwrap());
    let error = volume.write(&root, damaged, 0, &[0; 1024]).unwrap_err();
    assert!(error.to_string().contains("own structures"), "{error}");
    volume.write(&root, sound, 0, &[1; 1024]).unwrap();
    volume.syncfs().unwrap();
    let mut after = vec![0; 1024];
    machine.disk.read(disk::Purpose::Data, bitmap * 1024, &mut after).unwrap();
    assert_eq!(before, after);
}

/// What is written in sequence goes to the disk in large requests, and syncing a little writes nothing there.
#[test]
fn requests_are_large_or_none() {
    let machine = Machine::new(&["-t", "ext4", "-b", "4096"]);
    let volume = Volume::mount(&machine.region(), machine.disk.clone(), &Options::default()).unwrap();
    let root = Caller::root();
    let handle = open(&volume, 0, RW);
    let written = || machine.disk.account().of(disk::Purpose::Data);
    let before = written();
    for n in 0..128 {
        volume.write(&root, handle, n * (128 << 10), &[n as u8; 128 << 10]).unwrap();
    }
    volume.write_out_all().unwrap();
    let (writes, bytes) = (written().writes - before.writes, written().bytes_written - before.bytes_written);
    assert_eq!(bytes, 16 << 20, "each byte once");
    assert!(writes <= 24, "{writes} requests for 16 MiB");
    let before = written();
    for n in 0..100 {
        volume.write(&root, handle, n * 100, b"a little").unwrap();
        volume.fsync(handle, true).unwrap();
    }
    assert_eq!(written().writes, before.writes);
    volume.release(handle).unwrap();
}

/// Where a map cannot say that blocks are unwritten, `fallocate` set the length first: a file that could not have all of that was a hole to there.
#[test]
fn a_file_with_pointers_grows_as_far_as_it_is_allocated() {
    let image = made("48M", &["-t", "ext2", "-b", "1024"]);
    let disk = Arc::new(disk::Memory::new(image.bytes(), false));
    let machine = Machine::of(Arc::new(Disk::over("memory".into(), disk.clone())));
    let volume = machine.mount();
    let (root, handle) = (Caller::root(), open(&volume, 0, RW));
    volume.write(&root, handle, 0, &[7; 1500]).unwrap();
    volume.fsync(handle, false).unwrap();
    disk.vanish(true);
    let failed = volume.fallocate(&root, handle, FallocateMode::empty(), 1000, 10 << 20);
    assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
    disk.vanish(false);
    let attr = |volume: &Volume| volume.lookup(&root, ROOT_INO, b"0").unwrap();
    let size = attr(&volume).size;
    assert!((1500..10 << 20).contains(&size), "{size}");
    volume.fsync(handle, false).unwrap();
    assert!(attr(&volume).blocks * 512 >= size, "{:?}", attr(&volume));
    // It is let rest for a while.
    let until = Instant::now() + Duration::from_secs(60);
    while volume.fallocate(&root, handle, FallocateMode::empty(), 1000, 10 << 20).is_err() {
        assert!(Instant::now() < until, "it stays refused");
        std::thread::sleep(Duration::from_millis(10));
    }
    volume.fsync(handle, false).unwrap();
    assert!(attr(&volume).blocks * 512 >= 10 << 20, "{:?}", attr(&volume));
    let mut found = vec![1; 1000 + (10 << 20)];
    assert_eq!(volume.read(handle, 0, &mut found), Ok(found.len()));
    assert!(found[..1500] == [7; 1500] && nvm::is_zero(&found[1500..]));
    volume.release(handle).unwrap();
}

/// The length of the first piece was the disk's before its blocks were.
#[test]
fn what_is_allocated_by_pointers_is_there_before_the_length_is() {
    let machine = Machine::new(&["-t", "ext2", "-b", "1024"]);
    let volume = machine.mount();
    let (root, allocated, other) = (Caller::root(), open(&volume, 0, RW), open(&volume, 1, RW));
    volume.fallocate(&root, allocated, FallocateMode::empty(), 100, 200 << 10).unwrap();
    volume.write(&root, other, 0, &[7; 100]).unwrap();
    volume.fsync(other, false).unwrap();
    let left = machine.crashed();
    let recovered = left.mount();
    let attr = recovered.lookup(&root, ROOT_INO, b"0").unwrap();
    assert!(attr.blocks * 512 + 1024 > attr.size, "{attr:?}");
    volume.fsync(allocated, false).unwrap();
    let attr = volume.lookup(&root, ROOT_INO, b"0").unwrap();
    assert!(attr.size == 100 + (200 << 10) && attr.blocks * 512 >= 200 << 10, "{attr:?}");
    [allocated, other].into_iter().for_each(|handle| volume.release(handle).unwrap());
}

/// What was allocated within a file that somebody cut meanwhile lay behind its end.
#[test]
fn a_file_is_cut_while_it_is_allocated() {
    let machine = Machine::new(&["-t", "ext2", "-b", "1024"]);
    let volume = machine.mount();
    let root = Caller::root();
    let resize = |ino, size| {
        volume.setattr(&root, ino, &SetAttr { size: Some(size), ..SetAttr::default() }, None).unwrap();
    };
    for n in 0..2 * FILES {
        let ino = volume.lookup(&root, ROOT_INO, n.to_string().as_bytes()).unwrap().ino;
        resize(ino, 5 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let handle = open(&volume, n, RW);
                volume.fallocate(&root, handle, FallocateMode::KEEP_SIZE, 0, 5 << 20).unwrap();
                volume.release(handle).unwrap();
            });
            let blocks = || volume.getattr(ino).unwrap().blocks;
            while blocks() == 0 {
                std::thread::yield_now();
            }
            resize(ino, 100);
        });
    }
    volume.detach().unwrap();
    Image::of(&machine.image()).fsck();
}
