//! Which file or device a path leads to: by that, and not by a path, a zone and its server know each other. So a zone that is renamed, bound or
//! linked elsewhere while it is served has its server still, and one that is made in its place has not.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A file, by device and inode; of a device, its own number, since there may be several nodes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ZoneFile(String);

impl ZoneFile {
    pub(crate) fn of(metadata: &Metadata) -> ZoneFile {
        let kind = metadata.file_type();
        ZoneFile(match (kind.is_char_device(), kind.is_block_device()) {
            (true, _) => format!("char {}", metadata.rdev()),
            (_, true) => format!("block {}", metadata.rdev()),
            _ => format!("{}:{}", metadata.dev(), metadata.ino()),
        })
    }

    /// Of what `path` leads to.
    pub(crate) fn at(path: &Path) -> Option<ZoneFile> {
        std::fs::metadata(path).ok().map(|metadata| ZoneFile::of(&metadata))
    }
}
