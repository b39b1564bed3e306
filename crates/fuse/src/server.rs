//! What every request passes through: counting, the caller's identity, errors, panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use vfs::rules::mode_after_write;
use vfs::{Attr, Caller, Error, FileSystem, Ino, Result, SetAttr};

use crate::MountOptions;
use crate::abi::{InHeader, WRITE_CACHE, WRITE_KILL_SUIDGID};
use crate::convert::{Belief, TTL, errno, in_directory};
use crate::credentials;
use crate::device::Device;
use crate::inodes::{Inodes, OpenFile};
use crate::message::{Handled, Reply};
use crate::reconnect::Reconnecting;
use crate::requests::{Counters, Request};
use crate::waiters::Waiters;

/// One mount's server, shared by its threads.
pub(crate) struct Server {
    pub(crate) volume: Arc<dyn FileSystem>,
    pub(crate) inodes: Inodes,
    pub(crate) counters: Arc<Counters>,
    pub(crate) writeback_cache: bool,
    pub(crate) durable_operations: bool,
    pub(crate) birth_times: bool,
    pub(crate) checked_close: bool,
    async_direct_io: bool,
    pub(crate) waiters: Waiters,
    pub(crate) reconnecting: Reconnecting,
    pub(crate) device: Weak<Device>,
    panicked: AtomicBool,
    /// Somebody has stored to a mapping of what nobody can change, and it has been logged.
    pub(crate) stored_in_vain: AtomicBool,
    /// Shared by each request until it is answered; exclusively whoever exchanges the tree that the volume shows.
    pub(crate) serving: RwLock<()>,
}

/// Held by each thread that serves a mount. When the last of them has ended, nothing is kept open for the kernel any more.
pub(crate) struct Session(pub(crate) Arc<Server>);

impl Drop for Session {
    fn drop(&mut self) {
        self.0.inodes.clear();
    }
}

/// Writes all of `len` bytes, with `write` what is behind the first so many; or it is an error.
pub(crate) fn write_all(len: usize, write: impl Fn(usize) -> Result<usize>) -> Result<usize> {
    let mut done = 0;
    loop {
        match write(done)? {
            0 if done < len => return Err(Error::NoSpace),
            some if done + some < len => done += some,
            _ => return Ok(len),
        }
    }
}

impl Server {
    /// `device` is told what the kernel may not believe any more.
    pub(crate) fn new(volume: Arc<dyn FileSystem>, options: &MountOptions, device: Weak<Device>) -> Server {
        Server {
            inodes: Inodes::new(volume.clone(), options.read_only),
            volume,
            counters: Arc::new(Counters::new()),
            writeback_cache: options.keeps_written_pages(),
            durable_operations: options.durable_operations,
            birth_times: options.birth_times,
            checked_close: options.checked_close && options.keeps_written_pages(),
            async_direct_io: options.async_direct_io,
            waiters: Waiters::default(),
            reconnecting: Reconnecting::default(),
            device,
            panicked: AtomicBool::new(false),
            stored_in_vain: AtomicBool::new(false),
            serving: RwLock::default(),
        }
    }

    /// Counts a request and runs its handler; a panic in there becomes an I/O error.
    pub(crate) fn handle<T>(&self, request: Request, handler: impl FnOnce() -> Result<T>) -> Handled<'_, T> {
        let serving = self.serving.read().unwrap_or_else(PoisonError::into_inner);
        self.counters.count(request);
        let result = match catch_unwind(AssertUnwindSafe(handler)) {
            Ok(result) => result.map_err(|error| {
                if matches!(error, Error::Io(_) | Error::Corrupt(_)) {
                    tracing::error!("{}: {error}", request.name());
                }
                errno(&error)
            }),
            Err(_) => {
                if !self.panicked.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        "{}: a request made the volume panic and failed with EIO; a volume that was in the middle of a \
                         change takes no others: save what you need, mount it again, and report this. Further \
                         panics are not logged",
                        request.name()
                    );
                }
                Err(Errno::IO)
            }
        };
        Handled::new(result, serving)
    }

    pub(crate) fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.keep_refusal(ino);
        self.volume.getattr(ino)
    }

    /// What has number `ino`. Of an inode that the kernel does not hold, nothing is left when its last name has gone.
    pub(crate) fn by_number(&self, ino: Ino) -> Result<Attr> {
        self.volume.getattr(ino).and_then(|attr| if attr.nlink > 0 { Ok(attr) } else { Err(Error::Stale) })
    }

    /// The directory above `dir`, for which `thread` asks.
    pub(crate) fn above(&self, caller: &Caller, dir: Ino, thread: u32) -> Result<Attr> {
        let above = self.volume.lookup(caller, dir, b"..")?;
        if self.volume.unlisted(above.ino).is_some_and(|entry| entry.ino == dir) {
            self.reconnecting.expect(thread, above.ino);
            if let Some(device) = self.device.upgrade() {
                // It fails if the kernel does not know the directory: then it has kept no listing.
                let _ = device.invalidate_inode(above.ino);
            }
        }
        Ok(above)
    }

    /// `name` of `dir` has come from another directory. Of one that was moved, the kernel goes on showing the listing that it keeps, in which
    /// `..` is where it was: it looks at the directory's own times alone.
    pub(crate) fn has_moved(&self, caller: &Caller, dir: Ino, name: &[u8]) {
        if let (Ok(attr), Some(device)) = (self.volume.lookup(caller, dir, name), self.device.upgrade())
            && attr.is_dir()
        {
            let _ = device.invalidate_inode(attr.ino);
        }
    }

    /// `caller`, when it changes contents.
    ///
    /// With a writeback cache the kernel keeps the times of regular files: it has set them before it asks for the change, and sends a `setattr`
    /// when they differ from what it was told. Were they set here as well, a clock that has ticked in between would have the kernel and
    /// the volume disagree for good.
    pub(crate) fn changing_contents(&self, caller: Caller) -> Caller {
        if self.writeback_cache { caller.keeping_times() } else { caller }
    }

    /// Runs `change` of the contents of `ino` for who sent `header`: with privileges, set-user-ID survives. **If it takes set-user-ID or set-group-ID away, the kernel hears of
    /// it before the answer**: that brings no attributes, and the kernel runs a program with the mode that it knows.
    pub(crate) fn changing<T>(
        &self,
        ino: Ino,
        header: &InHeader,
        is_privileged: bool,
        change: impl FnOnce(&Caller) -> Result<T>,
    ) -> Result<T> {
        let (caller, is_told) = match is_privileged {
            true => (Caller::checked_by_kernel(0, 0, 0), false),
            false => {
                let attr = self.volume.getattr(ino)?;
                let caller = credentials::unprivileged(header, &attr);
                let mode = mode_after_write(&caller, attr.mode, attr.gid);
                (caller, mode != attr.mode)
            }
        };
        let changed = change(&self.changing_contents(caller));
        if is_told {
            self.invalidate_attributes(ino);
        }
        changed
    }

    /// With `kill_privileges`, a truncation takes set-user-ID away; a change of owner or group, which the kernel leaves to us likewise, always
    /// does, and set-group-ID where that goes.
    pub(crate) fn setattr(
        &self,
        header: &InHeader,
        ino: Ino,
        set: SetAttr,
        kill_privileges: bool,
    ) -> Result<Attr> {
        let (mut caller, mut set) = (credentials::caller(header, 0), set);
        let mut file = None;
        if set.size.is_some() {
            caller = self.changing_contents(caller);
            file = Some(self.inodes.file_to_change(ino)?);
        }
        let is_given = (set.uid.is_some() || set.gid.is_some()) && header.uid != 0;
        if set.mode.is_none() && (set.size.is_some() && kill_privileges || is_given) {
            let attr = self.volume.getattr(ino)?;
            let after = mode_after_write(&credentials::unprivileged(header, &attr), attr.mode, attr.gid);
            set.mode = (after != attr.mode).then_some(after & 0o7777);
        }
        // As the kernel brings the times of its pages.
        let kept = SetAttr { mtime: set.mtime, ctime: set.ctime, ..SetAttr::default() };
        if set == kept && set.ctime.is_some() && self.inodes.has_older_pages(ino) {
            caller.from_cache = true;
        }
        let handle = file.as_deref().map(OpenFile::handle);
        let attr = self.with_room(|| self.volume.setattr(&caller, ino, &set, handle))?;
        if set.size.is_some() {
            self.inodes.forget_refusal(ino);
        }
        Ok(attr)
    }

    pub(crate) fn write(
        &self,
        header: &InHeader,
        offset: u64,
        data: &[u8],
        flags: u32,
        open_flags: u32,
    ) -> Result<usize> {
        let ino = header.nodeid;
        let is_from_pages = flags & WRITE_CACHE != 0;
        // The kernel says whether the writer's privileges let set-user-ID survive the write.
        self.changing(ino, header, flags & WRITE_KILL_SUIDGID == 0, |caller| {
            if is_from_pages {
                let caller = Caller { from_cache: true, ..caller.clone() };
                return self.write_back(&caller, ino, offset, data);
            }
            let write = |done: usize| {
                let file = self.inodes.file_to_change(ino)?;
                self.with_room(|| {
                    self.volume.write(caller, file.handle(), offset + done as u64, &data[done..])
                })
            };
            if self.async_direct_io && open_flags & OFlags::DIRECT.bits() != 0 {
                // The kernel makes an I/O error of a part then, and takes back by how much the file grew if there is an error. Otherwise it
                // tells of the part, and what is before it: an error would leave more than that.
                write_all(data.len(), write)
            } else {
                write(0)
            }
        })
    }

    pub(crate) fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.volume.fsync(self.inodes.file(ino)?.handle(), data_only)
    }

    /// With the access ACL that `caller` is about to set, set-group-ID goes, as the kernel has found.
    pub(crate) fn without_set_group_id(&self, caller: &Caller, ino: Ino) -> Result<()> {
        const S_ISGID: u32 = 0o2000;
        let attr = self.volume.getattr(ino)?;
        if attr.mode & S_ISGID == 0 {
            return Ok(());
        }
        let set = SetAttr { mode: Some(attr.perm() & !S_ISGID), ..SetAttr::default() };
        self.volume.setattr(caller, ino, &set, None).map(drop)
    }

    /// How long the kernel may believe what it is told of inode `ino`.
    pub(crate) fn ttl(&self, ino: Ino) -> Duration {
        if self.volume.is_volatile(ino) { Duration::ZERO } else { TTL }
    }

    /// The same of an entry of `dir` that leads to `ino`, and of that inode.
    pub(crate) fn belief(&self, dir: Ino, ino: Ino) -> Belief {
        Belief { entry: self.ttl(dir), attr: self.ttl(ino) }
    }

    /// Creates or finds an inode by name, of which the kernel is then told.
    pub(crate) fn entry(&self, make: impl FnMut() -> Result<Attr>) -> Result<Attr> {
        let attr = self.with_room(make).map_err(in_directory)?;
        self.inodes.remember(attr.ino);
        self.keep_refusal(attr.ino);
        Ok(attr)
    }

    /// Runs `remove`, by which `name` of `dir` may lose its inode, so that the kernel can go on using that.
    pub(crate) fn removing(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // What is wrong with the name, `remove` finds.
        let victim = self.volume.lookup(caller, dir, name).ok();
        let pin = victim.map(|attr| self.inodes.before_unlink(attr.ino)).transpose()?.flatten();
        let removed = remove().map_err(in_directory);
        // Also if that failed: the name may be gone, and only what was to make it durable not be done.
        if let (Some(attr), Some(pin)) = (victim, pin) {
            self.inodes.after_unlink(attr.ino, pin);
        }
        removed
    }

    /// Reads, straight from the medium into `reply` if that gives one slice; what it gives in several is gathered in `gathered`.
    pub(crate) fn read(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        reply: &mut Reply<'_>,
        gathered: &mut Vec<u8>,
    ) -> Result<()> {
        let file = self.inodes.file(ino)?;
        self.volume.read_slices(file.handle(), offset, len, &mut |slice| {
            if slice.len() == len && gathered.is_empty() {
                reply.provisionally(slice);
            } else {
                gathered.extend_from_slice(slice);
            }
        })?;
        Ok(())
    }
}
