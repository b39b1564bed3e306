//! Snapshots: what is refused, how many there may be, what they cost; returning to one, and cloning one. That they are what
//! they were while the tree changes, across crashes, is `torture.rs`'s.

use crate::volumes;
use crate::volumes::{
    RW, Random, Tree, assert_sound, crashed, difference, ino, made, names, tree, tree_below, write_file,
};
use native::{Durability, Error, MountOptions, Volume, check, clone_snapshot, roll_back};
use nvm::Region;
use vfs::{Caller, FileKind, FileSystem, Ino, ROOT_INO, RenameFlags, SetAttr, XattrMode};

fn options(durability: Durability) -> MountOptions {
    MountOptions { durability, background: false, ..MountOptions::default() }
}

fn open(region: &Region, durability: Durability) -> Volume {
    Volume::open(region.clone(), &options(durability)).unwrap()
}

fn blocks_used(region: &Region) -> u64 {
    assert_sound(region);
    check(region, false).unwrap().blocks_used
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (_zone, region) = made(24 << 20);
    let volume = open(&region, Durability::Operation);
    for name in ["", ".", "..", "a/b", "line\nfeed", &"x".repeat(256)] {
        assert!(matches!(volume.take_snapshot(name, ""), Err(Error::SnapshotText(_))), "{name:?}");
    }
    let long = "y".repeat(255);
    volume.take_snapshot(&long, &long).unwrap();
    assert!(matches!(volume.take_snapshot(&long, ""), Err(Error::SnapshotExists(_))));
    assert!(matches!(volume.take_snapshot("z", &"c".repeat(256)), Err(Error::SnapshotText(_))));
    assert!(matches!(volume.remove_snapshot("z"), Err(Error::NoSnapshot(_))));
    assert!(matches!(volume.release_snapshot(&long, "nobody"), Err(Error::SnapshotHold { .. })));
    volume.hold_snapshot(&long, "a backup").unwrap();
    assert!(matches!(volume.hold_snapshot(&long, "a backup"), Err(Error::SnapshotHold { .. })));
    assert!(matches!(volume.hold_snapshot(&long, &"t".repeat(250)), Err(Error::SnapshotHold { .. })));
    drop(volume);
    let volume = open(&region, Durability::Operation);
    let held = volume.remove_snapshot(&long);
    assert!(matches!(&held, Err(Error::SnapshotHeld { tags, .. }) if tags == &["a backup"]), "{held:?}");
    volume.release_snapshot(&long, "a backup").unwrap();
    volume.remove_snapshot(&long).unwrap();
    assert_eq!(volume.snapshots(), []);
}

/// Some of all that a tree goes through: bytes, names that come, move and go, directories with what is in them, attributes.
fn churn(volume: &Volume, n: u32) {
    let root = Caller::root();
    let (dir, file) = (format!("dir {}", n % 7), format!("file {n}"));
    let bytes = vec![n as u8; n as usize * 37 % 9000];
    let handle = volume.open(&root, ino(volume, "file"), RW).unwrap();
    volume.write(&root, handle, u64::from(n % 16) * 4096, &[n as u8; 4096]).unwrap();
    volume.release(handle).unwrap();
    if n % 50 < 7 {
        // Each directory once in fifty rounds: what it has goes, and it comes anew.
        if let Ok(old) = volume.lookup(&root, ROOT_INO, dir.as_bytes()) {
            clear(volume, old.ino);
            volume.rmdir(&root, ROOT_INO, dir.as_bytes()).unwrap();
        }
        volume.mkdir(&root, ROOT_INO, dir.as_bytes(), 0o755).unwrap();
    }
    let (here, there) = (ino(volume, &dir), ino(volume, &format!("dir {}", n % 50 % 7)));
    write_file(volume, here, &file, &bytes).unwrap();
    volume.rename(&root, here, file.as_bytes(), there, file.as_bytes(), RenameFlags::empty()).unwrap();
    let listed = names(volume, there).unwrap();
    if let Some((oldest, ..)) = listed.first().filter(|_| listed.len() > 4) {
        volume.unlink(&root, there, oldest).unwrap();
    }
    volume.setxattr(&root, here, b"user.note", &bytes[..bytes.len().min(900)], XattrMode::Either).unwrap();
}

/// Removes what is in a directory.
fn clear(volume: &Volume, dir: Ino) {
    for (name, kind, ino) in names(volume, dir).unwrap() {
        if kind == FileKind::Directory {
            clear(volume, ino);
            volume.rmdir(&Caller::root(), dir, &name).unwrap();
        } else {
            volume.unlink(&Caller::root(), dir, &name).unwrap();
        }
    }
}

/// The list grows by blocks, and shrinks again; all that the tree went through under the snapshots leaves nothing behind.
#[test]
fn a_thousand_come_back() {
    let (_zone, region) = made(128 << 20);
    let volume = open(&region, Durability::Operation);
    let root = Caller::root();
    // What the same leaves that has nothing to do with snapshots.
    write_file(&volume, ROOT_INO, "file", &[0; 16 << 12]).unwrap();
    (0..1000).for_each(|n| churn(&volume, n));
    clear(&volume, ROOT_INO);
    volume.checkpoint().unwrap();
    let before = volume.stats().blocks_free;
    write_file(&volume, ROOT_INO, "file", &[0; 16 << 12]).unwrap();
    let mut kept = Vec::new();
    for n in 0..1000u32 {
        churn(&volume, n);
        volume.take_snapshot(&format!("number {n}"), "").unwrap();
        if n % 100 == 33 {
            kept.push((format!("number {n}"), tree(&volume).unwrap()));
        }
    }
    drop(volume);
    assert_sound(&region);
    let volume = open(&region, Durability::Operation);
    assert_eq!(volume.snapshots().len(), 1000);
    assert!(volume.snapshots().windows(2).all(|pair| pair[0].version < pair[1].version));
    let shown = |name: &str| {
        let all = volume.lookup(&root, ROOT_INO, b".snapshots").unwrap().ino;
        tree_below(&volume, volume.lookup(&root, all, name.as_bytes()).unwrap().ino).unwrap()
    };
    for n in (0..1000u32).filter(|n| n % 3 != 0).chain((0..1000).step_by(3)) {
        let name = format!("number {n}");
        if let Some((_, then)) = kept.iter().find(|(kept, _)| *kept == name) {
            assert_eq!(difference(&shown(&name), then), None, "{name}");
        }
        volume.remove_snapshot(&name).unwrap();
    }
    volume.finish_removals().unwrap();
    clear(&volume, ROOT_INO);
    volume.checkpoint().unwrap();
    assert_eq!(volume.stats().blocks_free, before);
    volume.close().unwrap();
    assert_sound(volume.region());
}

/// A volume whose space is a snapshot's: writing fails, nothing is lost, and removing the snapshot helps.
#[test]
fn a_full_volume_is_saved_by_removing_a_snapshot() {
    let (_zone, region) = made(24 << 20);
    let volume = open(&region, Durability::Operation);
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
    let mut blocks = 0;
    while volume.statfs().unwrap().blocks_free > 700 {
        volume.write(&root, file.handle, blocks * 4096, &[1; 4096]).unwrap();
        blocks += 1;
    }
    volume.take_snapshot("full", "").unwrap();
    let mut written = 0;
    let refused = loop {
        match volume.write(&root, file.handle, written * 4096, &[2; 4096]) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, vfs::Error::NoSpace);
    assert!(written > 0 && written < blocks, "{written} of {blocks}");
    // A change of a few bytes needs a block, too, where the snapshot has the old one.
    let few = |block: &u64| volume.write(&root, file.handle, block * 4096, &[3; 64]).is_err();
    let refused = (0..blocks).rev().find(few).unwrap();
    assert!(refused > written, "{} small changes found room", blocks - refused);
    let more = |n: &u32| volume.take_snapshot(&format!("another {n}"), "").is_err();
    let taken = (0..100).find(more).expect("checkpoints need what is left");
    assert!(matches!(volume.take_snapshot("another", ""), Err(Error::NoSpaceForSnapshot)));
    let mut bytes = vec![0; 4096];
    for block in 0..blocks {
        volume.read(file.handle, block * 4096, &mut bytes).unwrap();
        let expected = if block < written { 2 } else { 1 };
        let changed = if block > refused { 64 } else { 0 };
        assert!(bytes[..changed].iter().all(|byte| *byte == 3), "block {block}");
        assert!(bytes[changed..].iter().all(|byte| *byte == expected), "block {block}");
    }
    volume.remove_snapshot("full").unwrap();
    (0..taken).for_each(|n| volume.remove_snapshot(&format!("another {n}")).unwrap());
    volume.finish_removals().unwrap();
    for block in 0..blocks {
        volume.write(&root, file.handle, block * 4096, &[4; 4096]).unwrap();
    }
    volume.unlink(&root, ROOT_INO, b"file").unwrap();
    volume.close().unwrap();
    assert!(blocks_used(volume.region()) < 64);
}

/// Who finds no room while a removed snapshot's comes back, step by step, waits for it.
#[test]
fn room_that_is_coming_back_is_waited_for() {
    let (_zone, region) = made(24 << 20);
    let options = MountOptions { removal_steps: 50, ..options(Durability::Operation) };
    let volume = Volume::open(region, &options).unwrap();
    let root = Caller::root();
    let fill = |name: &str| {
        let file = volume.create(&root, ROOT_INO, name.as_bytes(), 0o644, RW).unwrap();
        let write = |block: &u64| volume.write(&root, file.handle, block * 4096, &[1; 4096]).is_ok();
        let blocks = (0..).take_while(write).count();
        volume.release(file.handle).unwrap();
        blocks
    };
    let attempt = volume.statfs().unwrap().blocks_free / 2;
    let file = volume.create(&root, ROOT_INO, b"first", 0o644, RW).unwrap();
    for block in 0..attempt {
        volume.write(&root, file.handle, block * 4096, &[1; 4096]).unwrap();
    }
    volume.release(file.handle).unwrap();
    volume.take_snapshot("s", "").unwrap();
    volume.unlink(&root, ROOT_INO, b"first").unwrap();
    fill("second");
    volume.remove_snapshot("s").unwrap();
    let blocks = fill("third") as u64;
    assert!(blocks + 200 > attempt, "{blocks} of {attempt} blocks came back in time");
    volume.close().unwrap();
    assert_sound(volume.region());
}

/// Changes some files in the root directory: makes, overwrites, cuts, removes them.
fn change(volume: &Volume, random: &mut Random) {
    let root = Caller::root();
    for _ in 0..random.below(40) {
        let name = format!("file {}", random.below(30));
        let found = volume.lookup(&root, ROOT_INO, name.as_bytes());
        let handle = match &found {
            Ok(attr) => volume.open(&root, attr.ino, RW).unwrap(),
            Err(_) => volume.create(&root, ROOT_INO, name.as_bytes(), 0o644, RW).unwrap().handle,
        };
        let length = [60, 700, 5000, 40_000, 300_000][random.below(5) as usize];
        let bytes = random.bytes(length);
        volume.write(&root, handle, random.below(400_000), &bytes).unwrap();
        if let (Ok(attr), true) = (&found, random.one_in(3)) {
            let set = SetAttr { size: Some(random.below(200_000)), ..SetAttr::default() };
            volume.setattr(&root, attr.ino, &set, Some(handle)).unwrap();
        }
        volume.release(handle).unwrap();
        if random.one_in(4) {
            volume.unlink(&root, ROOT_INO, name.as_bytes()).unwrap();
        }
    }
}

/// Returning to a snapshot takes the newer ones with it, if that is allowed.
#[test]
fn newer_snapshots_are_in_the_way_of_a_return() {
    let (_zone, region) = made(24 << 20);
    let volume = open(&region, Durability::Operation);
    for name in ["one", "two", "three"] {
        volumes::write_file(&volume, ROOT_INO, name, name.as_bytes()).unwrap();
        volume.take_snapshot(name, "").unwrap();
    }
    let usage = volume.snapshot_usage("two").unwrap();
    assert!(usage.own_blocks > 0, "{usage:?}");
    volume.hold_snapshot("two", "a backup").unwrap();
    volume.close().unwrap();
    drop(volume);
    let held = roll_back(&region, "one", true);
    assert!(matches!(&held, Err(Error::SnapshotHeld { name, .. }) if name == "two"), "{held:?}");
    let refused = roll_back(&region, "two", false);
    assert!(
        matches!(&refused, Err(Error::NewerSnapshots { newer, .. }) if newer == &["three"]),
        "{refused:?}"
    );
    assert_eq!(open(&region, Durability::Operation).snapshots().len(), 3);
    assert_eq!(roll_back(&region, "two", true).unwrap().name, "two");
    let volume = open(&region, Durability::Operation);
    let names: Vec<_> = names(&volume, ROOT_INO).unwrap().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(volume.snapshots().len(), 2);
}

/// A clone has the snapshot's tree, goes its own way, and is whole by itself.
#[test]
fn a_clone_is_a_volume() {
    let mut random = Random(volumes::seed());
    let (_zone, region) = made(64 << 20);
    let volume = open(&region, Durability::Operation);
    change(&volume, &mut random);
    let before = tree(&volume).unwrap();
    volume.take_snapshot("origin", "").unwrap();
    change(&volume, &mut random);
    let after = tree(&volume).unwrap();
    let is_whole = |other: &Region| {
        assert_sound(other);
        let clone = open(other, Durability::Operation);
        assert_eq!(difference(&tree(&clone).unwrap(), &before), None);
        assert_eq!(clone.snapshots(), []);
        change(&clone, &mut Random(1));
        clone.take_snapshot("of the clone", "").unwrap();
        clone.close().unwrap();
        drop(clone);
        assert_sound(other);
    };
    let (_small, small) = made(32 << 20);
    let refused = volume.clone_snapshot("origin", &small, &mut |_, _| {});
    assert!(matches!(refused, Err(Error::CloneTooSmall { .. })), "{refused:?}");
    let (_zone, other) = made(64 << 20);
    let mut seen = Vec::new();
    volume.clone_snapshot("origin", &other, &mut |done, all| seen.push((done, all))).unwrap();
    assert!(seen.last().is_some_and(|(done, all)| done == all), "{seen:?}");
    is_whole(&other);
    volume.remove_snapshot("origin").unwrap();
    volume.take_snapshot("second", "").unwrap();
    let refused = volume.clone_snapshot("origin", &other, &mut |_, _| {});
    assert!(matches!(refused, Err(Error::NoSnapshot(_))), "{refused:?}");
    assert_has(&volume, &after);
    volume.close().unwrap();
    drop(volume);
    let (_zone, larger) = made(80 << 20);
    clone_snapshot(&region, "second", &larger, &mut |_, _| {}).unwrap();
    assert_sound(&larger);
    assert_has(&open(&larger, Durability::Fsync), &after);
}

#[track_caller]
fn assert_has(volume: &Volume, expected: &Tree) {
    assert_eq!(difference(&tree(volume).unwrap(), expected), None);
}

/// Clones of one snapshot had the same log salts, so that one in another's place could have replayed what that had done.
#[test]
fn two_clones_have_logs_of_their_own() {
    let (_zone, region) = made(64 << 20);
    let volume = open(&region, Durability::Operation);
    volume.take_snapshot("origin", "").unwrap();
    let (zone, other) = made(64 << 20);
    let mut lives: Vec<Tree> = Vec::new();
    for life in 0..2u64 {
        volume.clone_snapshot("origin", &other, &mut |_, _| {}).unwrap();
        let clone = open(&other, Durability::Operation);
        // The second is cut short, and must not be continued by what the first wrote behind.
        for n in 0..(500 - 490 * life) {
            volumes::write_file(&clone, ROOT_INO, &format!("{life}.{n}"), &[n as u8; 100]).unwrap();
        }
        lives.push(tree(&clone).unwrap());
        let (_zone, copy) = crashed(&zone);
        let recovered = open(&copy, Durability::Operation);
        assert!(recovered.failure().is_none(), "{:?}", recovered.failure());
        assert_has(&recovered, &lives[life as usize]);
        clone.abandon();
    }
}

/// Files that were open without a name when a snapshot was taken came back with it, in a volume that was marked as closed: to
/// whoever did not open it for writing first it was damaged, and `fsck` said so.
#[test]
fn what_had_no_name_does_not_come_back() {
    let (_zone, region) = made(24 << 20);
    let volume = open(&region, Durability::Operation);
    let nameless = volume.tmpfile(&Caller::root(), ROOT_INO, 0o600, RW).unwrap();
    volume.write(&Caller::root(), nameless.handle, 0, &[1; 100_000]).unwrap();
    volume.take_snapshot("then", "").unwrap();
    let (_zone, other) = made(24 << 20);
    volume.clone_snapshot("then", &other, &mut |_, _| {}).unwrap();
    volume.close().unwrap();
    drop(volume);
    roll_back(&region, "then", false).unwrap();
    for region in [&region, &other] {
        let report = check(region, false).unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        assert_eq!(report.files, 0);
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        assert!(Volume::open(region.clone(), &options).is_ok());
    }
}

/// A list that was full took no change to its records any more, and so no removal.
#[test]
fn a_full_list_can_be_emptied() {
    let (_zone, region) = made(64 << 20);
    let volume = open(&region, Durability::Operation);
    let name = |n: u32| format!("{n:0>255}");
    let comment = "c".repeat(255);
    let taken = (0..10_000).find(|n| volume.take_snapshot(&name(*n), &comment).is_err()).unwrap();
    assert!(matches!(volume.take_snapshot("more", &comment), Err(Error::TooManySnapshots)), "{taken}");
    volume.remove_snapshot(&name(taken / 2)).unwrap();
    volume.finish_removals().unwrap();
    volume.take_snapshot("more", &comment).unwrap();
    let listed = volume.snapshots();
    assert_eq!(listed.len() as u32, taken);
    listed.iter().for_each(|snapshot| volume.remove_snapshot(&snapshot.name).unwrap());
    volume.finish_removals().unwrap();
    volume.close().unwrap();
    assert!(blocks_used(&region) < 64);
}

/// What a snapshot shares with the one before it is looked at when it is removed, though nothing of it is given back: that
/// counted for nothing, so that one checkpoint could look at all of a volume.
#[test]
fn a_removal_stops_also_where_it_gives_nothing_back() {
    let (_zone, region) = made(64 << 20);
    let steps = MountOptions { removal_steps: 10, ..options(Durability::Operation) };
    let volume = Volume::open(region.clone(), &steps).unwrap();
    let root = Caller::root();
    let name = |n: u32| format!("file {n}").into_bytes();
    // 15 inodes share a node.
    let inodes: Vec<_> =
        (0..1500).map(|n| volume.mknod(&root, ROOT_INO, &name(n), 0o100_644, 0).unwrap().ino).collect();
    let change = |ino| {
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        volume.setattr(&root, ino, &set, None).unwrap();
    };
    volume.take_snapshot("before", "").unwrap();
    change(inodes[0]); // so that the NAT's block is another
    volume.take_snapshot("removed", "").unwrap();
    inodes.into_iter().for_each(change);
    volume.checkpoint().unwrap();
    let before = volume.stats().checkpoints;
    volume.remove_snapshot("removed").unwrap();
    volume.finish_removals().unwrap();
    let made = volume.stats().checkpoints - before;
    assert!(made >= 10, "100 nodes were looked at for {made} checkpoints");
    volume.close().unwrap();
    assert_sound(&region);
}
