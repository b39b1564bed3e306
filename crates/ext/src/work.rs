//! What is asked of who does what nobody waits for.

use parking_lot::{Condvar, Mutex};

/// What is asked of the thread that has the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// To make durable elsewhere what the older half of the log has.
    EmptyLog,
    /// To write out pages.
    WritePages,
}

/// What has been asked.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) asked: Mutex<Asked>,
    pub(crate) changed: Condvar,
    /// A round is over.
    pub(crate) done: Condvar,
}

#[derive(Default)]
pub(crate) struct Asked {
    /// There is somebody to do it.
    pub(crate) is_tended: bool,
    pub(crate) empty_log: bool,
    pub(crate) write_pages: bool,
    pub(crate) ended: bool,
    /// Rounds that are over.
    pub(crate) rounds: u64,
}

impl Work {
    /// Asks for something; that it is done some time is all that is promised, and only if [there is somebody](crate::Background).
    pub(crate) fn ask(&self, task: Task) {
        let asked = &mut *self.asked.lock();
        let is_asked = match task {
            Task::EmptyLog => &mut asked.empty_log,
            Task::WritePages => &mut asked.write_pages,
        };
        if asked.is_tended && !std::mem::replace(is_asked, true) {
            self.changed.notify_all();
        }
    }

    /// Waits until a round is over that does something about pages; false if nobody does it. It need not have succeeded.
    pub(crate) fn wait_for_pages(&self) -> bool {
        let asked = &mut self.asked.lock();
        let round = asked.rounds + 1;
        while asked.rounds < round && asked.is_tended {
            if !std::mem::replace(&mut asked.write_pages, true) {
                self.changed.notify_all();
            }
            self.done.wait(asked);
        }
        asked.is_tended
    }

    pub(crate) fn end(&self) {
        self.asked.lock().ended = true;
        self.changed.notify_all();
    }

    /// Nobody does anything any longer.
    pub(crate) fn leave(&self) {
        let asked = &mut *self.asked.lock();
        (asked.is_tended, asked.empty_log, asked.write_pages) = (false, false, false);
        self.done.notify_all();
    }
}
