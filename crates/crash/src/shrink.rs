//! The smallest sequence of operations that still breaks the promise.

use crate::lab::Lab;
use crate::violation::Violation;
use crate::workload::Workload;

/// Leaves out every operation without which a workload breaks its promise in `lab` all the same. `None` if it keeps it.
pub fn shrink(lab: &mut Lab, workload: &Workload) -> Option<(Workload, Violation)> {
    let mut fails = |numbers: &[usize]| {
        let smaller = workload.keep(numbers)?;
        let violation = lab.explore(&smaller).ok()?.violation?;
        Some((smaller, violation))
    };
    let mut kept: Vec<usize> = (0..workload.operations.len()).collect();
    let mut found = fails(&kept)?;
    // Halves, quarters, ..., single operations.
    let mut piece = kept.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        while at < kept.len() {
            let mut fewer = kept.clone();
            fewer.drain(at..(at + piece).min(kept.len()));
            match fails(&fewer) {
                Some(smaller) if !fewer.is_empty() => (kept, found) = (fewer, smaller),
                _ => at += piece,
            }
        }
        piece /= 2;
    }
    Some(found)
}
