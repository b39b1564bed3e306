//! What a repair does about snapshots: the list of them, if it is damaged, and those that damage keeps from going.
//!
//! - A record that is lost took a name, a comment and holds with it. The snapshot is still there: its checkpoint is a block of
//!   that kind, valid, and not the newest. If all that it reaches is valid and not newer than it, it is listed again. Of one that
//!   was being removed, some blocks are free or others' by then; if none is yet, it comes back, too. Checkpoints newer than the
//!   list are none: taking a snapshot writes the list. They stay valid when a volume is mounted with a damaged list.
//! - A snapshot that is to go, or of which nothing can be read, is taken out of the list if all else can be read: then the
//!   blocks that only it had are known as those that are valid and that nothing reaches.

use std::cell::Cell;

use nvm::Region;
use vfs::{InoSet, Time};

use crate::Error;
use crate::bia::{BlockKind, Entry};
use crate::check_report::CheckReport;
use crate::check_snapshots::Broken;
use crate::checkpoint::Checkpoint;
use crate::geometry::{Medium, SEGMENT_BLOCKS};
use crate::inspect::AtRest;
use crate::kept::{Kept, Record, State};
use crate::nat::Tree;
use crate::recovery;
use crate::sit::{SitEntry, ones};
use crate::twin::Traverse;

/// Makes a damaged list of snapshots anew, of what can be read of it and of what is found. The volume is clean.
pub(crate) fn mend_list(region: &Region, report: &mut CheckReport) -> Result<(), Error> {
    let AtRest { medium, checkpoint: newest, .. } = AtRest::read(region)?;
    let (mut kept, damage) = Kept::read(&medium, &newest);
    let Some(damage) = damage else { return Ok(()) };
    let mut told = vec![format!("{damage}; names, comments and holds that stood there are lost")];
    for record in lost(&medium, &newest, &kept) {
        if kept.has_room(&record) {
            told.push(format!("a snapshot that the list does not tell of is called {:?}", record.name));
            kept.put(record);
        } else {
            told.push(format!(
                "the list has no room for {:?}, a snapshot that it does not tell of, and which is lost",
                record.name
            ));
        }
    }
    if list_version(&medium, &newest) == newest.body.version.get() {
        told.push(
            "a snapshot taken last of all is lost, if there was one: it was what the volume is now".into(),
        );
    }
    recovery::replace_list(region, kept)?;
    told.into_iter().for_each(|what| report.given_up(what));
    Ok(())
}

/// Takes snapshots that are lost out of the list. The volume is clean.
pub(crate) fn drop_broken(region: &Region, broken: &[Broken], report: &mut CheckReport) -> Result<(), Error> {
    let AtRest { medium, checkpoint: newest, .. } = AtRest::read(region)?;
    let (mut kept, _) = Kept::read(&medium, &newest);
    broken.iter().for_each(|broken| kept.forget(broken.version));
    recovery::replace_list(region, kept)?;
    broken.iter().for_each(|broken| report.given_up(&broken.what));
    Ok(())
}

/// The version of the checkpoint that wrote the list.
fn list_version(medium: &Medium, newest: &Checkpoint) -> u32 {
    let index = newest.body.snapshots().block();
    if medium.geometry.in_main(index) { Entry::read(medium, index).version } else { u32::MAX }
}

/// Records for the snapshots that a list does not tell of, oldest first.
fn lost(medium: &Medium, newest: &Checkpoint, kept: &Kept) -> Vec<Record> {
    let mut verified = InoSet::default();
    let mut records = Vec::new();
    let written = list_version(medium, newest);
    for block in checkpoints(medium) {
        let Ok(checkpoint) = Checkpoint::read(medium, block) else { continue };
        let version = checkpoint.body.version.get();
        if block == newest.block
            || version > written
            || version != Entry::read(medium, block).version
            || kept.get(version).is_some()
            || !is_whole(medium, &checkpoint, &mut verified)
        {
            continue;
        }
        let names =
            (0..).map(|n| if n == 0 { format!("found-{version}") } else { format!("found-{version}-{n}") });
        records.push(Record {
            version,
            block,
            taken: Time { sec: checkpoint.body.time.get() as i64, nsec: 0 },
            state: State::Kept,
            cursor: 0,
            name: names.into_iter().find(|name| kept.find(name).is_none()).expect("a list ends"),
            comment: "found by fsck, which does not know its name".into(),
            holds: Vec::new(),
        });
    }
    records.sort_by_key(|record| record.version);
    records
}

/// The valid blocks of this kind.
fn checkpoints(medium: &Medium) -> impl Iterator<Item = u64> {
    let valid = |segment| match SitEntry::read(medium, segment) {
        Ok(entry) => entry.bits(),
        Err(_) => [u64::MAX; SEGMENT_BLOCKS as usize / 64],
    };
    let in_segment = move |segment: u32| {
        let first = medium.geometry.segment_start(segment);
        ones(&valid(segment)).map(move |index| first + index as u64).collect::<Vec<_>>()
    };
    let all = (0..medium.geometry.segments).flat_map(in_segment);
    all.filter(|block| Entry::read(medium, *block).kind == BlockKind::Checkpoint as u8)
}

/// Whether the SIT says so, or is damaged there and says nothing.
fn is_in_use(medium: &Medium, block: u64) -> bool {
    let (segment, index) = medium.geometry.segment_of(block);
    SitEntry::read(medium, segment).map_or(true, |entry| entry.bits()[index / 64] >> (index % 64) & 1 == 1)
}

/// Whether a checkpoint has all that it ever had. Blocks of those that do are added to `verified`.
fn is_whole(medium: &Medium, checkpoint: &Checkpoint, verified: &mut InoSet<u64>) -> bool {
    let version = checkpoint.body.version.get();
    let is_whole = Cell::new(true);
    let mut seen = Vec::new();
    let is_new = |block: u64| {
        let known = verified.contains(&block);
        let is_there = known || is_in_use(medium, block);
        is_whole.set(is_whole.get() && is_there && Entry::read(medium, block).version <= version);
        !known && is_whole.get()
    };
    let visit = &mut |block, _, _| seen.push(block);
    let mut traverse =
        Traverse { medium, next: Tree::default(), from: 0, steps: u64::MAX, is_own: &is_new, visit };
    let through = traverse.run(checkpoint.body.tree());
    let is_whole = is_whole.get() && through.is_ok();
    if is_whole {
        verified.extend(seen);
    }
    is_whole
}
