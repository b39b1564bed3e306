//! Names that the order of a listing cannot tell apart: two hashes of theirs are the same.
//!
//! That is rare by chance and can be had on purpose. The cookies of such twins are numbered, and **a name keeps its number** for as long as the other
//! has one, even if that goes: who goes on behind the first finds the second where it was.

use std::collections::HashMap;

/// Sets of twins that are remembered. Who makes more of them may see listings that are under way begin to number them anew.
const SETS_MAX: usize = 1024;

/// The numbers of twins, by directory and least cookie.
#[derive(Default)]
pub(crate) struct Twins(HashMap<(u32, u64), Vec<Option<Name>>>);

type Name = Box<[u8]>;

impl Twins {
    /// The numbers of `names`: all those in directory `dir` whose least cookie is `cookie`.
    pub(super) fn numbers(&mut self, dir: u32, cookie: u64, names: &[&[u8]]) -> Vec<u64> {
        let of = (dir, cookie);
        if names.len() == 1 && !self.0.contains_key(&of) {
            return vec![0];
        }
        if self.0.len() >= SETS_MAX && !self.0.contains_key(&of) {
            self.0.clear();
        }
        let known = self.0.entry(of).or_default();
        for place in known.iter_mut() {
            // Those that are gone leave their numbers to others.
            place.take_if(|name| !names.contains(&&name[..]));
        }
        let number = |name: &&[u8]| {
            if let Some(at) = known.iter().position(|known| known.as_deref() == Some(*name)) {
                return at as u64;
            }
            let at = known.iter().position(Option::is_none).unwrap_or(known.len());
            known.resize_with(known.len().max(at + 1), || None);
            known[at] = Some((*name).into());
            at as u64
        };
        let numbers = names.iter().map(number).collect::<Vec<u64>>();
        if numbers == [0] {
            self.0.remove(&of);
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_numbers() {
        let mut twins = Twins::default();
        let mut numbers = |names: &[&str]| {
            let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
            twins.numbers(5, 160, &names)
        };
        assert_eq!(numbers(&["b"]), [0]);
        assert_eq!(numbers(&["b", "c"]), [0, 1]);
        assert_eq!(numbers(&["c"]), [1], "the other is gone");
        assert_eq!(numbers(&["a", "c", "d"]), [0, 1, 2], "its number is another's");
        assert_eq!(numbers(&["c", "d"]), [1, 2]);
        assert_eq!(numbers(&["d"]), [2]);
        assert_eq!(numbers(&["c"]), [0], "nobody else's is known");
        assert!(twins.0.is_empty());
    }
}
