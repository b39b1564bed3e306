//! For tests: a file system in DRAM, changed by what is not public, and judged by e2fsck.

use std::process::Command;
use std::sync::Arc;

use disk::{Disk, Purpose};
use vfs::Result;

use crate::core::{Core, group, inode};
use crate::options::Options;
use crate::support::Image;
use crate::volume::Volume;
use crate::{directory, superblock};

pub(crate) struct Scene {
    pub(crate) volume: Volume,
}

impl Scene {
    /// What mke2fs makes with `options`, with some empty files `0`, `1` ... in the root directory.
    pub(crate) fn new(size: &str, options: &[&str], files: u32) -> Scene {
        let source = tempfile::tempdir().unwrap();
        (0..files).for_each(|n| std::fs::write(source.path().join(n.to_string()), "").unwrap());
        let from = source.path().display().to_string();
        let image = Image::make(size, &[options, &["-d", &from]].concat());
        Scene::of(image.bytes())
    }

    pub(crate) fn of(image: Vec<u8>) -> Scene {
        let disk = Arc::new(Disk::memory(image));
        Scene { volume: Volume::open(disk, &Options::default()).unwrap() }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.volume.core
    }

    /// Inodes of the files that it was made with.
    pub(crate) fn file(&self, n: u32) -> u32 {
        let root = inode::read(self.core(), superblock::ROOT).unwrap();
        directory::find(self.core(), &root, n.to_string().as_bytes()).unwrap()
    }

    pub(crate) fn change<R>(&self, operation: impl FnOnce(&Core) -> Result<R>) -> Result<R> {
        self.volume.change(operation)
    }

    /// Everything that was done is durable.
    pub(crate) fn commit(&self) {
        let freed = self.core().space.take_freed();
        self.core().store.write_home();
        self.core().space.reusable(&freed);
    }

    /// The disk, with everything that was done.
    pub(crate) fn image(&self) -> Vec<u8> {
        self.commit();
        let disk = self.volume.disk();
        let mut bytes = vec![0; disk.bytes() as usize];
        disk.read(Purpose::Data, 0, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn free(&self) -> (u64, u64) {
        let groups = (0..self.core().superblock.groups).map(|n| group::read(self.core(), n).unwrap());
        groups.fold((0, 0), |(blocks, inodes), group| {
            (blocks + group.free_clusters, inodes + u64::from(group.free_inodes))
        })
    }

    /// Fails unless neither e2fsck nor our own check finds anything to say; before, debugfs is told `commands`.
    pub(crate) fn fsck_after(&self, commands: &[String]) {
        let (blocks, inodes) = self.free();
        self.change(|core| core.change_superblock(|raw| raw.set_free(blocks, inodes))).unwrap();
        let image = Image::of(&self.image());
        let path = image.path.display().to_string();
        if !commands.is_empty() {
            let list = image.path.with_extension("commands");
            std::fs::write(&list, commands.join("\n")).unwrap();
            crate::support::run("debugfs", &["-w", "-f", &list.display().to_string(), &path]);
        }
        let output = Command::new("e2fsck").args(["-fn", &path]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        let found = crate::check(Arc::new(Disk::memory(image.bytes())), &Options::default()).unwrap();
        assert!(found.is_clean(), "{:#?}", found.findings);
    }

    pub(crate) fn fsck(&self) {
        self.fsck_after(&[]);
    }
}
