//! Reading a log from its beginning to its end.

use std::collections::HashMap;

use zerocopy::FromBytes;

use super::Recovery;
use super::record::{self, COMMIT, DESCRIPTOR, Incompat, MAGIC, REVOKE, RawCommit, RawJournal};
use super::{Journal, Log};
use crate::checksum::{crc32_big, crc32c};
use crate::error::Error;
use crate::store::Logged;

/// The only kind of checksum of version 1.
const CHECKSUM_CRC32: u8 = 1;

/// A transaction on its way to its commit.
struct Open {
    number: u32,
    /// Where blocks belong, and where in the log they are.
    blocks: Vec<(u64, u64, bool)>,
    revoked: Vec<u64>,
    /// Version 1: of all blocks of the transaction so far.
    checksum: u32,
    /// What of it fails its own checksum.
    damage: Option<String>,
}

impl Open {
    fn new(number: u32) -> Open {
        Open { number, blocks: Vec::new(), revoked: Vec::new(), checksum: !0, damage: None }
    }
}

struct Reader<'a> {
    journal: &'a Journal<'a>,
    raw: RawJournal,
    incompat: Incompat,
    seed: u32,
    /// The next block of the log, and how many there still are until it comes round.
    at: u64,
    left: u64,
    committed: Vec<Open>,
}

/// What `journal` has to replay.
pub(super) fn read(journal: &Journal<'_>) -> Result<Log, Error> {
    let raw = journal.superblock()?;
    if raw.incompat().contains(Incompat::FAST_COMMIT) {
        // Also with nothing in the log itself: they are behind it.
        return Err(Error::FastCommits { disk: journal.core.store.disk().name().into() });
    }
    let start = u64::from(raw.start.get());
    if start == 0 {
        return Ok(Log { blocks: HashMap::new(), recovery: Recovery::default(), next: raw.number.get() });
    }
    let (incompat, seed) = (raw.incompat(), raw.seed());
    let left = u64::from(raw.blocks.get() - raw.first.get());
    let mut reader = Reader { journal, raw, incompat, seed, at: start, left, committed: Vec::new() };
    reader.scan()?;
    reader.replay()
}

impl Reader<'_> {
    /// Finds the transactions that count.
    fn scan(&mut self) -> Result<(), Error> {
        let mut open = Open::new(self.raw.number.get());
        while let Some(block) = self.next()? {
            let Some(header) = record::header(&block) else { break };
            if header.number.get() != open.number {
                break;
            }
            match header.kind.get() {
                DESCRIPTOR => {
                    if !self.descriptor(&mut open, &block)? {
                        break;
                    }
                }
                REVOKE => {
                    if self.raw.has_checksums() && !record::tail_is_intact(self.seed, &block) {
                        open.damage.get_or_insert_with(|| "a list of revoked blocks".into());
                    }
                    match record::revoked(self.incompat, &block) {
                        Some(revoked) => open.revoked.extend(revoked),
                        None => drop(open.damage.get_or_insert_with(|| "a list of revoked blocks".into())),
                    }
                }
                COMMIT => {
                    if !self.is_committed(&open, &block) {
                        break;
                    }
                    let next = Open::new(open.number.wrapping_add(1));
                    self.committed.push(std::mem::replace(&mut open, next));
                }
                _ => break,
            }
        }
        self.judge_damage()
    }

    /// Takes in a descriptor and the blocks behind it; false if the log ends in between.
    fn descriptor(&mut self, open: &mut Open, block: &[u8]) -> Result<bool, Error> {
        if self.raw.has_checksums() && !record::tail_is_intact(self.seed, block) {
            open.damage.get_or_insert_with(|| "a descriptor".into());
        }
        let sums_all = self.raw.has_commit_checksums();
        if sums_all {
            open.checksum = crc32_big(open.checksum, block);
        }
        for tag in record::tags(self.incompat, block) {
            let at = self.at;
            if self.raw.has_checksums() || sums_all {
                let Some(data) = self.next()? else { return Ok(false) };
                if sums_all {
                    open.checksum = crc32_big(open.checksum, &data);
                } else {
                    let sum = crc32c(crc32c(self.seed, &open.number.to_be_bytes()), &data);
                    let mask = if self.incompat.contains(Incompat::CSUM_3) { u32::MAX } else { 0xFFFF };
                    if sum & mask != tag.checksum & mask {
                        open.damage.get_or_insert_with(|| format!("the block that belongs to {}", tag.block));
                    }
                }
            } else if !self.pass() {
                return Ok(false);
            }
            open.blocks.push((tag.block, at, tag.escaped));
        }
        Ok(true)
    }

    /// Whether a commit block is what it should be. One of version 1 vouches for all blocks, if it has a checksum.
    fn is_committed(&self, open: &Open, block: &[u8]) -> bool {
        if self.raw.has_checksums() {
            return record::commit_is_intact(self.seed, block);
        }
        let Ok((commit, _)) = RawCommit::read_from_prefix(block) else { return false };
        if !self.raw.has_commit_checksums() || commit.checksum_kind == 0 && commit.checksum_bytes == 0 {
            return true;
        }
        commit.checksum_kind == CHECKSUM_CRC32 && commit.checksums[0].get() == open.checksum
    }

    /// The last transaction may have its commit and not its blocks, if commits don't wait: then it does not count.
    fn judge_damage(&mut self) -> Result<(), Error> {
        if self.incompat.contains(Incompat::ASYNC_COMMIT)
            && self.committed.last().is_some_and(|last| last.damage.is_some())
        {
            self.committed.pop();
        }
        match self.committed.iter().find_map(|open| open.damage.as_ref().map(|damage| (open.number, damage)))
        {
            Some((number, damage)) => {
                Err(self.journal.cannot(format!("{damage} in its transaction {number} has a wrong checksum")))
            }
            None => Ok(()),
        }
    }

    /// The next block of the log; nothing when it has come round.
    fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let at = self.at;
        if self.pass() { self.journal.read(at).map(Some) } else { Ok(None) }
    }

    fn pass(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.at += 1;
        if self.at == u64::from(self.raw.blocks.get()) {
            self.at = u64::from(self.raw.first.get());
        }
        true
    }

    /// The blocks as the transactions leave them.
    fn replay(self) -> Result<Log, Error> {
        // A block revoked in a transaction is not replayed from that one or any before.
        let mut revoked: HashMap<u64, usize> = HashMap::new();
        for (n, open) in self.committed.iter().enumerate() {
            revoked.extend(open.revoked.iter().map(|block| (*block, n)));
        }
        let mut recovery = Recovery { transactions: self.committed.len() as u64, ..Recovery::default() };
        let mut blocks = HashMap::new();
        for (n, open) in self.committed.iter().enumerate() {
            for &(block, at, escaped) in &open.blocks {
                if revoked.get(&block).is_some_and(|last| *last >= n) {
                    recovery.revoked += 1;
                    continue;
                }
                if block >= self.journal.core.superblock.blocks {
                    return Err(self.journal.cannot(format!("it has block {block}, which the disk has not")));
                }
                let begins = escaped.then_some(MAGIC.to_be_bytes());
                blocks.insert(block, Logged { at: self.journal.place(at)?, begins });
            }
        }
        recovery.blocks = blocks.len() as u64;
        let next = self.raw.number.get().wrapping_add(self.committed.len() as u32).wrapping_add(1);
        Ok(Log { blocks, recovery, next })
    }
}
