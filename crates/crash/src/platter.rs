//! A disk that is a piece of a zone: so what it holds is patched, watched and taken back as all else is, and its writes and
//! syncs are in one recording with what is stored to NVM.

use std::io::{self, IoSlice, IoSliceMut};

use disk::{Device, Geometry, SECTOR};
use nvm::{EventKind, Purpose, Region};

/// The disk. Its rules are [`crate::machine`]'s.
pub(crate) struct Platter(pub(crate) Region);

impl Platter {
    fn check(&self, at: u64, parts: impl Iterator<Item = usize>) -> io::Result<()> {
        let bytes: u64 = parts.map(|length| length as u64).sum();
        match at.checked_add(bytes) {
            Some(end) if end <= self.0.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Device for Platter {
    fn geometry(&self) -> Geometry {
        Geometry { bytes: self.0.len(), sector: SECTOR as u32, memory_alignment: 1, read_only: false }
    }

    fn read(&self, mut at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.check(at, into.iter().map(|part| part.len()))?;
        for part in into {
            self.0.read(at, part);
            at += part.len() as u64;
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], durable: bool) -> io::Result<()> {
        self.check(at, from.iter().map(|part| part.len()))?;
        // At once, as a sector is written at once.
        match from {
            [whole] => self.0.store(Purpose::Data, at, whole),
            parts => {
                let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
                self.0.store(Purpose::Data, at, &bytes);
            }
        }
        if durable { self.flush() } else { Ok(()) }
    }

    fn flush(&self) -> io::Result<()> {
        self.0.note(EventKind::DiskSync, Purpose::Data, 0, 0, &[]);
        Ok(())
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use nvm::{OpenOptions, RecordingOptions, SEGMENT, VolumeKind, Zone};

    use super::*;
    use crate::cut;
    use crate::machine::Machine;

    const SECTOR: usize = disk::SECTOR as usize;

    fn write(platter: &Platter, sector: usize, bytes: &[u8]) {
        platter.write((sector * SECTOR) as u64, &[IoSlice::new(bytes)], false).unwrap();
    }

    /// What a power cut may leave behind what `run` does to a disk and a piece of NVM beside it: by sector or line, the byte that
    /// fills it in each of its versions.
    fn left(run: impl FnOnce(&Platter, &Region)) -> Vec<Vec<u8>> {
        let zone = Zone::anonymous(3 * SEGMENT, &OpenOptions::default()).unwrap();
        let region = |name| zone.create_volume(name, VolumeKind::Ext, Some(SEGMENT)).unwrap();
        let (memory, platter) = (region("memory"), Platter(region("disk")));
        zone.start_recording(RecordingOptions::default());
        run(&platter, &memory);
        let recording = zone.stop_recording().unwrap();
        let line = |bytes: u64| (bytes / nvm::LINE) as u32;
        let entry = platter.0.entry();
        let mut machine = Machine::new(line(entry.start)..line(entry.start + entry.bytes));
        (0..recording.events.len()).for_each(|index| machine.step(&recording, index, |_| [0; 64]));
        let units = cut::units(&machine).all;
        let filler = |lines: &Vec<nvm::Line>| {
            assert!(lines.as_flattened().iter().all(|byte| *byte == lines[0][0]), "a sector is torn");
            lines[0][0]
        };
        units.iter().map(|unit| unit.versions.iter().map(filler).collect()).collect()
    }

    #[test]
    fn what_was_not_synced_may_be_lost_or_overtake() {
        let found = left(|disk, _| {
            write(disk, 0, &[1; SECTOR]);
            write(disk, 1, &[2; 2 * SECTOR]);
        });
        assert_eq!(found, [[0, 1], [0, 2], [0, 2]]);
    }

    #[test]
    fn of_several_writes_to_a_sector_any_may_be_the_last() {
        let found = left(|disk, _| (1..=3).for_each(|n| write(disk, 5, &[n; SECTOR])));
        assert_eq!(found, [[0, 1, 2, 3]]);
    }

    #[test]
    fn a_sync_leaves_nothing_of_the_disk_to_chance_and_a_fence_nothing_of_nvm() {
        let streamed = |memory: &Region| memory.stream(Purpose::Data, 0, &[7; 64]);
        let found = left(|disk, memory| {
            write(disk, 0, &[1; SECTOR]);
            let _unfenced = streamed(memory);
            disk.flush().unwrap();
            write(disk, 1, &[2; SECTOR]);
        });
        assert_eq!(found, [[0, 7], [0, 2]]);
        let found = left(|disk, memory| {
            write(disk, 0, &[1; SECTOR]);
            memory.fence(streamed(memory)).ignore();
        });
        assert_eq!(found, [[0, 1]]);
    }

    #[test]
    fn what_is_beyond_its_end_is_refused() {
        let zone = Zone::anonymous(2 * SEGMENT, &OpenOptions::default()).unwrap();
        let platter = Platter(zone.create_volume("disk", VolumeKind::Ext, Some(SEGMENT)).unwrap());
        let sector = [0; SECTOR];
        assert!(platter.write(SEGMENT - SECTOR as u64, &[IoSlice::new(&sector)], false).is_ok());
        assert!(platter.write(SEGMENT, &[IoSlice::new(&sector)], false).is_err());
        assert!(platter.read(u64::MAX - 5, &mut [IoSliceMut::new(&mut [0; SECTOR])]).is_err());
    }
}
