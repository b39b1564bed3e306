//! What of a volume's check is about snapshots: what each of them reaches beyond the running tree and the others.

use std::cell::RefCell;

use vfs::InoMap;

use crate::bia::{BlockKind, Entry};
use crate::checkpoint::Checkpoint;
use crate::geometry::Medium;
use crate::kept::{Kept, Record, State};
use crate::nat::Tree;
use crate::sit::SitEntry;
use crate::twin::Traverse;

/// A snapshot of which something cannot be read.
pub(crate) struct Broken {
    pub(crate) version: u32,
    /// What is wrong, and with which snapshot.
    pub(crate) what: String,
    /// It is to go anyhow, or nothing of it can be read.
    pub(crate) is_lost: bool,
}

impl Broken {
    fn new(medium: &Medium, record: &Record, error: &vfs::Error) -> Broken {
        let (name, version) = (&record.name, record.version);
        let is_removed = record.state != State::Kept;
        let is_lost = is_removed || Checkpoint::read(medium, record.block).is_err();
        let what = match is_removed {
            true => format!("snapshot {name:?}, which was removed, keeps its space: {error}"),
            false if is_lost => format!("nothing of snapshot {name:?} can be read: {error}"),
            false => format!(
                "snapshot {name:?}: {error}; once what can be read of it is copied and it is removed, its space can be given back"
            ),
        };
        Broken { version, what, is_lost }
    }
}

/// Adds to `reached`, the blocks that the newest checkpoint reaches, those of the list of snapshots and of each
/// snapshot; gives those of which something cannot be read. Calls `problem` with what else is wrong. An error if the list
/// cannot be read.
pub(crate) fn reach_snapshots(
    medium: &Medium,
    newest: &Checkpoint,
    reached: &mut InoMap<u64, BlockKind>,
    problem: &mut dyn FnMut(String),
) -> vfs::Result<Vec<Broken>> {
    let (kept, damage) = Kept::read(medium, newest);
    if let Some(error) = damage {
        return Err(error);
    }
    kept.blocks(|block| {
        if reached.insert(block, BlockKind::Snapshots).is_some() {
            problem(format!("block {block} of the list of snapshots has a second owner"));
        }
    });
    // One that is being removed says least of what it has: last.
    let order = |record: &&Record| record.state == State::Removing;
    let (removing, whole): (Vec<_>, Vec<_>) = kept.all().partition(order);
    let mut broken = Vec::new();
    for record in whole.into_iter().chain(removing) {
        if let Err(error) = reach_one(medium, newest, &kept, record, reached, problem) {
            broken.push(Broken::new(medium, record, &error));
        }
    }
    Ok(broken)
}

fn reach_one(
    medium: &Medium,
    newest: &Checkpoint,
    kept: &Kept,
    record: &Record,
    reached: &mut InoMap<u64, BlockKind>,
    problem: &mut dyn FnMut(String),
) -> vfs::Result<()> {
    let checkpoint = Checkpoint::read(medium, record.block)?;
    let found = checkpoint.body.version.get();
    if found != record.version {
        problem(format!("snapshot {:?} is version {}, its checkpoint {found}", record.name, record.version));
    }
    reached.insert(record.block, BlockKind::Checkpoint);
    let is_whole = record.state != State::Removing;
    let next = match kept.after(record.version) {
        _ if is_whole => Tree::default(),
        Some(next) => Checkpoint::read(medium, next.block)?.body.tree(),
        None => newest.body.tree(),
    };
    let previous = kept.before(record.version);
    let seen = RefCell::new(reached);
    let late = RefCell::new(Vec::new());
    let is_own = |block: u64| {
        let born = Entry::read(medium, block).version;
        let is_new = !seen.borrow().contains_key(&block);
        if is_whole {
            if is_new && born > record.version {
                late.borrow_mut().push(block);
            }
            return is_new;
        }
        is_new && born > previous && born <= record.version && is_valid(medium, block)
    };
    let visit = &mut |block, kind| {
        seen.borrow_mut().insert(block, kind);
    };
    let mut traverse =
        Traverse { medium, next, from: record.cursor, steps: u64::MAX, is_own: &is_own, visit };
    let through = traverse.run(checkpoint.body.tree());
    for block in late.take() {
        problem(format!("block {block} of snapshot {:?} is newer than that, says the BIA", record.name));
    }
    through.map(drop)
}

/// Whether the SIT says so.
fn is_valid(medium: &Medium, block: u64) -> bool {
    let (segment, index) = medium.geometry.segment_of(block);
    SitEntry::read(medium, segment).is_ok_and(|entry| entry.bits()[index / 64] >> (index % 64) & 1 == 1)
}
