//! What operations are done to: inodes, names, modes, ranges.

use super::Torture;
use super::known::Name;
use crate::{FileSystem, Ino, OpenFlags, ROOT_INO};

const MODES: [u32; 13] =
    [0o777, 0o777, 0o755, 0o775, 0o700, 0o1777, 0o2775, 0o666, 0o644, 0o600, 0o4755, 0o6755, 0];

impl Torture {
    /// An inode of any kind.
    pub(super) fn inode(&mut self) -> Ino {
        self.known.some_inode(&mut self.random)
    }

    /// A directory; seldom something else.
    pub(super) fn directory(&mut self) -> Ino {
        if self.random.one_in(40) { self.inode() } else { self.known.some_directory(&mut self.random) }
    }

    pub(super) fn live_directory(&mut self) -> Ino {
        let dir = self.known.some_directory(&mut self.random);
        if self.model.getattr(dir).is_ok_and(|attr| attr.nlink > 0) { dir } else { ROOT_INO }
    }

    /// A name that may or may not be there.
    pub(super) fn name(&mut self) -> (Ino, Name) {
        if self.random.one_in(6) {
            // Makes the root wide.
            return (ROOT_INO, format!("wide-{}", self.random.within(0..3000)).into_bytes().into());
        }
        let dir = self.directory();
        let number = self.random.within(0..12);
        let name = match self.random.within(0..10) {
            0 => format!("{number:0>255}").into_bytes(),
            1 => [b"\xff\xfe \n\\".as_slice(), &[number as u8 + 1]].concat(),
            2 => format!("ein längerer Name – {number}").into_bytes(),
            3..=6 => format!("n{number}").into_bytes(),
            _ => format!("a file's ordinary name.{number}").into_bytes(),
        };
        (dir, name.into())
    }

    /// An entry that is there, if any is.
    pub(super) fn entry(&mut self) -> (Ino, Name) {
        while !self.known.entries.is_empty() {
            let at = self.random.within(0..self.known.entries.len() as u64) as usize;
            let (dir, name) = &self.known.entries[at];
            if self.model.lookup(&self.callers[0], *dir, name).is_ok() {
                return (*dir, name.clone());
            }
            self.known.entries.swap_remove(at);
        }
        self.name()
    }

    pub(super) fn mode(&mut self) -> u32 {
        if self.random.one_in(10) { self.random.within(0..0o10000) as u32 } else { self.random.of(&MODES) }
    }

    pub(super) fn open_flags(&mut self) -> OpenFlags {
        let access = self.random.weighted(&[
            (6, OpenFlags::READ | OpenFlags::WRITE),
            (2, OpenFlags::READ),
            (2, OpenFlags::WRITE),
            (2, OpenFlags::READ | OpenFlags::WRITE | OpenFlags::APPEND),
        ]);
        let extra = self.random.weighted(&[
            (12, OpenFlags::empty()),
            (1, OpenFlags::SYNC),
            (1, OpenFlags::DSYNC),
            (1, OpenFlags::UNLINKABLE),
        ]);
        access | extra
    }

    /// An offset in the file or not far beyond; seldom far.
    pub(super) fn offset(&mut self, ino: Ino) -> u64 {
        let size = self.model.getattr(ino).map_or(0, |attr| attr.size);
        let offset = match self.random.within(0..16) {
            0..=2 => 0,
            3..=5 => size,
            6..=9 => self.random.within(0..size + 1),
            10..=11 => self.random.within(0..size + 1) & !4095,
            12 => (size & !4095) + self.random.of(&[4095, 4096, 4097]),
            13..=14 => size + self.random.within(0..100_000),
            _ if self.random.one_in(6) => self.random.within(0..self.limits.file_bytes),
            _ => self.random.within(0..40_000),
        };
        // Far beyond nothing must be left of a range that starts here.
        offset.min(self.limits.file_bytes)
    }

    pub(super) fn len(&mut self) -> usize {
        let (low, high) = self.random.weighted(&[
            (10, (1, 200)),
            (6, (200, 4096)),
            (3, (4090, 4102)),
            (2, (4096, 4097)),
            (4, (4096, 20_000)),
            (2, (20_000, 70_000)),
            (1, (70_000, 300_000)),
        ]);
        self.random.within(low..high) as usize
    }
}
