//! What each way that requests can come has to hold.

mod caches;
mod lives;
mod refusals;
pub mod support;
