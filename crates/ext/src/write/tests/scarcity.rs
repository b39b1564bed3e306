//! Operations that find so many free blocks and no more: whichever of its allocations fails, the operation has changed nothing.

use std::collections::BTreeMap;
use std::ops::Range;

use vfs::{Caller, Error, FallocateMode, FileSystem, Ino, ROOT_INO, RenameFlags, Result, XattrMode};

use super::{Machine, RW};
use crate::core::alloc;
use crate::store::Kind;
use crate::support::Image;
use crate::support::random::Random;
use crate::volume::Volume;

/// As many blocks an operation on names or attributes may need, for the longest: a directory whose tree grows a level, and a map that does.
const NEEDED_MAX: u64 = 12;

/// What would tell that something has happened: all metadata that is in DRAM, and what is free.
#[derive(PartialEq)]
struct Seen {
    blocks: BTreeMap<u64, (Kind, Vec<u8>)>,
    free: (u64, u64),
    running: u64,
}

struct Scarcity {
    volume: Volume,
    random: Random,
    /// Directories, and names in them.
    directories: Vec<Ino>,
    names: Vec<(usize, Vec<u8>, Ino)>,
    /// Operations that failed once for want of each block, and all that succeeded in the end.
    refused: u64,
    done: u64,
}

impl Scarcity {
    fn seen(&self) -> Seen {
        let core = &self.volume.core;
        let space = self.volume.statfs().unwrap();
        Seen {
            blocks: core.store.all(),
            free: (space.blocks_free, space.files_free),
            running: core.store.running().blocks,
        }
    }

    /// Leaves `left` blocks free; gives the others.
    fn take_all_but(&self, left: u64) -> Vec<Range<u64>> {
        let core = &self.volume.core;
        self.volume.write_out_all().unwrap();
        self.volume.commit_all().unwrap();
        let mut runs: Vec<Range<u64>> = std::iter::from_fn(|| alloc::pick(core, 0, 1 << 20).ok()).collect();
        let mut left = left;
        for run in runs.iter_mut().rev() {
            let given = left.min(run.end - run.start);
            alloc::give_up(core, run.end - given..run.end);
            run.end -= given;
            left -= given;
        }
        runs.retain(|run| !run.is_empty());
        for run in &runs {
            self.volume.change(|core| alloc::take(core, run.clone())).unwrap();
        }
        self.volume.commit_all().unwrap();
        runs
    }

    fn give_back(&self, runs: Vec<Range<u64>>) {
        for run in runs {
            self.volume.change(|core| alloc::free(core, run.clone())).unwrap();
        }
        self.volume.commit_all().unwrap();
    }

    /// Lets `operation` find no free block, one, two ... until it succeeds.
    fn attempt<R>(&mut self, what: &str, operation: impl Fn(&Volume) -> Result<R>) -> R {
        for left in (0..NEEDED_MAX).chain([500]) {
            let taken = self.take_all_but(left);
            let before = self.seen();
            let result = operation(&self.volume);
            match result {
                Ok(result) => {
                    self.give_back(taken);
                    self.done += 1;
                    return result;
                }
                Err(error) => {
                    assert_eq!(error, Error::NoSpace, "{what} with {left} blocks left");
                    self.refused += 1;
                    let after = self.seen();
                    for (number, was) in &before.blocks {
                        assert!(
                            after.blocks.get(number) == Some(was),
                            "{what}, {left} left: {:?} {number}",
                            was.0
                        );
                    }
                    assert_eq!(
                        (after.free, after.running),
                        (before.free, before.running),
                        "{what}, {left} left"
                    );
                    self.give_back(taken);
                }
            }
        }
        panic!("{what} finds no room ever");
    }

    fn name(&mut self) -> Vec<u8> {
        let longest = [12, 200][self.random.below(2) as usize];
        let length = 1 + self.random.below(longest);
        [&self.done.to_string().into_bytes()[..], b"-", &self.random.name(length)].concat()
    }

    fn step(&mut self) {
        let root = Caller::root();
        let dir = self.random.below(self.directories.len() as u64) as usize;
        let parent = self.directories[dir];
        let name = self.name();
        let any = self.random.below(self.names.len().max(1) as u64) as usize;
        match self.random.below(16) {
            0..4 => {
                let attr = self.attempt("mknod", |volume| volume.mknod(&root, parent, &name, 0o100_644, 0));
                self.names.push((dir, name, attr.ino));
            }
            4 if self.directories.len() < 6 => {
                let attr = self.attempt("mkdir", |volume| volume.mkdir(&root, parent, &name, 0o755));
                self.directories.push(attr.ino);
            }
            5 => {
                let target = vec![b'x'; 1 + self.random.below(900) as usize];
                let attr = self.attempt("symlink", |volume| volume.symlink(&root, parent, &name, &target));
                self.names.push((dir, name, attr.ino));
            }
            6 | 7 if !self.names.is_empty() => {
                let ino = self.names[any].2;
                let attr = self.attempt("link", |volume| volume.link(&root, ino, parent, &name));
                self.names.push((dir, name, attr.ino));
            }
            8 | 9 if !self.names.is_empty() => {
                let (from, old, ino) = self.names.swap_remove(any);
                let from = self.directories[from];
                let flags = RenameFlags::empty();
                self.attempt("rename", |volume| volume.rename(&root, from, &old, parent, &name, flags));
                self.names.push((dir, name, ino));
            }
            10 if !self.names.is_empty() => {
                let ino = self.names[any].2;
                let value = vec![7; self.random.below(400) as usize];
                self.attempt("setxattr", |volume| {
                    volume.setxattr(&root, ino, b"trusted.some", &value, XattrMode::Either)
                });
            }
            11 if !self.names.is_empty() => {
                let ino = self.names[any].2;
                match self.volume.removexattr(&root, ino, b"trusted.some") {
                    Ok(()) | Err(Error::NoAttribute) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            12 if !self.names.is_empty() => {
                let (from, old, _) = self.names.swap_remove(any);
                let from = self.directories[from];
                // Needs no room.
                let taken = self.take_all_but(0);
                self.volume.unlink(&root, from, &old).unwrap();
                self.give_back(taken);
            }
            _ => {
                let name = format!("map-{}", self.random.below(3));
                let flags = RW;
                let made = self.volume.create(&root, ROOT_INO, name.as_bytes(), 0o644, flags);
                let handle = match made {
                    Ok(made) => made.handle,
                    Err(_) => {
                        let attr = self.volume.lookup(&root, ROOT_INO, name.as_bytes()).unwrap();
                        self.volume.open(&root, attr.ino, RW).unwrap()
                    }
                };
                let block = u64::from(self.volume.statfs().unwrap().block_size);
                let at = self.random.below(4000) * block;
                let (what, mode, length) = match self.random.below(6) {
                    0 => ("punch", FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE, 1),
                    1 => ("zero", FallocateMode::ZERO_RANGE, 1),
                    2 => ("allocate many", FallocateMode::empty(), 20),
                    _ => ("allocate", FallocateMode::KEEP_SIZE, 1),
                };
                let length = length * block;
                self.attempt(what, |volume| volume.fallocate(&root, handle, mode, at, length));
                self.volume.release(handle).unwrap();
            }
        }
    }
}

fn operations(seed: u64, options: &[&str], steps: u64) {
    let machine = Machine::new(options);
    let volume = machine.mount();
    let random = Random::new(seed);
    let mut scarcity =
        Scarcity { volume, random, directories: vec![ROOT_INO], names: Vec::new(), refused: 0, done: 0 };
    for step in 0..steps {
        scarcity.step();
        if step % 200 == 0 {
            let found = crate::check_volume(&scarcity.volume).unwrap();
            assert!(found.is_clean(), "step {step}: {:#?}", found.findings);
        }
    }
    eprintln!("{} done, {} refused", scarcity.done, scarcity.refused);
    assert!(scarcity.refused > steps / 10, "{}", scarcity.refused);
    scarcity.volume.detach().unwrap();
    drop(scarcity.volume);
    Image::of(&machine.image()).fsck();
}

#[test]
fn whichever_allocation_fails_nothing_has_changed() {
    operations(1, &["-t", "ext4", "-b", "1024"], 600);
    operations(2, &["-t", "ext4", "-b", "1024", "-I", "128", "-O", "^metadata_csum"], 600);
    operations(3, &["-t", "ext2", "-b", "1024", "-I", "128"], 600);
    operations(4, &["-t", "ext4", "-b", "4096"], 600);
}
