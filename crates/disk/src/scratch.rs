//! A disk of which what is written stays in this process.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::device::{Device, Geometry};

/// A device as it is, and over it, in DRAM, what has been written to this: to try something out.
pub(crate) struct Scratch {
    device: Arc<dyn Device>,
    /// Whole sectors, by number.
    written: RwLock<BTreeMap<u64, Box<[u8]>>>,
}

impl Scratch {
    pub(crate) fn over(device: Arc<dyn Device>) -> Scratch {
        Scratch { device, written: RwLock::default() }
    }

    fn sector(&self) -> usize {
        self.device.geometry().sector as usize
    }
}

impl Device for Scratch {
    fn geometry(&self) -> Geometry {
        Geometry { read_only: false, ..self.device.geometry() }
    }

    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let written = self.written.read();
        self.device.read(at, into)?;
        let sector = self.sector();
        let length: usize = into.iter().map(|part| part.len()).sum();
        let first = at / sector as u64;
        for (number, bytes) in written.range(first..first + (length / sector) as u64) {
            let mut from = (number - first) as usize * sector;
            let mut rest = &bytes[..];
            for part in into.iter_mut() {
                let skipped = from.min(part.len());
                from -= skipped;
                let length = rest.len().min(part.len() - skipped);
                part[skipped..skipped + length].copy_from_slice(&rest[..length]);
                rest = &rest[length..];
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], _durable: bool) -> io::Result<()> {
        let all: Vec<u8> = from.iter().flat_map(|part| part.iter().copied()).collect();
        let (sector, mut written) = (self.sector(), self.written.write());
        let numbers = at / sector as u64..;
        written.extend(numbers.zip(all.chunks(sector).map(Box::from)));
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_immediate(&self) -> bool {
        self.device.is_immediate()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Disk, Memory, Purpose};

    use super::*;

    /// Whatever is written, in whatever pieces: it is read again, and below it nothing has changed.
    #[test]
    fn what_is_written_stays_above() {
        let image: Vec<u8> = (0..16 * 512).map(|at| (at % 251) as u8).collect();
        let below = Arc::new(Memory::new(image.clone(), true));
        let disk = Disk::over("below".into(), below.clone()).scratch();
        assert!(!disk.is_read_only());
        let mut expected = image.clone();
        for (at, length, byte) in [(0, 1, 1), (1, 10, 2), (3, 2, 3), (15, 1, 4)]
            .map(|(at, length, byte)| (at * 512, length * 512, byte))
        {
            disk.write(Purpose::Data, at as u64, &vec![byte; length]).unwrap();
            expected[at..at + length].fill(byte);
            let mut read = vec![0; image.len()];
            let (head, tail) = read.split_at_mut(777);
            let mut parts = [IoSliceMut::new(head), IoSliceMut::new(tail)];
            disk.read_vectored(Purpose::Data, 0, &mut parts).unwrap();
            assert!(read == expected, "{at}+{length}");
            let mut one = [0; 600];
            disk.read(Purpose::Data, 1000, &mut one).unwrap();
            assert_eq!(one, expected[1000..1600]);
        }
        disk.flush().unwrap();
        assert!(below.image() == image);
    }
}
