//! One piece of memory in which all states are built: patches and recoveries are taken back, nothing is copied.

use std::ops::Range;

use nvm::{Line, OpenOptions, Region, WatchMark, Zone};

use crate::hash;
use crate::subject::Subject;

/// A watched zone with a volume in it, and perhaps another.
pub(crate) struct Arena {
    pub(crate) zone: Zone,
    pub(crate) region: Region,
    /// The lines that stand for the volume's disk; none if it has none.
    pub(crate) disk: Range<u32>,
    /// Where clones go.
    pub(crate) beside: Option<Region>,
}

impl Arena {
    /// A zone with a new volume, or with two.
    pub(crate) fn new(subject: &dyn Subject, two: bool) -> Result<Arena, String> {
        // The zone's entrance comes first.
        let bytes = nvm::SEGMENT + subject.volume_bytes() * (1 + u64::from(two));
        let zone = Zone::anonymous(bytes, &OpenOptions::default()).map_err(|error| error.to_string())?;
        let region = subject.format(&zone, "v")?;
        let beside = two.then(|| subject.format(&zone, "beside")).transpose()?;
        let disk = subject.disk(&region)?.map_or(0..0, |disk| {
            let lines = |bytes: u64| (bytes / nvm::LINE) as u32;
            lines(disk.entry().start)..lines(disk.entry().start + disk.len())
        });
        zone.watch();
        Ok(Arena { zone, region, disk, beside })
    }

    /// Watches anew: what was stored before stays.
    pub(crate) fn restart(&self) {
        self.zone.unwatch();
        self.zone.watch();
    }

    /// The first byte that differs from `image`.
    pub(crate) fn difference(&self, image: &[u8]) -> Option<u64> {
        self.watched(|watch| {
            let blocks = watch.bytes().chunks(4096).zip(image.chunks(4096));
            let mut differing = blocks.enumerate().filter(|(_, (found, expected))| found != expected);
            let (block, (found, expected)) = differing.next()?;
            let at = found.iter().zip(expected).position(|(a, b)| a != b)?;
            Some(block as u64 * 4096 + at as u64)
        })
    }

    fn watched<R>(&self, with: impl FnOnce(&mut nvm::Watch) -> R) -> R {
        self.zone.watched(with).expect("an arena is watched for as long as it lives")
    }

    pub(crate) fn mark(&self) -> WatchMark {
        self.watched(|watch| watch.mark())
    }

    pub(crate) fn put_back(&self, mark: WatchMark) {
        self.watched(|watch| watch.put_back(mark));
    }

    pub(crate) fn line(&self, line: u32) -> Line {
        self.watched(|watch| watch.line(u64::from(line)))
    }

    /// Puts lines into memory; later ones win.
    pub(crate) fn patch<'a>(&self, lines: impl IntoIterator<Item = (u32, &'a Line)>) {
        self.watched(|watch| {
            lines.into_iter().for_each(|(line, bytes)| watch.set_line(u64::from(line), bytes))
        });
    }

    /// Notes from now on which lines of `runs` are read.
    pub(crate) fn seek(&self, runs: impl IntoIterator<Item = Range<u64>>) {
        self.watched(|watch| watch.seek(runs));
    }

    /// What [`Arena::seek`] found so far, in order; it goes on with all lines that were not overwritten.
    pub(crate) fn take_read(&self) -> Vec<u32> {
        self.watched(|watch| {
            let read = watch.read().to_vec();
            watch.seek_again();
            read
        })
    }

    /// The hash of what all lines stored to since `mark` hold now.
    pub(crate) fn hash_since(&self, mark: WatchMark) -> u64 {
        self.watched(|watch| {
            let mut lines: Vec<u32> = watch.stored_since(mark).iter().map(|(line, _)| *line).collect();
            lines.sort_unstable();
            lines.dedup();
            let hash = |line: u32| hash::of_line(line, &watch.line(u64::from(line)));
            lines.into_iter().fold(0u64, |sum, line| sum.wrapping_add(hash(line)))
        })
    }

    /// What the hash of all lines has grown by since `mark`.
    pub(crate) fn change_since(&self, mark: WatchMark) -> u64 {
        self.watched(|watch| {
            // Of several earlier contents of a line, the first is that of the mark.
            let mut first: Vec<(u32, usize)> =
                watch.stored_since(mark).iter().enumerate().map(|(n, (line, _))| (*line, n)).collect();
            first.sort_unstable();
            first.dedup_by_key(|(line, _)| *line);
            first.into_iter().fold(0u64, |sum, (line, n)| {
                let before = &watch.stored_since(mark)[n].1;
                sum.wrapping_add(hash::of_change(line, before, &watch.line(u64::from(line))))
            })
        })
    }
}
