//! Zones as their users meet them: made, opened, refused, shared out, grown.

mod scratch;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nvm::{Backing, EntranceHealth, Error, OpenOptions, Purpose, SEGMENT, VolumeKind, Zone};
use scratch::directory;

const BYTES: u64 = 8 * SEGMENT;

fn read_only() -> OpenOptions {
    OpenOptions { read_only: true, ..OpenOptions::default() }
}

fn writable() -> OpenOptions {
    OpenOptions::default()
}

fn create(path: &Path) -> Zone {
    Zone::create(path, BYTES, false, &writable()).unwrap()
}

#[test]
fn what_was_stored_is_there_when_the_zone_is_opened_again() {
    let directory = directory();
    let path = directory.path().join("zone");
    let (uuid, volumes);
    {
        let zone = create(&path);
        let region = zone.create_volume("home", VolumeKind::Native, Some(3 * SEGMENT)).unwrap();
        zone.create_volume("disk", VolumeKind::Ext, None).unwrap();
        let flushed = region.stream(Purpose::Data, 3 * SEGMENT - 5, b"hello");
        region.fence(flushed).ignore();
        (uuid, volumes) = (zone.info().uuid, zone.volumes());
        assert_eq!(zone.info().free_bytes, 0);
    }
    let zone = Zone::open(&path, &writable()).unwrap();
    assert_eq!((zone.info().uuid, zone.volumes()), (uuid, volumes.clone()));
    assert_eq!(zone.info().entrance, EntranceHealth::Sound);
    assert_eq!((volumes[0].start, volumes[0].bytes), (SEGMENT, 3 * SEGMENT));
    assert_eq!(
        (volumes[1].start, volumes[1].bytes, volumes[1].kind),
        (4 * SEGMENT, 4 * SEGMENT, VolumeKind::Ext)
    );
    let region = zone.volume("home").unwrap();
    assert_eq!(region.bytes(region.len() - 5, 5), b"hello");
    assert_eq!((region.name(), region.kind(), region.uuid()), ("home", VolumeKind::Native, volumes[0].uuid));
}

/// What is done to it nobody else sees, and nothing is written; whether the zone was opened to be changed or not, and in memory.
#[test]
fn a_scratch_volume_changes_nothing() {
    let directory = directory();
    let path = directory.path().join("zone");
    let home = create(&path).create_volume("home", VolumeKind::Native, Some(3 * SEGMENT)).unwrap();
    let stored = home.stream(Purpose::Data, SEGMENT, b"there");
    home.fence(stored).ignore();
    drop(home);
    let before = std::fs::read(&path).unwrap();
    let in_memory = Zone::from_bytes(&before, &writable()).unwrap();
    let open = |options: &OpenOptions| Zone::open(&path, options).unwrap();
    let (opened, read) = (|| open(&writable()), || open(&read_only()));
    for zone in [&opened as &dyn Fn() -> Zone, &read, &|| in_memory.clone()] {
        let zone = zone();
        let region = zone.scratch("home").unwrap();
        assert_eq!(region.bytes(SEGMENT, 5), b"there");
        let scratch = region.zone().clone();
        assert!(!scratch.is_read_only());
        assert_eq!(scratch.info().path, zone.info().path);
        region.store(Purpose::Data, 100, b"tried");
        region.persist_u64(Purpose::Metadata, 2 * SEGMENT, 7).ignore();
        scratch.create_volume("another", VolumeKind::Ext, None).unwrap();
        assert_eq!(region.bytes(100, 5), b"tried");
        assert!(zone.snapshot_image() == before);
        assert_eq!(zone.volumes().len(), 1);
        assert_eq!(zone.volume("home").unwrap().load_u64(2 * SEGMENT), 0);
        drop((region, scratch));
        assert!(matches!(zone.scratch("nobody"), Err(Error::NoSuchVolume { .. })));
        assert!(std::fs::read(&path).unwrap() == before);
    }
}

#[test]
fn a_new_volume_begins_with_zeros_even_where_one_was_before() {
    let zone = Zone::anonymous(BYTES, &writable()).unwrap();
    let region = zone.create_volume("old", VolumeKind::Native, None).unwrap();
    region.store(Purpose::Metadata, 0, b"an old superblock");
    region.store(Purpose::Metadata, SEGMENT - 8, b"the end!");
    drop(region);
    zone.remove_volume("old").unwrap();
    let region = zone.create_volume("new", VolumeKind::Native, None).unwrap();
    assert!(nvm::is_zero(region.bytes(0, SEGMENT as usize)));
}

/// Whoever could read a zone could read all files in it, whatever their modes, and keep others from opening it.
#[test]
fn a_zone_was_readable_for_everybody() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("zone");
    drop(create(&path));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn an_open_volume_is_not_removed() {
    let zone = Zone::anonymous(BYTES, &writable()).unwrap();
    let region = zone.create_volume("home", VolumeKind::Native, None).unwrap();
    assert!(matches!(zone.remove_volume("home"), Err(Error::VolumeInUse { .. })));
    let clone = region.clone();
    drop(region);
    assert!(matches!(zone.remove_volume("home"), Err(Error::VolumeInUse { .. })));
    drop(clone);
    zone.remove_volume("home").unwrap();
    let refused = zone.volume("home").unwrap_err();
    assert!(
        matches!(&refused, Error::NoSuchVolume { .. }) && refused.to_string().contains("none"),
        "{refused}"
    );
}

#[test]
fn sizes_are_rounded_and_bounded() {
    let directory = directory();
    let path = directory.path().join("zone");
    for bytes in [0, 1, SEGMENT] {
        let refused = Zone::create(&path, bytes, false, &writable()).unwrap_err();
        assert!(matches!(refused, Error::TooSmall { min, .. } if min == nvm::ZONE_BYTES_MIN), "{refused}");
        assert!(!path.exists(), "a refused zone leaves no file");
    }
    let refused = Zone::create(&path, u64::MAX, false, &writable()).unwrap_err();
    assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
    // More than any file system here has: an error now, not a SIGBUS later.
    let refused = Zone::create(&path, 4 << 50, false, &writable()).unwrap_err();
    assert!(matches!(&refused, Error::Io { doing: "allocate its space", .. }), "{refused}");
    assert!(!path.exists());
    let zone = Zone::create(&path, 2 * SEGMENT + 1, false, &writable()).unwrap();
    assert_eq!(zone.info().bytes, 3 * SEGMENT);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * SEGMENT);
    assert!(matches!(Zone::anonymous(SEGMENT, &writable()), Err(Error::TooSmall { .. })));
    assert!(Zone::anonymous(u64::MAX, &writable()).is_err());
}

#[test]
fn what_is_there_is_not_destroyed_without_force() {
    let directory = directory();
    let path = directory.path().join("disk");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(BYTES).unwrap();
    file.write_all_at(&[0x53, 0xEF], 1080).unwrap();
    let refused = Zone::create(&path, BYTES, false, &writable()).unwrap_err();
    assert!(refused.to_string().contains("ext2/ext3/ext4"), "{refused}");
    let mut two = [0; 2];
    file.read_exact_at(&mut two, 1080).unwrap();
    assert_eq!(two, [0x53, 0xEF], "nothing was changed");
    drop(Zone::create(&path, BYTES, true, &writable()).unwrap());
    let refused = Zone::create(&path, BYTES, false, &writable()).unwrap_err();
    assert!(refused.to_string().contains("an Amberfs zone"), "{refused}");
    // A small file is extended, but not before it was looked at.
    let path = directory.path().join("letter");
    std::fs::write(&path, "Dear reader").unwrap();
    assert!(matches!(Zone::create(&path, BYTES, false, &writable()), Err(Error::Occupied { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"Dear reader");
}

#[test]
fn a_forced_zone_forgets_the_one_before() {
    let directory = directory();
    let path = directory.path().join("zone");
    let zone = create(&path);
    for number in 0..5 {
        zone.create_volume(&number.to_string(), VolumeKind::Native, Some(SEGMENT)).unwrap();
    }
    let old = zone.info().uuid;
    drop(zone);
    drop(Zone::create(&path, 0, true, &writable()).unwrap());
    let zone = Zone::open(&path, &writable()).unwrap();
    assert!(zone.volumes().is_empty() && zone.info().uuid != old && zone.info().bytes == BYTES);
}

#[test]
fn each_thing_that_is_no_zone_has_its_own_error() {
    let directory = directory();
    let open = |path: &Path| Zone::open(path, &writable()).unwrap_err();
    assert!(matches!(open(directory.path()), Error::IsDirectory { .. }));
    assert!(matches!(
        Zone::create(directory.path(), BYTES, true, &writable()),
        Err(Error::IsDirectory { .. })
    ));
    assert!(matches!(open(Path::new("/dev/null")), Error::NotMappable { .. }));
    let path = directory.path().join("none");
    assert!(matches!(open(&path), Error::Io { doing: "open it", .. }));
    std::fs::write(&path, "").unwrap();
    assert!(matches!(open(&path), Error::NotAZone { .. }));
    File::create(&path).unwrap().set_len(BYTES).unwrap();
    assert!(matches!(open(&path), Error::NotAZone { .. }));
    let mut file = File::create(&path).unwrap();
    file.write_all(b"SQLite format 3\0").unwrap();
    file.set_len(BYTES).unwrap();
    assert!(open(&path).to_string().contains("SQLite"), "{}", open(&path));
}

#[test]
fn a_zone_that_was_cut_short_says_so() {
    let directory = directory();
    let path = directory.path().join("zone");
    drop(create(&path));
    for actual in [BYTES - 1, BYTES - SEGMENT, 2 * SEGMENT, SEGMENT, 4096] {
        File::options().write(true).open(&path).unwrap().set_len(actual).unwrap();
        match Zone::open(&path, &writable()).unwrap_err() {
            Error::Truncated { recorded: BYTES, actual: found, .. } => assert_eq!(found, actual),
            other => panic!("{actual}: {other}"),
        }
    }
}

#[test]
fn one_writer_or_many_readers() {
    let directory = directory();
    let path = directory.path().join("zone");
    let zone = create(&path);
    let me = std::process::id();
    for options in [writable(), read_only()] {
        match Zone::open(&path, &options).unwrap_err() {
            Error::Locked { holder: Some(holder), .. } => assert_eq!(holder.pid, me),
            other => panic!("{other}"),
        }
    }
    let refused = Zone::create(&path, BYTES, true, &writable()).unwrap_err();
    assert!(matches!(refused, Error::Locked { .. }), "not even by force: {refused}");
    drop(zone);
    let readers = [(); 3].map(|()| Zone::open(&path, &read_only()).unwrap());
    assert!(matches!(Zone::open(&path, &writable()), Err(Error::Locked { .. })));
    drop(readers);
    Zone::open(&path, &writable()).unwrap();
}

/// Runs as a child of the test below: holds a zone until its input ends.
#[test]
fn child_holds_a_zone() {
    let Some(path) = std::env::var_os("NVM_HELD_ZONE") else { return };
    let _zone = Zone::open(&PathBuf::from(path), &writable()).unwrap();
    println!("\nheld");
    let _ = std::io::read_to_string(std::io::stdin());
}

#[test]
fn the_process_that_holds_a_zone_is_named_and_its_death_frees_it() {
    use std::io::BufRead;
    use std::process::{Command, Stdio};

    let directory = directory();
    let path = directory.path().join("zone");
    drop(create(&path));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_holds_a_zone", "--nocapture"])
        .env("NVM_HELD_ZONE", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "held"), "the child holds the zone");
    let refused = Zone::open(&path, &writable()).unwrap_err();
    match &refused {
        Error::Locked { holder: Some(holder), .. } => {
            assert_eq!(holder.pid, child.id());
            assert!(holder.command.as_deref().is_some_and(|command| command.starts_with("zone")), "{holder}");
        }
        other => panic!("{other}"),
    }
    child.kill().unwrap();
    child.wait().unwrap();
    Zone::open(&path, &writable()).unwrap();
}

#[test]
fn a_read_only_zone_changes_nothing() {
    let directory = directory();
    let path = directory.path().join("zone");
    create(&path).create_volume("home", VolumeKind::Native, None).unwrap();
    let before = std::fs::read(&path).unwrap();
    {
        let zone = Zone::open(&path, &read_only()).unwrap();
        assert!(matches!(zone.create_volume("x", VolumeKind::Ext, None), Err(Error::ReadOnly { .. })));
        assert!(matches!(zone.remove_volume("home"), Err(Error::ReadOnly { .. })));
        assert!(matches!(zone.grow(2 * BYTES), Err(Error::ReadOnly { .. })));
        let region = zone.volume("home").unwrap();
        assert!(region.is_read_only() && region.load_u64(8) == 0);
        let flushed = region.flush(Purpose::Data, 0, 64);
        region.fence(flushed).ignore();
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            region.store_u64(Purpose::Data, 0, 1);
        }));
        let text = panic.unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("read-only"), "{text}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert!(matches!(Zone::create(&path, BYTES, true, &read_only()), Err(Error::ReadOnly { .. })));
}

#[test]
fn a_zone_grows_under_open_volumes() {
    let directory = directory();
    let path = directory.path().join("zone");
    let zone = create(&path);
    let old = zone.create_volume("old", VolumeKind::Native, None).unwrap();
    old.store(Purpose::Data, 100, b"before");
    assert!(matches!(zone.grow(BYTES - 1 - SEGMENT), Err(Error::CannotGrow { .. })));
    zone.grow(BYTES + 1).unwrap();
    assert_eq!((zone.info().bytes, zone.info().free_bytes), (BYTES + SEGMENT, SEGMENT));
    let new = zone.create_volume("new", VolumeKind::Flash, None).unwrap();
    assert_eq!((new.entry().start, new.len()), (BYTES, SEGMENT));
    new.store(Purpose::Data, SEGMENT - 4, b"last");
    // The old region and a new view of the same volume show the same memory.
    let again = zone.volume("old").unwrap();
    old.store(Purpose::Data, 106, b" and after");
    assert_eq!(again.bytes(100, 16), b"before and after");
    drop((old, new, again, zone));
    let zone = Zone::open(&path, &writable()).unwrap();
    assert_eq!(zone.info().bytes, BYTES + SEGMENT);
    assert_eq!(zone.volume("new").unwrap().bytes(SEGMENT - 4, 4), b"last");
    // What somebody else appended to the file.
    drop(zone);
    File::options().write(true).open(&path).unwrap().set_len(2 * BYTES).unwrap();
    let zone = Zone::open(&path, &writable()).unwrap();
    assert_eq!(zone.info().free_bytes, 0);
    zone.grow(0).unwrap();
    assert_eq!(zone.info().free_bytes, BYTES - SEGMENT);
    assert!(matches!(
        Zone::anonymous(BYTES, &writable()).unwrap().grow(2 * BYTES),
        Err(Error::CannotGrow { .. })
    ));
}

#[test]
fn a_zone_tells_what_it_is() {
    let directory = directory();
    let path = directory.path().join("zone");
    let info = create(&path).info();
    if directory.path().starts_with("/dev/shm") {
        assert_eq!(info.backing, Backing::Tmpfs);
        assert_eq!(info.persist, nvm::PersistMethod::best());
    }
    assert!(!info.persist_reason.is_empty() && info.path == path && !info.read_only);
    let zone = Zone::anonymous(BYTES, &OpenOptions { prefault: true, ..writable() }).unwrap();
    assert_eq!(zone.info().backing, Backing::Memory);
    assert!(zone.info().huge_bytes.is_some_and(|huge| huge <= BYTES), "{:?}", zone.info().huge_bytes);
}

/// A sparse copy of a zone was opened as it was, and a store to one of its holes took a full file system for a medium that fails.
#[test]
fn holes_are_filled_before_anything_is_stored_to_them() {
    let directory = directory();
    let path = directory.path().join("zone");
    drop(create(&path));
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.set_len(2 * SEGMENT).unwrap();
    file.set_len(BYTES).unwrap();
    let allocated = || file.metadata().unwrap().blocks() * 512;
    assert!(allocated() < BYTES);
    drop(Zone::open(&path, &read_only()).unwrap());
    assert!(allocated() < BYTES, "who reads takes no space");
    drop(Zone::open(&path, &writable()).unwrap());
    assert!(allocated() >= BYTES, "{} of {BYTES} bytes", allocated());
}

/// A copy that went bad while the zone was open is written anew, and the other one left.
#[test]
fn a_copy_of_the_entrance_is_mended_while_the_zone_is_open() {
    let directory = directory();
    let path = directory.path().join("zone");
    for at in [0, 1 << 20] {
        let zone = Zone::create(&path, BYTES, true, &writable()).unwrap();
        let damaged = || zone.entrance_copies().map(|copy| copy.content.is_err());
        File::options().write(true).open(&path).unwrap().write_all_at(&[0x5a; 20], at + 40).unwrap();
        assert_eq!(damaged(), [at == 0, at != 0]);
        zone.mend_entrance().unwrap();
        assert_eq!(damaged(), [false; 2]);
        zone.create_volume("later", VolumeKind::Native, None).unwrap();
        drop(zone);
        assert_eq!(Zone::open(&path, &writable()).unwrap().info().entrance, EntranceHealth::Sound);
    }
}
