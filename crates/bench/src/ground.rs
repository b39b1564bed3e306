//! What workloads stand on: directories and files, reached as `openat(2)` does, by system calls or in this process.

use std::ffi::{CStr, CString};

use rustix::io::Errno;

/// The result of one operation.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// How a file that exists is opened: always for reading and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// Where a write goes is said with it.
    AsIs,
    /// Every write goes to the end (`O_APPEND`).
    Append,
}

/// A directory that workloads work in.
///
/// Names are one component. A directory stays open as long as its `Dir` lives; what has been opened as a `File` is given
/// back to [`Ground::close`].
pub trait Ground: Send + Sync {
    /// An open directory.
    type Dir: Send + Sync;
    /// An open file.
    type File: Send + Sync;

    /// The directory itself.
    fn top(&self) -> &Self::Dir;
    /// Opens a directory.
    fn open_dir(&self, dir: &Self::Dir, name: &CStr) -> Result<Self::Dir>;
    /// Makes a directory.
    fn make_dir(&self, dir: &Self::Dir, name: &CStr) -> Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Self::Dir, name: &CStr) -> Result<()>;
    /// Makes a file that is not there, and opens it.
    fn create(&self, dir: &Self::Dir, name: &CStr, how: Open) -> Result<Self::File>;
    /// Opens a file.
    fn open(&self, dir: &Self::Dir, name: &CStr, how: Open) -> Result<Self::File>;
    /// Closes a file.
    fn close(&self, file: Self::File) -> Result<()>;
    /// Asks for a file's attributes; gives its length.
    fn stat(&self, dir: &Self::Dir, name: &CStr) -> Result<u64>;
    /// Gives a file another name in its directory.
    fn rename(&self, dir: &Self::Dir, from: &CStr, to: &CStr) -> Result<()>;
    /// Removes a file's name.
    fn unlink(&self, dir: &Self::Dir, name: &CStr) -> Result<()>;
    /// Opens a directory, reads all its entries but `.` and `..`, and closes it. The sink gets names, and whether they are directories'.
    fn list(&self, dir: &Self::Dir, sink: &mut dyn FnMut(&[u8], bool)) -> Result<()>;
    /// Reads at an offset; fewer bytes only at the end.
    fn read(&self, file: &Self::File, offset: u64, into: &mut [u8]) -> Result<usize>;
    /// Writes all at an offset, or at the end of a file opened to append.
    fn write(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Sets a file's length.
    fn truncate(&self, file: &Self::File, length: u64) -> Result<()>;
    /// Makes a file durable: `fsync(2)`, or `fdatasync(2)`.
    fn sync(&self, file: &Self::File, data_only: bool) -> Result<()>;
    /// Makes everything durable: `syncfs(2)`.
    fn sync_all(&self) -> Result<()>;
}

/// Removes what is in a directory, however deep. Goes on past what cannot be removed, and tells the first reason.
pub(crate) fn empty<G: Ground>(ground: &G, dir: &G::Dir) -> Result<()> {
    let mut entries = Vec::new();
    ground
        .list(dir, &mut |name, is_dir| entries.extend(CString::new(name).ok().map(|name| (name, is_dir))))?;
    let mut result = Ok(());
    for (name, is_dir) in entries {
        let removed = if is_dir { remove_tree(ground, dir, &name) } else { ground.unlink(dir, &name) };
        result = result.and(removed);
    }
    result
}

/// Removes a directory and everything in it.
pub(crate) fn remove_tree<G: Ground>(ground: &G, dir: &G::Dir, name: &CStr) -> Result<()> {
    let inner = ground.open_dir(dir, name)?;
    let emptied = empty(ground, &inner);
    drop(inner);
    emptied.and(ground.remove_dir(dir, name))
}
