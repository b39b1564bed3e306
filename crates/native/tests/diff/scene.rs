//! A volume at two moments.

use native::{DifferenceKind, Durability, Volume};
use vfs::{Caller, FileKind, FileSystem, Ino, ROOT_INO, RenameFlags};

use super::open;
use super::walk::{assert_told, snapshot, walk};
use crate::volumes::{RW, made, write_file};

/// Waits until the clock that files are stamped with tells another time.
pub(crate) fn tick() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

/// A volume on which a tree was made and a snapshot `before` taken of it, and then something changed; what is told.
pub(crate) struct Scene {
    pub(crate) volume: Volume,
    _zone: nvm::Zone,
}

impl Scene {
    pub(crate) fn new(before: impl FnOnce(&Scene)) -> Scene {
        let (zone, region) = made(64 << 20);
        let scene = Scene { volume: open(&region, Durability::Operation), _zone: zone };
        before(&scene);
        scene.volume.take_snapshot("before", "").unwrap();
        tick();
        scene
    }

    pub(crate) fn at(&self, path: &str) -> Ino {
        let root = Caller::root();
        path.split('/')
            .filter(|name| !name.is_empty())
            .fold(ROOT_INO, |dir, name| self.volume.lookup(&root, dir, name.as_bytes()).unwrap().ino)
    }

    fn split<'p>(&self, path: &'p str) -> (Ino, &'p [u8]) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.at(dir), name.as_bytes())
    }

    pub(crate) fn dir(&self, path: &str) {
        let (dir, name) = self.split(path);
        self.volume.mkdir(&Caller::root(), dir, name, 0o755).unwrap();
    }

    pub(crate) fn file(&self, path: &str, bytes: &[u8]) {
        let (dir, name) = self.split(path);
        write_file(&self.volume, dir, std::str::from_utf8(name).unwrap(), bytes).unwrap();
    }

    pub(crate) fn write(&self, path: &str, offset: u64, bytes: &[u8]) {
        let root = Caller::root();
        let handle = self.volume.open(&root, self.at(path), RW).unwrap();
        self.volume.write(&root, handle, offset, bytes).unwrap();
        self.volume.release(handle).unwrap();
    }

    pub(crate) fn link(&self, old: &str, new: &str) {
        let (dir, name) = self.split(new);
        self.volume.link(&Caller::root(), self.at(old), dir, name).unwrap();
    }

    pub(crate) fn unlink(&self, path: &str) {
        let (dir, name) = self.split(path);
        self.volume.unlink(&Caller::root(), dir, name).unwrap();
    }

    pub(crate) fn rename(&self, old: &str, new: &str, flags: RenameFlags) {
        let ((dir, name), (new_dir, new_name)) = (self.split(old), self.split(new));
        self.volume.rename(&Caller::root(), dir, name, new_dir, new_name, flags).unwrap();
    }

    /// The differences from before, a line each: the directories' own left out, unless it is told otherwise.
    pub(crate) fn told(&self, with_directories: bool) -> Vec<String> {
        let found = self.volume.diff("before", None).unwrap();
        let now = walk(&self.volume, ROOT_INO);
        assert_told(&found, &snapshot(&self.volume, "before"), &now);
        let lines = found.iter().filter_map(|difference| {
            let path = String::from_utf8(difference.path.clone()).unwrap();
            Some(match &difference.kind {
                DifferenceKind::Removed => format!("- {path}"),
                DifferenceKind::Added => format!("+ {path}"),
                DifferenceKind::Renamed { from } => format!("R {} -> {path}", String::from_utf8_lossy(from)),
                DifferenceKind::Modified(_)
                    if difference.file == FileKind::Directory && !with_directories =>
                {
                    return None;
                }
                DifferenceKind::Modified(aspects) => format!("M {path} {aspects:?}"),
            })
        });
        let lines = lines.collect();
        self.volume.finish_removals().unwrap();
        lines
    }
}
