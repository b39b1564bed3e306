use disk::Memory;
use nvm::{OpenOptions, Zone};
use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO};

use super::*;
use crate::support::attached::{Attached, mount};

/// An area that has other blocks than the disk was used as it says: what the log had went to other places of the disk.
#[test]
fn an_area_with_other_blocks_than_the_disk_was_believed() {
    let Attached { zone, memory, volume } = Attached::new();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let file = volume.create(&Caller::root(), ROOT_INO, b"file", 0o644, flags).unwrap();
    volume.write(&Caller::root(), file.handle, 0, &[7; 10_000]).unwrap();
    volume.fsync(file.handle, false).unwrap();
    let nvm = zone.snapshot_image();
    drop(volume);
    for (block, part) in [(1024, 256), (2048, 256), (4096, 64), (4096, 128), (4096, 512)] {
        let zone = Zone::from_bytes(&nvm, &OpenOptions::default()).unwrap();
        let region = zone.volume("disk").unwrap();
        let mut area = Area::read(&region).unwrap().unwrap();
        (area.block, area.part) = (block, part);
        area.write(&region).ignore();
        let memory = Arc::new(Memory::new(memory.image(), false));
        let disk = Arc::new(Disk::over("disk".into(), memory.clone()));
        let before = (zone.snapshot_image(), memory.image());
        let mounted = Volume::mount(&region, disk.clone(), &Options::default()).map(drop);
        for result in [mounted, at_rest(&region, &disk).map(drop)] {
            let said = result.as_ref().map_err(Error::to_string);
            assert!(matches!(result, Err(Error::Area { .. })), "{block} {part}: {said:?}");
            assert!(said.is_err_and(|said| said.contains(&format!("blocks of {block} bytes"))));
        }
        assert!(before == (zone.snapshot_image(), memory.image()), "{block} {part}: something was changed");
    }
    let zone = Zone::from_bytes(&nvm, &OpenOptions::default()).unwrap();
    mount(&zone, &memory).detach().unwrap();
}
