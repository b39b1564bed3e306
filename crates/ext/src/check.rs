//! Checking: everything in the file system against everything else.
//!
//! Who owns what is found by walking all inodes, and all directories from the root; then it is compared with what is written
//! down of it: bitmaps, counts, links. Nothing is changed. DRAM: a bit for each cluster, some bytes for each inode in use.

mod backups;
mod claims;
mod names;
mod unused;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use disk::Disk;
use vfs::{Error, FileKind, Result};

use crate::core::Core;
use crate::core::bitmap::Of;
use crate::core::inode::{self, Flags, Inode};
use crate::core::{bitmap, group};
use crate::options::Options;
use crate::superblock::ROOT;
use crate::volume::Volume;
use crate::{map, orphans};
use claims::Claims;

/// More than these findings are not told one by one.
const FINDINGS_MAX: usize = 1000;

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong, a sentence each; of very many the first.
    pub findings: Vec<String>,
    /// Findings in all.
    pub count: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Blocks in use.
    pub blocks: u64,
    /// Inodes that have no name and wait to be removed.
    pub orphans: u64,
    /// What there is and was not checked.
    pub not_checked: Vec<String>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.count == 0
    }

    fn find(&mut self, what: impl Into<String>) {
        self.count += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(what.into());
        }
    }

    /// Takes what was asked for, or notes why it is not there.
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.find(error.to_string());
                None
            }
        }
    }
}

/// Checks the file system on `disk`, as it is when its journal has been replayed in memory.
pub fn check(disk: Arc<Disk>, options: &Options) -> std::result::Result<Report, crate::Error> {
    check_volume(&Volume::open(disk, options)?)
}

/// Checks an open file system that nobody uses: disk and NVM together, if it is attached.
pub fn check_volume(volume: &Volume) -> std::result::Result<Report, crate::Error> {
    let core = &volume.core;
    let mut check = Check {
        core,
        report: Report::default(),
        claims: Claims::new(&core.superblock),
        inodes: BTreeMap::new(),
        orphans: HashSet::new(),
        attributes: BTreeMap::new(),
    };
    check.orphans();
    check.fixed();
    check.growth();
    check.backups();
    for number in 0..core.superblock.groups {
        check.inodes_of(number);
    }
    check.names();
    check.links();
    check.sharers();
    for number in 0..core.superblock.groups {
        check.counts_of(number);
    }
    check.quota_files();
    check.report.inodes = check.inodes.len() as u64;
    check.report.orphans = check.orphans.len() as u64;
    check.report.blocks = check.claims.count() * core.superblock.cluster;
    Ok(check.report)
}

/// What is known of an inode in use.
struct Known {
    kind: FileKind,
    /// What it says; 1 for a directory that has, or had once, more than can be counted.
    links: u32,
    is_uncounted: bool,
    /// What was found.
    names: u32,
}

struct Check<'a> {
    core: &'a Core,
    report: Report,
    claims: Claims,
    inodes: BTreeMap<u32, Known>,
    orphans: HashSet<u32>,
    /// By block of attributes: how many inodes it says that it has, and how many have it.
    attributes: BTreeMap<u64, (u32, u32)>,
}

impl Check<'_> {
    /// Inodes without a name are in a list through the inodes, or in a file.
    fn orphans(&mut self) {
        let superblock = &self.core.superblock;
        // Who has mounted it may have removed some.
        let Some(mut next) = self.report.note(orphans::first(self.core)) else { return };
        while next != 0 {
            if !self.orphans.insert(next) {
                return self.report.find(format!("the list of orphans comes back to inode {next}"));
            }
            next = match self.report.note(inode::read(self.core, next)) {
                Some(inode) => inode.next_orphan,
                None => return,
            };
        }
        if superblock.orphan_file == 0 {
            return;
        }
        let Some(file) = self.report.note(inode::read(self.core, superblock.orphan_file)) else { return };
        for number in 0..(file.size / superblock.block).min(superblock.blocks) {
            let Some(found) = self.report.note(map::block(self.core, &file, number)) else { return };
            let Some(at) = found else {
                return self.report.find(format!("block {number} of the orphan file is missing"));
            };
            let Some(block) = self.report.note(orphans::file_block(self.core, &file, at)) else { return };
            let (words, _) = block[..block.len() - orphans::FILE_TAIL].as_chunks::<4>();
            self.orphans
                .extend(words.iter().map(|word| u32::from_le_bytes(*word)).filter(|number| *number != 0));
        }
    }

    /// What of a group's inodes is in use, and what each of them has.
    fn inodes_of(&mut self, number: u32) {
        let core = self.core;
        let superblock = &core.superblock;
        let Some(group) = self.report.note(group::read(core, number)) else { return };
        let Some(bits) = self.report.note(bitmap::inodes(core, &group)) else { return };
        let first = number * superblock.inodes_per_group + 1;
        let (mut used, mut directories) = (0, 0);
        for n in 0..superblock.inodes_per_group {
            let ino = first + n;
            let set = bits.as_ref().is_some_and(|bits| bitmap::is_set(bits, n.into()));
            used += u32::from(set);
            let past = n >= superblock.inodes_per_group - group.unused_inodes;
            if set && past {
                self.report.find(format!("inode {ino} is in use, and group {number} says that it never was"));
            }
            if !set {
                // What lies in the part of a table that was never used means nothing.
                if !past && !group.inodes.unused {
                    self.left_over(ino);
                }
                continue;
            }
            match inode::read(core, ino) {
                // Reserved ones are taken whether they are used or not.
                Err(Error::Stale) if ino < superblock.first_inode => {
                    if let Some(left) = self.report.note(inode::remains(core, ino)) {
                        self.sealed(ino, &left);
                    }
                }
                Err(Error::Stale) => {
                    self.report.find(format!("inode {ino} is not in use, and its bitmap says that it is"))
                }
                Err(error) => self.report.find(error.to_string()),
                Ok(inode) => {
                    // One that somebody had open when it was removed is its group's until it is gone.
                    let is_there = inode.links > 0 || self.orphans.contains(&ino);
                    directories += u32::from(inode.is_dir() && is_there);
                    self.inode(&inode);
                }
            }
        }
        if let Some(bits) = &bits {
            self.padding(number, Of::Inodes, bits, superblock.inodes_per_group.into());
        }
        if superblock.inodes_per_group - used != group.free_inodes {
            let free = superblock.inodes_per_group - used;
            self.report.find(format!("group {number} has {free} free inodes and says {}", group.free_inodes));
        }
        if directories != group.directories {
            self.report
                .find(format!("group {number} has {directories} directories and says {}", group.directories));
        }
    }

    fn inode(&mut self, inode: &Inode) {
        let (number, superblock) = (inode.number, &self.core.superblock);
        self.blocks(inode);
        if number != ROOT && number < superblock.first_inode {
            return;
        }
        self.nothing_behind_the_end(inode);
        if inode.links == 0 && !self.orphans.contains(&number) {
            self.report.find(format!("inode {number} has no link, and is not among the orphans"));
        }
        if number == superblock.orphan_file {
            return;
        }
        let kind = inode.kind();
        let may_have_many = superblock.features.ro_compat.contains(crate::RoCompat::DIR_NLINK)
            && kind == FileKind::Directory
            && inode.flags.contains(Flags::INDEX);
        let is_uncounted = may_have_many && inode.links == 1;
        self.inodes.insert(number, Known { kind, links: inode.links, is_uncounted, names: 0 });
    }

    /// No written block lies behind a file's end, unless it is among the orphans: then it is being cut.
    fn nothing_behind_the_end(&mut self, inode: &Inode) {
        let superblock = &self.core.superblock;
        let may_have = inode.kind() != FileKind::Regular
            || inode.is_inline()
            || self.orphans.contains(&inode.number)
            || inode.number == superblock.orphan_file;
        let mut at = inode.size.div_ceil(superblock.block);
        while !may_have && at < map::END {
            let Some(run) = self.report.note(map::run(self.core, inode, at)) else { return };
            if matches!(run.place, map::Place::Mapped(_)) {
                let (number, size) = (inode.number, inode.size);
                return self.report.find(format!(
                    "inode {number} has a written block {at}, and ends at byte {size} before it"
                ));
            }
            at = at.saturating_add(run.blocks);
        }
    }

    /// What is counted in quota files is not looked at.
    fn quota_files(&mut self) {
        let Some(raw) = self.report.note(self.core.newest_superblock()) else { return };
        let files = raw.quota_files().into_iter();
        self.report.not_checked =
            files.map(|(whose, inode)| format!("the quota file of {whose}, inode {inode}")).collect();
    }

    fn links(&mut self) {
        let inodes = std::mem::take(&mut self.inodes);
        for (number, known) in &inodes {
            let is_named = known.names > 1;
            if known.links != known.names && !(known.is_uncounted && is_named) {
                let what = match (known.names, known.kind) {
                    (0, FileKind::Directory) => format!("directory {number} is in no directory"),
                    (0, _) => format!("inode {number} has no name, and {} links", known.links),
                    (names, _) => format!("inode {number} has {names} names and {} links", known.links),
                };
                self.report.find(what);
            }
        }
        self.inodes = inodes;
    }
}
