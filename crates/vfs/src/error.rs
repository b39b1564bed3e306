//! Why an operation failed, in POSIX's terms.

/// The result of a file operation.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $errno:literal, $text:literal;)*) => {
        /// Why a file operation failed. Each error is one errno, and [`Error::errno`] gives it.
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum Error {
            $($(#[$doc])* #[error($text)] $name,)*
            /// The medium is damaged or could not be read: what, where, and what to do. `EIO`.
            #[error("{0}")]
            Io(String),
            /// The volume's structures contradict themselves: which, where, what was expected. `EUCLEAN`.
            #[error("{0}")]
            Corrupt(String),
        }

        impl Error {
            /// Linux's error number (x86-64 and arm64).
            pub fn errno(&self) -> i32 {
                match self {
                    $(Error::$name => $errno,)*
                    Error::Io(_) => 5,
                    Error::Corrupt(_) => 117,
                }
            }
        }
    };
}

errors! {
    /// `EPERM`.
    NotPermitted = 1, "operation not permitted";
    /// `ENOENT`.
    NotFound = 2, "no such file or directory";
    /// `ENXIO`: no data or hole beyond this offset.
    NoSuchOffset = 6, "no such offset";
    /// `EBADF`.
    BadHandle = 9, "bad file handle";
    /// `EACCES`.
    AccessDenied = 13, "permission denied";
    /// `EBUSY`.
    Busy = 16, "resource busy";
    /// `EEXIST`.
    Exists = 17, "file exists";
    /// `EXDEV`.
    CrossDevice = 18, "cross-device link";
    /// `ENOTDIR`.
    NotDirectory = 20, "not a directory";
    /// `EISDIR`.
    IsDirectory = 21, "is a directory";
    /// `EINVAL`.
    Invalid = 22, "invalid argument";
    /// `ETXTBSY`.
    TextBusy = 26, "text file busy";
    /// `EFBIG`.
    FileTooLarge = 27, "file too large";
    /// `ENOSPC`.
    NoSpace = 28, "no space left on volume";
    /// `EROFS`.
    ReadOnly = 30, "read-only file system";
    /// `EMLINK`.
    TooManyLinks = 31, "too many links";
    /// `ERANGE`.
    Range = 34, "result too large for the buffer";
    /// `ENAMETOOLONG`.
    NameTooLong = 36, "file name too long";
    /// `ENOTEMPTY`.
    NotEmpty = 39, "directory not empty";
    /// `ELOOP`.
    Loop = 40, "too many levels of symbolic links";
    /// `ENODATA`.
    NoAttribute = 61, "no such attribute";
    /// `EOPNOTSUPP`.
    NotSupported = 95, "operation not supported";
    /// `ESTALE`: the inode is gone.
    Stale = 116, "stale file handle";
    /// `EDQUOT`.
    QuotaExceeded = 122, "quota exceeded";
    /// `E2BIG`.
    TooBig = 7, "argument too big";
}
