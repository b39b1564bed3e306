//! What a power cut may leave of each line that is not durable, as choices.

use std::rc::Rc;

use disk::SECTOR;
use nvm::{LINE, Line};

use crate::machine::{Machine, Pending};
use crate::unit::{Unit, Units};

/// Lines of a disk's sector: one unit.
const SECTOR_LINES: u32 = (SECTOR / LINE) as u32;

/// Bulk data lines are one unit from this many on.
const GROUP_LINES: usize = 8;

/// All units of a crash point.
pub(crate) fn units(machine: &Machine) -> Units {
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

/// One line: a version for each store that changed it, and the words of each in between.
fn single(first: u32, line: &Pending) -> Option<Unit> {
    let mut versions = vec![vec![line.durable]];
    let (mut torn, mut before) = (Vec::new(), line.durable);
    for next in line.versions.iter().map(|version| &version.line) {
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
        before = *next;
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
    let (mut torn, mut before) = (Vec::new(), versions[0].clone());
    for store in 0..lines[0].versions.len() {
        let next: Vec<Line> = lines.iter().map(|line| line.versions[store].line).collect();
        let some = |arrived: &dyn Fn(usize) -> bool| {
            (0..lines.len()).map(|n| if arrived(n) { next[n] } else { before[n] }).collect::<Vec<_>>()
        };
        push_new(&versions, &mut torn, some(&|n| n == 0));
        push_new(&versions, &mut torn, some(&|n| n + 1 < lines.len()));
        push_new(&versions, &mut torn, some(&|n| n % 2 == 1));
        if !versions.contains(&next) {
            versions.push(next.clone());
        }
        before = next;
    }
    torn.retain(|contents| !versions.contains(contents));
    (versions.len() > 1 || !torn.is_empty()).then_some(Unit { first, versions, torn })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of which the first byte of some words is one.
    fn line(words: &[usize]) -> Line {
        let mut line = [0; LINE as usize];
        words.iter().for_each(|word| line[word * 8] = 1);
        line
    }

    /// There and back, and on: what a store tears is what was there before it, not what was there another time.
    #[test]
    fn a_store_is_torn_over_the_one_before_it() {
        let pending = Pending::stored(line(&[]), &[line(&[7]), line(&[]), line(&[0, 1])]);
        let unit = single(0, &pending).unwrap();
        let one = |words: &[usize]| vec![line(words)];
        assert_eq!(unit.versions, [one(&[]), one(&[7]), one(&[0, 1])]);
        assert_eq!(unit.torn, [one(&[0]), one(&[1])]);
        let lines: Vec<Pending> = (0..GROUP_LINES)
            .map(|_| Pending::stored(line(&[]), &[line(&[7]), line(&[]), line(&[0])]))
            .collect();
        let unit = grouped(0, &lines.iter().collect::<Vec<_>>()).unwrap();
        for torn in &unit.torn {
            assert!(!(torn.contains(&line(&[7])) && torn.contains(&line(&[0]))), "no store left both");
        }
    }
}
