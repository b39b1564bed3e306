//! A disk in memory, for tests.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::SECTOR;
use crate::device::{Device, Geometry};

/// A disk in memory, which can vanish like any other, or refuse some of its sectors.
pub struct Memory {
    bytes: RwLock<Vec<u8>>,
    read_only: bool,
    vanished: AtomicBool,
    refused: Mutex<Range<u64>>,
}

impl Memory {
    /// A disk that holds `image`. A last part of a sector is not there.
    pub fn new(mut image: Vec<u8>, read_only: bool) -> Memory {
        image.truncate(image.len() - image.len() % SECTOR as usize);
        let (vanished, refused) = (AtomicBool::new(false), Mutex::new(0..0));
        Memory { bytes: RwLock::new(image), read_only, vanished, refused }
    }

    /// What is on it now.
    pub fn image(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }

    /// From now on, or no longer, every request fails as if the disk had been unplugged.
    pub fn vanish(&self, gone: bool) {
        self.vanished.store(gone, Ordering::Relaxed);
    }

    /// From now on no byte of this range can be written; of an empty one, all can.
    pub fn refuse(&self, range: Range<u64>) {
        *self.refused.lock() = range;
    }

    /// What cannot be written.
    pub fn refused(&self) -> Range<u64> {
        self.refused.lock().clone()
    }

    fn is_there(&self) -> io::Result<()> {
        match self.vanished.load(Ordering::Relaxed) {
            true => Err(rustix::io::Errno::NODEV.into()),
            false => Ok(()),
        }
    }
}

impl Device for Memory {
    fn geometry(&self) -> Geometry {
        let bytes = self.bytes.read().len() as u64;
        Geometry { bytes, sector: SECTOR as u32, memory_alignment: 1, read_only: self.read_only }
    }

    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.is_there()?;
        let bytes = self.bytes.read();
        let mut rest = bytes.get(at as usize..).ok_or(io::ErrorKind::UnexpectedEof)?;
        for part in into {
            let (here, behind) = rest.split_at_checked(part.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            part.copy_from_slice(here);
            rest = behind;
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], _durable: bool) -> io::Result<()> {
        self.is_there()?;
        let length: u64 = from.iter().map(|part| part.len() as u64).sum();
        let refused = self.refused.lock().clone();
        if at < refused.end && refused.start < at + length {
            return Err(rustix::io::Errno::IO.into());
        }
        let mut bytes = self.bytes.write();
        let mut rest = bytes.get_mut(at as usize..).ok_or(io::ErrorKind::UnexpectedEof)?;
        for part in from {
            let (here, behind) = rest.split_at_mut_checked(part.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            here.copy_from_slice(part);
            rest = behind;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.is_there()
    }
}
