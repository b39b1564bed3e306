//! What a zone really is, for whoever wants to verify what they have: on DAX? which flush? huge pages?

use std::path::PathBuf;

use uuid::Uuid;

use crate::backing::Backing;
use crate::entrance::EntranceHealth;
use crate::persist::PersistMethod;
use crate::technology::Technology;

/// What one really has: see [`crate::Zone::info`].
#[derive(Clone, Debug)]
pub struct ZoneInfo {
    /// Where the zone is; `memory` for one in memory.
    pub path: PathBuf,
    /// Bytes of the zone.
    pub bytes: u64,
    /// Bytes that no volume has.
    pub free_bytes: u64,
    /// Its UUID.
    pub uuid: Uuid,
    /// When it was created, in seconds since 1970.
    pub created_s: u64,
    /// The format's version.
    pub version: u32,
    /// What it is made of.
    pub backing: Backing,
    /// How lines leave the caches.
    pub persist: PersistMethod,
    /// Why that way.
    pub persist_reason: &'static str,
    /// Bytes that huge pages map just now; None where the system doesn't tell.
    pub huge_bytes: Option<u64>,
    /// The technology emulated.
    pub technology: Technology,
    /// Whether it was opened read-only.
    pub read_only: bool,
    /// In which state the entrance was found.
    pub entrance: EntranceHealth,
    /// Volumes that opening it removed, since making them had been cut off.
    pub removed_unfinished: Vec<String>,
}

/// Bytes of the mapping at `start` that huge pages map, from `/proc/self/smaps`.
pub(crate) fn huge_bytes(start: usize, backing: &Backing) -> Option<u64> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&format!("{start:x}-")));
    let _header = lines.next()?;
    let mut bytes = 0;
    for line in lines {
        let Some((field, value)) = line.split_once(':') else { break };
        let counted = match backing {
            Backing::Hugetlbfs { .. } => matches!(field, "Shared_Hugetlb" | "Private_Hugetlb"),
            _ => matches!(field, "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped"),
        };
        if counted {
            bytes += value.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()? * 1024;
        }
        if field == "VmFlags" {
            break;
        }
    }
    Some(bytes)
}
