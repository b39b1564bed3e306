//! Power cuts of a zone and its disk at once: what each may hold afterwards.
//!
//! NVM: of each line, the stores that no fence has made durable may be there up to any of them, torn at 8 bytes; a flush alone promises
//! nothing. Disk: of what no flush has followed, any sector (512 B) may be there or not.

use std::collections::BTreeMap;
use std::sync::Arc;

use disk::{Disk, Memory, Recorded};
use nvm::{Event, EventKind, Purpose, Recording, Region};

use super::random::Random;

const LINE: u64 = 64;
const SECTOR: usize = 512;

/// A disk whose writes and flushes come among the events of a zone, of which `region` is a volume.
pub(crate) fn recorded(region: &Region, memory: Arc<Memory>) -> Arc<Disk> {
    let region = region.clone();
    let recorded = Recorded::new(memory, move |event| {
        let kind = match event.kind {
            disk::EventKind::Read => return,
            disk::EventKind::Write => EventKind::DiskWrite,
            disk::EventKind::Flush => EventKind::DiskSync,
        };
        region.note(kind, Purpose::Data, event.at, event.length, event.bytes);
    });
    Arc::new(Disk::over("disk".into(), Arc::new(recorded)))
}

/// Up to 8 bytes of a line that are stored at once.
struct Piece {
    at: u64,
    bytes: Vec<u8>,
    /// A fence makes it durable.
    sent: bool,
}

/// Both media at a moment.
pub(crate) struct Machine<'a> {
    recording: &'a Recording,
    nvm: Vec<u8>,
    pending: BTreeMap<u64, Vec<Piece>>,
    disk: Vec<u8>,
    written: Vec<(u64, Vec<u8>)>,
}

/// How much of what is not durable is there after all.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Luck {
    None,
    All,
    /// NVM's alone; the disk's alone.
    Nvm,
    Disk,
    Some,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(recording: &'a Recording, nvm: Vec<u8>, disk: Vec<u8>) -> Machine<'a> {
        Machine { recording, nvm, pending: BTreeMap::new(), disk, written: Vec::new() }
    }

    /// Lets an event happen.
    pub(crate) fn step(&mut self, event: &Event) {
        match event.kind {
            EventKind::Store | EventKind::Atomic | EventKind::Copy => {
                self.store(event.address, self.recording.bytes_of(event).unwrap(), false);
            }
            EventKind::Zero => self.store(event.address, &vec![0; event.length as usize], false),
            EventKind::Stream => self.store(event.address, self.recording.bytes_of(event).unwrap(), true),
            EventKind::StreamZero => self.store(event.address, &vec![0; event.length as usize], true),
            EventKind::Flush => {
                let lines = event.address / LINE..(event.address + event.length).div_ceil(LINE);
                let pieces = self.pending.range_mut(lines).flat_map(|(_, pieces)| pieces);
                pieces.for_each(|piece| piece.sent = true);
            }
            EventKind::Fence => {
                for pieces in self.pending.values_mut() {
                    let durable = pieces.iter().rposition(|piece| piece.sent).map_or(0, |last| last + 1);
                    for piece in pieces.drain(..durable) {
                        self.nvm[piece.at as usize..][..piece.bytes.len()].copy_from_slice(&piece.bytes);
                    }
                }
                self.pending.retain(|_, pieces| !pieces.is_empty());
            }
            EventKind::DiskWrite => {
                self.written.push((event.address, self.recording.bytes_of(event).unwrap().to_vec()));
            }
            EventKind::DiskSync => {
                for (at, bytes) in self.written.drain(..) {
                    self.disk[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
            }
            _ => {}
        }
    }

    fn store(&mut self, mut at: u64, mut bytes: &[u8], sent: bool) {
        while !bytes.is_empty() {
            let length = ((8 - at % 8) as usize).min(bytes.len());
            let (piece, rest) = bytes.split_at(length);
            self.pending.entry(at / LINE).or_default().push(Piece { at, bytes: piece.to_vec(), sent });
            at += length as u64;
            bytes = rest;
        }
    }

    /// Whether there is more than one state that a cut may leave.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.written.is_empty()
    }

    /// What a cut leaves: the zone's bytes and the disk's.
    pub(crate) fn cut(&self, luck: Luck, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
        let (mut nvm, mut disk) = (self.nvm.clone(), self.disk.clone());
        for pieces in self.pending.values() {
            let count = match luck {
                Luck::None | Luck::Disk => 0,
                Luck::All | Luck::Nvm => pieces.len(),
                Luck::Some => random.below(pieces.len() as u64 + 1) as usize,
            };
            for piece in &pieces[..count] {
                nvm[piece.at as usize..][..piece.bytes.len()].copy_from_slice(&piece.bytes);
            }
        }
        for (at, bytes) in &self.written {
            for (n, sector) in bytes.chunks(SECTOR).enumerate() {
                let there = match luck {
                    Luck::None | Luck::Nvm => false,
                    Luck::All | Luck::Disk => true,
                    Luck::Some => random.below(2) == 0,
                };
                if there {
                    disk[*at as usize + n * SECTOR..][..sector.len()].copy_from_slice(sector);
                }
            }
        }
        (nvm, disk)
    }
}
