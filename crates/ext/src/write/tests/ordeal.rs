//! Random changes of files beside what they should be; in the end e2fsck and the kernel judge.

use std::sync::atomic::{AtomicBool, Ordering};

use vfs::{Caller, Error, FallocateMode, FileSystem, Handle, OpenFlags, SeekFrom};

use super::{FILES, Machine, RW, number, open};
use crate::support::{self, Image};
use crate::volume::Volume;

const LONGEST: u64 = 900 << 10;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    /// Mostly small, seldom as large as `limit`.
    fn length(&mut self, limit: u64) -> u64 {
        let bits = 64 - limit.leading_zeros() as u64;
        let limit = limit.min(1 << self.below(bits + 1));
        self.below(limit.max(1)) + 1
    }
}

struct Ordeal {
    seed: u64,
    step: u64,
    random: Random,
    /// The name of its first file.
    first: usize,
    files: Vec<Vec<u8>>,
}

impl Ordeal {
    fn new(seed: u64, first: usize) -> Ordeal {
        Ordeal { seed, step: 0, random: Random(seed), first, files: vec![Vec::new(); FILES] }
    }

    fn handle(&self, volume: &Volume, n: usize, flags: OpenFlags) -> Handle {
        open(volume, self.first + n, flags)
    }

    fn range(&mut self) -> (u64, u64) {
        let offset = self.random.length(LONGEST) - 1;
        (offset, self.random.length(LONGEST - offset))
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        let mut byte = self.random.below(255) as u8;
        let mut next = || {
            byte = byte.wrapping_mul(5).wrapping_add(3);
            byte | 1
        };
        (0..length).map(|_| next()).collect()
    }

    /// One change or look at one file, through a handle of its own.
    fn step(&mut self, volume: &Volume) {
        self.step += 1;
        let n = self.random.below(FILES as u64) as usize;
        let (offset, length) = self.range();
        let range = offset as usize..(offset + length) as usize;
        let root = Caller::root();
        match self.random.below(20) {
            0..6 => {
                let bytes = self.bytes(length);
                let handle = self.handle(volume, n, RW);
                assert_eq!(volume.write(&root, handle, offset, &bytes), Ok(bytes.len()));
                volume.release(handle).unwrap();
                let file = &mut self.files[n];
                file.resize(file.len().max(range.end), 0);
                file[range].copy_from_slice(&bytes);
            }
            6 if (self.files[n].len() as u64) < LONGEST => {
                let bytes = self.bytes(length.min(20_000));
                let handle = self.handle(volume, n, RW | OpenFlags::APPEND);
                assert_eq!(volume.write(&root, handle, 0, &bytes), Ok(bytes.len()));
                volume.release(handle).unwrap();
                self.files[n].extend(&bytes);
            }
            7 | 8 => {
                let number = self.number(volume, n);
                volume.cut_file(&root, &volume.files.get(number), offset).unwrap();
                self.files[n].resize(offset as usize, 0);
            }
            9 if self.random.below(4) == 0 => {
                volume.release(self.handle(volume, n, RW | OpenFlags::TRUNCATE)).unwrap();
                self.files[n].clear();
            }
            10..13 => self.allocate(volume, n, offset, length),
            13 => {
                let m = self.random.below(FILES as u64) as usize;
                let to = self.random.length(LONGEST - length) - 1;
                let (from, sink) = (self.handle(volume, n, RW), self.handle(volume, m, RW));
                let result = volume.copy_file_range(&root, from, offset, sink, to, length);
                let copied =
                    &self.files[n][range.start.min(self.files[n].len())..range.end.min(self.files[n].len())];
                let overlaps =
                    n == m && offset < to + copied.len() as u64 && to < offset + copied.len() as u64;
                if overlaps && !copied.is_empty() {
                    assert_eq!(result, Err(Error::Invalid));
                } else {
                    assert_eq!(result, Ok(copied.len() as u64));
                    let (copied, to) = (copied.to_vec(), to as usize);
                    if !copied.is_empty() {
                        let file = &mut self.files[m];
                        file.resize(file.len().max(to + copied.len()), 0);
                        file[to..to + copied.len()].copy_from_slice(&copied);
                    }
                }
                volume.release(from).unwrap();
                volume.release(sink).unwrap();
            }
            14 => {
                let handle = self.handle(volume, n, OpenFlags::READ);
                let mut buffer = vec![0xEE; length as usize];
                let read = volume.read(handle, offset, &mut buffer).unwrap();
                let file = &self.files[n];
                assert!(buffer[..read] == file[range.start.min(file.len())..range.end.min(file.len())]);
                self.seek(volume, n, handle, offset);
                volume.release(handle).unwrap();
            }
            15 | 16 => {
                let handle = self.handle(volume, n, RW);
                volume.fsync(handle, false).unwrap();
                volume.release(handle).unwrap();
            }
            17 if self.random.below(4) == 0 => volume.write_out_all().unwrap(),
            18 if self.random.below(4) == 0 => volume.syncfs().unwrap(),
            19 if self.random.below(4) == 0 => {
                volume.commit_all().unwrap();
                volume.home.as_ref().unwrap().checkpoint(volume).unwrap();
            }
            _ => {}
        }
        let number = self.number(volume, n);
        assert_eq!(volume.attr(number).unwrap().size, self.files[n].len() as u64, "{}", self.at());
    }

    fn number(&self, volume: &Volume, n: usize) -> u32 {
        number(volume, self.first + n)
    }

    fn allocate(&mut self, volume: &Volume, n: usize, offset: u64, length: u64) {
        let (keep, punch) = (FallocateMode::KEEP_SIZE, FallocateMode::PUNCH_HOLE);
        let modes = [
            FallocateMode::empty(),
            keep,
            keep | punch,
            keep | punch,
            FallocateMode::ZERO_RANGE,
            keep | FallocateMode::ZERO_RANGE,
        ];
        let mode = modes[self.random.below(6) as usize];
        let handle = self.handle(volume, n, RW);
        volume.fallocate(&Caller::root(), handle, mode, offset, length).unwrap();
        volume.release(handle).unwrap();
        let (file, end) = (&mut self.files[n], (offset + length) as usize);
        if !mode.contains(keep) {
            file.resize(file.len().max(end), 0);
        }
        if mode.intersects(punch | FallocateMode::ZERO_RANGE) {
            let end = end.min(file.len());
            file[(offset as usize).min(end)..end].fill(0);
        }
    }

    /// What is not in data is zeros.
    fn seek(&self, volume: &Volume, n: usize, handle: Handle, offset: u64) {
        let file = &self.files[n];
        let size = file.len() as u64;
        if offset >= size {
            assert_eq!(volume.seek(handle, SeekFrom::Data(offset)), Err(Error::NoSuchOffset));
            return;
        }
        let data = volume.seek(handle, SeekFrom::Data(offset));
        let data = if data == Err(Error::NoSuchOffset) { size } else { data.unwrap() };
        assert!(nvm::is_zero(&file[offset as usize..data as usize]), "{}", self.at());
        let hole = volume.seek(handle, SeekFrom::Hole(data.min(size - 1))).unwrap();
        assert!(hole <= size);
        let next = volume.seek(handle, SeekFrom::Data(hole.min(size - 1))).unwrap_or(size);
        assert!(hole == size || nvm::is_zero(&file[hole as usize..next as usize]), "{}", self.at());
    }

    fn compare(&self, volume: &Volume) {
        for (n, file) in self.files.iter().enumerate() {
            let handle = self.handle(volume, n, OpenFlags::READ);
            let mut buffer = vec![0xEE; file.len() + 10];
            let read = volume.read(handle, 0, &mut buffer).unwrap();
            assert_eq!(read, file.len(), "length of {n}, {}", self.at());
            let differs = file.iter().zip(&buffer).position(|(one, other)| one != other);
            assert_eq!(differs, None, "byte of file {n}, {}", self.at());
            volume.release(handle).unwrap();
        }
    }

    fn at(&self) -> String {
        format!("seed {}, step {}", self.seed, self.step)
    }
}

fn seed() -> u64 {
    std::env::var("AMBERFS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11)
}

/// `rounds` of a mount each. Each ends as a crash does, behind a `syncfs` or an `fsync` of each file; or in a detach, behind which e2fsck finds
/// nothing and the kernel reads what was written.
fn ordeal(options: &[&str], rounds: u64) {
    let mut ordeal = Ordeal::new(seed(), 0);
    let mut machine = Machine::new(options);
    for round in 0..rounds {
        let volume = machine.mount();
        ordeal.compare(&volume);
        for step in 0..400 {
            ordeal.step(&volume);
            if step % 50 == 0 {
                ordeal.compare(&volume);
            }
        }
        match round % 3 {
            0 => volume.syncfs().unwrap(),
            1 => {
                for n in 0..FILES {
                    let handle = ordeal.handle(&volume, n, RW);
                    volume.fsync(handle, true).unwrap();
                    volume.release(handle).unwrap();
                }
            }
            _ => {
                volume.detach().unwrap();
                assert_eq!(volume.files.all().len(), 0, "nothing is left in DRAM");
                drop(volume);
                let image = Image::of(&machine.image());
                image.fsck();
                if support::can_mount() {
                    let mounted = image.mount("ro");
                    for (n, file) in ordeal.files.iter().enumerate() {
                        let found = std::fs::read(mounted.dir.join(n.to_string())).unwrap();
                        assert!(found == *file, "file {n}, {}", ordeal.at());
                    }
                }
                crate::attach(&machine.region(), &machine.disk).unwrap();
                continue;
            }
        }
        machine = machine.crashed();
        drop(volume);
    }
}

const ROUNDS: u64 = 6;

#[test]
fn extents() {
    ordeal(&["-t", "ext4", "-b", "4096", "-O", "metadata_csum"], ROUNDS);
    ordeal(&["-t", "ext4", "-b", "1024", "-O", "metadata_csum"], ROUNDS);
    ordeal(&["-t", "ext4", "-b", "2048", "-O", "^metadata_csum"], ROUNDS);
}

#[test]
fn block_maps() {
    ordeal(&["-t", "ext2", "-b", "1024"], ROUNDS);
    ordeal(&["-t", "ext3", "-b", "4096"], ROUNDS);
    ordeal(&["-t", "ext2", "-b", "2048"], ROUNDS);
}

/// Two threads change files of their own, two others write everything out, commit and drain.
#[test]
fn threads_beside_each_other() {
    let machine = Machine::new(&["-t", "ext4", "-b", "1024"]);
    let volume = machine.mount();
    let mut ordeals = [Ordeal::new(seed(), 0), Ordeal::new(seed() + 1, FILES)];
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let changing: Vec<_> = ordeals
            .iter_mut()
            .map(|ordeal| threads.spawn(|| (0..2000).for_each(|_| ordeal.step(&volume))))
            .collect();
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                volume.write_out_all().unwrap();
            }
        });
        threads.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                volume.home.as_ref().unwrap().checkpoint(&volume).unwrap();
                volume.commit_all().unwrap();
            }
        });
        let ended: Vec<_> = changing.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    ordeals.iter().for_each(|ordeal| ordeal.compare(&volume));
    volume.syncfs().unwrap();
    let crashed = machine.crashed();
    ordeals.iter().for_each(|ordeal| ordeal.compare(&crashed.mount()));
    volume.detach().unwrap();
    Image::of(&machine.image()).fsck();
}
