//! What would be too large for one transaction goes in several: no sync fails for want of room in the log.

use std::sync::Arc;

use crate::support::Image;
use disk::Disk;
use ext::{Options, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO, SetAttr};

const BLOCK: u64 = 1024;
const PIECES: u64 = 20_000;

/// A file in pieces of a block, of which so many are written between two syncs that each leaf of its map changes; then it is cut.
#[test]
fn a_file_in_pieces_is_synced_and_cut_with_little_nvm() {
    let image = Image::make("400M", &["-t", "ext4", "-b", "1024"]);
    let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
    let disk = Arc::new(Disk::memory(image.bytes()));
    ext::attach(&region, &disk).unwrap();
    let volume = Volume::mount(&region, disk.clone(), &Options::default()).unwrap();
    let root = Caller::root();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let file = volume.create(&root, ROOT_INO, b"pieces", 0o644, flags).unwrap();
    for phase in 0..8 {
        for piece in 0..PIECES {
            let at = (piece * 16 + phase * 2) * BLOCK;
            volume.write(&root, file.handle, at, &[1; BLOCK as usize]).unwrap();
        }
        volume.fsync(file.handle, false).unwrap();
    }
    let other = volume.create(&root, ROOT_INO, b"other", 0o644, flags).unwrap();
    let set = SetAttr { size: Some(10), ..SetAttr::default() };
    volume.setattr(&root, file.attr.ino, &set, Some(file.handle)).unwrap();
    volume.write(&root, file.handle, 0, &[2; 20]).unwrap();
    volume.fsync(file.handle, false).unwrap();
    volume.write(&root, other.handle, 0, &[3; 20]).unwrap();
    volume.fsync(other.handle, false).unwrap();
    volume.release(file.handle).unwrap();
    volume.release(other.handle).unwrap();
    volume.detach().unwrap();
    let mut bytes = vec![0; disk.bytes() as usize];
    disk.read(disk::Purpose::Data, 0, &mut bytes).unwrap();
    Image::of(&bytes).fsck();
}
