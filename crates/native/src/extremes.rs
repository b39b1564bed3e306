//! Tests of volumes whose numbers come to an end, or cannot be looked up, as none does that is young; and of one without a root.

use nvm::{OpenOptions, Purpose, Region, VolumeKind, Zone};
use vfs::{Caller, OpenFlags, ROOT_INO};

use crate::checkpoint::{Checkpoint, Facts};
use crate::core::{Core, LAST_VERSION};
use crate::geometry::{BLOCK, Medium};
use crate::nat::{FANOUT, NID_BITS};
use crate::recovery::{self, Rest};
use crate::superblock::{Root, Superblock};
use crate::{FormatOptions, MountOptions, checksum, nat};

/// A volume in memory.
struct Made {
    region: Region,
    superblock: Superblock,
    medium: Medium,
    zone: Zone,
}

impl Made {
    fn new() -> Made {
        let zone = Zone::anonymous(130 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
        crate::format(&region, &FormatOptions::default()).unwrap();
        let superblock = Superblock::read(&region).unwrap();
        let medium = Medium { region: region.clone(), geometry: superblock.geometry() };
        Made { region, superblock, medium, zone }
    }

    fn open(&self, read_only: bool) -> Core {
        let options = MountOptions { background: false, read_only, ..MountOptions::default() };
        recovery::open(self.region.clone(), &self.superblock, &options, Rest::Keep).unwrap().0
    }

    fn newest(&self) -> Checkpoint {
        Checkpoint::read(&self.medium, Root::read(&self.region).unwrap().checkpoint.get()).unwrap()
    }

    /// Has the newest checkpoint, of a volume that was closed, say something else.
    fn forge(&self, change: impl FnOnce(&mut Facts)) {
        let Checkpoint { block, body } = self.newest();
        let mut facts = body.facts();
        change(&mut facts);
        let journal = (0, checksum::of(&[]));
        let (_, written) =
            Checkpoint::write(&self.medium, block, body.tree(), body.snapshots(), &facts, journal);
        self.region.fence(written).ignore();
    }

    /// Makes an empty file, and a directory of many, of which those from `left` on go again. Returns the file.
    fn fill(&self, left: usize) -> u64 {
        let (core, root) = (self.open(false), Caller::root());
        let file = core.create(&root, ROOT_INO, b"file", 0o644, OpenFlags::WRITE).unwrap();
        let dir = core.mkdir(&root, ROOT_INO, b"dir", 0o755).unwrap().ino;
        for n in 0..20_000 {
            core.mknod(&root, dir, n.to_string().as_bytes(), 0o100_644, 0).unwrap();
        }
        for n in left..20_000 {
            core.unlink(&root, dir, n.to_string().as_bytes()).unwrap();
        }
        core.release(file.handle).unwrap();
        core.finish().unwrap();
        file.attr.ino
    }
}

/// What was changed behind the last checkpoint that can have a number was durable, and the volume could not be opened any
/// more.
#[test]
fn behind_the_last_version_nothing_is_changed() {
    let made = Made::new();
    let root = Caller::root();
    made.forge(|facts| facts.version = LAST_VERSION - 2);
    let core = made.open(false);
    core.create(&root, ROOT_INO, b"last", 0o644, OpenFlags::WRITE).unwrap();
    core.checkpoint(crate::core::NextLog::WithEpoch).unwrap();
    assert!(core.create(&root, ROOT_INO, b"more", 0o644, OpenFlags::WRITE).is_err());
    drop(core);
    for read_only in [false, true] {
        let core = made.open(read_only);
        assert!(core.lookup(&root, ROOT_INO, b"last").is_ok(), "read-only: {read_only}");
        assert!(core.lookup(&root, ROOT_INO, b"more").is_err());
        assert!(core.create(&root, ROOT_INO, b"more", 0o644, OpenFlags::WRITE).is_err());
    }
}

/// The search for free numbers gave up after 1024, behind the commit of what wanted one.
#[test]
fn when_all_numbers_were_used_once_free_ones_are_found() {
    let made = Made::new();
    let file = made.fill(20_000);
    made.forge(|facts| facts.next_nid = 1 << NID_BITS);
    let core = made.open(false);
    let handle = core.open(&Caller::root(), file, OpenFlags::WRITE).unwrap();
    assert_eq!(core.write(&Caller::root(), handle, 0, &vec![1; 1 << 20]), Ok(1 << 20));
    assert_eq!(core.failure(), None);
}

/// A damaged page of the NAT that the search came across made the volume read-only, at each mount anew.
#[test]
fn numbers_whose_page_is_damaged_are_passed_over() {
    let made = Made::new();
    let file = made.fill(19_000);
    let newest = made.newest().body;
    // One that has free numbers, and the last, from which new ones would come.
    for nid in [FANOUT as u32, newest.next_nid.get()] {
        let leaf = nat::pointer_to(&made.medium, newest.tree(), nid, 1).unwrap().block() * BLOCK + 800;
        let word = made.region.load_u64(leaf);
        made.region.store_u64(Purpose::Metadata, leaf, word ^ 1);
    }
    for round in 0..2 {
        let core = made.open(false);
        let handle = core.open(&Caller::root(), file, OpenFlags::WRITE).unwrap();
        assert_eq!(core.write(&Caller::root(), handle, (round * 4) << 20, &vec![1; 1 << 20]), Ok(1 << 20));
        assert_eq!(core.failure(), None);
        core.finish().unwrap();
    }
}

/// A mount that failed had begun by then, and said that the volume is left as it is.
#[test]
fn a_volume_whose_root_cannot_be_read_is_left_as_it_is() {
    let made = Made::new();
    let root = made.newest().body.tree().root.block() * BLOCK;
    made.region.store_u64(Purpose::Metadata, root, made.region.load_u64(root) ^ 1);
    let before = made.zone.snapshot_image();
    for read_only in [false, true] {
        let options = MountOptions { read_only, ..MountOptions::default() };
        assert!(recovery::open(made.region.clone(), &made.superblock, &options, Rest::Keep).is_err());
    }
    assert!(recovery::recover(&made.region, Rest::Drop).is_err());
    assert!(made.zone.snapshot_image() == before, "something was stored");
}
