//! A disk as volumes see it.

use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;

use crate::account::{Account, Ledger, Purpose};
use crate::buffer::{self, Buffer};
use crate::device::{Device, Geometry};
use crate::error::{Doing, Error, Request};
use crate::file::{self, BlockFile};
use crate::flushes::{Flushes, Since};
use crate::memory::Memory;
use crate::nbd::Nbd;
use crate::scratch::Scratch;
use crate::source::{OpenOptions, Source};

/// A disk: a device, its name, and what went over its wire. Addresses and lengths are bytes.
pub struct Disk {
    name: String,
    device: Arc<dyn Device>,
    geometry: Geometry,
    ledger: Ledger,
    flushes: Flushes,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk")
            .field("name", &self.name)
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}

impl Disk {
    /// Opens what a user names: see [`Source`].
    pub fn open(source: &Source, options: &OpenOptions) -> Result<Disk, Error> {
        let device: Arc<dyn Device> = match source {
            Source::Path(path) => Arc::new(BlockFile::open(path, options)?),
            Source::Nbd { address, export } => {
                let cannot = |cause| Error::Open { disk: source.to_string(), source: cause };
                Arc::new(Nbd::connect(address, export, options).map_err(cannot)?)
            }
        };
        Ok(Disk::over(source.to_string(), device))
    }

    /// Opens an image file or a block special file.
    pub fn open_path(path: &Path, options: &OpenOptions) -> Result<Disk, Error> {
        Disk::open(&Source::Path(path.into()), options)
    }

    /// A disk in memory.
    pub fn memory(image: Vec<u8>) -> Disk {
        Disk::over("memory".into(), Arc::new(Memory::new(image, false)))
    }

    /// A disk over any device, for instance one that is recorded.
    pub fn over(name: String, device: Arc<dyn Device>) -> Disk {
        let geometry = device.geometry();
        Disk { name, device, geometry, ledger: Ledger::default(), flushes: Flushes::default() }
    }

    /// This disk as it is, of which what is written stays in this process and ends with it.
    #[must_use]
    pub fn scratch(self) -> Disk {
        Disk::over(self.name, Arc::new(Scratch::over(self.device)))
    }

    /// What the user calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.geometry.bytes
    }

    /// Writes are of whole sectors of so many bytes.
    pub fn sector(&self) -> u32 {
        self.geometry.sector
    }

    /// Whether requests wait for nothing, so that several at a time bring nothing.
    pub fn is_immediate(&self) -> bool {
        self.device.is_immediate()
    }

    /// Whether it can only be read.
    pub fn is_read_only(&self) -> bool {
        self.geometry.read_only
    }

    /// Why it cannot be reached, if it is known not to be: of a disk behind a network, whose next request looks for it again.
    pub fn gone(&self) -> Option<String> {
        self.device.gone()
    }

    /// What went over its wire since it was opened.
    pub fn account(&self) -> Account {
        self.ledger.account()
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Reads any range.
    pub fn read(&self, purpose: Purpose, at: u64, into: &mut [u8]) -> Result<(), Error> {
        self.read_vectored(purpose, at, &mut [IoSliceMut::new(into)])
    }

    /// Reads one range into several places. One request, if range and places are aligned; otherwise one of whole sectors, copied.
    pub fn read_vectored(&self, purpose: Purpose, at: u64, into: &mut [IoSliceMut<'_>]) -> Result<(), Error> {
        let length = into.iter().map(|part| part.len() as u64).sum();
        let request = self.check(Doing::Read, at, length)?;
        if length == 0 {
            return Ok(());
        }
        let Geometry { sector, memory_alignment, .. } = self.geometry;
        let sector = u64::from(sector);
        let fits = |part: &IoSliceMut<'_>| {
            part.len().is_multiple_of(memory_alignment as usize) && buffer::is_aligned(part, memory_alignment)
        };
        if (at | length).is_multiple_of(sector) && into.iter().all(fits) {
            self.device.read(at, into).map_err(|error| self.failed(request, error))?;
            self.ledger.read(purpose, length);
            return Ok(());
        }
        let start = at - at % sector;
        let mut whole = Buffer::zeroed(((at + length).next_multiple_of(sector) - start) as usize);
        self.device
            .read(start, &mut [IoSliceMut::new(&mut whole)])
            .map_err(|error| self.failed(request, error))?;
        self.ledger.read(purpose, whole.len() as u64);
        let mut rest = &whole[(at - start) as usize..];
        for part in into {
            let (here, behind) = rest.split_at(part.len());
            part.copy_from_slice(here);
            rest = behind;
        }
        Ok(())
    }

    /// Writes whole sectors. Durable behind the next [`Disk::flush`].
    pub fn write(&self, purpose: Purpose, at: u64, from: &[u8]) -> Result<(), Error> {
        self.write_vectored(purpose, at, &[IoSlice::new(from)], false)
    }

    /// Writes whole sectors from several places to one range; with `durable`, durably (FUA).
    pub fn write_vectored(
        &self,
        purpose: Purpose,
        at: u64,
        from: &[IoSlice<'_>],
        durable: bool,
    ) -> Result<(), Error> {
        let length = from.iter().map(|part| part.len() as u64).sum();
        let request = self.check_write(at, length)?;
        let alignment = self.geometry.memory_alignment;
        let fits = |part: &IoSlice<'_>| {
            part.len().is_multiple_of(alignment as usize) && buffer::is_aligned(part, alignment)
        };
        let written = if from.iter().all(fits) {
            self.device.write(at, from, durable)
        } else {
            let mut whole = Buffer::zeroed(length as usize);
            let mut rest = &mut whole[..];
            for part in from {
                let (here, behind) = rest.split_at_mut(part.len());
                here.copy_from_slice(part);
                rest = behind;
            }
            self.device.write(at, &[IoSlice::new(&whole)], durable)
        };
        written.map_err(|error| self.failed(request, error))?;
        self.ledger.written(purpose, length);
        Ok(())
    }

    /// Makes all writes that returned before durable, through every cache on the way.
    pub fn flush(&self) -> Result<(), Error> {
        self.flush_since(self.since())
    }

    /// Now: for who is about to write, and will flush.
    pub fn since(&self) -> Since {
        self.flushes.since()
    }

    /// The same as [`Disk::flush`], with who else asks for it at the time. Fails, too, if another flush has failed since then: writes that it
    /// was to make durable may be lost.
    pub fn flush_since(&self, since: Since) -> Result<(), Error> {
        let flush = || {
            self.device.flush()?;
            self.ledger.flushed();
            Ok(())
        };
        let request = Request { doing: Doing::Flush, at: 0, length: 0 };
        self.flushes.flush(since, flush).map_err(|error| self.failed(request, error))
    }

    fn check(&self, doing: Doing, at: u64, length: u64) -> Result<Request, Error> {
        let bytes = self.geometry.bytes;
        if at.checked_add(length).is_none_or(|end| end > bytes) {
            return Err(Error::OutOfRange { disk: self.name.clone(), at, length, bytes });
        }
        Ok(Request { doing, at, length })
    }

    pub(crate) fn check_write(&self, at: u64, length: u64) -> Result<Request, Error> {
        let request = self.check(Doing::Write, at, length)?;
        if self.geometry.read_only {
            return Err(Error::ReadOnly { disk: self.name.clone() });
        }
        let sector = self.geometry.sector;
        if !(at | length).is_multiple_of(u64::from(sector)) {
            return Err(Error::NotSectors { disk: self.name.clone(), at, length, sector });
        }
        Ok(request)
    }

    pub(crate) fn count_written(&self, purpose: Purpose, bytes: u64) {
        self.ledger.written(purpose, bytes);
    }

    /// The failure of a request. A disk that ends before its size was cut short while it was open.
    pub(crate) fn failed(&self, request: Request, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            let Request { at, length, .. } = request;
            let bytes = self.device.file().and_then(|file| file::bytes(file).ok()).unwrap_or(0);
            return Error::OutOfRange { disk: self.name.clone(), at, length, bytes };
        }
        Error::of(&self.name, request, error)
    }
}
