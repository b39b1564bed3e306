//! A volume of one file: blocks of it, in random order.

use std::hint::black_box;

use native::Volume;
use nvm::Zone;
use vfs::{Caller, FileSystem, Handle, OpenFlags, ROOT_INO};

use crate::Plan;
use crate::curve::Stage;
use crate::dram::{self, Dram};
use crate::measure::{batch, cost};
use crate::open;
use crate::place::{Temporary, shuffled};

/// What is measured of a file that is written throughout.
pub(crate) const OPERATIONS: [&str; 4] =
    ["read 4 KiB", "overwrite 4 KiB", "append 4 KiB", "copy 4 KiB out of the volume"];
/// And of a sparse one.
pub(crate) const SPARSE_OPERATIONS: [&str; 4] =
    ["read 4 KiB", "overwrite 4 KiB", "write 4 KiB into a hole", "read 4 KiB of a hole"];

/// Blocks that a sparse file has.
pub(crate) const SPARSE: usize = 100_000;
/// Blocks visited for each operation in a round.
const CHUNK: usize = 16_384;
const BLOCK: u64 = 4096;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

pub(crate) struct Blocks {
    place: Temporary,
    cache_bytes: Option<u64>,
    zone: Zone,
    volume: Volume,
    file: Handle,
    /// Blocks that are written, and for a sparse file others that are not; in random order.
    written: Vec<u32>,
    holes: Vec<u32>,
    rounds: usize,
}

impl Blocks {
    /// Bytes of memory for a volume with `size` bytes of data.
    pub(crate) fn needs(size: u64) -> u64 {
        (size + size / 64 + (384 << 20)).next_multiple_of(nvm::SEGMENT)
    }

    /// The same for a sparse file: each block may take a direct node of its own.
    pub(crate) fn needs_sparse() -> u64 {
        Blocks::needs((SPARSE as u64 + 10 * CHUNK as u64) * 2 * BLOCK)
    }

    fn new(plan: &Plan, bytes: u64) -> Blocks {
        let (place, zone, volume) = open(plan, bytes);
        let file = volume.create(&Caller::root(), ROOT_INO, b"file", 0o644, RW).expect("create").handle;
        let cache_bytes = plan.cache_bytes;
        Blocks { place, cache_bytes, zone, volume, file, written: Vec::new(), holes: Vec::new(), rounds: 0 }
    }

    /// A file of `size` bytes, written from its beginning to its end.
    pub(crate) fn dense(plan: &Plan, size: u64) -> Blocks {
        let mut blocks = Blocks::new(plan, Blocks::needs(size));
        let piece = vec![0x5A; 1 << 20];
        for at in (0..size).step_by(piece.len()) {
            blocks.write(at, &piece);
        }
        blocks.written = shuffled((size / BLOCK) as usize, 4711);
        blocks.volume.checkpoint().expect("a checkpoint");
        blocks
    }

    /// A file of `span` bytes, of which blocks in random places are written.
    pub(crate) fn sparse(plan: &Plan, span: u64) -> Blocks {
        let mut blocks = Blocks::new(plan, Blocks::needs_sparse());
        let all = span / BLOCK;
        // Like a shuffle of all of them, of which nobody has the memory: an odd factor permutes a power of two.
        let scattered = |n: u64| (n.wrapping_mul(0x9E37_79B1) & (all.next_power_of_two() - 1)) as u32;
        let places = (0..).map(scattered).filter(|block| u64::from(*block) < all);
        let places: Vec<u32> = places.take(all.min((SPARSE + 10 * CHUNK) as u64) as usize).collect();
        let mut order = shuffled(places.len(), 4711).into_iter().map(|n| places[n as usize]);
        blocks.written = order.by_ref().take(SPARSE).collect();
        blocks.holes = order.collect();
        let block = vec![0x5A; BLOCK as usize];
        for n in 0..SPARSE {
            blocks.write(u64::from(blocks.written[n]) * BLOCK, &block);
        }
        blocks.volume.checkpoint().expect("a checkpoint");
        blocks
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let written = self.volume.write(&Caller::root(), self.file, at, bytes).expect("write");
        assert_eq!(written, bytes.len(), "the volume is full");
    }
}

/// `CHUNK` of `blocks`, others in each round, and where each begins.
fn visit(blocks: &[u32], round: usize) -> Vec<u64> {
    let from = round * CHUNK % (blocks.len() - CHUNK + 1);
    blocks[from..][..CHUNK].iter().map(|block| u64::from(*block) * BLOCK).collect()
}

impl Stage for Blocks {
    /// What was written has been looked at, and nothing is mounted anew.
    fn warm(&mut self) {}

    fn reopened(&mut self) -> Vec<f64> {
        Vec::new()
    }

    fn round(&mut self) -> Vec<f64> {
        let (volume, file, root) = (&self.volume, self.file, Caller::root());
        let visited = visit(&self.written, self.rounds);
        let (block, mut into) = (vec![0xA5; BLOCK as usize], vec![0; BLOCK as usize]);
        let mut read = |visited: &[u64]| {
            batch(volume, CHUNK, |n| {
                volume.read(file, visited[n], &mut into).expect("read");
                black_box(&mut into);
            })
            .cpu()
        };
        let reads = read(&visited);
        let write = |visited: &[u64]| batch(volume, CHUNK, |n| self.write(visited[n], &block)).cpu();
        if self.holes.is_empty() {
            let writes = write(&visited);
            let new = volume.create(&root, ROOT_INO, b"new", 0o644, RW | OpenFlags::APPEND).expect("create");
            let appends = batch(volume, CHUNK, |_| {
                volume.write(&root, new.handle, 0, &block).expect("write");
            });
            volume.release(new.handle).expect("close");
            volume.unlink(&root, ROOT_INO, b"new").expect("unlink");
            volume.checkpoint().expect("a checkpoint");
            let copies = cost(CHUNK, || {
                for at in &visited {
                    into.copy_from_slice(volume.region().bytes(*at, BLOCK as usize));
                    black_box(&mut into);
                }
            });
            self.rounds += 1;
            return vec![reads, writes, appends.cpu(), copies.cpu];
        }
        let holes = visit(&self.holes, self.rounds);
        let of_holes = read(&holes);
        let writes = write(&visited);
        let into_holes = write(&holes);
        for at in &holes {
            let mode = vfs::FallocateMode::PUNCH_HOLE | vfs::FallocateMode::KEEP_SIZE;
            volume.fallocate(&root, file, mode, *at, BLOCK).expect("punching a hole");
        }
        volume.checkpoint().expect("a checkpoint");
        self.rounds += 1;
        vec![reads, writes, into_holes, of_holes]
    }

    fn dram(self) -> Dram {
        let Blocks { place, cache_bytes, zone, volume, file, .. } = self;
        volume.release(file).expect("close");
        volume.close().expect("closing");
        drop((volume, zone));
        dram::of(&place.path, cache_bytes)
    }
}
