//! What each way that requests can come has to hold.

mod caches;
mod lives;
pub mod support;
