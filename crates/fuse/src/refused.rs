//! What was refused of an inode that was written back ([`crate::refusals`]).

use std::ops::Range;

use vfs::Error;

/// Ranges remembered at most; of more, all from the first to the last.
const RANGES_MAX: usize = 1024;

/// Bytes that were refused, and have not been written since.
pub(crate) struct Refused {
    /// Why the last of them were.
    pub(crate) why: Error,
    /// None overlaps another.
    ranges: Vec<Range<u64>>,
}

impl Refused {
    pub(crate) fn new(why: Error, bytes: Range<u64>) -> Refused {
        Refused { why, ranges: vec![bytes] }
    }

    pub(crate) fn add(&mut self, why: Error, bytes: Range<u64>) {
        self.why = why;
        self.written(&bytes);
        self.ranges.push(bytes);
        if self.ranges.len() > RANGES_MAX {
            let all = self.ranges.drain(..).reduce(|all, one| all.start.min(one.start)..all.end.max(one.end));
            self.ranges.extend(all);
        }
    }

    /// Bytes that have been written are not lost any more; says whether that was all.
    pub(crate) fn written(&mut self, bytes: &Range<u64>) -> bool {
        let cut = |range: &Range<u64>| {
            [range.start..range.end.min(bytes.start), range.start.max(bytes.end)..range.end]
        };
        self.ranges = self.ranges.iter().flat_map(cut).filter(|range| !range.is_empty()).collect();
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_later_is_not_lost() {
        let mut refused = Refused::new(Error::NoSpace, 10..40);
        refused.add(Error::NoSpace, 30..50);
        for bytes in [0..10, 20..25, 60..70, 5..12, 45..90] {
            assert!(!refused.written(&bytes));
        }
        assert_eq!(refused.ranges, [12..20, 25..30, 30..45]);
        assert!(!refused.written(&(12..44)));
        assert!(refused.written(&(44..45)));
    }

    #[test]
    fn of_very_many_all_between_is_remembered() {
        let mut refused = Refused::new(Error::NoSpace, 0..1);
        for at in 1..=RANGES_MAX as u64 {
            refused.add(Error::NoSpace, at * 10..at * 10 + 1);
        }
        assert_eq!(refused.ranges.len(), 1);
        assert_eq!(refused.ranges[0], 0..RANGES_MAX as u64 * 10 + 1);
    }
}
