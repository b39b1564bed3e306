//! Damage that operations met.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vfs::{Error, Result};

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
    groups: Groups,
}

/// Groups whose descriptors are not what they were written as: each is out, and it alone.
#[derive(Default)]
struct Groups {
    /// There is one: as long as there is none, nobody looks for it.
    any: AtomicBool,
    known: Mutex<BTreeMap<u32, Damaged>>,
}

struct Damaged {
    error: Error,
    is_told: bool,
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

    /// The descriptor of group `number` is damaged, as the block that holds it shows.
    pub(crate) fn damaged_group(&self, number: u32, error: Error) {
        self.groups.known.lock().entry(number).or_insert(Damaged { error, is_told: false });
        self.groups.any.store(true, Ordering::Release);
    }

    /// An error if the descriptor of group `number` is damaged, as far as is known.
    pub(crate) fn check_group(&self, number: u32) -> Result<()> {
        if !self.groups.any.load(Ordering::Acquire) {
            return Ok(());
        }
        self.groups.known.lock().get(&number).map_or(Ok(()), |damaged| Err(damaged.error.clone()))
    }

    /// Passes a group over that cannot be used because its descriptor is damaged (`what`): counted, once.
    pub(crate) fn pass_over(&self, number: u32, what: &str) {
        let known = &mut *self.groups.known.lock();
        let error = || Error::Corrupt(what.to_string());
        let damaged = known.entry(number).or_insert_with(|| Damaged { error: error(), is_told: false });
        self.groups.any.store(true, Ordering::Release);
        if !std::mem::replace(&mut damaged.is_told, true) {
            self.note(what);
        }
    }
}
