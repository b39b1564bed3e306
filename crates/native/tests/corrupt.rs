//! Damaged media give clear errors or right answers: never a panic, never a hang, never metadata that is wrong without a
//! word. What is kept twice is recovered from its twin.
//!
//! A volume with everything in it is damaged in each of its areas in turn: bits, bytes, whole blocks. Each damaged
//! volume is opened, read as a whole, written to, closed, checked and mended. File data carry no checksum: their bytes may
//! differ, and only they.

mod chosen;

use std::ops::{Range, RangeBounds};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use crate::volumes::watch::{PAUSE, Watch};
use crate::volumes::*;
use native::{Durability, Error, Volume, check, preen, recognise};
use nvm::{OpenOptions, Purpose, Region, VolumeKind, Zone};
use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO, RenameFlags, XattrMode};

const BLOCK: usize = 4096;
/// The areas of a volume of 16 MiB, blocks (docs/format-native.md).
const SUPERBLOCKS: Range<usize> = 0..2;
const ROOT_SLOTS: Range<usize> = 2..4;
const LOG: Range<usize> = 8..520;
const SIT: Range<usize> = 520..521;
const SIT_JOURNAL: Range<usize> = 521..522;
const BIA: Range<usize> = 522..534;
const MAIN: usize = 1024;
const SEGMENTS: usize = 6;
/// Bytes.
const SIT_ENTRY: usize = 128;

/// A volume's bytes in a zone's image.
struct Specimen {
    image: Vec<u8>,
    start: usize,
    tree: Tree,
}

/// A volume with files and directories of all layouts, closed or killed with a log to replay.
fn specimen(clean: bool) -> Specimen {
    let root = &Caller::root();
    let (zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let dir = volume.mkdir(root, ROOT_INO, b"large", 0o755).unwrap().ino;
    for n in 0..400 {
        write_file(&volume, dir, &format!("file-{n}-{}", "x".repeat(n % 90)), &Random(n as u64).bytes(n))
            .unwrap();
    }
    for (name, length) in [("inline", 120), ("small", 9000), ("mapped", 200_000), ("direct", 1_000_000)] {
        write_file(&volume, ROOT_INO, name, &Random(length).bytes(length as usize)).unwrap();
    }
    let sparse = volume.create(root, ROOT_INO, b"sparse", 0o644, RW).unwrap();
    volume.write(root, sparse.handle, 6 << 20, b"far").unwrap();
    volume.release(sparse.handle).unwrap();
    volume.symlink(root, ROOT_INO, b"symlink", &[b's'; 4000]).unwrap();
    for (name, length) in [(b"user.small", 50), (b"user.large", 2500)] {
        let value = Random(length).bytes(length as usize);
        volume.setxattr(root, ino(&volume, "inline"), name, &value, XattrMode::Create).unwrap();
    }
    volume.checkpoint().unwrap();
    volume.unlink(root, dir, b"file-0-").unwrap();
    volume.mkdir(root, ROOT_INO, b"late", 0o700).unwrap();
    write_file(&volume, ROOT_INO, "later", &Random(9).bytes(30_000)).unwrap();
    let tree = tree(&volume).unwrap();
    if clean {
        volume.close().unwrap();
    }
    Specimen { image: zone.snapshot_image(), start: region.entry().start as usize, tree }
}

impl Specimen {
    fn block(&self, index: usize) -> Range<usize> {
        let at = self.start + index * BLOCK;
        at..at + BLOCK
    }

    /// The blocks of the Main Area that the SIT says are valid, and the BIA of one of `kinds`.
    fn of_kind(&self, kinds: impl RangeBounds<u8>) -> Vec<usize> {
        let (sit, bia) = (self.block(SIT.start).start, self.block(BIA.start).start);
        let valid = |index: &usize| {
            let bits = sit + index / 512 * SIT_ENTRY + SIT_ENTRY / 2;
            self.image[bits + index % 512 / 8] >> (index % 8) & 1 == 1
        };
        let all = (0..SEGMENTS * 512).filter(valid);
        all.filter(|index| kinds.contains(&self.image[bia + index * 16 + 8]))
            .map(|index| MAIN + index)
            .collect()
    }

    /// The volume's image with its SIT entries of `segments` damaged.
    fn without_sit_of(&self, segments: Range<usize>) -> Vec<u8> {
        let mut image = self.image.clone();
        for segment in segments {
            image[self.block(SIT.start).start + segment * SIT_ENTRY + 70] ^= 0x10;
        }
        image
    }
}

/// What is done to one of the blocks.
fn damage(image: &mut [u8], specimen: &Specimen, blocks: &[usize], random: &mut Random) -> String {
    let block = blocks[random.below(blocks.len() as u64) as usize];
    let range = specimen.block(block);
    // Most of a block's meaning is at its beginning.
    let reach = if random.one_in(2) { 200 } else { 4096 };
    let at = range.start + random.below(reach) as usize;
    match random.below(7) {
        0 | 1 => {
            let bit = random.below(8);
            image[at] ^= 1 << bit;
            format!("bit {bit} of byte {} of block {block}", at - range.start)
        }
        2 => {
            image[at] = random.next() as u8;
            format!("byte {} of block {block}", at - range.start)
        }
        3 => {
            let length = random.below(64) as usize;
            let end = (at + length).min(range.end);
            image[at..end].copy_from_slice(&random.bytes(end - at));
            format!("{} bytes at {} of block {block}", end - at, at - range.start)
        }
        4 => {
            image[range].fill(0);
            format!("block {block} zeroed")
        }
        5 => {
            image[range].fill(0xff);
            format!("block {block} filled with ones")
        }
        _ => {
            let other = blocks[random.below(blocks.len() as u64) as usize];
            let theirs = image[specimen.block(other)].to_vec();
            image.copy_within(range.clone(), specimen.block(other).start);
            image[range].copy_from_slice(&theirs);
            format!("blocks {block} and {other} swapped")
        }
    }
}

/// What may differ from the undamaged volume.
#[derive(Clone, Copy, PartialEq)]
enum Tolerance {
    /// Nothing that can be read.
    Nothing,
    /// Bytes of files that are not in their inodes.
    Data,
    /// The last operations are missing: a damaged record of the log is where the log ends.
    LastOperations,
}

/// Reads all there is; errors are fine, wrong answers are not.
fn read_all(
    fs: &dyn FileSystem,
    expected: &Tree,
    tolerance: Tolerance,
) -> std::result::Result<usize, String> {
    let mut errors = 0;
    if tolerance == Tolerance::LastOperations {
        return Ok(tree(fs).is_err().into());
    }
    let mut todo = vec![(String::from("/"), ROOT_INO)];
    while let Some((path, ino)) = todo.pop() {
        match seen(fs, ino) {
            Err(_) => errors += 1,
            Ok(found) => match expected.get(&path) {
                None => return Err(format!("{path} is invented")),
                Some(wanted) if found.same(wanted, tolerance == Tolerance::Data) => {}
                Some(_) => return Err(format!("{path} is wrong without a word")),
            },
        }
        if expected.get(&path).is_some_and(Seen::is_dir) {
            match names(fs, ino) {
                Err(_) => errors += 1,
                Ok(names) => {
                    let below = |other: &&String| {
                        other.strip_prefix(&path).is_some_and(|rest| rest.split('/').count() == 2)
                    };
                    let wanted = expected.keys().filter(below).count();
                    if names.len() != wanted {
                        return Err(format!("{path} lists {} names, not {wanted}", names.len()));
                    }
                    for (name, ..) in names {
                        match fs.lookup(&Caller::root(), ino, &name) {
                            Ok(attr) => todo.push((format!("{path}{}/", name.escape_ascii()), attr.ino)),
                            Err(_) => errors += 1,
                        }
                    }
                }
            }
        }
    }
    Ok(errors)
}

/// Writes here and there; whatever fails, fails with an error.
fn write_some(volume: &Volume) {
    let root = &Caller::root();
    let _ = write_file(volume, ROOT_INO, "new", &[1; 50_000]);
    let _ = volume.mkdir(root, ROOT_INO, b"new dir", 0o755);
    let flags = RenameFlags::empty();
    let _ = volume.rename(root, ROOT_INO, b"inline", ROOT_INO, b"renamed", flags);
    if let Ok(dir) = volume.lookup(root, ROOT_INO, b"large") {
        for n in 0..40 {
            let _ = write_file(volume, dir.ino, &format!("more {n}"), b"more");
        }
        let _ = volume.unlink(root, dir.ino, b"file-1-x");
        let _ = volume.unlink(root, dir.ino, b"file-90-");
    }
    for name in ["direct", "sparse", "small"] {
        let Ok(attr) = volume.lookup(root, ROOT_INO, name.as_bytes()) else { continue };
        let Ok(handle) = volume.open(root, attr.ino, RW) else { continue };
        let _ = volume.write(root, handle, 5000, &[2; 300]);
        let _ = volume.write(root, handle, 400_000, &[3; 20_000]);
        let _ = volume.release(handle);
    }
    let cut = vfs::SetAttr { size: Some(100), ..vfs::SetAttr::default() };
    if let Ok(attr) = volume.lookup(root, ROOT_INO, b"direct") {
        let _ = volume.setattr(root, attr.ino, &cut, None);
    }
    let _ = volume.unlink(root, ROOT_INO, b"small");
    let _ = volume.syncfs();
}

/// All that a damaged volume is put through; says what went wrong.
fn judge(image: &[u8], tree: &Tree, tolerance: Tolerance) -> std::result::Result<(), String> {
    // A check that may change nothing changes nothing.
    let (zone, region) = zone_of(image);
    let _ = check(&region, false);
    let _ = native::info(&region);
    if zone.snapshot_image() != *image {
        return Err("a check without repair stores something".into());
    }
    if let Ok(volume) = Volume::open(region.clone(), &options(Durability::Operation)) {
        // What it could not replay it names, and then it changes nothing.
        let says_so = volume.failure().is_some();
        read_all(&volume, tree, if says_so { Tolerance::LastOperations } else { tolerance })?;
        if says_so && write_file(&volume, ROOT_INO, "new", b"").is_ok() {
            return Err("a volume that is not replayed to its end is written to".into());
        }
        write_some(&volume);
        let _ = volume.close();
    }
    let _ = check(&region, true);
    preened(image, tree, tolerance)?;
    // What a check calls mended is not found by another.
    let (_zone, region) = zone_of(image);
    if let (Ok(mended), Ok(again)) = (check(&region, true), check(&region, false)) {
        let is_told = |problem: &&native::Problem| {
            problem.repaired && again.problems.iter().any(|it| it.what == problem.what)
        };
        if let Some(problem) = mended.problems.iter().find(is_told) {
            return Err(format!("it is called repaired, and found again: {problem:?}"));
        }
        if let Some(problem) = again.problems.iter().find(|problem| problem.what.contains("amberfs fsck")) {
            return Err(format!("a check advises to check: {problem:?}"));
        }
    }
    // What a check mends is right, and stays mended.
    let (_zone, region) = zone_of(image);
    if let Some(mended) = check(&region, true).ok().filter(|report| report.is_clean()) {
        let tolerance = if mended.transactions_dropped > 0 { Tolerance::LastOperations } else { tolerance };
        let again = check(&region, false).map_err(|error| format!("after a check: {error}"))?;
        if !again.problems.is_empty() {
            return Err(format!("a check finds, after a check that mended: {:?}", again.problems));
        }
        let volume = Volume::open(region.clone(), &options(Durability::Operation))
            .map_err(|error| format!("checked, but it does not open: {error}"))?;
        match read_all(&volume, tree, tolerance)? {
            0 => {}
            errors => return Err(format!("checked, but {errors} reads fail")),
        }
        write_some(&volume);
        volume.close().map_err(|error| format!("checked, but closing fails: {error}"))?;
        drop(volume);
        let report = check(&region, false).map_err(|error| format!("after writing: {error}"))?;
        if !report.problems.is_empty() {
            return Err(format!("checked, written to, and now {:#?}", report.problems));
        }
    }
    Ok(())
}

/// A repair that may lose nothing loses nothing: it leaves all there is, or changes nothing.
fn preened(image: &[u8], tree: &Tree, tolerance: Tolerance) -> std::result::Result<(), String> {
    let (zone, region) = zone_of(image);
    let Ok(found) = check(&region, false) else { return Ok(()) };
    let Ok(report) = preen(&region) else { return Err("a volume is checked, and cannot be preened".into()) };
    if found.problems.iter().any(|problem| problem.with_loss) {
        let is_unchanged = zone.snapshot_image() == *image && !report.problems.iter().any(|it| it.repaired);
        return if is_unchanged { Ok(()) } else { Err(format!("what loses is repaired: {report:?}")) };
    }
    if report.problems.iter().any(|problem| problem.repaired && problem.with_loss) {
        return Err(format!("something is lost: {report:?}"));
    }
    if !report.is_clean() {
        return Ok(()); // what replaying the log has met
    }
    let again = check(&region, false).map_err(|error| format!("preened: {error}"))?;
    if !again.problems.is_empty() {
        return Err(format!("preened, and still there: {:?}", again.problems));
    }
    let volume = Volume::open(region.clone(), &options(Durability::Operation))
        .map_err(|error| format!("preened, but it does not open: {error}"))?;
    match read_all(&volume, tree, tolerance)? {
        0 => Ok(()),
        errors => Err(format!("preened, but {errors} reads fail")),
    }
}

/// Nothing is in work any more, also if that is because of a panic.
struct End<'a>(&'a Mutex<Option<(String, u64)>>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Damages `count` copies of each specimen in one of `blocks` and judges them. Ends the process if one never ends.
fn endures(what: &str, count: u64, tolerance: Tolerance, blocks: impl Fn(&Specimen) -> Vec<usize>) {
    let seed = seed();
    // The case in work, and how many there were.
    let current = Mutex::new(Some((String::from("the specimen"), 0)));
    std::thread::scope(|scope| {
        let _end = End(&current);
        scope.spawn(|| {
            let mut watch = Watch::default();
            // Not held while it sleeps.
            let now = || current.lock().unwrap().clone();
            while let Some((case, number)) = now() {
                watch.look(number, || format!("{what}: AMBERFS_SEED={seed}: {case}"));
                std::thread::sleep(PAUSE);
            }
        });
        let begin = |case: &str| {
            let mut current = current.lock().unwrap();
            let number = current.as_ref().map_or(0, |(_, number)| number + 1);
            *current = Some((case.to_owned(), number));
        };
        let mut failure = None;
        for clean in [true, false] {
            begin("the specimen");
            let specimen = specimen(clean);
            let blocks = blocks(&specimen);
            assert!(!blocks.is_empty(), "no {what}");
            for case in 0..count {
                let mut random = Random(seed.wrapping_add(case * 2 + u64::from(clean)));
                let mut image = specimen.image.clone();
                let done = damage(&mut image, &specimen, &blocks, &mut random);
                let case = format!("case {case}, clean: {clean}: {done}");
                begin(&case);
                let judged = catch_unwind(AssertUnwindSafe(|| judge(&image, &specimen.tree, tolerance)));
                match judged {
                    Ok(Ok(())) => continue,
                    Ok(Err(error)) => failure = Some(format!("{what}: AMBERFS_SEED={seed}: {case}: {error}")),
                    Err(_) => failure = Some(format!("{what}: AMBERFS_SEED={seed}: {case}: it panics")),
                }
                break;
            }
        }
        if let Some(failure) = failure {
            panic!("{failure}");
        }
    });
}

#[test]
fn superblocks() {
    endures("superblock", 8, Tolerance::Nothing, |_| SUPERBLOCKS.collect());
}

#[test]
fn root_slots() {
    endures("root slot", 8, Tolerance::Nothing, |_| ROOT_SLOTS.collect());
}

#[test]
fn the_log() {
    endures("log", 8, Tolerance::LastOperations, |_| {
        LOG.step_by(256).chain(LOG.start..LOG.start + 8).collect()
    });
}

#[test]
fn the_sit() {
    endures("SIT", 8, Tolerance::Nothing, |_| SIT.chain(SIT_JOURNAL).collect());
}

#[test]
fn the_bia() {
    endures("BIA", 14, Tolerance::Nothing, |_| BIA.collect());
}

#[test]
fn the_nat() {
    endures("NAT", 7, Tolerance::Nothing, |specimen| specimen.of_kind(8..10));
}

#[test]
fn nodes() {
    endures("nodes", 30, Tolerance::Nothing, |specimen| {
        [specimen.of_kind(2..8), specimen.of_kind(11..12)].concat()
    });
}

#[test]
fn checkpoints() {
    endures("checkpoint", 6, Tolerance::Nothing, |specimen| specimen.of_kind(10..11));
}

#[test]
fn data() {
    endures("data", 6, Tolerance::Data, |specimen| specimen.of_kind(1..2));
}

/// What nothing reaches may hold anything.
#[test]
fn free_blocks() {
    endures("free blocks", 4, Tolerance::Nothing, |specimen| {
        let used = specimen.of_kind(0..128);
        // Blocks that the log of the killed volume uses follow the used ones; the last segment is far from them.
        (MAIN + 5 * 512..MAIN + 6 * 512).filter(|block| !used.contains(block)).collect()
    });
}
