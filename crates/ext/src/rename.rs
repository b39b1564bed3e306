//! Renaming: the one operation on two names, and up to four inodes.

use vfs::rules::{self, Side};
use vfs::{Attr, Caller, Error, Ino, RenameFlags, Result, Time};

use crate::core::Core;
use crate::core::inode::{self, Inode};
use crate::directory;
use crate::error::corrupt;
use crate::namespace::{
    New, access_acl, enter, find, gain_directory, leave, lose_directory, make, relink, unlink, visible,
};
use crate::superblock::ROOT;
use crate::volume::Volume;

/// Whether directory `dir` is `ancestor` or somewhere below it.
fn is_in(core: &Core, dir: u32, ancestor: u32) -> Result<bool> {
    let mut at = dir;
    // A tree is no deeper than it has inodes; one that is leads in a circle.
    for _ in 0..core.superblock.inodes {
        if at == ancestor || at == ROOT {
            return Ok(at == ancestor);
        }
        at = directory::find(core, &inode::read(core, at)?, b"..")?;
    }
    let of = format_args!("inode {dir}");
    Err(corrupt("directory", of, "its parents", "a circle", "a way to the root"))
}

/// What a rename is about.
struct Pair {
    from: Inode,
    to: Inode,
    moved: Inode,
    target: Option<Inode>,
    exchange: bool,
}

/// Looks at both names, and whether they can be renamed, as far as names, flags and the tree's shape tell.
fn look(
    core: &Core,
    caller: &Caller,
    (dir, name): (Ino, &[u8]),
    (new_dir, new_name): (Ino, &[u8]),
    flags: RenameFlags,
) -> Result<Pair> {
    let to = visible(core, new_dir)?;
    let from = visible(core, dir)?;
    let found = find(core, caller, &from, name)?;
    let target = find(core, caller, &to, new_name)?;
    let moved = found.ok_or(Error::NotFound)?;
    let exchange = flags.contains(RenameFlags::EXCHANGE);
    if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
        return Err(Error::Exists);
    }
    if exchange && target.is_none() || to.links == 0 {
        return Err(Error::NotFound);
    }
    // Within one directory nothing can become its own ancestor.
    if from.number != to.number {
        if moved.is_dir() && is_in(core, to.number, moved.number)? {
            return Err(Error::Invalid);
        }
        if let Some(target) = &target
            && target.is_dir()
            && is_in(core, from.number, target.number)?
        {
            return Err(if exchange { Error::Invalid } else { Error::NotEmpty });
        }
    }
    Ok(Pair { from, to, moved, target, exchange })
}

/// Whether permissions and kinds allow it.
fn check(core: &Core, caller: &Caller, pair: &Pair, flags: RenameFlags) -> Result<()> {
    let known = |inode: &Inode| -> Result<(Attr, Option<Vec<u8>>)> {
        Ok((inode.attr(), access_acl(core, caller, inode)?))
    };
    let (from, to, moved) = (known(&pair.from)?, known(&pair.to)?, known(&pair.moved)?);
    let target = pair.target.as_ref().map(known).transpose()?;
    fn side((attr, acl): &(Attr, Option<Vec<u8>>)) -> Side<'_> {
        Side { attr, acl: acl.as_deref() }
    }
    rules::may_rename(caller, side(&from), side(&moved), side(&to), target.as_ref().map(side), flags)?;
    match &pair.target {
        Some(target) if !pair.exchange && target.is_dir() && !directory::is_empty(core, target)? => {
            Err(Error::NotEmpty)
        }
        _ => Ok(()),
    }
}

impl Volume {
    pub(crate) fn rename_name(
        &self,
        caller: &Caller,
        (dir, name): (Ino, &[u8]),
        (new_dir, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        rules::check_rename_names(name, new_name, flags)?;
        let left = self.operate(|core| {
            visible(core, new_dir)?;
            visible(core, dir)?;
            self.check_writable()?;
            let _spared = core.space.spare(core, caller);
            let pair = look(core, caller, (dir, name), (new_dir, new_name), flags)?;
            if pair.target.as_ref().is_some_and(|target| target.number == pair.moved.number) {
                return Ok(None);
            }
            check(core, caller, &pair, flags)?;
            let at = Time::now();
            let left_behind = match flags.contains(RenameFlags::WHITEOUT) {
                true => Some(make(core, caller, &pair.from, &New::whiteout(), 1, at)?),
                false => None,
            };
            self.carry_out(core, &pair, (name, left_behind), new_name, at)
        })?;
        left.into_iter().for_each(|number| self.finish(number));
        Ok(())
    }

    /// As [`unlink`]. The old name leads to what is left behind, or is gone.
    fn carry_out(
        &self,
        core: &Core,
        pair: &Pair,
        (name, left_behind): (&[u8], Option<Inode>),
        new_name: &[u8],
        at: Time,
    ) -> Result<Option<u32>> {
        let Pair { from, to, moved, target, exchange } = pair;
        let (from, to) = (from.number, to.number);
        match target.as_ref().filter(|_| *exchange).or(left_behind.as_ref()) {
            Some(there) => relink(core, from, name, there, at)?,
            None => leave(core, from, name, at)?,
        }
        match target {
            None => enter(core, to, new_name, moved, at)?,
            Some(_) => relink(core, to, new_name, moved, at)?,
        }
        // Links of `..`: what directories come or go bring or take.
        if moved.is_dir() {
            lose_directory(core, from)?;
        }
        if let Some(other) = target.as_ref().filter(|other| other.is_dir()) {
            lose_directory(core, to)?;
            if *exchange {
                gain_directory(core, from)?;
                set_parent(core, other, from, to)?;
            }
        }
        if moved.is_dir() {
            gain_directory(core, to)?;
            set_parent(core, moved, to, from)?;
        }
        changed(core, moved.number, at)?;
        match target {
            None => Ok(None),
            Some(other) if *exchange => changed(core, other.number, at).map(|()| None),
            Some(other) => unlink(self, core, other.number, at),
        }
    }
}

/// A directory is in another one.
fn set_parent(core: &Core, dir: &Inode, parent: u32, before: u32) -> Result<()> {
    if parent == before {
        return Ok(());
    }
    let dir = inode::read(core, dir.number)?;
    directory::replace(core, &dir, b"..", parent, vfs::FileKind::Directory)
}

fn changed(core: &Core, number: u32, at: Time) -> Result<()> {
    let mut inode = inode::read(core, number)?;
    inode.times.change = at;
    inode::write(core, &inode)
}
