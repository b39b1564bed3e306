//! A repair that is cut short anywhere leaves what a second one repairs to the same end.

use crash::{RepairReport, Scene, explore_repairs};

fn explored(scene: Scene, closed: bool, share: usize) -> RepairReport {
    let report = explore_repairs(scene, closed, share)
        .unwrap_or_else(|failure| panic!("{scene:?}, {closed}: {failure}"));
    eprintln!(
        "{scene:?}: {} of {} mended, {:?}; {:?}",
        report.mended, report.damaged, report.counts, report.kinds
    );
    report
}

#[test]
fn of_a_volume_that_was_closed() {
    let report = explored(Scene::Kept, true, 5);
    for kind in [
        "superblocks",
        "SIT",
        "BIA",
        "list of snapshots",
        "nothing of snapshot",
        "nothing reaches",
        "says owner",
    ] {
        assert!(report.kinds.iter().any(|what| what.contains(kind)), "{kind}: {:?}", report.kinds);
    }
}

#[test]
fn of_a_volume_with_a_log() {
    let report = explored(Scene::Kept, false, 61);
    for kind in ["could not be replayed", "hidden directory"] {
        assert!(report.kinds.iter().any(|what| what.contains(kind)), "{kind}: {:?}", report.kinds);
    }
}
