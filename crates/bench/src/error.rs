//! Why a benchmark ended early. Whatever the reason, what it had made is gone when the error is told.

use rustix::io::Errno;

/// What fails if the system gives no more threads.
pub(crate) const STARTING: &str = "start a thread";

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The operation.
    pub doing: &'static str,
    /// What it gave; `INTR` if the benchmark was told to stop.
    pub errno: Errno,
    /// Why, in the words of who did it, where that is not a system call.
    pub why: Option<String>,
}

impl Fault {
    /// Of what gives a number alone.
    pub(crate) fn new(doing: &'static str, errno: Errno) -> Fault {
        Fault { doing, errno, why: None }
    }
}

/// Why a benchmark ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It was told to.
    #[error("interrupted")]
    Interrupted,
    /// No room for a workload.
    #[error("{target} is full: {workload} needs more room ({doing}: {errno})")]
    Full {
        /// Where.
        target: String,
        /// The workload.
        workload: String,
        /// The operation that found no room.
        doing: &'static str,
        /// `ENOSPC` or `EDQUOT`.
        errno: Errno,
    },
    /// Nothing can be made there.
    #[error("{target} is read-only: a benchmark has to make files there")]
    ReadOnly {
        /// Where.
        target: String,
    },
    /// Too few files can be open.
    #[error(
        "{workload} has more directories and files open at once than this process may ({limit}, RLIMIT_NOFILE)"
    )]
    TooManyOpen {
        /// The workload.
        workload: String,
        /// How many it may.
        limit: u64,
    },
    /// An operation failed.
    #[error("{target}: {workload}: {doing}: {errno}")]
    Operation {
        /// Where.
        target: String,
        /// The workload.
        workload: String,
        /// The operation.
        doing: &'static str,
        /// Why.
        errno: Errno,
    },
    /// The same of one that says why in words.
    #[error("{target}: {workload}: {doing}: {why}")]
    Told {
        /// Where.
        target: String,
        /// The workload.
        workload: String,
        /// The operation.
        doing: &'static str,
        /// Why.
        why: String,
    },
    /// A target cannot be worked on at all.
    #[error("{target}: {why}")]
    Target {
        /// Where.
        target: String,
        /// Why not.
        why: String,
    },
    /// A tool failed.
    #[error("{tool} on {target}: {why}")]
    Tool {
        /// Its name.
        tool: &'static str,
        /// Where.
        target: String,
        /// Why.
        why: String,
    },
}

impl Error {
    /// Tells where a fault was found.
    pub(crate) fn of(fault: Fault, target: &str, workload: &str) -> Error {
        let (target, workload) = (target.to_string(), workload.to_string());
        let Fault { doing, errno, why } = fault;
        if let Some(why) = why {
            return Error::Told { target, workload, doing, why };
        }
        match errno {
            Errno::INTR => Error::Interrupted,
            Errno::NOSPC | Errno::DQUOT => Error::Full { target, workload, doing, errno },
            Errno::ROFS => Error::ReadOnly { target },
            Errno::MFILE => {
                let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
                Error::TooManyOpen { workload, limit: limit.unwrap_or(u64::MAX) }
            }
            errno => Error::Operation { target, workload, doing, errno },
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Error::Full { .. } => Some(
                "free some space, or ask for less (--quick, --scale, files= and size= of the workload); peers are larger with --size",
            ),
            Error::ReadOnly { .. } => Some("mount it read-write, or name another directory"),
            Error::TooManyOpen { .. } => {
                Some("raise the limit ('ulimit -n'), or ask for fewer files or a greater width")
            }
            Error::Operation { doing: STARTING, .. } => Some(
                "ask for fewer threads (threads= of the workload), or raise the limit ('ulimit -u', a container's pids)",
            ),
            _ => None,
        }
    }
}
