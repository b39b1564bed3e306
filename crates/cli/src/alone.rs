//! Having a lock alone, for who makes nobody wait behind him: a lock that waits for readers keeps new ones out.

use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockWriteGuard};

const PAUSE: Duration = Duration::from_millis(10);

/// The lock alone; nothing if others still have it after `patience`. Who wants to share it meanwhile does not wait.
pub(crate) fn within<T>(lock: &RwLock<T>, patience: Duration) -> Option<RwLockWriteGuard<'_, T>> {
    let end = Instant::now() + patience;
    loop {
        match lock.try_write() {
            None if Instant::now() < end => std::thread::sleep(PAUSE),
            had => return had,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rollback beside a long clone or comparison waited for it with the volume's lock wanted, and all other commands behind it.
    #[test]
    fn who_cannot_be_alone_is_refused_and_nobody_waits_behind_him() {
        const PATIENCE: Duration = Duration::from_millis(200);
        let lock = RwLock::new(());
        std::thread::scope(|scope| {
            let clone = lock.read();
            let begun = Instant::now();
            let rollback = scope.spawn(|| within(&lock, PATIENCE).is_none());
            while !rollback.is_finished() {
                let other = lock.try_read_for(PATIENCE / 4);
                assert!(other.is_some(), "another command waits");
                drop(other);
                std::thread::sleep(PAUSE / 10);
            }
            assert!(rollback.join().unwrap(), "it is refused");
            assert!(begun.elapsed() >= PATIENCE, "not before it has waited");
            drop(clone);
        });
        assert!(within(&lock, PATIENCE).is_some());
    }

    #[test]
    fn who_waits_is_alone_when_others_have_ended() {
        let lock = RwLock::new(());
        std::thread::scope(|scope| {
            let clone = lock.read();
            let rollback = scope.spawn(|| within(&lock, Duration::from_secs(60)).is_some());
            std::thread::sleep(3 * PAUSE);
            assert!(!rollback.is_finished());
            drop(clone);
            assert!(rollback.join().unwrap());
        });
    }
}
