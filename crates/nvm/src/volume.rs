//! A volume as the system index lists it, and what this process keeps for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uuid::Uuid;

use crate::account::Ledger;

/// What kind of file system a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum VolumeKind {
    /// A file system wholly in NVM.
    Native = 1,
    /// The metadata of an ext2/3/4 disk.
    Ext = 2,
    /// The metadata of a log-structured file system on raw NAND.
    Flash = 3,
}

impl VolumeKind {
    pub(crate) fn from_code(code: u8) -> Option<VolumeKind> {
        match code {
            1 => Some(VolumeKind::Native),
            2 => Some(VolumeKind::Ext),
            3 => Some(VolumeKind::Flash),
            _ => None,
        }
    }
}

impl std::fmt::Display for VolumeKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            VolumeKind::Native => "native",
            VolumeKind::Ext => "ext",
            VolumeKind::Flash => "flash",
        })
    }
}

impl std::str::FromStr for VolumeKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "native" => Ok(VolumeKind::Native),
            "ext" => Ok(VolumeKind::Ext),
            "flash" => Ok(VolumeKind::Flash),
            _ => Err(format!("no volume kind {name:?}: choose native, ext or flash")),
        }
    }
}

/// One volume of a zone's system index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Its name, unique in the zone, 1 to 31 bytes.
    pub name: String,
    /// What kind of file system it is.
    pub kind: VolumeKind,
    /// Made when the volume was; a volume's superblock that carries another one is a stale one.
    pub uuid: Uuid,
    /// Byte offset of its first segment in the zone.
    pub start: u64,
    /// Its bytes, a multiple of [`crate::SEGMENT`].
    pub bytes: u64,
    /// Whether it was being made when this was read; see [`crate::Zone::begin_volume`].
    pub unfinished: bool,
}

/// What a process keeps for a volume while its zone is open.
pub(crate) struct Volume {
    pub(crate) entry: VolumeEntry,
    pub(crate) ledger: Ledger,
    /// Somebody has it mounted; see [`Mounted`].
    mounted: AtomicBool,
}

/// Says that a volume is mounted, until it is dropped: there is one for each volume. The zone's lock keeps other
/// processes out; this keeps out the same process a second time.
pub struct Mounted(Arc<Volume>);

impl Mounted {
    pub(crate) fn claim(volume: &Arc<Volume>) -> Option<Mounted> {
        let taken = volume.mounted.swap(true, Ordering::AcqRel);
        (!taken).then(|| Mounted(volume.clone()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.0.mounted.store(false, Ordering::Release);
    }
}

impl Volume {
    pub(crate) fn new(entry: VolumeEntry) -> Volume {
        Volume { entry, ledger: Ledger::new(), mounted: AtomicBool::new(false) }
    }
}
