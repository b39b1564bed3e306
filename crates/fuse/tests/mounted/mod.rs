//! What each way that requests can come has to hold.

mod caches;
mod lives;
mod privileges;
mod refusals;
pub mod support;
