//! Without versions of metadata, as benchmarks may have it to measure what they take: nothing is different while nothing goes wrong.

use std::sync::Arc;

use crate::support::Image;
use disk::{Disk, Memory};
use ext::{Options, Volume};
use nvm::{OpenOptions, Purpose, VolumeKind, Zone};
use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO, RenameFlags};

const FLAGS: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Makes, syncs, moves and removes files; gives bytes of the log's records, and the disk when it is detached.
fn work(versions: bool, sync: bool) -> (u64, Vec<u8>) {
    let image = Image::make("32M", &["-t", "ext4", "-b", "1024"]);
    let zone = Zone::anonymous(14 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(10 << 20)).unwrap();
    let memory = Arc::new(Memory::new(image.bytes(), false));
    let disk = Arc::new(Disk::over("disk".into(), memory.clone()));
    ext::attach(&region, &disk).unwrap();
    let volume = Volume::mount(&region, disk, &Options { versions, ..Options::default() }).unwrap();
    let before = region.account().of(Purpose::Journal).bytes;
    let root = &Caller::root();
    let dir = volume.mkdir(root, ROOT_INO, b"dir", 0o755).unwrap().ino;
    for n in 0..600u64 {
        let name = format!("a file of some length, the {n}th");
        let file = volume.create(root, dir, name.as_bytes(), 0o644, FLAGS).unwrap();
        volume.write(root, file.handle, n * 100, &[n as u8; 3000]).unwrap();
        if sync && n % 3 == 0 {
            volume.fsync(file.handle, false).unwrap();
        }
        volume.release(file.handle).unwrap();
        match n % 5 {
            0 => volume.unlink(root, dir, name.as_bytes()).unwrap(),
            1 => volume.rename(root, dir, name.as_bytes(), ROOT_INO, b"moved", RenameFlags::empty()).unwrap(),
            _ => {}
        }
        assert!(volume.unlink(root, dir, b"not there").is_err());
    }
    volume.commit_all().unwrap();
    let logged = region.account().of(Purpose::Journal).bytes - before;
    let file = volume.lookup(root, ROOT_INO, b"moved").unwrap();
    let handle = volume.open(root, file.ino, FLAGS).unwrap();
    let mut bytes = [0; 3000];
    assert_eq!(volume.read(handle, 596 * 100, &mut bytes).unwrap(), 3000);
    assert_eq!(bytes, [596u64 as u8; 3000]);
    volume.release(handle).unwrap();
    assert!(ext::check_volume(&volume).unwrap().is_clean());
    volume.detach().unwrap();
    (logged, memory.image())
}

#[test]
fn what_is_detached_is_as_sound_as_with_them() {
    for sync in [false, true] {
        let (with, _) = work(true, sync);
        let (without, image) = work(false, sync);
        Image::of(&image).fsck();
        let bytes = if sync { 200 * 3000 } else { 0 };
        assert!(
            without >= bytes && without < bytes + bytes / 10 + 64,
            "{without} bytes: what files have, no metadata"
        );
        assert!(with > without + 10_000, "{with}, {without}");
    }
}
