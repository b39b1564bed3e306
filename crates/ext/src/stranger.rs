//! What else a disk may hold: who has named the wrong one, or a whole disk instead of a partition, is told what it is, and which to
//! name.
//!
//! Only ever words of a message: nothing is decided by it.

use disk::{Disk, Purpose};
use nvm::signature::{self, Content};

/// What `disk`, on which there is no ext, holds instead, to be said behind a comma; nothing if that is not known.
pub(crate) fn instead(disk: &Disk) -> String {
    let sector = u64::from(disk.sector());
    let length =
        (disk.bytes() / sector * sector).min((signature::LOOK_BYTES as u64).next_multiple_of(sector));
    let mut start = vec![0; length as usize];
    if start.is_empty() || disk.read(Purpose::Metadata, 0, &mut start).is_err() {
        return String::new();
    }
    let Some(content) = signature::recognise(&start) else { return ", but zeros".into() };
    let advice = match content {
        Content::Known(_) => "",
        Content::Partitions(_) => ": name one of the partitions",
        Content::Luks => ": `cryptsetup open` it, and name what that makes",
        Content::Lvm => ": name one of the logical volumes",
        Content::Raid => ": name the device that it is in",
        Content::Unknown(_) => return String::new(),
    };
    format!(", but {content}{advice}")
}
