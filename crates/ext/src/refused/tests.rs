//! What the disk has refused is offered to it while something newer of the same block is refused.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use disk::{Device, Disk, Geometry, Memory};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO};

use crate::options::Options;
use crate::support::Image;
use crate::volume::Volume;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const BLOCK: u64 = 4096;

/// A disk that refuses version 3 of a block and then takes version 2 of it: who writes that waits for nobody but the flush behind version 3, which
/// waits for it.
struct Fickle {
    memory: Arc<Memory>,
    at: AtomicU64,
    has_refused: AtomicBool,
    takes_again: AtomicBool,
    has_taken: AtomicBool,
}

/// Waits for what happens, unless it never does.
fn wait(flag: &AtomicBool, limit: Duration) {
    let begun = Instant::now();
    while !flag.load(SeqCst) && begun.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Device for Fickle {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        self.memory.read(at, into)
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], durable: bool) -> io::Result<()> {
        let version = (at == self.at.load(SeqCst)).then(|| from[0][0]);
        let result = self.memory.write(at, from, durable);
        match version {
            Some(3) if result.is_err() => self.has_refused.store(true, SeqCst),
            Some(2) if result.is_ok() => self.has_taken.store(true, SeqCst),
            _ => {}
        }
        result
    }

    fn flush(&self) -> io::Result<()> {
        if self.has_refused.load(SeqCst) && !self.takes_again.swap(true, SeqCst) {
            self.memory.refuse(0..0);
            wait(&self.has_taken, Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(200));
        }
        self.memory.flush()
    }
}

fn read_after_an_offer(clean_bytes: u64) -> u8 {
    let image = Image::make("16M", &["-t", "ext4", "-b", "4096"]);
    let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
    let memory = Arc::new(Memory::new(image.bytes(), false));
    let never = || AtomicBool::new(false);
    let fickle = Arc::new(Fickle {
        memory: memory.clone(),
        at: AtomicU64::new(u64::MAX),
        has_refused: never(),
        takes_again: never(),
        has_taken: never(),
    });
    let disk = || Arc::new(Disk::over("disk".into(), fickle.clone()));
    crate::attach(&region, &disk()).unwrap();
    let options = Options { clean_bytes, ..Options::default() };
    let volume = Volume::mount(&zone.volume("disk").unwrap(), disk(), &options).unwrap();
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap().handle;
    let write =
        |fill: u8| assert_eq!(volume.write(&root, file, 0, &[fill; BLOCK as usize]).unwrap(), BLOCK as usize);
    write(1);
    volume.syncfs().unwrap();
    volume.checkpoint().unwrap();
    let image = memory.image();
    let at =
        image.chunks(BLOCK as usize).position(|block| block == [1; BLOCK as usize]).unwrap() as u64 * BLOCK;
    memory.refuse(at..at + 512);
    write(2);
    volume.fsync(file, false).unwrap();
    volume.checkpoint().unwrap();
    assert_eq!(volume.stats().blocks_refused, 1);
    write(3);
    volume.fsync(file, false).unwrap();
    fickle.at.store(at, SeqCst);
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| volume.checkpoint().unwrap());
        wait(&fickle.takes_again, Duration::from_secs(20));
        drop(volume.offer_refused());
        checkpoint.join().unwrap();
    });
    assert!(fickle.has_taken.load(SeqCst), "version 2 was offered, and taken");
    let mut bytes = [0; BLOCK as usize];
    assert_eq!(volume.read(file, 0, &mut bytes).unwrap(), BLOCK as usize);
    bytes[0]
}

/// What was kept of a block in DRAM was the older version that the disk had taken meanwhile.
#[test]
fn an_offer_beside_a_refusal_brought_back_what_was_older() {
    assert_eq!([0, 1 << 20].map(read_after_an_offer), [3, 3], "what was synced last");
}
