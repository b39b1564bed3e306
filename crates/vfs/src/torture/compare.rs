//! The whole trees, and what may differ.

use std::collections::BTreeSet;

use super::known::{Known, Side, entries};
use super::operation::{Operation, names};
use super::{Answer, FIRST_TICK, Limits, answer};
use crate::model::Model;
use crate::{
    Attr, Caller, Error, FileKind, FileSystem, Handle, Ino, OpenFlags, ROOT_INO, Result, SeekFrom, Time,
};

/// Files up to this length are compared byte for byte; of longer ones, what either side calls data, and samples.
const WHOLE_BYTES: u64 = 1 << 18;
/// Bytes read at once.
const PIECE_BYTES: u64 = 1 << 18;
/// Holes are found at least at this granularity, bytes.
const HOLE_BYTES: u64 = 4096;

type Found<T> = std::result::Result<T, String>;

/// One time that a clock gave: the model's tick, the volume's time, and whose it is.
type Tick = (i64, Time, Ino, &'static str);

/// Compares all that can be reached from the root or by a handle.
pub(super) fn trees(model: &Model, volume: &dyn FileSystem, known: &Known, limits: &Limits) -> Found<()> {
    let mut walk = Walk { model, volume, known, limits, seen: BTreeSet::new(), ticks: Vec::new() };
    walk.inode(ROOT_INO).map_err(|difference| format!("/: {difference}"))?;
    walk.directory(ROOT_INO, "")?;
    for ino in known.inodes() {
        if !walk.seen.contains(&ino) {
            walk.inode(ino)
                .map_err(|difference| format!("inode {ino}, open without a name: {difference}"))?;
        }
    }
    order(walk.ticks)
}

/// What distinguishes attributes, set times included.
pub(super) fn attributes(ours: &Attr, theirs: &Attr, limits: &Limits) -> Option<String> {
    let times = [
        ("atime", ours.atime, theirs.atime),
        ("mtime", ours.mtime, theirs.mtime),
        ("ctime", ours.ctime, theirs.ctime),
    ];
    answer::attributes(ours, theirs).or_else(|| {
        times.into_iter().find_map(|(field, ours, theirs)| {
            let nsec = theirs.nsec - theirs.nsec % limits.time_ns;
            let expected = Time { sec: theirs.sec, nsec };
            let differs = theirs.sec < FIRST_TICK && ours != expected;
            differs.then(|| format!("{field} is {ours:?}, not {expected:?} as it was set"))
        })
    })
}

struct Walk<'a> {
    model: &'a Model,
    volume: &'a dyn FileSystem,
    known: &'a Known,
    limits: &'a Limits,
    seen: BTreeSet<Ino>,
    ticks: Vec<Tick>,
}

impl Walk<'_> {
    fn directory(&mut self, dir: Ino, path: &str) -> Found<()> {
        let list = Operation::Readdir { dir, chunk: 100 };
        let root = Caller::root();
        let mut ours = list.perform(self.volume, &root, self.known, Side::Volume);
        let theirs = list.perform(self.model, &root, self.known, Side::Model);
        if dir == ROOT_INO
            && let (Ok(Answer::Entries(ours)), Some(above)) = (&mut ours, self.known.above)
            && let Some(up) = ours.get_mut(b"..".as_slice()).filter(|up| up.0 == above)
        {
            up.0 = self.known.volume_ino(ROOT_INO);
        }
        let difference = match (&ours, &theirs) {
            (Ok(ours), Ok(theirs)) => ours.difference(theirs, self.known),
            _ => Some(format!("listing gives {ours:?}, not {theirs:?}")),
        };
        if let Some(difference) = difference {
            return Err(format!("{path}/: {difference}"));
        }
        for (name, kind, ino) in entries(self.model, dir).map_err(|error| error.to_string())? {
            let path = format!("{path}/{}", name.escape_ascii());
            self.entry(dir, &name, ino).map_err(|difference| format!("{path}: {difference}"))?;
            if kind == FileKind::Directory {
                self.directory(ino, &path)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, dir: Ino, name: &[u8], ino: Ino) -> Found<()> {
        let dir = self.known.volume_ino(dir);
        let ours = self.volume.lookup(&Caller::root(), dir, name).map_err(|error| error.to_string())?;
        if ours.ino != self.known.volume_ino(ino) {
            return Err(format!("lookup finds inode {}, not {}", ours.ino, self.known.volume_ino(ino)));
        }
        if self.seen.insert(ino) { self.inode(ino) } else { Ok(()) }
    }

    fn inode(&mut self, ino: Ino) -> Found<()> {
        self.seen.insert(ino);
        let volume_ino = self.known.volume_ino(ino);
        let theirs = self.model.getattr(ino).map_err(|error| format!("the model says {error}"))?;
        let ours = self.volume.getattr(volume_ino).map_err(|error| format!("the volume says {error}"))?;
        if let Some(difference) = attributes(&ours, &theirs, self.limits) {
            return Err(difference);
        }
        self.note_times(&ours, &theirs);
        self.xattrs(ino, volume_ino)?;
        match theirs.kind() {
            FileKind::Regular => self.contents(ino, volume_ino, theirs.size),
            FileKind::Symlink => {
                let ours = self.volume.readlink(volume_ino);
                if ours == self.model.readlink(ino) { Ok(()) } else { Err(format!("the target is {ours:?}")) }
            }
            _ => Ok(()),
        }
    }

    fn note_times(&mut self, ours: &Attr, theirs: &Attr) {
        let times = [
            (theirs.atime, ours.atime, "atime"),
            (theirs.mtime, ours.mtime, "mtime"),
            (theirs.ctime, ours.ctime, "ctime"),
            (theirs.btime, ours.btime, "btime"),
        ];
        let kept = if self.limits.birth_times { 4 } else { 3 };
        for (tick, time, field) in times.into_iter().take(kept).filter(|times| times.0.sec >= FIRST_TICK) {
            // The root was there before the model's clock ticked.
            if theirs.ino != ROOT_INO || tick.sec > FIRST_TICK {
                self.ticks.push((tick.sec, time, theirs.ino, field));
            }
        }
    }

    fn xattrs(&self, ino: Ino, volume_ino: Ino) -> Found<()> {
        let root = Caller::root();
        let list = |fs: &dyn FileSystem, ino| fs.listxattr(&root, ino).map(|raw| names(&raw));
        let (ours, theirs) = (list(self.volume, volume_ino), list(self.model, ino));
        if ours != theirs {
            return Err(format!("extended attributes are {ours:?}, not {theirs:?}"));
        }
        for name in theirs.unwrap_or_default() {
            let name = name.strip_suffix(b"\0").unwrap_or(&name);
            let ours = self.volume.getxattr(&root, volume_ino, name);
            let theirs = self.model.getxattr(&root, ino, name);
            if ours != theirs {
                return Err(format!("{} is {ours:?}, not {theirs:?}", name.escape_ascii()));
            }
        }
        Ok(())
    }

    fn contents(&self, ino: Ino, volume_ino: Ino, size: u64) -> Found<()> {
        let opened = Both::open(self.model, self.volume, ino, volume_ino)?;
        if size <= WHOLE_BYTES {
            return opened.compare(0, size);
        }
        for (fs, handle) in [(self.volume, opened.ours), (self.model as &dyn FileSystem, opened.theirs)] {
            let mut at = 0;
            while let Some(start) = next(fs.seek(handle, SeekFrom::Data(at)))? {
                at = next(fs.seek(handle, SeekFrom::Hole(start)))?.unwrap_or(size);
                if start >= at || at > size {
                    return Err(format!("data at {start} ends at {at}, and the file at {size}"));
                }
                opened.compare(start, at)?;
            }
        }
        for sample in 0..8 {
            let start = (size / 8 * sample) & !(HOLE_BYTES - 1);
            opened.compare(start, (start + HOLE_BYTES).min(size))?;
        }
        opened.compare(size.saturating_sub(HOLE_BYTES), size)
    }
}

fn next(found: Result<u64>) -> Found<Option<u64>> {
    match found {
        Ok(at) => Ok(Some(at)),
        Err(Error::NoSuchOffset) => Ok(None),
        Err(error) => Err(format!("seek says {error}")),
    }
}

/// A file, open on both sides until dropped.
struct Both<'a> {
    model: &'a Model,
    volume: &'a dyn FileSystem,
    ours: Handle,
    theirs: Handle,
}

impl<'a> Both<'a> {
    fn open(model: &'a Model, volume: &'a dyn FileSystem, ino: Ino, volume_ino: Ino) -> Found<Both<'a>> {
        let root = Caller::root();
        let ours =
            volume.open(&root, volume_ino, OpenFlags::READ).map_err(|error| format!("open: {error}"))?;
        let theirs = model.open(&root, ino, OpenFlags::READ).map_err(|error| error.to_string())?;
        Ok(Both { model, volume, ours, theirs })
    }

    fn compare(&self, start: u64, end: u64) -> Found<()> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for at in (start..end).step_by(PIECE_BYTES as usize) {
            let len = (end - at).min(PIECE_BYTES) as usize;
            ours.resize(len, 1);
            theirs.resize(len, 2);
            let count =
                self.volume.read(self.ours, at, &mut ours).map_err(|error| format!("read: {error}"))?;
            let expected =
                self.model.read(self.theirs, at, &mut theirs).map_err(|error| error.to_string())?;
            if let Some(difference) = answer::bytes(&ours[..count], &theirs[..expected]) {
                return Err(format!("bytes from {at}: {difference}"));
            }
        }
        Ok(())
    }
}

impl Drop for Both<'_> {
    fn drop(&mut self) {
        // Whether handles can be closed is the operations' to find out.
        let _ = self.volume.release(self.ours);
        let _ = self.model.release(self.theirs);
    }
}

/// Checks that what the model's clock says was later is not earlier on the volume.
fn order(mut ticks: Vec<Tick>) -> Found<()> {
    ticks.sort_by_key(|&(tick, time, ..)| (tick, time));
    let mut newest: Option<Tick> = None;
    for together in ticks.chunk_by(|a, b| a.0 == b.0) {
        let (first, last) = (together[0], together[together.len() - 1]);
        if let Some(before) = newest.filter(|before| before.1 > first.1) {
            return Err(format!(
                "the {} of inode {} was set after the {} of inode {}, but is {:?} and that {:?}",
                first.3, first.2, before.3, before.2, first.1, before.1
            ));
        }
        newest = Some(last);
    }
    Ok(())
}

/// What is wrong with the volume's answer to a seek. It may differ from the model's: only zeros may lie outside of
/// data, and what reads as zeros may be either.
pub(super) fn seek(
    model: &Model,
    known: &Known,
    operation: &Operation,
    ours: &Result<Answer>,
    theirs: &Result<Answer>,
) -> Option<String> {
    let Operation::Seek { handle, from } = operation else { return None };
    let ino = known.inode_of(*handle)?;
    let size = model.getattr(ino).map_or(0, |attr| attr.size);
    let (SeekFrom::Data(start) | SeekFrom::Hole(start)) = *from;
    let zeros = |from, to| {
        if is_zero(model, ino, from, to) { None } else { Some("not all is zero there".to_owned()) }
    };
    match (from, ours) {
        (_, Err(Error::NoSuchOffset)) if start >= size => None,
        (SeekFrom::Data(_), Err(Error::NoSuchOffset)) => zeros(start, size),
        (SeekFrom::Data(_), Ok(Answer::Count(found))) if (start..size).contains(found) => {
            zeros(start, *found)
        }
        (SeekFrom::Hole(_), Ok(Answer::Count(found))) if start < size && *found == size => None,
        (SeekFrom::Hole(_), Ok(Answer::Count(found))) if (start..size).contains(found) => {
            zeros(*found, (found + 1).next_multiple_of(512).min(size))
        }
        _ if ours.as_ref().err() == theirs.as_ref().err() && ours.is_err() => None,
        _ => Some("the answer is not in the file".to_owned()),
    }
}

/// Whether a range of one of the model's files is zero.
fn is_zero(model: &Model, ino: Ino, from: u64, to: u64) -> bool {
    let Ok(handle) = model.open(&Caller::root(), ino, OpenFlags::READ) else { return false };
    let mut at = from;
    let mut zero = true;
    while let Ok(start) = model.seek(handle, SeekFrom::Data(at))
        && start < to
        && zero
    {
        let mut buf = vec![0; (to - start).min(PIECE_BYTES) as usize];
        let count = model.read(handle, start, &mut buf).unwrap_or(0);
        zero = buf[..count].iter().all(|&b| b == 0);
        at = start + count.max(1) as u64;
    }
    let closed = model.release(handle);
    zero && closed.is_ok()
}
