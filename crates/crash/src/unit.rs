//! What a power cut may leave of each line, as choices: the units of a crash point.

use std::ops::Range;
use std::rc::Rc;

use disk::SECTOR;
use nvm::{LINE, Line};

use crate::machine::{Machine, Pending};

/// Lines of a disk's sector: one unit.
const SECTOR_LINES: u32 = (SECTOR / LINE) as u32;
/// Bulk data lines are one unit from this many on.
const GROUP_LINES: usize = 8;

/// A line, or a run of lines of file data that were stored together, and what it may hold.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) first: u32,
    /// Contents after each whole store, oldest first: the first is the durable one. Each has all lines of the unit.
    pub(crate) versions: Vec<Vec<Line>>,
    /// Contents of stores that were torn.
    pub(crate) torn: Vec<Vec<Line>>,
}

impl Unit {
    /// The contents of choice `index`: versions first, then torn ones.
    pub(crate) fn contents(&self, index: usize) -> &[Line] {
        match index.checked_sub(self.versions.len()) {
            None => &self.versions[index],
            Some(torn) => &self.torn[torn],
        }
    }

    fn lines(&self) -> Range<u64> {
        u64::from(self.first)..u64::from(self.first) + self.versions[0].len() as u64
    }

    pub(crate) fn choices(&self) -> usize {
        self.versions.len() + self.torn.len()
    }
}

/// All units of a crash point.
#[derive(Debug)]
pub(crate) struct Units {
    /// By their lines.
    pub(crate) all: Vec<Rc<Unit>>,
    /// The first of each unit's lines, counted from the first unit's first.
    starts: Vec<usize>,
    /// Bits of all lines' numbers, modulo their count.
    filter: [u64; FILTER_WORDS],
}

/// Most lines are in no unit; so many words of bits say it of most of them.
const FILTER_WORDS: usize = 32;

/// The bit of a line: word, and place in it.
fn filter_bit(line: u32) -> (usize, u32) {
    (line as usize / 64 % FILTER_WORDS, line % 64)
}

impl Units {
    pub(crate) fn of(machine: &Machine) -> Units {
        let mut all: Vec<Rc<Unit>> = Vec::new();
        let mut pending = machine.pending.iter().peekable();
        while let Some((&first, line)) = pending.next() {
            let mut group = vec![line];
            if machine.disk.contains(&first) {
                let end = first + SECTOR_LINES - first % SECTOR_LINES;
                while let Some((_, next)) = pending.next_if(|(number, _)| **number < end) {
                    group.push(next);
                }
                all.extend(line.unit(group.len(), || sector(first, &group)));
                continue;
            }
            if line.bulk {
                while let Some((_, next)) = pending.next_if(|(number, next)| {
                    **number == first + group.len() as u32 && next.bulk && next.has_stores_of(line)
                }) {
                    group.push(next);
                }
            }
            if group.len() >= GROUP_LINES {
                all.extend(line.unit(group.len(), || grouped(first, &group)));
            } else {
                for (line, first) in group.into_iter().zip(first..) {
                    all.extend(line.unit(1, || single(first, line)));
                }
            }
        }
        Units::of_all(all)
    }

    /// These units, which are by their lines.
    pub(crate) fn of_all(all: Vec<Rc<Unit>>) -> Units {
        let mut filter = [0; FILTER_WORDS];
        for line in all.iter().flat_map(|unit| unit.lines()) {
            let (word, bit) = filter_bit(line as u32);
            filter[word] |= 1 << bit;
        }
        let starts = all.iter().scan(0, |next, unit| {
            *next += unit.versions[0].len();
            Some(*next - unit.versions[0].len())
        });
        let starts = starts.collect();
        Units { all, starts, filter }
    }

    /// How many lines there are in all units.
    pub(crate) fn lines_count(&self) -> usize {
        self.starts.last().zip(self.all.last()).map_or(0, |(start, unit)| start + unit.versions[0].len())
    }

    /// Where the first line of a unit is among the lines of all units.
    pub(crate) fn start(&self, unit: usize) -> usize {
        self.starts[unit]
    }

    /// Whether `line` may be in a unit.
    pub(crate) fn has(&self, line: u32) -> bool {
        let (word, bit) = filter_bit(line);
        self.filter[word] >> bit & 1 == 1
    }

    /// The unit that `line` is in.
    pub(crate) fn of_line(&self, line: u32) -> Option<usize> {
        if !self.has(line) {
            return None;
        }
        let index = self.all.partition_point(|unit| unit.first <= line).checked_sub(1)?;
        self.all[index].lines().contains(&u64::from(line)).then_some(index)
    }

    /// How many states there are, without torn ones.
    pub(crate) fn product(&self) -> u64 {
        self.all.iter().fold(1u64, |product, unit| product.saturating_mul(unit.versions.len() as u64))
    }
}

/// One line: a version for each store that changed it, and the words of each in between.
fn single(first: u32, line: &Pending) -> Option<Unit> {
    let mut versions = vec![vec![line.durable]];
    let mut torn = Vec::new();
    for next in line.versions.iter().map(|version| &version.line) {
        let before = versions[versions.len() - 1][0];
        let words: Vec<usize> = (0..LINE as usize).step_by(8).collect();
        let changed: Vec<usize> =
            words.into_iter().filter(|at| before[*at..at + 8] != next[*at..at + 8]).collect();
        for end in 1..changed.len() {
            let mut some = before;
            for at in &changed[..end] {
                some[*at..at + 8].copy_from_slice(&next[*at..at + 8]);
            }
            push_new(&versions, &mut torn, vec![some]);
        }
        if let Some(last) = changed.last().filter(|_| changed.len() > 1) {
            let mut some = before;
            some[*last..last + 8].copy_from_slice(&next[*last..last + 8]);
            push_new(&versions, &mut torn, vec![some]);
        }
        if !versions.iter().any(|version| version[0] == *next) {
            versions.push(vec![*next]);
        }
    }
    torn.retain(|contents| !versions.contains(contents));
    (versions.len() > 1 || !torn.is_empty()).then_some(Unit { first, versions, torn })
}

fn push_new(versions: &[Vec<Line>], torn: &mut Vec<Vec<Line>>, contents: Vec<Line>) {
    if !versions.contains(&contents) && !torn.contains(&contents) {
        torn.push(contents);
    }
}

/// A disk's sector: as it was durable, and after each write, of which it has all or nothing.
fn sector(first: u32, lines: &[&Pending]) -> Option<Unit> {
    let mut versions = vec![lines.iter().map(|line| line.durable).collect::<Vec<_>>()];
    for write in 0..lines[0].versions.len() {
        let next: Vec<Line> = lines.iter().map(|line| line.versions[write].line).collect();
        if !versions.contains(&next) {
            versions.push(next);
        }
    }
    (versions.len() > 1).then_some(Unit { first, versions, torn: Vec::new() })
}

/// Lines stored together: all of them after each store, and in between the first, all but the last, every other one.
fn grouped(first: u32, lines: &[&Pending]) -> Option<Unit> {
    let mut versions = vec![lines.iter().map(|line| line.durable).collect::<Vec<_>>()];
    let mut torn = Vec::new();
    for store in 0..lines[0].versions.len() {
        let before = versions[versions.len() - 1].clone();
        let next: Vec<Line> = lines.iter().map(|line| line.versions[store].line).collect();
        let some = |arrived: &dyn Fn(usize) -> bool| {
            (0..lines.len()).map(|n| if arrived(n) { next[n] } else { before[n] }).collect::<Vec<_>>()
        };
        push_new(&versions, &mut torn, some(&|n| n == 0));
        push_new(&versions, &mut torn, some(&|n| n + 1 < lines.len()));
        push_new(&versions, &mut torn, some(&|n| n % 2 == 1));
        if !versions.contains(&next) {
            versions.push(next);
        }
    }
    torn.retain(|contents| !versions.contains(contents));
    (versions.len() > 1 || !torn.is_empty()).then_some(Unit { first, versions, torn })
}
