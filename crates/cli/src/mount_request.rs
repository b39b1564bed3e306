//! What is to be mounted where, as a command asks for it and a server does it.

use std::path::PathBuf;

use crate::options::Options;
use crate::place::MountSource;

/// What is to be mounted where, with paths that hold from any directory.
#[derive(Clone, Debug)]
pub(crate) struct MountRequest {
    pub(crate) source: MountSource,
    pub(crate) dir: PathBuf,
    pub(crate) option_lists: Vec<String>,
    pub(crate) sloppy: bool,
}

/// What the kernel is told of a mount.
pub(crate) fn fuse_options(source: &MountSource, options: &Options) -> fuse::MountOptions {
    let default = fuse::MountOptions::default();
    fuse::MountOptions {
        fs_name: source.to_string(),
        read_only: options.read_only,
        allow_other: options.allow_other.unwrap_or(default.allow_other),
        threads: options.threads.unwrap_or(default.threads),
        transport: options.transport,
        birth_times: options.birth_times,
        opens_by_handle: options.opens_by_handle,
        async_direct_io: options.async_direct_io,
        checked_close: options.checked_close,
        // A page that the kernel keeps back would break the promise that every operation is durable.
        writeback_cache: options.durability != native::Durability::Operation,
        nosuid: options.nosuid || default.nosuid,
        nosymfollow: options.nosymfollow,
        nodev: options.nodev || default.nodev,
        noexec: options.noexec,
        noatime: options.noatime,
        ..default
    }
}
