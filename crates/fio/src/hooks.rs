//! What fio calls. Each hook makes sense of addresses, calls the engine, and says how that went in fio's way.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::abi::{self, File, Operations, OptionRow, Release, Texts, Thread, Unit};
use crate::engine::{self, Fault, Opened};

/// The release that this is loaded into, found before anything else is called.
static RELEASE: OnceLock<&Release> = OnceLock::new();

/// Says what went wrong; its number, which is not 0.
fn tell(fault: &Fault) -> c_int {
    eprintln!("amberfs: {}", fault.what);
    fault.errno.max(1)
}

fn told(result: Result<(), Fault>) -> c_int {
    result.map_or_else(|fault| tell(&fault), |()| 0)
}

unsafe extern "C" fn init(_thread: *mut Thread) -> c_int {
    told(engine::begin())
}

unsafe extern "C" fn cleanup(_thread: *mut Thread) {
    engine::end();
}

/// The path of a file.
///
/// # Safety
/// `file` is one of fio's, with its name.
unsafe fn path<'f>(file: *mut File) -> Result<&'f str, Fault> {
    // SAFETY: the caller says so; fio's names end with a NUL, and stay while the hook runs.
    let name = unsafe { CStr::from_ptr((*file).name) };
    name.to_str().map_err(|_| Fault { what: format!("{name:?} is not UTF-8"), errno: libc::EINVAL })
}

unsafe extern "C" fn get_file_size(_thread: *mut Thread, file: *mut File) -> c_int {
    // SAFETY: fio passes one of its files.
    let found = unsafe { path(file) }.and_then(engine::size);
    match found {
        Ok(size) => {
            // SAFETY: as above; fio waits for the hook.
            let file = unsafe { &mut *file };
            file.kind = abi::REGULAR;
            // What is not there yet, or has nothing in it, will be as long as fio wants it (`fill`).
            file.real_size = size.filter(|size| *size > 0).unwrap_or(u64::MAX);
            0
        }
        Err(fault) => tell(&fault),
    }
}

unsafe extern "C" fn prepopulate(_thread: *mut Thread, file: *mut File) -> c_int {
    // SAFETY: fio passes one of its files, and waits for the hook.
    let (path, file) = unsafe { (path(file), &mut *file) };
    let end = file.offset.saturating_add(file.size);
    if end == u64::MAX {
        return 0; // to be written until the volume is full (fill_device=1)
    }
    let filled = path.and_then(|path| engine::fill(path, end));
    if filled.is_ok() {
        // Of a file that was there and shorter, fio knows what it was, and would end a job there; of one that was not, it
        // takes it to be as long as what the job does, wherever that begins.
        file.real_size = file.real_size.max(end);
    }
    told(filled)
}

unsafe extern "C" fn unlink_file(_thread: *mut Thread, file: *mut File) -> c_int {
    // SAFETY: fio passes one of its files.
    told(unsafe { path(file) }.and_then(engine::remove))
}

/// Where fio keeps what an engine has for one of its files.
///
/// # Safety
/// `file` is one of fio's.
unsafe fn kept(file: *mut File) -> *mut *mut c_void {
    let at = RELEASE.get().map_or(0, |release| release.opened_at);
    debug_assert!(at > 0, "no hook is called before there is a release");
    // SAFETY: the caller says so; it is longer than what is declared of it, and the field is at this place in this release.
    unsafe { file.byte_add(at).cast() }
}

/// What an open file of fio leads to. Of one that could not be opened, its number: fio ends a job for what its reads and
/// writes fail with, and not for this.
type Slot = Result<Opened, c_int>;

unsafe extern "C" fn open_file(_thread: *mut Thread, file: *mut File) -> c_int {
    // SAFETY: fio passes one of its files.
    let opened: Slot = unsafe { path(file) }.and_then(Opened::new).map_err(|fault| tell(&fault));
    // SAFETY: the field is the engine's, and empty while the file is not open.
    unsafe { *kept(file) = Box::into_raw(Box::new(opened)).cast() };
    0
}

unsafe extern "C" fn close_file(_thread: *mut Thread, file: *mut File) -> c_int {
    // SAFETY: fio closes what it has opened, once: the field has what `open_file` left there, which nobody uses any more.
    let opened = unsafe { std::mem::replace(&mut *kept(file), null_mut()) };
    if !opened.is_null() {
        // SAFETY: see above.
        drop(unsafe { Box::from_raw(opened.cast::<Slot>()) });
    }
    0
}

/// There is no cache to be emptied: a volume is memory.
unsafe extern "C" fn invalidate(_thread: *mut Thread, _file: *mut File) -> c_int {
    0
}

/// A unit needs no preparation.
unsafe extern "C" fn prep(_thread: *mut Thread, _unit: *mut Unit) -> c_int {
    0
}

unsafe extern "C" fn queue(_thread: *mut Thread, unit: *mut Unit) -> c_int {
    // SAFETY: fio passes a unit that is this thread's until the hook returns.
    let unit = unsafe { &mut *unit };
    // SAFETY: its file is open, so the field has what `open_file` left there, until `close_file`.
    let opened = unsafe { (*kept(unit.file)).cast::<Slot>().as_ref() };
    let opened = match opened {
        Some(Ok(opened)) => opened,
        Some(Err(errno)) => {
            unit.error = *errno as c_uint;
            return abi::COMPLETED;
        }
        None => {
            unit.error = libc::EBADF as c_uint;
            return abi::COMPLETED;
        }
    };
    let (at, length) = (unit.offset, unit.transfer_length as usize);
    let done = match unit.what {
        // SAFETY: fio's buffer has as many bytes, initialised, and nobody else uses it meanwhile.
        abi::READ => opened.read(at, unsafe { std::slice::from_raw_parts_mut(unit.transfer.cast(), length) }),
        // SAFETY: the same, and nobody changes it.
        abi::WRITE => opened.write(at, unsafe { std::slice::from_raw_parts(unit.transfer.cast(), length) }),
        abi::TRIM => opened.trim(at, length as u64).map(|()| length),
        abi::FSYNC => opened.sync(false).map(|()| length),
        abi::FDATASYNC | abi::SYNC_RANGE => opened.sync(true).map(|()| length),
        _ => Err(vfs::Error::Invalid),
    };
    match done {
        Ok(done) => unit.rest = (length - done) as u64,
        Err(error) => unit.error = error.errno() as c_uint,
    }
    abi::COMPLETED
}

/// Takes the value of an option.
///
/// # Safety
/// `value` is a text with a NUL at its end.
unsafe fn take(option: &str, value: *const c_char) -> c_int {
    // SAFETY: the caller says so.
    let value = unsafe { CStr::from_ptr(value) };
    let value =
        value.to_str().map_err(|_| Fault { what: format!("{value:?} is not UTF-8"), errno: libc::EINVAL });
    told(value.and_then(|value| engine::set(option, value)))
}

unsafe extern "C" fn take_zone(_texts: *mut c_void, value: *const c_char) -> c_int {
    // SAFETY: fio passes the option's text.
    unsafe { take("zone", value) }
}

unsafe extern "C" fn take_volume(_texts: *mut c_void, value: *const c_char) -> c_int {
    // SAFETY: fio passes the option's text.
    unsafe { take("volume", value) }
}

unsafe extern "C" fn take_durability(_texts: *mut c_void, value: *const c_char) -> c_int {
    // SAFETY: fio passes the option's text.
    unsafe { take("durability", value) }
}

type Parsed = unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int;

fn row(name: &'static CStr, help: &'static CStr, place: usize, parsed: Parsed) -> OptionRow {
    OptionRow {
        name: name.as_ptr(),
        long_name: name.as_ptr(),
        kind: abi::TEXT,
        place: place as c_uint,
        length_max: abi::TEXT_MAX,
        parsed: Some(parsed),
        help: help.as_ptr(),
        category: abi::CATEGORY,
        group: abi::GROUP,
        ..OptionRow::NONE
    }
}

fn options() -> Vec<OptionRow> {
    vec![
        row(c"zone", c"File or device of the zone", offset_of!(Texts, zone), take_zone),
        row(c"volume", c"Name of the volume in it", offset_of!(Texts, volume), take_volume),
        row(
            c"durability",
            c"What survives a crash: op (each operation, the default), fsync, snapshot",
            offset_of!(Texts, durability),
            take_durability,
        ),
        OptionRow::NONE,
    ]
}

/// What fio gets, as a release with so many later hooks has it; its address, where it stays.
fn operations<const LATER: usize>(version: c_int) -> usize {
    let operations: Operations<LATER> = Operations {
        name: c"amberfs".as_ptr(),
        version,
        flags: abi::SYNC | abi::DISKLESS | abi::NO_EXTEND | abi::NO_DISK_UTIL,
        init: Some(init),
        prep: Some(prep),
        queue: Some(queue),
        cleanup: Some(cleanup),
        open_file: Some(open_file),
        close_file: Some(close_file),
        invalidate: Some(invalidate),
        unlink_file: Some(unlink_file),
        get_file_size: Some(get_file_size),
        prepopulate_file: Some(prepopulate),
        option_struct_size: size_of::<Texts>() as c_int,
        options: options().leak().as_mut_ptr(),
        ..Operations::NONE
    };
    Box::into_raw(Box::new(operations)).expose_provenance()
}

/// The release of the program that this is loaded into, if it is fio.
fn release() -> Option<String> {
    // SAFETY: the name has a NUL; what is found is looked at only if it is there.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"fio_version_string".as_ptr()) };
    // SAFETY: fio's symbol of this name is a text that ends with a NUL and never changes.
    (!symbol.is_null()).then(|| unsafe { CStr::from_ptr(symbol.cast()) }.to_string_lossy().into_owned())
}

/// Gives fio the engine, or nothing if its structures may be others than those that the engine knows.
///
/// # Safety
/// Only fio calls this, with a place for the engine's address.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn get_ioengine(place: *mut *mut c_void) {
    /// The address of what fio gets.
    static MADE: OnceLock<usize> = OnceLock::new();
    let loaded = release();
    // Debian and others may say more than the release.
    let is_it = |release: &&Release| loaded.as_deref().is_some_and(|name| release.names.contains(&name));
    let Some(release) = abi::RELEASES.iter().find(is_it) else {
        let known: Vec<&str> = abi::RELEASES.iter().flat_map(|release| release.names).copied().collect();
        eprintln!(
            "amberfs: this engine knows the structures of {}, not those of {}; use one of them, or measure a mount with \
             fio's own engines",
            known.join(", "),
            loaded.as_deref().unwrap_or("this program")
        );
        return;
    };
    let release = *RELEASE.get_or_init(|| release);
    let made = MADE.get_or_init(|| match release.later_hooks {
        0 => operations::<0>(release.version),
        2 => operations::<2>(release.version),
        _ => operations::<3>(release.version),
    });
    // SAFETY: the caller says so.
    unsafe { *place = std::ptr::with_exposed_provenance_mut(*made) };
}
