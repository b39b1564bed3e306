//! Frames while others come between.

use std::sync::Mutex;

use nvm::{OpenOptions, VolumeKind, Zone};

use super::*;

const BLOCK: usize = 1024;
const KIND: Kind = Kind::Directory(7);
/// Blocks that readers fetch, and what they hold; and what is dirty in all frames but one.
const FIRST: (u64, [u8; BLOCK]) = (10, [0xBB; BLOCK]);
const OTHER: (u64, [u8; BLOCK]) = (11, [0xCC; BLOCK]);
const DIRTY: [u64; 3] = [20, 21, 22];

/// What readers who come between the events of a checkpoint have: how many of these they let pass, and NVM when the other block is in the frame.
struct Readers {
    frames: Arc<Frames>,
    zone: Zone,
    waits: u32,
    cut: Option<Vec<u8>>,
}

static READERS: Mutex<Option<Readers>> = Mutex::new(None);

/// The only clean frame is given up for another block, and then fetched anew.
fn come_between() {
    // What they store comes here, too.
    let Ok(mut readers) = READERS.try_lock() else { return };
    let Some(readers) = readers.as_mut().filter(|readers| readers.cut.is_none()) else { return };
    if readers.frames.state.try_write().is_none() {
        return; // nobody can come now
    }
    if readers.waits > 0 {
        readers.waits -= 1;
        return;
    }
    readers.frames.fill(KIND, OTHER.0, &OTHER.1);
    readers.cut = Some(readers.zone.snapshot_image());
    readers.frames.fill(KIND, FIRST.0, &FIRST.1);
}

/// Block and frame were the same before a checkpoint flushed, and when it wrote its entries; what was in between was not looked at, and nothing had flushed what had
/// come since.
#[test]
fn an_entry_told_of_bytes_that_were_not_flushed() {
    let mut came_between = 0;
    for waits in 0..12 {
        let zone = Zone::anonymous(16 << 20, &OpenOptions::default()).unwrap();
        zone.create_volume("disk", VolumeKind::Ext, Some(10 << 20)).unwrap();
        let region = zone.volume("disk").unwrap();
        let disk = Arc::new(Disk::memory(vec![0; 512 * BLOCK]));
        let mut area = Area::lay_out(&region, BLOCK as u64, 128, 8 << 20).unwrap();
        (area.frames, area.disk_bytes) = (1 + DIRTY.len() as u64, 512 * BLOCK as u64);
        let frames = Arc::new(Frames::empty(region, area.clone(), disk.clone()));
        frames.fill(KIND, FIRST.0, &FIRST.1);
        frames.reserve(DIRTY.into_iter()).unwrap();
        frames.apply(DIRTY.map(|number| (number, KIND, u64::MAX, &[1; BLOCK][..])), &[]);

        zone.start_recording(nvm::RecordingOptions::default());
        zone.set_gate(Some(come_between));
        *READERS.lock().unwrap() = Some(Readers { frames: frames.clone(), zone, waits, cut: None });
        frames.checkpoint().ignore();
        let Readers { zone, cut, .. } = READERS.lock().unwrap().take().unwrap();
        zone.set_gate(None);
        let Some(cut) = cut else { continue };
        came_between += 1;

        // Behind a power cut the frame may have what it had in between: nothing has flushed it since.
        let mut image = zone.snapshot_image();
        let at = (0..image.len()).step_by(64).find(|at| cut[*at..].starts_with(&OTHER.1)).unwrap();
        assert!(image[at..].starts_with(&FIRST.1), "what was fetched last is not in the frame");
        image[at..at + BLOCK].copy_from_slice(&OTHER.1);
        let zone = Zone::from_bytes(&image, &OpenOptions::default()).unwrap();
        let again = Frames::open(zone.volume("disk").unwrap(), area, disk).unwrap();
        let mut bytes = [0; BLOCK];
        if again.read(KIND, FIRST.0, &mut bytes).unwrap() {
            assert_eq!(bytes, FIRST.1, "behind {waits} events, block {} has another one's bytes", FIRST.0);
        }
    }
    assert!(came_between > 2, "{came_between}");
}
