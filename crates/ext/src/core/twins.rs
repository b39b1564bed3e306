//! Names that the order of a listing cannot tell apart: two hashes of theirs are the same.
//!
//! That is rare by chance and can be had on purpose. The cookies of such twins are numbered, and **a name keeps its number**, whichever of them goes or
//! comes: who goes on behind the first finds the second where it was, and not the first again. So numbers that were given are remembered, and
//! behind which names listings will go on, who may have been alone when they were listed.

use std::collections::{HashMap, VecDeque};

/// Sets of twins that are remembered. Who makes more of them may see listings that are under way begin to number them anew.
const SETS_MAX: usize = 1024;
/// Names that are remembered because a listing stopped there.
const ENDS_MAX: usize = 256;
/// Of a cookie: the number.
const NUMBER: u64 = 0xF;

/// The least cookie of names whose second hash is this.
pub(crate) fn least(cookie: u64) -> u64 {
    cookie & !NUMBER
}

type Name = Box<[u8]>;

#[derive(Default)]
pub(crate) struct Twins {
    /// By directory and least cookie, each at its number.
    sets: HashMap<(u32, u64), Vec<Option<Name>>>,
    /// The last names of listings that were not at their end, with directories and cookies; the latest last.
    ends: VecDeque<(u32, u64, Name)>,
}

impl Twins {
    /// A listing stops behind a name.
    pub(crate) fn stop(&mut self, dir: u32, cookie: u64, name: &[u8]) {
        if self.ends.len() >= ENDS_MAX {
            self.ends.pop_front();
        }
        self.ends.push_back((dir, cookie, name.into()));
    }

    /// Whether a name that is alone may have another number than 0, for who lists on from `from`.
    pub(crate) fn may_know(&self, dir: u32, cookie: u64, from: u64) -> bool {
        least(from) == cookie || !self.sets.is_empty() && self.sets.contains_key(&(dir, cookie))
    }

    /// The numbers of `names`, all those in directory `dir` whose least cookie is `cookie`, for who lists on from `from`.
    pub(crate) fn numbers(&mut self, dir: u32, cookie: u64, from: u64, names: &[&[u8]]) -> Vec<u64> {
        let of = (dir, cookie);
        if self.sets.len() >= SETS_MAX && !self.sets.contains_key(&of) {
            self.sets.clear();
        }
        let known = self.sets.entry(of).or_default();
        let behind = if least(from) == cookie { Some((from & NUMBER) as usize) } else { None };
        for (_, place) in known.iter_mut().enumerate().filter(|(number, _)| Some(*number) != behind) {
            // Those that are gone leave their numbers to others, but not where somebody goes on.
            place.take_if(|name| !names.contains(&&name[..]));
        }
        let put = |known: &mut Vec<Option<Name>>, at: usize, name: &[u8]| {
            known.resize_with(known.len().max(at + 1), || None);
            known[at] = Some(name.into());
        };
        let stopped = self.ends.iter().rev().find(|(other, at, _)| (*other, *at) == (dir, from));
        if let (Some(at), Some((.., name))) = (behind, stopped)
            && known.get(at).is_none_or(Option::is_none)
        {
            put(known, at, name);
        }
        let number = |name: &&[u8]| {
            if let Some(at) = known.iter().position(|known| known.as_deref() == Some(*name)) {
                return at as u64;
            }
            let at = known.iter().position(Option::is_none).unwrap_or(known.len());
            put(known, at, name);
            at as u64
        };
        let numbers = names.iter().map(number).collect::<Vec<u64>>();
        if numbers == [0] {
            self.sets.remove(&of);
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0;

    fn numbers(twins: &mut Twins, from: u64, names: &[&str]) -> Vec<u64> {
        let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        twins.numbers(5, 160, from, &names)
    }

    #[test]
    fn names_keep_their_numbers() {
        let mut twins = Twins::default();
        let mut numbers = |names: &[&str]| numbers(&mut twins, START, names);
        assert_eq!(numbers(&["b"]), [0]);
        assert_eq!(numbers(&["b", "c"]), [0, 1]);
        assert_eq!(numbers(&["c"]), [1], "the other is gone");
        assert_eq!(numbers(&["a", "c", "d"]), [0, 1, 2], "its number is another's");
        assert_eq!(numbers(&["c", "d"]), [1, 2]);
        assert_eq!(numbers(&["d"]), [2]);
        assert_eq!(numbers(&["c"]), [0], "nobody else's is known");
        assert!(twins.sets.is_empty() && !twins.may_know(5, 160, START));
    }

    #[test]
    fn who_stopped_behind_a_name_goes_on_behind_it() {
        let mut twins = Twins::default();
        twins.stop(5, 160, b"b");
        assert!(twins.may_know(5, 160, 160));
        assert_eq!(numbers(&mut twins, 160, &["a", "b"]), [1, 0], "it was alone, and one has come before it");
        let mut twins = Twins::default();
        twins.stop(5, 160, b"b");
        assert_eq!(numbers(&mut twins, 160, &["a"]), [1], "it is gone, and another has come");
        assert_eq!(numbers(&mut twins, START, &["a"]), [1], "which keeps its number");
    }
}
