//! Writers of one file's blocks and makers of names in one directory, who wait for their fences beside each other: whoever
//! looks sees whole blocks and whole files, and so does who comes after.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::volumes::*;
use native::{MountOptions, Volume};
use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO};

const BLOCK: usize = 4096;
/// Blocks of the file: so few that two often write the same.
const BLOCKS: u64 = 24;

fn assert_whole(bytes: &[u8]) {
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "half of one block and half of another");
}

#[test]
fn what_is_seen_beside_others_is_whole() {
    let (zone, region) = made(96 << 20);
    // None but those made here: the zone is copied below.
    let options = MountOptions { background: false, crowded: true, ..MountOptions::default() };
    let volume = Volume::open(region.clone(), &options).unwrap();
    let root = Caller::root();
    let dir = volume.mkdir(&root, ROOT_INO, b"d", 0o755).unwrap().ino;
    let made = volume.create(&root, ROOT_INO, b"f", 0o644, RW).unwrap();
    let (file, ino) = (made.handle, made.attr.ino);
    volume.write(&root, file, 0, &[1; BLOCK * BLOCKS as usize]).unwrap();
    let end = AtomicBool::new(false);
    let start = Barrier::new(7);
    let goes_on = || !end.load(Ordering::Relaxed);
    let made: Vec<u64> = std::thread::scope(|scope| {
        let (volume, goes_on, start) = (&volume, &goes_on, &start);
        for thread in 0..2u64 {
            scope.spawn(move || {
                let mut random = Random(thread);
                start.wait();
                while goes_on() {
                    let (at, count) = (random.below(BLOCKS - 1), 1 + random.below(2) as usize);
                    let bytes = vec![random.next() as u8; BLOCK * count];
                    let written = volume.write(&Caller::root(), file, at * BLOCK as u64, &bytes);
                    assert_eq!(written, Ok(bytes.len()));
                }
            });
        }
        // Depends on them all: lengthens the file and cuts it off again.
        scope.spawn(move || {
            let mut random = Random(9);
            start.wait();
            while goes_on() {
                let size = BLOCKS * BLOCK as u64;
                volume.write(&Caller::root(), file, size, &[7; BLOCK]).unwrap();
                let cut = vfs::SetAttr { size: Some(size), ..vfs::SetAttr::default() };
                assert_eq!(
                    volume.setattr(&Caller::root(), ino, &cut, Some(file)).map(|attr| attr.size),
                    Ok(size)
                );
                std::thread::sleep(Duration::from_micros(random.below(300)));
            }
        });
        scope.spawn(move || {
            let (mut random, mut bytes) = (Random(7), [0; BLOCK]);
            start.wait();
            while goes_on() {
                let at = random.below(BLOCKS) * BLOCK as u64;
                assert_eq!(volume.read(file, at, &mut bytes), Ok(BLOCK));
                assert_whole(&bytes);
                volume.read_slices(file, at, BLOCK, &mut assert_whole).unwrap();
            }
        });
        let makers: Vec<_> = (0..2)
            .map(|thread| {
                scope.spawn(move || {
                    start.wait();
                    let mut n = 0;
                    while goes_on() {
                        let name = format!("{thread}-{n}");
                        let flags = RW | OpenFlags::EXCLUSIVE;
                        let made =
                            volume.create(&Caller::root(), dir, name.as_bytes(), 0o644, flags).unwrap();
                        match volume.lookup(&Caller::root(), dir, name.as_bytes()) {
                            Ok(found) => assert_eq!(found.ino, made.attr.ino),
                            // The other one may be ahead by one, and have removed it.
                            found => assert!(n % 3 == 1, "{name}: {found:?}"),
                        }
                        volume.release(made.handle).unwrap();
                        // One in three goes again, whoever has made it.
                        if n % 3 == 2 {
                            let _ = volume.unlink(
                                &Caller::root(),
                                dir,
                                format!("{}-{}", 1 - thread, n - 1).as_bytes(),
                            );
                        }
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        start.wait();
        let until = Instant::now() + Duration::from_millis(1500);
        while Instant::now() < until {
            // Every name that is listed has its inode.
            let mut names = Vec::new();
            volume
                .readdir(dir, 0, &mut |entry| {
                    names.push(entry.name.to_vec());
                    true
                })
                .unwrap();
            for name in names.iter().filter(|name| !name.starts_with(b".")).take(50) {
                match volume.lookup(&Caller::root(), dir, name) {
                    Ok(_) | Err(vfs::Error::NotFound) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            volume.checkpoint().unwrap();
        }
        end.store(true, Ordering::Relaxed);
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    assert!(made.iter().all(|made| *made > 10), "{made:?}");
    let seen = tree(&volume).unwrap();
    assert_sound_if_crashed(&zone);
    let (_copy, crashed) = crashed(&zone);
    assert_eq!(difference(&tree(&mount(&crashed, native::Durability::Operation)).unwrap(), &seen), None);
    volume.close().unwrap();
    drop(volume);
    assert_sound(&region);
}
