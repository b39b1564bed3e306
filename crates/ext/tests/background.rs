//! Threads that use a volume while others commit, empty its log and write out its pages; with little room for all of it, so that they meet.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::Image;
use crate::support::random::Random;
use disk::{Device, Disk, Geometry, Memory};
use ext::{Background, Options, Volume};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use vfs::{Caller, Error, FileSystem, Ino, OpenFlags, ROOT_INO, RenameFlags, SetAttr};

const FLAGS: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

struct Scene {
    region: Region,
    memory: Arc<Memory>,
    disk: Arc<Disk>,
}

impl Scene {
    fn new(options: &[&str]) -> Scene {
        let image = Image::make("48M", options);
        let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
        let memory = Arc::new(Memory::new(image.bytes(), false));
        let disk = Arc::new(Disk::over("disk".into(), memory.clone()));
        ext::attach(&region, &disk).unwrap();
        Scene { region, memory, disk }
    }

    fn mount(&self) -> Arc<Volume> {
        let options = Options { page_bytes: 1 << 20, synced_bytes: 1 << 20, ..Options::default() };
        Arc::new(Volume::mount(&self.region, self.disk.clone(), &options).unwrap())
    }

    /// Fails unless neither e2fsck nor our own check finds anything on the detached disk.
    fn fsck(&self) {
        Image::of(&self.memory.image()).fsck();
        let found = ext::check(self.disk.clone(), &Options::default()).unwrap();
        assert!(found.is_clean(), "{:#?}", found.findings);
    }
}

/// One who uses a directory of his own, and knows what is in it.
struct User {
    dir: Ino,
    random: Random,
    files: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl User {
    fn new(volume: &Volume, number: u64) -> User {
        let name = format!("user-{number}").into_bytes();
        let dir = volume.mkdir(&Caller::root(), ROOT_INO, &name, 0o755).unwrap().ino;
        User { dir, random: Random::new(number), files: BTreeMap::new() }
    }

    fn step(&mut self, volume: &Volume) -> Result<(), Error> {
        let root = Caller::root();
        let name = format!("file-{}", self.random.below(12)).into_bytes();
        match self.random.below(10) {
            0 => {
                if self.files.contains_key(&name) {
                    volume.unlink(&root, self.dir, &name)?;
                    self.files.remove(&name);
                }
            }
            1 => {
                let other = format!("file-{}", self.random.below(12)).into_bytes();
                if self.files.contains_key(&name) && name != other {
                    volume.rename(&root, self.dir, &name, self.dir, &other, RenameFlags::empty())?;
                    let bytes = self.files.remove(&name).unwrap();
                    self.files.insert(other, bytes);
                }
            }
            2 => {
                if let Some(bytes) = self.files.get_mut(&name) {
                    let size = self.random.below(1 + bytes.len() as u64 * 3 / 2).min(400_000);
                    let ino = volume.lookup(&root, self.dir, &name)?.ino;
                    let set = SetAttr { size: Some(size), ..SetAttr::default() };
                    volume.setattr(&root, ino, &set, None)?;
                    bytes.resize(size as usize, 0);
                }
            }
            kind => {
                let handle = match volume.lookup(&root, self.dir, &name) {
                    Ok(attr) => volume.open(&root, attr.ino, FLAGS)?,
                    Err(_) => volume.create(&root, self.dir, &name, 0o644, FLAGS)?.handle,
                };
                let bytes = self.files.entry(name).or_default();
                let at = self.random.below(1 + bytes.len() as u64).min(300_000) as usize;
                let length = match self.random.below(4) {
                    0 => 1 + self.random.below(60_000),
                    _ => 1 + self.random.below(6_000),
                } as usize;
                let new = vec![self.random.below(255) as u8 + 1; length];
                let written = volume.write(&root, handle, at as u64, &new).map(|written| {
                    assert_eq!(written, length);
                    bytes.resize(bytes.len().max(at + length), 0);
                    bytes[at..at + length].copy_from_slice(&new);
                });
                let synced = if kind < 8 { volume.fsync(handle, false) } else { Ok(()) };
                let mut found = vec![0; bytes.len() + 1];
                let read = volume.read(handle, 0, &mut found);
                volume.release(handle).unwrap();
                written?;
                assert_eq!(read?, bytes.len());
                assert!(found[..bytes.len()] == **bytes, "what was written is read");
                synced?;
            }
        }
        Ok(())
    }

    fn compare(&self, volume: &Volume) {
        let root = Caller::root();
        let mut names = Vec::new();
        volume
            .readdir(self.dir, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            })
            .unwrap();
        names.retain(|name| name != b"." && name != b"..");
        names.sort();
        assert!(names.iter().eq(self.files.keys()), "the names are right");
        for (name, bytes) in &self.files {
            let attr = volume.lookup(&root, self.dir, name).unwrap();
            let handle = volume.open(&root, attr.ino, OpenFlags::READ).unwrap();
            let mut found = vec![0; bytes.len() + 1];
            assert_eq!(volume.read(handle, 0, &mut found).unwrap(), bytes.len());
            assert!(found[..bytes.len()] == **bytes, "{}", String::from_utf8_lossy(name));
            volume.release(handle).unwrap();
        }
    }
}

/// Three of them at a time.
fn use_it(volume: &Volume, users: &mut [User], steps: u64) {
    std::thread::scope(|scope| {
        for user in users {
            scope.spawn(move || (0..steps).for_each(|_| user.step(volume).unwrap()));
        }
    });
}

fn lives(options: &[&str]) {
    let scene = Scene::new(options);
    let volume = scene.mount();
    let mut users: Vec<User> = (0..3).map(|number| User::new(&volume, number)).collect();
    let background = Background::begin(&volume, Duration::from_millis(5), |_| {}).unwrap();
    use_it(&volume, &mut users, 1_500);
    users.iter().for_each(|user| user.compare(&volume));
    drop(background);
    volume.unmount().unwrap();
    drop(volume);
    let volume = scene.mount();
    users.iter().for_each(|user| user.compare(&volume));
    let background = Background::begin(&volume, Duration::from_secs(3600), |_| {}).unwrap();
    use_it(&volume, &mut users, 1_500);
    drop(background);
    let stats = volume.stats();
    assert!(stats.pages_synced <= 2 << 20 >> 10, "DRAM is bounded: {stats:?}");
    volume.detach().unwrap();
    drop(volume);
    scene.fsck();
    let plain = Volume::open(scene.disk.clone(), &Options::default()).unwrap();
    users.iter().for_each(|user| user.compare(&plain));
}

#[test]
fn who_uses_ext4_and_who_tends_it_do_not_disturb_each_other() {
    lives(&["-t", "ext4", "-b", "4096"]);
}

#[test]
fn who_uses_ext2_and_who_tends_it_do_not_disturb_each_other() {
    lives(&["-t", "ext2", "-b", "1024"]);
}

/// The disk comes and goes. What is told to have been synced meanwhile is there in the end.
#[test]
fn a_disk_that_comes_and_goes_loses_nothing_that_was_synced() {
    let scene = Scene::new(&["-t", "ext4", "-b", "4096"]);
    let volume = scene.mount();
    let background = Background::begin(&volume, Duration::from_millis(5), |_| {}).unwrap();
    let over = AtomicBool::new(false);
    let root = Caller::root();
    let kept = std::thread::scope(|scope| {
        let users: Vec<_> = (0..2)
            .map(|user| {
                let (volume, over, root) = (&volume, &over, &root);
                scope.spawn(move || {
                    let mut kept: BTreeMap<Vec<u8>, u8> = BTreeMap::new();
                    for n in 0u64.. {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        let name = format!("{user}-{}", n % 40).into_bytes();
                        let made = volume.create(root, ROOT_INO, &name, 0o644, FLAGS);
                        let Ok(made) = made else { continue };
                        let byte = (n % 255) as u8 + 1;
                        let done = volume.write(root, made.handle, 0, &[byte; 9000]);
                        let synced = done.and_then(|_| volume.fsync(made.handle, false));
                        volume.release(made.handle).unwrap();
                        if synced.is_ok() {
                            kept.insert(name, byte);
                        } else {
                            kept.remove(&name);
                        }
                    }
                    kept
                })
            })
            .collect();
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(20));
            scene.memory.vanish(true);
            std::thread::sleep(Duration::from_millis(30));
            scene.memory.vanish(false);
        }
        over.store(true, Ordering::Relaxed);
        users.into_iter().flat_map(|user| user.join().unwrap()).collect::<BTreeMap<_, _>>()
    });
    drop(background);
    volume.syncfs().unwrap();
    volume.detach().unwrap();
    drop(volume);
    scene.fsck();
    let plain = Volume::open(scene.disk.clone(), &Options::default()).unwrap();
    assert!(!kept.is_empty(), "some were synced");
    for (name, byte) in kept {
        let attr = plain.lookup(&root, ROOT_INO, &name).unwrap();
        let handle = plain.open(&root, attr.ino, OpenFlags::READ).unwrap();
        let mut found = vec![0; 9001];
        assert_eq!(plain.read(handle, 0, &mut found).unwrap(), 9000);
        assert!(found[..9000].iter().all(|found| *found == byte), "{}", String::from_utf8_lossy(&name));
    }
}

/// Whoever waited for it to write out pages waited for ever.
#[test]
fn a_thread_that_a_panic_had_ended_was_waited_for() {
    let scene = Scene::new(&["-t", "ext4", "-b", "4096"]);
    let volume = scene.mount();
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, FLAGS).unwrap();
    volume.write(&root, file.handle, 0, &[7; 9000]).unwrap();
    volume.fsync(file.handle, false).unwrap();
    let other = volume.create(&root, ROOT_INO, b"other", 0o644, FLAGS).unwrap().handle;
    scene.memory.refuse(0..u64::MAX);
    volume.checkpoint().unwrap();
    assert!(volume.stats().blocks_refused > 0, "it has something to tell");
    let background = Background::begin(&volume, Duration::from_millis(1), |_| panic!("planted")).unwrap();
    let (said, heard) = std::sync::mpsc::channel();
    let writer = volume.clone();
    std::thread::spawn(move || {
        let written =
            (0..1000).try_for_each(|n| writer.write(&root, other, n << 16, &[8; 1 << 16]).map(drop));
        drop(writer);
        said.send(written).unwrap();
    });
    let written = heard.recv_timeout(Duration::from_secs(20)).expect("nobody waits for who is gone");
    assert!(written.is_err_and(|error| error.to_string().contains("has failed")));
    drop(background);
    assert!(volume.syncfs().is_err());
    drop(volume);
    scene.memory.refuse(0..0);
    let volume = scene.mount();
    let handle = volume.open(&Caller::root(), file.attr.ino, OpenFlags::READ).unwrap();
    let mut found = vec![0; 9001];
    assert_eq!(volume.read(handle, 0, &mut found).unwrap(), 9000);
    assert!(found[..9000] == [7; 9000], "what was synced is there");
    volume.release(handle).unwrap();
    volume.detach().unwrap();
    drop(volume);
    scene.fsck();
}

/// A disk whose flushes wait as long as they are held up.
struct Slow {
    memory: Arc<Memory>,
    is_held: AtomicBool,
    waiting: AtomicBool,
    written: AtomicU64,
}

impl Device for Slow {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.memory.read(at, into)
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], durable: bool) -> io::Result<()> {
        let bytes: usize = from.iter().map(|part| part.len()).sum();
        self.written.fetch_add(bytes as u64, Ordering::SeqCst);
        self.memory.write(at, from, durable)
    }

    fn flush(&self) -> io::Result<()> {
        while self.is_held.load(Ordering::SeqCst) {
            self.waiting.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.memory.flush()
    }
}

/// Who wrote out all files while another one's flush was on its way found the pages changed still, and sent them again.
#[test]
fn pages_on_their_way_to_the_disk_were_sent_again() {
    const BYTES: u64 = 400 << 10;
    let scene = Scene::new(&["-t", "ext4", "-b", "4096"]);
    let slow = Arc::new(Slow {
        memory: scene.memory.clone(),
        is_held: AtomicBool::new(false),
        waiting: AtomicBool::new(false),
        written: AtomicU64::new(0),
    });
    let disk = Arc::new(Disk::over("disk".into(), slow.clone()));
    let volume = Volume::mount(&scene.region, disk, &Options::default()).unwrap();
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, FLAGS).unwrap();
    volume.write(&root, file.handle, 0, &[7; BYTES as usize]).unwrap();
    slow.is_held.store(true, Ordering::SeqCst);
    let before = slow.written.load(Ordering::SeqCst);
    let written = || slow.written.load(Ordering::SeqCst) - before;
    std::thread::scope(|scope| {
        let one = scope.spawn(|| volume.write_out_all());
        while !slow.waiting.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let other = scope.spawn(|| volume.syncfs());
        for _ in 0..200 {
            if written() <= BYTES {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        slow.is_held.store(false, Ordering::SeqCst);
        one.join().unwrap().unwrap();
        other.join().unwrap().unwrap();
    });
    assert_eq!(written(), BYTES);
    volume.release(file.handle).unwrap();
    volume.detach().unwrap();
    scene.fsck();
}
