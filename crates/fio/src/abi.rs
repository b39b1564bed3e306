//! What fio and an external engine agree on, as far as this engine needs it, on 64-bit Linux.
//!
//! These are declarations of our own. Of structures that fio makes only the beginnings are here; nothing depends on
//! how long they are, nor on anything in fio's description of a thread, whose layout follows how fio was configured. What
//! differs from release to release is in [`RELEASES`].

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::{null, null_mut};

/// Releases of fio with the same structures.
pub(crate) struct Release {
    pub(crate) names: &'static [&'static str],
    /// The version of the interface (`FIO_IOOPS_VERSION`), which fio compares with its own.
    pub(crate) version: c_int,
    /// Hooks that [`Operations`] has behind those of the first release.
    pub(crate) later_hooks: usize,
    /// Where a `struct fio_file` has what an engine may keep there, bytes from its beginning.
    pub(crate) opened_at: usize,
}

/// Those whose structures are known. From 3.40 on a `struct io_u` is another one.
pub(crate) static RELEASES: [Release; 4] = [
    Release { names: &["fio-3.33"], version: 31, later_hooks: 0, opened_at: 176 },
    Release { names: &["fio-3.34", "fio-3.35"], version: 32, later_hooks: 2, opened_at: 184 },
    Release { names: &["fio-3.36", "fio-3.37"], version: 33, later_hooks: 3, opened_at: 184 },
    Release { names: &["fio-3.38", "fio-3.39"], version: 36, later_hooks: 3, opened_at: 192 },
];

/// The job's thread: known by its address only.
pub(crate) type Thread = c_void;

/// `FIO_SYNCIO`: what is queued is done.
pub(crate) const SYNC: c_int = 1 << 0;
/// `FIO_DISKLESSIO`: the files are not the kernel's.
pub(crate) const DISKLESS: c_int = 1 << 2;
/// `FIO_NOEXTEND`: fio does not make files longer itself.
pub(crate) const NO_EXTEND: c_int = 1 << 3;
/// `FIO_NODISKUTIL`: they are on no disk that it could watch.
pub(crate) const NO_DISK_UTIL: c_int = 1 << 4;

/// `FIO_Q_COMPLETED`: it was done, well or not.
pub(crate) const COMPLETED: c_int = 0;

/// What is to be done (`enum fio_ddir`).
pub(crate) const READ: c_int = 0;
pub(crate) const WRITE: c_int = 1;
pub(crate) const TRIM: c_int = 2;
pub(crate) const FSYNC: c_int = 3;
pub(crate) const FDATASYNC: c_int = 4;
pub(crate) const SYNC_RANGE: c_int = 5;

/// `FIO_TYPE_FILE`.
pub(crate) const REGULAR: c_int = 1;

type Unused = Option<unsafe extern "C" fn()>;
pub(crate) type ForThread = Option<unsafe extern "C" fn(*mut Thread) -> c_int>;
pub(crate) type ForFile = Option<unsafe extern "C" fn(*mut Thread, *mut File) -> c_int>;

/// `struct ioengine_ops`, with so many hooks that came later.
#[repr(C)]
pub(crate) struct Operations<const LATER: usize> {
    pub(crate) list: [*mut c_void; 2],
    pub(crate) name: *const c_char,
    pub(crate) version: c_int,
    pub(crate) flags: c_int,
    pub(crate) library: *mut c_void,
    pub(crate) setup: Unused,
    pub(crate) init: ForThread,
    pub(crate) post_init: Unused,
    pub(crate) prep: Option<unsafe extern "C" fn(*mut Thread, *mut Unit) -> c_int>,
    pub(crate) queue: Option<unsafe extern "C" fn(*mut Thread, *mut Unit) -> c_int>,
    pub(crate) commit: Unused,
    pub(crate) getevents: Unused,
    pub(crate) event: Unused,
    pub(crate) errdetails: Unused,
    pub(crate) cancel: Unused,
    pub(crate) cleanup: Option<unsafe extern "C" fn(*mut Thread)>,
    pub(crate) open_file: ForFile,
    pub(crate) close_file: ForFile,
    pub(crate) invalidate: ForFile,
    pub(crate) unlink_file: ForFile,
    pub(crate) get_file_size: ForFile,
    pub(crate) prepopulate_file: ForFile,
    pub(crate) terminate: Unused,
    pub(crate) iomem_alloc: Unused,
    pub(crate) iomem_free: Unused,
    pub(crate) io_u_init: Unused,
    pub(crate) io_u_free: Unused,
    pub(crate) get_zoned_model: Unused,
    pub(crate) report_zones: Unused,
    pub(crate) reset_wp: Unused,
    pub(crate) get_max_open_zones: Unused,
    pub(crate) later: [Unused; LATER],
    pub(crate) option_struct_size: c_int,
    pub(crate) options: *mut OptionRow,
}

impl<const LATER: usize> Operations<LATER> {
    /// No hook at all.
    pub(crate) const NONE: Operations<LATER> = Operations {
        list: [null_mut(); 2],
        name: null(),
        version: 0,
        flags: 0,
        library: null_mut(),
        setup: None,
        init: None,
        post_init: None,
        prep: None,
        queue: None,
        commit: None,
        getevents: None,
        event: None,
        errdetails: None,
        cancel: None,
        cleanup: None,
        open_file: None,
        close_file: None,
        invalidate: None,
        unlink_file: None,
        get_file_size: None,
        prepopulate_file: None,
        terminate: None,
        iomem_alloc: None,
        iomem_free: None,
        io_u_init: None,
        io_u_free: None,
        get_zoned_model: None,
        report_zones: None,
        reset_wp: None,
        get_max_open_zones: None,
        later: [None; LATER],
        option_struct_size: 0,
        options: null_mut(),
    };
}

/// `struct io_u`, to its error: one read, write, trim or sync.
#[repr(C)]
pub(crate) struct Unit {
    times: [u64; 4],
    pub(crate) file: *mut File,
    flags: c_uint,
    pub(crate) what: c_int,
    accounted_as: c_int,
    number: u16,
    priorities: [u16; 2],
    length: u64,
    pub(crate) offset: u64,
    verify_offset: u64,
    buffer: *mut c_void,
    seed: u64,
    pub(crate) transfer: *mut c_void,
    pub(crate) transfer_length: u64,
    filled: u64,
    piece: *mut c_void,
    /// Bytes not transferred.
    pub(crate) rest: u64,
    pub(crate) error: c_uint,
}

/// `struct fio_file`, to how long it is. Where it has what an engine may keep there, its release says ([`Release::opened_at`]).
#[repr(C)]
pub(crate) struct File {
    list: [*mut c_void; 2],
    pub(crate) kind: c_int,
    fds: [c_int; 2],
    device: [c_uint; 2],
    number: c_int,
    pub(crate) name: *const c_char,
    pub(crate) real_size: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// `FIO_OPT_STR_STORE`.
pub(crate) const TEXT: c_int = 6;
/// `FIO_OPT_C_ENGINE` and `FIO_OPT_G_INVALID`.
pub(crate) const CATEGORY: u64 = 1 << 6;
pub(crate) const GROUP: u64 = 1 << 40;
/// Of an option's text, with its NUL.
pub(crate) const TEXT_MAX: c_uint = 4096;

/// `struct fio_option`.
#[repr(C)]
pub(crate) struct OptionRow {
    pub(crate) name: *const c_char,
    pub(crate) long_name: *const c_char,
    pub(crate) alias: *const c_char,
    pub(crate) kind: c_int,
    /// Where in [`Texts`] fio keeps a copy of the value.
    pub(crate) place: c_uint,
    pub(crate) places: [c_uint; 5],
    pub(crate) max: u64,
    pub(crate) min: c_int,
    pub(crate) floats: [f64; 2],
    pub(crate) interval: c_uint,
    pub(crate) length_max: c_uint,
    pub(crate) negated: c_int,
    pub(crate) priority: c_int,
    pub(crate) parsed: Option<unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int>,
    pub(crate) help: *const c_char,
    pub(crate) default: *const c_char,
    pub(crate) values: [[u64; 5]; 32],
    pub(crate) parent: *const c_char,
    pub(crate) hide: [c_int; 2],
    pub(crate) inverse: [*mut c_void; 2],
    pub(crate) verify: Unused,
    pub(crate) profile: [*mut c_void; 2],
    pub(crate) category: u64,
    pub(crate) group: u64,
    pub(crate) gui: *mut c_void,
    pub(crate) time: [c_int; 2],
    pub(crate) rest: [c_int; 3],
}

impl OptionRow {
    /// What ends a list of options.
    pub(crate) const NONE: OptionRow = OptionRow {
        name: null(),
        long_name: null(),
        alias: null(),
        kind: 0,
        place: 0,
        places: [0; 5],
        max: 0,
        min: 0,
        floats: [0.0; 2],
        interval: 0,
        length_max: 0,
        negated: 0,
        priority: 0,
        parsed: None,
        help: null(),
        default: null(),
        values: [[0; 5]; 32],
        parent: null(),
        hide: [0; 2],
        inverse: [null_mut(); 2],
        verify: None,
        profile: [null_mut(); 2],
        category: 0,
        group: 0,
        gui: null_mut(),
        time: [0; 2],
        rest: [0; 3],
    };
}

/// What fio keeps the values of options in; it begins with the thread's address.
#[repr(C)]
pub(crate) struct Texts {
    thread: *mut Thread,
    pub(crate) zone: *const c_char,
    pub(crate) volume: *const c_char,
    pub(crate) durability: *const c_char,
}

const _: () = {
    assert!(size_of::<Operations<0>>() == 264 && offset_of!(Operations<0>, queue) == 72);
    assert!(offset_of!(Operations<0>, prepopulate_file) == 168 && offset_of!(Operations<0>, options) == 256);
    assert!(size_of::<Operations<3>>() == 288 && offset_of!(Operations<3>, options) == 280);
    assert!(offset_of!(Unit, file) == 32 && offset_of!(Unit, what) == 44 && offset_of!(Unit, offset) == 72);
    assert!(offset_of!(Unit, transfer) == 104 && offset_of!(Unit, transfer_length) == 112);
    assert!(offset_of!(Unit, rest) == 136 && offset_of!(Unit, error) == 144);
    assert!(offset_of!(File, kind) == 16 && offset_of!(File, name) == 40 && offset_of!(File, size) == 64);
    assert!(size_of::<OptionRow>() == 1512 && offset_of!(OptionRow, parsed) == 104);
    assert!(offset_of!(OptionRow, values) == 128 && offset_of!(OptionRow, category) == 1464);
};
