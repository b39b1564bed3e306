//! What a server has to say: on standard error, and from the beginning in its log, where a mount at boot is looked up. **What cannot be written, as on
//! a full file system, is lost, and nothing else**: whoever has something to say goes on.

use std::fs::File;
use std::io::{self, Write};

use parking_lot::Mutex;

/// The log, while standard error is the caller's.
static BESIDE: Mutex<Option<File>> = Mutex::new(None);

/// Has what the layers below have to say written to standard error, and to `log`, if there is one beside it.
pub(crate) fn start(log: Option<File>) {
    *BESIDE.lock() = log;
    let _ = tracing_subscriber::fmt()
        .with_writer(|| Everywhere)
        .with_ansi(false)
        .with_max_level(tracing::Level::INFO)
        .log_internal_errors(false)
        .try_init();
}

/// Standard error is the log now.
pub(crate) fn is_standard_error() {
    *BESIDE.lock() = None;
}

/// Writes to the log what standard error is not to have: whoever called is told otherwise.
pub(crate) fn note(text: std::fmt::Arguments<'_>) {
    if let Some(log) = &mut *BESIDE.lock() {
        let _ = log.write_all(format!("{text}\n").as_bytes());
    }
}

/// A line comes in one piece, and the log is opened to be appended to.
struct Everywhere;

impl Write for Everywhere {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(log) = &mut *BESIDE.lock() {
            let _ = log.write_all(bytes);
        }
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
