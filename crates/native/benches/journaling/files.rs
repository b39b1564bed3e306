//! What a workload needs of files, whether the volume is called or a directory is used by system calls.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use native::Volume;
use vfs::{Caller, FileSystem, Handle, OpenFlags, ROOT_INO};

/// Files in one directory. A failure ends the benchmark.
pub(crate) trait Files {
    type File;
    fn create(&self, name: &str) -> Self::File;
    fn open(&self, name: &str) -> Self::File;
    fn write(&self, file: &Self::File, offset: u64, bytes: &[u8]);
    fn read(&self, file: &Self::File, offset: u64, into: &mut [u8]);
    fn close(&self, file: Self::File);
    fn remove(&self, name: &str);
    /// After the last write of a batch: all that was written becomes durable.
    fn finish(&self);
}

/// The root directory of a volume that is called as a library.
pub(crate) struct Called<'a> {
    pub(crate) volume: &'a Volume,
    root: Caller,
}

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

impl<'a> Called<'a> {
    pub(crate) fn new(volume: &'a Volume) -> Called<'a> {
        Called { volume, root: Caller::root() }
    }
}

impl Files for Called<'_> {
    type File = Handle;

    fn create(&self, name: &str) -> Handle {
        self.volume.create(&self.root, ROOT_INO, name.as_bytes(), 0o644, RW).expect("create").handle
    }

    fn open(&self, name: &str) -> Handle {
        let ino = self.volume.lookup(&self.root, ROOT_INO, name.as_bytes()).expect("lookup").ino;
        self.volume.open(&self.root, ino, RW).expect("open")
    }

    fn write(&self, file: &Handle, offset: u64, bytes: &[u8]) {
        let written = self.volume.write(&self.root, *file, offset, bytes).expect("write");
        assert_eq!(written, bytes.len(), "the volume is full");
    }

    fn read(&self, file: &Handle, offset: u64, into: &mut [u8]) {
        self.volume.read(*file, offset, into).expect("read");
    }

    fn close(&self, file: Handle) {
        self.volume.release(file).expect("close");
    }

    fn remove(&self, name: &str) {
        self.volume.unlink(&self.root, ROOT_INO, name.as_bytes()).expect("unlink");
    }

    fn finish(&self) {
        self.volume.checkpoint().expect("a checkpoint");
    }
}

/// When a directory's files are synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    /// After each write, by `fdatasync`.
    Each,
    /// By `fsync` at the end of a batch.
    End,
    /// Never: what is written is durable when the call returns.
    Never,
}

impl FromStr for Sync {
    type Err = String;

    fn from_str(text: &str) -> Result<Sync, String> {
        match text {
            "each" => Ok(Sync::Each),
            "end" => Ok(Sync::End),
            "none" => Ok(Sync::Never),
            other => Err(format!("--sync is each, end or none, not {other:?}")),
        }
    }
}

/// A directory of a mounted file system.
pub(crate) struct Directory {
    path: PathBuf,
    sync: Sync,
}

impl Directory {
    pub(crate) fn new(path: &Path, sync: Sync) -> Directory {
        Directory { path: path.to_path_buf(), sync }
    }
}

impl Files for Directory {
    type File = File;

    fn create(&self, name: &str) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).open(self.path.join(name)).expect("create")
    }

    fn open(&self, name: &str) -> File {
        OpenOptions::new().read(true).write(true).open(self.path.join(name)).expect("open")
    }

    fn write(&self, file: &File, offset: u64, bytes: &[u8]) {
        file.write_all_at(bytes, offset).expect("pwrite");
        if self.sync == Sync::Each {
            file.sync_data().expect("fdatasync");
        }
    }

    fn read(&self, file: &File, offset: u64, into: &mut [u8]) {
        file.read_at(into, offset).expect("pread");
    }

    fn close(&self, file: File) {
        drop(file);
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.path.join(name)).expect("unlink");
    }

    fn finish(&self) {
        if self.sync != Sync::Never {
            // Of a journaling file system, and of a volume, it makes durable all that came before.
            let name = self.path.join(".synced");
            let file = File::create(&name).expect("create");
            file.sync_all().expect("fsync");
            std::fs::remove_file(name).expect("unlink");
        }
    }
}
