//! The ordeal must pass what is right and catch what is wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::broken::{Broken, Fault};

#[test]
fn a_model_is_like_a_model() {
    let volume = Model::new();
    let mut torture = Torture::new(1);
    torture.run_with(&volume, 100_000, 2_000, &mut |_| {});
    check_coverage(torture.tally());
}

/// Each method succeeds and fails in each way that it can, or the ordeal is none.
fn check_coverage(tally: &BTreeMap<(&'static str, i32), u64>) {
    let expected: [(&str, &[i32]); 31] = [
        ("lookup", &[0, 2, 13, 20, 22, 36]),
        ("getattr", &[0]),
        ("setattr", &[0, 1, 13, 27, 95]),
        ("readlink", &[0, 22]),
        ("access", &[0, 13]),
        ("mknod", &[0, 1, 2, 13, 17, 20, 22, 36]),
        ("mkdir", &[0, 2, 13, 17, 20, 22, 36]),
        ("symlink", &[0, 13, 17, 20]),
        ("link", &[0, 1, 2, 13, 17, 20]),
        ("unlink", &[0, 1, 2, 13, 20, 21, 22, 36]),
        ("rmdir", &[0, 1, 2, 13, 20, 22, 36, 39]),
        ("rename", &[0, 1, 2, 13, 16, 17, 20, 21, 22, 39]),
        ("open", &[0, 6, 13, 21, 40]),
        ("create", &[0, 13, 17, 20, 21, 40]),
        ("tmpfile", &[0, 13, 20, 22]),
        ("release", &[0]),
        ("read", &[0, 9, 21]),
        ("read_slices", &[0, 9, 21]),
        ("write", &[0, 9]),
        ("fsync", &[0]),
        ("fsync_inode", &[0]),
        ("syncfs", &[0]),
        ("readdir", &[0, 20]),
        ("statfs", &[0]),
        ("getxattr", &[0, 13, 22, 61, 95]),
        ("setxattr", &[0, 1, 13, 17, 22, 61, 95]),
        ("listxattr", &[0]),
        ("removexattr", &[0, 1, 13, 22, 61, 95]),
        ("fallocate", &[0, 22, 27, 95]),
        ("seek", &[0, 6]),
        ("copy_file_range", &[0, 9, 22]),
    ];
    for (name, outcomes) in expected {
        for &errno in outcomes {
            assert!(tally.contains_key(&(name, errno)), "{name} never gave {errno}: {tally:?}");
        }
        let succeeded = tally[&(name, 0)];
        assert!(succeeded >= 100, "{name} succeeded {succeeded} times only");
    }
}

#[test]
fn one_seed_does_the_same_twice() {
    let run = |seed| {
        let mut torture = Torture::new(seed);
        torture.run(&Model::new(), 3_000);
        torture.tally().clone()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn what_is_cleared_is_empty() {
    let volume = Model::new();
    let mut torture = Torture::new(2);
    torture.run(&volume, 5_000);
    torture.clear(&volume);
    assert_eq!(known::entries(&volume, ROOT_INO), Ok(Vec::new()));
    assert_eq!(torture.known.len(), 1);
}

#[test]
fn a_full_volume_is_tolerated_if_asked() {
    let volume = Model::new().with_capacity(2 << 20);
    let mut torture = Torture::new(3).tolerating(&[Error::NoSpace]);
    torture.run(&volume, 20_000);
    assert!(torture.tolerated_count() > 100);
}

#[test]
fn every_fault_is_caught() {
    Torture::new(9).run_with(&Broken::new(Fault::Nothing), 5_000, 1_000, &mut |_| {});
    for fault in Fault::ALL {
        let volume = Broken::new(fault);
        let mut torture = Torture::new(10);
        let run = AssertUnwindSafe(|| torture.run_with(&volume, 50_000, 1_000, &mut |_| {}));
        let message =
            *catch_unwind(run).expect_err(&format!("{fault:?} went unnoticed")).downcast::<String>().unwrap();
        assert!(message.contains("seed 10") && message.contains("step"), "{fault:?}: {message}");
    }
}
