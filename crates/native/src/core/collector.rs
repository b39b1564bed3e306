//! What garbage collection remembers; [`crate::collect`] does it.

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Garbage collection: one at a time.
#[derive(Default)]
pub(crate) struct Collector {
    pub(crate) memory: Mutex<Memory>,
    /// Segments emptied since the mount.
    pub(crate) emptied: AtomicU64,
}

/// What it remembers from one time to the next.
#[derive(Default)]
pub(crate) struct Memory {
    /// Segments that were victims and brought nothing, while others have not had their turn.
    pub(crate) spared: HashSet<u32>,
    /// Since when it has been resting, and how long it is to rest.
    pub(crate) rest: Option<(Instant, Duration)>,
}
