//! Listing directories.

use vfs::{DirEntry, FileKind, Ino, Result};
use zerocopy::IntoBytes;

use crate::abi::{Dirent, EntryOut};
use crate::convert::entry_out;
use crate::message::Message;
use crate::server::Server;

/// Entries taken from the volume at a time when each is to be followed by its attributes.
const BATCH: usize = 64;

struct Entry {
    ino: Ino,
    kind: FileKind,
    next: u64,
    name: Vec<u8>,
}

impl Server {
    /// As the volume's `readdir`. If what that leaves out is looked for, it comes first.
    fn entries(
        &self,
        message: &Message<'_>,
        from: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = message.ino();
        if from == 0
            && self.reconnecting.arrives(message.header.pid, dir)
            && let Some(entry) = self.volume.unlisted(dir)
            && !sink(entry)
        {
            return Ok(());
        }
        self.volume.readdir(dir, from, sink)
    }

    /// The names of a directory from cookie `from` on, as many as `limit` bytes hold.
    pub(crate) fn list(&self, message: &Message<'_>, from: u64, limit: usize) -> Result<Vec<u8>> {
        let mut listing = Vec::with_capacity(limit);
        let listed = self.entries(message, from, &mut |entry| {
            let entry_len = padded(size_of::<Dirent>() + entry.name.len());
            let fits = listing.len() + entry_len <= limit;
            if fits {
                add(&mut listing, entry.ino, entry.kind, entry.next, entry.name);
            }
            fits
        });
        or_what_comes_before(listing, listed)
    }

    /// The names of a directory from cookie `from` on and the attributes of each, as many as `limit` bytes hold.
    pub(crate) fn list_plus(&self, message: &Message<'_>, mut from: u64, limit: usize) -> Result<Vec<u8>> {
        let dir = message.ino();
        let mut listing = Vec::with_capacity(limit);
        loop {
            // Attributes are asked for after the listing: the volume may hold the directory's lock during it.
            let mut batch = Vec::with_capacity(BATCH);
            let listed = self.entries(message, from, &mut |entry| {
                if batch.len() == BATCH {
                    return false;
                }
                let name = entry.name.to_vec();
                batch.push(Entry { ino: entry.ino, kind: entry.kind, next: entry.next, name });
                true
            });
            for entry in &batch {
                let entry_len = size_of::<EntryOut>() + size_of::<Dirent>() + entry.name.len();
                if listing.len() + padded(entry_len) > limit {
                    return Ok(listing);
                }
                // Of these two, and of an entry whose inode is damaged or has gone meanwhile, the kernel is told no more than the name:
                // who looks at it is told why.
                let is_dots = entry.name == b"." || entry.name == b"..";
                let out = match (!is_dots).then(|| self.getattr(entry.ino)) {
                    Some(Ok(attr)) => {
                        self.inodes.remember(attr.ino);
                        entry_out(&attr, self.belief(dir, attr.ino))
                    }
                    _ => EntryOut::default(),
                };
                listing.extend_from_slice(out.as_bytes());
                add(&mut listing, entry.ino, entry.kind, entry.next, &entry.name);
                from = entry.next;
            }
            if listed.is_err() || batch.len() < BATCH {
                return or_what_comes_before(listing, listed);
            }
        }
    }
}

/// What is listed before an error is told: the kernel asks for more, and is told of that then. It also holds inodes that are listed.
fn or_what_comes_before(listing: Vec<u8>, listed: Result<()>) -> Result<Vec<u8>> {
    if listing.is_empty() { listed.map(|()| listing) } else { Ok(listing) }
}

fn add(listing: &mut Vec<u8>, ino: Ino, kind: FileKind, next: u64, name: &[u8]) {
    let dirent = Dirent { ino, off: next, namelen: name.len() as u32, kind: kind as u32 };
    listing.extend_from_slice(dirent.as_bytes());
    listing.extend_from_slice(name);
    listing.resize(padded(listing.len()), 0);
}

/// The next multiple of 8.
fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}
