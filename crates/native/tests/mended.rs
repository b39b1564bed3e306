//! Damage in snapshots and in the list of them: what can be read is read, nothing that others have is lost, and a repair
//! gives the space back.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::volumes::*;
use native::{CheckReport, Durability, MountOptions, Snapshot, Volume, check, open_snapshot};
use nvm::{Purpose, Region, Zone};
use vfs::{Caller, FileKind, FileSystem, ROOT_INO, RenameFlags};

const BLOCK: usize = 4096;
/// The areas of a volume of 16 MiB, blocks (docs/format-native.md).
const SIT: usize = 520;
const BIA: usize = 522;
const MAIN: usize = 1024;
const BLOCKS: usize = 6 * 512;
/// Kinds of blocks.
const DATA: u8 = 1;
const CHECKPOINT: u8 = 10;
const LIST: u8 = 12;

fn open(region: &Region) -> Volume {
    let options =
        MountOptions { durability: Durability::Operation, background: false, ..MountOptions::default() };
    Volume::open(region.clone(), &options).unwrap()
}

/// Everything changes a little: files of all kinds come, change and go.
fn change(volume: &Volume, round: u64) {
    let root = &Caller::root();
    let dir = volume.mkdir(root, ROOT_INO, format!("dir-{round}").as_bytes(), 0o755).unwrap().ino;
    for n in 0..150 {
        write_file(volume, dir, &format!("file-{n}-{}", "x".repeat(n % 50)), &Random(n as u64).bytes(n))
            .unwrap();
    }
    for (name, length) in [("small", 9000), ("mapped", 200_000), ("direct", 700_000)] {
        let _ = volume.unlink(root, ROOT_INO, name.as_bytes());
        write_file(volume, ROOT_INO, name, &Random(length + round).bytes(length as usize)).unwrap();
    }
    if let Ok(kept) = volume.lookup(root, ROOT_INO, b"kept") {
        let file = volume.open(root, kept.ino, RW).unwrap();
        volume.write(root, file, 5000 * round, &[round as u8; 100]).unwrap();
        volume.release(file).unwrap();
    } else {
        write_file(volume, ROOT_INO, "kept", &Random(7).bytes(60_000)).unwrap();
    }
}

/// A volume with the snapshots `first`, `second` and `third`, and what they and it have to show.
struct Specimen {
    image: Vec<u8>,
    start: usize,
    trees: BTreeMap<String, Tree>,
    snapshots: Vec<Snapshot>,
}

/// `then` is the last that happens to it.
fn specimen(then: impl Fn(&Volume)) -> Specimen {
    let (zone, region): (Zone, Region) = made(16 << 20);
    let volume = open(&region);
    let mut trees = BTreeMap::new();
    for (round, name) in (0..).zip(["first", "second", "third"]) {
        change(&volume, round);
        volume.take_snapshot(name, "of a test").unwrap();
        trees.insert(name.to_string(), tree(&volume).unwrap());
    }
    change(&volume, 3);
    trees.insert(String::new(), tree(&volume).unwrap());
    then(&volume);
    let snapshots = volume.snapshots();
    volume.close().unwrap();
    Specimen { image: zone.snapshot_image(), start: region.entry().start as usize, trees, snapshots }
}

impl Specimen {
    fn block(&self, index: usize) -> Range<usize> {
        let at = self.start + index * BLOCK;
        at..at + BLOCK
    }

    /// Valid blocks with their kinds and start versions, of which this holds.
    fn blocks(&self, wanted: impl Fn(u8, u32) -> bool) -> Vec<usize> {
        let (sit, bia) = (self.block(SIT).start, self.block(BIA).start);
        let is_such = |index: &usize| {
            let valid = self.image[sit + index / 512 * 128 + 64 + index % 512 / 8] >> (index % 8) & 1 == 1;
            let entry = &self.image[bia + index * 16..][..16];
            valid && wanted(entry[8], u32::from_le_bytes(entry[..4].try_into().unwrap()))
        };
        (0..BLOCKS).filter(is_such).map(|index| MAIN + index).collect()
    }

    fn damaged(&self, block: usize) -> (Zone, Region) {
        let mut image = self.image.clone();
        let range = self.block(block);
        image[range][70..90].iter_mut().for_each(|byte| *byte ^= 0x5a);
        zone_of(&image)
    }

    fn version(&self, name: &str) -> u32 {
        self.snapshots.iter().find(|snapshot| snapshot.name == name).unwrap().version
    }

    /// What is to be seen in `region` under these names is what was.
    #[track_caller]
    fn assert_shows(&self, region: &Region, names: &[(&str, &str)]) {
        for (name, was) in names {
            let shown = match *name {
                "" => tree(&open(region)),
                _ => tree(&*open_snapshot(region, name).unwrap()),
            };
            let difference = difference(&self.trees[*was], &shown.unwrap());
            assert!(difference.is_none(), "{name:?} is not {was:?}: {difference:?}");
        }
    }
}

#[track_caller]
fn assert_mended(region: &Region) -> CheckReport {
    let told = check(region, false).unwrap();
    assert!(!told.is_clean(), "nothing is found");
    let mended = check(region, true).unwrap();
    assert!(mended.is_clean() && !mended.problems.is_empty(), "{:#?}", mended.problems);
    let again = check(region, true).unwrap();
    assert!(again.problems.is_empty(), "{:#?}", again.problems);
    mended
}

fn used(region: &Region) -> u64 {
    check(region, false).unwrap().blocks_used
}

fn finish(region: &Region) {
    let volume = open(region);
    volume.finish_removals().unwrap();
    volume.close().unwrap();
}

/// Whatever node of a removed snapshot is damaged: its space comes back, and that of the one behind it in the queue; the
/// others stay what they are.
#[test]
fn a_removed_snapshot_that_damage_keeps_is_let_go() {
    let specimen = specimen(|volume| {
        volume.hold_snapshot("first", "kept").unwrap();
    });
    let (first, second) = (specimen.version("first"), specimen.version("second"));
    // What removing it gives, when nothing is damaged.
    let (_zone, sound) = zone_of(&specimen.image);
    let volume = open(&sound);
    volume.remove_snapshot("second").unwrap();
    volume.finish_removals().unwrap();
    volume.close().unwrap();
    let wanted = used(&sound);
    let (mut stuck, mut unharmed) = (0, 0);
    for block in specimen.blocks(|kind, born| kind != DATA && kind != LIST && born > first && born <= second)
    {
        let (_zone, region) = specimen.damaged(block);
        let volume = open(&region);
        // What others have as well keeps nothing from going.
        volume.remove_snapshot("second").unwrap();
        if volume.finish_removals().is_ok() {
            unharmed += 1;
            continue;
        }
        stuck += 1;
        volume.take_snapshot("fourth", "").unwrap();
        volume.remove_snapshot("fourth").unwrap();
        assert!(volume.finish_removals().is_err());
        volume.close().unwrap();
        drop(volume);
        assert!(used(&region) > wanted);
        let mended = assert_mended(&region);
        assert!(mended.problems[0].what.contains("\"second\""), "{:#?}", mended.problems);
        finish(&region);
        assert_eq!(used(&region), wanted, "block {block}");
        let names: Vec<_> = native::snapshots(&region).unwrap().into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["first", "third"]);
        specimen.assert_shows(&region, &[("first", "first"), ("third", "third"), ("", "")]);
        assert_sound(&region);
    }
    assert!(stuck > 5, "{stuck} blocks keep it from going, {unharmed} don't");
}

/// Garbage collection looks blocks up where the BIA says they are: whose, and where. Of blocks that only snapshots have nobody
/// said so anew, and they never moved again.
#[test]
fn whose_a_block_of_a_snapshot_is_is_derived() {
    let specimen = specimen(|volume| {
        // Direct nodes below an indirect one, too, that only a snapshot has.
        let root = &Caller::root();
        let file = volume.create(root, ROOT_INO, b"far", 0o644, RW).unwrap();
        for block in [20, 144, 145, 900, 144 + 684 * 510, 144 + 684 * 510 + 700] {
            volume.write(root, file.handle, block << 12, &[3; 4096]).unwrap();
        }
        volume.take_snapshot("far", "").unwrap();
        volume.unlink(root, ROOT_INO, b"far").unwrap();
        volume.release(file.handle).unwrap();
    });
    let (zone, region) = zone_of(&specimen.image);
    let bia = specimen.block(BIA).start as u64 - specimen.start as u64;
    let all = specimen.blocks(|_, _| true);
    let entry_at = |block: &usize| bia + (block - MAIN) as u64 * 16;
    let intact = zone.snapshot_image();
    // All of them, and then but for one in three, so that some of a direct node say where the others are.
    for keeps in [usize::MAX, 3] {
        for (n, block) in all.iter().enumerate() {
            if n % keeps != 1 {
                let kept = region.load_u64(entry_at(block)) & 0xffff_ffff;
                region.store_u64(Purpose::Allocation, entry_at(block), kept | 77 << 32);
                let kind = region.load_u64(entry_at(block) + 8) & 0xff;
                region.store_u64(Purpose::Allocation, entry_at(block) + 8, kind | 99 << 8);
            }
        }
        assert_mended(&region);
        let mended = zone.snapshot_image();
        for block in &all {
            let entry =
                specimen.start + entry_at(block) as usize..specimen.start + entry_at(block) as usize + 16;
            let kind = mended[entry.start + 8];
            let is_named = ![CHECKPOINT, LIST].contains(&kind);
            assert!(!is_named || mended[entry.clone()] == intact[entry], "block {block} of kind {kind}");
        }
    }
    specimen.assert_shows(&region, &[("first", "first"), ("second", "second"), ("third", "third")]);
}

/// One that is kept is not thrown away for a node that cannot be read; when its owner has let go of it, its space comes back.
#[test]
fn a_kept_snapshot_with_damage_is_named_and_left() {
    let specimen = specimen(|_| {});
    let (first, second) = (specimen.version("first"), specimen.version("second"));
    let mut left = 0;
    for block in
        specimen.blocks(|kind, born| kind != DATA && kind < CHECKPOINT && born > first && born <= second)
    {
        let (_zone, region) = specimen.damaged(block);
        let told = check(&region, true).unwrap();
        let is_its = |problem: &native::Problem| problem.what.starts_with("snapshot \"second\": ");
        if !told.problems.iter().all(is_its) {
            continue; // others have it as well
        }
        if told.problems.is_empty() {
            continue; // what was damaged is in no slot
        }
        left += 1;
        assert!(!told.is_clean() && told.problems[0].what.contains("is removed"), "{:#?}", told.problems);
        assert_eq!(native::snapshots(&region).unwrap().len(), 3);
        specimen.assert_shows(&region, &[("first", "first"), ("third", "third"), ("", "")]);
        let volume = open(&region);
        volume.remove_snapshot("second").unwrap();
        assert!(volume.finish_removals().is_err());
        volume.close().unwrap();
        drop(volume);
        assert_mended(&region);
        specimen.assert_shows(&region, &[("first", "first"), ("third", "third"), ("", "")]);
    }
    assert!(left >= 3, "{left}");
    // Without its checkpoint there is nothing to be read of it.
    let [block] = specimen.blocks(|kind, born| kind == CHECKPOINT && born == second)[..] else { panic!() };
    let (_zone, region) = specimen.damaged(block);
    let mended = assert_mended(&region);
    assert!(mended.problems[0].what.contains("nothing of snapshot \"second\""), "{:#?}", mended.problems);
    specimen.assert_shows(&region, &[("first", "first"), ("third", "third"), ("", "")]);
    assert!(open_snapshot(&region, "second").is_err());
}

/// Each block of the list in turn: the volume goes on, without giving anything of a snapshot away that it does not know of;
/// and after the repair all of them are there, by other names.
#[test]
fn a_damaged_list_is_made_anew() {
    let specimen = specimen(|_| {});
    let list = specimen.blocks(|kind, _| kind == LIST);
    assert_eq!(list.len(), 2, "an index and a block of records");
    let found: Vec<String> =
        specimen.snapshots.iter().map(|snapshot| format!("found-{}", snapshot.version)).collect();
    let shown: Vec<(&str, &str)> =
        found.iter().map(String::as_str).zip(["first", "second", "third"]).collect();
    // That a repair finds right away, behind one mount, behind two of which the first was killed.
    for (block, mounts) in list.iter().flat_map(|block| [(*block, 0), (*block, 1), (*block, 2)]) {
        let (mut zone, mut region) = specimen.damaged(block);
        assert!(native::snapshots(&region).is_err());
        specimen.assert_shows(&region, if mounts == 0 { &[] } else { &[("", "")] });
        let mut now = specimen.trees[""].clone();
        for mount in 0..mounts {
            let is_killed = mount + 1 < mounts;
            now = use_it_all(&region, is_killed);
            let after = crashed(&zone);
            (zone, region) = after;
        }
        let mended = assert_mended(&region);
        assert!(
            mended.problems.iter().any(|problem| problem.what.contains("are lost")),
            "{:#?}",
            mended.problems
        );
        let names: Vec<_> = native::snapshots(&region).unwrap().into_iter().map(|it| it.name).collect();
        assert_eq!(names, found, "{:#?}", mended.problems);
        specimen.assert_shows(&region, &shown);
        let volume = open(&region);
        let difference = difference(&now, &tree(&volume).unwrap());
        assert!(difference.is_none(), "{difference:?}");
        // Removed, they leave nothing.
        found.iter().for_each(|name| volume.remove_snapshot(name).unwrap());
        volume.finish_removals().unwrap();
        volume.close().unwrap();
        drop(volume);
        assert_sound(&region);
        let reached = native::info(&region).unwrap();
        assert_eq!(check(&region, false).unwrap().blocks_used, reached.blocks - reached.blocks_free);
    }
}

/// A snapshot behind which nothing was checkpointed has no checkpoint of its own yet: a repair of the list says that such a
/// one is lost, and says so only where there may have been one.
#[test]
fn a_snapshot_taken_last_is_lost_with_the_list() {
    let told_of = |specimen: Specimen| {
        let list = specimen.blocks(|kind, _| kind == LIST);
        let (_zone, region) = specimen.damaged(list[0]);
        let mended = assert_mended(&region);
        specimen.assert_shows(&region, &[("", "")]);
        let found = native::snapshots(&region).unwrap().len();
        (found, mended.problems.iter().any(|problem| problem.what.contains("taken last of all is lost")))
    };
    assert_eq!(told_of(specimen(|volume| drop(volume.take_snapshot("fourth", "").unwrap()))), (3, true));
    assert_eq!(told_of(specimen(|_| ())), (3, false));
}

/// Changes all that there is in a volume with a damaged list, which lets nothing be done to snapshots.
fn use_it_all(region: &Region, is_killed: bool) -> Tree {
    let volume = open(region);
    // It is not taken for a list of none.
    assert!(volume.snapshots().is_empty() && volume.check_snapshots().is_err());
    let root = &Caller::root();
    let dir = volume.lookup(root, ROOT_INO, b".snapshots").unwrap().ino;
    assert!(matches!(volume.lookup(root, dir, b"first"), Err(vfs::Error::Corrupt(_))));
    let mut listed = Vec::new();
    let mut list = |from| {
        volume.readdir(dir, from, &mut |entry| {
            listed.push(entry.next);
            true
        })
    };
    let (dots, end) = (list(0), list(2));
    assert!(dots.is_ok() && matches!(end, Err(vfs::Error::Corrupt(_))), "{dots:?}, {end:?}");
    assert_eq!(listed, [1, 2]);
    let refused = [
        volume.snapshot("first").map(drop),
        volume.take_snapshot("fourth", "").map(drop),
        volume.check_roll_back("first", true).map(drop),
        volume.finish_removals(),
    ];
    for refused in refused {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("list of snapshots is damaged") && error.contains("fsck --repair"), "{error}");
    }
    // All that the snapshots could have goes, and as much comes.
    for (name, kind, _) in names(&volume, ROOT_INO).unwrap() {
        if kind == FileKind::Directory {
            let other = [b"other-", &name[..]].concat();
            volume.rename(root, ROOT_INO, &name, ROOT_INO, &other, RenameFlags::empty()).unwrap();
        } else {
            volume.unlink(root, ROOT_INO, &name).unwrap();
        }
    }
    volume.checkpoint().unwrap();
    for round in 4..6 {
        change(&volume, round);
        volume.checkpoint().unwrap();
    }
    change(&volume, 6);
    assert_eq!(volume.collect_garbage().unwrap(), 0, "what unknown snapshots have stays where it is");
    let now = tree(&volume).unwrap();
    if is_killed {
        volume.abandon();
    } else {
        volume.close().unwrap();
    }
    now
}

/// A snapshot that was being removed when the list was damaged: what of it is free is not taken for a snapshot.
#[test]
fn what_was_being_removed_does_not_come_back_by_halves() {
    let mut specimen = specimen(|_| {});
    specimen.snapshots.retain(|snapshot| snapshot.name != "second");
    let (zone, region) = zone_of(&specimen.image);
    let options = MountOptions { background: false, removal_steps: 5, ..MountOptions::default() };
    let volume = Volume::open(region.clone(), &options).unwrap();
    volume.remove_snapshot("second").unwrap();
    volume.checkpoint().unwrap();
    volume.close().unwrap();
    drop(volume);
    let halfway = Specimen { image: zone.snapshot_image(), ..specimen };
    let (_zone, sound) = zone_of(&halfway.image);
    assert_sound(&sound);
    finish(&sound);
    let wanted = used(&sound);
    assert!(used(&region) > wanted, "it is not all gone yet");
    for block in halfway.blocks(|kind, _| kind == LIST) {
        let (_zone, region) = halfway.damaged(block);
        assert_mended(&region);
        let found = native::snapshots(&region).unwrap();
        assert_eq!(
            found.iter().map(|it| it.version).collect::<Vec<_>>(),
            halfway.snapshots.iter().map(|it| it.version).collect::<Vec<_>>()
        );
        let shown = [(found[0].name.as_str(), "first"), (found[1].name.as_str(), "third"), ("", "")];
        halfway.assert_shows(&region, &shown);
        assert_eq!(used(&region), wanted);
    }
}

/// Whatever block of metadata is damaged, and however: what is shown is what was, and what a repair calls clean is so.
#[test]
fn random_damage_is_never_believed() {
    let mut random = Random(seed());
    let specimen = specimen(|volume| volume.hold_snapshot("first", "a test").unwrap());
    let blocks = specimen.blocks(|kind, _| kind != DATA);
    let (mut clean, mut not) = (0, 0);
    for _ in 0..250 {
        let mut image = specimen.image.clone();
        let mut what = Vec::new();
        for _ in 0..=random.below(2) {
            let block = blocks[random.below(blocks.len() as u64) as usize];
            let range = specimen.block(block);
            let other = specimen.block(blocks[random.below(blocks.len() as u64) as usize]);
            match random.below(4) {
                0 => image[range.clone()].fill(0),
                1 => image.copy_within(other, range.start), // another's
                _ => image[range.start + random.below(4096) as usize] ^= 1 << random.below(8),
            }
            what.push(block);
        }
        let (_zone, region) = zone_of(&image);
        let told = check(&region, false).unwrap_or_else(|_| CheckReport::default());
        assert_eq!(told.is_clean(), told.problems.is_empty(), "a check alone mends nothing: {told:#?}");
        // Mounted as it is: snapshots go, something changes.
        if random.one_in(2)
            && let Ok(volume) =
                Volume::open(region.clone(), &MountOptions { background: false, ..MountOptions::default() })
        {
            let _ = volume.remove_snapshot("second");
            let _ = write_file(&volume, ROOT_INO, "new", &[1; 10_000]);
            let _ = volume.unlink(&Caller::root(), ROOT_INO, b"new");
            let _ = volume.finish_removals();
            let _ = volume.close();
        }
        let Ok(report) = check(&region, true) else { continue };
        if !report.is_clean() {
            not += 1;
            continue;
        }
        clean += 1;
        let again = check(&region, true).unwrap();
        assert!(
            again.problems.is_empty(),
            "{what:?}: {:#?}\nand then {:#?}",
            report.problems,
            again.problems
        );
        finish(&region);
        for snapshot in native::snapshots(&region).unwrap() {
            // One that was never taken is the volume as it was when the list was written.
            let was = specimen.snapshots.iter().find(|was| was.version == snapshot.version);
            let was = was.map_or("", |was| was.name.as_str());
            specimen.assert_shows(&region, &[(&snapshot.name, was)]);
        }
        let shown: Tree = tree(&open(&region)).unwrap();
        let difference = difference(&specimen.trees[""], &shown);
        assert!(difference.is_none(), "{what:?}: {difference:?}\n{:#?}", report.problems);
    }
    eprintln!("{clean} volumes are clean after a repair, {not} are not");
    assert!(clean > 20 && not > 20, "{clean} {not}");
}
