//! Damage that operations met.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// What was met since the volume was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// How often, by one operation after the other.
    pub count: u64,
    /// What was said then, the first time; empty if it has not been.
    pub first: String,
}

/// The same, and whether the superblock is still to say so.
#[derive(Default)]
pub(crate) struct Met {
    pub(crate) damage: Mutex<Damage>,
    pub(crate) is_new: AtomicBool,
}

impl Met {
    /// Counts damage.
    pub(crate) fn note(&self, what: &str) {
        let damage = &mut *self.damage.lock();
        damage.count += 1;
        if damage.count == 1 {
            tracing::error!("{what}");
            damage.first = what.to_string();
            self.is_new.store(true, Ordering::Relaxed);
        }
    }
}
