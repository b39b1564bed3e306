//! Choices of what lines may hold: the units of a crash point.

use std::ops::Range;
use std::rc::Rc;

use nvm::Line;

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
