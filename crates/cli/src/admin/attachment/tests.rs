use std::io::{Error, IoSlice, IoSliceMut};
use std::process::Command;

use disk::{Device, Geometry, Memory};
use nvm::OpenOptions as ZoneOptions;
use parking_lot::Mutex;

use super::*;

/// A disk that fails to flush, or is gone with that, as soon as it has the mark, or before.
struct Failing {
    memory: Memory,
    fails: Fails,
    zone: Zone,
    held: Mutex<Option<Region>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fails {
    /// It has no mark.
    AtOnce,
    /// The same, and somebody has the volume open.
    InUse,
    /// It has the mark.
    Marked,
    /// It has the mark, and nobody sees that.
    Gone,
    /// It has the sector with the checksum of the mark, and not the one with the mark.
    Torn,
}

impl Failing {
    fn is_marked(&self) -> bool {
        self.memory.image()[1024 + 0x63] & 0x40 != 0
    }
}

impl Device for Failing {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> std::io::Result<()> {
        self.memory.read(at, into)
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], durable: bool) -> std::io::Result<()> {
        let before = self.memory.image();
        self.memory.write(at, from, durable)?;
        if self.fails == Fails::Torn && self.is_marked() {
            // Of the superblock's two sectors the first, with the feature, is as before, and the second has the new checksum.
            self.memory.write(1024, &[IoSlice::new(&before[1024..1536])], false)?;
            return Err(Error::from_raw_os_error(5));
        }
        Ok(())
    }

    fn flush(&self) -> std::io::Result<()> {
        match self.fails {
            Fails::Marked | Fails::Gone | Fails::Torn if !self.is_marked() => return self.memory.flush(),
            Fails::Gone => self.memory.vanish(true),
            Fails::InUse => *self.held.lock() = self.zone.volume("disk").ok(),
            Fails::AtOnce | Fails::Marked | Fails::Torn => {}
        }
        Err(Error::from_raw_os_error(5))
    }
}

/// The volume that was made for it was removed, and nobody could take the mark away any more but by giving up what there was.
#[test]
fn the_volume_of_a_disk_that_has_the_mark_was_removed_when_attaching_failed() {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(16 << 20).unwrap();
    let made = Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(image.path()).status();
    assert!(made.expect("mke2fs, of e2fsprogs").success());
    let bytes = std::fs::read(image.path()).unwrap();
    for fails in [Fails::AtOnce, Fails::InUse, Fails::Marked, Fails::Gone, Fails::Torn] {
        let zone = Zone::anonymous(24 << 20, &ZoneOptions::default()).unwrap();
        let (memory, held) = (Memory::new(bytes.clone(), false), Mutex::default());
        let failing = Arc::new(Failing { memory, fails, zone: zone.clone(), held });
        let disk = Arc::new(Disk::over("disk".into(), failing.clone()));
        let said = attach_disk(&zone, "disk", &disk, Some(12 << 20)).err().expect("it fails").to_string();
        assert!(said.contains("os error 5"), "{said}");
        let words: &[&str] = match fails {
            Fails::AtOnce => &[],
            Fails::InUse => &["could not be removed", "is open", "remove-volume"],
            Fails::Marked => &["has the mark of volume 'disk'", "amberfs detach"],
            Fails::Gone | Fails::Torn => &["may have the mark of volume 'disk'", "amberfs detach"],
        };
        words.iter().for_each(|word| assert!(said.contains(word), "{word}: {said}"));
        assert_eq!(zone.volumes().is_empty(), fails == Fails::AtOnce, "{said}");
        assert_eq!(failing.is_marked(), matches!(fails, Fails::Marked | Fails::Gone));
        if failing.is_marked() {
            let plain = Arc::new(Disk::memory(failing.memory.image()));
            ext::Volume::mount(&zone.volume("disk").unwrap(), plain.clone(), &ext::Options::default())
                .unwrap()
                .detach()
                .unwrap();
            assert!(!ext::is_marked(&plain).unwrap());
        }
    }
}
