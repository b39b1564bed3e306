//! A sound ext file system is attached to NVM, mounted, written to and killed; then bytes of what NVM has of it are changed, as on a medium
//! that somebody forged. It is mounted, written to, checked, repaired and detached. Whatever NVM holds: no panic, no hang, no memory without
//! bound.
//!
//! `cargo +nightly fuzz run --sanitizer none write_area -- -max_total_time=60 -timeout=20 -len_control=0 -max_len=64`
//!
//! The input's first two bytes say which specimen, and how it is mounted then. What follows is a list of changes: 2 bytes of place, which count the
//! pieces of 256 bytes that mean something, where in the piece, and 1 to 8 bytes each. Checksums are switched off (see `Cargo.toml`).

#![no_main]

use std::sync::{Arc, OnceLock};

use disk::{Disk, Memory};
use ext::{Room, Volume};
use libfuzzer_sys::fuzz_target;
use nvm::{OpenOptions, Purpose, Region, VolumeKind, Zone};
use vfs::FileSystem;

use crate::ext_work::{mount, way, write_some};

mod ext_specimens;
mod ext_work;

/// Bytes of NVM, of which a volume has all but the entrance.
const NVM: u64 = 10 << 20;
/// As many specimens as there are disks, each with much room and with little.
const SPECIMENS: usize = 8;
const PIECE: usize = 256;

/// A disk that was attached, mounted, written to and killed.
struct Specimen {
    zone: Vec<u8>,
    disk: Vec<u8>,
    /// Where in the volume's area pieces begin that are not all zeros.
    places: Vec<usize>,
}

/// `None` of a disk that cannot be attached.
fn specimen(number: usize) -> Option<&'static Specimen> {
    static MADE: [OnceLock<Option<Specimen>>; SPECIMENS] = [const { OnceLock::new() }; SPECIMENS];
    MADE[number].get_or_init(|| made(number)).as_ref()
}

fn made(number: usize) -> Option<Specimen> {
    let image = ext_specimens::changed((number / 2) as u8, &[]);
    let memory = Arc::new(Memory::new(image, false));
    let disk = Arc::new(Disk::over("specimen".into(), memory.clone()));
    let zone = Zone::anonymous(NVM, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, None).unwrap();
    let room = (number % 2 == 1).then_some(Room { frames: 12, half_bytes: 128 << 10 });
    ext::attach_within(&region, &disk, room).ok()?;
    let (volume, _) = mount(&region, &disk, &way(0)).expect("a sound disk is mounted");
    let _ = write_some(&volume);
    drop(volume);
    let bytes = region.bytes(0, region.len() as usize);
    let means = |at: &usize| bytes[*at..*at + PIECE].iter().any(|byte| *byte != 0);
    let places = (0..bytes.len()).step_by(PIECE).filter(means).collect();
    Some(Specimen { zone: zone.snapshot_image(), disk: memory.image(), places })
}

/// Changes bytes of what NVM has.
fn change(region: &Region, places: &[usize], mut changes: &[u8]) {
    while let [low, high, within, length, tail @ ..] = changes {
        let place = places[usize::from(u16::from_le_bytes([*low, *high])) % places.len()];
        let (new, next) = tail.split_at((usize::from(length % 8) + 1).min(tail.len()));
        let at = place + usize::from(*within).min(PIECE - 8);
        region.store(Purpose::Metadata, at as u64, new);
        changes = next;
    }
}

fuzz_target!(|input: &[u8]| {
    let [first, second, changes @ ..] = input else { return };
    let Some(specimen) = specimen(usize::from(*first) % SPECIMENS) else { return };
    let disk = Arc::new(Disk::memory(specimen.disk.clone()));
    let zone = Zone::from_bytes(&specimen.zone, &OpenOptions::default()).unwrap();
    let region = zone.volume("disk").unwrap();
    change(&region, &specimen.places, changes);
    let mut way = way(*second);
    if let Some((volume, tended)) = mount(&region, &disk, &way) {
        let _ = write_some(&volume);
        let _ = volume.statfs();
        drop(tended);
        let _ = ext::check_volume(&volume);
    }
    let _ = ext::log_damage(&region);
    // As `fsck --repair`: without what is damaged of the log.
    way.options.past_damage = true;
    let Some((volume, tended)) = mount(&region, &disk, &way) else { return };
    let _ = volume.statfs();
    drop(tended);
    let was_detached = volume.detach().is_ok();
    drop(volume);
    if was_detached {
        let _ = Volume::open(disk.clone(), &way.options).map(|volume| volume.statfs());
        let _ = ext::check(disk, &way.options);
    }
});
