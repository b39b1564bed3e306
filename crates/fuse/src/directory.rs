//! Listing directories.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use vfs::{Ino, Result};

use crate::convert::{file_attr, file_type, generation};
use crate::server::Server;

/// Entries taken from the volume at a time when each is to be followed by its attributes.
const BATCH: usize = 64;

struct Entry {
    ino: Ino,
    next: u64,
    name: Vec<u8>,
}

impl Server {
    /// Fills `reply` with the names of `dir` from cookie `from` on.
    pub(crate) fn list(&self, dir: Ino, from: u64, reply: &mut ReplyDirectory) -> Result<()> {
        self.volume.readdir(dir, from, &mut |entry| {
            let name = OsStr::from_bytes(entry.name);
            !reply.add(INodeNo(entry.ino), entry.next, file_type(entry.kind), name)
        })
    }

    /// Fills `reply` with the names of `dir` from cookie `from` on and the attributes of each.
    pub(crate) fn list_plus(&self, dir: Ino, mut from: u64, reply: &mut ReplyDirectoryPlus) -> Result<()> {
        loop {
            // Attributes are asked for after the listing: the volume may hold the directory's lock during it.
            let mut batch = Vec::with_capacity(BATCH);
            self.volume.readdir(dir, from, &mut |entry| {
                if batch.len() == BATCH {
                    return false;
                }
                batch.push(Entry { ino: entry.ino, next: entry.next, name: entry.name.to_vec() });
                true
            })?;
            for entry in &batch {
                // An entry whose inode has gone meanwhile is left out.
                let known = entry.name != b"." && entry.name != b"..";
                let attr = self.volume.getattr(entry.ino);
                if let Ok(attr) = attr.and_then(|attr| if known { self.remembered(attr) } else { Ok(attr) }) {
                    let name = OsStr::from_bytes(&entry.name);
                    if reply.add(
                        INodeNo(attr.ino),
                        entry.next,
                        name,
                        &self.entry_ttl(dir, attr.ino),
                        &file_attr(&attr),
                        generation(&attr),
                    ) {
                        if known {
                            self.inodes.forget(attr.ino, 1); // It did not fit.
                        }
                        return Ok(());
                    }
                }
                from = entry.next;
            }
            if batch.len() < BATCH {
                return Ok(());
            }
        }
    }
}
