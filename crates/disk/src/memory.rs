//! A disk in memory, for tests.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::SECTOR;
use crate::device::{Device, Geometry};

/// A disk in memory, which can vanish like any other.
pub struct Memory {
    bytes: RwLock<Vec<u8>>,
    read_only: bool,
    vanished: AtomicBool,
}

impl Memory {
    /// A disk that holds `image`. A last part of a sector is not there.
    pub fn new(mut image: Vec<u8>, read_only: bool) -> Memory {
        image.truncate(image.len() - image.len() % SECTOR as usize);
        Memory { bytes: RwLock::new(image), read_only, vanished: AtomicBool::new(false) }
    }

    /// What is on it now.
    pub fn image(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }

    /// From now on, or no longer, every request fails as if the disk had been unplugged.
    pub fn vanish(&self, gone: bool) {
        self.vanished.store(gone, Ordering::Relaxed);
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
