//! `copy_file_range`: bytes from file to file, by way of memory.

use vfs::{Caller, Error, Handle, OpenFlags, Result, rules};

use crate::core::alloc;
use crate::volume::Volume;

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;

/// A place in an open file.
pub(crate) type Place = (Handle, u64);

impl Volume {
    /// As `copy_file_range(2)`. Each piece is read and written by itself: who changes the source meanwhile may find it in part.
    pub(crate) fn copy_range(&self, caller: &Caller, from: Place, to: Place, length: u64) -> Result<u64> {
        let (source, may) = self.handles.get(from.0)?;
        let (sink, may_write) = self.handles.get(to.0)?;
        let is_allowed = may.contains(OpenFlags::READ)
            && may_write.contains(OpenFlags::WRITE)
            && !may_write.contains(OpenFlags::APPEND);
        if !is_allowed {
            return Err(Error::BadHandle);
        }
        let (source, sink) = (self.files.hold(source), self.files.hold(sink));
        let (start, at) = (from.1, to.1);
        let size = self.reading_file(&source, |inode| Ok(inode.size))?;
        self.reading_file(&sink, |inode| rules::may_copy_to(inode.shown_flags()))?;
        let length = length.min(size.saturating_sub(start));
        if length == 0 {
            return Ok(0);
        }
        let range = self.reading_file(&sink, |inode| self.range_to_write(inode, at, length))?;
        let length = range.end - range.start;
        if source.number == sink.number && range.start < start + length && start < range.end {
            return Err(Error::Invalid);
        }
        let missing =
            self.holes(&sink, &sink.shared(), &range)?.iter().map(|hole| hole.end - hole.start).sum();
        // Nothing is done if it could not be finished.
        let spared = self.reading_file(&sink, |inode| Ok(alloc::spared_for(&self.core, caller, inode)))?;
        self.with_room(|| self.promise_blocks(spared, missing))?;
        self.core.space.release(missing);
        let mut buffer = vec![0; length.min(PIECE) as usize];
        let mut done = 0;
        while done < length {
            let most = (length - done).min(PIECE) as usize;
            let copied = self.read_bytes(&source, start + done, &mut buffer[..most]).and_then(|read| {
                if read == 0 {
                    return Ok(0); // somebody has cut the source
                }
                self.write_bytes(caller, &sink, Some(at + done), &buffer[..read])
            });
            match copied {
                Ok(0) => break,
                Ok(copied) => done += copied as u64,
                // What has been copied is: the next call is told of what it meets first.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if may_write.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) {
            self.sync_file(&sink)?;
        }
        Ok(done)
    }
}
