//! Failures, told as: what happened, what we were doing, the state it leaves, what to do.

use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};

/// Exit code of a command that failed, unless it has codes of its own.
pub(crate) const EXIT_FAILURE: u8 = 1;

/// Why a command failed. Its text goes to standard error, its code to the caller.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// What happened, in one sentence.
    pub(crate) what: String,
    /// What we were doing: "opening the zone".
    pub(crate) doing: Option<String>,
    /// The state it leaves: "nothing was mounted".
    pub(crate) state: Option<String>,
    /// What to do about it.
    pub(crate) remedy: Option<String>,
    /// The process's exit code.
    pub(crate) exit: u8,
    /// Nothing has been done, and the whole command may succeed a moment later.
    #[serde(default)]
    pub(crate) again: bool,
    /// Nothing has the path of the disk: the failure that `nofail` forgives.
    #[serde(default)]
    pub(crate) no_disk: bool,
}

/// What `work` gives. A panic is a bug, and a failure that leaves `state`.
pub(crate) fn guarded<T>(state: &str, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
        Err(Failure::new(format!("the server panicked: {text}"))
            .leaving(state)
            .remedy("unmount what it serves, check the volume with 'amberfs fsck', and report this"))
    })
}

impl Failure {
    pub(crate) fn new(what: impl fmt::Display) -> Failure {
        Failure {
            what: what.to_string(),
            doing: None,
            state: None,
            remedy: None,
            exit: EXIT_FAILURE,
            again: false,
            no_disk: false,
        }
    }

    /// Who was asked just stops serving that.
    pub(crate) fn ending(what: &str) -> Failure {
        Failure { again: true, ..Failure::new(format!("{what} is just ending")).remedy("try again") }
    }

    pub(crate) fn doing(mut self, doing: impl fmt::Display) -> Failure {
        self.doing.get_or_insert(doing.to_string());
        self
    }

    pub(crate) fn leaving(mut self, state: impl fmt::Display) -> Failure {
        self.state.get_or_insert(state.to_string());
        self
    }

    pub(crate) fn remedy(mut self, remedy: impl fmt::Display) -> Failure {
        self.remedy.get_or_insert(remedy.to_string());
        self
    }

    pub(crate) fn exit(mut self, code: u8) -> Failure {
        self.exit = code;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.what))?;
        for (label, text) in [("while", &self.doing), ("now", &self.state), ("to do", &self.remedy)] {
            if let Some(text) = text {
                write!(f, "\n  {label}: {}", printable(text))?;
            }
        }
        Ok(())
    }
}

/// Says something on standard error, in one piece. Whoever reads it may be gone: that ends nobody's work.
pub(crate) fn tell(text: impl fmt::Display) {
    tell_at_once(format_args!("{text}\n"));
}

/// The same without ending the line.
pub(crate) fn tell_at_once(text: impl fmt::Display) {
    let _ = std::io::stderr().write_all(text.to_string().as_bytes());
}

/// Without what could make a terminal do things: of control characters only line ends stay.
pub(crate) fn printable(text: &str) -> String {
    text.replace(|char: char| char.is_control() && char != '\n', "\u{FFFD}")
}

macro_rules! failure_from {
    ($($error:ty),*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                Failure::new(error)
            }
        })*
    };
}

failure_from!(
    nvm::Error,
    nvm::MediaError,
    native::Error,
    disk::Error,
    ext::Error,
    fuse::Error,
    crash::ProgramError,
    crash::ProgramFailure,
    std::io::Error
);

impl From<bench::Error> for Failure {
    fn from(error: bench::Error) -> Failure {
        let remedy = error.remedy();
        let exit = if error == bench::Error::Interrupted { crate::exit::INTERRUPTED } else { EXIT_FAILURE };
        let failure = Failure::new(error)
            .leaving("what the benchmark made is gone again, where it could be removed")
            .exit(exit);
        match remedy {
            Some(remedy) => failure.remedy(remedy),
            None => failure,
        }
    }
}

/// Adds to the failure of a result.
pub(crate) trait Explain<T> {
    /// What we were doing.
    fn doing(self, doing: impl fmt::Display) -> Result<T, Failure>;
    /// The state it leaves.
    fn leaving(self, state: impl fmt::Display) -> Result<T, Failure>;
    /// The exit code.
    fn exit(self, code: u8) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> Explain<T> for Result<T, E> {
    fn doing(self, doing: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| error.into().doing(doing))
    }

    fn leaving(self, state: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| error.into().leaving(state))
    }

    fn exit(self, code: u8) -> Result<T, Failure> {
        self.map_err(|error| error.into().exit(code))
    }
}
