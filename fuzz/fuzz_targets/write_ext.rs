//! A valid ext file system with some of its bytes changed is attached to NVM, mounted as the server mounts it, written to in every way there
//! is, drained, killed, mounted again, and detached. Whatever it holds: no panic, no hang, no memory without bound; and what was detached is
//! looked at again.
//!
//! `cargo +nightly fuzz run --sanitizer none write_ext -- -max_total_time=60 -timeout=20 -len_control=0 -max_len=64`
//!
//! The input's second byte says how it is mounted; what else it means: [`ext_specimens`].

#![no_main]

use std::sync::Arc;

use disk::Disk;
use ext::{Room, Volume};
use libfuzzer_sys::fuzz_target;
use nvm::{VolumeKind, Zone};
use vfs::FileSystem;

use crate::ext_work::{mount, way, write_some};

mod ext_specimens;
mod ext_work;

/// Bytes of NVM, of which a volume has all but the entrance.
const NVM: u64 = 10 << 20;

fuzz_target!(|input: &[u8]| {
    let [first, second, changes @ ..] = input else { return };
    let way = way(*second);
    let disk = Arc::new(Disk::memory(ext_specimens::changed(*first, changes)));
    let zone = Zone::anonymous(NVM, &nvm::OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, None).unwrap();
    // So few frames, and so little of a log, that metadata goes to the disk and back.
    let is_tight = second >> 6 & 1 != 0;
    let room = is_tight.then_some(Room { frames: 12, half_bytes: 128 << 10 });
    if ext::attach_within(&region, &disk, room).is_err() {
        return;
    }
    let Some((volume, tended)) = mount(&region, &disk, &way) else { return };
    let _ = write_some(&volume);
    let _ = volume.statfs();
    drop(tended);
    // Of a volume that nobody uses.
    let _ = ext::check_volume(&volume);
    // Killed, with a file open that has no name.
    drop(volume);
    let Some((volume, tended)) = mount(&region, &disk, &way) else { return };
    let unnamed = write_some(&volume);
    drop(tended);
    let _ = unnamed.map(|handle| volume.release(handle));
    let _ = volume.checkpoint();
    let was_detached = volume.detach().is_ok();
    drop(volume);
    if was_detached {
        let _ = Volume::open(disk.clone(), &way.options).map(|volume| volume.statfs());
        let _ = ext::check(disk, &way.options);
    }
});
