//! Where the tests' zones lie.

use std::path::Path;

use tempfile::TempDir;

/// More than the tests of one program take at any time, bytes. A container's /dev/shm often has 64 MiB.
const ROOM: u64 = 512 << 20;

/// A directory in memory, where there is one with room.
pub(crate) fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(memory).is_ok_and(|fs| fs.f_bavail * fs.f_frsize >= ROOM);
    let in_memory = if room { tempfile::tempdir_in(memory).ok() } else { None };
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}
