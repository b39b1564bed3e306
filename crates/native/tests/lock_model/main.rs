//! A model of the volume's trickiest locking, run by `shuttle` under thousands of chosen schedules.
//!
//! It transcribes, compactly, and a change there must be made here too:
//! - of `locks.rs`: `read_two`, `glimpse`, `holds`, `write`, `write_in_crowd`, `settle`, `give_way`, `try_write`, `write_all`,
//!   `read_both`, `Exclusive::drop` (without the looks at a lock before a thread sleeps);
//! - of `namespace.rs`: `with_victim` (its guess is what it found first), `unlink`, `open`; of `glimpse.rs`: `open_glimpse`;
//! - of `rename.rs`: an exchange between two directories, of which each entry and each `..` is stored by itself;
//! - of `lanes.rs`: `enter`, `all` (two lanes, and threads without one of their own); of `core.rs`: how an operation
//!   begins, commits and fails, and how an epoch ends;
//! - of `core/seal.rs`, `nat.rs` and `nat/dirty.rs`: how a node is marked, sealed, and its seal broken;
//! - of `orphans.rs`: `commit_unnamed`, `release`, `reclaim`; of `handles.rs`: the table of how often an inode is open
//!   (a count per inode here; that two which close one handle don't both win is left out).
//!
//! It says nothing of two things. Shuttle's atomics are sequentially consistent whatever ordering they are given: the
//! fences of `locks.rs` are not tested, only the order of the steps. And its readers pass a waiting writer, where
//! those of `parking_lot` queue behind it, and so behind other readers; models that are `queued` therefore let readers
//! exclude each other, which closes every circle that a queue could.
//!
//! Each [`Fault`] plants a mistake that must be found: so the tests can fail.

mod directories;
mod epochs;
mod life;
mod locks;
mod seals;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};
use vfs::torture::Torture;

use crate::directories::{besides, glimpses, moves};
use crate::epochs::epochs;
use crate::life::lives;
use crate::locks::Fault;
use crate::seals::seals;

/// Schedules of each kind for a model as it is, and for one with a fault, until it is found.
const SCHEDULES: usize = 1000;
const SCHEDULES_MAX: usize = 40_000;

fn run(model: impl Fn() + Copy + Send + Sync + 'static) {
    run_schedules(SCHEDULES, model);
}

fn run_schedules(schedules: usize, model: impl Fn() + Copy + Send + Sync + 'static) {
    let seed = Torture::seed_from_environment();
    eprintln!("AMBERFS_SEED={seed}");
    let mut config = Config::new();
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new_from_seed(seed, schedules), config.clone()).run(model);
    Runner::new(PctScheduler::new_from_seed(seed, 3, schedules), config).run(model);
}

/// Directories and what they name: stripes below, above, between, and shared.
const PLACES: [[u32; 4]; 4] = [[1, 2, 4, 7], [2, 1, 3, 4], [1, 3, 2, 4], [1, 2, 5, 6]];

#[test]
fn moved_entries_are_seen_whole() {
    for place in PLACES {
        run(move || moves(Fault::None, false, place));
        run(move || moves(Fault::None, true, place));
    }
}

#[test]
fn glimpses_that_hold_are_whole() {
    run(|| glimpses(Fault::None));
}

#[test]
fn inodes_end_once_and_not_while_open() {
    for (ino, links) in [(2, 0), (2, 1), (2, 2), (4, 1), (5, 1)] {
        run(move || lives(Fault::None, ino, links));
    }
}

#[test]
fn epochs_end_between_operations() {
    run(|| epochs(Fault::None));
}

#[test]
fn seals_are_of_what_a_checkpoint_has() {
    run(|| seals(Fault::None));
}

#[test]
fn what_is_seen_is_durable() {
    run(|| besides(Fault::None));
}

/// A test that `$fault`, planted in `$model`, is found.
macro_rules! finds {
    ($name:ident, $fault:ident, $model:ident($($argument:expr),*), $what:literal) => {
        #[test]
        #[should_panic(expected = $what)]
        fn $name() {
            run_schedules(SCHEDULES_MAX, || $model(Fault::$fault $(, $argument)*));
        }
    };
}

finds!(unsorted_stripes_are_found, Unsorted, moves(false, PLACES[0]), "deadlock");
finds!(waiting_for_a_victim_is_found, VictimWaits, moves(false, PLACES[0]), "deadlock");
finds!(waiting_for_a_second_is_found, SecondWaits, moves(false, PLACES[0]), "deadlock");
finds!(a_stale_second_is_found, SecondStale, moves(false, PLACES[0]), "a torn look-up");
finds!(a_late_count_is_found, CountedLate, glimpses(), "a torn glimpse");
finds!(a_glimpse_of_an_odd_count_is_found, OddGlimpse, glimpses(), "a torn glimpse");
finds!(looking_early_whether_it_is_open_is_found, OpenSeenEarly, lives(2, 1), "life: ");
finds!(opening_without_a_look_is_found, OpenUnlocked, lives(2, 1), "life: ");
finds!(opening_after_the_look_is_found, OpenLate, lives(2, 1), "life: ");
finds!(a_blind_reclaim_is_found, ReclaimBlind, lives(2, 1), "life: ");
finds!(a_lane_left_out_is_found, LaneMissed, epochs(), "lanes: ");
finds!(a_lock_before_a_lane_is_found, LaneInside, epochs(), "deadlock");
finds!(a_late_failure_is_found, FailedLate, epochs(), "lanes: half an operation is published");
finds!(an_early_look_for_a_failure_is_found, FailureEarly, epochs(), "lanes: half an operation is published");
finds!(a_lock_given_back_early_is_found, AppliedEarly, epochs(), "lanes: a transaction depends on one");
finds!(sealing_beside_operations_is_found, SealedBeside, seals(), "seals: ");
finds!(keeping_a_broken_seal_is_found, SealKept, seals(), "seals: ");
finds!(keeping_an_unchecked_seal_is_found, SealUnchecked, seals(), "seals: ");
finds!(not_settling_is_found, NotSettled, besides(), "beside: ");
finds!(settling_late_is_found, SettledLate, besides(), "beside: ");
finds!(an_early_glimpse_is_found, GlimpseEarly, besides(), "beside: ");
finds!(a_crowd_that_is_not_seen_is_found, CrowdNotSeen, besides(), "beside: ");
