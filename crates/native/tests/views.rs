//! How snapshots are seen: `.snapshots/NAME/...` in the volume, or one of them alone.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::volumes::*;
use native::{Durability, MountOptions, Volume, open_snapshot};
use nvm::Region;
use vfs::{
    Attr, Caller, Error, FallocateMode, FileKind, FileSystem, Handle, Ino, OpenFlags, ROOT_INO, RenameFlags,
    SeekFrom, SetAttr, XattrMode,
};

const READ: OpenFlags = OpenFlags::READ;

fn find(fs: &dyn FileSystem, dir: Ino, name: &str) -> vfs::Result<Attr> {
    fs.lookup(&Caller::root(), dir, name.as_bytes())
}

fn snapshots(fs: &dyn FileSystem) -> Ino {
    find(fs, ROOT_INO, ".snapshots").unwrap().ino
}

/// The root directory of a snapshot.
fn root_of(fs: &dyn FileSystem, name: &str) -> vfs::Result<Ino> {
    Ok(find(fs, snapshots(fs), name)?.ino)
}

/// Files of every layout, directories of every size, links, attributes.
fn populate(fs: &dyn FileSystem, random: &mut Random) {
    let root = Caller::root();
    let dir = fs.mkdir(&root, ROOT_INO, b"dir", 0o750).unwrap().ino;
    let deep = fs.mkdir(&root, dir, b"deep", 0o711).unwrap().ino;
    for n in 0..300 {
        write_file(fs, deep, &format!("small {n}"), &random.bytes(n)).unwrap();
    }
    for (name, length) in [("inline", 100), ("block", 4000), ("mapped", 100_000), ("large", 3 << 20)] {
        write_file(fs, dir, name, &random.bytes(length)).unwrap();
    }
    let sparse = fs.create(&root, dir, b"sparse", 0o600, RW).unwrap();
    fs.write(&root, sparse.handle, 6 << 20, b"behind a hole").unwrap();
    fs.release(sparse.handle).unwrap();
    fs.symlink(&root, dir, b"link", &random.bytes(200).iter().map(|byte| byte % 26 + 97).collect::<Vec<_>>())
        .unwrap();
    fs.mknod(&root, dir, b"fifo", FileKind::Fifo.mode_bits() | 0o644, 0).unwrap();
    let mapped = find(fs, dir, "mapped").unwrap().ino;
    fs.link(&root, mapped, deep, b"second name").unwrap();
    fs.setxattr(&root, mapped, b"user.note", b"kept", XattrMode::Either).unwrap();
    fs.setxattr(&root, dir, b"user.long", &random.bytes(2000), XattrMode::Either).unwrap();
}

/// Changes something everywhere.
fn disturb(fs: &dyn FileSystem, random: &mut Random) {
    let root = Caller::root();
    let dir = find(fs, ROOT_INO, "dir").unwrap().ino;
    let deep = find(fs, dir, "deep").unwrap().ino;
    for name in ["inline", "block", "mapped", "large", "sparse"] {
        let Ok(attr) = find(fs, dir, name) else { continue };
        let handle = fs.open(&root, attr.ino, RW).unwrap();
        for _ in 0..20 {
            let length = random.below(6000) as usize + 1;
            fs.write(&root, handle, random.below(attr.size + 1), &random.bytes(length)).unwrap();
        }
        fs.release(handle).unwrap();
    }
    let cut = SetAttr { size: Some(5000), mode: Some(0o644), ..SetAttr::default() };
    fs.setattr(&root, find(fs, dir, "large").unwrap().ino, &cut, None).unwrap();
    for n in (0..300).step_by(3) {
        let _ = fs.unlink(&root, deep, format!("small {n}").as_bytes());
    }
    for n in 0..100 {
        write_file(fs, deep, &format!("new {} {n}", random.next()), b"new").unwrap();
    }
    let _ = fs.unlink(&root, dir, b"link");
    fs.setxattr(&root, dir, b"user.long", b"short now", XattrMode::Either).unwrap();
}

#[test]
fn a_snapshot_shows_what_was() {
    for durability in DURABILITIES {
        let (_zone, region) = made(96 << 20);
        let mut random = Random(7);
        let mut expected = Vec::new();
        {
            let volume = mount(&region, durability);
            populate(&volume, &mut random);
            for name in ["one", "two", "three"] {
                expected.push((name, tree(&volume).unwrap()));
                volume.take_snapshot(name, "").unwrap();
                disturb(&volume, &mut random);
                volume.checkpoint().unwrap();
                disturb(&volume, &mut random);
            }
            check(&volume, &expected);
            volume.close().unwrap();
        }
        check(&mount(&region, durability), &expected);
        for (name, expected) in &expected {
            let alone = open_snapshot(&region, name).unwrap();
            assert_eq!(difference(&tree(&*alone).unwrap(), expected), None, "{name} alone");
        }
        assert_sound(&region);
    }

    #[track_caller]
    fn check(volume: &Volume, expected: &[(&str, Tree)]) {
        for (name, expected) in expected {
            let found = tree_below(volume, root_of(volume, name).unwrap()).unwrap();
            assert_eq!(difference(&found, expected), None, "{name}");
        }
    }
}

#[test]
fn the_directory_of_snapshots_is_there_but_not_listed() {
    let (_zone, region) = made(32 << 20);
    let volume = mount(&region, Durability::Operation);
    write_file(&volume, ROOT_INO, "file", b"bytes").unwrap();
    let before = find(&volume, ROOT_INO, ".snapshots").unwrap();
    volume.take_snapshot("first", "").unwrap();
    volume.take_snapshot("second", "").unwrap();
    let attr = find(&volume, ROOT_INO, ".snapshots").unwrap();
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.nlink), (0o040_555, 0, 0, 4));
    assert!(attr.mtime > before.mtime, "who knows the old time has to look again");
    assert_eq!(volume.getattr(attr.ino), Ok(attr));
    assert!(volume.is_volatile(attr.ino) && !volume.is_volatile(root_of(&volume, "first").unwrap()));
    assert_eq!(volume.getattr(ROOT_INO).unwrap().nlink, 2, "it is no subdirectory that anybody counts");
    let listed: Vec<Vec<u8>> = names(&volume, ROOT_INO).unwrap().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(listed, [b"file"]);
    let unlisted = volume.unlisted(ROOT_INO).unwrap();
    assert_eq!((unlisted.name, unlisted.ino), (&b".snapshots"[..], attr.ino));
    let mut behind = Vec::new();
    let mut note = |entry: vfs::DirEntry<'_>| {
        behind.push(entry.name.to_vec());
        true
    };
    volume.readdir(ROOT_INO, unlisted.next, &mut note).unwrap();
    assert_eq!(behind, [b"file"], "a listing goes on behind it");
    assert_eq!(
        (volume.unlisted(attr.ino), volume.unlisted(root_of(&volume, "first").unwrap())),
        (None, None)
    );
    let listed = names(&volume, attr.ino).unwrap();
    let first = root_of(&volume, "first").unwrap();
    assert_eq!(listed[0], (b"first".to_vec(), FileKind::Directory, first));
    assert_eq!(listed.len(), 2);
    // Numbers: whose it is, and what number it has there.
    let file = find(&volume, first, "file").unwrap();
    assert_eq!(file.ino & 0xffff_ffff, find(&volume, ROOT_INO, "file").unwrap().ino);
    assert_eq!(
        (first >> 32, file.ino >> 32),
        (file.ino >> 32, volume.snapshot("first").unwrap().version.into())
    );
    // Upwards.
    assert_eq!(find(&volume, first, "..").unwrap(), find(&volume, ROOT_INO, ".snapshots").unwrap());
    assert_eq!(find(&volume, attr.ino, "..").unwrap().ino, ROOT_INO);
    assert_eq!(find(&volume, first, ".").unwrap().ino, first);
    let mut up = None;
    volume
        .readdir(first, 1, &mut |entry| {
            up = Some((entry.name.to_vec(), entry.ino));
            false
        })
        .unwrap();
    assert_eq!(up, Some((b"..".to_vec(), attr.ino)));
    // In a snapshot there is none, as there was none.
    assert_eq!(find(&volume, first, ".snapshots"), Err(Error::NotFound));
    assert_eq!(find(&volume, attr.ino, "third"), Err(Error::NotFound));
    assert_eq!(volume.getattr(attr.ino - 1), Err(Error::Stale));
    assert_eq!(volume.getattr(99 << 32 | 1), Err(Error::Stale));
    assert_eq!(volume.getattr(first + 1), Err(Error::Stale), "the hidden directory");
}

#[test]
fn a_listing_goes_on_while_snapshots_come_and_go() {
    let (_zone, region) = made(32 << 20);
    let volume = mount(&region, Durability::Operation);
    for n in 0..20 {
        volume.take_snapshot(&format!("s{n}"), "").unwrap();
    }
    let dir = snapshots(&volume);
    let (mut from, mut listed) = (0, Vec::new());
    for round in 0.. {
        let mut next = None;
        volume
            .readdir(dir, from, &mut |entry| {
                let is_first = next.is_none();
                next.get_or_insert((entry.next, String::from_utf8(entry.name.to_vec()).unwrap()));
                is_first
            })
            .unwrap();
        let Some((cookie, name)) = next else { break };
        from = cookie;
        listed.push(name);
        if round < 10 {
            // The one just listed, or one behind.
            let gone = if round % 2 == 0 { round } else { 20 - round };
            let _ = volume.remove_snapshot(&format!("s{gone}"));
            volume.take_snapshot(&format!("late {round}"), "").unwrap();
        }
    }
    let once: HashSet<&String> = listed.iter().collect();
    assert_eq!(once.len(), listed.len(), "{listed:?}");
    for snapshot in volume.snapshots() {
        assert!(once.contains(&snapshot.name), "{} is missing in {listed:?}", snapshot.name);
    }
}

#[test]
fn nothing_changes_a_snapshot() {
    let (_zone, region) = made(32 << 20);
    let volume = mount(&region, Durability::Operation);
    write_file(&volume, ROOT_INO, "file", b"bytes").unwrap();
    volume.mkdir(&Caller::root(), ROOT_INO, b"closed", 0o700).unwrap();
    volume.take_snapshot("kept", "").unwrap();
    let top = root_of(&volume, "kept").unwrap();
    refuses(&volume, top);
    write_file(&volume, ROOT_INO, "later", &[1; 1 << 20]).unwrap();
    let (space, whole) = (volume.statfs_of(top).unwrap(), volume.statfs_of(ROOT_INO).unwrap());
    assert_eq!((space.blocks_free, space.blocks_available), (0, 0), "it is full");
    assert!(space.blocks < 100 && whole.blocks_free > 1000, "{space:?} of {whole:?}");
    volume.close().unwrap();
    drop(volume);
    let alone = open_snapshot(&region, "kept").unwrap();
    refuses(&*alone, ROOT_INO);
    assert_eq!(alone.statfs().unwrap().blocks_free, 0);

    fn refuses(fs: &dyn FileSystem, top: Ino) {
        let (root, user) = (Caller::root(), Caller::user(7, 7));
        let file = find(fs, top, "file").unwrap().ino;
        let closed = find(fs, top, "closed").unwrap().ino;
        let none = RenameFlags::empty();
        assert_eq!(fs.mkdir(&root, top, b"new", 0o755), Err(Error::ReadOnly));
        assert_eq!(fs.mkdir(&user, top, b"new", 0o755), Err(Error::ReadOnly), "before permission to write");
        assert_eq!(fs.mkdir(&root, top, b"file", 0o755), Err(Error::Exists));
        assert_eq!(fs.mkdir(&user, closed, b"new", 0o755), Err(Error::AccessDenied), "not to be searched");
        assert_eq!(fs.mkdir(&root, file, b"new", 0o755), Err(Error::NotDirectory));
        assert_eq!(fs.mknod(&root, top, b"new", 0o100_644, 0), Err(Error::ReadOnly));
        assert_eq!(fs.symlink(&root, top, b"new", b"target"), Err(Error::ReadOnly));
        assert_eq!(fs.link(&root, file, top, b"new"), Err(Error::ReadOnly));
        assert_eq!(fs.link(&root, file, top, b"closed"), Err(Error::Exists));
        assert_eq!(fs.unlink(&root, top, b"file"), Err(Error::ReadOnly));
        assert_eq!(fs.unlink(&root, top, b"."), Err(Error::IsDirectory));
        assert_eq!(fs.rmdir(&root, top, b"closed"), Err(Error::ReadOnly));
        assert_eq!(fs.rmdir(&root, top, b".."), Err(Error::NotEmpty));
        assert_eq!(fs.rename(&root, top, b"file", top, b"other", none), Err(Error::ReadOnly));
        assert_eq!(fs.rename(&root, top, b".", top, b"other", none), Err(Error::Busy));
        let longer = SetAttr { size: Some(9), ..SetAttr::default() };
        let mode = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        assert_eq!(fs.setattr(&root, file, &mode, None), Err(Error::ReadOnly));
        assert_eq!(fs.setattr(&root, closed, &longer, None), Err(Error::IsDirectory));
        assert_eq!(fs.setattr(&root, file, &longer, None), Err(Error::ReadOnly));
        assert_eq!(fs.setxattr(&root, file, b"user.x", b"", XattrMode::Either), Err(Error::ReadOnly));
        assert_eq!(fs.setxattr(&root, file, b"", b"", XattrMode::Either), Err(Error::Range));
        assert_eq!(fs.removexattr(&root, file, b"user.x"), Err(Error::ReadOnly));
        assert_eq!(fs.access(&root, file, 2), Err(Error::ReadOnly));
        assert_eq!(fs.access(&user, file, 4), Ok(()));
        assert_eq!(fs.access(&user, closed, 4), Err(Error::AccessDenied));
        for flags in [RW, OpenFlags::WRITE, READ | OpenFlags::TRUNCATE] {
            assert_eq!(fs.open(&root, file, flags), Err(Error::ReadOnly));
            assert_eq!(fs.open(&root, closed, flags), Err(Error::IsDirectory));
        }
        assert_eq!(fs.open(&user, closed, READ), Err(Error::AccessDenied));
        assert_eq!(fs.create(&root, top, b"new", 0o644, RW), Err(Error::ReadOnly));
        assert_eq!(fs.create(&root, top, b"file", 0o644, RW), Err(Error::ReadOnly));
        assert_eq!(fs.create(&root, top, b"file", 0o644, RW | OpenFlags::EXCLUSIVE), Err(Error::Exists));
        assert_eq!(fs.create(&root, top, b"closed", 0o644, RW), Err(Error::IsDirectory));
        assert_eq!(fs.tmpfile(&root, top, 0o644, RW), Err(Error::ReadOnly));
        assert_eq!(fs.tmpfile(&root, file, 0o644, RW), Err(Error::NotDirectory));
        let there = fs.create(&root, top, b"file", 0o644, READ).unwrap();
        assert!(!there.new && there.attr.ino == file);
        let handle = there.handle;
        assert_eq!(fs.write(&root, handle, 0, b"x"), Err(Error::BadHandle));
        let (keep, punch) = (FallocateMode::KEEP_SIZE, FallocateMode::PUNCH_HOLE);
        assert_eq!(fs.fallocate(&root, handle, keep | punch, 0, 9), Err(Error::BadHandle));
        assert_eq!(fs.copy_file_range(&root, handle, 0, handle, 9, 5), Err(Error::BadHandle));
        assert_eq!(fs.seek(handle, SeekFrom::Hole(1)), Ok(5));
        assert_eq!(fs.seek(handle, SeekFrom::Data(5)), Err(Error::NoSuchOffset));
        assert_eq!((fs.fsync(handle, false), fs.fsync_inode(file), fs.syncfs()), (Ok(()), Ok(()), Ok(())));
        fs.release(handle).unwrap();
        assert_eq!(fs.release(handle), Err(Error::BadHandle));
        assert_eq!(fs.read(handle, 0, &mut [0]), Err(Error::BadHandle));
        assert_eq!(read_inode(fs, file).unwrap(), b"bytes");
    }
}

#[test]
fn the_name_of_the_directory_of_snapshots_is_taken() {
    let (_zone, region) = made(32 << 20);
    let volume = mount(&region, Durability::Operation);
    let (root, name) = (Caller::root(), b".snapshots" as &[u8]);
    write_file(&volume, ROOT_INO, "file", b"bytes").unwrap();
    let file = ino(&volume, "file");
    assert_eq!(volume.mkdir(&root, ROOT_INO, name, 0o755), Err(Error::Exists));
    assert_eq!(volume.mknod(&root, ROOT_INO, name, 0o100_644, 0), Err(Error::Exists));
    assert_eq!(volume.symlink(&root, ROOT_INO, name, b"x"), Err(Error::Exists));
    assert_eq!(volume.link(&root, file, ROOT_INO, name), Err(Error::Exists));
    assert_eq!(volume.create(&root, ROOT_INO, name, 0o644, RW | OpenFlags::EXCLUSIVE), Err(Error::Exists));
    assert_eq!(volume.create(&root, ROOT_INO, name, 0o644, RW), Err(Error::IsDirectory));
    assert_eq!(volume.unlink(&root, ROOT_INO, name), Err(Error::Busy));
    assert_eq!(volume.rmdir(&root, ROOT_INO, name), Err(Error::Busy));
    assert_eq!(volume.rmdir(&Caller::user(7, 7), ROOT_INO, name), Err(Error::AccessDenied));
    let (none, keep) = (RenameFlags::empty(), RenameFlags::NOREPLACE);
    assert_eq!(volume.rename(&root, ROOT_INO, b"file", ROOT_INO, name, none), Err(Error::Busy));
    assert_eq!(volume.rename(&root, ROOT_INO, b"file", ROOT_INO, name, keep), Err(Error::Exists));
    assert_eq!(volume.rename(&root, ROOT_INO, name, ROOT_INO, b"other", none), Err(Error::Busy));
    // Elsewhere it is a name like others.
    let dir = volume.mkdir(&root, ROOT_INO, b"dir", 0o755).unwrap().ino;
    volume.mkdir(&root, dir, name, 0o755).unwrap();
    // Into the directory itself nothing is put, and nothing leaves it.
    let list = snapshots(&volume);
    volume.take_snapshot("kept", "").unwrap();
    assert_eq!(volume.mkdir(&root, list, b"new", 0o755), Err(Error::ReadOnly));
    assert_eq!(volume.mkdir(&root, list, b"kept", 0o755), Err(Error::Exists));
    assert_eq!(volume.rmdir(&root, list, b"kept"), Err(Error::ReadOnly));
    assert_eq!(volume.rename(&root, list, b"kept", list, b"new", none), Err(Error::ReadOnly));
    assert_eq!(volume.setattr(&root, list, &SetAttr::default(), None), Err(Error::ReadOnly));
    let handle = volume.open(&root, list, READ).unwrap();
    assert_eq!(volume.read(handle, 0, &mut [0]), Err(Error::IsDirectory));
    volume.release(handle).unwrap();
    // Nor across the border.
    let top = root_of(&volume, "kept").unwrap();
    let kept = find(&volume, top, "file").unwrap().ino;
    assert_eq!(volume.link(&root, kept, ROOT_INO, b"back"), Err(Error::CrossDevice));
    assert_eq!(volume.link(&root, file, top, b"back"), Err(Error::CrossDevice));
    assert_eq!(volume.rename(&root, top, b"file", ROOT_INO, b"back", none), Err(Error::CrossDevice));
    assert_eq!(volume.rename(&root, ROOT_INO, b"file", top, b"back", none), Err(Error::CrossDevice));
    assert_eq!(volume.rename(&root, list, b"kept", ROOT_INO, b"back", none), Err(Error::CrossDevice));
    let (from, to) = (volume.open(&root, kept, READ).unwrap(), volume.open(&root, file, RW).unwrap());
    assert_eq!(volume.copy_file_range(&root, from, 0, to, 0, 5), Err(Error::CrossDevice));
    assert_eq!(volume.copy_file_range(&root, to, 0, from, 0, 5), Err(Error::BadHandle));
}

#[test]
fn a_snapshot_in_use_stays_and_one_that_went_is_stale() {
    let (_zone, region) = made(32 << 20);
    let volume = mount(&region, Durability::Operation);
    let root = Caller::root();
    write_file(&volume, ROOT_INO, "file", b"bytes").unwrap();
    volume.take_snapshot("kept", "").unwrap();
    let top = root_of(&volume, "kept").unwrap();
    let file = find(&volume, top, "file").unwrap().ino;
    let handle = volume.open(&root, file, READ).unwrap();
    assert!(
        matches!(volume.remove_snapshot("kept"), Err(native::Error::SnapshotInUse(name)) if name == "kept")
    );
    let mut buf = [0; 9];
    assert_eq!(volume.read(handle, 0, &mut buf), Ok(5));
    volume.release(handle).unwrap();
    volume.remove_snapshot("kept").unwrap();
    volume.finish_removals().unwrap();
    assert_eq!(volume.read(handle, 0, &mut buf), Err(Error::BadHandle));
    assert_eq!((volume.getattr(top), volume.getattr(file)), (Err(Error::Stale), Err(Error::Stale)));
    assert_eq!(volume.open(&root, file, READ), Err(Error::Stale));
    assert_eq!(find(&volume, snapshots(&volume), "kept"), Err(Error::NotFound));
    // One of the same name is another.
    volume.take_snapshot("kept", "").unwrap();
    assert_ne!(root_of(&volume, "kept").unwrap(), top);
    assert_eq!(volume.getattr(file), Err(Error::Stale));
}

/// Of more snapshots than views are kept, files are open all at once.
#[test]
fn views_are_bounded_but_for_those_in_use() {
    let (_zone, region) = made(64 << 20);
    let volume = mount(&region, Durability::Operation);
    let root = Caller::root();
    for n in 0..40u8 {
        write_file(&volume, ROOT_INO, "file", &[n; 5000]).unwrap();
        volume.take_snapshot(&n.to_string(), "").unwrap();
    }
    let look = |n: u8| {
        let top = root_of(&volume, &n.to_string()).unwrap();
        find(&volume, top, "file").unwrap().ino
    };
    for n in (0..40).chain((0..40).rev()) {
        assert_eq!(read_inode(&volume, look(n)).unwrap(), [n; 5000]);
        assert!(volume.stats().snapshot_views <= 8);
    }
    let open: Vec<(u8, Handle)> = (0..40).map(|n| (n, volume.open(&root, look(n), READ).unwrap())).collect();
    let stats = volume.stats();
    assert_eq!((stats.snapshot_views, stats.open_handles), (40, 40));
    for (n, handle) in open {
        let mut bytes = [0; 5000];
        assert_eq!((volume.read(handle, 0, &mut bytes), bytes), (Ok(5000), [n; 5000]));
        volume.release(handle).unwrap();
    }
    // Those too many go when the next one is opened.
    volume.take_snapshot("40", "").unwrap();
    look(40);
    let stats = volume.stats();
    assert!(stats.snapshot_views <= 8 && stats.open_handles == 0, "{stats:?}");
    assert!(stats.snapshot_cache_bytes > 0);
}

#[test]
fn numbers_stay_from_mount_to_mount() {
    let (_zone, region) = made(32 << 20);
    let file = {
        let volume = mount(&region, Durability::Operation);
        write_file(&volume, ROOT_INO, "file", b"bytes").unwrap();
        volume.take_snapshot("kept", "").unwrap();
        volume.unlink(&Caller::root(), ROOT_INO, b"file").unwrap();
        find(&volume, root_of(&volume, "kept").unwrap(), "file").unwrap()
    };
    let volume = mount(&region, Durability::Operation);
    assert_eq!(volume.getattr(file.ino), Ok(file));
    assert_eq!(read_inode(&volume, file.ino).unwrap(), b"bytes");
}

/// The snapshots of a volume whose server was killed are shown alone without a byte of it changed.
#[test]
fn a_snapshot_alone_needs_no_recovery() {
    let (zone, region) = made(32 << 20);
    let volume = mount(&region, Durability::Operation);
    write_file(&volume, ROOT_INO, "file", b"before").unwrap();
    let expected = tree(&volume).unwrap();
    volume.take_snapshot("kept", "").unwrap();
    write_file(&volume, ROOT_INO, "file", b"after it").unwrap();
    assert!(matches!(open_snapshot(&region, "kept"), Err(native::Error::Mounted)));
    let (crashed, region) = crashed(&zone);
    let read_only = MountOptions { read_only: true, ..options(Durability::Operation) };
    let before = crashed.snapshot_image();
    {
        let alone = open_snapshot(&region, "kept").unwrap();
        assert_eq!(difference(&tree(&*alone).unwrap(), &expected), None);
        assert_eq!(alone.lookup(&Caller::root(), ROOT_INO, b"..").unwrap().ino, ROOT_INO);
        assert!(matches!(Volume::open(region.clone(), &read_only), Err(native::Error::Mounted)));
    }
    assert!(matches!(open_snapshot(&region, "other"), Err(native::Error::NoSnapshot(_))));
    assert_eq!(crashed.snapshot_image(), before);
    let recovered = mount(&region, Durability::Operation);
    assert_eq!(read_file(&recovered, ROOT_INO, "file").unwrap(), b"after it");
}

/// What rots on the medium is an error for who meets it: nobody panics, walks for ever, or sees other names.
#[test]
fn damage_is_an_error() {
    let (zone, region) = made(16 << 20);
    let mut random = Random(11);
    let volume = mount(&region, Durability::Operation);
    populate(&volume, &mut random);
    volume.take_snapshot("kept", "").unwrap();
    disturb(&volume, &mut random);
    drop(volume);
    let expected = tree(&*open_snapshot(&region, "kept").unwrap()).unwrap();
    let image = zone.snapshot_image();
    let start = nvm::SEGMENT as usize; // behind the zone's entrance
    let mut damaged = 0;
    for _ in 0..300 {
        let mut image = image.clone();
        for _ in 0..200 {
            let at = start + random.below((image.len() - start) as u64) as usize;
            image[at] ^= 1 << random.below(8);
        }
        let (_zone, region) = zone_of(&image);
        match open_snapshot(&region, "kept").map(|alone| tree(&*alone)) {
            Ok(Ok(found)) => assert!(found.keys().eq(expected.keys())),
            _ => damaged += 1,
        }
    }
    assert!((1..300).contains(&damaged), "{damaged} of 300");
}

/// Whoever lists a snapshot when it is removed comes to the end of the listing.
#[test]
fn removing_waits_for_calls_under_way() {
    let (_zone, region) = made(32 << 20);
    let volume = mount(&region, Durability::Operation);
    for n in 0..50 {
        write_file(&volume, ROOT_INO, &n.to_string(), b"").unwrap();
    }
    volume.take_snapshot("kept", "").unwrap();
    let top = root_of(&volume, "kept").unwrap();
    let mut listed = 0;
    std::thread::scope(|scope| {
        let mut remover = None;
        volume
            .readdir(top, 0, &mut |_| {
                listed += 1;
                remover.get_or_insert_with(|| scope.spawn(|| volume.remove_snapshot("kept")));
                true
            })
            .unwrap();
        remover.unwrap().join().unwrap().unwrap();
    });
    assert_eq!(listed, 52);
    assert_eq!(volume.readdir(top, 0, &mut |_| true), Err(Error::Stale));
}

/// Threads read snapshots that others take and remove: each sees one whole snapshot, or that it is gone.
#[test]
fn snapshots_are_whole_or_gone_for_those_who_read_them() {
    let (_zone, region) = made(64 << 20);
    let volume = Volume::open(region.clone(), &options(Durability::Operation)).unwrap();
    let root = Caller::root();
    let files: Vec<Handle> = (0..10)
        .map(|n| volume.create(&root, ROOT_INO, format!("f{n}").as_bytes(), 0o644, RW).unwrap().handle)
        .collect();
    let done = AtomicBool::new(false);
    let reads: u64 = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut whole = 0;
                    while !done.load(Ordering::Relaxed) {
                        for (name, _, top) in names(&volume, snapshots(&volume)).unwrap() {
                            whole += u64::from(is_whole(&volume, top, &name));
                        }
                    }
                    whole
                })
            })
            .collect();
        for round in 0..60u32 {
            for handle in &files {
                let bytes = round.to_le_bytes().repeat(2000);
                volume.write(&root, *handle, 0, &bytes).unwrap();
                volume.write(&root, *handle, 8000, &bytes[..100]).unwrap();
            }
            volume.take_snapshot(&round.to_string(), "").unwrap();
            if round >= 5 {
                while let Err(error) = volume.remove_snapshot(&(round - 5).to_string()) {
                    assert!(matches!(error, native::Error::SnapshotInUse(_)), "{error}");
                    std::thread::yield_now();
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    println!("{reads} snapshots read");
    for (name, _, top) in names(&volume, snapshots(&volume)).unwrap() {
        assert!(is_whole(&volume, top, &name));
    }
    close(volume, &region);

    /// Reads all of a snapshot; false if it is gone.
    fn is_whole(volume: &Volume, top: Ino, name: &[u8]) -> bool {
        let expected: u32 = std::str::from_utf8(name).unwrap().parse().unwrap();
        let gone = |error: Error| match error {
            Error::Stale => false,
            error => panic!("{error}"),
        };
        for n in 0..10 {
            let bytes =
                match find(volume, top, &format!("f{n}")).and_then(|attr| read_inode(volume, attr.ino)) {
                    Ok(bytes) => bytes,
                    Err(error) => return gone(error),
                };
            let (words, rest) = bytes.as_chunks::<4>();
            assert!(bytes.len() == 8100 && rest.is_empty());
            for word in words {
                assert_eq!(u32::from_le_bytes(*word), expected);
            }
        }
        true
    }

    fn close(volume: Volume, region: &Region) {
        volume.close().unwrap();
        drop(volume);
        assert_sound(region);
    }
}
