//! What is done to an open zone or a volume of it, whoever has it open: a command, or the zone's server for one.
//!
//! Commands parse, ask and print; the server answers; both call this, which knows neither of them. What a server is asked to do is described by
//! types from here (`Settings`, `Ask`, `Pair`), which the control socket carries.

pub(crate) mod account;
pub(crate) mod attachment;
pub(crate) mod check;
pub(crate) mod describe;
pub(crate) mod differences;
pub(crate) mod dump;
pub(crate) mod format;
pub(crate) mod snapshots;
pub(crate) mod zone;
