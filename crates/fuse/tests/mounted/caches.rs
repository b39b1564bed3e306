//! What the kernel has learned it does not ask for again: the request counters prove it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::support::asynchronous::Context;
use super::support::{DAMAGED, Mounted, disturbing, undisturbed};
use fuse::{MountOptions, Request};
use rustix::io::Errno;
use vfs::{Caller, FileSystem, ROOT_INO, Time};

#[test]
fn a_second_stat_is_free() {
    let mounted = Mounted::new();
    fs::write(mounted.path("file"), b"x").unwrap();
    fs::metadata(mounted.path("file")).unwrap();
    mounted.without_requests(|| assert_eq!(fs::metadata(mounted.path("file")).unwrap().len(), 1));
}

#[test]
fn an_absent_name_is_asked_for_once() {
    let mounted = Mounted::new();
    let absent = || assert!(fs::metadata(mounted.path("absent")).is_err());
    let ((), requests) = mounted.requests(absent);
    assert_eq!(requests.of(Request::Lookup), 1, "{requests}");
    mounted.without_requests(absent);
    fs::write(mounted.path("absent"), b"").unwrap();
    fs::metadata(mounted.path("absent")).unwrap();
}

#[test]
fn opening_reading_and_closing_again_is_free() {
    let mounted = Mounted::new();
    fs::write(mounted.path("file"), vec![7; 100_000]).unwrap();
    let read = || assert_eq!(fs::read(mounted.path("file")).unwrap(), vec![7; 100_000]);
    read();
    read(); // After a read that reached the server, the kernel asks for the access time once.
    mounted.without_requests(read);
    mounted.without_requests(|| {
        drop(OpenOptions::new().write(true).open(mounted.path("file")).unwrap());
    });
}

#[test]
fn only_the_first_open_close_and_opendir_of_a_mount_are_asked_for() {
    let mounted = Mounted::new();
    let ((), requests) = mounted.requests(|| {
        for number in 0..20 {
            let path = mounted.path(&format!("file-{number}"));
            fs::write(&path, b"some").unwrap();
            File::open(&path).unwrap();
            fs::read_dir(mounted.dir()).unwrap().count();
        }
    });
    for (request, most) in [
        (Request::Open, 1),
        (Request::Opendir, 1),
        (Request::Flush, 1),
        (Request::Release, 1),
        (Request::Releasedir, 0),
        (Request::Access, 0),
    ] {
        assert!(requests.of(request) <= most, "{}: {requests}", request.name());
    }
}

#[test]
fn a_listing_is_kept_until_it_changes() {
    let mounted = Mounted::new();
    for number in 0..50 {
        File::create(mounted.path(&format!("file-{number}"))).unwrap();
    }
    let list = || fs::read_dir(mounted.dir()).unwrap().count();
    assert_eq!(list(), 50);
    list();
    assert_eq!(mounted.without_requests(list), 50);
    File::create(mounted.path("one more")).unwrap();
    assert_eq!(list(), 51);
}

/// The kernel looks at the times of a directory itself to know whether its listing has changed: `..` stayed the directory from
/// which it had been moved.
#[test]
fn a_listing_shows_where_a_directory_is_now() {
    let mounted = Mounted::new();
    for name in ["a", "b", "a/one", "b/other"] {
        fs::create_dir(mounted.path(name)).unwrap();
    }
    let number = |name: &str| fs::metadata(mounted.path(name)).unwrap().ino();
    let above = |name: &str| {
        let listing = rustix::fs::Dir::new(File::open(mounted.path(name)).unwrap()).unwrap();
        // To its end: then the kernel keeps it.
        let all: Vec<_> = listing.map(Result::unwrap).collect();
        all.iter().find(|entry| entry.file_name() == c"..").map(|entry| entry.ino())
    };
    for name in ["a/one", "b/other"] {
        (0..3).for_each(|_| assert!(above(name).is_some()));
    }
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    fs::rename(a.join("one"), b.join("one")).unwrap();
    assert_eq!(above("b/one"), Some(number("b")));
    fs::create_dir(mounted.path("a/third")).unwrap();
    (0..3).for_each(|_| assert_eq!(above("a/third"), Some(number("a"))));
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(rustix::fs::CWD, a.join("third"), rustix::fs::CWD, b.join("one"), exchange)
        .unwrap();
    assert_eq!([above("b/one"), above("a/third")], [Some(number("b")), Some(number("a"))]);
}

/// What asks for an attribute that is there and is not there is told which of them is wrong.
#[test]
fn an_attribute_can_be_made_and_replaced_by_nobody() {
    use rustix::fs::{XattrFlags, setxattr};
    let mounted = Mounted::new();
    let path = mounted.path("file");
    fs::write(&path, b"x").unwrap();
    let both = XattrFlags::CREATE | XattrFlags::REPLACE;
    assert_eq!(setxattr(&path, "user.a", b"1", both), Err(Errno::NODATA));
    setxattr(&path, "user.a", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(setxattr(&path, "user.a", b"2", both), Err(Errno::EXIST));
}

/// What came before was not told, though the kernel was noted as holding it: for as long as it was mounted.
#[test]
fn a_listing_ends_where_the_directory_is_damaged() {
    for names in [10, 200] {
        let mounted = Mounted::new();
        for name in 0..names {
            fs::write(mounted.path(&format!("{name:03}")), "").unwrap();
        }
        fs::write(mounted.path(DAMAGED), "").unwrap();
        let mut listed = 0;
        let error = fs::read_dir(mounted.dir()).unwrap().find_map(|entry| {
            listed += usize::from(entry.is_ok());
            entry.err()
        });
        assert_eq!(
            (listed, error.and_then(|error| error.raw_os_error())),
            (names + 1, Some(Errno::UCLEAN.raw_os_error()))
        );
    }
}

#[test]
fn a_listing_brings_attributes() {
    let mounted = Mounted::new();
    for number in 0..50 {
        File::create(mounted.path(&format!("file-{number}"))).unwrap();
    }
    let mounted = mounted.again();
    let (count, requests) = mounted.requests(|| {
        let entries = fs::read_dir(mounted.dir()).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().metadata().unwrap().is_file()).count()
    });
    assert_eq!(count, 50);
    assert!(requests.of(Request::Lookup) + requests.of(Request::Getattr) < 10, "{requests}");
}

#[test]
fn a_symbolic_link_is_read_once() {
    let mounted = Mounted::new();
    symlink("target", mounted.path("link")).unwrap();
    let read = || assert_eq!(fs::read_link(mounted.path("link")).unwrap().to_str(), Some("target"));
    read();
    mounted.without_requests(read);
}

#[test]
fn written_back_data_waits_for_fsync() {
    let mounted = Mounted::writing_back();
    let undisturbed = undisturbed(); // who closes the file has it written back
    let path = mounted.path("file");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    file.write_all(b"first").unwrap(); // The kernel looks for file capabilities once.
    mounted.without_requests(|| {
        for _ in 0..1000 {
            file.write_all(b"0123456789").unwrap();
        }
        assert_eq!(file.metadata().unwrap().len(), 10_005);
        let mut read = [0; 10];
        file.read_exact_at(&mut read, 9_995).unwrap();
        assert_eq!(&read, b"0123456789");
    });
    let ((), requests) = mounted.requests(|| file.sync_all().unwrap());
    assert_eq!((requests.of(Request::Write), requests.of(Request::Fsync)), (1, 1), "{requests}");
    let written = fs::metadata(mounted.path("file")).unwrap();
    drop((file, undisturbed));
    let mounted = mounted.again();
    let read_again = fs::metadata(mounted.path("file")).unwrap();
    assert_eq!((read_again.len(), read_again.mtime()), (written.len(), written.mtime()));
    assert_eq!(read_again.mtime_nsec(), written.mtime_nsec());
}

#[test]
fn times_written_back_are_those_of_the_writes() {
    let mounted =
        Mounted::with(&MountOptions { writeback_cache: true, threads: 4, ..MountOptions::default() });
    let times = |mounted: &Mounted, number: usize| {
        let found = fs::metadata(mounted.path(&format!("file-{number}"))).unwrap();
        (found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec())
    };
    let mut files = Vec::new();
    for number in 0..50 {
        let mut file = File::create(mounted.path(&format!("file-{number}"))).unwrap();
        file.write_all(&vec![1; 500_000]).unwrap();
        if number % 2 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(2));
            rustix::fs::syncfs(&file).unwrap();
        }
        files.push(file);
    }
    let written: Vec<_> = (0..50).map(|number| times(&mounted, number)).collect();
    drop(files);
    let mounted = mounted.again();
    let found: Vec<_> = (0..50).map(|number| times(&mounted, number)).collect();
    assert_eq!(found, written);
}

/// With two clocks, the one of the volume that had ticked in between showed after the next mount.
#[test]
fn direct_writes_and_allocation_had_times_of_their_own() {
    use rustix::fs::{FallocateFlags, OFlags, fallocate};
    let mounted = Mounted::writing_back();
    mounted.volume.be_late();
    fs::write(mounted.path("source"), [1; 4096]).unwrap();
    let source = File::open(mounted.path("source")).unwrap();
    let change = |what: &str, change: &dyn Fn(&File)| {
        let path = mounted.path(what);
        fs::write(&path, [2; 20_000]).unwrap();
        let before = fs::metadata(&path).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let flags = if what == "O_DIRECT" { OFlags::DIRECT.bits() } else { 0 };
        let options = OpenOptions::new().read(true).write(true).custom_flags(flags as i32).clone();
        let file = options.open(&path).unwrap();
        // Within one tick of its clock, the kernel sends no times a second time.
        for _ in 0..5 {
            change(&file);
            file.sync_all().unwrap();
            let after = file.metadata().unwrap();
            assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()), "{what}");
            let kept = mounted.volume.getattr(after.ino()).unwrap();
            assert_eq!(
                (after.mtime(), after.mtime_nsec()),
                (kept.mtime.sec, kept.mtime.nsec.into()),
                "{what}"
            );
            assert_eq!(
                (after.ctime(), after.ctime_nsec()),
                (kept.ctime.sec, kept.ctime.nsec.into()),
                "{what}"
            );
        }
    };
    change("written", &|file| file.write_all_at(b"some", 7).unwrap());
    change("O_DIRECT", &|file| {
        let pages = vec![3; 8192];
        let start = pages.as_ptr().align_offset(4096);
        file.write_all_at(&pages[start..][..4096], 4096).unwrap();
    });
    change("allocated", &|file| fallocate(file, FallocateFlags::empty(), 0, 40_000).unwrap());
    change("punched", &|file| {
        fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 5000).unwrap();
    });
    let flags = std::cell::Cell::new(rustix::fs::IFlags::NODUMP);
    change("flagged", &|file| {
        // The kernel sets no time itself then: what it knows stays, on the volume as well.
        rustix::fs::ioctl_setflags(file, flags.replace(flags.get() ^ rustix::fs::IFlags::NODUMP)).unwrap();
        file.write_all_at(b"some", 7).unwrap();
    });
    change("copied", &|file| {
        assert_eq!(rustix::fs::copy_file_range(&source, Some(&mut 0), file, Some(&mut 0), 4096), Ok(4096));
    });
    change("cut", &|file| file.set_len(5).unwrap());
}

/// What somebody else read while it was on its way stayed in the kernel's pages behind the write.
#[test]
fn an_asynchronous_direct_write_left_pages_that_were_older() {
    const LEN: usize = 640 << 10;
    for mounted in [Mounted::new(), Mounted::writing_back()] {
        fs::write(mounted.path("file"), [0; LEN]).unwrap();
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let file = OpenOptions::new().write(true).custom_flags(direct).open(mounted.path("file")).unwrap();
        let writing = Context::new().unwrap();
        let is_done = AtomicBool::new(false);
        let room = vec![0; LEN + 4096];
        let start = room.as_ptr().align_offset(4096);
        let mut room = room;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        fs::read(mounted.path("file")).unwrap();
                    }
                });
            }
            let _done = Setting(&is_done);
            for round in 1..=100 {
                let written = &mut room[start..][..LEN];
                written.fill(round);
                assert_eq!(writing.write(&file, written).unwrap(), LEN);
                let found = fs::read(mounted.path("file")).unwrap();
                let old = found.iter().position(|byte| *byte != round);
                assert_eq!(old, None, "round {round}: what is read is older than what was written");
            }
        });
    }
}

/// Has the others end when this thread does, however.
struct Setting<'a>(&'a AtomicBool);

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn without_writeback_each_write_arrives_at_once() {
    let mounted = Mounted::new();
    let file = File::create(mounted.path("file")).unwrap();
    file.write_all_at(b"first", 0).unwrap();
    let ((), requests) = mounted.requests(|| file.write_all_at(&[1; 4096], 0).unwrap());
    assert_eq!((requests.of(Request::Write), requests.total()), (1, 1), "{requests}");
    let ((), requests) = mounted.requests(|| file.write_all_at(&vec![1; 4 << 20], 0).unwrap());
    assert!(requests.of(Request::Write) <= 5, "a write carries a MiB: {requests}");
}

#[test]
fn a_new_file_is_opened_and_closed_without_a_message() {
    let mounted = Mounted::new();
    drop(File::create(mounted.path("first")).unwrap());
    let ((), requests) = mounted.requests(|| {
        let file = File::create(mounted.path("file")).unwrap();
        file.write_all_at(b"bytes", 0).unwrap();
        drop(file);
        // Nobody waits for a `release`, but it comes before this is answered.
        fs::metadata(mounted.path("another")).unwrap_err();
    });
    let of = |request| requests.of(request);
    assert_eq!((of(Request::Mknod), of(Request::Write)), (1, 1), "{requests}");
    assert_eq!((of(Request::Create), of(Request::Open), of(Request::Release)), (0, 0, 0), "{requests}");
}

#[test]
fn fsync_is_free_where_all_is_durable_and_no_page_is_kept_back() {
    for writeback_cache in [false, true] {
        let options = MountOptions { durable_operations: true, writeback_cache, ..MountOptions::default() };
        let mounted = Mounted::with(&options);
        let _undisturbed = undisturbed();
        let mut file = File::create(mounted.path("file")).unwrap();
        file.write_all(b"first").unwrap();
        file.sync_all().unwrap();
        if writeback_cache {
            // That the kernel could send its pages, nothing else tells.
            let ((), requests) = mounted.requests(|| file.sync_all().unwrap());
            assert_eq!(requests.of(Request::Fsync), 1, "{requests}");
        } else {
            mounted.without_requests(|| file.sync_all().unwrap());
        }
        let dir = File::open(mounted.dir()).unwrap();
        dir.sync_all().unwrap();
        mounted.without_requests(|| dir.sync_all().unwrap());
    }
}

#[test]
fn reading_a_large_file_takes_large_requests() {
    let mounted = Mounted::new();
    fs::write(mounted.path("file"), vec![3; 8 << 20]).unwrap();
    let mounted = mounted.again();
    let mut contents = Vec::new();
    let (_, requests) =
        mounted.requests(|| File::open(mounted.path("file")).unwrap().read_to_end(&mut contents).unwrap());
    assert_eq!(contents.len(), 8 << 20);
    assert!(requests.of(Request::Read) <= 70, "{requests}");
}

#[test]
fn what_changes_otherwise_is_asked_for_each_time() {
    let mounted = Mounted::new();
    fs::create_dir(mounted.path("dir")).unwrap();
    let root = Caller::root();
    let volume = &mounted.volume;
    let dir = volume.lookup(&root, ROOT_INO, b"dir").unwrap().ino;
    volume.make_volatile(dir);
    let disturbed = disturbing();
    mounted.mount().kernel_cache().let_go("dir".as_ref(), ROOT_INO, |ino| ino == dir);
    drop(disturbed);
    let list = || {
        let entries = fs::read_dir(mounted.path("dir")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert!(fs::metadata(mounted.path("dir/a")).is_err());
    assert!(list().is_empty());
    // By a directory's mtime the kernel sees that what it knows of its list has changed.
    let tick = || {
        let now = Time::now();
        while Time::now() == now {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    for (name, expected) in [("a", vec!["a"]), ("b", vec!["a", "b"])] {
        tick();
        volume.mknod(&root, dir, name.as_bytes(), 0o100_644, 0).unwrap();
        assert!(fs::metadata(mounted.path(&format!("dir/{name}"))).is_ok());
        assert_eq!(list(), expected);
    }
    // Where it is, and what is in it, is as believable as ever: of each walk only the name in it is asked for.
    fs::metadata(mounted.path("dir/b")).unwrap();
    let ((), requests) = mounted.requests(|| _ = fs::metadata(mounted.path("dir/b")).unwrap());
    assert_eq!((requests.of(Request::Lookup), requests.of(Request::Getattr)), (1, 1), "{requests}");
    tick();
    volume.unlink(&root, dir, b"a").unwrap();
    assert!(fs::metadata(mounted.path("dir/a")).is_err());
    assert_eq!(list(), ["b"]);
}

#[test]
fn the_kernel_lets_go_of_what_nobody_uses() {
    let mounted = Mounted::new();
    fs::create_dir_all(mounted.path("dir/deep")).unwrap();
    for number in 0..50 {
        fs::write(mounted.path(&format!("dir/deep/{number}")), b"bytes").unwrap();
        assert_eq!(fs::read(mounted.path(&format!("dir/deep/{number}"))).unwrap(), b"bytes");
    }
    let cache = mounted.mount().kernel_cache();
    let all = |ino| ino != ROOT_INO;
    let used = File::open(mounted.path("dir/deep/7")).unwrap();
    let disturbed = disturbing();
    assert!(!cache.let_go("dir".as_ref(), ROOT_INO, all), "a file is open");
    drop(used);
    assert!(cache.let_go("dir".as_ref(), ROOT_INO, all));
    drop(disturbed);
    assert_eq!(mounted.volume.open_handles(), 0);
    mounted
        .without_requests(|| assert!(cache.let_go("dir".as_ref(), ROOT_INO, all), "it holds nothing of it"));
    assert_eq!(
        fs::read(mounted.path("dir/deep/7")).unwrap(),
        b"bytes",
        "it is still there to be found again"
    );
}

#[test]
fn creation_times_are_asked_for_where_they_are_shown() {
    let hidden = Mounted::new();
    fs::write(hidden.path("file"), b"").unwrap();
    assert!(fs::metadata(hidden.path("file")).unwrap().created().is_err());
    hidden.without_requests(|| fs::metadata(hidden.path("file")).unwrap());

    let shown = Mounted::with(&MountOptions { birth_times: true, ..MountOptions::default() });
    fs::write(shown.path("file"), b"").unwrap();
    let (attributes, requests) = shown.requests(|| fs::metadata(shown.path("file")).unwrap());
    assert_eq!(requests.of(Request::Statx), 1, "{requests}");
    let age = attributes.created().unwrap().elapsed().unwrap();
    assert!(age.as_secs() < 600, "{age:?}");
    shown.without_requests(|| fs::metadata(shown.path("file")).unwrap());
}
