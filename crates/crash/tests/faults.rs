//! The explorer finds faults in the volume's logic: each is planted in turn.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crash::{
    Id, Lab, Native, Promise, Scene, Workload, WorkloadError, catalogue, explore_pair, explore_repairs,
    pairs, replay_pair, shrink,
};
use native::Fault::{self, *};
use native::{FormatOptions, MountOptions, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::torture::{Limits, Torture};

/// Its records fill a chunk of the log and begin another, so that the last of the one can be missing where the first of
/// the other is there.
const TWO_CHUNKS: &str = "setxattr-large+setxattr-large+setxattr-large+setxattr-large+setxattr-large+\
    setxattr-large+setxattr-large+setxattr-large+chmod+chmod-dir+setxattr-dir+unlink-hard+mkdir";

/// Which workloads show which faults, and under which promise.
const TABLE: &[(Promise, &str, &[Fault])] = &[
    (
        Promise::Operation,
        "create",
        &[
            CommitFence,
            TransactionInTwo,
            RecordTailNotSent,
            RecordChecksumIgnored,
            OldHalfReplayed,
            LastRecordIgnored,
            ReplayedInPlace,
            LogBegunTooEarly,
            HalfHeaderNotSent,
            RootsTogether,
            RootNotSent,
            PredecessorNotFreed,
            SequenceStale,
            FreedBlockStaysValid,
            NodeChangedInPlace,
        ],
    ),
    (Promise::Operation, "write-block", &[DataChecksumIgnored, ReplayWithoutClaims]),
    (Promise::Operation, "write-empty-three", &[DataFence]),
    (Promise::Operation, "level-second+sync-create", &[SoftEntriesNotFlushed]),
    (Promise::Operation, "write-sub-block", &[AppliedTooEarly]),
    (
        Promise::Operation,
        "sync-write",
        &[
            InPlaceForgotten,
            InPlaceNotFlushed,
            BytesNotFlushed,
            NodesNotFlushed,
            NodeTailNotFlushed,
            NatNotSent,
            SitJournalNotSent,
            CheckpointNotSent,
            PrepareFence,
            PublishNotFlushed,
            PublishFence,
            SettledBeforePublished,
            SettleNotFlushed,
            SettleFence,
            RootBeforeSettled,
        ],
    ),
    (Promise::Operation, "seal-broken", &[SealNotBroken]),
    (Promise::Operation, "truncate-zero-write", &[ReplayedBackwards]),
    (Promise::Operation, "truncate-down-up", &[TailNotZeroed]),
    (Promise::Operation, "unlink-while-open", &[OrphanNotNamed, OrphanNotReclaimed, FreedBlockReused]),
    (Promise::Operation, "unlink-open-close", &[HiddenEntryLeft]),
    (Promise::Operation, "level-direct+create", &[HighWaterStale]),
    (Promise::Operation, "create-twice+mkdir-and-file", &[NumbersNotClaimed]),
    (Promise::Operation, "snapshot+write-sub-block", &[SharedChangedInPlace, KeptTooLate]),
    (Promise::Operation, "snapshot-then-unlink", &[KeptFreed]),
    (Promise::Operation, "snapshot-then-snapshot", &[ListNotSent]),
    (Promise::Operation, "snapshot-then-remove", &[NextIgnored]),
    (Promise::Operation, "snapshot-then-write-remove", &[RemovedAtOnce]),
    (Promise::Operation, "snapshot-then-unlink-remove", &[CursorForgotten]),
    (Promise::Operation, "snapshot-then-remove-newer", &[PreviousIgnored]),
    (Promise::Operation, "roll-back", &[GivenUpForgotten]),
    (Promise::Operation, "clone-mounted", &[CloneNotSent, CloneOverOld]),
    (
        Promise::Operation,
        "empty-snapshots-then-remove",
        &[HomeNotSent, MoveNotTold, MovesNotListed, MovedIsNewborn],
    ),
    (Promise::Fsync, "write-sub-block", &[ForceNotFlushed, ForceFence, InPlaceNotForced]),
    (Promise::Fsync, TWO_CHUNKS, &[GapIgnored]),
];

/// Faults that no single thread shows: not this workload, but these two operations at the same time, by their places in the
/// list of those that are paired; and how many schedules are tried, evenly among those with up to two preemptions.
const OF_TWO: &[(Fault, &str, [usize; 2], usize)] = &[
    (KeptLoweredEarly, "snapshot-then-write-remove", [8, 14], 40),
    (FrozenTooLate, "snapshot-then-snapshot", [0, 13], 40),
    // A name is removed that was not durable yet; two directories are counted in one, a file grows and a hole is filled behind
    // what is lost; the blocks of a record did not come.
    (NotSettled, "create", [0, 19], 40),
    (AlwaysBeside, "mkdir", [1, 18], 300),
    (AlwaysBeside, "write-block", [9, 28], 60),
    (AlwaysBeside, "write-block", [29, 30], 60),
    (BesideNotTold, "write-block", [9, 21], 300),
    // Two names are made in one moment, and only the first tells the directory of it, which is lost.
    (TimesLeftOut, "create", [0, 17], 60),
    // A file is read in the moment in which a node that has moved leads to where its data is to come.
    (HomesFilledLate, "empty-snapshot", [25, 27], 300),
    // What was preallocated is written where it was, when its copy has been made.
    (ReservedFilledEarly, "reserved-written-moved", [27, 31], 60),
];

/// How a planted fault shows in a workload, and after how many states.
fn find(fault: Fault, promise: Promise, name: &str) -> Option<(String, u64)> {
    let workload = Workload { from: 0, ..Workload::named(&Native::ADAPTIVE, name, 1, &catalogue()).unwrap() };
    let mut lab = Lab::new(&Native::ADAPTIVE, promise, 2);
    // The scene is set without the fault.
    lab.recording(&workload).unwrap();
    // A volume that panics is a finding like any other.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    native::plant(Some(fault));
    let explored = lab.explore(&workload);
    native::plant(None);
    std::panic::set_hook(hook);
    match explored {
        Ok(explored) => {
            let violation = explored.violation?;
            let id = Id {
                subject: "native".into(),
                workload: workload.name,
                promise,
                seed: workload.seed,
                event: violation.event,
                lines: violation.lines.clone(),
                depth: Id::DEPTH,
            };
            Some((format!("{id}: {}", violation.deepest().what), explored.counts.distinct))
        }
        Err(error @ (WorkloadError::Schedule(_) | WorkloadError::Bypass(_))) => panic!("{fault:?}: {error}"),
        Err(error) => Some((format!("native:{name}:{promise}: {error}"), 0)),
    }
}

/// How a planted fault shows in two operations at the same time, and again by the name of what it showed. Where others use the machine, too, a
/// thread may sleep for so long and for another reason that it is taken to wait for a lock: such a run has no name, and another follows.
fn find_in_pair(places: [usize; 2], schedules: usize) -> Option<String> {
    let pair = pairs().into_iter().find(|pair| pair.places() == places).unwrap();
    let mut again = Ok(None);
    for _ in 0..4 {
        let failure = explore_pair(&Native::ADAPTIVE, &pair, schedules, 1).err()?;
        let id = failure.id(&Native::ADAPTIVE, &pair);
        again = replay_pair(&Native::ADAPTIVE, &id).map(|found| found.map(|found| found.to_string()));
        if again == Ok(Some(failure.to_string())) {
            return Some(format!("{id}: {failure}"));
        }
        eprintln!("{id}: {failure}; by its name: {again:?}");
    }
    panic!("what was found is not found again by its name: {again:?}")
}

/// Faults that random operations beside the model show, without any crash: the trees of snapshots are compared, too.
const OF_TORTURE: [Fault; 2] = [SharedChangedInPlace, KeptFreed];

/// What random operations find wrong with a volume.
fn find_by_torture() -> Option<String> {
    let zone = Zone::anonymous(66 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    native::format(&region, &FormatOptions::default()).unwrap();
    let options = MountOptions { background: false, ..MountOptions::default() };
    let volume = Volume::open(region, &options).unwrap();
    let limits = Limits { xattr_bytes: 900, inodes: 100, file_bytes: 1 << 22, ..Limits::default() };
    let mut torture = Torture::new(7).with_limits(limits);
    let run = AssertUnwindSafe(|| torture.run_with_snapshots(&volume, 6_000));
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let panic = catch_unwind(run).err();
    std::panic::set_hook(hook);
    // Who knows what it would do when it is closed.
    std::mem::forget(volume);
    panic.map(|panic| panic.downcast::<String>().map_or_else(|_| "it panics".into(), |text| *text))
}

/// Faults that repairs show which are cut short: of a volume that was closed or not, of which every so many words are damaged.
const OF_REPAIRS: &[(Fault, bool, usize)] = &[(ListNotSent, true, 15), (RenewedEmpty, false, 61)];

fn repair_faults_are_found() {
    for (fault, closed, share) in OF_REPAIRS {
        let explored = || explore_repairs(Scene::Kept, *closed, *share);
        let sound = explored().unwrap_or_else(|failure| panic!("{fault:?} is not planted: {failure}"));
        native::plant(Some(*fault));
        let found = explored();
        native::plant(None);
        let failure = found.err().unwrap_or_else(|| panic!("{fault:?} is not found: {:?}", sound.kinds));
        eprintln!("{:22} {failure}", format!("{fault:?}"));
    }
}

/// Of several operations, those are left that it takes.
fn what_is_found_shrinks() {
    let named = |name| Workload::named(&Native::ADAPTIVE, name, 1, &catalogue()).unwrap();
    let (whole, essence) = (named("chmod+unlink-while-open+setxattr-dir+mkdir"), named("unlink-while-open"));
    let shrunk = || shrink(&mut Lab::new(&Native::ADAPTIVE, Promise::Operation, 0), &whole);
    assert!(shrunk().is_none(), "it keeps its promise");
    native::plant(Some(OrphanNotReclaimed));
    let found = shrunk();
    native::plant(None);
    let (smaller, violation) = found.expect("the fault is found");
    let shown = |workload: &Workload| format!("{:?}", workload.operations);
    let what = violation.expect("only a crash shows it").deepest().what.clone();
    assert_eq!(shown(&smaller), shown(&essence), "{}: {what}", smaller.name);
    let again = named(&smaller.name);
    assert_eq!(shown(&again), shown(&essence), "by its name");
}

/// Each of them is found, and without any nothing is.
#[test]
fn planted_faults_are_found() {
    // One at a time: a fault is planted in all that the process does.
    repair_faults_are_found();
    what_is_found_shrinks();
    let mut missed = Vec::new();
    for (promise, name, faults) in TABLE {
        let workload =
            Workload { from: 0, ..Workload::named(&Native::ADAPTIVE, name, 1, &catalogue()).unwrap() };
        let sound = Lab::new(&Native::ADAPTIVE, *promise, 2).explore(&workload).unwrap();
        assert!(sound.violation.is_none(), "{name}, {promise}: {:?}", sound.violation);
        for fault in *faults {
            match find(*fault, *promise, name) {
                Some((what, states)) => {
                    eprintln!("{:22} {states:6} states  {what}", format!("{fault:?}"));
                }
                None => missed.push(format!("{fault:?} in {name} with {promise}")),
            }
        }
    }
    assert_eq!(find_by_torture(), None);
    for fault in OF_TORTURE {
        native::plant(Some(fault));
        let found = find_by_torture();
        native::plant(None);
        match found.as_ref().and_then(|what| what.lines().next()) {
            Some(what) => eprintln!("{:22} {what}", format!("{fault:?}")),
            None => missed.push(format!("{fault:?} in random operations")),
        }
    }
    for (fault, workload, places, schedules) in OF_TWO {
        assert_eq!(find_in_pair(*places, *schedules), None);
        native::plant(Some(*fault));
        // One schedule of many may show it, and others who use the machine may have disturbed that very run.
        let found = (0..3).find_map(|_| find_in_pair(*places, *schedules));
        native::plant(None);
        match found {
            Some(what) => eprintln!("{:22} {what}", format!("{fault:?}")),
            None => missed.push(format!("{fault:?} in the pair {places:?}")),
        }
        assert_eq!(find(*fault, Promise::Operation, workload), None, "{fault:?} in {workload}");
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
    let alone = |fault: &Fault| TABLE.iter().any(|(_, _, faults)| faults.contains(fault));
    let of_repairs = |fault: &Fault| OF_REPAIRS.iter().any(|(of_repairs, ..)| of_repairs == fault);
    let planted = |fault: &&Fault| {
        alone(fault) || of_repairs(fault) || OF_TWO.iter().any(|(of_two, ..)| of_two == *fault)
    };
    let left_out: Vec<&Fault> = Fault::ALL.iter().filter(|fault| !planted(fault)).collect();
    assert!(left_out.is_empty(), "not planted: {left_out:?}");
}
