//! What fsck says of a volume, what it does about it, and what a mount says of the same.

use crate::support;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::support::mounted::{names, place, shell};
use crate::support::{Run, Scratch, eventually, run};
use native::{Durability, MountOptions, Volume};
use nvm::{OpenOptions, Zone};
use vfs::{Caller, FileSystem, ROOT_INO};

const BLOCK: u64 = 4096;

/// Turns bytes of a zone's file round.
fn damage(zone: &str, at: u64, length: usize) {
    let file = File::options().read(true).write(true).open(zone).unwrap();
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes.iter_mut().for_each(|byte| *byte ^= 0x5a);
    file.write_all_at(&bytes, at).unwrap();
}

/// Where the volume `home` of a zone begins.
fn start(zone: &str) -> u64 {
    Zone::open(zone.as_ref(), &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap().volumes()
        [0]
    .start
}

#[track_caller]
fn tells(told: Run, code: i32, words: &[&str]) {
    assert_eq!(told.code, code, "{}{}", told.out, told.err);
    for word in words {
        assert!(told.out.contains(word), "no '{word}' in: {}", told.out);
    }
    assert!(!told.out.contains("run `amberfs fsck"), "it is just being done: {}", told.out);
}

/// Of what is there twice one is enough. That the other was damaged nobody said.
#[test]
fn what_is_there_twice_is_told_and_mended() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    let fsck = |how: &str| run(&format!("fsck {how} {zone}:home"));
    let (entrance, root_slot) = ((1 << 20) + 100, start(&zone) + 2 * BLOCK);
    for repair in ["-p", "-a", "-y"] {
        damage(&zone, root_slot, 8);
        tells(fsck(""), 4, &["root slot", "(left)", ": 1 problem: "]);
        tells(fsck(repair), 1, &["root slot", "(repaired)", ": 1 problem, repaired: "]);
        tells(fsck(""), 0, &[": clean: 0 files"]);
        damage(&zone, root_slot + BLOCK, 8);
        damage(&zone, entrance, 8);
        tells(fsck("-n"), 4, &["copy 1 of the zone's entrance", "root slot", ": 2 problems: "]);
        tells(
            fsck(repair),
            1,
            &["copy 1 of the zone's entrance", "root slot", ": 2 problems, all repaired: "],
        );
        tells(fsck(repair), 0, &[": clean: "]);
    }
}

/// Transactions that cannot be replayed are dropped only by who may lose something. Where they are missed, the mount says so.
#[test]
fn a_log_that_is_damaged() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    {
        let opened = Zone::open(zone.as_ref(), &OpenOptions::default()).unwrap();
        let options =
            MountOptions { durability: Durability::Operation, background: false, ..MountOptions::default() };
        let volume = Volume::open(opened.volume("home").unwrap(), &options).unwrap();
        for n in 0..300 {
            volume.mknod(&Caller::root(), ROOT_INO, format!("{n}").as_bytes(), 0o100_644, 0).unwrap();
        }
        volume.abandon();
    }
    // In the middle of what is in its two halves.
    let log = start(&zone) + 8 * BLOCK;
    let image = fs::read(&zone).unwrap();
    let used: Vec<u64> = (log..log + 512 * BLOCK).filter(|at| image[*at as usize] != 0).collect();
    damage(&zone, used[used.len() / 2], 8);
    let before = fs::read(&zone).unwrap();
    let fsck = |how: &str| run(&format!("fsck {how} {zone}:home"));
    tells(fsck(""), 4, &["(left)"]);
    tells(fsck("-p"), 4, &["(left)", "was not unmounted cleanly"]);
    assert!(fs::read(&zone).unwrap() == before, "who preens drops nothing, and changes nothing then");
    if support::can_mount() {
        let (dir, log) = (scratch.mount_point("mnt"), scratch.text("log"));
        run(&format!("mount {zone}:home {dir} -o log={log}")).ok();
        let stats = run(&format!("stats {dir} --json")).ok().json();
        assert!(stats["recovery"]["transactions_left_out"].as_u64().unwrap() > 0, "{stats}");
        let info = run(&format!("info {dir} --json")).ok().json();
        for told in [&stats["failure"], &info["failure"]] {
            assert!(told.as_str().unwrap().contains("drops the"), "{told}");
        }
        let log = fs::read_to_string(log).unwrap();
        assert!(log.contains("read-only from now on"), "what recovery has met is in the log: {log}");
        run(&format!("umount {dir}")).ok();
    }
    tells(
        fsck("-y"),
        1,
        &[
            "could not be replayed, and were dropped (repaired with loss)",
            "1 problem, repaired, log replayed",
        ],
    );
    tells(fsck(""), 0, &["clean"]);
}

/// Their names were left out of a listing that brings attributes, too: whoever copied the directory took a part for all.
#[test]
fn names_of_damaged_inodes_are_listed() {
    let Some((_scratch, zone, dir)) = place() else { return };
    let volume = format!("{zone}:home");
    run(&format!("mount {volume} {dir}")).ok();
    let kept = Path::new(&dir).join("kept");
    fs::create_dir(&kept).unwrap();
    let expected: Vec<String> = (10..50).map(|n| format!("file-{n}")).collect();
    for name in &expected {
        fs::write(kept.join(name), name).unwrap();
    }
    // One whose neighbours are files like it: the block of inode n is node n / 16.
    let number = |path: &Path| fs::metadata(path).unwrap().ino();
    let of_directories = [number(Path::new(&dir)) / 16, number(&kept) / 16];
    let mut numbers = expected.iter().map(|name| number(&kept.join(name)));
    let ino = numbers.find(|ino| !of_directories.contains(&(ino / 16))).unwrap();
    run(&format!("umount {dir}")).ok();
    let dumped = run(&format!("dump {volume} inode:{ino} --json")).ok().json();
    damage(&zone, start(&zone) + dumped["block"].as_u64().unwrap() * BLOCK + 300, 8);
    run(&format!("mount {volume} {dir}")).ok();
    assert_eq!(names(&kept), expected);
    let damaged: Vec<_> = expected
        .iter()
        .filter_map(|name| fs::metadata(kept.join(name)).err().map(|error| error.raw_os_error()))
        .collect();
    let unclean = Some(rustix::io::Errno::UCLEAN.raw_os_error());
    assert!(
        (1..=15).contains(&damaged.len()) && damaged.iter().all(|error| *error == unclean),
        "{damaged:?}"
    );
    let copied = shell(&format!("tar cf /dev/null -C {dir} kept"));
    assert!(copied.code != 0 && copied.err.matches("file-").count() == damaged.len(), "{}", copied.err);
    run(&format!("umount {dir}")).ok();
}

/// A list of snapshots that is damaged was taken for one without any.
#[test]
fn a_list_of_snapshots_that_is_damaged() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("snapshot take {zone}:home first")).ok();
    let volume = format!("{zone}:home");
    run(&format!("mount {volume} {dir}")).ok();
    fs::write(scratch.path("mnt/later"), "changed").unwrap();
    run(&format!("umount {dir}")).ok();
    // Its records, wherever they are.
    let records: Vec<u64> = {
        let image = fs::read(&zone).unwrap();
        let blocks = image.chunks_exact(BLOCK as usize).zip(0..);
        blocks.filter(|(bytes, _)| bytes.starts_with(b"SNAP")).map(|(_, block)| block * BLOCK).collect()
    };
    assert!(!records.is_empty());
    records.iter().for_each(|at| damage(&zone, at + 40, 16));
    // At rest, all else is told.
    run(&format!("snapshot list {volume}")).fails(1, &["list of snapshots", "is damaged"]);
    let info = run(&format!("info {volume} --json")).ok().json();
    assert!(info["inodes"].is_u64() && info["snapshots"].is_null(), "{info}");
    assert!(info["snapshots_not_known"].as_str().unwrap().contains("list of snapshots"), "{info}");
    let df = run(&format!("df {volume} --json")).ok();
    assert!(df.json()["snapshots"].is_null() && df.err.contains("list of snapshots"), "{}{}", df.out, df.err);
    // And on a mount.
    let log = scratch.text("log");
    run(&format!("mount {volume} {dir} -o log={log}")).ok();
    run(&format!("snapshot list {dir}")).fails(1, &["list of snapshots is damaged"]);
    run(&format!("snapshot show {dir} first")).fails(1, &["list of snapshots is damaged"]);
    run(&format!("snapshot take {dir} second")).fails(1, &["list of snapshots is damaged"]);
    let unclean = Some(rustix::io::Errno::UCLEAN.raw_os_error());
    let snapshots = Path::new(&dir).join(".snapshots");
    let listed = fs::read_dir(&snapshots).unwrap().collect::<Result<Vec<_>, _>>();
    assert_eq!(listed.unwrap_err().raw_os_error(), unclean);
    assert_eq!(fs::metadata(snapshots.join("first")).unwrap_err().raw_os_error(), unclean);
    let info = run(&format!("info {dir} --json")).ok().json();
    assert!(info["inodes"].is_u64() && info["snapshots_not_known"].is_string(), "{info}");
    assert!(run(&format!("df {dir}")).ok().err.contains("list of snapshots"));
    assert!(
        fs::read_to_string(&log).unwrap().contains("list of snapshots"),
        "recovery's errors are in the log"
    );
    run(&format!("umount {dir}")).ok();
    // Names are lost by mending it.
    let before = fs::read(&zone).unwrap();
    tells(run(&format!("fsck -p {volume}")), 4, &["list of snapshots", "(left)"]);
    assert!(fs::read(&zone).unwrap() == before);
    tells(run(&format!("fsck -y {volume}")), 1, &["are lost (repaired with loss)"]);
    tells(run(&format!("fsck {volume}")), 0, &["clean"]);
    assert!(run(&format!("snapshot list {volume}")).ok().out.contains("found-"));
}

/// It was refused: somebody had to mount it for writing before.
#[test]
fn what_was_killed_is_mounted_to_be_read() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir} -o durability=op")).ok();
    let file = scratch.path("mnt/file");
    fs::write(&file, "written").unwrap();
    let pid = run(&format!("stats {dir} --json")).ok().json()["pid"].to_string();
    shell(&format!("kill -9 {pid}")).ok();
    shell(&format!("umount -l {dir}")).ok();
    let mut mounted = Run { code: -1, out: String::new(), err: String::new() };
    eventually("the killed server lets go of the zone", || {
        mounted = run(&format!("mount {zone}:home {dir} -o ro"));
        mounted.code == 0
    });
    assert!(mounted.out.contains("was not unmounted cleanly: replayed"), "{}", mounted.out);
    assert_eq!(fs::read_to_string(&file).unwrap(), "written");
    assert_eq!(
        fs::write(&file, "again").unwrap_err().raw_os_error(),
        Some(rustix::io::Errno::ROFS.raw_os_error())
    );
    run(&format!("snapshot take {dir} none")).fails(1, &["mounted read-only", "for writing"]);
    run(&format!("umount {dir}")).ok();
    tells(run(&format!("fsck {zone}:home")), 0, &["clean: 1 file, "]);
}
