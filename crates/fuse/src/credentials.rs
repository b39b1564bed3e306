//! Who asks.

use std::fs;
use std::sync::Arc;

use vfs::{Attr, Caller};

use crate::abi::InHeader;

/// The identity behind a message, whose permissions the kernel has checked.
pub(crate) fn caller(header: &InHeader, umask: u32) -> Caller {
    Caller::checked_by_kernel(header.uid, header.gid, umask & 0o777)
}

/// The same where the kernel says that it has no privileges over the file with these attributes, whose contents it changes: then
/// set-user-ID and set-group-ID go ([`vfs::rules::mode_after_write`]).
pub(crate) fn unprivileged(header: &InHeader, attr: &Attr) -> Caller {
    const S_ISGID: u32 = 0o2000;
    const S_IXGRP: u32 = 0o10;
    let mut caller = Caller::user(u32::MAX - 1, header.gid);
    // A message has no supplementary groups, and nearly always nothing depends on them.
    if attr.mode & (S_ISGID | S_IXGRP) == S_ISGID && header.gid != attr.gid {
        caller.groups = groups_of(header.pid);
    }
    caller
}

/// The supplementary groups of a thread; none if it has ended, or is none of the server's namespace (0).
fn groups_of(thread: u32) -> Arc<[u32]> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_whitespace().filter_map(|group| group.parse().ok()).collect()
}
