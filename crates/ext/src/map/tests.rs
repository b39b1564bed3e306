//! Maps against the simplest of all: a table of where each block is.

use std::collections::BTreeMap;
use std::ops::Range;

use vfs::{Error, Result};

use super::{END, Place, blocks_max, insert, mark_unwritten, mark_written, nodes, remove, run};
use crate::core::Core;
use crate::core::inode::{self, Inode};
use crate::core::{alloc, bitmap, group};
use crate::scene::Scene;
use crate::support::random::Random;

/// Each structure with each size of blocks, with checksums and without.
const KINDS: [&[&str]; 7] = [
    &["-t", "ext2", "-b", "1024", "-I", "128"],
    &["-t", "ext3", "-b", "2048", "-J", "size=2"],
    &["-t", "ext2", "-b", "4096"],
    &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal"],
    &["-t", "ext4", "-b", "1024", "-O", "^has_journal"],
    &["-t", "ext4", "-b", "2048", "-O", "^has_journal"],
    &["-t", "ext4", "-b", "4096", "-O", "^has_journal"],
];

/// Block of the file → block of the disk, and whether it is written.
type Table = BTreeMap<u64, (u64, bool)>;

struct File<'a> {
    scene: &'a Scene,
    number: u32,
    table: Table,
    has_extents: bool,
}

impl<'a> File<'a> {
    fn new(scene: &'a Scene, n: u32) -> File<'a> {
        let number = scene.file(n);
        let has_extents = inode::read(scene.core(), number).unwrap().flags.contains(inode::Flags::EXTENTS);
        File { scene, number, table: Table::new(), has_extents }
    }

    fn inode(&self) -> Inode {
        inode::read(self.scene.core(), self.number).unwrap()
    }

    /// An operation on the inode, which is written then.
    fn change<R>(&self, with: impl FnOnce(&Core, &mut Inode) -> Result<R>) -> Result<R> {
        self.scene.change(|core| {
            let mut inode = inode::read(core, self.number)?;
            let result = with(core, &mut inode)?;
            inode::write(core, &inode)?;
            Ok(result)
        })
    }

    fn set_size(&self, blocks: u64) {
        let bytes = blocks * self.scene.core().superblock.block;
        self.change(|_, inode| {
            inode.size = bytes;
            Ok(())
        })
        .unwrap();
    }

    /// Holes in a range get blocks, in as many pieces as there are holes and free runs.
    fn fill(&mut self, range: Range<u64>, written: bool, goal: u64) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let found = run(self.scene.core(), &self.inode(), at)?;
            let most = found.blocks.min(range.end - at);
            at += match found.place {
                Place::Hole => self.insert(at, most, written, goal)?,
                _ => most,
            };
        }
        Ok(())
    }

    fn insert(&mut self, at: u64, most: u64, written: bool, goal: u64) -> Result<u64> {
        let blocks = alloc::pick(self.scene.core(), goal, most)?;
        let count = blocks.end - blocks.start;
        let written = written || !self.has_extents;
        let done = self.change(|core, inode| {
            alloc::take(core, blocks.clone())?;
            insert(core, inode, at, blocks.start, count, written)
        });
        if done.is_err() {
            alloc::give_up(self.scene.core(), blocks.clone());
        }
        done?;
        self.table.extend((at..).zip(blocks.map(|block| (block, written))));
        Ok(count)
    }

    fn mark_written(&mut self, range: Range<u64>) {
        self.change(|core, inode| mark_written(core, inode, range.clone())).unwrap();
        self.table.range_mut(range).for_each(|(_, (_, written))| *written = true);
    }

    fn mark_unwritten(&mut self, range: Range<u64>) {
        let done = self.change(|core, inode| mark_unwritten(core, inode, range.clone()));
        assert_eq!(done, if self.has_extents { Ok(()) } else { Err(Error::NotSupported) });
        if self.has_extents {
            self.table.range_mut(range).for_each(|(_, (_, written))| *written = false);
        }
    }

    fn remove(&mut self, range: Range<u64>) {
        self.change(|core, inode| remove(core, inode, range.clone())).unwrap();
        self.table.retain(|at, _| !range.contains(at));
    }

    fn compare(&self) {
        let inode = self.inode();
        let mut found = Table::new();
        let mut at = 0;
        while at < END {
            let run = run(self.scene.core(), &inode, at).unwrap();
            let blocks = at..at + run.blocks;
            match run.place {
                Place::Mapped(start) => found.extend(blocks.zip((start..).map(|block| (block, true)))),
                Place::Unwritten(start) => found.extend(blocks.zip((start..).map(|block| (block, false)))),
                Place::Hole => {}
            }
            at += run.blocks;
        }
        assert!(found == self.table, "the map leads elsewhere");
        let mut own = 0;
        nodes(self.scene.core(), &inode, &mut |_| {
            own += 1;
            true
        })
        .unwrap();
        let sectors = (own + found.len() as u64) * self.scene.core().superblock.block / 512;
        assert_eq!(inode.blocks, sectors);
    }

    fn nodes(&self) -> u64 {
        let mut count = 0;
        let visit = &mut |_| {
            count += 1;
            true
        };
        nodes(self.scene.core(), &self.inode(), visit).unwrap();
        count
    }
}

fn all(test: impl Fn(&Scene)) {
    for options in KINDS {
        eprintln!("{options:?}");
        test(&Scene::new("24M", &[options, &["-N", "64"]].concat(), 2));
    }
}

/// Where the changes are: near the beginning, where levels of pointers begin, and far behind.
fn places(core: &Core, inode: &Inode) -> Vec<Range<u64>> {
    let per_block = core.superblock.block / 4;
    let end = blocks_max(&core.superblock, inode);
    let second = 12 + per_block;
    vec![0..40, 0..3000, second - 30..second + 30, second + per_block * per_block - 40..END, end - 300..end]
}

#[test]
fn whatever_happens_the_map_leads_where_it_should() {
    all(|scene| {
        let mut random = Random::new(20_260_417);
        let mut file = File::new(scene, 0);
        let mut other = File::new(scene, 1);
        let (before, _) = scene.free();
        let places = places(scene.core(), &file.inode());
        let end = blocks_max(&scene.core().superblock, &file.inode());
        file.set_size(end);
        other.set_size(end);
        for step in 0..1500 {
            let place = &places[random.below(places.len() as u64) as usize];
            let from = place.start + random.below((place.end - place.start).min(3000));
            let longest = [1, 3, 40, 600][random.below(4) as usize];
            let range = from..(from + 1 + random.below(longest)).min(end);
            match random.below(10) {
                0..4 => {
                    let goal = random.below(scene.core().superblock.blocks);
                    match file.fill(range, random.below(2) == 0, goal) {
                        Ok(()) => {}
                        Err(Error::NoSpace) => file.remove(0..END),
                        Err(error) => panic!("{error}"),
                    }
                }
                4 => {
                    // Another's block here and there parts what would be one run.
                    let at = random.below(3000);
                    let _ = other.fill(
                        at..at + 1,
                        true,
                        file.table.first_key_value().map_or(0, |(_, at)| at.0 + 1),
                    );
                }
                5 | 6 => file.mark_written(range),
                7 => file.mark_unwritten(range),
                8 => file.remove(range),
                _ => file.remove(from..from + random.below(3000)),
            }
            if step % 50 == 0 {
                file.compare();
                scene.commit();
            }
            if step % 500 == 499 {
                scene.fsck();
            }
        }
        file.compare();
        other.compare();
        file.remove(0..END);
        other.remove(0..END);
        file.compare();
        assert_eq!((file.nodes(), scene.free().0), (0, before));
        scene.fsck();
    });
}

#[test]
fn deep_maps_grow_and_shrink() {
    all(|scene| {
        let mut file = File::new(scene, 0);
        let end = blocks_max(&scene.core().superblock, &file.inode());
        let count = 3000;
        file.set_size(end);
        // Every second block, so that no two are neighbours; from both ends, and then between.
        let mut order: Vec<u64> = (0..count).map(|n| n * 2).collect();
        order[count as usize / 3..].reverse();
        for at in order {
            file.insert(at, 1, at % 3 == 0, at).unwrap();
        }
        file.compare();
        let nodes = file.nodes();
        assert!(nodes >= if file.has_extents { count * 12 / 4096 } else { 2 });
        scene.fsck();
        file.mark_written(0..END);
        file.compare();
        for n in 0..count {
            file.remove(n * 2..n * 2 + 1);
            if n % 300 == 7 {
                file.compare();
            }
        }
        assert_eq!((file.nodes(), file.inode().blocks), (0, 0));
        scene.fsck();
    });
}

/// What is left of a file from whose middle nearly all was taken is in few nodes, and in none if it fits the inode.
#[test]
fn what_is_left_of_a_tree_is_joined() {
    all(|scene| {
        let mut file = File::new(scene, 0);
        if !file.has_extents {
            return;
        }
        let count = 3000;
        file.set_size(2 * count);
        for n in 0..count {
            file.insert(n * 2, 1, n % 2 == 0, n * 2).unwrap();
        }
        let before = file.nodes();
        // Block by block, in no order.
        for n in (0..count).map(|n| n * 1009 % count).filter(|n| n % 50 != 0) {
            file.remove(n * 2..n * 2 + 1);
        }
        file.compare();
        assert!(before > 8 && file.nodes() <= 2, "{before} nodes, and {} for 60 extents", file.nodes());
        scene.fsck();
        for n in (0..count).step_by(50).skip(4) {
            file.remove(n * 2..n * 2 + 1);
        }
        file.compare();
        assert_eq!((file.nodes(), file.table.len()), (0, 4));
        scene.fsck();
    });
}

#[test]
fn appending_makes_few_and_full_extents() {
    for block in ["1024", "4096"] {
        let options = ["-t", "ext4", "-b", block, "-O", "^has_journal,^resize_inode", "-N", "64"];
        let scene = Scene::new("300M", &options, 2);
        let mut file = File::new(&scene, 0);
        let blocks = (256 << 20) / scene.core().superblock.block;
        file.set_size(blocks);
        let mut at = 0;
        while at < blocks {
            let last = file.table.last_key_value().map_or(0, |(_, (block, _))| block + 1);
            at += file.insert(at, (blocks - at).min(128), true, last).unwrap();
        }
        let groups = u64::from(scene.core().superblock.groups);
        let mut runs = 0;
        let mut at = 0;
        while at < blocks {
            at += run(scene.core(), &file.inode(), at).unwrap().blocks;
            runs += 1;
        }
        assert!(runs <= groups + blocks / 32768 + 2, "{runs} extents in {groups} groups");
        scene.fsck();
    }
}

#[test]
fn what_finds_no_room_has_not_been() {
    all(|scene| {
        let mut file = File::new(scene, 0);
        file.set_size(5000);
        file.fill(0..4, true, 0).unwrap();
        // All but a few blocks are another's; the last of them are needed for the map itself.
        let mut other = File::new(scene, 1);
        other.set_size(1 << 20);
        let mut at = 0;
        while scene.free().0 > 40 {
            at += other.insert(at, scene.free().0.div_ceil(2) - 18, true, 0).unwrap();
        }
        file.compare();
        let before = scene.image();
        let free = scene.free();
        let failed = file.change(|core, inode| {
            remove(core, inode, 2..3)?;
            for at in (10..5000).step_by(7) {
                let blocks = alloc::metadata(core, at)?;
                insert(core, inode, at, blocks, 1, true)?;
            }
            Ok(())
        });
        assert_eq!((failed, scene.free()), (Err(Error::NoSpace), free));
        file.compare();
        assert!(scene.image() == before, "not a byte has changed");
        other.remove(0..END);
        scene.commit();
        file.fill(10..3000, true, 0).unwrap();
        scene.fsck();
    });
}

#[test]
fn what_cannot_be_is_refused() {
    all(|scene| {
        let mut file = File::new(scene, 0);
        let end = blocks_max(&scene.core().superblock, &file.inode());
        assert_eq!(file.insert(end, 1, true, 0), Err(Error::FileTooLarge));
        assert_eq!(file.insert(end - 3, 4, true, 0), Err(Error::FileTooLarge));
        file.insert(end - 1, 1, true, 0).unwrap();
        file.insert(5, 1, true, 0).unwrap();
        for at in [5, end - 1] {
            assert!(matches!(file.insert(at, 1, true, 0), Err(Error::Corrupt(_))), "there is no hole");
        }
        assert!(matches!(file.insert(4, 2, true, 0), Err(Error::Corrupt(_))));
        file.compare();
        // A map that leads to a bitmap: it is not given up with the file.
        let bitmap = group::read(scene.core(), 0).unwrap().blocks.block;
        let other = File::new(scene, 1);
        other.change(|core, inode| insert(core, inode, 0, bitmap, 1, true)).unwrap();
        let error = other.change(|core, inode| remove(core, inode, 0..END)).unwrap_err();
        assert!(error.to_string().contains("own structures"), "{error}");
        let group = group::read(scene.core(), 0).unwrap();
        let bits = bitmap::clusters(scene.core(), &group).unwrap().unwrap();
        assert!(bitmap::is_set(&bits, bitmap - scene.core().superblock.first_block));
    });
}

/// A map of pointers that leads to itself ends.
#[test]
fn a_circle_is_found() {
    let scene = Scene::new("8M", KINDS[0], 1);
    let file = File::new(&scene, 0);
    let block = scene
        .change(|core| {
            let block = alloc::node(core, 0)?;
            core.store.make(crate::store::Kind::Indirect(file.number), block, |bytes| {
                bytes.as_chunks_mut::<4>().0.fill((block as u32).to_le_bytes());
            });
            Ok(block)
        })
        .unwrap();
    file.change(|_, inode| {
        inode.block[56..60].copy_from_slice(&(block as u32).to_le_bytes());
        Ok(())
    })
    .unwrap();
    scene.commit();
    let error = file.change(|core, inode| remove(core, inode, 0..END)).unwrap_err();
    assert!(error.to_string().contains("more than the disk has"), "{error}");
}
