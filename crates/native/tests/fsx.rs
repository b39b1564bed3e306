//! One file, hammered: the file-system exerciser's operations, in process, beside a copy of the file in memory. After
//! each operation the bytes it could have touched are read back, and now and then all of them; the volume is
//! remounted on the way, cleanly and as after a kill. 15 seeds of 20,000 operations.

use crate::volumes::*;
use native::Durability;
use vfs::{Caller, Error, FallocateMode, FileSystem, Handle, Ino, ROOT_INO, SeekFrom, SetAttr};

/// Offsets stay below: a file that crosses from inode pointers to direct nodes (at 768 KiB).
const LENGTH_MAX: u64 = 1 << 20;
const SEEDS: u64 = 15;
const OPERATIONS: u64 = 20_000;

struct Exercise {
    caller: Caller,
    file: Vec<u8>,
    random: Random,
    /// What was done last, for a failure's report.
    last: String,
}

impl Exercise {
    /// A range of at most 64 KiB (mostly far less), aligned now and then.
    fn range(&mut self) -> (u64, u64) {
        let length = match self.random.below(4) {
            0 => self.random.below(64) + 1,
            1 => self.random.below(4096) + 1,
            _ => self.random.below(64 << 10) + 1,
        };
        let offset = self.random.below(LENGTH_MAX - length);
        match self.random.below(4) {
            0 => (offset & !4095, length.next_multiple_of(4096).min(LENGTH_MAX - (offset & !4095))),
            _ => (offset, length),
        }
    }

    fn grow(&mut self, end: u64) {
        if self.file.len() < end as usize {
            self.file.resize(end as usize, 0);
        }
    }

    fn step(&mut self, volume: &dyn FileSystem, ino: Ino, handle: Handle) {
        let (offset, length) = self.range();
        let range = offset as usize..(offset + length) as usize;
        let choice = self.random.below(16);
        self.last = format!("operation {choice} at {offset}, {length} bytes, of {}", self.file.len());
        match choice {
            0..=5 => {
                let data = self.random.bytes(length as usize);
                assert_eq!(
                    volume.write(&self.caller, handle, offset, &data),
                    Ok(data.len()),
                    "{}",
                    self.last
                );
                self.grow(offset + length);
                self.file[range].copy_from_slice(&data);
            }
            6 | 7 => {
                let size = self.random.below(LENGTH_MAX);
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                let attr = volume.setattr(&self.caller, ino, &set, Some(handle)).unwrap();
                assert_eq!(attr.size, size);
                self.file.resize(size as usize, 0);
            }
            8 | 9 => {
                let punches = choice == 8;
                let mode = if punches { FallocateMode::PUNCH_HOLE } else { FallocateMode::ZERO_RANGE };
                let mode = mode | FallocateMode::KEEP_SIZE;
                volume.fallocate(&self.caller, handle, mode, offset, length).unwrap();
                let end = range.end.min(self.file.len());
                self.file[range.start.min(end)..end].fill(0);
            }
            10 => {
                volume.fallocate(&self.caller, handle, FallocateMode::empty(), offset, length).unwrap();
                self.grow(offset + length);
            }
            11 => self.copy(volume, handle, offset, length),
            12 => volume.fsync(handle, self.random.below(2) == 0).unwrap(),
            13 => self.seek(volume, handle, offset),
            _ => {}
        }
        self.read(volume, handle, offset, length);
    }

    fn copy(&mut self, volume: &dyn FileSystem, handle: Handle, from: u64, length: u64) {
        let to = self.random.below(LENGTH_MAX - length);
        let there = (self.file.len() as u64).saturating_sub(from).min(length);
        let copied = volume.copy_file_range(&self.caller, handle, from, handle, to, length);
        if there > 0 && to < from + there && from < to + there {
            assert_eq!(copied, Err(Error::Invalid), "ranges overlap");
            return;
        }
        assert_eq!(copied, Ok(there), "{}", self.last);
        if there > 0 {
            self.grow(to + there);
            self.file.copy_within(from as usize..(from + there) as usize, to as usize);
            self.read(volume, handle, to, there);
        }
    }

    /// What a hole says is zero, is zero.
    fn seek(&mut self, volume: &dyn FileSystem, handle: Handle, offset: u64) {
        match volume.seek(handle, SeekFrom::Data(offset)) {
            Ok(data) => assert!(nvm::is_zero(&self.file[offset as usize..data as usize])),
            Err(Error::NoSuchOffset) => {
                let rest = self.file.get(offset as usize..).unwrap_or_default();
                assert!(nvm::is_zero(rest), "{}", self.last);
            }
            Err(error) => panic!("{error}: {}", self.last),
        }
    }

    fn read(&self, volume: &dyn FileSystem, handle: Handle, offset: u64, length: u64) {
        let mut bytes = vec![0xee; length as usize];
        let read = volume.read(handle, offset, &mut bytes).unwrap();
        let end = self.file.len().min((offset + length) as usize);
        let expected = self.file.get(offset as usize..end).unwrap_or_default();
        assert_eq!(read, expected.len(), "{}", self.last);
        assert!(bytes[..read] == *expected, "bytes differ after {}", self.last);
    }
}

fn exercise(seed: u64) {
    let durability = DURABILITIES[seed as usize % 3];
    let (_zone, region) = made(64 << 20);
    let mut volume = mount(&region, durability);
    let caller = Caller::root();
    let file = volume.create(&caller, ROOT_INO, b"f", 0o644, RW).unwrap();
    let (ino, mut handle) = (file.attr.ino, file.handle);
    let mut it = Exercise { caller, file: Vec::new(), random: Random(seed + 1), last: String::new() };
    for n in 1..=OPERATIONS {
        it.step(&volume, ino, handle);
        if n % 500 == 0 {
            it.read(&volume, handle, 0, LENGTH_MAX);
        }
        if n % 5_000 == 0 {
            if n % 10_000 == 0 || durability == Durability::Snapshot {
                volume.close().unwrap();
                drop(volume);
            } else {
                volume.fsync(handle, false).unwrap();
                volume.abandon();
            }
            assert_sound(&region);
            volume = mount(&region, durability);
            handle = volume.open(&it.caller, ino, RW).unwrap();
            it.read(&volume, handle, 0, LENGTH_MAX);
        }
    }
}

#[test]
fn fifteen_seeds() {
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || (0..SEEDS).filter(|seed| seed % 2 == half).for_each(exercise));
        }
    });
}
