//! Numbered pseudo-random choices (splitmix64): the same seed gives the same run everywhere.

use vfs::{FallocateMode, InodeFlags, RenameFlags, XattrMode};

use crate::ground::Chore;
use crate::operation::Operation::{self, *};
use crate::subject::Subject;

/// A sequence of choices.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence that `seed` names.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "an endless sequence is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is at least 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Names that random operations use.
const FILES: [&str; 8] =
    ["/a/small", "/a/file", "/a/holes", "/b/other", "/b/void", "/b/reserved", "/new", "/a/new"];
const PATHS: [&str; 10] =
    ["/a/small", "/a/file", "/b/other", "/b/hard", "/b/link", "/b/e", "/new", "/a/new", "/dir", "/dir/new"];
const SNAPSHOTS: [&str; 3] = ["s", "t", "u"];
const LENGTHS: [usize; 10] = [1, 8, 60, 200, 700, 2_048, 3_000, 4_096, 8_192, 20_000];
const OFFSETS: [u64; 9] = [0, 1, 300, 2_000, 4_096, 4_200, 9_000, 12_288, 40_000];

/// `count` operations of those that `subject` has, which `seed` chooses; some of them fail.
pub(crate) fn operations(subject: &dyn Subject, count: usize, seed: u64) -> Vec<Operation> {
    let mut random = Random::new(seed);
    std::iter::repeat_with(|| operation(&mut random)).filter(|it| subject.can(it)).take(count).collect()
}

fn operation(random: &mut Random) -> Operation {
    fn of<T: Clone>(random: &mut Random, all: &[T]) -> T {
        all[random.below(all.len() as u64) as usize].clone()
    }
    let file = |random: &mut Random| of(random, &FILES).to_owned();
    let path = |random: &mut Random| of(random, &PATHS).to_owned();
    let length = |random: &mut Random| of(random, &LENGTHS);
    let offset = |random: &mut Random| of(random, &OFFSETS);
    let keep = FallocateMode::KEEP_SIZE;
    let modes = [FallocateMode::empty(), keep, keep | FallocateMode::PUNCH_HOLE, FallocateMode::ZERO_RANGE];
    let flags = [RenameFlags::empty(), RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE];
    let flags_of_inodes =
        [InodeFlags::empty(), InodeFlags::NODUMP, InodeFlags::APPEND, InodeFlags::IMMUTABLE];
    let held = random.below(2) as u8;
    match random.below(49) {
        0..=4 => Create(path(random)),
        5..=6 => Mkdir(path(random)),
        7 => Symlink(path(random), length(random).min(4_095)),
        8..=9 => Link(path(random), path(random)),
        10..=13 => Unlink(path(random)),
        14 => Rmdir(path(random)),
        15..=18 => Rename(path(random), path(random), of(random, &flags)),
        19..=25 => Write(file(random), offset(random), length(random)),
        26..=27 => Truncate(file(random), offset(random)),
        28..=29 => Allocate(file(random), of(random, &modes), offset(random), length(random) as u64),
        30 => Copy(file(random), offset(random), file(random), offset(random), length(random) as u64),
        31 => Setxattr(path(random), "user.one".into(), length(random).min(1_500), XattrMode::Either),
        32 => Removexattr(path(random), "user.one".into()),
        33 => Chmod(path(random), random.below(0o1000) as u32),
        34 => Hold(held, file(random)),
        35 => Tmpfile(held, "/a".into()),
        36 => LinkHeld(held, path(random)),
        37 => {
            [WriteHeld(held, offset(random), length(random)), Release(held)][random.below(2) as usize].clone()
        }
        38 => Fsync(file(random), random.one_in(2)),
        40..=41 => TakeSnapshot(of(random, &SNAPSHOTS).to_owned()),
        42 => RemoveSnapshot(of(random, &SNAPSHOTS).to_owned()),
        43 => RollBack(of(random, &SNAPSHOTS).to_owned()),
        44..=45 => EmptySegment(random.below(4) as u32),
        48 => Chattr(path(random), of(random, &flags_of_inodes)),
        46..=47 => Tend(of(random, &[Chore::Commit, Chore::WritePages, Chore::EmptyLog, Chore::Seal])),
        _ => Sync,
    }
}
