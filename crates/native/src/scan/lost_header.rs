//! What the header of a half of the log said that is damaged: its transactions tell.
//!
//! A half's salt follows from the volume's key, the mount and the epoch, and no other use of any log ever had it. So one
//! transaction that is right with it says which header stood before it. None is in a half whose header was not durable.

use super::{NONE, beginning, is_whole};
use crate::geometry::{BLOCK, LANES, Medium};
use crate::journal::{HALF_HEADER, HalfHeader, chunk_bytes, salt_of};
use crate::record::ALIGN;

/// The epoch is behind the newest checkpoint by 1, or 2 while the next one is made, and by 1 more for each mount since that
/// changed nothing; and since its own mount others may have failed to replay it. Of either there were no more than these.
const MOUNTS: u64 = 128;

/// The header that half `half` had, if it has transactions of an epoch behind the checkpoint of version `published`, of which
/// `first` is the first; the volume was opened `mounts` times.
pub(super) fn find(
    medium: &Medium,
    key: [u64; 2],
    half: usize,
    (published, mounts): (u32, u64),
    first: u64,
) -> Option<HalfHeader> {
    let at = medium.geometry.log_at(half);
    let (chunk, length) = (chunk_bytes(&medium.geometry), medium.geometry.log_half * BLOCK);
    let numbers = [first, first.saturating_add(length / ALIGN as u64)];
    let salts = || {
        (0..=MOUNTS.min(mounts)).flat_map(move |failed| {
            let versions = published + 1..=published + 2 + MOUNTS as u32;
            versions.map(move |version| (version, salt_of(key, mounts - failed, version)))
        })
    };
    let starts = std::iter::once(HALF_HEADER).chain((chunk..length).step_by(chunk as usize));
    let found = starts.filter_map(|start| match medium.region.ask(at + start, ALIGN, beginning, numbers) {
        bytes if bytes == NONE || bytes > length - start => None,
        bytes => Some((at + start, bytes as usize)),
    });
    // What another volume left there looks like transactions, too. Of those that are, at most one of each lane is damaged.
    found.take(LANES + 1).find_map(|(at, bytes)| {
        let (version, salt) =
            salts().find(|(_, salt)| medium.region.ask(at, bytes, is_whole, [*salt, 0]) != 0)?;
        Some(HalfHeader::new(version, salt, first, LANES as u32))
    })
}
