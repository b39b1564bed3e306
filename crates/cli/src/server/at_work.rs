//! Work on a volume that is not served, without the server's lock: its disk may be slow, or gone, and the other volumes have theirs.
//! One at a time is at work on a volume, and the zone stays open meanwhile.

use std::sync::Arc;

use nvm::Zone;
use parking_lot::MutexGuard;

use super::{Server, State};
use crate::failure::Failure;
use crate::served::Served;

/// What is being done with a volume that is not served.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// It is changed as a whole. Who wants it is told so.
    Change,
    /// It is opened, to be mounted or looked at. Who wants it waits.
    Opening,
}

/// A volume that somebody is at work on, until this is dropped; not while the server is locked.
pub(super) struct AtWork<'a> {
    server: &'a Server,
    volume: String,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let mut state = self.server.lock();
        state.at_work.remove(&self.volume);
        self.server.end_if_idle(&mut state);
    }
}

impl Server {
    /// What there is when nobody opens `volume`.
    pub(super) fn when_not_opening(&self, volume: &str) -> MutexGuard<'_, State> {
        let opening = |state: &mut State| state.at_work.get(volume) == Some(&Work::Opening);
        let mut state = self.lock();
        self.changed.wait_while(&mut state, opening);
        state
    }

    /// Begins to work on a volume that is not served.
    pub(super) fn begin(&self, state: &mut State, volume: &str, work: Work) -> Result<AtWork<'_>, Failure> {
        if state.at_work.contains_key(volume) {
            return Err(Failure::new(format!("volume '{volume}' is being changed by another command"))
                .leaving("nothing was changed")
                .remedy("try again when that has ended"));
        }
        state.at_work.insert(volume.to_string(), work);
        Ok(AtWork { server: self, volume: volume.to_string() })
    }

    /// Keeps a volume that is not mounted from being mounted, and from being changed by anybody else, until what this returns is
    /// dropped.
    pub(super) fn reserve(&self, volume: &str) -> Result<AtWork<'_>, Failure> {
        let mut state = self.when_not_opening(volume);
        if let Some(served) = state.served.get(volume) {
            return Err(served.is_mounted().leaving("nothing was changed"));
        }
        self.begin(&mut state, volume, Work::Change)
    }

    /// Works on a volume that is reserved meanwhile. The zone is let go of first: the server may end when the volume is free.
    pub(super) fn with_reserved<T>(
        &self,
        volume: &str,
        work: impl FnOnce(&Zone) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let _at_work = self.reserve(volume)?;
        work(&self.zone()?)
    }

    /// A volume that is served; or the work on one that is not, which nobody else mounts or changes meanwhile.
    pub(super) fn served_or_at_work(
        &self,
        volume: &str,
        work: Work,
    ) -> Result<(Option<Arc<Served>>, Option<AtWork<'_>>), Failure> {
        let mut state = self.when_not_opening(volume);
        match state.served.get(volume).cloned() {
            Some(served) => Ok((Some(served), None)),
            None => Ok((None, Some(self.begin(&mut state, volume, work)?))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nvm::OpenOptions;
    use parking_lot::{Condvar, Mutex};

    use super::super::Opened;
    use super::*;

    /// One that has a zone open, and serves nothing of it.
    fn server(dir: &tempfile::TempDir) -> Server {
        let path = dir.path().join("zone");
        let zone = Zone::create(&path, 8 << 20, false, &OpenOptions::default()).unwrap();
        let state = State { opened: Some(Opened::Zone(zone)), ..State::default() };
        Server {
            path,
            file: None,
            read_only: false,
            state: Mutex::new(state),
            changed: Condvar::new(),
            answering: Arc::default(),
        }
    }

    #[test]
    fn one_changes_a_volume_and_the_last_lets_the_zone_go() {
        let dir = tempfile::tempdir().unwrap();
        let server = server(&dir);
        let (first, second) = (server.reserve("first").unwrap(), server.reserve("second").unwrap());
        let refused = server.reserve("first").err().unwrap();
        assert_eq!(refused.what, "volume 'first' is being changed by another command");
        drop(first);
        server.with_reserved("first", |_| Ok(())).unwrap();
        assert!(server.zone().is_ok());
        drop(second);
        assert!(server.zone().is_err_and(|failure| failure.again));
    }

    #[test]
    fn a_volume_that_is_opened_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let server = server(&dir);
        let opening = server.begin(&mut server.lock(), "volume", Work::Opening).unwrap();
        std::thread::scope(|scope| {
            let opening = opening;
            let waiting = scope.spawn(|| server.reserve("volume").map(drop));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            drop(opening);
            waiting.join().unwrap().unwrap();
        });
    }
}
