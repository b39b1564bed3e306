//! Directories that no listing shows, found by their file handles.
//!
//! Of a directory that the kernel has nothing but a handle of it wants the place in the tree (`reconnect_path` in its
//! `fs/exportfs/expfs.c`): it asks for the parent (`..`), lists that until it comes to the directory's number, and looks up the name
//! beside it. What the volume leaves out of its listing would not be found. So whoever has asked for `..` of such a directory
//! is shown it in his next listing of the parent, which follows at once. For no other reason does anybody ask for `..`: the kernel knows
//! where its paths lead.
//!
//! A listing that the kernel has kept must not answer then, and is taken back. The one that shows more is not answered from either: it
//! ends with a cookie that no other listing comes by, and the kernel keeps only what fits together. So from then on it asks for
//! each listing of that parent.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vfs::Ino;

/// Whoever was killed between asking and listing is forgotten when so many others have asked.
const ASKERS_MAX: usize = 64;

/// Who is about to list a directory, and must be shown what it leaves out: thread and directory.
#[derive(Default)]
pub(crate) struct Reconnecting {
    askers: Mutex<VecDeque<(u32, Ino)>>,
    /// That there are some.
    any: AtomicBool,
}

impl Reconnecting {
    fn askers(&self) -> MutexGuard<'_, VecDeque<(u32, Ino)>> {
        self.askers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `thread` has asked which directory is above one that `dir` does not list.
    pub(crate) fn expect(&self, thread: u32, dir: Ino) {
        let mut askers = self.askers();
        if askers.len() == ASKERS_MAX {
            askers.pop_front();
        }
        askers.push_back((thread, dir));
        self.any.store(true, Ordering::Release);
    }

    /// Whether `thread`, which lists `dir`, is to be shown what that leaves out: once.
    pub(crate) fn arrives(&self, thread: u32, dir: Ino) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let mut askers = self.askers();
        let place = askers.iter().position(|asker| *asker == (thread, dir));
        if let Some(place) = place {
            askers.remove(place);
        }
        self.any.store(!askers.is_empty(), Ordering::Release);
        place.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asked_is_shown_it_once() {
        let reconnecting = Reconnecting::default();
        assert!(!reconnecting.arrives(7, 1));
        reconnecting.expect(7, 1);
        assert!(!reconnecting.arrives(8, 1), "somebody else");
        assert!(!reconnecting.arrives(7, 2), "another directory");
        assert!(reconnecting.arrives(7, 1));
        assert!(!reconnecting.arrives(7, 1));
    }

    #[test]
    fn who_never_comes_is_forgotten() {
        let reconnecting = Reconnecting::default();
        (0..=ASKERS_MAX as u32).for_each(|thread| reconnecting.expect(thread, 1));
        assert!(!reconnecting.arrives(0, 1));
        assert!((1..=ASKERS_MAX as u32).all(|thread| reconnecting.arrives(thread, 1)));
    }
}
