//! Checking a volume from scratch (fsck): everything the newest checkpoint reaches is walked, and compared with what
//! the BIA, the SIT, the link counts and the inodes' own counts say.

use std::collections::{HashMap, HashSet};

use nvm::{Flushed, Region};
use vfs::FileKind;

use crate::Error;
use crate::bia::{self, BlockKind, Entry};
use crate::directory;
use crate::geometry::{BLOCK, SEGMENT_BLOCKS};
use crate::index::{self, FILE_MAX};
use crate::inode::{Layout, number_of, slots_in};
use crate::inspect::{self, AtRest};
use crate::nat;
use crate::node::{Nodes, ORPHANS};
use crate::sit::{SegmentKind, SitEntry};
use crate::superblock::Superblock;

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// What is wrong, or was.
    pub problems: Vec<Problem>,
    /// Files that are not directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Nodes of all kinds.
    pub nodes: u64,
    /// Blocks that something reaches.
    pub blocks_used: u64,
    /// Blocks of the Main Area.
    pub blocks_total: u64,
    /// A crash had left a log to replay, and it was.
    pub recovered: bool,
    /// There is a log to replay, and it was not: what was committed last is not in what was checked.
    pub needs_recovery: bool,
}

impl CheckReport {
    /// Whether nothing is wrong (any more).
    pub fn is_clean(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired)
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What, and where.
    pub what: String,
    /// Whether it was mended.
    pub repaired: bool,
}

/// Checks the volume in `region`, which nobody has mounted. With `repair`, a log left by a crash is replayed first, and
/// what can be rebuilt from the tree is: valid bits, segment counts, a damaged superblock or its copy. What the
/// tree itself has lost is reported, not guessed. Without `repair`, nothing is changed.
///
/// `Err` only if there is no volume to check: no superblock, no checkpoint.
pub fn check(region: &Region, repair: bool) -> Result<CheckReport, Error> {
    let mut report = CheckReport::default();
    check_superblocks(region, repair, &mut report)?;
    let before = AtRest::read(region)?;
    let needs_recovery = before.needs_recovery()?;
    if repair {
        // Recovery reads the SIT, so that comes first.
        check_sit(&before, true, &mut report);
    }
    if needs_recovery && repair {
        match inspect::recover(region) {
            Ok(()) => report.recovered = true,
            Err(error) => report.found(format!("recovery fails: {error}")),
        }
    }
    report.needs_recovery = needs_recovery && !repair;
    let at_rest = AtRest::read(region)?;
    report.blocks_total = at_rest.medium.geometry.main_blocks();
    if !repair && !needs_recovery {
        check_sit(&at_rest, false, &mut report);
    }
    let nodes = match at_rest.nodes() {
        Ok(nodes) => nodes,
        Err(error) => {
            report.found(error.to_string());
            return Ok(report);
        }
    };
    let mut walk = Walk {
        at_rest: &at_rest,
        nodes: &nodes,
        report: &mut report,
        reached: HashMap::new(),
        nids: HashSet::new(),
        all_nids: HashSet::new(),
        inodes: HashMap::new(),
        lost: false,
    };
    walk.reach(at_rest.checkpoint.block, BlockKind::Checkpoint, "checkpoint");
    walk.nat();
    walk.inodes();
    walk.tree();
    walk.unreached_nodes();
    walk.validity(repair);
    Ok(report)
}

impl CheckReport {
    fn found(&mut self, what: String) {
        self.problems.push(Problem { what, repaired: false });
    }
}

fn check_superblocks(region: &Region, repair: bool, report: &mut CheckReport) -> Result<(), Error> {
    let intact = Superblock::read(region)?;
    let blocks = crate::geometry::SUPERBLOCKS.map(|at| region.load::<[u8; 184]>(at * BLOCK));
    if blocks[0] != blocks[1] {
        if repair {
            intact.write(region).ignore();
        }
        report
            .problems
            .push(Problem { what: "one of the two superblocks is damaged".into(), repaired: repair });
    }
    Ok(())
}

/// Verifies the SIT's own checksums; with `repair`, rebuilds entries from the BIA.
fn check_sit(at_rest: &AtRest, repair: bool, report: &mut CheckReport) {
    let medium = &at_rest.medium;
    let unsettled = at_rest.unsettled_segments();
    for segment in (0..medium.geometry.segments).filter(|segment| !unsettled.contains(segment)) {
        if let Err(error) = SitEntry::read(medium, segment) {
            if repair {
                let valid = bia::count(&bia::valid_bits(medium, segment)) as u16;
                let kind = if valid == 0 { SegmentKind::Free } else { SegmentKind::Meta };
                let entry = SitEntry::new(segment, valid, kind, at_rest.checkpoint.body.version.get());
                medium.region.fence(entry.write(medium, segment)).ignore();
            }
            report.problems.push(Problem { what: error.to_string(), repaired: repair });
        }
    }
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
    nodes: &'a Nodes,
    report: &'a mut CheckReport,
    /// Blocks reached so far, and what they are.
    reached: HashMap<u64, BlockKind>,
    /// Nodes that inodes reach.
    nids: HashSet<u32>,
    /// Nodes in the NAT.
    all_nids: HashSet<u32>,
    inodes: HashMap<u32, Known>,
    /// Something could not be read: what seems unreached may be reached from there.
    lost: bool,
}

impl Walk<'_> {
    fn reach(&mut self, block: u64, kind: BlockKind, by: &str) {
        if !self.at_rest.medium.geometry.in_main(block) {
            self.report.found(format!("{by} points to block {block}, outside the Main Area"));
            return;
        }
        if let Some(other) = self.reached.insert(block, kind) {
            self.report.found(format!("block {block} has two owners: as {other:?}, and as {kind:?} of {by}"));
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
            &mut |block, kind| {
                tree.push((block, kind));
                Ok(())
            },
            &mut |nid, pointer| {
                entries.push((nid, pointer.block()));
                Ok(())
            },
        );
        if let Err(error) = walked {
            self.lose(error.to_string());
        }
        for (block, kind) in tree {
            self.reach(block, kind, "the NAT");
        }
        for (nid, block) in entries {
            self.report.nodes += 1;
            self.all_nids.insert(nid);
            if nid >= self.at_rest.checkpoint.body.next_nid.get() {
                self.report.found(format!("node {nid} is beyond the NIDs the checkpoint knows"));
            }
            match self.nodes.any(nid) {
                Ok(view) => {
                    let kind = BlockKind::from_u8(view.header().kind).expect("verified");
                    self.reach(block, kind, &format!("node {nid}"));
                    if kind == BlockKind::Inode {
                        self.nids.insert(nid);
                        let map = view.header().slots.get();
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
                    &mut |_, pointer| {
                        data.push(pointer.block());
                        Ok(())
                    },
                )?;
                blocks += data.len() as u64;
                for block in data {
                    self.reach(block, BlockKind::Data, &format!("inode {ino}"));
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
        let mut seen: HashSet<u32> = todo.iter().copied().collect();
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
        seen: &mut HashSet<u32>,
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

    /// Reached is valid, valid is reached; and the SIT counts it.
    fn validity(&mut self, repair: bool) {
        let medium = &self.at_rest.medium;
        self.report.blocks_used = self.reached.len() as u64;
        if self.report.needs_recovery {
            return; // the journal of an interrupted publish may still change it
        }
        // Rebuilding from a tree with a part missing would free what that part holds.
        let repair = repair && !self.lost && self.report.is_clean();
        let mut flushed = Flushed::none();
        for segment in 0..medium.geometry.segments {
            let first = medium.geometry.segment_start(segment);
            let before = self.report.problems.len();
            for block in first..first + SEGMENT_BLOCKS {
                let entry = Entry::read(medium, block);
                let reached = self.reached.get(&block).copied();
                let what = match (reached, entry.valid) {
                    (Some(kind), true) if entry.kind != kind as u8 => {
                        format!("block {block} is {kind:?}, the BIA says kind {}", entry.kind)
                    }
                    (Some(kind), false) => format!("block {block} is in use as {kind:?} but not valid"),
                    (None, true) if !self.lost => format!("block {block} is valid but nothing reaches it"),
                    _ => continue,
                };
                if repair {
                    if let Some(kind) = reached {
                        Entry::write_soft(medium, block, entry.version, entry.owner, kind, entry.place);
                    }
                    Entry::set_valid(medium, block, reached.is_some());
                    let line = medium.geometry.bia_at(block);
                    flushed = flushed.and(medium.region.flush(nvm::Purpose::Allocation, line, 16));
                }
                self.report.problems.push(Problem { what, repaired: repair });
            }
            let valid = bia::count(&bia::valid_bits(medium, segment)) as u16;
            let Ok(sit) = SitEntry::read(medium, segment) else { continue };
            if sit.valid.get() != valid {
                let what =
                    format!("segment {segment} has {valid} valid blocks, the SIT says {}", sit.valid.get());
                let kind = if valid == 0 { SegmentKind::Free } else { sit.segment_kind() };
                if repair {
                    let entry = SitEntry::new(segment, valid, kind, sit.version.get());
                    flushed = flushed.and(entry.write(medium, segment));
                }
                // After mending valid bits the count follows; it is no problem of its own.
                if self.report.problems.len() == before || !repair {
                    self.report.problems.push(Problem { what, repaired: repair });
                }
            }
        }
        medium.region.fence(flushed).ignore();
    }
}
