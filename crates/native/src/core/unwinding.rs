//! Changes that panic: whoever serves a volume answers with an error and goes on.
//!
//! Nobody knows what of a change was done when it unwinds, so nothing more is changed then, and no checkpoint has it: the newest one,
//! and the log behind it, are what the next mount finds, as behind a crash.

use vfs::Error;

use super::Core;

/// Watches over a change: if that unwinds, nothing more is changed.
pub(crate) struct Unwinding<'a>(&'a Core);

impl Core {
    /// Watches over a change for as long as the result lives. Who drops it before the locks of what is changed lets nobody who
    /// takes these change what was left half done.
    #[inline]
    pub(crate) fn watch_over(&self) -> Unwinding<'_> {
        Unwinding(self)
    }
}

impl Drop for Unwinding<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let what = "the volume panicked in the middle of a change; mount it again, which finds the last whole state";
            self.0.fail(&Error::Io(what.to_owned()));
        }
    }
}
