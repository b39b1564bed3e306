//! Directories against a map from names to inodes, and against what e2fsck and the kernel say of them.

use std::collections::{BTreeMap, HashSet};
use std::os::unix::ffi::OsStringExt;

use vfs::{Error, FileKind, Result};

use super::order::cookie;
use super::{Look, each, find, insert, insert_at, is_indexed, list, look, remove, replace, tree};
use crate::checksum::crc32c;
use crate::core::inode::{self, Inode};
use crate::hash::NameHash;
use crate::scene::Scene;
use crate::superblock::ROOT;
use crate::support::random::Random;
use crate::support::{Image, can_mount};

type Names = BTreeMap<Vec<u8>, u32>;

/// A file system whose root directory is changed, and what should be in it: names of a few files.
struct Stage {
    scene: Scene,
    files: Vec<u32>,
    names: Names,
}

impl Stage {
    fn new(size: &str, options: &[&str]) -> Stage {
        eprintln!("{options:?}");
        Stage::of(Scene::new(size, options, 3))
    }

    fn of(scene: Scene) -> Stage {
        let files = (0..3).map(|n| scene.file(n)).collect();
        let mut stage = Stage { scene, files, names: Names::new() };
        stage.names = stage.listed(u64::MAX, |_, _| {});
        stage
    }

    fn root(&self) -> Inode {
        inode::read(self.scene.core(), ROOT).unwrap()
    }

    /// Every other one where it was seen that there is room, if it was.
    fn insert(&mut self, name: &[u8], file: usize) -> Result<()> {
        let number = self.files[file];
        let is_looked_for = self.names.len().is_multiple_of(2);
        self.scene.change(|core| {
            let mut root = inode::read(core, ROOT)?;
            let gap = match look(core, &root, name)? {
                Look::There(found) => panic!("{found}"),
                Look::Not(gap) => gap.filter(|_| is_looked_for),
            };
            match gap {
                Some(gap) => insert_at(core, &root, &gap, name, number, FileKind::Regular)?,
                None => insert(core, &mut root, name, number, FileKind::Regular)?,
            }
            inode::write(core, &root)
        })?;
        assert_eq!(self.names.insert(name.to_vec(), number), None);
        Ok(())
    }

    fn remove(&mut self, name: &[u8]) {
        self.scene.change(|core| remove(core, &inode::read(core, ROOT)?, name)).unwrap();
        self.names.remove(name).unwrap();
    }

    fn replace(&mut self, name: &[u8], file: usize) {
        let number = self.files[file];
        self.scene
            .change(|core| replace(core, &inode::read(core, ROOT)?, name, number, FileKind::Regular))
            .unwrap();
        self.names.insert(name.to_vec(), number).unwrap();
    }

    /// Lists in pieces of up to `piece` entries, and lets `between` change something after each. Nothing is shown twice.
    fn listed(&mut self, piece: u64, mut between: impl FnMut(&mut Stage, &Names)) -> Names {
        let mut all = Names::new();
        let mut from = 0;
        loop {
            let (mut left, mut more) = (piece, false);
            list(self.scene.core(), &self.root(), from, &mut |entry| {
                more = left == 0;
                if more {
                    return false;
                }
                left -= 1;
                assert!(entry.next > from, "cookies ascend");
                from = entry.next;
                if entry.name != b"." && entry.name != b".." {
                    let before = all.insert(entry.name.to_vec(), entry.inode);
                    assert_eq!(before, None, "{:?} is shown twice", entry.name);
                }
                true
            })
            .unwrap();
            if !more {
                return all;
            }
            between(self, &all);
        }
    }

    /// Names are listed, in order and block by block, and found; others are not.
    fn check(&mut self, random: &mut Random) {
        let piece = 1 + random.below(300);
        assert_eq!(self.listed(piece, |_, _| {}), self.names);
        let (core, root) = (self.scene.core(), self.root());
        let mut count = 0;
        each(core, &root, &mut |_| {
            count += 1;
            true
        })
        .unwrap();
        assert_eq!(count, self.names.len() + 2);
        for (name, number) in &self.names {
            assert_eq!(find(core, &root, name).as_ref(), Ok(number));
            let other = [&name[1..], b"?"].concat();
            if !self.names.contains_key(&other) {
                assert_eq!(find(core, &root, &other), Err(Error::NotFound));
            }
        }
        assert_eq!([find(core, &root, b"."), find(core, &root, b"..")], [Ok(ROOT), Ok(ROOT)]);
    }

    /// The kernel and e2fsck see the same.
    fn finish(mut self, random: &mut Random) {
        self.check(random);
        for number in self.files.clone() {
            let links = self.names.values().filter(|inode| **inode == number).count() as u32;
            assert!(links > 0, "each file has a name left");
            self.scene
                .change(|core| inode::write(core, &Inode { links, ..inode::read(core, number)? }))
                .unwrap();
        }
        self.scene.fsck();
        if !can_mount() {
            return;
        }
        let image = Image::of(&self.scene.image());
        let mounted = image.mount("ro");
        let listed: HashSet<Vec<u8>> = std::fs::read_dir(&mounted.dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_vec())
            .collect();
        assert_eq!(listed, self.names.keys().cloned().collect());
        for name in self.names.keys().step_by(97) {
            use std::os::unix::ffi::OsStrExt;
            std::fs::symlink_metadata(mounted.dir.join(std::ffi::OsStr::from_bytes(name))).unwrap();
        }
    }

    fn existing(&self, random: &mut Random) -> Vec<u8> {
        let start = random.name(2);
        let name = self.names.range(start..).next().or(self.names.iter().next());
        name.expect("never empty").0.clone()
    }

    /// One random change; removals are `removals` of 10. The files keep a name each, and so does `lost+found`.
    fn step(&mut self, random: &mut Random, length: u64, removals: u64) {
        let name = self.existing(random);
        let is_kept = name.len() == 1 && name[0].is_ascii_digit() || name == b"lost+found";
        match random.below(10) {
            n if n < removals && !is_kept => self.remove(&name),
            9 if !is_kept => self.replace(&name, random.below(3) as usize),
            _ => {
                let length = 2 + random.below(length);
                let name = random.name(length);
                if !self.names.contains_key(&name) && name != b".." {
                    self.insert(&name, random.below(3) as usize).unwrap();
                }
            }
        }
    }
}

/// Grows to some entries, shrinks to few and grows again.
fn random_changes(seed: u64, size: &str, options: &[&str], most: usize, length: u64) {
    let random = &mut Random::new(seed);
    let mut stage = Stage::new(size, &[options, &["-O", "^has_journal,^resize_inode"]].concat());
    for (target, removals) in [(most, 2), (most / 20, 8), (most / 2, 3)] {
        while (stage.names.len() < target) == (removals < 5) {
            stage.step(random, length, removals);
        }
        stage.check(random);
    }
    stage.finish(random);
}

#[test]
fn small_blocks() {
    random_changes(1, "32M", &["-t", "ext2", "-b", "1024", "-I", "128"], 6000, 250);
    random_changes(2, "32M", &["-t", "ext4", "-b", "1024"], 6000, 250);
    random_changes(3, "32M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], 20_000, 20);
}

#[test]
fn middle_blocks() {
    random_changes(4, "32M", &["-t", "ext3", "-b", "2048"], 6000, 60);
    random_changes(
        5,
        "32M",
        &["-t", "ext4", "-b", "2048", "-E", "hash_seed=74cf4ab5-4bd5-4e33-b5b4-a4c1dd45a3c4"],
        6000,
        100,
    );
}

#[test]
fn large_blocks() {
    random_changes(6, "64M", &["-t", "ext4", "-b", "4096"], 20_000, 40);
    random_changes(7, "64M", &["-t", "ext2", "-b", "4096"], 10_000, 250);
}

#[test]
fn without_trees() {
    random_changes(8, "32M", &["-t", "ext4", "-b", "1024", "-O", "^dir_index"], 1000, 100);
    random_changes(9, "32M", &["-t", "ext2", "-b", "1024", "-O", "^dir_index,^filetype"], 1000, 100);
    random_changes(10, "32M", &["-t", "ext4", "-b", "4096", "-O", "^dir_index"], 3000, 100);
}

/// Old entries don't say what they lead to, and have the checksum's mark where names' lengths could go on.
#[test]
fn without_kinds() {
    random_changes(11, "32M", &["-t", "ext2", "-b", "1024", "-O", "^filetype"], 3000, 100);
    random_changes(12, "32M", &["-t", "ext4", "-b", "1024", "-O", "^filetype"], 3000, 100);
}

#[test]
fn every_hash() {
    for (seed, hash) in (13..).zip(["legacy", "half_md4", "tea"]) {
        let option = format!("hash_alg={hash}");
        let image = Image::make("32M", &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]);
        let path = image.path.display().to_string();
        crate::support::run("tune2fs", &["-E", &option, &path]);
        for n in 0..3 {
            crate::support::run("debugfs", &["-w", "-R", &format!("write /dev/null {n}"), &path]);
        }
        let random = &mut Random::new(seed);
        let mut stage = Stage::of(Scene::of(image.bytes()));
        while stage.names.len() < 3000 {
            stage.step(random, 60, 2);
        }
        stage.finish(random);
    }
}

/// Entries that are there all the time are shown once, whatever comes and goes between the pieces of a list, and trees grow from
/// nothing meanwhile.
#[test]
fn lists_go_on_where_they_were() {
    for (options, most) in [
        (&["-t", "ext4", "-b", "1024"][..], 4000),
        (&["-t", "ext2", "-b", "1024", "-O", "^dir_index"], 400),
        (&["-t", "ext4", "-b", "4096"], 9000),
    ] {
        let random = &mut Random::new(most as u64);
        let mut stage = Stage::new("32M", options);
        let mut from = 5;
        while from < most {
            while stage.names.len() < from {
                stage.step(random, 30, 1);
            }
            let before = stage.names.clone();
            let mut gone = HashSet::new();
            let shown = stage.listed(1 + from as u64 / 8, |stage, _| {
                for _ in 0..from / 4 {
                    let removals = if stage.names.len() > from { 6 } else { 2 };
                    stage.step(random, 30, removals);
                }
                gone.extend(before.keys().filter(|name| !stage.names.contains_key(*name)).cloned());
            });
            for name in before.keys().filter(|name| !gone.contains(*name)) {
                assert!(shown.contains_key(name), "{name:?} was there all the time");
            }
            from *= 3;
        }
        stage.finish(random);
    }
}

/// Removed and gone on behind: nothing that stays is left out, nothing shown again.
#[test]
fn lists_go_on_behind_what_was_removed() {
    for options in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext2", "-b", "1024", "-O", "^dir_index"]] {
        let random = &mut Random::new(77);
        let mut stage = Stage::new("32M", options);
        while stage.names.len() < 500 {
            stage.step(random, 30, 0);
        }
        let before = stage.names.clone();
        let shown = stage.listed(7, |stage, shown| {
            let long = shown.keys().filter(|name| name.len() > 1 && *name != b"lost+found");
            for name in long.filter(|name| stage.names.contains_key(*name)).cloned().collect::<Vec<_>>() {
                stage.remove(&name);
            }
        });
        assert_eq!(shown, before);
    }
}

/// Names of one hash of the first function: from a state before two bytes, the last byte that leads to a given hash is computed.
fn of_one_hash(count: usize, length: usize) -> Vec<Vec<u8>> {
    const FACTOR: u32 = 7_152_373;
    let step = |(hash, before): (u32, u32), byte: u8| {
        let next = before.wrapping_add(hash ^ u32::from(byte).wrapping_mul(FACTOR));
        (if next & 1 << 31 != 0 { next.wrapping_sub(0x7fff_ffff) } else { next }, hash)
    };
    let start = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    // Of odd numbers, Newton's steps double the right bits.
    let inverse = (0..5).fold(FACTOR, |x, _| x.wrapping_mul(2u32.wrapping_sub(FACTOR.wrapping_mul(x))));
    assert_eq!(inverse.wrapping_mul(FACTOR), 1);
    let target = vec![b'x'; length].into_iter().fold(start, step).0;
    let prefix = vec![b'p'; length - 12];
    let before_digits = prefix.iter().copied().fold(start, step);
    let mut names = Vec::new();
    for n in 0u64.. {
        let digits = format!("{n:010}").into_bytes();
        let state = digits.iter().copied().fold(before_digits, step);
        let mut name = [&prefix[..], &digits].concat();
        for byte in b'a'..=b'z' {
            let (hash, before) = step(state, byte);
            for end in [target, target.wrapping_add(0x7fff_ffff)] {
                let last = (end.wrapping_sub(before) ^ hash).wrapping_mul(inverse);
                if (u32::from(b'0')..127).contains(&last) && step((hash, before), last as u8).0 == target {
                    name.extend([byte, last as u8]);
                    names.push(name.clone());
                    name.truncate(length - 2);
                }
            }
        }
        if names.len() >= count {
            break;
        }
    }
    names
}

/// Blocks full of names with one hash, of which one block is not enough.
#[test]
fn names_of_one_hash_fill_blocks() {
    let same = of_one_hash(14, 200);
    let image = Image::make("32M", &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]);
    let path = image.path.display().to_string();
    crate::support::run("tune2fs", &["-E", "hash_alg=legacy", &path]);
    for n in 0..3 {
        crate::support::run("debugfs", &["-w", "-R", &format!("write /dev/null {n}"), &path]);
    }
    let random = &mut Random::new(14);
    let mut stage = Stage::of(Scene::of(image.bytes()));
    for name in &same {
        for _ in 0..20 {
            stage.step(random, 40, 1);
        }
        stage.insert(name, 0).unwrap();
    }
    let root = tree::root(stage.scene.core(), &stage.root()).unwrap().unwrap();
    let hashes: HashSet<u32> = same.iter().map(|name| root.hash.of(name)).collect();
    assert_eq!(hashes.len(), 1);
    let mut goes_on = 0;
    tree::leaves(stage.scene.core(), &stage.root(), root, 0, &mut |leaf| {
        goes_on += leaf.least & 1;
        Ok(true)
    })
    .unwrap();
    assert!(goes_on >= 2, "blocks that go on with a hash: {goes_on}");
    for piece in 1..5 {
        assert_eq!(stage.listed(piece, |_, _| {}), stage.names);
    }
    for name in &same[..7] {
        stage.check(random);
        stage.remove(name);
    }
    stage.finish(random);
}

/// A tree of 1 KiB blocks is full with some ten thousand long names; with `large_dir` it gets a third level.
#[test]
fn trees_have_an_end() {
    for large in [false, true] {
        let random = &mut Random::new(15);
        let feature = if large { "large_dir" } else { "^large_dir" };
        let options = ["-t", "ext4", "-b", "1024", "-O", "^has_journal", "-O", feature, "-N", "16"];
        let mut stage = Stage::new("96M", &options);
        let failure = loop {
            let mut name = random.name(247);
            name.extend(format!("{:08}", stage.names.len()).bytes());
            if let Err(error) = stage.insert(&name, 0) {
                break Some(error);
            }
            if large && stage.names.len() == 28_000 {
                break None;
            }
        };
        eprintln!("{} names", stage.names.len());
        assert!(stage.names.len() > 20_000);
        let levels = tree::root(stage.scene.core(), &stage.root()).unwrap().unwrap().levels;
        assert_eq!((failure, levels), if large { (None, 2) } else { (Some(Error::NoSpace), 1) });
        // What is removed makes room.
        let name = stage.existing(random);
        stage.remove(&name);
        stage.insert(&name, 0).unwrap();
        stage.finish(random);
    }
}

/// A tree of a kind that is not known is given up where blocks have no checksums; elsewhere nothing is changed.
#[test]
fn an_unknown_tree_is_given_up() {
    for (options, is_sealed) in
        [(&["-t", "ext4", "-b", "1024"][..], true), (&["-t", "ext3", "-b", "1024"], false)]
    {
        let random = &mut Random::new(16);
        let mut stage = Stage::new("32M", options);
        while stage.names.len() < 300 {
            stage.step(random, 30, 1);
        }
        assert!(is_indexed(stage.scene.core(), &stage.root()));
        stage
            .scene
            .change(|core| {
                super::change(core, &inode::read(core, ROOT)?, 0, |block| {
                    block.all()[tree::ROOT_INFO + 4] = 17
                })
            })
            .unwrap();
        let added = stage.insert(b"another", 0);
        if is_sealed {
            assert!(matches!(added, Err(Error::Corrupt(_))), "{added:?}");
            continue;
        }
        added.unwrap();
        assert!(!is_indexed(stage.scene.core(), &stage.root()));
        while stage.names.len() < 400 {
            stage.step(random, 30, 1);
        }
        stage.finish(random);
    }
}

/// Names with these two hashes the same: the second is made so by the last four bytes, which it takes in any way, and for the first
/// enough names are tried.
fn twins(hash: NameHash, sets: usize) -> Vec<Vec<Vec<u8>>> {
    // What the bits of four bytes do to the second hash, whatever is before them; then which bits do this alone.
    let none = crc32c(0, &[0; 4]);
    let mut rows: Vec<(u32, u32)> =
        (0..32).map(|n| (crc32c(0, &(1u32 << n).to_le_bytes()) ^ none, 1 << n)).collect();
    for n in 0..32 {
        let at = (n..32).find(|at| rows[*at].0 >> n & 1 != 0).expect("a bijection");
        rows.swap(n, at);
        let row = rows[n];
        let others = rows.iter_mut().enumerate().filter(|(at, other)| *at != n && other.0 >> n & 1 != 0);
        others.for_each(|(_, other)| *other = (other.0 ^ row.0, other.1 ^ row.1));
    }
    let ending = |name: &[u8]| {
        let missing = crc32c(0, &[name, &[0; 4]].concat()) ^ 0x1234_5670;
        let bits = (0..32).filter(|n| missing >> n & 1 != 0).fold(0, |bits, n| bits ^ rows[n].1);
        bits.to_le_bytes()
    };
    let mut by_hash = BTreeMap::<u32, Vec<Vec<u8>>>::new();
    let mut found = Vec::new();
    for n in 0u32.. {
        let start = format!("name {n}").into_bytes();
        let end = ending(&start);
        if end.contains(&0) || end.contains(&b'/') {
            continue;
        }
        let name = [start, end.to_vec()].concat();
        let same = by_hash.entry(hash.of(&name)).or_default();
        same.push(name);
        if same.len() > 1 {
            found.push(same.clone());
        }
        if found.len() == sets {
            break;
        }
    }
    found
}

/// A stage with names among which there may be some with the same hashes: these, in sets.
fn stage_with_twins(options: &[&str]) -> (Stage, Vec<Vec<Vec<u8>>>) {
    let mut stage = Stage::new("8M", options);
    let superblock = &stage.scene.core().superblock;
    let hash = NameHash::of_version(superblock.hash_version, superblock.unsigned_hash, superblock.hash_seed);
    let hash = hash.unwrap();
    let sets = twins(hash, 3);
    for set in &sets {
        let [one, other] = [&set[0], &set[1]].map(|name| cookie(hash.of(name), name));
        assert_eq!(one, other);
    }
    (0..60).for_each(|n| stage.insert(format!("among others {n}").as_bytes(), 1).unwrap());
    (stage, sets)
}

const WITH_TWINS: [&[&str]; 2] = [&["-t", "ext4", "-b", "1024"], &["-t", "ext2", "-b", "4096"]];

/// Who goes on behind one of two names of the same hashes finds the other, whichever goes meanwhile.
#[test]
fn twins_are_listed_once_whichever_goes() {
    for options in WITH_TWINS {
        let (mut stage, sets) = stage_with_twins(options);
        sets.iter().flatten().for_each(|name| stage.insert(name, 0).unwrap());
        for round in 0..4 {
            let (mut gone, mut stayed) = (Names::new(), stage.names.clone());
            let shown = stage.listed(1, |stage, shown| {
                for set in &sets {
                    let [one, other] = [0, 1].map(|n| shown.contains_key(&set[n]));
                    let first = &set[usize::from(other)];
                    // The one that was shown goes; in the next round both are there again.
                    if one != other && stage.names.contains_key(first) {
                        stage.remove(first);
                        gone.insert(first.clone(), 0);
                    }
                }
            });
            stayed.retain(|name, _| !gone.contains_key(name));
            assert_eq!(gone.len(), sets.len(), "round {round}");
            assert!(stayed.keys().all(|name| shown.contains_key(name)), "all that stayed is shown");
            gone.keys().for_each(|name| stage.insert(name, 0).unwrap());
        }
    }
}

/// Nor is a name listed twice because another with its hashes comes, before it or behind it.
#[test]
fn twins_are_listed_once_whichever_comes() {
    for options in WITH_TWINS {
        for first in 0..2 {
            let (mut stage, sets) = stage_with_twins(options);
            sets.iter().for_each(|set| stage.insert(&set[first], 0).unwrap());
            let there = stage.names.clone();
            let mut come = 0;
            let shown = stage.listed(1, |stage, shown| {
                for set in &sets {
                    if shown.contains_key(&set[first]) && !stage.names.contains_key(&set[1 - first]) {
                        stage.insert(&set[1 - first], 0).unwrap();
                        come += 1;
                    }
                }
            });
            // Behind the last name of all, which may be one of them, the listing has ended.
            assert!(come + 1 >= sets.len(), "{come} of {}", sets.len());
            assert!(there.keys().all(|name| shown.contains_key(name)));
        }
    }
}
