//! What is told to be different between snapshots is what is: compared with what walking both of them says.

mod scene;
mod walk;

use std::collections::BTreeSet;

use crate::volumes::{RW, Random, assert_sound, crashed, made, names};
use native::{Aspect, DifferenceKind, Durability, Error, MountOptions, Volume};
use nvm::{BLOCK, Region};
use scene::{Scene, tick};
use vfs::torture::{Limits, Torture};
use vfs::{Caller, FallocateMode, FileSystem, Ino, ROOT_INO, RenameFlags, SetAttr, SetTime, Time};
use walk::{assert_told, snapshot, walk};

fn open(region: &Region, durability: Durability) -> Volume {
    let options = MountOptions { durability, background: false, ..MountOptions::default() };
    Volume::open(region.clone(), &options).unwrap()
}

/// Random operations between snapshots; any two of them are compared, and the oldest with what is now.
fn churn(seed: u64, durability: Durability) {
    let (mut zone, region) = made(256 << 20);
    let mut volume = open(&region, durability);
    let limits = Limits { xattr_bytes: 900, inodes: 150, file_bytes: 4 << 20, ..Limits::default() };
    let mut torture = Torture::new(seed).with_limits(limits);
    let mut random = Random(seed);
    let mut kept: Vec<String> = Vec::new();
    for round in 0..40 {
        torture.run(&volume, [3, 40, 250][random.below(3) as usize]);
        let now = walk(&volume, ROOT_INO);
        for from in &kept {
            assert_told(&volume.diff(from, None).unwrap(), &snapshot(&volume, from), &now);
        }
        let name = format!("round {round}");
        volume.take_snapshot(&name, "").unwrap();
        assert_eq!(volume.diff(&name, None).unwrap(), []);
        for from in &kept {
            let (one, other) = (snapshot(&volume, from), snapshot(&volume, &name));
            assert_told(&volume.diff(from, Some(&name)).unwrap(), &one, &other);
            assert_told(&volume.diff(&name, Some(from)).unwrap(), &other, &one);
        }
        kept.push(name);
        if kept.len() > 3 {
            volume.remove_snapshot(&kept.swap_remove(random.below(3) as usize)).unwrap();
        }
        if round % 5 == 4 {
            // Blocks move, and nothing is different by that.
            volume.finish_removals().unwrap();
            let told = volume.diff(&kept[0], None).unwrap();
            volume.finish_removals().unwrap();
            volume.collect_garbage().unwrap();
            assert_eq!(volume.diff(&kept[0], None).unwrap(), told);
        }
        if round % 4 == 3 {
            // What has no path is known by the log alone: paths are told from what replay made of it, too.
            torture.close(&volume);
            volume.syncfs().unwrap();
            let told = volume.diff(&kept[0], Some(&kept[1])).unwrap();
            let copy = crashed(&zone);
            volume.abandon();
            assert_eq!(native::diff(&copy.1, &kept[0], &kept[1]).unwrap(), told);
            volume = open(&copy.1, durability);
            zone = copy.0;
            assert_eq!(volume.diff(&kept[0], Some(&kept[1])).unwrap(), told);
        }
    }
    torture.close(&volume);
    volume.close().unwrap();
    assert_sound(volume.region());
}

#[test]
fn any_two_with_every_operation_durable() {
    churn(Torture::seed_from_environment(), Durability::Operation);
}

#[test]
fn any_two_with_durable_fsyncs() {
    churn(Torture::seed_from_environment() + 1, Durability::Fsync);
}

#[test]
fn any_two_with_durable_checkpoints() {
    churn(Torture::seed_from_environment() + 2, Durability::Snapshot);
}

#[test]
fn names_that_came_went_and_moved() {
    let scene = Scene::new(|it| {
        ["a", "a/deep", "b"].into_iter().for_each(|dir| it.dir(dir));
        ["a/one", "a/two", "a/deep/three", "b/four", "five"].into_iter().for_each(|file| it.file(file, b"x"));
    });
    assert_eq!(scene.told(true), [""; 0]);
    scene.rename("a/one", "a/uno", RenameFlags::empty());
    scene.rename("a/two", "b/two", RenameFlags::empty());
    scene.rename("a/deep", "b/depth", RenameFlags::empty());
    scene.unlink("five");
    scene.file("six", b"y");
    assert_eq!(
        scene.told(true),
        [
            "M / [Entries, Times]",
            "M /a [Entries, Times]",
            "R /a/one -> /a/uno",
            "M /b [Entries, Times]",
            "R /a/deep -> /b/depth",
            "R /a/two -> /b/two",
            "- /five",
            "+ /six"
        ]
    );
    // What lies below a directory that moved is told where it is now.
    scene.write("b/depth/three", 0, b"changed");
    assert!(scene.told(false).contains(&"M /b/depth/three [Data, Times]".into()));
    // And back again.
    scene.rename("a/uno", "a/one", RenameFlags::empty());
    scene.rename("b/two", "a/two", RenameFlags::empty());
    scene.rename("b/depth", "a/deep", RenameFlags::empty());
    scene.write("a/deep/three", 0, b"x");
    scene
        .volume
        .setattr(
            &Caller::root(),
            scene.at("a/deep/three"),
            &SetAttr { size: Some(1), ..SetAttr::default() },
            None,
        )
        .unwrap();
    assert_eq!(scene.told(false), ["M /a/deep/three [Times]", "- /five", "+ /six"]);
}

#[test]
fn replaced_and_exchanged() {
    let scene = Scene::new(|it| {
        ["d", "e"].into_iter().for_each(|dir| it.dir(dir));
        ["d/old", "d/x", "e/y", "e/z"].into_iter().for_each(|file| it.file(file, file.as_bytes()));
    });
    scene.file("d/old.new", b"new");
    scene.rename("d/old.new", "d/old", RenameFlags::empty());
    scene.rename("d/x", "e/y", RenameFlags::EXCHANGE);
    scene.rename("d", "e/z", RenameFlags::EXCHANGE);
    let told =
        ["R /e/z -> /d", "- /d/old", "R /d/x -> /e/y", "R /d -> /e/z", "+ /e/z/old", "R /e/y -> /e/z/x"];
    assert_eq!(scene.told(false), told);
}

/// The name that a file knows may be the one that went.
#[test]
fn hard_links() {
    let scene = Scene::new(|it| {
        it.dir("d");
        it.file("one", b"1");
        it.file("d/two", b"2");
        it.link("one", "d/uno");
        it.link("d/two", "due");
    });
    scene.unlink("d/uno");
    scene.write("one", 0, b"I");
    assert_eq!(scene.told(false), ["- /d/uno", "M /one [Data, Links, Times]"]);
    scene.link("one", "d/eins");
    scene.link("one", "d/yi");
    let told = ["R /d/uno -> /d/eins", "+ /d/yi", "M /d/yi [Data, Links, Times]"];
    assert_eq!(scene.told(false), told);
    scene.unlink("due");
    scene.write("d/two", 0, b"II");
    assert!(scene.told(false).contains(&"M /d/two [Data, Links, Times]".into()));
}

/// A number that a removed file had, given to another, is no rename and no change.
#[test]
fn numbers_are_used_again() {
    let scene = Scene::new(|it| (0..40).for_each(|n| it.file(&format!("f{n}"), b"old")));
    let before: BTreeSet<Ino> = (0..40).map(|n| scene.at(&format!("f{n}"))).collect();
    for n in 0..40 {
        scene.unlink(&format!("f{n}"));
    }
    scene.volume.checkpoint().unwrap();
    for n in 0..40 {
        // Half of them take the same names.
        scene.file(&if n % 2 == 0 { format!("f{n}") } else { format!("g{n}") }, b"new");
    }
    let again =
        names(&scene.volume, ROOT_INO).unwrap().iter().filter(|(.., ino)| before.contains(ino)).count();
    assert!(again > 10, "{again} numbers were used again");
    let told = scene.told(false);
    let count = |sign: &str| told.iter().filter(|line| line.starts_with(sign)).count();
    assert_eq!((count("- "), count("+ "), told.len()), (40, 40, 80), "{told:#?}");
}

#[test]
fn open_without_a_name_and_named_later() {
    let scene = Scene::new(|it| {
        it.file("going", b"x");
        it.dir("empty");
    });
    let root = Caller::root();
    let open = scene.volume.open(&root, scene.at("going"), RW).unwrap();
    scene.unlink("going");
    scene.volume.write(&root, open, 0, b"nobody sees").unwrap();
    let temporary = scene.volume.tmpfile(&root, ROOT_INO, 0o600, RW).unwrap();
    assert_eq!(scene.told(false), ["- /going"]);
    scene.volume.take_snapshot("between", "").unwrap();
    scene.volume.link(&root, temporary.attr.ino, scene.at("empty"), b"named").unwrap();
    scene.volume.release(open).unwrap();
    assert_eq!(scene.told(false), ["+ /empty/named", "- /going"]);
    let since: Vec<_> = scene.volume.diff("between", None).unwrap().into_iter().map(|it| it.path).collect();
    assert_eq!(since, [&b"/empty"[..], b"/empty/named"]);
}

#[test]
fn contents_of_all_sizes() {
    let far = [(64 << 10) - 1, 300 << 10, 1 << 30, 2 << 30, 200 << 30];
    let scene = Scene::new(|it| {
        it.file("inline", b"few");
        it.file("grows", b"few");
        it.file("same", &[7; 9000]);
        it.file("sparse", b"");
        far.iter().for_each(|at| it.write("sparse", *at, &[1; 5000]));
        it.file("other sparse", b"");
        far.iter().for_each(|at| it.write("other sparse", *at, &[1; 5000]));
    });
    scene.write("inline", 1, b"E");
    scene.write("grows", 0, &[1; 200]);
    // The same bytes once more are no change of the contents.
    scene.write("same", 0, &[7; 9000]);
    let told = |scene: &Scene| -> Vec<(String, Vec<Aspect>)> {
        let found = scene.volume.diff("before", None).unwrap();
        let modified = found.into_iter().map(|difference| match difference.kind {
            DifferenceKind::Modified(aspects) => (String::from_utf8(difference.path).unwrap(), aspects),
            other => panic!("{other:?}"),
        });
        modified.collect()
    };
    let data = || vec![Aspect::Data, Aspect::Times];
    let first = [("/grows", data()), ("/inline", data()), ("/same", vec![Aspect::Times])];
    assert_eq!(told(&scene), first.clone().map(|(path, aspects)| (path.to_string(), aspects)));
    for at in far {
        scene.volume.remove_snapshot("before").unwrap();
        scene.volume.take_snapshot("before", "").unwrap();
        tick();
        scene.write("sparse", at + 4000, &[2; 100]);
        assert_eq!(told(&scene), [("/sparse".to_string(), data())], "{at}");
        scene.write("sparse", at + 4000, &[1; 100]);
        assert_eq!(told(&scene), [("/sparse".to_string(), vec![Aspect::Times])], "{at}");
    }
    // Zeros written are no other than a hole, and a hole than zeros.
    scene.volume.remove_snapshot("before").unwrap();
    scene.volume.take_snapshot("before", "").unwrap();
    tick();
    scene.write("sparse", 100 << 30, &[0; 3 * BLOCK as usize]);
    let root = Caller::root();
    let handle = scene.volume.open(&root, scene.at("other sparse"), RW).unwrap();
    scene
        .volume
        .fallocate(&root, handle, FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE, 1 << 20, 1 << 20)
        .unwrap();
    scene.volume.fallocate(&root, handle, FallocateMode::KEEP_SIZE, 250 << 30, 1 << 20).unwrap();
    assert!(told(&scene).iter().all(|(_, aspects)| aspects == &[Aspect::Times]), "{:?}", told(&scene));
    scene
        .volume
        .fallocate(&root, handle, FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE, 1 << 30, 1 << 20)
        .unwrap();
    scene.volume.release(handle).unwrap();
    assert!(told(&scene).contains(&("/other sparse".to_string(), data())));
}

#[test]
fn attributes_of_all_kinds() {
    let scene = Scene::new(|it| {
        it.dir("d");
        ["mode", "owner", "times", "xattr", "none"].into_iter().for_each(|file| it.file(file, b"x"));
    });
    let root = Caller::root();
    let set = |path: &str, change: SetAttr| {
        scene.volume.setattr(&root, scene.at(path), &change, None).map(drop).unwrap()
    };
    set("mode", SetAttr { mode: Some(0o600), ..SetAttr::default() });
    set("d", SetAttr { mode: Some(0o700), ..SetAttr::default() });
    set("owner", SetAttr { uid: Some(1000), ..SetAttr::default() });
    set("times", SetAttr { atime: Some(SetTime::At(Time { sec: 5, nsec: 6 })), ..SetAttr::default() });
    // Back to what it was: only when it was changed tells, and that is not told.
    set("none", SetAttr { mode: Some(0o600), ..SetAttr::default() });
    set("none", SetAttr { mode: Some(0o644), ..SetAttr::default() });
    let xattr = |path: &str, name: &[u8], value: &[u8]| {
        scene.volume.setxattr(&root, scene.at(path), name, value, vfs::XattrMode::Either).unwrap();
    };
    xattr("xattr", b"user.short", b"1");
    xattr("d", b"user.long", &[3; 2000]);
    let told = [
        "M /d [Mode, Xattrs]",
        "M /mode [Mode]",
        "M /owner [Owner]",
        "M /times [Times]",
        "M /xattr [Xattrs]",
    ];
    assert_eq!(scene.told(true), told);
    scene.volume.take_snapshot("with xattrs", "").unwrap();
    xattr("d", b"user.long", &[4; 2000]);
    let since: Vec<_> =
        scene.volume.diff("with xattrs", None).unwrap().into_iter().map(|it| (it.path, it.kind)).collect();
    assert_eq!(since, [(b"/d".to_vec(), DifferenceKind::Modified(vec![Aspect::Xattrs]))]);
}

/// Buckets split and become tables: entries that went elsewhere by that are no difference.
#[test]
fn a_directory_that_grows() {
    let scene = Scene::new(|it| {
        it.dir("d");
        (0..100).for_each(|n| it.file(&format!("d/name {n}"), b""));
    });
    (100..3000).for_each(|n| scene.file(&format!("d/name {n}"), b""));
    let told = scene.told(false);
    assert_eq!(told.len(), 2900);
    assert!(told.iter().all(|line| line.starts_with("+ /d/name ")));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let scene = Scene::new(|_| {});
    let volume = &scene.volume;
    assert!(matches!(volume.diff("before", Some("before")), Err(Error::SameSnapshot(_))));
    assert!(matches!(volume.diff("before", Some("other")), Err(Error::NoSnapshot(name)) if name == "other"));
    assert!(matches!(volume.diff("other", None), Err(Error::NoSnapshot(name)) if name == "other"));
    let free_afterwards = || {
        assert_eq!(volume.diff("before", None).unwrap(), []);
        volume.finish_removals().unwrap();
        volume.checkpoint().unwrap();
        volume.stats().blocks_free
    };
    let free = free_afterwards();
    (0..3).for_each(|_| assert_eq!(free_afterwards(), free, "what was kept to be compared has come back"));
    assert_eq!(volume.snapshots().len(), 1);
}

/// How many blocks are looked at follows what changed, not what there is.
#[test]
fn it_looks_at_what_changed() {
    let (few, many) = (blocks_looked_at(2_000), blocks_looked_at(20_000));
    // Of each of ten files: its block of inodes, as it was and as it is, a bucket and what leads there.
    assert!(few < 100 && many < few + few / 4, "{few} blocks of 2,000 files, {many} of 20,000");
}

/// Of so many files and one large one, ten and a block of the large one change: how many blocks a comparison reads.
fn blocks_looked_at(count: usize) -> usize {
    let (zone, region) = made(256 << 20);
    let volume = open(&region, Durability::Fsync);
    let root = Caller::root();
    let mut files = Vec::new();
    for dir in 0..10 {
        let dir = volume.mkdir(&root, ROOT_INO, format!("dir {dir}").as_bytes(), 0o755).unwrap().ino;
        for file in 0..count / 10 {
            let made = volume.mknod(&root, dir, format!("file {file}").as_bytes(), 0o100_644, 0).unwrap();
            files.push(made.ino);
        }
    }
    let big = volume.create(&root, ROOT_INO, b"big", 0o644, RW).unwrap();
    for part in 0..count as u64 / 500 {
        volume.write(&root, big.handle, part << 20, &vec![part as u8; 1 << 20]).unwrap();
    }
    volume.take_snapshot("before", "").unwrap();
    for file in files.iter().step_by(count / 10) {
        let handle = volume.open(&root, *file, RW).unwrap();
        volume.write(&root, handle, 0, b"changed").unwrap();
        volume.release(handle).unwrap();
    }
    volume.write(&root, big.handle, 3 << 20, &[0xff; 4096]).unwrap();
    volume.take_snapshot("after", "").unwrap();
    let lines = zone.info().bytes / nvm::LINE;
    zone.watch();
    zone.watched(|watch| watch.seek(std::iter::once(0..lines))).unwrap();
    let found = volume.diff("before", Some("after")).unwrap();
    let read = zone.watched(|watch| {
        let words = watch.read().iter().flat_map(|look| watch.words(*look));
        words.map(|words| u64::from(words.line) * nvm::LINE / BLOCK).collect::<BTreeSet<_>>().len()
    });
    zone.unwatch();
    assert_eq!(found.len(), 11, "{found:#?}");
    read.unwrap()
}
