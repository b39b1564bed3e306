//! On whose behalf an operation runs.

use std::sync::Arc;

/// The credentials of whoever asks for an operation.
#[derive(Clone, Debug)]
pub struct Caller {
    /// File-system user ID.
    pub uid: u32,
    /// File-system group ID.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Arc<[u32]>,
    /// File mode creation mask (`& 0777`); applied unless a default ACL takes its place.
    pub umask: u32,
    /// The front end has checked permissions already (a FUSE mount with `default_permissions`): the volume
    /// uses the identity for ownership only.
    pub trusted: bool,
    /// It keeps the times of regular files itself, and sets them with `setattr` (the kernel, on a FUSE mount with a writeback cache): changes
    /// of contents, length and flags leave mtime and ctime as they are.
    pub keeps_times: bool,
    /// What it brings a cache has had, perhaps since before [`crate::InodeFlags::PROTECTION`] was set: that forbids it nothing that an open file allows.
    pub from_cache: bool,
}

impl Caller {
    /// The superuser, umask 0: no permission is denied.
    pub fn root() -> Caller {
        Caller { umask: 0, ..Caller::user(0, 0) }
    }

    /// An ordinary user without supplementary groups, umask 022.
    pub fn user(uid: u32, gid: u32) -> Caller {
        let groups = Arc::from([]);
        Caller { uid, gid, groups, umask: 0o022, trusted: false, keeps_times: false, from_cache: false }
    }

    /// A user whose permissions the kernel has checked before the request came.
    pub fn checked_by_kernel(uid: u32, gid: u32, umask: u32) -> Caller {
        Caller { umask, trusted: true, ..Caller::user(uid, gid) }
    }

    /// The same as a cache that keeps times itself.
    #[must_use]
    pub fn keeping_times(self) -> Caller {
        Caller { keeps_times: true, ..self }
    }

    /// Whether no permission check applies to this caller.
    pub fn is_privileged(&self) -> bool {
        self.trusted || self.uid == 0
    }

    /// Whether the caller belongs to `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
