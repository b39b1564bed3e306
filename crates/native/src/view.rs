//! A snapshot as a tree of files: a checkpoint that is kept, read through a NAT cache of its own. It never changes, so
//! whoever reads it takes no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nvm::Region;
use vfs::{
    Attr, Caller, DirEntry, Error, FileSystem, Handle, Ino, OpenFlags, ROOT_INO, Result, SeekFrom, Statfs,
};

use crate::geometry::{BLOCK, Medium};
use crate::handles::Handles;
use crate::hints::{self, Hints};
use crate::inode::Inode;
use crate::inspect::AtRest;
use crate::kept::Record;
use crate::node;
use crate::read_only::{ReadOnly, Readable};
use crate::reader::Reader;

/// Where a tree's inodes are among those that a front end sees.
#[derive(Clone, Copy)]
pub(crate) struct Numbering {
    /// Upper half of its inodes' numbers.
    pub(crate) base: Ino,
    /// The parent of its root.
    pub(crate) above: Ino,
}

pub(crate) struct SnapshotView {
    reader: Reader,
    numbering: Numbering,
    handles: Arc<Handles>,
    blocks: u64,
    inodes: u64,
    /// Used since somebody looked for a view to drop.
    recent: AtomicBool,
    /// The volume, where nothing but this is shown of it.
    _mounted: Option<nvm::Mounted>,
}

impl SnapshotView {
    pub(crate) fn open(
        medium: Arc<Medium>,
        hash_key: [u64; 2],
        record: &Record,
        numbering: Numbering,
        handles: Arc<Handles>,
        cache_bytes: u64,
    ) -> Result<SnapshotView> {
        let body = record.checkpoint(&medium)?.body;
        let tree = (body.tree(), record.version);
        let hints = hints::fitting((cache_bytes / 4).min(hints::BYTES_MAX / 32));
        let mut reader = Reader::kept(medium, tree, hash_key, body.nodes.get(), cache_bytes - hints);
        reader.leaf_hints = Hints::new(hints);
        Ok(SnapshotView {
            reader,
            numbering,
            handles,
            blocks: body.blocks.get(),
            inodes: body.inodes.get().into(),
            recent: AtomicBool::new(true),
            _mounted: None,
        })
    }

    /// Notes that it is used.
    #[inline]
    pub(crate) fn touch(&self) {
        if !self.recent.load(Ordering::Relaxed) {
            self.recent.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since this was asked last.
    pub(crate) fn take_recent(&self) -> bool {
        self.recent.swap(false, Ordering::Relaxed)
    }

    /// Bytes of DRAM.
    pub(crate) fn cache_bytes(&self) -> (u64, u64) {
        let (pages, tables) = self.reader.nat.cache_bytes();
        (pages + self.reader.hint_bytes(), tables + size_of::<SnapshotView>() as u64)
    }

    /// The number in its tree of an inode of this snapshot.
    #[inline]
    fn number(&self, ino: Ino) -> Result<u32> {
        node::number(ino ^ self.numbering.base)
    }

    #[inline]
    fn inode(&self, ino: Ino) -> Result<Inode<'_>> {
        self.reader.inode(self.number(ino)?)
    }

    /// The file that `handle` is open on.
    #[inline]
    fn file(&self, handle: Handle) -> Result<u32> {
        self.number(self.handles.get(handle)?.number)
    }
}

impl Readable for SnapshotView {
    fn find(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Ino> {
        self.reader.medium.vouched(|| {
            let number = self.number(dir)?;
            let found = self.reader.find(caller, self.reader.inode(number)?, name)?.ok_or(Error::NotFound)?;
            let is_above = name == b".." && Ino::from(number) == ROOT_INO;
            Ok(if is_above { self.numbering.above } else { self.numbering.base | Ino::from(found) })
        })
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.reader.medium.vouched(|| {
            let attr = self.inode(ino)?.attr();
            Ok(Attr { ino, ..attr })
        })
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.reader.medium.vouched(|| self.reader.target(self.number(ino)?))
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        self.reader.medium.vouched(|| self.reader.may_access(caller, self.inode(ino)?, mask))
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.reader.medium.vouched(|| {
            self.reader.may_open(caller, self.inode(ino)?, flags)?;
            self.handles.open(ino, flags)
        })
    }

    fn release(&self, handle: Handle) -> Result<()> {
        self.handles.close(handle).map(drop)
    }

    fn opened(&self, handle: Handle) -> Result<Ino> {
        Ok(self.handles.get(handle)?.number)
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.reader.medium.vouched(|| {
            let number = self.file(handle)?;
            self.reader.ask_for_block(number, offset, true);
            if let Some(n) = self.reader.read_block(number, offset, buf) {
                return Ok(n);
            }
            self.reader.read_into(self.reader.regular(number)?, offset, buf)
        })
    }

    fn read_slices(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        self.reader.medium.vouched(|| {
            let number = self.file(handle)?;
            self.reader.ask_for_block(number, offset, false);
            self.reader.lend(self.reader.regular(number)?, offset, len, sink)
        })
    }

    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.reader.medium.vouched(|| {
            let Numbering { base, above } = self.numbering;
            self.reader.list(self.number(dir)?, from, (base, above), sink)
        })
    }

    /// It is full: what it has is all there is.
    fn statfs(&self) -> Result<Statfs> {
        Ok(Statfs { block_size: BLOCK as u32, blocks: self.blocks, files: self.inodes, ..Statfs::default() })
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.reader.medium.vouched(|| self.reader.attribute(caller, self.number(ino)?, name))
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.reader.medium.vouched(|| self.reader.attribute_names(caller, self.number(ino)?))
    }

    fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64> {
        self.reader.medium.vouched(|| self.reader.seek(self.file(handle)?, from))
    }
}

/// Shows the snapshot `name` of the volume in `region`, and nothing else of it. Nothing on the medium is changed, so
/// this does for a volume that needs recovery, too: its snapshots are whole.
pub fn open_snapshot(region: &Region, name: &str) -> std::result::Result<Arc<dyn FileSystem>, crate::Error> {
    let mounted = region.claim().ok_or(crate::Error::Mounted)?;
    let at_rest = AtRest::read(region)?;
    let record = at_rest.snapshot(name)?;
    let numbering = Numbering { base: 0, above: ROOT_INO };
    let key = at_rest.superblock.hash_key();
    let handles = Arc::new(Handles::of_snapshots());
    let view = SnapshotView::open(at_rest.medium.clone(), key, &record, numbering, handles, u64::MAX)?;
    Ok(Arc::new(ReadOnly(SnapshotView { _mounted: Some(mounted), ..view })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Core;
    use crate::pointer::DataPointer;
    use crate::{MountOptions, format};

    /// The blocks that a file has which begins in its inode, goes on in its map, and has direct nodes below this and below others; two
    /// lie side by side.
    const DATA: [u64; 7] = [0, 5, 40, 16 << 8, (16 << 8) + 1, 100 << 8, 2 << 18];

    /// What block `index` of it has.
    fn block(index: u64) -> Vec<u8> {
        (0..BLOCK).map(|n| (index + n / 7) as u8 | 1).collect()
    }

    /// A snapshot of such a file, in which the volume has something else by now.
    fn snapshot(cache_bytes: u64) -> (Core, SnapshotView) {
        let core =
            format::new_in_memory(64 << 20, &MountOptions { background: false, ..MountOptions::default() });
        let (root, flags) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
        let file = core.create(&root, ROOT_INO, b"file", 0o644, flags).unwrap().handle;
        let write = |index: u64, bytes: &[u8]| core.write(&root, file, index * BLOCK, bytes).map(drop);
        DATA.into_iter().try_for_each(|index| write(index, &block(index))).unwrap();
        let version = core.take_snapshot("kept", "").unwrap().version;
        DATA.into_iter().try_for_each(|index| write(index, &[0; BLOCK as usize])).unwrap();
        core.release(file).unwrap();
        let numbering = Numbering { base: 0, above: ROOT_INO };
        let handles = Arc::new(Handles::of_snapshots());
        let (medium, key) = (core.medium.clone(), core.nodes.hash_key);
        let record = core.snapshots.read().get(version).unwrap().clone();
        let view = SnapshotView::open(medium, key, &record, numbering, handles, cache_bytes).unwrap();
        (core, view)
    }

    /// Reads and borrows what was there, within blocks and across them.
    fn shows_what_was(view: &SnapshotView) {
        let ino = view.find(&Caller::root(), ROOT_INO, b"file").unwrap();
        let handle = view.open(&Caller::root(), ino, OpenFlags::READ).unwrap();
        let end = DATA.into_iter().max().unwrap() + 1;
        let had = |index: u64| if DATA.contains(&index) { block(index) } else { vec![0; BLOCK as usize] };
        for index in DATA {
            let there: Vec<u8> = (index..end.min(index + 3)).flat_map(had).collect();
            for (within, length) in [(0, 4096), (1, 1), (4095, 1), (4095, 2), (60, 8), (17, 8192), (4096, 9)]
            {
                let expected = &there[within.min(there.len())..there.len().min(within + length)];
                let (offset, mut bytes) = (index * BLOCK + within as u64, vec![7; length]);
                let count = view.read(handle, offset, &mut bytes).unwrap();
                assert!(bytes[..count] == *expected, "block {index}: {length} bytes at {within}");
                bytes.clear();
                let count = view.read_slices(handle, offset, length, &mut |part| bytes.extend(part)).unwrap();
                assert!(
                    count == bytes.len() && bytes == expected,
                    "block {index}: {length} at {within}, lent"
                );
            }
        }
        view.release(handle).unwrap();
    }

    /// Those for whose hints there is room have them, and none believes them.
    #[test]
    fn a_view_shows_what_was_whatever_hints_say() {
        for (cache_bytes, has_hints) in [(1 << 20, true), (u64::MAX, true), (64 << 10, false)] {
            let (core, view) = snapshot(cache_bytes);
            let ino = view.find(&Caller::root(), ROOT_INO, b"file").unwrap() as u32;
            let hints = || view.reader.hint_bytes();
            assert_eq!(hints(), 0);
            // The second time it finds what the first has noted.
            (0..2).for_each(|_| shows_what_was(&view));
            assert_eq!((hints() > 0, hints() <= cache_bytes / 4), (has_hints, true), "{cache_bytes}");
            assert!(view.cache_bytes().0 >= hints());
            for wrong in [0, 1, view.reader.medium.geometry.segment_start(0), u32::MAX.into()] {
                for index in DATA {
                    view.reader.note_leaf(ino, index, wrong, DataPointer::written(wrong), true);
                }
                shows_what_was(&view);
            }
            core.finish().unwrap();
        }
    }
}
