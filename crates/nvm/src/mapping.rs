//! Mapped memory, and the only way to touch it: a [`Window`] whose every access is range-checked.
//!
//! One of the three files of this crate that may use `unsafe`. The rules for raw memory here:
//!
//! 1. A [`Mapping`] owns its address range from `mmap` to `munmap`; windows keep it alive by `Arc`.
//! 2. Nobody forms `&mut` into a mapping. Stores go through raw pointers.
//! 3. A `&[u8]` into a mapping is handed out under the volume's discipline: its locks keep the range from
//!    being stored to while the slice lives. (What another process does to a shared file is bounded by the
//!    zone's lock.)
//! 4. Every access asserts its range. An address out of range is a bug of the volume and panics.
//! 5. Pages that vanish (bad media, a file cut short) are [`crate::bus_error`]'s business.

use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};

use crate::bus_error::{self, Guard};
use crate::error::Error;
use crate::persist::{self, PersistMethod};
use crate::{LINE, SEGMENT};

/// What to map.
pub(crate) enum Source<'a> {
    /// Private anonymous memory.
    Memory,
    /// A file or device from its start, shared; `sync` asks for MAP_SYNC, which only DAX grants. `huge`
    /// asks for huge pages.
    File { file: BorrowedFd<'a>, sync: bool, huge: bool },
    /// A file as it is, of which what is stored to stays in this process.
    Copy(BorrowedFd<'a>),
}

/// One `mmap` of a whole zone.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    guard: &'static Guard,
    /// The guard that keeps the zone's poison: of the zone's first mapping, which lives as long as the zone.
    poison: &'static Guard,
}

// SAFETY: a mapping is memory that any thread may access; rules 2 and 3 above say how.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes at an address that is a multiple of `align`, so that huge pages can serve it.
    /// `page` is the size of the pages that the backing faults in.
    pub(crate) fn new(
        source: Source<'_>,
        len: u64,
        align: u64,
        page: u64,
        writable: bool,
        poison_of: Option<&Mapping>,
    ) -> Result<Mapping, MapError> {
        let len = usize::try_from(len).map_err(|_| MapError::System(rustix::io::Errno::NOMEM))?;
        let align = align.max(SEGMENT) as usize;
        let reserved = len.checked_add(align).ok_or(MapError::System(rustix::io::Errno::NOMEM))?;
        // SAFETY: a fresh reservation at an address of the kernel's choice touches nobody's memory.
        let reservation = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                reserved,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(MapError::System)?;
        let start = (reservation as usize).next_multiple_of(align);
        let huge = matches!(source, Source::Memory | Source::File { huge: true, .. });
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: MAP_FIXED replaces a part of the reservation above, which nobody else knows.
        let mapped = unsafe {
            match source {
                Source::Memory => rustix::mm::mmap_anonymous(
                    start as *mut _,
                    len,
                    prot,
                    MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
                ),
                Source::File { file, sync, .. } => {
                    let flags = if sync {
                        MapFlags::SHARED_VALIDATE | MapFlags::SYNC | MapFlags::FIXED
                    } else {
                        MapFlags::SHARED | MapFlags::FIXED
                    };
                    rustix::mm::mmap(start as *mut _, len, prot, flags, file, 0)
                }
                Source::Copy(file) => {
                    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
                    rustix::mm::mmap(start as *mut _, len, prot, flags, file, 0)
                }
            }
        };
        // The reservation's head and tail are of no use; on failure the whole of it is not.
        // SAFETY: only parts of our own reservation that hold no mapping of ours are unmapped.
        unsafe {
            if mapped.is_err() {
                let _ = rustix::mm::munmap(reservation, reserved);
            } else {
                let head = start - reservation as usize;
                let mapped_end = start + len.next_multiple_of(page as usize);
                let end = reservation as usize + reserved;
                if head > 0 {
                    let _ = rustix::mm::munmap(reservation, head);
                }
                if end > mapped_end {
                    let _ = rustix::mm::munmap(mapped_end as *mut _, end - mapped_end);
                }
            }
        }
        mapped.map_err(MapError::System)?;
        let base = NonNull::new(start as *mut u8).ok_or(MapError::System(rustix::io::Errno::NOMEM))?;
        let keeper = poison_of.map(|other| other.poison);
        let guard = match bus_error::guard(start, len, page as usize, writable, keeper) {
            Ok(guard) => guard,
            Err(error) => {
                // SAFETY: our own mapping, which nobody has seen yet.
                unsafe {
                    let _ = rustix::mm::munmap(start as *mut _, len);
                }
                return Err(MapError::Guard(error));
            }
        };
        if huge {
            // Where the system allows them; a refusal (file systems without them) costs nothing.
            // SAFETY: advice about our own mapping changes no contents.
            unsafe {
                let _ = rustix::mm::madvise(start as *mut _, len, Advice::LinuxHugepage);
            }
        }
        Ok(Mapping { base, len, writable, guard, poison: keeper.unwrap_or(guard) })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// First address, for looking the mapping up in `/proc/self/smaps`.
    pub(crate) fn start(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// The zone's first fault, if there was any.
    #[inline]
    pub(crate) fn poisoned_at(&self) -> Option<u64> {
        self.poison.poisoned_at()
    }

    /// The zone's first fault, which counts no longer, if it was in the first segment and took nothing else with it.
    pub(crate) fn forgive_in_first_segment(&self) -> Option<u64> {
        self.poison.forgive(SEGMENT)
    }

    /// Marks the zone poisoned: its medium failed at `offset`.
    pub(crate) fn poison(&self, offset: u64) {
        self.poison.poison(offset);
    }

    /// Writes the pages of `[at, at + len)` back to their file and waits.
    pub(crate) fn msync(&self, at: u64, len: u64) -> rustix::io::Result<()> {
        let first = at & !4095;
        let end = at + len;
        assert!(end <= self.len(), "msync of {at}+{len} leaves a mapping of {} bytes", self.len);
        // SAFETY: the range is ours, checked above, and the mapping starts on a page.
        unsafe {
            rustix::mm::msync(
                self.base.as_ptr().add(first as usize).cast(),
                (end - first) as usize,
                MsyncFlags::SYNC,
            )
        }
    }

    /// Faults every page in now, so that no later access pays for it.
    pub(crate) fn prefault(&self) {
        let advice = if self.writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: populating our own mapping changes no contents; a refusal only leaves it to later.
        unsafe {
            let _ = rustix::mm::madvise(self.base.as_ptr().cast(), self.len, advice);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        bus_error::unguard(self.guard);
        // SAFETY: our own mapping; every window into it held an `Arc` of it and is gone.
        unsafe {
            let _ = rustix::mm::munmap(self.base.as_ptr().cast(), self.len);
        }
    }
}

/// Why a mapping could not be made.
pub(crate) enum MapError {
    System(rustix::io::Errno),
    Guard(Error),
}

/// A contiguous piece of a mapping, addressed from 0.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    base: NonNull<u8>,
    len: u64,
    /// `len`, or 0 in a read-only mapping, so that one comparison serves both checks.
    writable_len: u64,
    method: PersistMethod,
    mapping: Arc<Mapping>,
}

// SAFETY: as for `Mapping`, which a window keeps alive.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    pub(crate) fn new(mapping: Arc<Mapping>, start: u64, len: u64, method: PersistMethod) -> Window {
        let fits = start.checked_add(len).is_some_and(|end| end <= mapping.len());
        assert!(fits, "a window of {start}+{len} leaves a mapping of {} bytes", mapping.len());
        // SAFETY: `start` is inside the mapping, checked above.
        let base = unsafe { mapping.base.add(start as usize) };
        let writable_len = if mapping.writable { len } else { 0 };
        Window { base, len, writable_len, method, mapping }
    }

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    #[inline]
    pub(crate) fn method(&self) -> PersistMethod {
        self.method
    }

    #[inline]
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    #[inline]
    pub(crate) fn poisoned_at(&self) -> Option<u64> {
        self.mapping.poisoned_at()
    }

    /// The address of `at`, of whose `len` bytes all are readable.
    #[inline(always)]
    fn readable(&self, at: u64, len: u64) -> *const u8 {
        if len > self.len || at > self.len - len {
            self.refuse(at, len);
        }
        // SAFETY: `at + len <= self.len`, which is inside the mapping.
        unsafe { self.base.as_ptr().add(at as usize) }
    }

    /// The address of `at`, of whose `len` bytes all are writable.
    #[inline]
    fn writable(&self, at: u64, len: u64) -> *mut u8 {
        if len > self.writable_len || at > self.writable_len - len {
            self.refuse(at, len);
        }
        // SAFETY: `at + len <= self.writable_len`, which is inside the mapping.
        unsafe { self.base.as_ptr().add(at as usize) }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn refuse(&self, at: u64, len: u64) -> ! {
        if at.checked_add(len).is_some_and(|end| end <= self.len) {
            panic!(
                "store to a read-only zone at {at}+{len}: the volume must refuse changes before it stores"
            );
        }
        panic!(
            "access at {at}+{len} leaves the volume's {} bytes: the volume must range-check addresses",
            self.len
        );
    }

    #[inline]
    pub(crate) fn bytes(&self, at: u64, len: usize) -> &[u8] {
        let from = self.readable(at, len as u64);
        // SAFETY: mapped and in range; rule 3 at the top keeps it unchanged while the slice lives.
        unsafe { std::slice::from_raw_parts(from, len) }
    }

    #[inline]
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        let from = self.readable(at, into.len() as u64);
        // SAFETY: in range; `into` is exclusive to the caller, so it cannot be a part of the mapping.
        unsafe { persist::copy_out(into.as_mut_ptr(), from, into.len()) };
    }

    #[inline]
    pub(crate) fn prefetch(&self, at: u64) {
        let line = self.readable(at, 1);
        // SAFETY: SSE is x86-64's baseline; a prefetch changes no memory and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }

    #[inline(always)]
    fn word(&self, pointer: *const u8, at: u64) -> &AtomicU64 {
        if !(pointer as usize).is_multiple_of(8) {
            refuse_misaligned(at);
        }
        // SAFETY: in range by the caller's `readable` or `writable`, aligned by the line above, alive
        // with `self`; all accesses through it are atomic.
        unsafe { &*pointer.cast::<AtomicU64>() }
    }

    #[inline(always)]
    pub(crate) fn load_u64(&self, at: u64) -> u64 {
        u64::from_le(self.word(self.readable(at, 8), at).load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn store_u64(&self, at: u64, value: u64) {
        self.word(self.writable(at, 8), at).store(value.to_le(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn store(&self, at: u64, bytes: &[u8]) {
        let to = self.writable(at, bytes.len() as u64);
        // SAFETY: in range; `copy` allows `bytes` to be a slice of this very window.
        unsafe { ptr::copy(bytes.as_ptr(), to, bytes.len()) };
    }

    #[inline]
    pub(crate) fn fill_zero(&self, at: u64, len: u64) {
        let to = self.writable(at, len);
        // SAFETY: in range.
        unsafe { ptr::write_bytes(to, 0, len as usize) };
    }

    #[inline]
    pub(crate) fn copy_within(&self, from: u64, to: u64, len: u64) {
        let source = self.readable(from, len);
        let target = self.writable(to, len);
        // SAFETY: both in range; `copy` allows overlap.
        unsafe { ptr::copy(source, target, len as usize) };
    }

    /// Non-temporal copy to whole lines: `at` and `bytes.len()` are multiples of 64.
    #[inline]
    pub(crate) fn stream_lines(&self, at: u64, bytes: &[u8]) {
        let to = self.writable(at, bytes.len() as u64);
        assert!(
            (to as usize as u64 | bytes.len() as u64).is_multiple_of(LINE),
            "streamed lines at {at}+{} are not whole",
            bytes.len()
        );
        let (from, len) = (bytes.as_ptr(), bytes.len());
        let apart = (to as usize).abs_diff(from as usize) >= len;
        assert!(apart, "a range cannot be streamed over itself: at {at}+{len}");
        // SAFETY: in range, line-aligned, and not overlapping, all checked above.
        unsafe { persist::stream_lines(to, from, len) };
    }

    /// Non-temporal zeros to whole lines: `at` and `len` are multiples of 64.
    #[inline]
    pub(crate) fn stream_zero_lines(&self, at: u64, len: u64) {
        let to = self.writable(at, len);
        assert!(
            (to as usize as u64 | len).is_multiple_of(LINE),
            "streamed lines at {at}+{len} are not whole"
        );
        // SAFETY: in range and line-aligned, checked above.
        unsafe { persist::stream_zero_lines(to, len as usize) };
    }

    /// Flushes the lines of a range by the window's method; nothing where that is `msync`.
    #[inline]
    pub(crate) fn flush(&self, at: u64, len: u64) {
        let from = self.readable(at, len);
        // SAFETY: in range; the method was checked against the processor when the zone was opened.
        unsafe { persist::flush_lines(self.method, from, len as usize) };
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn refuse_misaligned(at: u64) -> ! {
    panic!("8-byte access at {at}, which is not a multiple of 8")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(len: u64, writable: bool) -> Window {
        let Ok(mapping) = Mapping::new(Source::Memory, len, 0, 4096, writable, None) else {
            panic!("cannot map {len} bytes")
        };
        Window::new(Arc::new(mapping), 0, len, PersistMethod::best())
    }

    fn refused(access: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let panic = std::panic::catch_unwind(access).expect_err("the access must be refused");
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn the_last_byte_is_in_and_the_next_is_out() {
        let window = window(SEGMENT, true);
        window.store(SEGMENT - 1, &[7]);
        assert_eq!(window.bytes(SEGMENT - 1, 1), [7]);
        window.store(SEGMENT, &[]);
        for (at, len) in
            [(SEGMENT, 1), (SEGMENT - 1, 2), (u64::MAX, 1), (0, usize::MAX), (u64::MAX, usize::MAX)]
        {
            let other = window.clone();
            let text = refused(std::panic::AssertUnwindSafe(move || {
                other.bytes(at, len);
            }));
            assert!(text.contains("leaves the volume's"), "{text}");
        }
    }

    #[test]
    fn a_read_only_window_refuses_stores_and_says_so() {
        let window = window(SEGMENT, false);
        assert_eq!(window.load_u64(8), 0);
        let text = refused(std::panic::AssertUnwindSafe(|| window.store(0, &[1])));
        assert!(text.contains("read-only"), "{text}");
    }

    #[test]
    fn words_are_little_endian_and_aligned() {
        let window = window(SEGMENT, true);
        window.store_u64(16, 0x0102_0304_0506_0708);
        assert_eq!(window.bytes(16, 8), [8, 7, 6, 5, 4, 3, 2, 1]);
        let text = refused(std::panic::AssertUnwindSafe(|| window.store_u64(12, 1)));
        assert!(text.contains("not a multiple of 8"), "{text}");
    }

    #[test]
    fn a_window_may_be_stored_over_itself_but_not_streamed() {
        let window = window(SEGMENT, true);
        window.store(0, b"abcdef");
        window.store(2, window.bytes(0, 6));
        assert_eq!(window.bytes(0, 8), b"ababcdef");
        let text = refused(std::panic::AssertUnwindSafe(|| window.stream_lines(64, window.bytes(0, 128))));
        assert!(text.contains("over itself"), "{text}");
    }
}
