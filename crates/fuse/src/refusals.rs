//! What the volume refused of what the kernel wrote back, and how who writes hears of it.
//!
//! With a writeback cache `write` puts bytes into the kernel's pages and returns. The kernel sends them later, and keeps a refusal for
//! `fsync` and `close`: who only writes would go on for ever on a full volume. But before each write to its cache it makes sure of
//! the file's attributes, *in the name of the open file*, and gives an error of that to the writer. So the server
//! remembers the refusal with the inode, tells the kernel not to believe the attributes that it has, and answers the
//! question that follows with the error, once: what does not fit then is refused again, and told again. So a writer goes on for no more
//! than the kernel keeps in its pages. `stat` asks in nobody's name, and is answered; what it is told the kernel does not keep
//! as long as nobody has heard of the refusal, since an invalidation comes between the question and the answer. Who reads behind what the
//! kernel takes for the end of the file asks in its name, too, and may be told in a writer's place.
//!
//! Who has the kernel send pages before it closes the file, by setting its times for instance, is told there, and `close` says nothing any
//! more (`filemap_check_errors` in `fuse_flush`). With [`crate::MountOptions::checked_close`] the kernel asks the server at each `close`.
//!
//! What nobody can change, files of snapshots for instance, takes no write at all. An `open` is not asked for ([`crate::inodes`]), and which of
//! the permission checks before it are those of a writer the kernel does not say. But before the first write, into its pages or not, and
//! before each one until it hears that there are none, it looks whether the file has capabilities, which a write takes away: it asks for
//! their length. Told that there are some it takes them away, as the writer, and an error of that is the error of the `write`. Nobody
//! else hears of them: who wants their value is told that there is none, and so is who asks for the length from outside the kernel, since
//! that reads the value, too (`cap_inode_need_killpriv`, `cap_inode_killpriv`, `cap_inode_getsecurity` in `security/commoncap.c`).

use std::sync::atomic::Ordering;

use vfs::{Caller, Error, Ino, Result};

use crate::server::{Server, write_all};

/// File capabilities.
const CAPABILITIES: &[u8] = b"security.capability";
/// How long they are (`XATTR_CAPS_SZ_2` in `linux/capability.h`).
const CAPABILITIES_LEN: usize = 20;

impl Server {
    /// What is told of attribute `name` of `ino`, of which `value` is known, to who asks for its length.
    pub(crate) fn or_pretended(&self, ino: Ino, name: &[u8], value: Result<Vec<u8>>) -> Result<Vec<u8>> {
        match value {
            Err(Error::NoAttribute) if name == CAPABILITIES && self.protection(ino).is_some() => {
                Ok(vec![0; CAPABILITIES_LEN])
            }
            value => value,
        }
    }

    /// Why attribute `name` of `ino` is not removed, for which the volume has given `error`.
    pub(crate) fn or_protection(&self, ino: Ino, name: &[u8], error: Error) -> Error {
        let protection = if name == CAPABILITIES { self.protection(ino) } else { None };
        protection.unwrap_or(error)
    }

    /// Why the contents of `ino` cannot be changed, if nobody can.
    fn protection(&self, ino: Ino) -> Option<Error> {
        let why = self.inodes.file_to_change(ino).err();
        why.filter(|why| matches!(why, Error::ReadOnly | Error::NotPermitted))
    }

    /// Writes what the kernel had in its pages: all of it, or it is an error, for the kernel does not look at how much was written.
    pub(crate) fn write_back(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        let write = |data: &[u8]| {
            write_all(data.len(), |done| {
                let file = self.inodes.file_of_pages(ino)?;
                self.with_room(|| {
                    self.volume.write(caller, file.handle(), offset + done as u64, &data[done..])
                })
            })
        };
        let mut written = write(data);
        if self.writeback_cache
            && written == Err(Error::NotPermitted)
            && self.inodes.file_of_pages(ino).is_ok()
        {
            // What may only grow: the page is refused for what somebody wrote over what is there, and others have appended to it.
            let rest = self.with_what_is_there(ino, offset, data).and_then(|merged| write(&merged));
            match rest {
                Ok(_) => return written,
                Err(_) => written = rest,
            }
        }
        let bytes = offset..offset + data.len() as u64;
        if written.is_ok() {
            self.inodes.written(ino, &bytes);
        }
        if let (Err(error), true) = (&written, self.writeback_cache) {
            if self.protection(ino).is_some() && !self.stored_in_vain.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    "what a program has stored to a mapping of inode {ino} is not written: {error}. Its pages show it until the \
                     kernel lets go of the file (find MOUNT_POINT/.snapshots -inum {ino}); further ones are not logged"
                );
            }
            self.inodes.refused(ino, error.clone(), bytes);
            self.invalidate_attributes(ino);
        }
        written
    }

    /// `data`, but that no byte of the file becomes another one there.
    fn with_what_is_there(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<Vec<u8>> {
        let mut found = vec![0; data.len()];
        self.volume.read(self.inodes.file_of_pages(ino)?.handle(), offset, &mut found)?;
        let merged = found.iter().zip(data).map(|(found, new)| if *found == 0 { *new } else { *found });
        Ok(merged.collect())
    }

    pub(crate) fn invalidate_attributes(&self, ino: Ino) {
        if let Some(device) = self.device.upgrade() {
            // It fails if the kernel does not hold the inode any more: then it knows nothing of it.
            let _ = device.invalidate_attributes(ino);
        }
    }

    /// The kernel is about to be told attributes of `ino` without a writer's asking.
    pub(crate) fn keep_refusal(&self, ino: Ino) {
        if self.inodes.refusal(ino).is_some() {
            self.invalidate_attributes(ino);
        }
    }

    /// An error if a write to `ino` was refused that the kernel made in its pages, and no writer has been told.
    pub(crate) fn tell_writer(&self, ino: Ino) -> Result<()> {
        self.inodes.take_refusal(ino).map_or(Ok(()), Err)
    }

    /// The same at a `close`, after which the next one is told as well: a program that has the file open by inheritance closes it, too,
    /// and heeds nothing. Who reads the file is told with them.
    pub(crate) fn tell_at_close(&self, ino: Ino) -> Result<()> {
        self.inodes.refusal(ino).map_or(Ok(()), Err)
    }
}
