//! Two operations at the same time leave what one after the other leaves, whatever the schedule and the power cut.

use crash::{Native, explore_pair, pairs};

#[test]
fn pairs_of_operations_are_as_if_one_came_first() {
    let mut schedules = 0;
    // Every seventh of the 91 pairs: each operation is among them.
    for pair in pairs().iter().step_by(7) {
        match explore_pair(&Native, pair, 6, 1) {
            Ok(report) => schedules += report.schedules,
            Err(failure) => panic!("{} beside {}: {failure}", pair[0], pair[1]),
        }
    }
    assert!(schedules > 50, "only {schedules} schedules were run");
}
