//! Pages by way of the log in NVM: an `fsync` costs no time of the disk.
//!
//! [`Volume::collect`] hands what changed of a file to the running transaction, in the operation that maps it and sets the length; when that
//! transaction is durable, so are they. From then on the pages are the log's (see [`crate::pages`]) until it lets go of them: first
//! [`Volume::drain_files`] makes them durable on the disk, then, when that part of the log is void, [`Volume::retired_files`] drops them.

use vfs::{Error, Result};

use crate::core::inode;
use crate::fault::{Fault, planted};
use crate::files::{Held, State};
use crate::home::Home;
use crate::home::LogItem;
use crate::map;
use crate::pages::{Page, Site};
use crate::volume::Volume;
use crate::work::Task;
use crate::write_out::map_pages;
use crate::writer::Writer;

/// Bytes that one transaction gets of a file.
const COLLECTED_MAX: u64 = 1 << 20;

/// What became of a part of a file's changes.
enum Collected {
    /// It is in the running transaction; from this page on there is more. The file had been cut so often.
    Upto(Option<u64>, u64),
    /// The file has been cut since the last part: zeros that this left in pages before have to come first.
    Cut,
    /// The running transaction has no room for it: that is to be committed first.
    NotYet,
}

/// Which part of a file's changes is to be collected.
#[derive(Clone, Copy)]
struct Part {
    /// From this page on, at most so many.
    from: u64,
    most: usize,
    /// How often the file had been cut when the part before was collected.
    cuts: Option<u64>,
    /// Only of pages that the log has.
    only_logged: bool,
}

impl Volume {
    /// Hands a file's changes to the running transaction, or to several if that would be too large. Called without locks.
    pub(crate) fn collect(&self, file: &Held<'_>) -> Result<()> {
        self.collect_pages(file, false)
    }

    /// The same, of those pages alone that the log has: the others can be written out then.
    pub(crate) fn collect_logged(&self, file: &Held<'_>) -> Result<()> {
        let waits = |state: &State| state.pages.changed(0).any(|(_, page)| page.logged().is_some());
        if waits(&file.shared()) { self.collect_pages(file, true) } else { Ok(()) }
    }

    fn collect_pages(&self, file: &Held<'_>, only_logged: bool) -> Result<()> {
        let Some(home) = &self.home else { return Err(Error::ReadOnly) };
        if file.shared().is_saved() {
            return Ok(());
        }
        self.make_room_for_synced(home)?;
        let most = (COLLECTED_MAX.min(home.record_bytes_max()) / self.core.superblock.block).max(1) as usize;
        let (mut next, mut cuts) = (Some(0), None);
        while let Some(from) = next {
            let part = Part { from, most, cuts, only_logged };
            let collected = self.with_commit(|| self.collect_some(file, part));
            match self.or_zero(file, collected)? {
                Some(Collected::Upto(rest, now)) => (next, cuts) = (rest, Some(now)),
                Some(Collected::Cut) | None => (next, cuts) = (Some(0), None),
                Some(Collected::NotYet) => self.commit_all()?,
            }
        }
        Ok(())
    }

    /// Waits until there is room in DRAM for more pages that the log has.
    fn make_room_for_synced(&self, home: &Home) -> Result<()> {
        let is_above = |pages| self.files.synced() >= pages;
        if is_above(self.synced_max / 2) {
            self.work.ask(Task::EmptyLog);
        }
        // Two halves; what is synced again all the time stays.
        for _ in 0..2 {
            if is_above(self.synced_max) {
                home.empty_half(self)?;
            }
        }
        Ok(())
    }

    /// Hands a part of a file's changes to the running transaction; tells from where to go on.
    fn collect_some(&self, file: &Held<'_>, part: Part) -> Result<Collected> {
        let Part { from, most, cuts, only_logged } = part;
        let mut state = file.alone();
        if cuts.is_some_and(|cuts| cuts != state.cuts) {
            return Ok(Collected::Cut);
        }
        self.find_places(file.number, &mut state, |_| true)?;
        let is_meant = |page: &Page| !only_logged || page.logged().is_some();
        let Gathered { pages, items, next } =
            gather(state.pages.changed(from).filter(|(_, page)| is_meant(page)), most);
        let left = match only_logged {
            true => state.pages.changed(0).find(|(_, page)| !is_meant(page)).map(|(number, _)| number),
            false => None,
        };
        if pages.is_empty() && state.size.is_none() {
            return Ok(Collected::Upto(None, state.cuts));
        }
        // No length covers bytes that are not in the transaction or before it, and no block lies behind the length.
        let first_left = next.into_iter().chain(left).min();
        let covered = first_left.map_or(u64::MAX, |first| first * self.core.superblock.block);
        let limit = self.home.as_ref().map_or(0, |home| home.record_bytes_max());
        let collected = self.change(|core| {
            // Two records of this size and what else there is have room in half of the log, whoever else does the same.
            if core.store.running().bytes > limit {
                return Ok(None);
            }
            let mut inode = inode::read(core, file.number)?;
            map_pages(core, &mut inode, &pages, &state.zeroed)?;
            inode.size = inode.size.max(state.size.unwrap_or(0).min(covered));
            inode::write(core, &inode)?;
            let transaction = core.store.log_data(items);
            // Before it can be committed: a checkpoint looks here for what the log has.
            self.files.logged.lock().insert((transaction, file.number));
            Ok(Some((transaction, inode.size)))
        })?;
        let Some((transaction, on_disk)) = collected else { return Ok(Collected::NotYet) };
        state.size = state.size.filter(|size| *size != on_disk);
        state.map_zeroed(&pages);
        for (number, _) in pages {
            state.pages.map(number);
            state.pages.log(number, transaction);
        }
        Ok(Collected::Upto(next, state.cuts))
    }

    /// Makes durable on the disk what transactions up to `transaction`, which are in the log, have of files; what the disk refuses of it, in frames.
    /// Nobody who uses them waits.
    pub(crate) fn drain_files(&self, transaction: u64) -> Result<()> {
        // What it refuses still is there still.
        drop(self.offer_refused());
        let mut writer = self.writer()?;
        for number in self.logged_up_to(transaction) {
            // One that is not there has nothing that the disk has not, or it is among the dropped.
            if let Some(file) = self.files.find(number) {
                drain_file(&mut writer, &file, transaction);
            }
        }
        let drain_dropped = |writer: &mut Writer<'_>, from| {
            // Not locked while it is written.
            self.files.dropped.lock().drain_some(from, transaction, |block, bytes| {
                let has_room = !writer.is_full();
                if has_room {
                    writer.add(block, bytes);
                }
                has_room
            })
        };
        let mut from = drain_dropped(&mut writer, 0);
        while let Some(next) = from {
            writer.send();
            from = drain_dropped(&mut writer, next);
        }
        let written = writer.finish();
        let is_durable = written.is_nothing() || planted(Fault::DrainNotFlushed);
        let flushed = if is_durable { Ok(()) } else { self.flush(&written) };
        let refused = written.result();
        if refused.is_err() && !written.was_there() {
            return refused;
        }
        flushed?;
        refused.or_else(|error| self.keep_refused(transaction, &written, error))
    }

    /// The log has nothing any more of transactions up to `transaction`: what they had is on the disk.
    pub(crate) fn retired_files(&self, transaction: u64) {
        for number in self.logged_up_to(transaction) {
            if let Some(file) = self.files.find(number) {
                file.alone().pages.retire(transaction, &self.files.spare);
            }
        }
        let logged = &mut *self.files.logged.lock();
        *logged = logged.split_off(&(transaction + 1, 0));
    }

    /// Files of which transactions up to `transaction` have logged pages.
    pub(crate) fn logged_up_to(&self, transaction: u64) -> vfs::InoSet<u32> {
        self.files.logged.lock().range(..=(transaction, u32::MAX)).map(|(_, file)| *file).collect()
    }
}

/// Pages that are logged together.
struct Gathered {
    pages: Vec<(u64, Site)>,
    /// What the log is to have of them.
    items: Vec<LogItem>,
    /// The next page that has changed.
    next: Option<u64>,
}

/// The first of these pages, `most` at most.
fn gather<'a>(mut changed: impl Iterator<Item = (u64, &'a Page)>, most: usize) -> Gathered {
    let (mut pages, mut items) = (Vec::new(), Vec::new());
    for (number, page) in changed.by_ref().take(most) {
        let site = page.site();
        pages.push((number, site));
        let fresh = !matches!(site, Site::Mapped(_));
        let item = |block| LogItem { block, page: page.share(), within: page.changed(), fresh };
        items.extend(site.block().filter(|_| !planted(Fault::ItemsLeftOut)).map(item));
    }
    Gathered { pages, items, next: changed.next().map(|(number, _)| number) }
}

/// Has all pages of a file written of which transactions up to `transaction` have logged something.
fn drain_file(writer: &mut Writer<'_>, file: &Held<'_>, transaction: u64) {
    let mut from = 0;
    loop {
        let state = file.shared();
        for (number, page) in state.pages.range(from..map::END) {
            if writer.is_full() {
                break;
            }
            from = number + 1;
            let is_due = page.logged().is_some_and(|logged| logged.first <= transaction);
            if let (true, Some(block)) = (is_due, page.site().block()) {
                writer.add(block, page.bytes());
            }
        }
        if !writer.is_full() {
            return;
        }
        drop(state);
        writer.send();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use disk::Memory;
    use nvm::{OpenOptions, Zone};
    use vfs::{Caller, Created, FileSystem, Handle, OpenFlags, ROOT_INO, SetAttr};

    use super::*;
    use crate::support::Image;
    use crate::support::attached::{Attached, mount};

    const FLAGS: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

    /// A disk with a file on it.
    struct Scene {
        zone: Zone,
        memory: Arc<Memory>,
        volume: Volume,
        file: Created,
    }

    impl Scene {
        fn new() -> Scene {
            let Attached { zone, memory, volume } = Attached::new();
            let file = volume.create(&Caller::root(), ROOT_INO, b"f", 0o644, FLAGS).unwrap();
            Scene { zone, memory, volume, file }
        }

        fn write(&self, at: u64, bytes: &[u8]) {
            let written = self.volume.write(&Caller::root(), self.file.handle, at, bytes);
            assert_eq!(written.unwrap(), bytes.len());
        }

        fn fsync(&self) {
            self.volume.fsync(self.file.handle, false).unwrap();
        }

        fn resize(&self, size: u64) {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            self.volume.setattr(&Caller::root(), self.file.attr.ino, &set, Some(self.file.handle)).unwrap();
        }

        /// Behind a power cut now: the same file.
        fn cut(&self) -> Scene {
            let zone = Zone::from_bytes(&self.zone.snapshot_image(), &OpenOptions::default()).unwrap();
            let memory = Arc::new(Memory::new(self.memory.image(), false));
            let volume = mount(&zone, &memory);
            let attr = volume.getattr(self.file.attr.ino).unwrap();
            let handle: Handle = volume.open(&Caller::root(), attr.ino, FLAGS).unwrap();
            Scene { zone, memory, volume, file: Created { attr, handle, new: false } }
        }

        fn contents(&self) -> Vec<u8> {
            let size = self.volume.getattr(self.file.attr.ino).unwrap().size;
            let mut bytes = vec![1; size as usize];
            assert_eq!(self.volume.read(self.file.handle, 0, &mut bytes).unwrap(), bytes.len());
            bytes
        }

        fn fsck(self) {
            let found = crate::check_volume(&self.volume).unwrap();
            assert!(found.is_clean(), "{:?}", found.findings);
            self.volume.release(self.file.handle).unwrap();
            self.volume.detach().unwrap();
            Image::of(&self.memory.image()).fsck();
        }
    }

    #[test]
    fn a_cut_between_two_parts_of_a_sync_has_its_zeros_logged_too() {
        let scene = Scene::new();
        scene.write(0, &[b'A'; 400 << 10]);
        let file = scene
            .volume
            .files
            .get(inode::from_vfs(&scene.volume.core.superblock, scene.file.attr.ino).unwrap());
        let first = Part { from: 0, most: 64, cuts: None, only_logged: false };
        let Ok(Collected::Upto(Some(from), cuts)) = scene.volume.collect_some(&file, first) else { panic!() };
        scene.resize(100);
        scene.write(300 << 10, &[b'B'; 10]);
        let next = Part { from, cuts: Some(cuts), ..first };
        assert!(matches!(scene.volume.collect_some(&file, next), Ok(Collected::Cut)));
        scene.fsync();
        let found = scene.cut().contents();
        assert_eq!(found.len(), (300 << 10) + 10);
        assert!(nvm::is_zero(&found[100..300 << 10]));
    }

    #[test]
    fn what_is_written_out_behind_a_page_that_waits_for_the_log_is_not_behind_the_end() {
        let scene = Scene::new();
        scene.write(0, &[b'A'; 100]);
        scene.fsync();
        scene.write(100, &[b'B'; 40_000]);
        scene.volume.write_out_all().unwrap();
        scene.volume.commit_all().unwrap();
        let after = scene.cut();
        assert_eq!(after.contents(), [vec![b'A'; 100], vec![b'B'; 40_000]].concat());
        after.resize(30_000);
        after.resize(50_000);
        assert!(nvm::is_zero(&after.contents()[30_000..]));
        after.fsck();
    }

    /// Nor where it changes again all the time: then it waits.
    #[test]
    fn nothing_is_mapped_behind_the_end_that_a_page_in_the_log_keeps_from_growing() {
        let scene = Scene::new();
        scene.write(0, &[b'A'; 100]);
        scene.fsync();
        scene.write(100, &[b'B'; 40_000]);
        let file = scene
            .volume
            .files
            .get(inode::from_vfs(&scene.volume.core.superblock, scene.file.attr.ino).unwrap());
        let mut writer = scene.volume.writer().unwrap();
        let handed = scene.volume.hand_over(&mut writer, &file).unwrap();
        assert!(handed.is_none(), "page 0 has to be logged first");
        drop(writer);
        scene.volume.commit_all().unwrap();
        let after = scene.cut();
        assert_eq!(after.contents(), [b'A'; 100]);
        after.fsck();
    }

    #[test]
    fn zeros_behind_the_end_are_logged_with_the_last_block() {
        let scene = Scene::new();
        scene.write(0, &[b'A'; 4096]);
        scene.fsync();
        scene.volume.checkpoint().unwrap();
        // The length is durable, the zeros behind it are not: the disk has letters there.
        scene.resize(100);
        scene.volume.commit_all().unwrap();
        let scene = scene.cut();
        scene.write(100, &[b'B'; 10]);
        scene.fsync();
        scene.resize(4096);
        scene.fsync();
        assert!(nvm::is_zero(&scene.contents()[110..]));
        assert!(nvm::is_zero(&scene.cut().contents()[110..]));
    }
}
