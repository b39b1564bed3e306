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
        Ok(SnapshotView {
            reader: Reader::kept(
                medium,
                (body.tree(), record.version),
                hash_key,
                body.nodes.get(),
                cache_bytes,
            ),
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
        (pages, tables + size_of::<SnapshotView>() as u64)
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
            let found = self.reader.find(caller, number, name)?.ok_or(Error::NotFound)?;
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
        self.reader
            .medium
            .vouched(|| self.reader.read_into(self.reader.regular(self.file(handle)?)?, offset, buf))
    }

    fn read_slices(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        self.reader
            .medium
            .vouched(|| self.reader.lend(self.reader.regular(self.file(handle)?)?, offset, len, sink))
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
