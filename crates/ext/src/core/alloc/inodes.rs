//! Inodes: given out near their parents, directories spread.

use vfs::{Error, Result};

use super::state::{Done, State};
use crate::core::Core;
use crate::core::bitmap::{self, Of};
use crate::core::group::{self, Group};
use crate::core::inode;
use crate::error::corrupt;
use crate::superblock::ROOT;

/// Part of an operation: an inode, zeroed in its table but for nothing; its number. Directories are spread over groups, all else stays near
/// `parent`.
pub(crate) fn new_inode(core: &Core, parent: u32, is_dir: bool) -> Result<u32> {
    let state = &mut *core.space.state(core)?;
    loop {
        if state.free_inodes == 0 {
            return Err(Error::NoSpace);
        }
        let (number, group) =
            if is_dir { for_directory(core, state, parent)? } else { for_file(core, state, parent)? };
        match take(core, state, number, &group, parent, is_dir) {
            // Others have some, and are sound.
            Err(Error::Corrupt(what)) => {
                core.met.note(&what);
                state.groups[number as usize].has_no_inodes = true;
                state.free_inodes = state.free_inodes.saturating_sub(u64::from(group.free_inodes));
            }
            taken => return taken,
        }
    }
}

/// The first free inode of group `number`.
fn take(
    core: &Core,
    state: &mut State,
    number: u32,
    group: &Group,
    parent: u32,
    is_dir: bool,
) -> Result<u32> {
    let superblock = &core.superblock;
    let of_parent = ((parent - 1) / superblock.inodes_per_group, (parent - 1) % superblock.inodes_per_group);
    // What was never used is zeroed without being looked at.
    if of_parent.0 == number && of_parent.1 >= superblock.inodes_per_group - group.unused_inodes {
        let of = format_args!("group {number}");
        let field = "the inodes at its end that were never used";
        let expected = format_args!("none in use, as inode {parent} is");
        return Err(corrupt("descriptor", of, field, group.unused_inodes, expected));
    }
    if group.blocks.unused {
        // A group with inodes in use has both bitmaps.
        let initial = |bytes: &mut [u8]| state.initial(number, bytes);
        bitmap::change(core, number, Of::Clusters, initial, |_, _| Ok(()))?;
    }
    if group.inodes.unused {
        state.operation.push(Done::Began(number));
    }
    let per_group = u64::from(superblock.inodes_per_group);
    let first = if number == 0 { u64::from(superblock.first_inode) - 1 } else { 0 };
    let initial = |bytes: &mut [u8]| {
        let behind = per_group..bytes.len() as u64 * 8;
        (0..first).chain(behind).for_each(|n| bitmap::set(bytes, n));
    };
    let (index, was_used) = bitmap::change(core, number, Of::Inodes, initial, |bytes, group| {
        let index = bitmap::find(|n| bitmap::word(bytes, n), false, first, per_group);
        if index == per_group {
            let found = group.free_inodes;
            return Err(corrupt("descriptor", format_args!("group {number}"), "its free inodes", found, 0));
        }
        bytes.fill(index..index + 1, true);
        group.free_inodes -= 1;
        group.directories += u32::from(is_dir);
        // Inodes are given out in order, so all before those that were never used have been zeroed.
        let never_used = per_group - u64::from(group.unused_inodes);
        group.unused_inodes = group.unused_inodes.min((per_group - index - 1) as u32);
        Ok((index, index < never_used))
    })?;
    state.count(-1, if is_dir { 1 } else { 0 });
    let inode = (u64::from(number) * per_group + index + 1) as u32;
    if !was_used && index.is_multiple_of(superblock.block / superblock.inode_bytes as u64) {
        inode::begin_block(core, inode)?;
    } else {
        inode::clear(core, inode, was_used)?;
    }
    Ok(inode)
}

/// Part of an operation: the inode is free. It has neither contents nor attributes any longer.
pub(crate) fn free_inode(core: &Core, number: u32, was_dir: bool) -> Result<()> {
    let state = &mut *core.space.state(core)?;
    let superblock = &core.superblock;
    let wrong = |found: &str| Err(corrupt("bitmap", format_args!("inode {number}"), "its bit", found, "set"));
    if number < superblock.first_inode || number > superblock.inodes {
        return wrong("not that of an inode for files");
    }
    inode::retire(core, number)?;
    let (group, index) =
        ((number - 1) / superblock.inodes_per_group, (number - 1) % superblock.inodes_per_group);
    let bit = u64::from(index);
    bitmap::change(
        core,
        group,
        Of::Inodes,
        |_| {},
        |bytes, group| {
            if !bitmap::is_set(bytes, bit) {
                return wrong("clear");
            }
            bytes.fill(bit..bit + 1, false);
            group.free_inodes += 1;
            let directories = group.directories.checked_sub(u32::from(was_dir));
            group.directories = match directories {
                Some(directories) => directories,
                None => {
                    return Err(corrupt(
                        "descriptor",
                        format_args!("inode {number}"),
                        "directories",
                        0,
                        "more",
                    ));
                }
            };
            Ok(())
        },
    )?;
    state.count(1, if was_dir { -1 } else { 0 });
    Ok(())
}

impl State {
    /// Changes the counts of free inodes and directories.
    fn count(&mut self, free: i64, directories: i64) {
        self.operation.push(Done::Inodes { free: self.free_inodes, directories: self.directories });
        self.free_inodes = self.free_inodes.saturating_add_signed(free);
        self.directories = self.directories.saturating_add_signed(directories);
    }

    /// The groups from `first` on, all round.
    fn from(&self, first: u32) -> impl Iterator<Item = u32> + use<> {
        let groups = self.groups.len() as u32;
        (first..groups).chain(0..first)
    }

    fn available_in(&self, number: u32) -> u64 {
        self.groups[number as usize].available
    }
}

/// The first of these groups that has free inodes and is `good`.
fn find(
    core: &Core,
    state: &State,
    groups: impl Iterator<Item = u32>,
    good: impl Fn(u32, &Group) -> bool,
) -> Result<Option<(u32, Group)>> {
    for number in groups.filter(|number| !state.groups[*number as usize].has_no_inodes) {
        let group = group::read(core, number)?;
        if group.free_inodes > 0 && good(number, &group) {
            return Ok(Some((number, group)));
        }
    }
    Ok(None)
}

/// A group for a directory, in the manner of Orlov: those of the root are spread over all groups that have more room than most and fewer
/// directories; others are near their parents, unless there is little room or there are many directories.
fn for_directory(core: &Core, state: &State, parent: u32) -> Result<(u32, Group)> {
    let superblock = &core.superblock;
    let groups = u64::from(superblock.groups);
    let [inodes, blocks, directories] =
        [state.free_inodes, state.available, state.directories].map(|count| count / groups);
    let inodes_per_group = u64::from(superblock.inodes_per_group);
    let (first, inodes_min, blocks_min, directories_max) = if parent == ROOT {
        ((state.directories % groups) as u32, inodes, blocks, directories)
    } else {
        let near = (parent - 1) / superblock.inodes_per_group;
        let (inodes_min, blocks_min) = (
            inodes.saturating_sub(inodes_per_group / 4),
            blocks.saturating_sub(superblock.blocks_per_group / 4),
        );
        (near, inodes_min, blocks_min, directories + inodes_per_group / 16)
    };
    let has_room = |number, group: &Group| {
        u64::from(group.free_inodes) >= inodes_min && state.available_in(number) >= blocks_min
    };
    let few =
        |number, group: &Group| has_room(number, group) && u64::from(group.directories) <= directories_max;
    for good in [&few as &dyn Fn(u32, &Group) -> bool, &has_room, &|_, _| true] {
        if let Some(found) = find(core, state, state.from(first), good)? {
            return Ok(found);
        }
    }
    Err(Error::NoSpace)
}

/// A group for anything else: its parent's; one 1, 3, 7, 15 ... groups behind, so that those of full groups don't all meet in the next
/// one; whichever has room.
fn for_file(core: &Core, state: &State, parent: u32) -> Result<(u32, Group)> {
    let near = (parent - 1) / core.superblock.inodes_per_group;
    let groups = core.superblock.groups;
    let jumps = (0..32).map_while(|n| ((1u64 << n) - 1 < u64::from(groups)).then(|| (1u64 << n) - 1));
    let jumps = jumps.map(|jump| ((u64::from(near) + jump) % u64::from(groups)) as u32);
    let found = find(core, state, jumps.chain(state.from(near)), |number, _| state.available_in(number) > 0)?;
    match found {
        Some(found) => Ok(found),
        None => find(core, state, state.from(near), |_, _| true)?.ok_or(Error::NoSpace),
    }
}
