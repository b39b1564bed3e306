//! Media that cannot be read: the process survives, and the volume is told.

mod scratch;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use nvm::{EntranceHealth, OpenOptions, Purpose, SEGMENT, VolumeKind, Zone};
use rustix::fs::FallocateFlags;
use scratch::directory;

const BYTES: u64 = 8 * SEGMENT;

fn cut(path: &Path, bytes: u64) {
    File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

#[test]
fn a_file_cut_short_under_a_mapping_is_a_media_error() {
    let directory = directory();
    let path = directory.path().join("zone");
    let zone = Zone::create(&path, BYTES, false, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("home", VolumeKind::Native, None).unwrap();
    region.store(Purpose::Data, 6 * SEGMENT, &[7; 4096]);
    region.check().unwrap();
    cut(&path, 4 * SEGMENT);
    region.check().unwrap();
    assert_eq!(region.bytes(2 * SEGMENT, 1), [0], "what is left still reads");
    region.check().unwrap();
    assert_eq!(region.bytes(6 * SEGMENT + 8, 4), [0; 4]);
    let error = region.check().unwrap_err();
    assert_eq!(error.address, SEGMENT + 6 * SEGMENT + 8);
    assert_eq!(zone.check().unwrap_err(), error);
    // Stores go nowhere, but they don't kill; the first address stays on record.
    region.store(Purpose::Data, 5 * SEGMENT, &[1; 10_000]);
    drop(region.stream(Purpose::Data, 4 * SEGMENT, &[1; 4096]));
    assert_eq!(region.check().unwrap_err(), error);
    assert!(matches!(zone.remove_volume("nope"), Err(nvm::Error::NoSuchVolume { .. })));
    let other = Zone::anonymous(BYTES, &OpenOptions::default()).unwrap();
    other.check().unwrap();
}

#[test]
fn reading_from_many_threads_at_once_survives() {
    let directory = directory();
    let path = directory.path().join("zone");
    let zone = Zone::create(&path, BYTES, false, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("home", VolumeKind::Native, None).unwrap();
    cut(&path, 2 * SEGMENT);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let region = &region;
            scope.spawn(move || {
                for page in 0..200 {
                    assert_eq!(region.load_u64(3 * SEGMENT + page * 4096 + thread * 8), 0);
                    assert!(region.check().is_err());
                }
            });
        }
    });
}

#[test]
fn an_old_region_knows_of_faults_in_a_zone_that_grew() {
    let directory = directory();
    let path = directory.path().join("zone");
    let zone = Zone::create(&path, BYTES, false, &OpenOptions::default()).unwrap();
    let old = zone.create_volume("old", VolumeKind::Native, None).unwrap();
    zone.grow(2 * BYTES).unwrap();
    let new = zone.create_volume("new", VolumeKind::Native, None).unwrap();
    cut(&path, BYTES + SEGMENT);
    assert_eq!(new.load_u64(2 * SEGMENT), 0);
    let error = new.check().unwrap_err();
    assert_eq!(error.address, BYTES + 2 * SEGMENT);
    assert_eq!((old.check().unwrap_err(), zone.check().unwrap_err()), (error, error));
}

#[test]
fn a_new_region_knows_of_faults_before_the_zone_grew() {
    let directory = directory();
    let path = directory.path().join("zone");
    let zone = Zone::create(&path, BYTES, false, &OpenOptions::default()).unwrap();
    let old = zone.create_volume("old", VolumeKind::Native, None).unwrap();
    zone.grow(2 * BYTES).unwrap();
    let new = zone.create_volume("new", VolumeKind::Native, None).unwrap();
    cut(&path, SEGMENT);
    assert_eq!(old.load_u64(0), 0);
    assert_eq!(new.check().unwrap_err().address, SEGMENT);
}

#[test]
fn an_index_update_on_failed_media_is_an_error() {
    let directory = directory();
    let path = directory.path().join("zone");
    let zone = Zone::create(&path, BYTES, false, &OpenOptions::default()).unwrap();
    cut(&path, 0);
    let refused = zone.create_volume("home", VolumeKind::Native, None).unwrap_err();
    assert!(matches!(refused, nvm::Error::Media(_)), "{refused}");
}

/// A volume was removed, and it was said that nothing had been.
#[test]
fn an_index_change_that_is_refused_has_not_been_made() {
    let directory = directory();
    let path = directory.path().join("zone");
    let zone = Zone::create(&path, BYTES, false, &OpenOptions::default()).unwrap();
    zone.create_volume("other", VolumeKind::Native, Some(SEGMENT)).unwrap();
    let bad = zone.create_volume("bad", VolumeKind::Native, None).unwrap();
    cut(&path, 4 * SEGMENT);
    assert_eq!(bad.load_u64(bad.len() - 8), 0);
    drop(bad);
    let changes: [&dyn Fn() -> Result<(), nvm::Error>; 3] =
        [&|| zone.remove_volume("other"), &|| zone.grow(2 * BYTES), &|| {
            zone.create_volume("new", VolumeKind::Native, None).map(drop)
        }];
    for change in changes {
        assert!(matches!(change(), Err(nvm::Error::Media(_) | nvm::Error::NoSpace { .. })));
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 * SEGMENT);
    let is_as_it_was = |zone: &Zone| {
        let names: Vec<_> = zone.volumes().into_iter().map(|volume| volume.name).collect();
        assert_eq!((names, zone.info().bytes), (vec!["other".to_string(), "bad".into()], BYTES));
    };
    is_as_it_was(&zone);
    drop(zone);
    cut(&path, BYTES);
    is_as_it_was(&Zone::open(&path, &OpenOptions::default()).unwrap());
}

/// A copy that cannot be read condemned the other one as well. What the volumes have can be read and written; a change of the index that was
/// cut off would leave none, and is refused.
#[test]
fn one_copy_of_the_entrance_that_cannot_be_read_leaves_the_other() {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "LEFT OUT: only root can mount a tmpfs that becomes full");
        return;
    }
    let directory = directory();
    let below = directory.path().join("below");
    std::fs::create_dir(&below).unwrap();
    let mount = |command: &str, arguments: &[&str]| {
        assert!(Command::new(command).args(arguments).arg(&below).status().unwrap().success(), "{command}");
    };
    for copy in [0, 1 << 20] {
        mount("mount", &["-t", "tmpfs", "-o", "size=17M", "tmpfs"]);
        let path = below.join("zone");
        let zone = Zone::create(&path, 8 * SEGMENT, false, &OpenOptions::default()).unwrap();
        zone.create_volume("home", VolumeKind::Native, Some(SEGMENT)).unwrap();
        drop(zone);
        // A page that is not there, where none can be had, is as one that fails.
        let file = File::options().write(true).open(&path).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, copy, 4096).unwrap();
        let mut rest = File::create(below.join("rest")).unwrap();
        while rest.write_all(&[1; 4096]).is_ok() {}
        let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
        let opened = Zone::open(&path, &read_only).unwrap();
        // Which may change what it has.
        let home = opened.scratch("home").unwrap();
        let zone = home.zone().clone();
        for zone in [&opened, &zone] {
            zone.check().unwrap();
            let health = zone.info().entrance;
            assert!(
                matches!(&health, EntranceHealth::Damaged { copy: found, what, repaired: false }
                    if *found == usize::from(copy != 0) && what.contains("the medium failed")),
                "{health:?}"
            );
        }
        home.persist_u64(Purpose::Data, 64, 7).ignore();
        home.check().unwrap();
        assert_eq!(home.load_u64(64), 7);
        drop(home);
        for refused in [
            zone.create_volume("new", VolumeKind::Native, None).map(drop),
            zone.remove_volume("home"),
            zone.mend_entrance(),
        ] {
            assert!(matches!(refused, Err(nvm::Error::Media(_))), "{refused:?}");
        }
        drop((zone, opened, file, rest));
        mount("umount", &[]);
    }
}
