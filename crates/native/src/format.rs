//! Making a volume.

use std::sync::Arc;

use nvm::{Flushed, Purpose, Region};
use siphasher::sip::SipHasher13;
use vfs::Time;

use crate::allocator::Urgency;
use crate::bia::{BlockKind, Entry};
use crate::checkpoint::{Checkpoint, Facts};
use crate::checksum;
use crate::error::check_writable;
use crate::geometry::{BIA_ENTRY, BLOCK, Geometry, Medium, SUPERBLOCKS};
use crate::inode::{Cold, Hot};
use crate::nat::Tree;
use crate::node::{FIRST_NID, ORPHANS};
use crate::pointer::NodePointer;
use crate::record::Item;
use crate::recovery::{self, Rest};
use crate::sit::{SegmentKind, SitEntry};
use crate::superblock::{Left, Root, Superblock};
use crate::{Error, FormatOptions, MountOptions};

/// The first version: an empty tree. The next has the root directory.
const EMPTY_VERSION: u32 = 1;

/// Makes a volume of all of `region`, whatever was there, unless somebody has it mounted. A power cut meanwhile leaves no
/// volume: the superblocks are removed first and written last.
pub fn format(region: &Region, options: &FormatOptions) -> Result<(), Error> {
    check_writable(region, "make a volume there")?;
    let geometry = Geometry::lay_out(region.len(), options.log_bytes)?;
    let claimed = region.claim().ok_or(Error::Mounted)?;
    let medium = Medium { region: region.clone(), geometry };
    let removed = SUPERBLOCKS.map(|at| region.stream_zero(Purpose::Metadata, at * BLOCK, BLOCK));
    region.fence(removed.into_iter().reduce(Flushed::and).expect("two")).ignore();

    let log = [0, 1].map(|half| region.stream_zero(Purpose::Journal, geometry.log_at(half), BLOCK));
    let mut flushed = log.into_iter().reduce(Flushed::and).expect("two");
    let first = geometry.main_start;
    for segment in 0..geometry.segments {
        let bits = [u64::from(segment == 0), 0, 0, 0, 0, 0, 0, 0];
        let entry = SitEntry::new(segment, SegmentKind::Meta, EMPTY_VERSION, &bits);
        flushed = flushed.and(entry.write(&medium, segment));
    }
    // Nothing else of the BIA is written: what it says of blocks that are not valid, nobody asks.
    Entry::write_soft(&medium, first, EMPTY_VERSION, 0, BlockKind::Checkpoint, 0);
    flushed = flushed.and(region.flush(Purpose::Allocation, geometry.bia_at(first), BIA_ENTRY));
    let facts = Facts {
        version: EMPTY_VERSION,
        previous: 0,
        next_nid: FIRST_NID,
        nodes: 0,
        inodes: 0,
        sequence: 1,
        blocks: 1,
    };
    let (tree, snapshots) = (Tree::default(), NodePointer::default());
    let (_, written) = Checkpoint::write(&medium, first, tree, snapshots, &facts, (0, checksum::of(&[])));
    region.fence(flushed.and(written)).ignore();
    let mut root = Root::new(first, 0);
    root.write_next(region, first, Left::Clean).ignore();

    let superblock = superblock(region, options, &geometry);
    drop(claimed);
    make_root(region, &superblock, options.owner)?;
    superblock.write(region).ignore();
    region.check().map_err(|error| Error::Volume(vfs::Error::Io(error.to_string())))
}

fn superblock(region: &Region, options: &FormatOptions, geometry: &Geometry) -> Superblock {
    let mut label = [0; 64];
    let length = options.label.len().min(label.len());
    label[..length].copy_from_slice(&options.label.as_bytes()[..length]);
    // The key only has to be unknown to who chooses names: a random UUID, hashed.
    let secret = uuid::Uuid::new_v4();
    let random = [0, 1].map(|n| SipHasher13::new_with_keys(n, region.len()).hash(secret.as_bytes()));
    let key = options.hash_key.unwrap_or(random);
    Superblock::new(*region.uuid().as_bytes(), label, Time::now().sec as u64, key, geometry)
}

/// Makes the root directory and the hidden directory of orphans.
fn make_root(region: &Region, superblock: &Superblock, owner: (u32, u32)) -> Result<(), Error> {
    let (core, _) = recovery::open_bare(region.clone(), superblock, &MountOptions::default(), Rest::Keep)?;
    let core = Arc::new(core);
    let mut operation = core.begin(8, 1024, Urgency::Checkpoint)?;
    let at = Time::now();
    let root = vfs::ROOT_INO as u32;
    let directories = [(root, 0o040_755, owner), (ORPHANS, 0o040_700, (0, 0))];
    for (ino, mode, (uid, gid)) in directories {
        let cold = Cold::new(mode, uid, gid, 0, 1, ino, at);
        operation.log(&Item::Create { ino, cold: &cold, hot: &Hot::new(0, at, at, 2) });
    }
    operation.commit()?;
    drop(operation);
    Ok(core.finish()?)
}

/// A new volume in a zone of `bytes` of memory, opened: what tests of its parts begin with.
#[cfg(test)]
pub(crate) fn new_in_memory(bytes: u64, options: &MountOptions) -> crate::core::Core {
    let zone = nvm::Zone::anonymous(bytes, &nvm::OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", nvm::VolumeKind::Native, None).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let superblock = Superblock::read(&region).unwrap();
    recovery::open(region, &superblock, options, Rest::Keep).unwrap().0
}
