//! Bytes of files, as they are below pages: on the disk, in DRAM as the disk has them, or in NVM because it refuses them; and where a journal has
//! newer ones, those.

use disk::{Buffer, Purpose};
use vfs::Result;

use super::{Logged, Store};
use crate::error::io;
use crate::home::Frames;

/// Bytes that are asked of the disk at once.
const REQUEST_MAX: usize = 1 << 20;

impl Store {
    /// Reads bytes of a file from `offset` in block `number` on, which are all on the disk or [clean](Clean) in DRAM, by who has the file's lock. The
    /// first `ahead` blocks behind them are the file's, too, and may be read with them.
    pub(crate) fn read_data(&self, number: u64, offset: u64, into: &mut [u8], ahead: u64) -> Result<()> {
        if !self.clean.has_room() {
            return self.read_through(Purpose::Data, number, offset, into);
        }
        let block = self.block as usize;
        let (mut number, mut offset) = (number + offset / self.block, (offset % self.block) as usize);
        let mut rest = into;
        while !rest.is_empty() {
            let here = rest.len().min(block - offset);
            if let Some(bytes) = self.clean.get(number) {
                let (part, behind) = rest.split_at_mut(here);
                part.copy_from_slice(&bytes[offset..offset + here]);
                (rest, number, offset) = (behind, number + 1, 0);
                continue;
            }
            let asked = ((offset + rest.len()).div_ceil(block)).min(REQUEST_MAX / block) as u64;
            let is_missing = |n: &u64| !self.clean.has(number + n);
            let missing = 1 + (1..asked).take_while(is_missing).count() as u64;
            // Before what is here nothing more is wanted.
            let more =
                (asked..asked + ahead).take_while(|n| missing == asked && is_missing(n)).count() as u64;
            let mut buffer = Buffer::zeroed((missing + more) as usize * block);
            if self.read_through(Purpose::Data, number, 0, &mut buffer).is_err() {
                // What nobody asked for keeps nobody from what they did: then no more than that, to the byte.
                let here = rest.len().min(missing as usize * block - offset);
                let (part, behind) = rest.split_at_mut(here);
                self.read_through(Purpose::Data, number, offset as u64, part)?;
                (rest, number, offset) = (behind, number + missing, 0);
                continue;
            }
            (number..).zip(buffer.chunks(block)).for_each(|(number, bytes)| self.clean.put(number, bytes));
            let here = rest.len().min(missing as usize * block - offset);
            let (part, behind) = rest.split_at_mut(here);
            part.copy_from_slice(&buffer[offset..offset + here]);
            (rest, number, offset) = (behind, number + missing, 0);
        }
        Ok(())
    }

    /// Reads bytes from `offset` in block `number` on, which are all on the disk, past the cache.
    pub(crate) fn read_through(
        &self,
        purpose: Purpose,
        number: u64,
        offset: u64,
        into: &mut [u8],
    ) -> Result<()> {
        if let (Purpose::Data, Some(frames)) = (purpose, &self.frames)
            && frames.has_refused()
        {
            return self.read_around(frames, number, offset, into);
        }
        if self.overlay.is_empty() {
            return self.disk.read(purpose, number * self.block + offset, into).map_err(|error| io(&error));
        }
        let (mut number, mut offset) = (number + offset / self.block, offset % self.block);
        let mut rest = into;
        while !rest.is_empty() {
            let here = rest.len().min((self.block - offset) as usize);
            let (part, behind) = rest.split_at_mut(here);
            let logged = self.overlay.get(&number).copied().unwrap_or(Logged { at: number, begins: None });
            self.disk.read(purpose, logged.at * self.block + offset, part).map_err(|error| io(&error))?;
            if let Some(begins) = logged.begins {
                begins.iter().skip(offset as usize).zip(part).for_each(|(byte, place)| *place = *byte);
            }
            (rest, number, offset) = (behind, number + 1, 0);
        }
        Ok(())
    }

    /// Reads bytes of files of which the disk may have refused some: those are in NVM.
    fn read_around(&self, frames: &Frames, number: u64, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = number + (offset + into.len() as u64).div_ceil(self.block);
        // Before the disk is read: what it takes meanwhile is no longer there then, and on the disk.
        let refused = frames.refused_among(number..end)?;
        let start = number * self.block + offset;
        let (mut at, mut rest) = (start, into);
        let purpose = Purpose::Data;
        for (block, bytes) in refused {
            let before = (block * self.block).saturating_sub(at) as usize;
            let (part, behind) = rest.split_at_mut(before);
            self.disk.read(purpose, at, part).map_err(|error| io(&error))?;
            at += before as u64;
            let here = &bytes[(at - block * self.block) as usize..];
            let (part, behind) = behind.split_at_mut(here.len().min(behind.len()));
            part.copy_from_slice(&here[..part.len()]);
            at += part.len() as u64;
            rest = behind;
        }
        self.disk.read(purpose, at, rest).map_err(|error| io(&error))
    }
}
