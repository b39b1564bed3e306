//! Changes that panic: whoever serves a volume answers with an error and goes on.
//!
//! Nobody knows what of a change was done when it unwinds, so nothing more is changed then, and no checkpoint has it: the newest one,
//! and the log behind it, are what the next mount finds, as behind a crash.

use std::thread;

use vfs::Error;

use super::Core;

/// Watches over a change: if that unwinds, nothing more is changed.
pub(crate) struct Unwinding<'a> {
    core: &'a Core,
    /// The change cleans up behind a panic that is not its own.
    was_panicking: bool,
}

impl Core {
    /// Watches over a change for as long as the result lives. Who drops it before the locks of what is changed lets nobody who
    /// takes these change what was left half done.
    #[inline]
    pub(crate) fn watch_over(&self) -> Unwinding<'_> {
        Unwinding { core: self, was_panicking: thread::panicking() }
    }
}

impl Drop for Unwinding<'_> {
    #[inline]
    fn drop(&mut self) {
        if thread::panicking() && !self.was_panicking {
            let what = "the volume panicked in the middle of a change; mount it again, which finds the last whole state";
            self.core.fail(&Error::Io(what.to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use vfs::{Caller, OpenFlags, ROOT_INO};

    use crate::{MountOptions, format};

    /// Whoever uses a volume may close files while he unwinds: that is no half-done change.
    #[test]
    fn the_panic_of_whoever_uses_it_is_not_the_volumes() {
        struct Closes<'a>(&'a crate::core::Core);
        impl Drop for Closes<'_> {
            fn drop(&mut self) {
                self.0.unlink(&Caller::root(), ROOT_INO, b"file").unwrap();
            }
        }
        let core = format::new_in_memory(18 << 20, &MountOptions::default());
        let file = core.create(&Caller::root(), ROOT_INO, b"file", 0o644, OpenFlags::READ).unwrap();
        core.release(file.handle).unwrap();
        let user = || {
            let _closes = Closes(&core);
            resume_unwind(Box::new(()));
        };
        assert!(catch_unwind(AssertUnwindSafe(user)).is_err());
        assert_eq!(core.failure(), None);
        core.finish().unwrap();
    }

    #[test]
    fn a_change_that_panics_is_the_last() {
        let core = format::new_in_memory(18 << 20, &MountOptions::default());
        let change = || {
            let _operation = core.begin(1, 0, crate::allocator::Urgency::Ordinary);
            resume_unwind(Box::new(()));
        };
        assert!(catch_unwind(AssertUnwindSafe(change)).is_err());
        assert!(core.unlink(&Caller::root(), ROOT_INO, b"file").is_err());
        assert!(core.failure().is_some() && core.finish().is_err());
    }
}
