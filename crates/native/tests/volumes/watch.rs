//! Ends the process when work stands still, and says which.

use std::io::Write;
use std::time::Duration;

/// Between two looks at the work.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);
/// Looks without progress after which the work counts as stuck: five minutes, hundreds of times what any of it takes.
/// Looks are counted and not the clock's seconds, so that a machine that stands still is not taken for work that does.
const LOOKS: u32 = 6000;

/// One piece of work under observation.
#[derive(Clone, Default)]
pub(crate) struct Watch {
    progress: Option<u64>,
    looks: u32,
}

impl Watch {
    /// Notes that the work has come as far as `progress`, any number that changes while it goes on. To be called once
    /// in a [`PAUSE`].
    pub(crate) fn look(&mut self, progress: u64, work: impl FnOnce() -> String) {
        if self.progress != Some(progress) {
            *self = Watch { progress: Some(progress), looks: 0 };
        }
        self.looks += 1;
        if self.looks > LOOKS {
            // Not by `eprintln!`: what a test says is kept until it ends, and this one does not.
            let _ = writeln!(std::io::stderr(), "{} stands still", work());
            std::process::abort();
        }
    }
}
