//! Unreadable media: turns SIGBUS on a mapped zone into a poisoned zone.
//!
//! A load from bad media, or from a file that someone cut short, raises SIGBUS. The handler maps a page of
//! anonymous zeros over the faulting one, marks the zone poisoned and returns, so that the load ends; the
//! volume finds out by `Region::check` before it believes what it read. Faults at addresses that are no
//! zone's go to whoever handled SIGBUS before us.
//!
//! One of the three files of this crate that may use `unsafe`.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

use crate::error::Error;

/// Mappings that may exist at once in a process.
const GUARDS_MAX: usize = 4096;

/// One guarded mapping. Slots are static so that the handler never reads freed memory.
#[derive(Debug)]
pub(crate) struct Guard {
    /// First guarded address; 0 marks a free slot, and is written last and cleared first.
    start: AtomicUsize,
    end: AtomicUsize,
    page: AtomicUsize,
    writable: AtomicU32,
    /// Offset of the first fault in the mapping, plus one; 0 is sound.
    poison: AtomicUsize,
    /// Slot index plus one of the guard that keeps this zone's poison, when it is another.
    poison_of: AtomicUsize,
}

impl Guard {
    const fn free() -> Guard {
        Guard {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            writable: AtomicU32::new(0),
            poison: AtomicUsize::new(0),
            poison_of: AtomicUsize::new(0),
        }
    }

    /// The offset of the first fault, if there was any. One relaxed load.
    #[inline]
    pub(crate) fn poisoned_at(&self) -> Option<u64> {
        match self.poison.load(Ordering::Relaxed) {
            0 => None,
            offset_plus_one => Some(offset_plus_one as u64 - 1),
        }
    }

    /// Marks the mapping, and the earlier one that keeps its zone's poison, poisoned at `offset`.
    /// Async-signal-safe.
    fn poison_zone(&self, offset: u64) {
        self.poison(offset);
        if let Some(keeper) = self.poison_of.load(Ordering::Relaxed).checked_sub(1) {
            GUARDS[keeper].poison(offset);
        }
    }

    /// Takes the record of the first fault away, for who has found out what was lost within `bytes` around it. None, and nothing is
    /// forgiven, if there was no fault, or pages are larger: of each that fails all is zeros.
    pub(crate) fn forgive(&self, bytes: u64) -> Option<u64> {
        if self.page.load(Ordering::Relaxed) as u64 > bytes {
            return None;
        }
        (self.poison.swap(0, Ordering::AcqRel) as u64).checked_sub(1)
    }

    /// Marks this one only; the first fault stays on record.
    pub(crate) fn poison(&self, offset: u64) {
        let _ = self.poison.compare_exchange(0, offset as usize + 1, Ordering::AcqRel, Ordering::Relaxed);
    }
}

static GUARDS: [Guard; GUARDS_MAX] = [const { Guard::free() }; GUARDS_MAX];
/// Slots at and above this index were never used: bounds the handler's search.
static GUARDS_USED: AtomicUsize = AtomicUsize::new(0);
/// Serialises taking and freeing slots. The handler never takes it.
static TAKING: Mutex<()> = Mutex::new(());

/// Guards `[start, start + len)`, whose pages have `page` bytes. `poison_of` names the guard of an earlier
/// mapping of the same zone, which keeps the poison for both.
pub(crate) fn guard(
    start: usize,
    len: usize,
    page: usize,
    writable: bool,
    poison_of: Option<&'static Guard>,
) -> Result<&'static Guard, Error> {
    install();
    let _taking = TAKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let free = GUARDS.iter().position(|guard| guard.end.load(Ordering::Relaxed) == 0);
    let index = free.ok_or(Error::TooManyZones { limit: GUARDS_MAX })?;
    let guard = &GUARDS[index];
    guard.poison.store(0, Ordering::Relaxed);
    let keeper = poison_of.and_then(|keeper| GUARDS.iter().position(|other| std::ptr::eq(other, keeper)));
    guard.poison_of.store(keeper.map_or(0, |keeper| keeper + 1), Ordering::Relaxed);
    guard.writable.store(writable.into(), Ordering::Relaxed);
    // Who sees either sees that the slot's last mapping has gone.
    guard.page.store(page, Ordering::Release);
    guard.end.store(start + len, Ordering::Release);
    guard.start.store(start, Ordering::Release);
    GUARDS_USED.fetch_max(index + 1, Ordering::Release);
    Ok(guard)
}

/// Frees a guard, before its mapping is unmapped.
pub(crate) fn unguard(guard: &'static Guard) {
    let _taking = TAKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    guard.start.store(0, Ordering::Release);
    guard.end.store(0, Ordering::Release);
}

/// The action that SIGBUS had before ours, written once before ours is installed.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, under `Once`, before the handler that reads it can run.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::zeroed()));

fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // SAFETY: a zeroed sigaction is a valid one; `PREVIOUS` is written before our handler can run
        // because the first call only reads the old action; `on_sigbus` is async-signal-safe.
        unsafe {
            libc::sigaction(libc::SIGBUS, std::ptr::null(), PREVIOUS.0.get().cast());
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction =
                on_sigbus as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    });
}

/// Async-signal-safe: atomics, one `mmap`, and the previous handler.
extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo; a SIGBUS that the kernel raised fills its address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Of a signal that a process sent, the address is none.
    let fault = code > 0;
    // SAFETY: errno is this thread's own; it is restored because the interrupted code may be reading it.
    let errno = unsafe { *libc::__errno_location() };
    let mended = fault && mend(address);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if mended {
        return;
    }
    // SAFETY: `PREVIOUS` was written before this handler was installed.
    let previous = unsafe { &*PREVIOUS.0.get().cast::<libc::sigaction>() };
    match previous.sa_sigaction {
        libc::SIG_IGN if !fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restores the default action; on return the signal is delivered again and ends the process.
            unsafe {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
                libc::raise(libc::SIGBUS);
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: SA_SIGINFO says that the previous handler has this signature.
            unsafe {
                std::mem::transmute::<
                    usize,
                    extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void),
                >(handler)(signal, info, context)
            }
        }
        handler => {
            // SAFETY: without SA_SIGINFO a handler takes the signal's number only.
            unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler)(signal) }
        }
    }
}

/// Maps zeros over the page at `address` if a zone is there; whether it did.
fn mend(address: usize) -> bool {
    let used = GUARDS_USED.load(Ordering::Acquire);
    for guard in &GUARDS[..used] {
        let start = guard.start.load(Ordering::Acquire);
        let end = guard.end.load(Ordering::Acquire);
        let page = guard.page.load(Ordering::Acquire);
        // The slot may have become another mapping's in between: then what was loaded is of neither.
        let is_same = guard.start.load(Ordering::Acquire) == start;
        if start == 0 || !is_same || address < start || address >= end {
            continue;
        }
        let page_start = address & !(page - 1);
        let writable = guard.writable.load(Ordering::Relaxed) != 0;
        // Poison first: nobody may read the zeros and then find the zone sound.
        guard.poison_zone(address as u64 - start as u64);
        // SAFETY: the page belongs to a guarded mapping of this crate (a guard is freed before its mapping
        // goes), and nothing can be lost by replacing a page that cannot be accessed.
        let mapped = unsafe {
            libc::mmap(
                page_start as *mut libc::c_void,
                page.min(end - page_start),
                if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ },
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        return mapped != libc::MAP_FAILED;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// Runs as a child of the test below: touches a page beyond the end of a file that is no zone's.
    #[test]
    fn child_touches_a_foreign_page() {
        if std::env::var_os("NVM_FOREIGN_FAULT").is_none() {
            return;
        }
        let zone = crate::Zone::anonymous(16 << 20, &crate::OpenOptions::default()).unwrap();
        let file = rustix::fs::memfd_create("foreign", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        // SAFETY: a mapping of our own; reading beyond the empty file's end is what raises SIGBUS.
        unsafe {
            let page = rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::SHARED,
                &file,
                0,
            )
            .unwrap();
            page.cast::<u8>().read_volatile();
        }
        drop(zone);
        std::process::exit(0);
    }

    #[test]
    fn a_foreign_fault_still_ends_the_process() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "bus_error::tests::child_touches_a_foreign_page"])
            .env("NVM_FOREIGN_FAULT", "1")
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{child:?}");
    }

    #[test]
    fn slots_are_used_again_and_sound() {
        // Addresses that no mapping has, so that no other test's zone is guarded twice.
        let first = guard(4096, 4096, 4096, true, None).unwrap();
        let second = guard(8192, 4096, 4096, true, Some(first)).unwrap();
        second.poison_zone(17);
        assert_eq!((first.poisoned_at(), second.poisoned_at()), (Some(17), Some(17)));
        second.poison_zone(18);
        assert_eq!(first.poisoned_at(), Some(17), "the first fault stays on record");
        assert_eq!(first.forgive(2048), None, "the whole page is lost");
        assert_eq!((first.forgive(4096), first.poisoned_at()), (Some(17), None));
        assert_eq!(first.forgive(4096), None);
        unguard(second);
        unguard(first);
        let third = guard(4096, 4096, 4096, true, None).unwrap();
        assert_eq!(third.poisoned_at(), None);
        unguard(third);
    }
}
