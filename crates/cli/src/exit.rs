//! Exit codes: those of mount(8) and fsck(8) where we stand in for them.

/// Usage, for commands without codes of their own.
pub(crate) const USAGE: u8 = 2;

/// Ended by a signal that was caught, as shells tell SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// mount(8): wrong invocation.
pub(crate) const MOUNT_USAGE: u8 = 1;
/// mount(8): a system error: no memory, no process; behind an unmount, a volume that could not be closed.
pub(crate) const MOUNT_SYSTEM: u8 = 2;
/// mount(8): interrupted by the user.
pub(crate) const MOUNT_INTERRUPTED: u8 = 8;
/// mount(8): the mount failed.
pub(crate) const MOUNT_FAILED: u8 = 32;

/// fsck(8): errors were corrected.
pub(crate) const FSCK_CORRECTED: u8 = 1;
/// fsck(8): errors are left.
pub(crate) const FSCK_UNCORRECTED: u8 = 4;
/// fsck(8): could not check.
pub(crate) const FSCK_OPERATIONAL: u8 = 8;
/// fsck(8): wrong invocation.
pub(crate) const FSCK_USAGE: u8 = 16;

/// mkfs(8): whatever failed.
pub(crate) const MKFS_USAGE: u8 = 1;
