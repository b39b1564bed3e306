//! Renaming: the one operation on two names, and up to four inodes.

use vfs::rules::{self, Side};
use vfs::{Attr, Caller, Error, FileKind, Ino, ROOT_INO, RenameFlags, Result, Time};

use crate::allocator::Urgency;
use crate::core::{Core, Operation};
use crate::directory::{self, Probe, Spot};
use crate::error::corrupt;
use crate::inode::{ALL_SLOTS, Inode};
use crate::namespace::{ACL_LOG, LINK_MAX, NAMES_BLOCKS, NAMES_LOG, New};
use crate::node::number;
use crate::record::Item;

/// Blocks by which a directory grows for one more entry.
const GROWTH_BLOCKS: u64 = 4;

/// What a rename is about. It stays so while both directories are locked.
#[derive(Clone, Copy, PartialEq)]
struct Pair {
    /// The inode that moves, and where its entry is.
    source: (u32, Spot),
    /// The inode that has the new name, if one has, and where its entry is or would be.
    target: (Option<u32>, Spot),
}

/// The inodes of a rename, all locked: both directories, what moves, and what has the new name.
struct Ends<'a> {
    from: Inode<'a>,
    to: Inode<'a>,
    moved: Inode<'a>,
    replaced: Option<Inode<'a>>,
}

impl Ends<'_> {
    /// By how much the links of both directories change, `from`'s and `to`'s; where they are one, the first has all of it. A directory has
    /// one of each that is in it, by `..`.
    fn links(&self, exchange: bool) -> (i32, i32) {
        let of = |inode: &Inode<'_>| i32::from(inode.kind() == FileKind::Directory);
        let (brings, takes) = (of(&self.moved), self.replaced.as_ref().map_or(0, of));
        let (here, there) = (if exchange { takes - brings } else { -brings }, brings - takes);
        if self.from.ino == self.to.ino { (here + there, 0) } else { (here, there) }
    }
}

impl Core {
    fn side<'a>(&'a self, inode: Inode<'a>, attr: &'a Attr) -> Result<Side<'a>> {
        Ok(Side { attr, acl: self.nodes.access_acl(inode)? })
    }

    /// Whether directory `dir` is `ancestor` or somewhere below it. The tree's shape is held.
    pub(crate) fn is_in(&self, dir: u32, ancestor: u32) -> Result<bool> {
        let mut at = dir;
        // A tree is no deeper than blocks have room for inodes; one that is leads in a circle.
        let mut left = self.nodes.node_count().saturating_mul(ALL_SLOTS.count_ones());
        while at != ancestor && Ino::from(at) != ROOT_INO {
            if left == 0 {
                return Err(corrupt("directory", 0, "parent", at, "one on the way to the root"));
            }
            left -= 1;
            let _lock = self.locks.read(at);
            let inode = self.inode(at)?;
            if inode.kind() != FileKind::Directory {
                return Err(Error::NotDirectory);
            }
            at = inode.cold().parent.get();
        }
        Ok(at == ancestor)
    }

    pub(crate) fn rename(
        &self,
        caller: &Caller,
        (dir, name): (Ino, &[u8]),
        (new_dir, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        rules::check_rename_names(name, new_name, flags)?;
        let (dir, new_dir) = (number(dir)?, number(new_dir)?);
        if dir == new_dir {
            let (mut operation, may_grow) = self.begin_rename(flags)?;
            let _lock = self.locks.write(dir);
            let parent = self.inode(dir)?;
            let pair = self.rename_pair_locked(caller, (parent, name), (parent, new_name), flags)?;
            let (source, target) = (pair.source.0, pair.target.0);
            if target == Some(source) {
                return Ok(());
            }
            let source_lock = self.locks.try_write(source, &[dir]);
            let target_lock = match target {
                Some(target) => self.locks.try_write(target, &[dir, source]),
                None => Some(None),
            };
            if let (Some(_source), Some(_target)) = (source_lock, target_lock) {
                return self.rename_locked(
                    (&mut operation, may_grow),
                    caller,
                    parent,
                    (parent, new_name),
                    pair,
                    flags,
                );
            }
        }
        let _shape = (dir != new_dir).then(|| self.tree_shape.lock());
        loop {
            let pair = self.rename_pair(caller, (dir, name), (new_dir, new_name), flags)?;
            let (source, target) = (pair.source.0, pair.target.0);
            // Within one directory nothing can become its own ancestor.
            if dir != new_dir && self.is_in(new_dir, source)? {
                return Err(Error::Invalid);
            }
            if let Some(target) = target
                && dir != new_dir
                && self.is_in(dir, target)?
            {
                let exchange = flags.contains(RenameFlags::EXCHANGE);
                return Err(if exchange { Error::Invalid } else { Error::NotEmpty });
            }
            if target == Some(source) {
                return Ok(());
            }
            let (mut operation, may_grow) = self.begin_rename(flags)?;
            let _locks = self.locks.write_all(&[dir, new_dir, source, target.unwrap_or(0)]);
            let (from, to) = (self.inode(dir)?, self.inode(new_dir)?);
            let again = self.rename_pair_locked(caller, (from, name), (to, new_name), flags);
            if let Ok(again) = again
                && again == pair
            {
                return self.rename_locked(
                    (&mut operation, may_grow),
                    caller,
                    from,
                    (to, new_name),
                    again,
                    flags,
                );
            }
        }
    }

    /// What a rename is about, and whether it can be, as far as names and flags tell.
    fn rename_pair(
        &self,
        caller: &Caller,
        (dir, name): (u32, &[u8]),
        (new_dir, new_name): (u32, &[u8]),
        flags: RenameFlags,
    ) -> Result<Pair> {
        {
            let _lock = self.locks.read(new_dir);
            self.inode(new_dir)?;
        }
        let _locks = self.locks.read_two(dir, new_dir);
        let (from, to) = (self.inode(dir)?, self.inode(new_dir)?);
        self.rename_pair_locked(caller, (from, name), (to, new_name), flags)
    }

    fn rename_pair_locked(
        &self,
        caller: &Caller,
        (from, name): (Inode<'_>, &[u8]),
        (to, new_name): (Inode<'_>, &[u8]),
        flags: RenameFlags,
    ) -> Result<Pair> {
        let found = self.nodes.find_entry(caller, from, name)?;
        let target = match self.nodes.probe(caller, to, new_name)?.ok_or(Error::Busy)? {
            Probe::Found(entry, spot) => (Some(entry.ino), spot),
            Probe::Vacant(spot) => (None, spot),
        };
        let source = found.ok_or(Error::NotFound)?;
        if flags.contains(RenameFlags::NOREPLACE) && target.0.is_some() {
            return Err(Error::Exists);
        }
        if flags.contains(RenameFlags::EXCHANGE) && target.0.is_none() {
            return Err(Error::NotFound);
        }
        if to.hot().nlink.get() == 0 {
            return Err(Error::NotFound);
        }
        Ok(Pair { source, target })
    }

    /// Begins a rename, on a full volume out of what is kept for deletions; but no directory is to grow out of that: says
    /// whether one may. Nor is a whiteout to be made out of it.
    fn begin_rename(&self, flags: RenameFlags) -> Result<(Operation<'_>, bool)> {
        if flags.contains(RenameFlags::WHITEOUT) {
            return Ok((self.begin(NAMES_BLOCKS, NAMES_LOG + ACL_LOG, Urgency::Ordinary)?, true));
        }
        match self.begin(NAMES_BLOCKS, NAMES_LOG, Urgency::Ordinary) {
            Err(Error::NoSpace) => {
                let may_grow = self.nodes.allocator.reserve(GROWTH_BLOCKS, Urgency::Ordinary).is_some();
                Ok((self.begin(NAMES_BLOCKS, NAMES_LOG, Urgency::Change)?, may_grow))
            }
            begun => Ok((begun?, true)),
        }
    }

    fn rename_locked(
        &self,
        (operation, may_grow): (&mut Operation<'_>, bool),
        caller: &Caller,
        from: Inode<'_>,
        (to, new_name): (Inode<'_>, &[u8]),
        pair: Pair,
        flags: RenameFlags,
    ) -> Result<()> {
        let Pair { source: (source, spot), target: (target, new_spot) } = pair;
        let (dir, key, new_dir, new_key) = (from.ino, spot.key, to.ino, new_spot.key);
        [spot, new_spot].into_iter().for_each(|spot| operation.seen.note(spot));
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let ends = Ends {
            from,
            to,
            moved: self.inode(source)?,
            replaced: target.map(|ino| self.inode(ino)).transpose()?,
        };
        self.check_rename(caller, &ends, flags)?;
        if ends.replaced.is_none() && !may_grow && !directory::has_room(&self.nodes, &new_spot, new_name)? {
            return Err(Error::NoSpace);
        }

        let (at, kind) = (Time::now(), ends.moved.kind() as u8);
        let whiteout = match flags.contains(RenameFlags::WHITEOUT) {
            true => {
                let ino = operation.take_number()?;
                self.make(operation, caller, ends.from, &New::whiteout(ino, key), 1, at)?;
                Some((ino, FileKind::CharDevice))
            }
            false => None,
        };
        operation.log(&match ends.replaced {
            None => Item::Enter { dir: new_dir, key: new_key, ino: source, kind, name: new_name },
            Some(_) => Item::Relink { dir: new_dir, key: new_key, ino: source, kind },
        });
        let exchanged = ends.replaced.filter(|_| exchange);
        operation.log(&match exchanged.map(|other| (other.ino, other.kind())).or(whiteout) {
            Some((ino, kind)) => Item::Relink { dir, key, ino, kind: kind as u8 },
            None => Item::Leave { dir, key },
        });
        if let Some(other) = exchanged {
            operation.log_hot(other, &other.hot().changed(at));
        }
        operation.log_hot(ends.moved, &ends.moved.hot().changed(at));
        let (here, there) = ends.links(exchange);
        if dir != new_dir {
            operation.log_hot(ends.to, &ends.to.hot().modified(at).linked(there));
        }
        operation.log_hot(ends.from, &ends.from.hot().modified(at).linked(here));
        match ends.replaced.filter(|_| !exchange) {
            Some(replaced) => self.commit_unnamed(operation, replaced, at),
            None => operation.commit(),
        }
    }

    /// Whether `caller` may rename so, and links and entries of the directories allow it.
    fn check_rename(&self, caller: &Caller, ends: &Ends<'_>, flags: RenameFlags) -> Result<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let (from_attr, to_attr, moved_attr) = (ends.from.attr(), ends.to.attr(), ends.moved.attr());
        let replaced_attr = ends.replaced.map(|inode| inode.attr());
        let target_side = match (ends.replaced, &replaced_attr) {
            (Some(inode), Some(attr)) => Some(self.side(inode, attr)?),
            _ => None,
        };
        rules::may_rename(
            caller,
            self.side(ends.from, &from_attr)?,
            self.side(ends.moved, &moved_attr)?,
            self.side(ends.to, &to_attr)?,
            target_side,
            flags,
        )?;
        let (here, there) = ends.links(exchange);
        if here > 0 && from_attr.nlink >= LINK_MAX || there > 0 && to_attr.nlink >= LINK_MAX {
            return Err(Error::TooManyLinks);
        }
        match ends.replaced.filter(|inode| !exchange && inode.kind() == FileKind::Directory) {
            Some(replaced) if replaced.derived().entries.get() != 0 => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }
}
