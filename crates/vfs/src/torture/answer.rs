//! What an operation answered.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::known::Known;
use crate::{Attr, Created, FileKind, Handle, Ino, InodeFlags};

/// An operation's result, of either side.
pub(super) enum Answer {
    Done,
    Attr(Attr),
    Created(Created),
    Handle(Handle),
    Bytes(Vec<u8>),
    Count(u64),
    Names(BTreeSet<Vec<u8>>),
    Entries(BTreeMap<Vec<u8>, (Ino, FileKind)>),
}

impl Answer {
    /// What distinguishes the volume's answer (`self`) from the model's.
    pub(super) fn difference(&self, theirs: &Answer, known: &Known) -> Option<String> {
        match (self, theirs) {
            (Answer::Done, Answer::Done) | (Answer::Handle(_), Answer::Handle(_)) => None,
            (Answer::Attr(ours), Answer::Attr(theirs)) => {
                attributes(ours, theirs).or_else(|| known.mistaken(ours.ino, theirs.ino))
            }
            (Answer::Created(ours), Answer::Created(theirs)) => attributes(&ours.attr, &theirs.attr)
                .or_else(|| (ours.new != theirs.new).then(|| "only one is new".to_owned()))
                .or_else(|| known.mistaken(ours.attr.ino, theirs.attr.ino)),
            (Answer::Bytes(ours), Answer::Bytes(theirs)) => bytes(ours, theirs),
            (Answer::Count(ours), Answer::Count(theirs)) => {
                (ours != theirs).then(|| "counts differ".to_owned())
            }
            (Answer::Names(ours), Answer::Names(theirs)) => {
                (ours != theirs).then(|| "names differ".to_owned())
            }
            (Answer::Entries(ours), Answer::Entries(theirs)) => entries(ours, theirs, known),
            _ => Some("the answers are of different kinds".to_owned()),
        }
    }
}

/// What distinguishes attributes, but for times and what the volume is free in: a directory's length, blocks, flags that others have not.
pub(super) fn attributes(ours: &Attr, theirs: &Attr) -> Option<String> {
    let fields = [
        ("mode", ours.mode, theirs.mode),
        ("nlink", ours.nlink, theirs.nlink),
        ("uid", ours.uid, theirs.uid),
        ("gid", ours.gid, theirs.gid),
        ("rdev", ours.rdev, theirs.rdev),
    ];
    for (field, ours, theirs) in fields {
        if ours != theirs {
            return Some(format!("{field} is {ours} ({ours:#o}), not {theirs} ({theirs:#o})"));
        }
    }
    if (ours.flags ^ theirs.flags).intersects(InodeFlags::COMMON) {
        return Some(format!("flags are {:?}, not {:?}", ours.flags, theirs.flags));
    }
    if ours.size != theirs.size && !theirs.is_dir() {
        return Some(format!("size is {}, not {}", ours.size, theirs.size));
    }
    None
}

/// Where bytes differ first.
pub(super) fn bytes(ours: &[u8], theirs: &[u8]) -> Option<String> {
    if ours.len() != theirs.len() {
        return Some(format!("{} bytes, not {}", ours.len(), theirs.len()));
    }
    // Compared as a whole first: byte by byte is more than a quarter of a long run.
    if ours == theirs {
        return None;
    }
    let at = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs)?;
    let count = ours.iter().zip(theirs).filter(|(ours, theirs)| ours != theirs).count();
    Some(format!("byte {at} is {:#04x}, not {:#04x}; {count} bytes differ", ours[at], theirs[at]))
}

fn entries(
    ours: &BTreeMap<Vec<u8>, (Ino, FileKind)>,
    theirs: &BTreeMap<Vec<u8>, (Ino, FileKind)>,
    known: &Known,
) -> Option<String> {
    let shown = |name: &[u8]| name.escape_ascii().to_string();
    if let Some(name) = theirs.keys().find(|name| !ours.contains_key(*name)) {
        return Some(format!("{} is missing", shown(name)));
    }
    for (name, &(ino, kind)) in ours {
        let Some(&(their_ino, their_kind)) = theirs.get(name) else {
            return Some(format!("{} is too many", shown(name)));
        };
        if kind != their_kind {
            return Some(format!("{} is a {kind:?}, not a {their_kind:?}", shown(name)));
        }
        if let Some(difference) = known.mistaken(ino, their_ino) {
            return Some(format!("{}: {difference}", shown(name)));
        }
    }
    None
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Done => write!(f, "done"),
            Answer::Attr(attr) => attr.fmt(f),
            Answer::Created(created) => created.fmt(f),
            Answer::Handle(handle) => handle.fmt(f),
            Answer::Bytes(bytes) => {
                let shown = &bytes[..bytes.len().min(64)];
                write!(f, "{} bytes: {}", bytes.len(), shown.escape_ascii())
            }
            Answer::Count(count) => count.fmt(f),
            Answer::Names(names) => {
                names.iter().map(|name| name.escape_ascii().to_string()).collect::<Vec<_>>().fmt(f)
            }
            Answer::Entries(entries) => write!(f, "{} entries", entries.len()),
        }
    }
}
