//! A client of network block devices, of the fixed newstyle protocol with simple replies.
//!
//! Requests of many threads are in flight at once on one [connection](connection). When that has ended, requests fail as those of a disk that
//! has vanished, and the next one, a second later or more, looks whether the server is back. **A disk that comes back has what it had:** what
//! was written and not flushed, and so may be lost with the server, is written again ([`Unflushed`]), before anybody else is let in;
//! a server that shows another disk at the same address is none ([`Label`]). What it was sent and did not answer well may be there or not.
//!
//! **So has one that would not flush:** it may have lost what it was given, and say of the next flush that all is well. What is unflushed
//! is written again before it is asked once more.

mod connection;
mod handshake;
mod label;
mod unflushed;
mod wire;

use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::device::{Device, Geometry};
use crate::source::{NbdAddress, OpenOptions};
use connection::Connection;
use label::Label;
use unflushed::Unflushed;
use wire::Command;

/// Least time between two attempts to find a server again.
const REST: Duration = Duration::from_secs(1);
/// How long a server that has vanished may take for a connection and its handshake: others wait meanwhile.
const PATIENCE_AGAIN: Duration = Duration::from_secs(5);
/// Bytes that are kept for a server that vanishes; beyond, it is asked to flush.
const UNFLUSHED_MAX: usize = 64 << 20;

/// An export of a server.
pub(crate) struct Nbd {
    address: NbdAddress,
    export: String,
    /// How long the server may take for an answer.
    patience: Duration,
    geometry: Geometry,
    /// Shared by who uses it, until what was written is remembered; alone by who makes another.
    connection: RwLock<Connection>,
    /// When somebody last looked for the server.
    looked: Mutex<Instant>,
    unflushed: Mutex<Unflushed>,
    /// Held by who has the server flush; whether it may have lost what is unflushed, because it answered the last one with an error.
    flushing: Mutex<bool>,
    label: Mutex<Label>,
    /// Held by who writes to the label, until what was written is remembered.
    labels: Mutex<()>,
}

impl Nbd {
    pub(crate) fn connect(address: &NbdAddress, export: &str, options: &OpenOptions) -> io::Result<Nbd> {
        let patience = options.patience;
        let connection = Connection::begin(address, export, patience, patience)?;
        let geometry = connection.geometry(options.read_only);
        let label = Label::read(geometry, |at, into| read(&connection, at, &mut [IoSliceMut::new(into)]))?;
        Ok(Nbd {
            address: address.clone(),
            export: export.into(),
            patience,
            geometry,
            connection: RwLock::new(connection),
            looked: Mutex::new(Instant::now()),
            unflushed: Mutex::default(),
            flushing: Mutex::default(),
            label: Mutex::new(label),
            labels: Mutex::default(),
        })
    }

    /// The connection; a new one if the last has ended and the server is back.
    fn connection(&self) -> io::Result<RwLockReadGuard<'_, Connection>> {
        let connection = self.connection.read();
        let Some(why) = connection.ended() else { return Ok(connection) };
        drop(connection);
        let mut connection = self.connection.write();
        if connection.ended().is_some() {
            let mut looked = self.looked.lock();
            if looked.elapsed() < REST {
                return Err(why);
            }
            let found = self.find_again();
            *looked = Instant::now();
            *connection = found.map_err(|error| {
                let what = format!("{why}, and the server cannot be used again: {error}");
                io::Error::new(io::ErrorKind::ConnectionAborted, what)
            })?;
        }
        Ok(parking_lot::RwLockWriteGuard::downgrade(connection))
    }

    /// Connects anew, if it is the same disk, and gives it what it may have lost.
    fn find_again(&self) -> io::Result<Connection> {
        let connection =
            Connection::begin(&self.address, &self.export, PATIENCE_AGAIN.min(self.patience), self.patience)?;
        if connection.geometry(self.geometry.read_only) != self.geometry {
            return Err(io::Error::other("it shows a disk of another size or kind"));
        }
        let reads = |at, into: &mut [u8]| read(&connection, at, &mut [IoSliceMut::new(into)]);
        let label = Label::read(self.geometry, reads)?;
        if !self.label.lock().is_of(label, &self.unflushed.lock()) {
            return Err(io::Error::other("it shows another disk"));
        }
        self.write_again(&connection)?;
        Ok(connection)
    }

    /// Gives the server what is unflushed once more. Nobody else writes meanwhile.
    fn write_again(&self, connection: &Connection) -> io::Result<()> {
        for (at, bytes) in self.unflushed.lock().writes() {
            write(connection, at, bytes, false)?;
        }
        Ok(())
    }

    /// The connection, over which nothing has to be written again before a flush.
    fn connection_to_flush(&self, has_lost: bool) -> io::Result<RwLockReadGuard<'_, Connection>> {
        let connection = self.connection()?;
        if !has_lost {
            return Ok(connection);
        }
        drop(connection);
        let connection = self.connection.write();
        if let Some(why) = connection.ended() {
            return Err(why);
        }
        self.write_again(&connection)?;
        Ok(parking_lot::RwLockWriteGuard::downgrade(connection))
    }

    /// Enters a write that was answered well.
    fn remember(&self, connection: &Connection, at: u64, bytes: &[u8], fua: bool) {
        if connection.has_cache() {
            let mut unflushed = self.unflushed.lock();
            // Of two writes to one place, the later one counts when they are written again.
            if !fua || unflushed.overlaps(at, bytes.len()) {
                unflushed.push(at, bytes);
            }
        }
        if fua || !connection.has_cache() {
            self.label.lock().durable(None, at, bytes);
        }
    }
}

fn read(connection: &Connection, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
    let length = into.iter().map(|part| part.len() as u64).sum();
    let mut rest = into;
    IoSliceMut::advance_slices(&mut rest, 0);
    for (at, length) in connection.pieces(at, length) {
        let bytes = connection.ask(Command::Read, 0, at, length, &[])?;
        let mut bytes = &bytes[..];
        while let (Some(part), false) = (rest.first_mut(), bytes.is_empty()) {
            let (here, behind) = bytes.split_at(bytes.len().min(part.len()));
            part[..here.len()].copy_from_slice(here);
            bytes = behind;
            IoSliceMut::advance_slices(&mut rest, here.len());
        }
    }
    Ok(())
}

fn write(connection: &Connection, at: u64, from: &[u8], fua: bool) -> io::Result<()> {
    for (piece, length) in connection.pieces(at, from.len() as u64) {
        let data = &from[(piece - at) as usize..][..length as usize];
        let flags = if fua { wire::FUA } else { 0 };
        connection.ask(Command::Write, flags, piece, length, &[IoSlice::new(data)])?;
    }
    Ok(())
}

impl Device for Nbd {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        read(&*self.connection()?, at, into)
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], durable: bool) -> io::Result<()> {
        if self.unflushed.lock().bytes() > UNFLUSHED_MAX {
            self.flush()?;
        }
        let connection = self.connection()?;
        let whole;
        let one = match from {
            [one] => &one[..],
            _ => {
                whole = from.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>();
                &whole[..]
            }
        };
        let fua = durable && connection.has_fua();
        if Label::begins_within(self.geometry, at) {
            // One at a time: of two at once nobody knows which the disk has at the end.
            let _alone = self.labels.lock();
            self.label.lock().doubt(at, one, self.unflushed.lock().last());
            write(&connection, at, one, fua)?;
            self.label.lock().answered(at, one);
            self.remember(&connection, at, one, fua);
        } else {
            write(&connection, at, one, fua)?;
            self.remember(&connection, at, one, fua);
        }
        drop(connection);
        if durable && !fua { self.flush() } else { Ok(()) }
    }

    fn gone(&self) -> Option<String> {
        match self.connection.try_read() {
            Some(connection) => connection.ended().map(|why| why.to_string()),
            None => Some("its server is looked for".into()),
        }
    }

    /// A server that offers no flush has no cache that one could empty.
    fn flush(&self) -> io::Result<()> {
        let mut has_lost = self.flushing.lock();
        let connection = self.connection_to_flush(*has_lost)?;
        if !connection.has_cache() {
            return Ok(());
        }
        let last = self.unflushed.lock().last();
        let flushed = connection.ask(Command::Flush, 0, 0, 0, &[]);
        // With a new connection all of it is written again.
        *has_lost = flushed.is_err() && connection.ended().is_none();
        flushed?;
        let mut label = self.label.lock();
        self.unflushed.lock().flushed(last, |number, at, bytes| label.durable(Some(number), at, bytes));
        Ok(())
    }
}
