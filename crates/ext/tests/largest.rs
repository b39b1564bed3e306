//! The largest file: as large as the kernel's ext4 lets it be, and what would go beyond is refused at once, or written up to there.

use crate::support;
use std::fs::{File, OpenOptions as Open};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::support::Image;
use ext::{Options, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use vfs::{Caller, Error, FallocateMode, FileSystem, OpenFlags, ROOT_INO, SetAttr};

/// What is done at the end of the largest file gives so many bytes, or a number of an error.
type Done = Vec<(&'static str, Result<usize, i32>)>;

/// What mke2fs makes, and whether files have extents there.
const DISKS: [(&[&str], bool); 8] = [
    (&["-t", "ext2", "-b", "1024"], false),
    (&["-t", "ext2", "-b", "2048"], false),
    (&["-t", "ext2", "-b", "4096"], false),
    (&["-t", "ext3", "-b", "4096", "-O", "huge_file"], false),
    (&["-t", "ext3", "-b", "4096", "-O", "^large_file"], false),
    (&["-t", "ext4", "-b", "1024"], true),
    (&["-t", "ext4", "-b", "4096"], true),
    (&["-t", "ext4", "-b", "4096", "-O", "^huge_file"], true),
];

const TEN: &[u8] = b"0123456789";

/// The kernel's limit: the longest that a file can be made, which is not far from a number of blocks.
fn longest(dir: &Path) -> u64 {
    let file = File::create(dir.join("probe")).unwrap();
    let (mut can, mut cannot) = (0, 1 << 62);
    while can + 1 < cannot {
        let middle = can + (cannot - can) / 2;
        match file.set_len(middle) {
            Ok(()) => can = middle,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::FBIG.raw_os_error()));
                cannot = middle;
            }
        }
    }
    std::fs::remove_file(dir.join("probe")).unwrap();
    can
}

fn by_the_kernel(dir: &Path, most: u64, has_extents: bool) -> Done {
    let bytes = |done: std::io::Result<usize>| done.map_err(|error| error.raw_os_error().unwrap());
    let none = |done: std::io::Result<()>| bytes(done.map(|()| 0));
    let opened = |name: &str, append: bool| {
        Open::new()
            .read(true)
            .write(true)
            .append(append)
            .create(true)
            .mode(0o644)
            .open(dir.join(name))
            .unwrap()
    };
    let (file, source) = (opened("file", false), opened("source", false));
    source.write_all_at(TEN, 0).unwrap();
    let copy = |mut at: u64| {
        let copied = rustix::fs::copy_file_range(&source, Some(&mut 0), &file, Some(&mut at), TEN.len());
        copied.map_err(|error| error.raw_os_error())
    };
    let allocate = |flags: FallocateFlags, offset: u64, length: u64| {
        let done = rustix::fs::fallocate(&file, flags, offset, length);
        done.map(|()| 0).map_err(|error| error.raw_os_error())
    };
    let mut done = vec![
        ("a write behind the limit", bytes(file.write_at(b"x", most))),
        ("a write far behind it", bytes(file.write_at(TEN, (1 << 62) + 5))),
        ("a length behind it", none(file.set_len(most + 1))),
        ("a copy behind it", copy(most)),
    ];
    // Whatever has no extents the kernel allocates nothing for.
    if has_extents {
        done.push(("blocks behind it", allocate(FallocateFlags::KEEP_SIZE, most, 1)));
        done.push(("blocks and a length across it", allocate(FallocateFlags::empty(), most - 1, 2)));
    }
    assert_eq!(file.metadata().unwrap().len(), 0);
    done.push(("a copy across the limit", copy(most - 3)));
    done.push(("a write across it", bytes(file.write_at(TEN, most - 5))));
    done.push(("a write at the end", bytes(opened("file", true).write(TEN))));
    done.push(("the largest length", none(file.set_len(most - 2))));
    done.push(("a write at the end, across it", bytes(opened("file", true).write(TEN))));
    done
}

fn by_us(volume: &Volume, most: u64, has_extents: bool) -> Done {
    let root = Caller::root();
    let number = |error: Error| error.errno();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let make = |name: &[u8]| volume.create(&root, ROOT_INO, name, 0o644, flags).unwrap();
    let (file, source) = (make(b"file"), make(b"source"));
    let handles = (file.handle, source.handle);
    volume.write(&root, handles.1, 0, TEN).unwrap();
    let end = volume.open(&root, file.attr.ino, OpenFlags::WRITE | OpenFlags::APPEND).unwrap();
    let write = |offset: u64, bytes: &[u8]| volume.write(&root, handles.0, offset, bytes).map_err(number);
    let append = || volume.write(&root, end, 0, TEN).map_err(number);
    let copy = |at: u64| {
        let copied = volume.copy_file_range(&root, handles.1, 0, handles.0, at, TEN.len() as u64);
        copied.map(|bytes| bytes as usize).map_err(number)
    };
    let set_length = |size: u64| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        volume.setattr(&root, file.attr.ino, &set, None).map(|_| 0).map_err(number)
    };
    let allocate = |mode: FallocateMode, offset: u64, length: u64| {
        volume.fallocate(&root, handles.0, mode, offset, length).map(|()| 0).map_err(number)
    };
    let mut done = vec![
        ("a write behind the limit", write(most, b"x")),
        ("a write far behind it", write((1 << 62) + 5, TEN)),
        ("a length behind it", set_length(most + 1)),
        ("a copy behind it", copy(most)),
    ];
    let allocated = [
        ("blocks behind it", allocate(FallocateMode::KEEP_SIZE, most, 1)),
        ("blocks and a length across it", allocate(FallocateMode::empty(), most - 1, 2)),
    ];
    if has_extents {
        done.extend(allocated);
    } else {
        assert_eq!(allocated.map(|(_, done)| done), [Err(27), Err(27)]);
    }
    assert_eq!(volume.getattr(file.attr.ino).unwrap().size, 0);
    done.push(("a copy across the limit", copy(most - 3)));
    done.push(("a write across it", write(most - 5, TEN)));
    done.push(("a write at the end", append()));
    done.push(("the largest length", set_length(most - 2)));
    done.push(("a write at the end, across it", append()));
    for handle in [handles.0, handles.1, end] {
        volume.release(handle).unwrap();
    }
    done
}

/// A write across the limit was refused whole, and a block map without `huge_file` had a lower limit than the kernel's.
#[test]
fn what_goes_beyond_the_largest_file_is_refused_at_once_and_as_by_the_kernel() {
    if !support::can_mount() {
        return;
    }
    for (options, has_extents) in DISKS {
        let image = Image::make("16M", options);
        let (most, expected) = {
            let mounted = image.mount("");
            let most = longest(&mounted.dir);
            let done = by_the_kernel(&mounted.dir, most, has_extents);
            std::fs::remove_file(mounted.dir.join("file")).unwrap();
            std::fs::remove_file(mounted.dir.join("source")).unwrap();
            (most, done)
        };
        let disk = image.disk(false);
        let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
        ext::attach(&region, &disk).unwrap();
        let volume = Volume::mount(&region, disk.clone(), &Options::default()).unwrap();
        assert_eq!(by_us(&volume, most, has_extents), expected, "{options:?}, {most} bytes");
        volume.detach().unwrap();
        drop((volume, disk));
        image.fsck();
        let mounted = image.mount("");
        let file = File::open(mounted.dir.join("file")).unwrap();
        let mut found = [0; 8];
        file.read_exact_at(&mut found, most - 8).unwrap();
        assert_eq!((&found, file.metadata().unwrap().len()), (b"\x00\x00\x0001201", most), "{options:?}");
    }
}
