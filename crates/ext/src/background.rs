//! Who does what nobody waits for.
//!
//! Two threads: one commits every so often, and never waits for the disk; the other one has all that goes there, so that whoever uses files
//! does not: it empties the half of the log that is full while the other one fills, and writes out pages before there is no more room for
//! them. Without them (a volume that is checked, or explored) everything is done by who needs it, when he does.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vfs::Result;

use crate::volume::Volume;

/// Threads that tend a volume, as long as this lives.
pub struct Background {
    volume: Arc<Volume>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Begins to tend `volume`: what has run is durable after `interval`, and on its way to the disk. `tell` is told what whoever looks after
    /// the disk should know.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn begin(
        volume: &Arc<Volume>,
        interval: Duration,
        tell: impl Fn(&str) + Send + 'static,
    ) -> std::io::Result<Background> {
        {
            // Before there are threads, which may end.
            let asked = &mut *volume.work.asked.lock();
            (asked.ended, asked.is_tended) = (false, true);
        }
        let mut background = Background { volume: volume.clone(), threads: Vec::new() };
        background.start("ext commits", move |volume| volume.commit_until_ended(interval))?;
        background.start("ext disk", move |volume| volume.empty_until_ended(interval, &tell))?;
        Ok(background)
    }

    fn start(&mut self, name: &str, run: impl FnOnce(&Volume) + Send + 'static) -> std::io::Result<()> {
        let volume = self.volume.clone();
        let run = move || {
            let _tending = Tending(&volume);
            run(&volume);
        };
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(run)?);
        Ok(())
    }
}

/// A thread that tends a volume. However it ends, nobody waits for it; if by a panic, **the volume has failed**, since nobody knows what it had in hand, and nothing would
/// be durable after the interval any more.
struct Tending<'a>(&'a Volume);

impl Drop for Tending<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failure().fail("what tends it");
        }
        self.0.work.leave();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.volume.work.end();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
        self.volume.work.leave();
    }
}

impl Volume {
    fn commit_until_ended(&self, interval: Duration) {
        let work = &self.work;
        loop {
            {
                let asked = &mut work.asked.lock();
                let until = Instant::now() + interval;
                while !asked.ended && !work.changed.wait_until(asked, until).timed_out() {}
                if asked.ended {
                    return;
                }
            }
            // What failed is there still, and is tried again; who syncs is told.
            drop(self.commit_all());
        }
    }

    fn empty_until_ended(&self, interval: Duration, tell: &dyn Fn(&str)) {
        let work = &self.work;
        let mut refused = 0;
        let mut due = Instant::now() + interval;
        loop {
            let (empty_log, write_pages) = {
                let asked = &mut work.asked.lock();
                while !(asked.ended || asked.empty_log || asked.write_pages) && Instant::now() < due {
                    work.changed.wait_until(asked, due);
                }
                if asked.ended {
                    return;
                }
                (std::mem::take(&mut asked.empty_log), std::mem::take(&mut asked.write_pages))
            };
            // As above.
            if let Some(home) = &self.home {
                if empty_log && (home.has_full_half() || self.files.synced() >= self.synced_max / 2) {
                    drop(self.empty_half());
                }
                if write_pages {
                    drop(self.write_out_all());
                }
                if Instant::now() >= due {
                    drop(self.tend());
                    due = Instant::now() + interval;
                }
            }
            self.tell_of_refused(&mut refused, tell);
            work.asked.lock().rounds += 1;
            work.done.notify_all();
        }
    }

    /// Everything that has waited goes where it belongs. Of what the log has, and DRAM something newer, the newer goes there, too.
    fn tend(&self) -> Result<()> {
        self.note_damage();
        // As above.
        drop(self.finish_rest());
        drop(self.offer_refused());
        // A file that cannot be written does not keep the others' bytes in the log.
        let synced = self.syncfs_all();
        if self.is_checkpoint_due() { synced.and(self.empty_half()) } else { synced }
    }
}
