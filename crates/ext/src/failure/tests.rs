use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use disk::Memory;
use nvm::{OpenOptions, Zone};
use vfs::{Caller, FileSystem, Ino, OpenFlags, ROOT_INO};

use crate::core::{Core, alloc, inode};
use crate::superblock::ROOT;
use crate::support::Image;
use crate::support::attached::{Attached, mount};
use crate::volume::Volume;

const FLAGS: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Runs what ends by a panic, as a server does.
fn panics(run: impl FnOnce()) {
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "it was to panic");
}

/// Part of an operation: the root directory is somebody else's.
fn give_root_away(core: &Core) -> vfs::Result<()> {
    let mut root = inode::read(core, ROOT)?;
    root.uid = 77;
    inode::write(core, &root)
}

impl Attached {
    /// With a directory that is committed.
    fn with_directory() -> Attached {
        let attached = Attached::new();
        attached.volume.mkdir(&Caller::root(), ROOT_INO, b"committed", 0o755).unwrap();
        attached.volume.commit_all().unwrap();
        attached
    }

    fn mkdir(&self, name: &[u8]) -> vfs::Result<Ino> {
        Ok(self.volume.mkdir(&Caller::root(), ROOT_INO, name, 0o755)?.ino)
    }

    /// Whether what was committed is what the next mount has, and the disk when it is detached.
    fn check(&self, names: &[&[u8]]) {
        let zone = Zone::from_bytes(&self.zone.snapshot_image(), &OpenOptions::default()).unwrap();
        let memory = Arc::new(Memory::new(self.memory.image(), false));
        let volume = mount(&zone, &memory);
        assert_eq!(volume.getattr(ROOT_INO).unwrap().uid, 0);
        for name in names {
            volume.lookup(&Caller::root(), ROOT_INO, name).unwrap();
        }
        volume.mkdir(&Caller::root(), ROOT_INO, b"later", 0o755).unwrap();
        volume.detach().unwrap();
        Image::of(&memory.image()).fsck();
    }

    /// The volume has failed: nothing is changed, and everybody is told.
    fn check_failed(&self) {
        let volume = &self.volume;
        let (nvm, disk) = (self.zone.snapshot_image(), self.memory.image());
        let says = |what: &str, result: Result<(), String>| {
            assert!(result.as_ref().is_err_and(|error| error.contains("has failed")), "{what}: {result:?}");
        };
        let text = |error: vfs::Error| error.to_string();
        says("mkdir", self.mkdir(b"more").map(drop).map_err(text));
        says("commit", volume.commit_all().map_err(text));
        says("checkpoint", volume.checkpoint().map_err(text));
        says("write out", volume.queue().map(drop).map_err(text));
        says("syncfs", volume.syncfs().map_err(text));
        says("unmount", volume.unmount().map_err(|error| error.to_string()));
        says("detach", volume.detach().map_err(|error| error.to_string()));
        assert!(nvm == self.zone.snapshot_image() && disk == self.memory.image(), "nothing is changed");
        volume.lookup(&Caller::root(), ROOT_INO, b"committed").unwrap();
        self.check(&[b"committed"]);
    }
}

/// Every operation that came later panicked, since that one was still running.
#[test]
fn an_operation_that_panicked_kept_all_others_from_beginning() {
    let attached = Attached::with_directory();
    let volume = &attached.volume;
    let before = volume.space().unwrap();
    panics(|| {
        let ended: vfs::Result<()> = volume.change(|core| {
            give_root_away(core)?;
            alloc::metadata(core, 0)?;
            panic!("planted");
        });
        ended.unwrap();
    });
    assert_eq!((volume.getattr(ROOT_INO).unwrap().uid, volume.space().unwrap()), (0, before));
    attached.mkdir(b"behind it").unwrap();
    volume.syncfs().unwrap();
    attached.check(&[b"committed", b"behind it"]);
}

/// What an operation's end had done of it joined what runs, and was committed with the next operation.
#[test]
fn half_an_operation_was_committed_when_its_end_panicked() {
    let attached = Attached::with_directory();
    let Attached { volume, .. } = &attached;
    panics(|| {
        let ended = volume.change(|core| {
            give_root_away(core)?;
            // As if the end had come so far.
            core.store.finish();
            Ok(())
        });
        ended.unwrap();
    });
    attached.check_failed();
}

/// The same block could be given out twice.
#[test]
fn a_panic_in_what_is_known_of_free_space_was_forgotten() {
    let attached = Attached::with_directory();
    let Attached { volume, .. } = &attached;
    let free = volume.reading(|| alloc::pick(&volume.core, 0, 1)).unwrap();
    alloc::give_up(&volume.core, free.clone());
    // Nobody has picked it any more.
    panics(|| volume.change(|core| alloc::take(core, free.clone())).unwrap());
    attached.check_failed();
}

/// Pages that the log has, and that were lost, would be missing on the disk when it is emptied.
#[test]
fn a_panic_in_what_a_file_has_in_dram_was_forgotten() {
    let attached = Attached::with_directory();
    let Attached { volume, .. } = &attached;
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, FLAGS).unwrap();
    volume.write(&root, file.handle, 0, &[7; 5000]).unwrap();
    volume.fsync(file.handle, false).unwrap();
    panics(|| {
        let held = volume.files.get(inode::from_vfs(&volume.core.superblock, file.attr.ino).unwrap());
        let mut state = held.alone();
        state.pages.remove(0);
        panic!("planted");
    });
    assert!(volume.write(&root, file.handle, 0, &[8; 10]).is_err());
    volume.release(file.handle).unwrap();
    attached.check_failed();
    let zone = Zone::from_bytes(&attached.zone.snapshot_image(), &OpenOptions::default()).unwrap();
    let next: Volume = mount(&zone, &Arc::new(Memory::new(attached.memory.image(), false)));
    let handle = next.open(&root, file.attr.ino, OpenFlags::READ).unwrap();
    let mut found = vec![0; 5001];
    assert_eq!(next.read(handle, 0, &mut found).unwrap(), 5000);
    assert!(found[..5000] == [7; 5000], "what was synced is there");
}

/// Without versions nothing is kept by which an operation could be undone.
#[test]
fn an_operation_without_versions_that_panicked_went_on_half_done() {
    let attached = Attached::with_directory();
    let Attached { zone, memory, volume } = attached;
    volume.unmount().unwrap();
    drop(volume);
    let disk = Arc::new(disk::Disk::over("disk".into(), memory.clone()));
    let options = crate::Options { versions: false, ..crate::Options::default() };
    let volume = Volume::mount(&zone.volume("disk").unwrap(), disk, &options).unwrap();
    panics(|| {
        let ended: vfs::Result<()> = volume.change(|core| {
            give_root_away(core)?;
            panic!("planted");
        });
        ended.unwrap();
    });
    Attached { zone, memory, volume }.check_failed();
}
