//! What a crash may leave, and where what files hold is made durable apart from all else.
//!
//! Such a volume commits names, attributes and times in the order in which they were changed. What a file holds waits for a sync of that file, or for
//! the background, which writes it block by block. So what is found is the tree after some operation since all but contents was made durable; and
//! each file there is a file of its own history:
//!
//! - Each of its sectors is what it was at some time since that file was synced: nothing synced is lost, no byte comes from nowhere, from an older
//!   time or from another file, and there are no zeros where there never were any.
//! - Its length is one that it had since then, up to the operation after which the tree is, or that cut short by what followed; or it ends between two
//!   such lengths with a block, as what grows arrives block by block.
//! - A length covers what arrived with it or before: a sector is taken from a time at which the file was as long, or had been before it was cut.
//! - Where the tree shows that the file was cut, nothing behind the cut is from before it, neither bytes nor how long it was.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

use vfs::Ino;

use crate::operation::Synced;
use crate::tree::{BLOCK, Contents, Tree};

/// What a disk writes as a whole or not at all, bytes.
const SECTOR: u64 = disk::SECTOR;

/// Which trees a power cut may leave.
pub(crate) enum Allowed {
    /// One of these.
    Trees(Vec<Rc<Tree>>),
    /// One that a history explains.
    Lagging(Lagging),
}

impl From<Vec<Rc<Tree>>> for Allowed {
    fn from(trees: Vec<Rc<Tree>>) -> Allowed {
        Allowed::Trees(trees)
    }
}

impl Allowed {
    /// Whether a tree is one of them; if not, what is wrong with it.
    pub(crate) fn admits(&self, tree: &Tree) -> Result<(), String> {
        match self {
            Allowed::Trees(trees) if trees.iter().any(|allowed| allowed.hash() == tree.hash()) => Ok(()),
            Allowed::Trees(trees) => {
                let differences = trees.iter().rev().filter_map(|allowed| tree.difference(allowed));
                Err(differences.take(3).collect::<Vec<_>>().join("; or: "))
            }
            Allowed::Lagging(lagging) => lagging.admits(tree),
        }
    }
}

/// For each file, the number of the tree whose contents of it are durable.
pub(crate) type SyncedFiles = Rc<HashMap<Ino, usize>>;

/// What was there after each operation; trees are numbered, the first is durable as a whole.
pub(crate) struct History {
    trees: Vec<Rc<Tree>>,
    /// By file: what it held, and from which tree on, oldest first.
    versions: HashMap<Ino, Vec<(usize, Rc<Contents>)>>,
    /// As of now.
    pub(crate) synced: SyncedFiles,
}

impl History {
    /// Begins with what is durable.
    pub(crate) fn begin(tree: Rc<Tree>) -> History {
        let mut history =
            History { trees: Vec::new(), versions: HashMap::new(), synced: SyncedFiles::default() };
        history.note(tree, Vec::new());
        history
    }

    /// One more tree, and what those files hold that are open and may have no name.
    pub(crate) fn note(&mut self, tree: Rc<Tree>, held: Vec<(Ino, Contents)>) {
        let number = self.trees.len();
        let named = tree.files().map(|(_, ino, contents)| (ino, contents.clone()));
        let held = held.into_iter().map(|(ino, contents)| (ino, Rc::new(contents)));
        for (ino, contents) in named.chain(held) {
            let versions = self.versions.entry(ino).or_default();
            if versions.last().is_none_or(|(_, last)| *last != contents) {
                versions.push((number, contents));
            }
        }
        self.trees.push(tree);
    }

    /// The newest tree is durable as far as that.
    pub(crate) fn sync(&mut self, synced: Synced) {
        let newest = self.trees.len() - 1;
        let files = Rc::make_mut(&mut self.synced);
        match synced {
            Synced::Nothing | Synced::Rest => {}
            Synced::File(ino) => drop(files.insert(ino, newest)),
            Synced::All => files.extend(self.versions.keys().map(|ino| (*ino, newest))),
        }
    }
}

/// What may be left at one moment.
pub(crate) struct Lagging {
    pub(crate) history: Rc<History>,
    /// The trees that all but contents may be of.
    pub(crate) trees: Range<usize>,
    pub(crate) synced: SyncedFiles,
    /// By the hashes of trees, what was found out about them.
    known: RefCell<HashMap<u64, Result<(), String>>>,
}

impl Lagging {
    pub(crate) fn new(history: Rc<History>, trees: Range<usize>, synced: SyncedFiles) -> Lagging {
        Lagging { history, trees, synced, known: RefCell::default() }
    }

    fn admits(&self, tree: &Tree) -> Result<(), String> {
        let mut known = self.known.borrow_mut();
        known.entry(tree.hash()).or_insert_with(|| self.explains(tree)).clone()
    }

    fn explains(&self, tree: &Tree) -> Result<(), String> {
        let (mut of_tree, mut of_contents) = (Vec::new(), None);
        for number in self.trees.clone().rev() {
            if let Some(what) = tree.difference_but_contents(&self.history.trees[number]) {
                of_tree.push(what);
                continue;
            }
            match self.explains_contents(tree, number) {
                Ok(()) => return Ok(()),
                Err(what) => drop(of_contents.get_or_insert(what)),
            }
        }
        of_tree.truncate(3);
        Err(of_contents.unwrap_or_else(|| of_tree.join("; or: ")))
    }

    /// The same of contents, where all else is as in tree `number`.
    fn explains_contents(&self, tree: &Tree, number: usize) -> Result<(), String> {
        for (path, ino, _) in self.history.trees[number].files() {
            let Some(found) = tree.contents(path) else { continue };
            let past = Past {
                versions: &self.history.versions[&ino],
                synced: self.synced.get(&ino).copied().unwrap_or(0),
                number,
                last: self.trees.end - 1,
            };
            past.explains(found).map_err(|what| format!("{}: {what}", path.escape_ascii()))?;
        }
        Ok(())
    }
}

/// What one file held.
struct Past<'h> {
    versions: &'h [(usize, Rc<Contents>)],
    /// The tree whose contents are durable.
    synced: usize,
    /// The tree that all else is of.
    number: usize,
    /// The newest tree.
    last: usize,
}

impl Past<'_> {
    fn explains(&self, found: &Contents) -> Result<(), String> {
        // From the version that was synced, or the first one, if none was.
        let first = self.versions.partition_point(|(since, _)| *since <= self.synced).saturating_sub(1);
        let end = self.versions.partition_point(|(since, _)| *since <= self.last);
        let versions: Vec<(usize, &Contents)> =
            self.versions[first..end].iter().map(|(since, contents)| (*since, &**contents)).collect();
        // Cuts that the tree shows: what came of each, and where it is.
        let is_cut = |two: &[(usize, &Contents)]| two[1].0 <= self.number && two[1].1.size < two[0].1.size;
        let cuts = versions.windows(2).enumerate().filter(|(_, two)| is_cut(two));
        let cuts: Vec<(usize, u64)> = cuts.map(|(n, two)| (n + 1, two[1].1.size)).collect();
        let from = cuts.last().map_or(0, |(n, _)| *n);
        let shown = versions.partition_point(|(since, _)| *since <= self.number).max(from + 1);
        // Cut short is what had arrived, and that may have been less.
        let had = |(n, (_, contents)): (usize, &(usize, &Contents))| {
            cuts.iter().filter(|(cut, _)| *cut > n).fold(contents.size, |size, (_, cut)| size.min(*cut))
        };
        let sizes: Vec<u64> = versions[..shown].iter().enumerate().map(had).collect();
        let ends_with_block = |(n, size): (usize, &u64)| {
            found.size.is_multiple_of(BLOCK)
                && *size <= found.size
                && sizes[n..].iter().any(|later| *later >= found.size)
        };
        if !sizes.contains(&found.size) && !sizes.iter().enumerate().any(ends_with_block) {
            return Err(format!("length {}, and it may have {sizes:?}", found.size));
        }
        let of = |contents: &Contents| contents.blocks.iter().map(|(index, _)| *index).collect::<Vec<_>>();
        let blocks: BTreeSet<u64> =
            versions.iter().map(|(_, contents)| *contents).chain([found]).flat_map(of).collect();
        for block in blocks {
            let end = ((block + 1) * BLOCK).min(found.size);
            for start in (block * BLOCK..end).step_by(SECTOR as usize) {
                let sector = start..(start + SECTOR).min(end);
                // What is before a cut within it may be older than what is behind.
                let within = cuts.iter().map(|(_, size)| *size).filter(|size| sector.contains(size));
                let bounds: BTreeSet<u64> = within.chain([sector.start, sector.end]).collect();
                let bounds: Vec<u64> = bounds.into_iter().collect();
                for part in bounds.windows(2).map(|two| two[0]..two[1]) {
                    let oldest =
                        cuts.iter().rev().find(|(_, size)| *size <= part.start).map_or(0, |(n, _)| *n);
                    let explains = |n: usize| {
                        let since = &versions[oldest..=n];
                        let was_as_long = since.iter().any(|(_, contents)| contents.size >= part.end);
                        was_as_long && versions[n].1.agrees(found, &part)
                    };
                    if !(oldest..versions.len()).any(explains) {
                        return Err(format!(
                            "bytes {} to {} of {} are of none of the {} versions since it was synced or cut",
                            part.start,
                            part.end,
                            found.size,
                            versions.len() - oldest
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = 6_000;

    /// A file that holds these bytes.
    fn holding(bytes: &[u8]) -> Contents {
        let blocks = (0..).zip(bytes.chunks(BLOCK as usize).map(<[u8]>::to_vec));
        let blocks = blocks.filter(|(_, bytes)| !nvm::is_zero(bytes)).collect();
        Contents { size: bytes.len() as u64, blocks }
    }

    fn filled(parts: &[(u8, usize)]) -> Vec<u8> {
        parts.iter().flat_map(|(byte, count)| vec![*byte; *count]).collect()
    }

    /// Whether `found` may be left where the file held one of `versions` after the other, each after one more operation; the first is durable,
    /// and all but contents is as after operation `number`.
    fn may_be(versions: &[&[(u8, usize)]], number: usize, found: &[(u8, usize)]) -> bool {
        let all: Vec<_> = versions.iter().map(|parts| Rc::new(holding(&filled(parts)))).enumerate().collect();
        let past = Past { versions: &all, synced: 0, number, last: versions.len() - 1 };
        past.explains(&holding(&filled(found))).is_ok()
    }

    #[test]
    fn sectors_are_of_any_time_since_it_was_synced_and_of_no_other() {
        let versions: &[&[_]] = &[&[(1, LONG)], &[(2, LONG)], &[(3, LONG)]];
        for number in 0..3 {
            assert!(may_be(versions, number, &[(1, 512), (3, 1024), (2, LONG - 1536)]));
            assert!(!may_be(versions, number, &[(4, LONG)]), "bytes of nobody");
            assert!(!may_be(versions, number, &[(1, 100), (2, LONG - 100)]), "a torn sector");
            assert!(!may_be(versions, number, &[(1, 512), (0, LONG - 512)]), "zeros that never were");
        }
    }

    #[test]
    fn what_is_synced_is_not_lost() {
        let all =
            [(0, Rc::new(holding(&filled(&[(1, LONG)])))), (1, Rc::new(holding(&filled(&[(2, LONG)]))))];
        let past = Past { versions: &all, synced: 1, number: 1, last: 1 };
        assert!(past.explains(&all[1].1).is_ok());
        assert!(past.explains(&all[0].1).is_err());
    }

    #[test]
    fn what_grows_arrives_block_by_block_and_with_its_bytes() {
        let versions: &[&[_]] = &[&[(1, 100)], &[(1, 100), (2, LONG)]];
        assert!(may_be(versions, 1, &[(1, 100)]));
        assert!(may_be(versions, 1, &[(1, 100), (2, LONG)]));
        assert!(may_be(versions, 1, &[(1, 100), (2, BLOCK as usize - 100)]));
        assert!(!may_be(versions, 1, &[(1, 100), (2, 412)]), "it ends nowhere");
        assert!(!may_be(versions, 1, &[(1, 100), (0, LONG)]), "a length without its bytes");
        assert!(
            !may_be(versions, 0, &[(1, 100), (2, LONG)]),
            "a length before the times of what was written"
        );
    }

    #[test]
    fn what_had_not_arrived_is_no_longer_for_being_cut() {
        let versions: &[&[_]] = &[&[], &[(0, 4_000), (1, LONG)], &[(0, 1)]];
        assert!(may_be(versions, 2, &[(0, 1)]));
        assert!(may_be(versions, 2, &[]), "nothing of it was there when it was cut");
        assert!(!may_be(versions, 2, &[(0, 4_000)]), "longer than what was cut");
        let versions: &[&[_]] = &[&[(1, 100)], &[(1, 50)], &[(1, 50), (2, 50)]];
        assert!(!may_be(versions, 1, &[(1, 100)]) && !may_be(versions, 1, &[(1, 40)]));
    }

    /// Replaced by cutting and writing, it is what it was, nothing, or what it is.
    #[test]
    fn what_is_written_behind_a_cut_is_no_zeros() {
        let versions: &[&[_]] = &[&[(1, LONG)], &[], &[(2, LONG)]];
        assert!(
            may_be(versions, 0, &[(1, LONG)])
                && may_be(versions, 2, &[])
                && may_be(versions, 2, &[(2, LONG)])
        );
        assert!(!may_be(versions, 2, &[(0, LONG)]), "zeros that never were");
        let versions: &[&[_]] = &[&[(1, 512)], &[(1, 100)], &[(1, 100), (0, 412)]];
        assert!(may_be(versions, 2, &[(1, 100), (0, 412)]));
        assert!(!may_be(versions, 2, &[(1, 512)]), "stale bytes in the sector of the cut");
        let versions: &[&[_]] = &[&[(1, 512)], &[(2, 512)], &[(2, 100)], &[(2, 100), (0, 412)]];
        assert!(may_be(versions, 3, &[(1, 100), (0, 412)]), "older before the cut");
    }

    #[test]
    fn what_is_cut_does_not_come_back() {
        let versions: &[&[_]] = &[&[(1, LONG)], &[(1, 512)], &[(1, 512), (0, LONG - 512)]];
        // Where the cut is lost, the zeros behind it may be there, or not.
        assert!(may_be(versions, 0, &[(1, LONG)]));
        assert!(may_be(versions, 0, &[(1, 1024), (0, LONG - 1024)]));
        assert!(may_be(versions, 1, &[(1, 512)]));
        assert!(!may_be(versions, 1, &[(1, LONG)]));
        assert!(may_be(versions, 2, &[(1, 512), (0, LONG - 512)]));
        assert!(!may_be(versions, 2, &[(1, LONG)]), "stale bytes behind the cut");
    }
}
