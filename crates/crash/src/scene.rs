//! What is on a volume before a workload begins.

use vfs::{FallocateMode, OpenFlags, RenameFlags, XattrMode};

use crate::operation::Operation::{self, *};

/// A state to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scene {
    /// A few files of every kind and size class, in two directories.
    Common,
    /// As `Common`, and a directory whose names fill its page but for one.
    Crowd,
    /// As `Common`, and a directory that is an index of buckets, one of them nearly full.
    Index,
    /// As `Common`, and no block is free: `/filler` has them all.
    Full,
    /// As `Common`, and another volume is beside it.
    Two,
    /// As `Common`, a snapshot of that, and changes behind it.
    Kept,
    /// As `Common`, and a snapshot of that.
    Shared,
}

/// The filler of a full volume, bytes: more than the smallest volume has.
const FILLER_BYTES: u64 = 16 << 20;

/// A name of 255 bytes.
pub(crate) fn long(number: usize) -> String {
    format!("{:x<255}", format!("long-{number}-"))
}

impl Scene {
    /// The operations that make it. Those that fail for want of space have no effect.
    pub(crate) fn operations(self) -> Vec<Operation> {
        let mut all = common();
        match self {
            Scene::Common | Scene::Two => {}
            Scene::Shared => all.push(TakeSnapshot("kept".into())),
            Scene::Kept => all.extend([
                TakeSnapshot("kept".into()),
                Write("/a/file".into(), 4_096, 4_096),
                Write("/b/void".into(), 0, 6_000),
                Unlink("/a/fifo".into()),
                Create("/b/newer".into()),
            ]),
            Scene::Crowd => crowd(&mut all, 13),
            Scene::Index => crowd(&mut all, 27),
            Scene::Full => {
                all.push(Create("/filler".into()));
                let mut at = 0;
                let mut piece = FILLER_BYTES;
                // What does not fit is halved, down to a block.
                while piece >= 4096 {
                    for _ in 0..2 {
                        all.push(Allocate("/filler".into(), FallocateMode::empty(), at, piece));
                        at += piece;
                    }
                    piece /= 2;
                }
            }
        }
        all
    }

    /// What a volume must be able to do to be set so. Whatever else it cannot do is left out.
    pub(crate) fn essence(self) -> Option<Operation> {
        match self {
            Scene::Common | Scene::Crowd | Scene::Index => None,
            Scene::Full => Some(Allocate("/filler".into(), FallocateMode::empty(), 0, FILLER_BYTES)),
            Scene::Two => Some(CloneMounted("s".into())),
            Scene::Kept | Scene::Shared => Some(TakeSnapshot("kept".into())),
        }
    }

    /// The operations that make the volume beside it, if there is one.
    pub(crate) fn beside(self) -> Option<Vec<Operation>> {
        let old = [Create("/old".into()), Write("/old".into(), 0, 5_000)];
        (self == Scene::Two).then(|| old.to_vec())
    }
}

fn common() -> Vec<Operation> {
    let path = |text: &str| text.to_owned();
    vec![
        Mkdir(path("/a")),
        Mkdir(path("/b")),
        Mkdir(path("/b/e")),
        Create(path("/a/small")),
        Write(path("/a/small"), 0, 300),
        Create(path("/a/file")),
        Write(path("/a/file"), 0, 9_000),
        Create(path("/a/holes")),
        Write(path("/a/holes"), 40_000, 5_000),
        Truncate(path("/a/holes"), 100_000),
        Create(path("/b/other")),
        Write(path("/b/other"), 0, 4_096),
        Create(path("/b/empty")),
        Create(path("/b/reserved")),
        Allocate(path("/b/reserved"), FallocateMode::KEEP_SIZE, 0, 16_384),
        Symlink(path("/b/link"), 20),
        Link(path("/a/small"), path("/b/hard")),
        Mknod(path("/a/fifo"), 0o010_644),
        Setxattr(path("/a/file"), path("user.one"), 30, XattrMode::Create),
        Setxattr(path("/b/other"), path("user.large"), 900, XattrMode::Create),
        Chmod(path("/b/other"), 0o600),
        Rename(path("/b/empty"), path("/b/void"), RenameFlags::NOREPLACE),
        WriteWith(path("/b/void"), 0, 10, OpenFlags::APPEND),
        Truncate(path("/b/void"), 0),
    ]
}

fn crowd(all: &mut Vec<Operation>, names: usize) {
    all.push(Mkdir("/crowd".into()));
    all.extend((0..names).map(|n| Link("/a/small".into(), format!("/crowd/{}", long(n)))));
}
