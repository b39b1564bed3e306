//! Volumes that are only to be read, and zones that cannot be written to.

use crate::volumes::*;
use native::{
    Durability, Error, FormatOptions, MountOptions, Volume, check, format, open_snapshot, preen, roll_back,
};
use nvm::{OpenOptions, Zone};
use vfs::ROOT_INO;

/// As ext4 does: what a crash has left is finished first, where that can be written, and nothing is changed from then on. It was refused.
#[test]
fn what_was_killed_is_recovered_to_be_read() {
    let (zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    write_file(&volume, ROOT_INO, "file", b"bytes").unwrap();
    volume.take_snapshot("kept", "").unwrap();
    write_file(&volume, ROOT_INO, "later", b"bytes").unwrap();
    let expected = tree(&volume).unwrap();
    let (zone, region) = {
        let image = image_at_rest(&zone);
        drop(volume);
        zone_of(&image)
    };
    let read_only = MountOptions { read_only: true, ..options(Durability::Operation) };
    let killed = zone.snapshot_image();
    for was_clean in [false, true] {
        let before = zone.snapshot_image();
        let volume = Volume::open(region.clone(), &read_only).unwrap();
        assert_eq!(volume.recovery().was_clean, was_clean);
        assert_eq!(volume.recovery().transactions_replayed > 0, !was_clean);
        assert_eq!(difference(&tree(&volume).unwrap(), &expected), None);
        assert_eq!(write_file(&volume, ROOT_INO, "new", b""), Err(vfs::Error::ReadOnly));
        assert!(volume.take_snapshot("another", "").is_err());
        volume.close().unwrap();
        assert_eq!(zone.snapshot_image() == before, was_clean);
    }
    assert_sound(&region);

    // Where nothing can be stored, what has to store says so.
    let how = OpenOptions { read_only: true, ..OpenOptions::default() };
    let zone = Zone::from_bytes(&killed, &how).unwrap();
    let region = zone.volume("v").unwrap();
    assert!(matches!(Volume::open(region.clone(), &read_only), Err(Error::NeedsRecovery)));
    let refused = [
        Volume::open(region.clone(), &options(Durability::Operation)).map(drop),
        format(&region, &FormatOptions::default()),
        roll_back(&region, "kept", true).map(drop),
        check(&region, true).map(drop),
        preen(&region).map(drop),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(Error::ReadOnlyZone(_))), "{refused:?}");
    }
    assert!(check(&region, false).unwrap().needs_recovery);
    assert!(open_snapshot(&region, "kept").is_ok());
    assert!(zone.snapshot_image() == killed);
}
