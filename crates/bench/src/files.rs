//! A workload's files while it runs: which are there, and who uses them.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use crate::flow::FileSet;
use crate::ground::{Ground, Open, Result};
use crate::random::Random;

/// A file's state: not there.
const ABSENT: u32 = 0;
/// There, and nobody uses it. Greater numbers count who does.
const IDLE: u32 = 1;
/// Someone makes, renames or removes it.
const TAKEN: u32 = u32::MAX;
/// Files that are tried at random before all are looked at in turn.
const TRIES: usize = 32;
/// The log begins anew when it is so long.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// Bytes that files are filled with at a time.
const FILL_BYTES: usize = 1 << 20;

/// Names of one length, each with a NUL behind it, in one piece of memory.
struct Names {
    bytes: Vec<u8>,
    each: usize,
}

impl Names {
    fn new(prefix: char, count: usize) -> Names {
        let bytes: Vec<u8> =
            (0..count).flat_map(|number| format!("{prefix}{number:07}\0").into_bytes()).collect();
        Names { each: bytes.len() / count.max(1), bytes }
    }

    fn get(&self, number: usize) -> &CStr {
        let bytes = &self.bytes[number * self.each..(number + 1) * self.each];
        CStr::from_bytes_with_nul(bytes).expect("a NUL at the end, and nowhere else")
    }
}

/// The file set's files and directories, made in a directory of their own.
pub(crate) struct Files<G: Ground> {
    pub(crate) set: FileSet,
    pub(crate) dirs: Vec<G::Dir>,
    /// A file every thread appends to.
    pub(crate) log: G::File,
    log_length: AtomicU64,
    names: [Names; 2],
    inner_dirs: Names,
    inner_dirs_made: Vec<AtomicBool>,
    states: Vec<AtomicU32>,
    renamed: Vec<AtomicBool>,
    lengths: Vec<AtomicU64>,
}

impl<G: Ground> Files<G> {
    /// Makes the directories, and those files that are there from the start. `stop` is asked before each of them, and each piece.
    pub(crate) fn make(
        ground: &G,
        top: &G::Dir,
        set: &FileSet,
        random: &mut Random,
        stop: &dyn Fn() -> bool,
    ) -> Result<Files<G>> {
        let width = set.width.clamp(1, set.files.max(1));
        let go_on = || if stop() { Err(Errno::INTR) } else { Ok(()) };
        let make_dir = |number: usize| {
            go_on()?;
            let name = CString::new(format!("d{number:06}")).expect("no NUL");
            ground.make_dir(top, &name)?;
            ground.open_dir(top, &name)
        };
        let files = Files {
            dirs: (0..set.files.div_ceil(width).max(1)).map(make_dir).collect::<Result<_>>()?,
            log: ground.create(top, c"log", Open::Append)?,
            log_length: AtomicU64::new(0),
            names: [Names::new('f', set.files), Names::new('g', set.files)],
            inner_dirs: Names::new('m', set.files),
            inner_dirs_made: (0..set.files).map(|_| AtomicBool::new(false)).collect(),
            states: (0..set.files).map(|_| AtomicU32::new(ABSENT)).collect(),
            renamed: (0..set.files).map(|_| AtomicBool::new(false)).collect(),
            lengths: (0..set.files).map(|_| AtomicU64::new(0)).collect(),
            set: FileSet { width, ..set.clone() },
        };
        let piece = vec![0x5A; FILL_BYTES];
        // Spread over all numbers, so that directories are equally full.
        let present = |number: usize| number * set.present / 100 != (number + 1) * set.present / 100;
        for number in (0..set.files).filter(|number| present(*number)) {
            go_on()?;
            let file = ground.create(files.dir(number), files.name(number), Open::AsIs)?;
            let length = set.size.draw(random);
            let filled = (0..length).step_by(FILL_BYTES).try_for_each(|at| {
                go_on()?;
                let bytes = (length - at).min(FILL_BYTES as u64) as usize;
                ground.write(&file, at, &piece[..bytes])
            });
            ground.close(file)?;
            filled?;
            files.set_length(number, length);
            files.settle(number, true);
        }
        Ok(files)
    }

    /// Closes what is open.
    pub(crate) fn close(self, ground: &G) -> Result<()> {
        ground.close(self.log)
    }

    /// So many per cent of all.
    pub(crate) fn part(&self, percent: usize) -> usize {
        self.set.files * percent.min(100) / 100
    }

    pub(crate) fn dir(&self, number: usize) -> &G::Dir {
        &self.dirs[number / self.set.width]
    }

    /// The name that the file has now.
    pub(crate) fn name(&self, number: usize) -> &CStr {
        self.names[usize::from(self.renamed[number].load(Ordering::Relaxed))].get(number)
    }

    /// The name that it has not.
    pub(crate) fn other_name(&self, number: usize) -> &CStr {
        self.names[usize::from(!self.renamed[number].load(Ordering::Relaxed))].get(number)
    }

    /// Between passes, when nobody uses it.
    pub(crate) fn is_there(&self, number: usize) -> bool {
        self.states[number].load(Ordering::Relaxed) != ABSENT
    }

    pub(crate) fn inner_dir(&self, number: usize) -> &CStr {
        self.inner_dirs.get(number)
    }

    pub(crate) fn has_inner_dir(&self, number: usize) -> bool {
        self.inner_dirs_made[number].load(Ordering::Relaxed)
    }

    pub(crate) fn note_inner_dir(&self, number: usize, made: bool) {
        self.inner_dirs_made[number].store(made, Ordering::Relaxed);
    }

    /// The file, which the caller has taken, has its other name.
    pub(crate) fn note_renamed(&self, number: usize) {
        self.renamed[number].fetch_xor(true, Ordering::Relaxed);
    }

    pub(crate) fn length(&self, number: usize) -> u64 {
        self.lengths[number].load(Ordering::Relaxed)
    }

    pub(crate) fn set_length(&self, number: usize, length: u64) {
        self.lengths[number].store(length, Ordering::Relaxed);
    }

    /// Makes the file longer; gives where it ended.
    pub(crate) fn extend(&self, number: usize, bytes: u64) -> u64 {
        self.lengths[number].fetch_add(bytes, Ordering::Relaxed)
    }

    /// Counts what was added to the log. True for the one who is to truncate it: it would fill a small volume otherwise.
    pub(crate) fn extend_log(&self, bytes: u64) -> bool {
        let length = self.log_length.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_long = length >= LOG_BYTES_MAX && length - bytes < LOG_BYTES_MAX;
        if is_long {
            self.log_length.store(0, Ordering::Relaxed);
        }
        is_long
    }

    /// Uses a file that is there, beside others who do. False if it is not there, or taken.
    pub(crate) fn share(&self, number: usize) -> bool {
        let state = &self.states[number];
        let more = |state: u32| (state != ABSENT && state < TAKEN - 1).then(|| state + 1);
        state.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// Ends what `share` began.
    pub(crate) fn unshare(&self, number: usize) {
        self.states[number].fetch_sub(1, Ordering::Release);
    }

    /// Has a file alone: one that is there, or one that is not. False if it is the other, or used.
    pub(crate) fn take(&self, number: usize, present: bool) -> bool {
        let from = if present { IDLE } else { ABSENT };
        self.states[number].compare_exchange(from, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Ends what `take` began: the file is there now, or is not.
    pub(crate) fn settle(&self, number: usize, present: bool) {
        self.states[number].store(if present { IDLE } else { ABSENT }, Ordering::Release);
    }

    /// Ends what `take` began and goes on using the file.
    pub(crate) fn settle_shared(&self, number: usize) {
        self.states[number].store(IDLE + 1, Ordering::Release);
    }

    /// Any file that `claim` gets.
    pub(crate) fn any(&self, random: &mut Random, claim: impl Fn(usize) -> bool) -> Option<usize> {
        let count = self.states.len();
        let mut at_random = || random.below(count as u64) as usize;
        if let Some(found) = (0..TRIES).map(|_| at_random()).find(|number| claim(*number)) {
            return Some(found);
        }
        let start = at_random();
        (0..count).map(|step| (start + step) % count).find(|number| claim(*number))
    }
}
