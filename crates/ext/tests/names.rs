//! Names on an attached disk: where chattr(1) has been, what a crash leaves of files without names, and many at work on the same ones.

use std::sync::Arc;

use crate::support::random::Random;
use crate::support::{Image, run};
use disk::Disk;
use ext::{Options, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{
    Attr, Caller, Error, FallocateMode, FileSystem, InodeFlags, OpenFlags, ROOT_INO, RenameFlags, SetAttr,
    SetTime, XattrMode,
};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// A disk in DRAM, attached to NVM in DRAM.
struct Machine {
    zone: Zone,
    disk: Arc<Disk>,
}

impl Machine {
    fn new(image: Vec<u8>) -> Machine {
        let zone = Zone::anonymous(32 << 20, &OpenOptions::default()).unwrap();
        zone.create_volume("disk", VolumeKind::Ext, Some(24 << 20)).unwrap();
        let disk = Arc::new(Disk::memory(image));
        ext::attach(&zone.volume("disk").unwrap(), &disk).unwrap();
        Machine { zone, disk }
    }

    fn mount(&self) -> Volume {
        Volume::mount(&self.zone.volume("disk").unwrap(), self.disk.clone(), &Options::default()).unwrap()
    }

    /// The machine as it is after a crash at this moment.
    fn crashed(&self) -> Machine {
        let zone = Zone::from_bytes(&self.zone.snapshot_image(), &OpenOptions::default()).unwrap();
        Machine { zone, disk: Arc::new(Disk::memory(self.image())) }
    }

    fn image(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.disk.bytes() as usize];
        self.disk.read(disk::Purpose::Data, 0, &mut bytes).unwrap();
        bytes
    }
}

fn forbidden<T: std::fmt::Debug + PartialEq>(result: vfs::Result<T>) {
    assert_eq!(result, Err(Error::NotPermitted));
}

#[test]
fn chattr_is_heeded() {
    let image = Image::make("16M", &["-t", "ext4", "-b", "4096"]);
    let path = image.path.display().to_string();
    let commands = [
        "mkdir fixed",
        "mkdir growing",
        "mkdir saved",
        "write /dev/null fixed/file",
        "write /dev/null growing/file",
        "write /dev/null still",
        "write /dev/null log",
        "sif fixed flags 0x80010",
        "sif growing flags 0x80020",
        "sif saved flags 0x800c8",
        "sif still flags 0x80010",
        "sif log flags 0x80020",
    ];
    let list = image.path.with_extension("commands");
    std::fs::write(&list, commands.join("\n")).unwrap();
    run("debugfs", &["-w", "-f", &list.display().to_string(), &path]);
    let machine = Machine::new(image.bytes());
    let fs = machine.mount();
    let root = &Caller::root();
    let find = |name: &[u8]| fs.lookup(root, ROOT_INO, name).unwrap();
    let (fixed, growing, still, log) =
        (find(b"fixed").ino, find(b"growing").ino, find(b"still"), find(b"log"));
    let none = RenameFlags::empty();

    forbidden(fs.mkdir(root, fixed, b"new", 0o755));
    forbidden(fs.unlink(root, fixed, b"file"));
    forbidden(fs.rename(root, fixed, b"file", ROOT_INO, b"file", none));
    forbidden(fs.rename(root, ROOT_INO, b"log", fixed, b"log", none));
    forbidden(fs.access(root, fixed, 2));
    let made = fs.create(root, growing, b"new", 0o644, RW).unwrap();
    fs.release(made.handle).unwrap();
    forbidden(fs.unlink(root, growing, b"new"));
    forbidden(fs.rename(root, growing, b"file", growing, b"other", none));
    for Attr { ino, .. } in [still, log] {
        forbidden(fs.open(root, ino, RW));
        forbidden(fs.open(root, ino, OpenFlags::READ | OpenFlags::TRUNCATE));
        forbidden(fs.link(root, ino, ROOT_INO, b"link"));
        forbidden(fs.setattr(root, ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, None));
        forbidden(fs.setattr(root, ino, &SetAttr { size: Some(0), ..SetAttr::default() }, None));
        forbidden(fs.setxattr(root, ino, b"user.a", b"value", XattrMode::Either));
        fs.release(fs.open(root, ino, OpenFlags::READ).unwrap()).unwrap();
    }
    forbidden(fs.unlink(root, ROOT_INO, b"still"));
    forbidden(fs.unlink(root, ROOT_INO, b"log"));
    forbidden(fs.rename(root, ROOT_INO, b"log", ROOT_INO, b"log.1", none));
    let touch = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
    forbidden(fs.setattr(root, still.ino, &touch, None));
    fs.setattr(root, log.ino, &touch, None).unwrap();
    let end = fs.open(root, log.ino, OpenFlags::WRITE | OpenFlags::APPEND).unwrap();
    fs.write(root, end, 0, b"line").unwrap();
    for mode in [FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE, FallocateMode::ZERO_RANGE] {
        forbidden(fs.fallocate(root, end, mode, 0, 4));
    }
    fs.release(end).unwrap();
    // A server, which is not told who opens how, writes what was appended together with what is before, and what is behind that first if need be.
    let server = &Caller::checked_by_kernel(0, 0, 0);
    let any = fs.open(server, log.ino, RW).unwrap();
    forbidden(fs.write(server, any, 0, b"life and more"));
    fs.write(server, any, 8, b" end").unwrap();
    fs.write(server, any, 0, b"line and").unwrap();
    forbidden(fs.write(server, any, 9, b"E"));
    let mut found = [0; 12];
    assert_eq!((fs.read(any, 0, &mut found), &found), (Ok(12), b"line and end"));
    fs.release(any).unwrap();
    forbidden(fs.open(server, still.ino, RW));
    assert_eq!((find(b"log").size, find(b"still")), (12, still));

    // What is made has the flags of its directory that mean something for it.
    let saved = find(b"saved").ino;
    fs.mkdir(root, saved, b"dir", 0o755).unwrap();
    fs.symlink(root, saved, b"link", b"target").unwrap();
    fs.release(fs.create(root, saved, b"file", 0o644, RW).unwrap().handle).unwrap();
    fs.detach().unwrap();
    let detached = Image::of(&machine.image());
    detached.fsck();
    let flags = |name: &str| {
        let text =
            run("debugfs", &["-R", &format!("stat saved/{name}"), &detached.path.display().to_string()]);
        let (_, rest) = text.split_once("Flags: ").unwrap();
        rest.split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(["dir", "file", "link"].map(flags), ["0x800c8", "0x800c8", "0xc0"]);
}

/// Flags were as the kernel had left them: what it had protected could not be removed while the disk was attached.
#[test]
fn chattr_needed_the_kernel() {
    const EXTENTS: InodeFlags = InodeFlags::from_bits_retain(0x8_0000);
    const IMMUTABLE: InodeFlags = EXTENTS.union(InodeFlags::IMMUTABLE);
    const APPEND: InodeFlags = EXTENTS.union(InodeFlags::APPEND);
    const NODUMP: InodeFlags = EXTENTS.union(InodeFlags::NODUMP);
    let machine = Machine::new(Image::make("16M", &["-t", "ext4", "-b", "4096"]).bytes());
    let fs = machine.mount();
    let (root, owner, other) = (&Caller::root(), &Caller::user(7, 7), &Caller::user(8, 8));
    let ino = fs.mknod(root, ROOT_INO, b"file", 0o100_644, 0).unwrap().ino;
    let own = SetAttr { uid: Some(7), ctime: Some(vfs::Time::default()), ..SetAttr::default() };
    let before = fs.setattr(root, ino, &own, None).unwrap();
    assert_eq!(fs.getattr(ino).map(|attr| attr.flags), Ok(EXTENTS));

    fs.set_inode_flags(owner, ino, NODUMP).unwrap();
    assert!(fs.getattr(ino).unwrap().ctime > before.ctime);
    forbidden(fs.set_inode_flags(other, ino, EXTENTS));
    forbidden(fs.set_inode_flags(owner, ino, NODUMP | IMMUTABLE));
    // Synchronous, with data in the journal, a top directory, of a project, by block pointers, unknown.
    for (before, more) in [
        (NODUMP, 0x8),
        (NODUMP, 0x4000),
        (NODUMP, 0x2_0000),
        (NODUMP, 0x2000_0000),
        (NODUMP - EXTENTS, 0),
        (NODUMP, 0x100_0000),
    ] {
        let refused = before | InodeFlags::from_bits_retain(more);
        assert_eq!(fs.set_inode_flags(root, ino, refused), Err(Error::NotSupported), "{refused:?}");
    }
    assert_eq!(fs.getattr(ino).map(|attr| attr.flags), Ok(NODUMP));

    let open = fs.open(owner, ino, RW).unwrap();
    fs.write(owner, open, 0, b"written before").unwrap();
    fs.set_inode_flags(root, ino, IMMUTABLE).unwrap();
    forbidden(fs.write(owner, open, 0, b"and after"));
    forbidden(fs.unlink(root, ROOT_INO, b"file"));
    forbidden(fs.set_inode_flags(root, ino, IMMUTABLE | NODUMP));
    fs.set_inode_flags(root, ino, APPEND).unwrap();
    forbidden(fs.unlink(root, ROOT_INO, b"file"));
    fs.fsync(open, false).unwrap();

    let machine = machine.crashed();
    drop(fs);
    let fs = machine.mount();
    assert_eq!(fs.getattr(ino).map(|attr| attr.flags), Ok(APPEND));
    let mut found = [0; 20];
    let open = fs.open(root, ino, OpenFlags::READ).unwrap();
    assert_eq!((fs.read(open, 0, &mut found), &found[..14]), (Ok(14), &b"written before"[..]));
    fs.release(open).unwrap();
    fs.set_inode_flags(root, ino, EXTENTS).unwrap();
    fs.unlink(root, ROOT_INO, b"file").unwrap();
    fs.detach().unwrap();
    Image::of(&machine.image()).fsck();
}

/// Inodes of 128 bytes have whole seconds, and so has what is told of a file that has just been made.
#[test]
fn times_of_a_new_small_inode_were_finer_than_those_that_are_found() {
    for (inode, step) in [("128", 1_000_000_000), ("256", 1)] {
        let machine = Machine::new(Image::make("32M", &["-t", "ext4", "-I", inode]).bytes());
        let volume = machine.mount();
        assert_eq!(volume.time_step_ns(), step);
        let made = volume.create(&Caller::root(), ROOT_INO, b"made", 0o644, OpenFlags::WRITE).unwrap();
        assert_eq!(volume.getattr(made.attr.ino).unwrap(), made.attr);
        volume.release(made.handle).unwrap();
    }
}

#[test]
fn a_crash_ends_files_without_names() {
    let image = Image::make("16M", &["-t", "ext4", "-b", "1024", "-O", "orphan_file"]);
    let machine = Machine::new(image.bytes());
    let fs = machine.mount();
    let root = &Caller::root();
    let before = fs.statfs().unwrap();
    fs.mkdir(root, ROOT_INO, b"dir", 0o755).unwrap();
    let mut open = Vec::new();
    for n in 0..5 {
        let made = fs.create(root, ROOT_INO, format!("{n}").as_bytes(), 0o644, RW).unwrap();
        fs.write(root, made.handle, 0, &vec![n; 50_000]).unwrap();
        open.push(made.handle);
        open.push(fs.tmpfile(root, ROOT_INO, 0o600, RW).unwrap().handle);
        fs.write(root, open[open.len() - 1], 9000, b"bytes").unwrap();
    }
    open.push(fs.open(root, fs.lookup(root, ROOT_INO, b"dir").unwrap().ino, OpenFlags::READ).unwrap());
    fs.syncfs().unwrap();
    fs.rmdir(root, ROOT_INO, b"dir").unwrap();
    for n in 0..5 {
        fs.unlink(root, ROOT_INO, format!("{n}").as_bytes()).unwrap();
    }
    // One of them is let go of, which is as good as never having been there.
    fs.release(open.remove(4)).unwrap();
    fs.syncfs().unwrap();
    let crashed = machine.crashed();
    let again = crashed.mount();
    assert_eq!(again.replayed().orphans, 10);
    again.detach().unwrap();
    Image::of(&crashed.image()).fsck();
    // Who lives on closes them.
    open.into_iter().for_each(|handle| fs.release(handle).unwrap());
    let after = fs.statfs().unwrap();
    assert_eq!((after.files_free, after.blocks_free), (before.files_free, before.blocks_free));
    fs.detach().unwrap();
    Image::of(&machine.image()).fsck();
}

/// Four at work on the same few names, one who syncs, and nobody waits forever or finds what cannot be.
#[test]
fn many_work_on_the_same_names() {
    const DIRS: u64 = 3;
    let image = Image::make("32M", &["-t", "ext4", "-b", "1024"]);
    let machine = Machine::new(image.bytes());
    let fs = machine.mount();
    let root = &Caller::root();
    let dirs: Vec<u64> = (0..DIRS)
        .map(|n| fs.mkdir(root, ROOT_INO, format!("dir {n}").as_bytes(), 0o755).unwrap().ino)
        .collect();
    let expected = |error: Error| {
        let expected =
            [Error::NotFound, Error::Exists, Error::IsDirectory, Error::NotDirectory, Error::NotEmpty];
        assert!(expected.contains(&error) || error == Error::Stale || error == Error::Invalid, "{error}");
    };
    let work = |seed: u64| {
        let random = &mut Random::new(seed);
        for _ in 0..3000 {
            let dir = dirs[random.below(DIRS) as usize];
            let name = format!("name {}", random.below(12));
            let (name, other) = (name.as_bytes(), format!("name {}", random.below(12)));
            let result = match random.below(9) {
                0 | 1 => fs.create(root, dir, name, 0o644, RW).and_then(|made| {
                    fs.write(root, made.handle, random.below(20_000), &[1; 3000]).unwrap();
                    fs.release(made.handle)
                }),
                2 => fs.mkdir(root, dir, name, 0o755).map(drop),
                3 | 4 => fs.unlink(root, dir, name),
                5 => fs.rmdir(root, dir, name),
                6 => {
                    let flags = RenameFlags::from_bits_truncate(random.below(3) as u32);
                    let new_dir = dirs[random.below(DIRS) as usize];
                    fs.rename(root, dir, name, new_dir, other.as_bytes(), flags)
                }
                7 => fs.lookup(root, dir, name).and_then(|found| {
                    fs.link(root, found.ino, dir, other.as_bytes()).map(drop).or_else(|error| match error {
                        Error::NotPermitted => Ok(()), // a directory
                        error => Err(error),
                    })
                }),
                _ => {
                    let mut count = 0;
                    fs.readdir(dir, 0, &mut |_| {
                        count += 1;
                        true
                    })
                    .map(|()| assert!(count >= 2))
                }
            };
            result.unwrap_or_else(expected);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|seed| {
                scope.spawn({
                    let work = &work;
                    move || work(seed)
                })
            })
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            fs.syncfs().unwrap();
        }
    });
    fs.detach().unwrap();
    Image::of(&machine.image()).fsck();
    let found = ext::check(machine.disk.clone(), &Options::default()).unwrap();
    assert!(found.is_clean(), "{:#?}", found.findings);
}

/// What `tune2fs -o bsdgroups` says of a disk was not looked at.
#[test]
fn groups_are_those_of_directories_if_the_disk_says_so() {
    for (says, expected) in [("bsdgroups", 7), ("^bsdgroups", 1000)] {
        let image = Image::make("16M", &["-t", "ext4", "-b", "4096"]);
        run("tune2fs", &["-o", says, &image.path.display().to_string()]);
        let machine = Machine::new(image.bytes());
        let fs = machine.mount();
        let (root, user) = (&Caller::root(), &Caller::user(1000, 1000));
        let dir = fs.mkdir(root, ROOT_INO, b"dir", 0o755).unwrap().ino;
        let set = SetAttr { gid: Some(7), mode: Some(0o777), ..SetAttr::default() };
        fs.setattr(root, dir, &set, None).unwrap();
        let file = fs.create(user, dir, b"file", 0o644, RW).unwrap().attr;
        let below = fs.mkdir(user, dir, b"below", 0o755).unwrap();
        assert_eq!(
            (file.gid, file.perm(), below.gid, below.perm()),
            (expected, 0o644, expected, 0o755),
            "{says}"
        );
    }
}
