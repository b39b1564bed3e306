//! The kernel and we take turns at one disk, three times each: what either leaves, the other finds as it was, byte by byte, and goes on with.

use crate::support;
use crate::support::cases::{self, Case};
use crate::support::churn::{churn, compare};
use crate::support::contents;
use crate::support::maker::{Kernel, Ours};
use crate::support::tree::{self, Tree};
use crate::support::{Image, Mounted};
use ext::{Options, Volume};
use nvm::{Region, VolumeKind, Zone};
use vfs::FileSystem;

const MIB: u64 = 1 << 20;
const ROUNDS: u64 = 3;
/// Changes of the files in `churned` at each turn.
const CHANGES: u64 = 120;

/// One disk, its NVM, and a directory whose files are what those of the disk's `churned` should be.
struct Game {
    case: Case,
    image: Image,
    zone: Zone,
    mirror: tempfile::TempDir,
}

#[test]
fn ext2() {
    play("ext2");
}

#[test]
fn ext3() {
    play("ext3");
}

#[test]
fn ext4() {
    play("ext4");
}

fn play(kind: &str) {
    if !support::can_mount() {
        return;
    }
    for case in cases::pairs().into_iter().filter(|case| case.has(kind)) {
        eprintln!("{case}");
        let zone = Zone::anonymous(80 * MIB, &nvm::OpenOptions::default()).unwrap();
        zone.create_volume("disk", VolumeKind::Ext, Some(48 * MIB)).unwrap();
        let game = Game { image: case.image(), zone, mirror: tempfile::tempdir().unwrap(), case };
        let mut left = None;
        for round in 0..ROUNDS {
            let by_kernel = game.turn_of_kernel(round, left.as_ref());
            left = Some(game.our_turn(round, &by_kernel));
        }
        let mounted = game.image.mount("ro");
        game.check_kernel(&mounted, left.as_ref());
    }
}

impl Game {
    fn region(&self) -> Region {
        self.zone.volume("disk").unwrap()
    }

    /// What the kernel finds is what we left.
    fn check_kernel(&self, mounted: &Mounted, left: Option<&Tree>) {
        let Some(left) = left else { return };
        tree::compare(left, &tree::of_kernel(&mounted.dir, self.case.large_inodes));
        compare(&mounted.dir.join("churned"), self.mirror.path());
    }

    /// The kernel makes something of everything, and changes what we made.
    fn turn_of_kernel(&self, round: u64, left: Option<&Tree>) -> Tree {
        let scale = self.case.scale();
        let mounted = self.image.mount("");
        self.check_kernel(&mounted, left);
        let below = |name: &str| {
            let dir = mounted.dir.join(name);
            std::fs::create_dir_all(&dir).unwrap();
            Kernel::below(&dir)
        };
        contents::fill(&mut below(&format!("kernel {round}")), scale);
        if round > 0 {
            contents::change(&mut below(&format!("ours {}", round - 1)), scale);
        }
        churn(&mut below("churned"), self.mirror.path(), 2 * round, CHANGES);
        drop(mounted);
        self.image.fsck();
        // Where it puts what, it decides late.
        tree::of_kernel(&self.image.mount("ro").dir, self.case.large_inodes)
    }

    /// The same of us, in one attachment, with the NVM gone over to another process in the middle.
    fn our_turn(&self, round: u64, left: &Tree) -> Tree {
        let (region, scale) = (self.region(), self.case.scale());
        ext::attach(&region, &self.image.disk(false)).unwrap();
        let volume = self.mount();
        tree::compare(&tree::of_volume(&volume).unwrap(), left);
        contents::fill(&mut Ours::below(&volume, &format!("ours {round}")), scale);
        volume.unmount().unwrap();
        drop(volume);
        let volume = self.mount();
        contents::change(&mut Ours::below(&volume, &format!("kernel {round}")), scale);
        churn(&mut Ours::below(&volume, "churned"), self.mirror.path(), 2 * round + 1, CHANGES);
        volume.syncfs().unwrap();
        let tree = tree::of_volume(&volume).unwrap();
        volume.detach().unwrap();
        drop(volume);
        self.image.fsck();
        let found = ext::check(self.image.disk(true), &Options::default()).unwrap();
        assert!(found.is_clean(), "{:#?}", found.findings.iter().take(20).collect::<Vec<_>>());
        tree
    }

    fn mount(&self) -> Volume {
        let options = Options { cache_bytes: 4 * MIB, page_bytes: 2 * MIB, ..Options::default() };
        Volume::mount(&self.region(), self.image.disk(false), &options).unwrap()
    }
}
