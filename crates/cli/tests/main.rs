//! What holds of the program, by theme. One test program: what they share is built once, and those that wait do it beside those that work.

mod answers;
mod attached;
mod bad_input;
mod bench;
mod crash;
mod disks;
mod disks_at_work;
mod documents;
mod dump;
mod flags;
mod fsck;
mod life;
mod limits;
mod listing;
mod media;
mod namespaces;
mod other_users;
mod places;
mod policy;
mod reading;
mod rollback;
mod snapshots;
mod support;
