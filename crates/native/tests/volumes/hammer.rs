//! Threads that work on one volume at once, with checkpoints all the while.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use native::{Durability, MountOptions, Volume};
use nvm::{Region, Zone};

use super::made;
use super::watch::{PAUSE, Watch};

/// How long the threads of one test hammer.
const HAMMER: Duration = Duration::from_millis(1500);

/// How far a thread is: what it did, and whether it is done.
#[derive(Default)]
struct Progress {
    count: AtomicU64,
    done: AtomicBool,
}

/// Says that a thread is done when it returns or panics.
struct Done<'a>(&'a Progress);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.done.store(true, Ordering::Relaxed);
    }
}

/// Ends the process if a thread that is not done does nothing any more.
fn watch(threads: &[Progress]) {
    let mut watches = vec![Watch::default(); threads.len()];
    let running = |thread: &Progress| !thread.done.load(Ordering::Relaxed);
    while threads.iter().any(running) {
        for (index, (thread, watch)) in threads.iter().zip(&mut watches).enumerate() {
            if running(thread) {
                let count = thread.count.load(Ordering::Relaxed);
                watch.look(count, || format!("deadlock: thread {index}, after {count} operations,"));
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Runs `work(thread, again)` in `threads` threads, which stop when `again` says no. Panics are passed on, deadlocks end
/// the process.
pub(crate) fn hammer(threads: usize, work: impl Fn(usize, &mut dyn FnMut() -> bool) + Sync) {
    let progress: Vec<Progress> = (0..threads).map(|_| Progress::default()).collect();
    let end = Instant::now() + HAMMER;
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for (index, thread) in progress.iter().enumerate() {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                let _done = Done(thread);
                barrier.wait();
                work(index, &mut || {
                    thread.count.fetch_add(1, Ordering::Relaxed);
                    Instant::now() < end
                });
            });
        }
        scope.spawn(|| watch(&progress));
    });
}

/// A volume with a checkpoint every 10 ms.
pub(crate) fn restless(bytes: u64, durability: Durability) -> (Zone, Region, Volume) {
    let (zone, region) = made(bytes);
    let options =
        MountOptions { durability, commit_interval: Duration::from_millis(10), ..MountOptions::default() };
    let volume = Volume::open(region.clone(), &options).unwrap();
    (zone, region, volume)
}
