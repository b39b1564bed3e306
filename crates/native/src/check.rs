//! Checking a volume from scratch (fsck): everything the newest checkpoint reaches is walked, and compared with what
//! the BIA, the SIT, the link counts and the inodes' own counts say.

mod validity;

use std::fmt;

use nvm::{Flushed, Region};
use vfs::{FileKind, InoMap, InoSet};

use crate::Error;
use crate::bia::BlockKind;
use crate::check_report::CheckReport;
use crate::check_snapshots::{Broken, Reached, reach_snapshots};
use crate::directory;
use crate::error::{check_writable, without_advice};
use crate::geometry::{FILE_MAX, SEGMENT_BLOCKS};
use crate::index;
use crate::inode::{Layout, number_of, slots_in};
use crate::inspect::{self, AtRest};
use crate::mend_snapshots;
use crate::nat;
use crate::node::{self, ORPHANS};
use crate::reader::Reader;
use crate::recovery::{self, Rest};
use crate::sit::{Bitmap, SegmentKind, SitEntry};
use crate::superblock::{Left, Root, Superblock};

/// What a check does about what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mend {
    /// Nothing: the volume is left as it is.
    Nothing,
    /// What is there twice or follows from the rest, and the log if all of it can be replayed.
    Derivable,
    /// The same, and what is damaged is given up where the rest can be used without it.
    Everything,
}

/// Checks the volume in `region`, which nobody has mounted. With `repair`, a log left by a crash is replayed, and
/// what can be rebuilt from the tree is: valid bits, segment counts, the hidden directory, the list of snapshots, a damaged
/// superblock, root slot or copy of them. A snapshot that was removed and that damage keeps from going is let go, and so are
/// transactions that cannot be replayed. What the tree itself has lost is reported, not guessed. Without `repair`, nothing is changed.
///
/// What is called repaired is not found by another check. Nothing is changed before all of the volume has been looked at, and could be
/// read.
///
/// `Err` only if there is no volume to check: no superblock, no checkpoint.
pub fn check(region: &Region, repair: bool) -> Result<CheckReport, Error> {
    check_and(region, if repair { Mend::Everything } else { Mend::Nothing })
}

/// The same, where only that is mended by which nothing is lost: what is there twice, what follows from the tree, and the log if all of it
/// can be replayed. If anything else is wrong, nothing is changed.
pub fn preen(region: &Region) -> Result<CheckReport, Error> {
    check_and(region, Mend::Derivable)
}

fn check_and(region: &Region, mend: Mend) -> Result<CheckReport, Error> {
    if mend != Mend::Nothing {
        check_writable(region, "repair the volume")?;
    }
    let found = check_once(region, Mend::Nothing)?;
    let is_sound = found.problems.is_empty() && !found.needs_recovery;
    let loses = found.problems.iter().any(|problem| problem.with_loss);
    match mend {
        Mend::Nothing => Ok(found),
        _ if is_sound => Ok(found),
        Mend::Derivable if loses => Ok(found),
        _ => check_once(region, mend),
    }
}

fn check_once(region: &Region, mend: Mend) -> Result<CheckReport, Error> {
    let checked = check_what_is_read(region, mend);
    // Zeros in place of what could not be read are no damage, and what was mended of them is not on the medium.
    inspect::readable(region)?;
    checked.map_err(|error| match error {
        Error::Volume(vfs::Error::Corrupt(what)) => Error::Volume(vfs::Error::Corrupt(without_advice(what))),
        other => other,
    })
}

fn check_what_is_read(region: &Region, mend: Mend) -> Result<CheckReport, Error> {
    let (repair, gives_up) = (mend != Mend::Nothing, mend == Mend::Everything);
    let mut report = CheckReport::default();
    check_twins(region, repair, &mut report)?;
    let before = AtRest::read(region)?;
    let log = before.log();
    let (needs_recovery, broken) = (before.needs_recovery(&log), log.broken);
    if repair {
        // Recovery needs room to work in, so that comes first.
        rebuild_sit(&before, &mut report);
    }
    let hidden = hidden_directory(&before).err().filter(|_| gives_up);
    if (needs_recovery || hidden.is_some()) && repair {
        let rest = if gives_up { Rest::Drop } else { Rest::Refuse };
        match recovery::recover(region, rest) {
            Ok(left_out) => {
                (report.recovered, report.transactions_dropped) = (needs_recovery, left_out);
                if let Some(error) = hidden {
                    report.given_up(format!("the hidden directory: {error}"));
                }
                if left_out > 0 {
                    report.given_up(match left_out {
                        1 => "1 transaction of the log could not be replayed, and was dropped".to_string(),
                        n => format!("{n} transactions of the log could not be replayed, and were dropped"),
                    });
                }
            }
            Err(error) => {
                report.found(format!("recovery fails: {error}"));
                report.needs_recovery = needs_recovery;
            }
        }
    }
    if let Some(what) = log.lost_header {
        report.derivable(what, report.recovered);
    }
    report.needs_recovery |= needs_recovery && !repair;
    if let Some(error) = broken.filter(|_| !repair) {
        report.found(error);
    }
    let is_settled = gives_up && report.is_clean();
    if is_settled {
        mend_snapshots::mend_list(region, &mut report)?;
    }
    let mut at_rest = AtRest::read(region)?;
    report.blocks_total = at_rest.medium.geometry.main_blocks();
    if !repair {
        for (_, what) in damaged_segments(&at_rest) {
            report.derivable(what, false);
        }
    }
    loop {
        let nodes = at_rest.nodes();
        let mut walked = report.clone();
        let mut walk = Walk::new(&at_rest, &nodes, &mut walked);
        walk.everything();
        if is_settled && walk.could_do_without_broken() {
            mend_snapshots::drop_broken(region, &walk.broken, &mut report)?;
            at_rest = AtRest::read(region)?;
            continue;
        }
        walk.validity(repair);
        let (counted, blocks) = (at_rest.checkpoint.body.blocks.get(), walk.tree_blocks);
        if counted != blocks && !walk.lost && !walk.report.needs_recovery {
            let what = format!("the checkpoint counts {counted} blocks, it reaches {blocks}");
            let repaired = repair && walk.report.is_clean();
            if repaired {
                recovery::recount(region, blocks)?;
            }
            walk.report.derivable(what, repaired);
        }
        return Ok(walked);
    }
}

/// Whether the names of inodes without a name can be read.
fn hidden_directory(at_rest: &AtRest) -> vfs::Result<()> {
    let nodes = at_rest.nodes();
    directory::list(&nodes, nodes.inode(ORPHANS)?, 0, &mut |_| true)
}

/// Looks at what is there twice: superblocks and root slots, of which one of each suffices, and writes the other anew.
fn check_twins(region: &Region, repair: bool, report: &mut CheckReport) -> Result<(), Error> {
    let intact = Superblock::read(region)?;
    for at in intact.damaged_copies(region) {
        if repair {
            intact.write_copy(region, at).ignore();
        }
        report.derivable(
            format!("of the two superblocks, that at block {at} is damaged; the other serves"),
            repair,
        );
    }
    if let Some(at) = Root::damaged_slot(region) {
        if repair {
            Root::read(region)?.write_twin(region, at).ignore();
        }
        report.derivable(
            format!("of the two root slots, that at block {at} is damaged; the other serves"),
            repair,
        );
    }
    Ok(())
}

/// The segments whose SIT entries are damaged, and how; not those that an interrupted publish has yet to settle.
fn damaged_segments(at_rest: &AtRest) -> Vec<(u32, String)> {
    let unsettled = at_rest.unsettled_segments();
    let all = (0..at_rest.medium.geometry.segments).filter(|segment| !unsettled.contains(segment));
    let error = |segment| SitEntry::read(&at_rest.medium, segment).err().map(|error| error.to_string());
    all.filter_map(|segment| Some((segment, error(segment)?))).collect()
}

/// Rebuilds damaged SIT entries from the newest checkpoint's tree, if all of that can be read.
fn rebuild_sit(at_rest: &AtRest, report: &mut CheckReport) {
    let damaged = damaged_segments(at_rest);
    if damaged.is_empty() {
        return;
    }
    let nodes = at_rest.nodes();
    let mut found = CheckReport::default();
    let mut walk = Walk::new(at_rest, &nodes, &mut found);
    walk.everything();
    if walk.lost || !walk.report.is_clean() {
        return; // the check that follows tells
    }
    let (medium, reached) = (&at_rest.medium, walk.reached_bits());
    let mut flushed = Flushed::none();
    for (segment, what) in damaged {
        let (bits, version) = (&reached[segment as usize], at_rest.checkpoint.body.version.get());
        flushed = flushed
            .and(SitEntry::new(segment, walk.segment_kind(segment), version, bits).write(medium, segment));
        report.derivable(what, true);
    }
    medium.region.fence(flushed).ignore();
}

/// What the namespace says of an inode.
#[derive(Default)]
struct Known {
    links: u32,
    subdirectories: u32,
    nlink: u32,
    directory: bool,
}

struct Walk<'a> {
    at_rest: &'a AtRest,
    nodes: &'a Reader,
    report: &'a mut CheckReport,
    /// What was reached so far.
    reached: Reached,
    /// Nodes that inodes reach.
    nids: InoSet<u32>,
    /// Nodes in the NAT.
    all_nids: InoSet<u32>,
    inodes: InoMap<u32, Known>,
    /// Blocks that the checkpoint reaches.
    tree_blocks: u64,
    /// Something could not be read: what seems unreached may be reached from there.
    lost: bool,
    /// Snapshots of which something could not.
    broken: Vec<Broken>,
}

impl<'a> Walk<'a> {
    fn new(at_rest: &'a AtRest, nodes: &'a Reader, report: &'a mut CheckReport) -> Walk<'a> {
        Walk {
            at_rest,
            nodes,
            report,
            reached: Reached::default(),
            nids: InoSet::default(),
            all_nids: InoSet::default(),
            inodes: InoMap::default(),
            tree_blocks: 0,
            lost: false,
            broken: Vec::new(),
        }
    }

    /// Everything that the checkpoint reaches.
    fn everything(&mut self) {
        self.reach(self.at_rest.checkpoint.block, BlockKind::Checkpoint, "checkpoint");
        self.nat();
        self.inodes();
        self.tree();
        self.unreached_nodes();
        self.tree_blocks = self.reached.blocks.len() as u64;
        self.snapshots();
    }

    /// What snapshots reach.
    fn snapshots(&mut self) {
        let mut reached = std::mem::take(&mut self.reached);
        let (medium, newest) = (&self.at_rest.medium, &self.at_rest.checkpoint);
        let medium = (medium, self.nodes.hash_key);
        let found = reach_snapshots(medium, newest, &mut reached, &mut |what| self.report.found(what));
        self.reached = reached;
        match found {
            Ok(broken) => {
                broken.iter().for_each(|broken| self.lose(broken.what.clone()));
                self.broken = broken;
            }
            Err(error) => self.lose(error.to_string()),
        }
    }

    /// Whether nothing is wrong but with snapshots that are lost anyhow.
    fn could_do_without_broken(&self) -> bool {
        let wrong = self.report.problems.iter().filter(|problem| !problem.repaired).count();
        !self.broken.is_empty()
            && wrong == self.broken.len()
            && self.broken.iter().all(|broken| broken.is_lost)
    }

    /// The blocks reached, by segment.
    fn reached_bits(&self) -> Vec<Bitmap> {
        let geometry = &self.at_rest.medium.geometry;
        let mut all = vec![Bitmap::default(); geometry.segments as usize];
        for block in self.reached.blocks.keys().filter(|block| geometry.in_main(**block)) {
            let (segment, index) = geometry.segment_of(*block);
            all[segment as usize][index / 64] |= 1 << (index % 64);
        }
        all
    }

    /// What a segment takes, judged by what is reached in it.
    fn segment_kind(&self, segment: u32) -> SegmentKind {
        let first = self.at_rest.medium.geometry.segment_start(segment);
        let mut kinds = (first..first + SEGMENT_BLOCKS).filter_map(|block| self.reached.blocks.get(&block));
        if kinds.any(|kind| *kind == BlockKind::Data) { SegmentKind::Data } else { SegmentKind::Meta }
    }

    fn reach(&mut self, block: u64, kind: BlockKind, by: impl fmt::Display) {
        if !self.at_rest.medium.geometry.in_main(block) {
            self.report.found(format!("{by} points to block {block}, outside the Main Area"));
            return;
        }
        if let Some(other) = self.reached.blocks.insert(block, kind) {
            self.report.found(format!("block {block} has two owners: as {other:?}, and as {kind:?} of {by}"));
        }
    }

    /// The same of a block whose owner and place are known.
    fn reach_at(&mut self, block: u64, kind: BlockKind, (owner, place): (u32, u64), by: impl fmt::Display) {
        self.reach(block, kind, by);
        let medium = &self.at_rest.medium;
        if medium.geometry.in_main(block) {
            self.reached.place(medium, block, (owner, place));
        }
    }

    fn lose(&mut self, what: String) {
        self.lost = true;
        self.report.found(what);
    }

    /// The NAT's own blocks, and every node it names.
    fn nat(&mut self) {
        let mut tree = Vec::new();
        let mut entries = Vec::new();
        let walked = nat::walk(
            &self.at_rest.medium,
            self.at_rest.checkpoint.body.tree(),
            &mut |block, first, level| {
                tree.push((block, first, level));
                Ok(())
            },
            &mut |nid, _| {
                entries.push(nid);
                Ok(())
            },
        );
        if let Err(error) = walked {
            self.lose(error.to_string());
        }
        for (block, first, level) in tree {
            self.reach_at(block, nat::kind_of(level), (first, u64::from(level)), "the NAT");
        }
        for nid in entries {
            self.report.nodes += 1;
            self.all_nids.insert(nid);
            if nid >= self.at_rest.checkpoint.body.next_nid.get() {
                self.report.found(format!("node {nid} is beyond the NIDs the checkpoint knows"));
            }
            match self.nodes.block_of(nid) {
                Ok(block) => {
                    let header = node::header_of(&self.at_rest.medium, block);
                    let kind = BlockKind::from_u8(header.kind).expect("verified");
                    self.reach_at(block, kind, (nid, 0), format_args!("node {nid}"));
                    if kind == BlockKind::Inode {
                        self.nids.insert(nid);
                        let map = header.slots.get();
                        if map == 0 {
                            self.report.found(format!("node {nid} is a block of inodes without any"));
                        }
                        let slots = slots_in(map);
                        self.inodes.extend(slots.map(|slot| (number_of(nid, slot as u32), Known::default())));
                    }
                }
                Err(error) => self.lose(error.to_string()),
            }
        }
        let counted = self.at_rest.checkpoint.body.nodes.get();
        if self.report.nodes != u64::from(counted) && !self.lost {
            self.report
                .found(format!("the checkpoint counts {counted} nodes, there are {}", self.report.nodes));
        }
    }

    /// What each inode holds.
    fn inodes(&mut self) {
        let mut inodes: Vec<u32> = self.inodes.keys().copied().collect();
        inodes.sort_unstable();
        let counted = self.at_rest.checkpoint.body.inodes.get();
        if inodes.len() as u64 != u64::from(counted) && !self.lost {
            self.report.found(format!("the checkpoint counts {counted} inodes, there are {}", inodes.len()));
        }
        for ino in inodes {
            if let Err(error) = self.inode(ino) {
                self.lose(format!("inode {ino}: {error}"));
            }
        }
    }

    fn inode(&mut self, ino: u32) -> vfs::Result<()> {
        let inode = self.nodes.inode(ino)?;
        let (hot, derived) = (inode.hot(), inode.derived());
        let directory = FileKind::from_mode(inode.cold().mode.get()) == Some(FileKind::Directory);
        if FileKind::from_mode(inode.cold().mode.get()).is_none() {
            self.report.found(format!("inode {ino} has the impossible mode {:o}", inode.cold().mode.get()));
        }
        let known = self.inodes.get_mut(&ino).expect("an inode");
        (known.nlink, known.directory) = (hot.nlink.get(), directory);
        if directory {
            self.report.directories += 1;
        } else {
            self.report.files += 1;
        }
        if FileKind::from_mode(inode.cold().mode.get()) == Some(FileKind::Symlink)
            && let Err(error) = self.nodes.target(ino)
        {
            self.report.found(error);
        }
        let mut held = Vec::new();
        let mut blocks = 0;
        match inode.layout() {
            Layout::Mapped => {
                let mut data = Vec::new();
                index::walk(
                    self.nodes,
                    inode,
                    index::ALL,
                    &mut |nid, kind| {
                        held.push((nid, kind));
                        Ok(())
                    },
                    &mut |index, pointer| {
                        data.push((index, pointer.block()));
                        Ok(())
                    },
                )?;
                blocks += data.len() as u64;
                for (index, block) in data {
                    self.reach_at(block, BlockKind::Data, (ino, index), format_args!("inode {ino}"));
                }
                if hot.size.get() > FILE_MAX {
                    self.report.found(format!("inode {ino} has the impossible length {}", hot.size.get()));
                }
            }
            Layout::Directory => directory::walk(self.nodes, inode, &mut |nid, kind| {
                held.push((nid, kind));
                Ok(())
            })?,
            Layout::Inline if hot.size.get() != inode.inline_bytes().len() as u64 => {
                let there = inode.inline_bytes().len();
                self.report.found(format!("inode {ino} has length {} but {there} bytes", hot.size.get()));
            }
            Layout::Inline => {}
        }
        match derived.xattr_nid.get() {
            0 => {}
            nid => held.push((nid, BlockKind::Xattr)),
        }
        crate::xattr::each(self.nodes, inode, |_| {})?;
        blocks += held.len() as u64;
        if blocks != derived.blocks.get() {
            self.report
                .found(format!("inode {ino} counts {} blocks, it holds {blocks}", derived.blocks.get()));
        }
        for (nid, kind) in held {
            let view = self.nodes.view(nid, kind)?;
            if view.header().owner.get() != ino {
                let owner = view.header().owner.get();
                self.report.found(format!("node {nid}, held by inode {ino}, says it is inode {owner}'s"));
            }
            if !self.nids.insert(nid) {
                self.report.found(format!("node {nid} is held twice, the second time by inode {ino}"));
            }
        }
        Ok(())
    }

    /// The namespace: who names whom.
    fn tree(&mut self) {
        let root = vfs::ROOT_INO as u32;
        let mut todo = vec![root, ORPHANS];
        let mut seen: InoSet<u32> = todo.iter().copied().collect();
        while let Some(dir) = todo.pop() {
            let mut entries = Vec::new();
            let listed = self.nodes.inode(dir).and_then(|inode| {
                directory::list(self.nodes, inode, 0, &mut |entry| {
                    entries.push((entry.ino, entry.file_kind(), entry.name.to_vec(), entry.key));
                    true
                })?;
                Ok((inode.cold().parent.get(), inode.derived().entries.get()))
            });
            let counted = match listed {
                Ok((_, counted)) => counted,
                Err(error) => {
                    self.lose(format!("directory {dir}: {error}"));
                    continue;
                }
            };
            if counted != entries.len() as u64 {
                self.report
                    .found(format!("directory {dir} counts {counted} entries, it has {}", entries.len()));
            }
            for (ino, kind, name, key) in entries {
                self.entry(dir, ino, kind, &name, key, &mut seen, &mut todo);
            }
        }
        let mut wrong = Vec::new();
        for (ino, known) in &self.inodes {
            let expected = match known.directory {
                true if *ino == root || *ino == ORPHANS => 2 + known.subdirectories,
                true if known.links == 0 => 0,
                true => 2 + known.subdirectories,
                false => known.links,
            };
            if !seen.contains(ino) {
                wrong.push(format!("inode {ino} has no name and is not among the orphans"));
            } else if known.nlink != expected {
                wrong.push(format!("inode {ino} has link count {}, {expected} names", known.nlink));
            }
        }
        wrong.sort();
        for what in wrong {
            self.report.found(what);
        }
    }

    #[allow(clippy::too_many_arguments)] // an entry has that many sides
    fn entry(
        &mut self,
        dir: u32,
        ino: u32,
        kind: FileKind,
        name: &[u8],
        key: u64,
        seen: &mut InoSet<u32>,
        todo: &mut Vec<u32>,
    ) {
        let shown = String::from_utf8_lossy(name);
        if vfs::rules::check_name(name).is_err() || name == b"." || name == b".." {
            self.report.found(format!("directory {dir} has an entry with the impossible name {shown:?}"));
        }
        match self.nodes.inode(dir).map(|inode| directory::find(self.nodes, inode, name)) {
            Ok(Ok(Some(found))) if found.key == key => {}
            _ => self.report.found(format!("entry {shown:?} of directory {dir} is not where its name leads")),
        }
        let Ok(inode) = self.nodes.inode(ino) else {
            self.report
                .found(format!("entry {shown:?} of directory {dir} names inode {ino}, which is not there"));
            return;
        };
        if dir == ORPHANS {
            seen.insert(ino);
            if self.at_rest.root.left() == Left::Clean {
                self.report.found(format!("inode {ino} has no name, and was not removed at the clean end"));
            }
            return;
        }
        if inode.kind() != kind {
            self.report
                .found(format!("entry {shown:?} of directory {dir} says {kind:?}, inode {ino} is not"));
        }
        let first = seen.insert(ino);
        if inode.kind() == FileKind::Directory {
            if !first {
                self.report.found(format!("directory {ino} has a second name, {shown:?} in directory {dir}"));
                return;
            }
            if inode.cold().parent.get() != dir {
                let parent = inode.cold().parent.get();
                self.report.found(format!("directory {ino} is in {dir}, its `..` says {parent}"));
            } else if inode.cold().key.get() != key {
                self.report.found(format!("directory {ino} does not know its entry {shown:?} in {dir}"));
            }
            self.inodes.entry(dir).or_default().subdirectories += 1;
            todo.push(ino);
        }
        self.inodes.entry(ino).or_default().links += 1;
    }

    fn unreached_nodes(&mut self) {
        if self.lost {
            return;
        }
        let mut unreached: Vec<u32> = self.all_nids.difference(&self.nids).copied().collect();
        unreached.sort_unstable();
        for nid in unreached {
            self.report.found(format!("node {nid} belongs to no inode"));
        }
    }
}
