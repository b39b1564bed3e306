//! What follows an operation fails: the operation is done, and what follows is done later.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

use disk::{Device, Disk, Geometry, Memory};
use ext::{Options, Volume};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use rustix::io::Errno;
use vfs::{Caller, Error, FallocateMode, FileSystem, OpenFlags, ROOT_INO, RenameFlags, SetAttr};

use crate::support::Image;

/// A disk that is away behind so many reads.
struct Fading {
    memory: Memory,
    reads: AtomicI64,
    /// A place that can never be read, if it is not 0.
    bad: AtomicU64,
}

impl Fading {
    fn stays(&self) {
        self.reads.store(i64::MAX, SeqCst);
    }

    fn check(&self) -> io::Result<()> {
        if self.reads.load(SeqCst) < 0 { Err(Errno::NODEV.into()) } else { Ok(()) }
    }
}

impl Device for Fading {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.reads.fetch_sub(1, SeqCst);
        self.check()?;
        let bad = self.bad.load(SeqCst);
        let bytes: u64 = into.iter().map(|part| part.len() as u64).sum();
        if bad != 0 && (at..at + bytes).contains(&bad) {
            return Err(Errno::IO.into());
        }
        self.memory.read(at, into)
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], durable: bool) -> io::Result<()> {
        self.check()?;
        self.memory.write(at, from, durable)
    }

    fn flush(&self) -> io::Result<()> {
        self.check()
    }
}

struct Scene {
    region: Region,
    device: Arc<Fading>,
    disk: Arc<Disk>,
}

impl Scene {
    /// Names, each of a file of so many bytes in blocks.
    fn new(size: &str, files: &[(&[u8], u64)]) -> Scene {
        let image = Image::make(size, &["-t", "ext4", "-b", "1024"]);
        let memory = Memory::new(std::fs::read(&image.path).unwrap(), false);
        let device = Arc::new(Fading { memory, reads: AtomicI64::new(i64::MAX), bad: AtomicU64::new(0) });
        let disk = Arc::new(Disk::over("disk".into(), device.clone()));
        let zone = Zone::anonymous(24 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("disk", VolumeKind::Ext, Some(16 << 20)).unwrap();
        let scene = Scene { region, device, disk };
        let volume = scene.attach();
        for (name, bytes) in files {
            let flags = OpenFlags::READ | OpenFlags::WRITE;
            let made = volume.create(&Caller::root(), ROOT_INO, name, 0o644, flags).unwrap();
            volume.fallocate(&Caller::root(), made.handle, FallocateMode::empty(), 0, *bytes).unwrap();
            volume.release(made.handle).unwrap();
        }
        volume.detach().unwrap();
        scene
    }

    /// Nothing of the disk is in NVM.
    fn attach(&self) -> Volume {
        ext::attach(&self.region, &self.disk).unwrap();
        Volume::mount(&self.region, self.disk.clone(), &Options::default()).unwrap()
    }

    /// The disk does not take back what is not finished; it is finished by that, or before, when the disk is there again.
    fn finishes(&self, volume: &Volume, free: u64) {
        assert!(matches!(volume.detach(), Err(ext::Error::Volume(Error::Io(_)))));
        self.device.stays();
        volume.detach().unwrap();
        assert_eq!(volume.statfs().unwrap().blocks_free, free);
        Image::of(&self.device.memory.image()).fsck();
    }
}

/// `unlink`, `rename` over a name, and `close` said `EIO` of what was done, and the files that had lost their names kept their space.
#[test]
fn a_name_is_gone_whether_its_file_can_be_removed_or_not() {
    let scene = Scene::new("40M", &[(b"kept", 1 << 20)]);
    let free = {
        let volume = scene.attach();
        volume.detach().unwrap();
        volume.statfs().unwrap().blocks_free
    };
    let volume = scene.attach();
    let (root, flags) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
    for name in [&b"one"[..], b"other", b"open"] {
        let made = volume.create(&root, ROOT_INO, name, 0o644, flags).unwrap();
        volume.fallocate(&root, made.handle, FallocateMode::empty(), 0, 8 << 20).unwrap();
        volume.release(made.handle).unwrap();
    }
    volume.detach().unwrap();
    drop(volume);

    let volume = scene.attach();
    for name in [&b"one"[..], b"other"] {
        // DRAM has something of them: then they are not removed in the operation that takes the name.
        let ino = volume.lookup(&root, ROOT_INO, name).unwrap().ino;
        let handle = volume.open(&root, ino, flags).unwrap();
        volume.write(&root, handle, 0, b"new bytes").unwrap();
        volume.release(handle).unwrap();
    }
    volume.lookup(&root, ROOT_INO, b"kept").unwrap();
    let ino = volume.lookup(&root, ROOT_INO, b"open").unwrap().ino;
    let open = volume.open(&root, ino, flags).unwrap();
    volume.unlink(&root, ROOT_INO, b"open").unwrap();
    let before = volume.statfs().unwrap().blocks_free;
    scene.device.reads.store(-1, SeqCst);
    volume.unlink(&root, ROOT_INO, b"one").unwrap();
    volume.rename(&root, ROOT_INO, b"kept", ROOT_INO, b"other", RenameFlags::empty()).unwrap();
    volume.release(open).unwrap();
    assert_eq!(volume.statfs().unwrap().blocks_free, before, "nothing was left to be freed");
    for gone in [&b"one"[..], b"kept"] {
        assert_eq!(volume.lookup(&root, ROOT_INO, gone).unwrap_err(), Error::NotFound);
    }
    scene.finishes(&volume, free);
}

/// `truncate` said `EIO` when it had cut the file, and not freed all of what it had.
#[test]
fn a_file_is_cut_whether_all_it_had_can_be_freed_or_not() {
    let scene = Scene::new("128M", &[(b"large", 100 << 20)]);
    let mut were_left = 0;
    for reads in 0.. {
        let volume = scene.attach();
        let large = volume.lookup(&Caller::root(), ROOT_INO, b"large").unwrap();
        let before = volume.statfs().unwrap().blocks_free;
        scene.device.reads.store(reads, SeqCst);
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        let cut = volume.setattr(&Caller::root(), large.ino, &cut, None).map(|attr| attr.size);
        scene.device.reads.fetch_min(-1, SeqCst);
        let now = volume.getattr(large.ino).unwrap();
        assert_eq!(now.size, if cut.is_ok() { 0 } else { large.size }, "behind {reads} reads: {cut:?}");
        if cut.is_err() {
            scene.device.stays();
            volume.detach().unwrap();
            continue;
        }
        were_left += u32::from(now.blocks > 0);
        if now.blocks > 0 {
            scene.finishes(&volume, before + large.blocks / 2);
        }
        break;
    }
    assert_eq!(were_left, 1, "nothing was left to be freed");
}

/// A disk of which a place can never be read is given back all the same; that it has errors is said, and e2fsck mends them.
#[test]
fn a_bad_place_does_not_keep_a_disk_from_being_detached() {
    // Its blocks are in all groups.
    let scene = Scene::new("32M", &[(b"large", 20 << 20)]);
    // Where the blocks of the second group are told of.
    let image = Image::of(&scene.device.memory.image());
    let told = crate::support::run("dumpe2fs", &[&image.path.display().to_string()]);
    let mut bitmaps = told.lines().filter_map(|line| line.trim().strip_prefix("Block bitmap at "));
    let second = bitmaps.nth(1).and_then(|rest| rest.split([' ', ',']).next()).unwrap();
    let volume = scene.attach();
    let (root, flags) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
    let ino = volume.lookup(&root, ROOT_INO, b"large").unwrap().ino;
    let handle = volume.open(&root, ino, flags).unwrap();
    volume.write(&root, handle, 0, b"new bytes").unwrap();
    volume.release(handle).unwrap();
    scene.device.bad.store(second.parse::<u64>().unwrap() * 1024, SeqCst);
    volume.unlink(&root, ROOT_INO, b"large").unwrap();
    volume.detach().unwrap();
    drop(volume);
    scene.device.bad.store(0, SeqCst);
    assert!(ext::info(&scene.disk).unwrap().has_errors);
    let image = Image::of(&scene.device.memory.image());
    let mended = std::process::Command::new("e2fsck").arg("-fy").arg(&image.path).output().unwrap();
    assert_eq!(mended.status.code(), Some(1), "{}", String::from_utf8_lossy(&mended.stdout));
    image.fsck();
}
