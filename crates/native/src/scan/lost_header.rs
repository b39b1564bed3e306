//! What the header of a half of the log said that is damaged: its transactions tell.
//!
//! A half's salt follows from the volume's key, the mount and the epoch, and no other use of any log ever had it. So one
//! transaction that is right with it says which header stood before it. None is in a half whose header was not durable.

use super::{NONE, beginning, is_whole};
use crate::geometry::{BLOCK, LANES, Medium};
use crate::journal::{HALF_HEADER, HalfHeader, chunk_bytes, salt_of};
use crate::record::ALIGN;

/// The running epoch is behind the newest checkpoint by 1, or 2 while the next one is made, and by 1 more for each mount since that
/// found nothing to replay; and so many mounts may have failed to replay it.
const MOUNTS: u32 = 8;

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
        (published + 1..=published + 2 + MOUNTS).flat_map(move |version| {
            let opened = mounts.saturating_sub(MOUNTS.into())..=mounts;
            opened.rev().map(move |mounts| (version, salt_of(key, mounts, version)))
        })
    };
    let starts = std::iter::once(HALF_HEADER).chain((chunk..length).step_by(chunk as usize));
    for start in starts {
        let bytes = match medium.region.ask(at + start, ALIGN, beginning, numbers) {
            bytes if bytes == NONE || bytes > length - start => continue,
            bytes => bytes as usize,
        };
        let is_right = |salt: u64| medium.region.ask(at + start, bytes, is_whole, [salt, 0]) != 0;
        if let Some((version, salt)) = salts().find(|(_, salt)| is_right(*salt)) {
            return Some(HalfHeader::new(version, salt, first, LANES as u32));
        }
    }
    None
}
