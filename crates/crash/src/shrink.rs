//! The smallest sequence of operations that still fails.

use crate::lab::{Lab, WorkloadError};
use crate::violation::Violation;
use crate::workload::Workload;

/// Leaves out every operation without which a workload fails in `lab` all the same: breaks its promise, or goes wrong without a
/// crash. `None` if it does neither.
pub fn shrink(lab: &mut Lab, workload: &Workload) -> Option<(Workload, Result<Violation, WorkloadError>)> {
    smallest(workload.operations.len(), |numbers| {
        let smaller = workload.keep(numbers)?;
        let failure = lab.explore(&smaller).map(|explored| explored.violation).transpose()?;
        Some((smaller, failure))
    })
}

/// Of the numbers below `count`, some that still fail, none of which can be left out; and what `fails` says of them.
fn smallest<T>(count: usize, mut fails: impl FnMut(&[usize]) -> Option<T>) -> Option<T> {
    let mut kept: Vec<usize> = (0..count).collect();
    let mut found = fails(&kept)?;
    loop {
        let before = kept.len();
        // Halves, quarters, ..., single ones.
        let mut piece = kept.len().div_ceil(2);
        while piece > 0 {
            let mut at = 0;
            while at < kept.len() {
                let mut fewer = kept.clone();
                fewer.drain(at..(at + piece).min(kept.len()));
                let smaller = if fewer.is_empty() { None } else { fails(&fewer) };
                match smaller {
                    Some(smaller) => (kept, found) = (fewer, smaller),
                    None => at += piece,
                }
            }
            piece /= 2;
        }
        // What is left out late may have been all that an earlier one was needed for.
        if kept.len() == before {
            return Some(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_needed_by_what_is_left_out_is_left_out() {
        let failing: [&[usize]; 3] = [&[0, 1, 2], &[0, 1], &[1]];
        let fails = |numbers: &[usize]| failing.contains(&numbers).then(|| numbers.to_vec());
        assert_eq!(smallest(3, fails), Some(vec![1]));
        assert_eq!(smallest(4, fails), None, "it does not fail");
    }

    #[test]
    fn of_many_those_that_matter_are_left() {
        let fails = |numbers: &[usize]| {
            [3, 17, 18].iter().all(|number| numbers.contains(number)).then(|| numbers.to_vec())
        };
        assert_eq!(smallest(30, fails), Some(vec![3, 17, 18]));
    }
}
