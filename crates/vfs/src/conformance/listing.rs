//! Directories are listed while they change.

use std::collections::BTreeSet;

use super::scene::Scene;
use crate::FileKind;

/// Entries of a wide directory.
const WIDE: usize = 6_000;

fn name(number: usize) -> String {
    format!("entry number {number}")
}

/// Makes a wide directory: hard links to one file, which take little room.
fn widen(s: &Scene<'_>) {
    let ino = s.file(&name(0), b"");
    for number in 1..WIDE {
        s.link(ino, &name(number)).unwrap();
    }
}

/// Lists the whole directory in pieces of `chunk`, with `between` after each; every name once.
fn survey(s: &Scene<'_>, chunk: usize, mut between: impl FnMut(&[String])) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut from = 0;
    loop {
        let piece = s.list(s.dir, from, chunk);
        let Some(last) = piece.last() else { return all };
        from = last.3;
        let names: Vec<String> = piece.into_iter().map(|entry| entry.0).collect();
        for name in &names {
            assert!(all.insert(name.clone()), "{name} is shown twice");
        }
        between(&names);
    }
}

pub(super) fn an_empty_directory_has_dots(s: &Scene<'_>) {
    let sub = s.mkdir("sub");
    let listed: Vec<_> =
        s.list(sub, 0, 10).into_iter().map(|(name, ino, kind, _)| (name, ino, kind)).collect();
    let dot = |name: &str, ino| (name.to_owned(), ino, FileKind::Directory);
    assert_eq!(listed, [dot(".", sub), dot("..", s.dir)]);
}

pub(super) fn every_entry_is_shown_once(s: &Scene<'_>) {
    widen(s);
    for chunk in [1, 10, 999, WIDE, usize::MAX] {
        assert_eq!(survey(s, chunk, |_| {}).len(), WIDE + 2, "in pieces of {chunk}");
    }
}

pub(super) fn a_refused_entry_comes_again(s: &Scene<'_>) {
    for number in 0..10 {
        s.file(&name(number), b"");
    }
    let first = s.list(s.dir, 0, 5);
    let rest = s.list(s.dir, first[4].3, 100);
    assert_eq!(first.len() + rest.len(), 12);
    let mut asked = 0;
    s.fs.readdir(s.dir, first[4].3, &mut |entry| {
        asked += 1;
        assert_eq!(entry.name, rest[0].0.as_bytes());
        false
    })
    .unwrap();
    assert_eq!(asked, 1);
    assert!(s.list(s.dir, rest.last().unwrap().3, 100).is_empty());
    // Nor is anything behind the largest cookies, where programs look for the end.
    for from in [i64::MAX as u64, u64::MAX] {
        assert!(s.list(s.dir, from, 100).is_empty(), "behind {from}");
    }
}

pub(super) fn kinds_are_shown(s: &Scene<'_>) {
    let kinds =
        [FileKind::Regular, FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice];
    for kind in kinds {
        s.fs.mknod(&s.root, s.dir, format!("{kind:?}").as_bytes(), kind.mode_bits() | 0o644, 0).unwrap();
    }
    s.mkdir("Directory");
    s.fs.symlink(&s.root, s.dir, b"Symlink", b"x").unwrap();
    let listed = s.list(s.dir, 0, 100);
    assert_eq!(listed.len(), 9);
    for (name, ino, kind, _) in listed.into_iter().skip(2) {
        assert_eq!(name, format!("{kind:?}"));
        assert_eq!((s.attr(ino).kind(), s.find(&name).unwrap().ino), (kind, ino));
    }
}

pub(super) fn cookies_survive_removals(s: &Scene<'_>) {
    widen(s);
    let mut removed = BTreeSet::new();
    let mut number = 0;
    let shown = survey(s, 100, |_| {
        // Some that were shown, and some that were not yet.
        for _ in 0..30 {
            number = (number + 7919) % WIDE;
            if s.unlink(&name(number)).is_ok() {
                removed.insert(name(number));
            }
        }
    });
    assert!(removed.len() > 1_000);
    let kept = (0..WIDE).map(name).filter(|name| !removed.contains(name));
    kept.for_each(|name| assert!(shown.contains(&name), "{name} stayed and was not shown"));
}

pub(super) fn cookies_survive_additions(s: &Scene<'_>) {
    widen(s);
    let ino = s.find(&name(0)).unwrap().ino;
    let mut number = 0;
    let shown = survey(s, 100, |names| {
        // New ones may be shown or not; the listing must end nevertheless.
        for _ in 0..names.len().min(if number < WIDE { 60 } else { 0 }) {
            s.link(ino, &format!("another {number}")).unwrap();
            number += 1;
        }
    });
    (0..WIDE).for_each(|number| assert!(shown.contains(&name(number)), "{number} was not shown"));
}

/// `rm -r` lists a piece, removes what it was shown, and goes on after the last entry, which is gone.
pub(super) fn removal_while_listing(s: &Scene<'_>) {
    widen(s);
    let shown = survey(s, 100, |names| {
        names.iter().filter(|name| *name != "." && *name != "..").for_each(|name| s.unlink(name).unwrap());
    });
    assert_eq!(shown.len(), WIDE + 2);
    assert!(s.names(s.dir).is_empty());
}

pub(super) fn names_come_and_go(s: &Scene<'_>) {
    let ino = s.file("kept", b"");
    for round in 0..2_000 {
        s.link(ino, &format!("temporary {round}")).unwrap();
        if round >= 20 {
            s.unlink(&format!("temporary {}", round - 20)).unwrap();
        }
    }
    let mut expected: Vec<String> = (1_980..2_000).map(|round| format!("temporary {round}")).collect();
    expected.push("kept".to_owned());
    expected.sort();
    assert_eq!(s.names(s.dir), expected);
    assert_eq!(s.attr(ino).nlink, 21);
}
