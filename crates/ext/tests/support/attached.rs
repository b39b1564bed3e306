//! An empty ext4 that is attached to NVM, both in memory.

use std::sync::Arc;

use disk::{Disk, Memory};
use ext::{Options, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};

use super::Image;

pub(crate) struct Attached {
    pub(crate) zone: Zone,
    pub(crate) memory: Arc<Memory>,
    pub(crate) volume: Volume,
}

/// Mounts it, again or for the first time.
pub(crate) fn mount(zone: &Zone, memory: &Arc<Memory>) -> Volume {
    let disk = Arc::new(Disk::over("disk".into(), memory.clone()));
    Volume::mount(&zone.volume("disk").unwrap(), disk, &Options::default()).unwrap()
}

impl Attached {
    /// With blocks of 4096 bytes, and mounted.
    pub(crate) fn new() -> Attached {
        let image = Image::make("16M", &["-t", "ext4", "-b", "4096"]);
        let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
        let memory = Arc::new(Memory::new(image.bytes(), false));
        ext::attach(&region, &Arc::new(Disk::over("disk".into(), memory.clone()))).unwrap();
        let volume = mount(&zone, &memory);
        Attached { zone, memory, volume }
    }
}
