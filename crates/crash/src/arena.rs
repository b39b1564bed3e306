//! One piece of memory in which all states are built: patches and recoveries are taken back, nothing is copied.

use std::ops::Range;

use nvm::{Line, LineWords, Look, OpenOptions, Region, WatchMark, Zone};

use crate::hash;
use crate::memo::{Runs, States, Step};
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

    /// Notes from now on which words of the lines in `runs` are read.
    pub(crate) fn seek(&self, runs: impl IntoIterator<Item = Range<u64>>) {
        self.watched(|watch| watch.seek(runs));
    }

    /// What [`Arena::seek`] found so far, in order.
    pub(crate) fn looks(&self) -> Vec<Look> {
        self.watched(|watch| watch.read().to_vec())
    }

    /// What is known of a function of memory that found the same before, in a state of crash point `point`, whose states differ in
    /// such words; see [`Runs::get`].
    pub(crate) fn known<V: Clone>(
        &self,
        runs: &mut Runs<V>,
        point: u64,
        differ: impl Fn(LineWords) -> bool,
        looks: &mut Vec<Look>,
    ) -> Option<V> {
        self.watched(|watch| runs.get(&Watched { watch, point, differ }, looks).cloned())
    }

    /// The looks of the run that [`Arena::known`] found; see [`Runs::looks`].
    pub(crate) fn looks_of<V>(&self, runs: &mut Runs<V>, list: u64) -> Vec<Look> {
        self.watched(|watch| runs.looks(|look| find(watch, look), list))
    }

    /// What looks find, as steps of a run.
    pub(crate) fn steps(&self, looks: &[Look]) -> Vec<Step> {
        self.watched(|watch| {
            looks.iter().map(|look| Step { look: *look, found: find(watch, *look) }).collect()
        })
    }

    /// The words that looks are at, of lines that `matters` names.
    pub(crate) fn words_of(&self, looks: &[Look], matters: impl Fn(u32) -> bool) -> Vec<LineWords> {
        self.watched(|watch| {
            looks.iter().flat_map(|look| watch.words(*look)).filter(|words| matters(words.line)).collect()
        })
    }

    /// How many questions are remembered.
    pub(crate) fn questions(&self) -> usize {
        self.watched(|watch| watch.questions())
    }

    /// Forgets what was asked: all looks of before are void.
    pub(crate) fn forget_questions(&self) {
        self.watched(nvm::Watch::forget_questions);
    }

    /// What was stored since `mark`, which was when [`Arena::seek`] began: the words, by their lines, and what they hold now; all else of a line is
    /// left zero.
    pub(crate) fn stored_since(&self, mark: WatchMark) -> Vec<(LineWords, Line)> {
        self.watched(|watch| {
            let stored = |(line, before): &(u32, Line)| {
                let now = watch.line(u64::from(*line));
                let words = watch.stored_words(u64::from(*line)) | words_that_differ(before, &now);
                let mut held = [0; nvm::LINE as usize];
                copy_words(words, &mut held, &now);
                (LineWords { line: *line, words }, held)
            };
            let mut all: Vec<_> = watch.stored_since(mark).iter().map(stored).collect();
            all.sort_unstable_by_key(|(words, _)| words.line);
            all
        })
    }

    /// Stores again what [`Arena::stored_since`] told.
    pub(crate) fn store(&self, stored: &[(LineWords, Line)]) {
        self.watched(|watch| {
            for (LineWords { line, words }, bytes) in stored {
                let mut now = watch.line(u64::from(*line));
                copy_words(*words, &mut now, bytes);
                watch.set_line(u64::from(*line), &now);
            }
        });
    }
}

/// The states of a crash point, as the watched zone has one of them.
struct Watched<'w, D> {
    watch: &'w nvm::Watch,
    point: u64,
    /// Which words they differ in.
    differ: D,
}

impl<D: Fn(LineWords) -> bool> States for Watched<'_, D> {
    fn point(&self) -> u64 {
        self.point
    }

    fn find(&self, look: Look) -> u64 {
        find(self.watch, look)
    }

    fn differ(&self, look: Look) -> bool {
        self.watch.words(look).any(&self.differ)
    }
}

/// What a look finds: the hash of what words hold, or the answer to a question.
fn find(watch: &nvm::Watch, look: Look) -> u64 {
    match look {
        Look::Words(it) => hash::of_words(it.words, &watch.line(u64::from(it.line))),
        Look::Asked(number) => watch.answer(number),
    }
}

/// The words in which two lines differ.
pub(crate) fn words_that_differ(one: &Line, other: &Line) -> u8 {
    let words = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0).enumerate();
    words.filter(|(_, (one, other))| one != other).fold(0, |words, (n, _)| words | 1 << n)
}

/// Copies some words of a line.
fn copy_words(words: u8, into: &mut Line, from: &Line) {
    for at in (0..8).filter(|at| words >> at & 1 == 1).map(|at| at * 8) {
        into[at..at + 8].copy_from_slice(&from[at..at + 8]);
    }
}
