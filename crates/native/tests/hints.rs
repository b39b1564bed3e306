//! Directories so large that they have hints: what a hint says is never taken for what is there.

use std::collections::BTreeMap;

use native::{FormatOptions, MountOptions, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, Error, FileSystem, Ino, OpenFlags, ROOT_INO, RenameFlags};

/// More than a directory has without hints.
const MANY: u32 = 60_000;

fn with_volume(options: &MountOptions, test: impl FnOnce(&Volume)) {
    let zone = Zone::anonymous(96 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    native::format(&region, &FormatOptions::default()).unwrap();
    let volume = Volume::open(region.clone(), options).unwrap();
    test(&volume);
    volume.close().unwrap();
    drop(volume);
    let report = native::check(&region, false).unwrap();
    assert!(
        report.is_clean(),
        "{:?}",
        report.problems.iter().map(|problem| &problem.what).collect::<Vec<_>>()
    );
}

/// What a directory should have: numbers of files, by name.
struct Names<'a> {
    volume: &'a Volume,
    dir: Ino,
    expected: BTreeMap<String, Ino>,
}

impl Names<'_> {
    fn create(&mut self, name: String) {
        let flags = OpenFlags::WRITE | OpenFlags::EXCLUSIVE;
        let file = self.volume.create(&Caller::root(), self.dir, name.as_bytes(), 0o644, flags).unwrap();
        self.volume.release(file.handle).unwrap();
        assert_eq!(self.expected.insert(name, file.attr.ino), None);
    }

    fn unlink(&mut self, name: &str) {
        self.volume.unlink(&Caller::root(), self.dir, name.as_bytes()).unwrap();
        self.expected.remove(name).unwrap();
    }

    fn rename(&mut self, from: &str, to: &str) {
        let (root, dir) = (Caller::root(), self.dir);
        self.volume.rename(&root, dir, from.as_bytes(), dir, to.as_bytes(), RenameFlags::empty()).unwrap();
        let ino = self.expected.remove(from).unwrap();
        self.expected.insert(to.into(), ino);
    }

    fn look(&self, name: &str) {
        let found = self.volume.lookup(&Caller::root(), self.dir, name.as_bytes()).map(|attr| attr.ino);
        assert_eq!(found, self.expected.get(name).copied().ok_or(Error::NotFound), "{name}");
    }

    /// Looks all of `names` up, twice: what the first look notes is what the second goes by.
    fn look_at_all(&self) {
        for _ in 0..2 {
            (0..MANY + 100).for_each(|n| self.look(&name(n)));
            (0..MANY).step_by(3).for_each(|n| self.look(&format!("other-{n}")));
        }
        assert_eq!(self.volume.getattr(self.dir).unwrap().nlink, 2);
    }
}

fn name(n: u32) -> String {
    format!("name-{n}")
}

fn names_come_and_go(options: &MountOptions, has_hints: bool) {
    with_volume(options, |volume| {
        let make = |name: &[u8]| volume.mkdir(&Caller::root(), ROOT_INO, name, 0o755).unwrap().ino;
        let mut names = Names { volume, dir: make(b"large"), expected: BTreeMap::new() };
        // Buckets split while hints on them are there.
        for n in 0..MANY {
            names.create(name(n));
            if n > MANY / 2 {
                names.look(&name(n.wrapping_mul(7919) % n));
            }
        }
        assert_eq!(volume.stats().hint_cache_bytes > 0, has_hints, "{:?}", volume.stats());
        names.look_at_all();
        // Buckets and inodes move, entries take others' places, names get other inodes.
        volume.checkpoint().unwrap();
        for n in (0..MANY).step_by(3) {
            match n % 4 {
                0 => names.rename(&name(n), &format!("other-{n}")),
                1 => names.unlink(&name(n)),
                2 => names.rename(&name(n), &name(n + 1)),
                _ => {
                    names.unlink(&name(n));
                    names.create(name(n));
                }
            }
        }
        names.look_at_all();
        // What hints lead to belongs to another directory, and then to nobody.
        let other = make(b"other");
        for n in 0..1000 {
            let (root, name) = (Caller::root(), name(n));
            assert_eq!(volume.lookup(&root, other, name.as_bytes()).map(drop), Err(Error::NotFound));
        }
        let all: Vec<String> = names.expected.keys().cloned().collect();
        all.iter().for_each(|name| names.unlink(name));
        volume.rmdir(&Caller::root(), ROOT_INO, b"large").unwrap();
        volume.checkpoint().unwrap();
        names = Names { volume, dir: make(b"again"), expected: BTreeMap::new() };
        (0..MANY).for_each(|n| names.create(name(n)));
        names.look_at_all();
    });
}

#[test]
fn large_directories_are_what_they_are_with_hints() {
    names_come_and_go(&MountOptions::default(), true);
}

#[test]
fn large_directories_are_what_they_are_without_hints() {
    names_come_and_go(&MountOptions { cache_bytes: Some(1 << 20), ..MountOptions::default() }, false);
}

/// Who renames has seen where the old name is before the new one is entered, which may split the bucket that it is in: it
/// is another's place then, or none.
#[test]
fn an_entry_moves_while_it_is_renamed() {
    let long = |n: u32, round: u32| format!("{n:05}-{round:02}-{}", "x".repeat(240));
    with_volume(&MountOptions::default(), |volume| {
        let dir = volume.mkdir(&Caller::root(), ROOT_INO, b"d", 0o755).unwrap().ino;
        let mut names = Names { volume, dir, expected: BTreeMap::new() };
        for n in 0..200 {
            // Each is one more name when its buckets are full, and is renamed at once.
            names.create(long(n, 0));
            (0..=n).step_by(7).for_each(|other| {
                let from = names.expected.range(format!("{other:05}-")..).next().unwrap().0.clone();
                names.rename(&from, &long(other, n % 97 + 1));
                names.look(&from);
            });
        }
        names.expected.keys().for_each(|name| names.look(name));
        for name in names.expected.keys().cloned().collect::<Vec<_>>() {
            names.unlink(&name);
            names.look(&name);
        }
    });
}
