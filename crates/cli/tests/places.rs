//! A zone is known by its file and a mount by its device, wherever they are by now: renamed, linked, bound, moved, covered, detached.

use crate::support;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;

use crate::support::mounted::{memory, place, shell};
use crate::support::{amberfs, can_mount, eventually, run};
use serde_json::Value as Json;

fn info(place: &str) -> Json {
    run(&format!("info {place} --json")).ok().json()
}

fn pid(place: &str) -> Json {
    run(&format!("stats {place} --json")).ok().json()["pid"].clone()
}

/// What df(1) would say: bytes, used, free, inodes in use.
fn space(dir: &str) -> [u64; 4] {
    let told = rustix::fs::statvfs(dir).unwrap();
    let bytes = |blocks: u64| blocks * told.f_frsize;
    [
        bytes(told.f_blocks),
        bytes(told.f_blocks - told.f_bfree),
        bytes(told.f_bavail),
        told.f_files - told.f_ffree,
    ]
}

fn df(place: &str) -> [u64; 4] {
    let told = run(&format!("df {place} --json")).ok().json()["volumes"][0].clone();
    ["bytes", "used_bytes", "free_bytes", "files"].map(|key| told[key].as_u64().unwrap())
}

/// Until then the zone was open for reading: no other volume could be written, and who changed one met a panic.
#[test]
fn a_zone_whose_first_mount_was_read_only_could_not_be_changed() {
    let Some((scratch, zone, dir)) = place() else { return };
    let (disk, other) = (scratch.text("disk"), scratch.mount_point("other"));
    run(&format!("zone grow {zone} --size 160M")).ok();
    run(&format!("mount {zone}:home {dir} -o ro")).ok();
    run(&format!("mkfs {zone}:other --size 16M")).ok();
    run(&format!("snapshot take {zone}:other one")).ok();
    run(&format!("mount {zone}:other {other}")).ok();
    fs::write(scratch.path("other/file"), "written").unwrap();
    run(&format!("umount {other}")).ok();
    run(&format!("snapshot rollback {zone}:other one")).ok();
    run(&format!("fsck -y {zone}:other")).ok();
    shell(&format!("truncate -s 64M {disk} && mke2fs -q -F -t ext4 {disk}")).ok();
    run(&format!("attach {zone}:disk {disk} --size 32M")).ok();
    run(&format!("mount {zone}:disk {other} -o ro")).ok();
    run(&format!("umount {other}")).ok();
    run(&format!("zone remove-volume {zone}:other --force")).ok();
    // What was mounted to be read is that still.
    assert_eq!(fs::write(scratch.path("mnt/no"), "no").unwrap_err().raw_os_error(), Some(30), "EROFS");
    let told = info(&format!("{zone}:home"));
    assert_eq!((&told["mounted"], &told["mounted_read_only"]), (&dir.as_str().into(), &true.into()));
    assert_eq!(told["durability"], Json::Null);
}

/// Where it really cannot be written, each change is refused, and its server lives on.
#[test]
fn a_zone_that_cannot_be_written_is_read_and_refuses_changes() {
    if !can_mount() {
        return;
    }
    let scratch = support::Scratch::new();
    let (fs, dir, other) = (memory(&scratch, "fs"), scratch.mount_point("mnt"), scratch.mount_point("other"));
    let zone = format!("{fs}/zone");
    run(&format!("zone create {zone} --size 96M")).ok();
    for volume in ["home", "other"] {
        run(&format!("mkfs {zone}:{volume} --size 32M")).ok();
    }
    run(&format!("snapshot take {zone}:other one")).ok();
    shell(&format!("mount -o remount,ro {fs}")).ok();
    run(&format!("mount {zone}:home {dir}")).fails(32, &["Read-only file system"]);
    run(&format!("mount {zone}:home {dir} -o ro")).ok();
    assert_eq!(info(&format!("{zone}:home"))["mounted"], dir.as_str());
    let server = pid(&dir);
    let changes = [
        "mkfs ZONE:new --size 16M",
        "mkfs ZONE:other --force",
        "snapshot take ZONE:other two",
        "snapshot remove ZONE:other one",
        "snapshot hold ZONE:other one tag",
        "snapshot rollback ZONE:other one",
        "snapshot clone ZONE:other one copy",
        "zone remove-volume ZONE:other --force",
        "zone grow ZONE --size 128M",
    ];
    let refused = |why: [&str; 2]| {
        for line in changes {
            let run = run(&line.replace("ZONE", &zone));
            assert!(run.code == 1 && why.iter().any(|why| run.err.contains(why)), "{line}: {run:?}");
        }
        assert_eq!(run(&format!("snapshot diff {zone}:other one")).ok().out, "", "which changes nothing");
    };
    refused(["Read-only file system"; 2]);
    // Now it could be written; but its server has it to be read, and is asked.
    shell(&format!("mount -o remount,rw {fs}")).ok();
    refused(["open read-only", "open for reading only"]);
    run(&format!("fsck -y {zone}:other")).fails(8, &["reading only"]);
    run(&format!("mount {zone}:other {other}")).fails(32, &["cannot be written to"]);
    run(&format!("mount {zone}:other {other} -o ro")).ok();
    run(&format!("snapshot show {zone}:other one")).ok();
    assert_eq!(pid(&other), server);
    for dir in [other, dir] {
        run(&format!("umount {dir}")).ok();
    }
    run(&format!("snapshot show {zone}:other one")).ok();
}

/// A new zone at its path was taken for the old one, and the old one was not found by another path.
#[test]
fn a_zone_that_was_replaced_was_taken_for_the_one_that_is_served() {
    let Some((scratch, zone, dir)) = place() else { return };
    let (other, aside, link) = (scratch.mount_point("other"), scratch.text("aside"), scratch.text("link"));
    run(&format!("mount {zone}:home {dir}")).ok();
    let server = pid(&format!("{zone}:home"));
    fs::hard_link(&zone, &link).unwrap();
    fs::rename(&zone, &aside).unwrap();
    File::create(scratch.path("bound")).unwrap();
    shell(&format!("mount --bind {aside} {}", scratch.text("bound"))).ok();
    for path in [&aside, &link, &scratch.text("bound")] {
        assert_eq!(pid(&format!("{path}:home")), server, "{path}");
        assert_eq!(info(&format!("{path}:home"))["mounted"], dir.as_str());
    }
    run(&format!("stats {zone}:home")).fails(1, &["No such file"]);
    run(&format!("zone create {zone} --size 64M")).ok();
    run(&format!("mkfs {zone}:home --size 16M --label new")).ok();
    assert_eq!(info(&format!("{zone}:home"))["label"], "new");
    run(&format!("umount --detach {dir}")).fails(32, &["not at", "any more", "stays mounted"]);
    run(&format!("mount {zone}:home {other}")).ok();
    assert_ne!(pid(&format!("{zone}:home")), server);
    assert_eq!(pid(&other), pid(&format!("{zone}:home")));
    assert_eq!((info(&dir)["label"].clone(), info(&other)["label"].clone()), ("mine".into(), "new".into()));
    // A mount is named as the table of mounts has it, too, where that says which.
    run(&format!("umount {zone}:home")).fails(32, &["is mounted on", &dir, &other, "nothing was unmounted"]);
    run(&format!("umount {other}")).ok();
    run(&format!("umount {zone}:home")).ok();
    run(&format!("fsck {aside}:home")).ok();
}

/// A copy has the same UUID, by which servers name their sockets: the second took the first one's away.
#[test]
fn a_zone_and_its_copy_are_served_side_by_side() {
    let Some((scratch, zone, dir)) = place() else { return };
    let (copy, other) = (scratch.text("copy"), scratch.mount_point("other"));
    fs::copy(&zone, &copy).unwrap();
    run(&format!("mount {zone}:home {dir}")).ok();
    run(&format!("mount {copy}:home {other}")).ok();
    assert_ne!(pid(&dir), pid(&other));
    assert_eq!((pid(&dir), pid(&other)), (pid(&format!("{zone}:home")), pid(&format!("{copy}:home"))));
    run(&format!("umount {dir}")).ok();
    run(&format!("umount {other}")).ok();
}

/// They were looked for by the path where they had been mounted: elsewhere nobody answered, or somebody else did.
#[test]
fn a_mount_is_found_where_it_was_bound_or_moved() {
    let Some((scratch, zone, _)) = place() else { return };
    let fs = memory(&scratch, "fs");
    let [dir, bound, part, moved] = ["mnt", "bound", "part", "moved"].map(|name| {
        fs::create_dir(format!("{fs}/{name}")).unwrap();
        format!("{fs}/{name}")
    });
    run(&format!("mount {zone}:home {dir}")).ok();
    fs::create_dir(format!("{dir}/sub")).unwrap();
    shell(&format!("mount --bind {dir} {bound} && mount --bind {dir}/sub {part}")).ok();
    let server = pid(&dir);
    for place in [&bound, &part] {
        assert_eq!(pid(place), server);
        assert_eq!(info(place)["volume"], "home");
        assert_eq!(df(place), space(&dir));
        assert_eq!(info(place)["mounted"], dir.as_str());
    }
    run(&format!("snapshot take {bound} one")).ok();
    assert!(run(&format!("snapshot list {part}")).ok().out.contains("one"));
    run(&format!("umount --detach {bound}")).fails(32, &["is mounted on", "too"]);
    run(&format!("umount {zone}:home")).fails(32, &["is mounted on", &bound, &dir, "nothing was unmounted"]);
    // One place less: nobody waits for the volume.
    assert!(run(&format!("umount {part}")).ok().out.contains("still, and in service"));
    assert!(run(&format!("umount {dir}")).ok().out.contains(&format!("is mounted on {bound} still")));
    run(&format!("fsck {zone}:home")).fails(8, &["mounted on", &format!("amberfs umount {bound}")]);
    shell(&format!("mount --move {bound} {moved}")).ok();
    assert_eq!(pid(&moved), server);
    let stats = run(&format!("stats {zone}:home --json")).ok().json();
    assert_eq!(stats["dir"], moved.as_str(), "where it is now");
    assert_eq!(run(&format!("df {zone}:home --json")).ok().json()["volumes"][0]["mounted"], moved.as_str());
    run(&format!("mount {zone}:home {dir}")).fails(32, &[&format!("mounted already, on {moved}")]);
    run(&format!("snapshot take {moved} two")).ok();
    run(&format!("stats {bound}")).fails(1, &["no volume is served on"]);
    run(&format!("umount {bound}")).fails(32, &["is not a mount point"]);
    run(&format!("umount {moved}")).ok();
    run(&format!("fsck {zone}:home")).ok();
}

/// It unmounted where the volume had been mounted, which it was no longer, and went on serving.
#[test]
fn a_signal_ends_a_mount_wherever_it_is_bound() {
    let Some((scratch, zone, dir)) = place() else { return };
    let bound = scratch.mount_point("bound");
    run(&format!("mount {zone}:home {dir}")).ok();
    shell(&format!("mount --bind {dir} {bound} && umount {dir}")).ok();
    shell(&format!("kill {}", pid(&bound))).ok();
    eventually("its end", || run(&format!("fsck {zone}:home")).code == 0);
    assert_eq!(info(&format!("{zone}:home"))["clean"], true);
}

/// Of mounts over each other the lower one's server answered for the upper one, or its file system was taken for ours.
#[test]
fn of_mounts_over_each_other_each_is_known() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mkfs {zone}:upper --size 16M")).ok();
    run(&format!("mount {zone}:home {dir}")).ok();
    fs::write(scratch.path("mnt/file"), vec![7; 3 << 20]).unwrap();
    File::open(scratch.path("mnt/file")).unwrap().sync_all().unwrap();
    let lower = space(&dir);
    run(&format!("mount {zone}:upper {dir}")).ok();
    assert_eq!(info(&dir)["volume"], "upper");
    assert_eq!((df(&format!("{zone}:home")), df(&format!("{zone}:upper"))), (lower, space(&dir)));
    // The upper one was unmounted for the lower one, and its disk made plain with --detach.
    for option in ["", "--detach "] {
        run(&format!("umount {option}{zone}:home"))
            .fails(32, &[&format!("{zone}:upper over it"), "nothing was unmounted"]);
    }
    assert_eq!(info(&dir)["volume"], "upper");
    run(&format!("umount {dir}")).ok();
    assert_eq!(info(&dir)["volume"], "home");

    shell(&format!("mount -t tmpfs tmpfs {dir}")).ok();
    assert_eq!(df(&format!("{zone}:home")), lower, "not of what covers it");
    run(&format!("umount {dir}"))
        .fails(32, &["of type tmpfs", &format!("it covers {zone}:home"), "stays mounted"]);
    run(&format!("fsck {zone}:home")).fails(8, &["mounted on", "something else over it"]);
    run(&format!("stats {dir}")).fails(1, &["no volume is served on"]);
    shell(&format!("umount {dir}")).ok();
    run(&format!("umount {dir}")).ok();
}

/// A server that was told to end said nothing about a mount that it could not unmount, and stayed.
#[test]
fn a_server_says_which_covered_mount_keeps_it() {
    let Some((scratch, zone, dir)) = place() else { return };
    let log = scratch.text("log");
    run(&format!("mount {zone}:home {dir} -o log={log}")).ok();
    shell(&format!("mount -t tmpfs tmpfs {dir} && kill -TERM {}", pid(&format!("{zone}:home")))).ok();
    let told = || fs::read_to_string(&log).unwrap_or_default();
    eventually("it says so", || told().contains("still mounted"));
    for words in [&*format!("mounted over {zone}:home on {dir}"), "unmount what covers it"] {
        assert!(told().contains(words), "{}", told());
    }
    shell(&format!("umount {dir}")).ok();
    run(&format!("umount {dir}")).ok();
    assert_eq!(info(&format!("{zone}:home"))["clean"], true);
}

/// What was synced was whatever the path led to, and what programs had written was missing in the snapshot.
#[test]
fn a_snapshot_lacked_pages_of_a_mount_that_was_elsewhere() {
    let Some((scratch, zone, dir)) = place() else { return };
    let bound = scratch.mount_point("bound");
    run(&format!("mount {zone}:home {dir} -o commit=600")).ok();
    shell(&format!("mount --bind {dir} {bound} && umount {dir}")).ok();
    fs::write(scratch.path("bound/file"), vec![7; 1 << 20]).unwrap();
    run(&format!("snapshot take {zone}:home one")).ok();
    assert_eq!(fs::read(scratch.path("bound/.snapshots/one/file")).unwrap(), vec![7; 1 << 20]);

    shell(&format!("mount -t tmpfs tmpfs {bound}")).ok();
    for command in ["take", "diff"] {
        let name = if command == "take" { "two" } else { "one" };
        let words =
            [&*format!("mounted over {bound}"), "cannot be had from the kernel", "unmount what covers"];
        run(&format!("snapshot {command} {zone}:home {name}")).fails(1, &words);
    }
    shell(&format!("umount {bound}")).ok();
    run(&format!("snapshot take {zone}:home two")).ok();

    let open = File::open(scratch.path("bound/file")).unwrap();
    run(&format!("umount --lazy {bound}")).ok();
    run(&format!("snapshot take {zone}:home three")).fails(1, &["was detached from", "nothing was changed"]);
    drop(open);
    eventually("its end", || run(&format!("fsck {zone}:home")).code == 0);
    let listed = run(&format!("snapshot list {zone}:home")).ok().out;
    assert!(listed.contains("two") && !listed.contains("three"), "{listed}");
}

/// They were those of the zone as it was when the volume was mounted.
#[test]
fn what_is_told_of_a_mounted_volume_is_what_it_is_now() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir} -o commit=600,durability=op")).ok();
    fs::write(scratch.path("mnt/file"), vec![7; 5 << 20]).unwrap();
    run(&format!("snapshot take {dir} one")).ok();
    let told = info(&format!("{zone}:home"));
    let now = space(&dir);
    assert_eq!(
        ["space_bytes", "used_bytes", "free_bytes", "inodes"].map(|key| told[key].as_u64().unwrap()),
        now
    );
    assert_eq!((df(&dir), df(&format!("{zone}:home"))), (now, now));
    assert_eq!((&told["label"], &told["snapshots"][0]["name"]), (&"mine".into(), &"one".into()));
    let stats = run(&format!("stats {dir} --json")).ok().json();
    for told in [&told, &stats] {
        assert_eq!((&told["durability"], &told["names_durable_at_once"]), (&"op".into(), &true.into()));
    }
    assert!(2 * stats["native"]["log_half_bytes"].as_u64().unwrap() <= told["log_bytes"].as_u64().unwrap());
    run(&format!("umount {dir}")).ok();
    run(&format!("mount {zone}:home {dir} -o snapshot=one")).ok();
    let told = info(&format!("{zone}:home"));
    assert_eq!((&told["mounted"], &told["mounted_snapshot"]), (&dir.as_str().into(), &"one".into()));
    assert_eq!(df(&format!("{zone}:home")), space(&dir));
    run(&format!("umount {dir}")).ok();
}

/// One of them said that it stayed mounted and in service.
#[test]
fn of_two_unmounts_at_once_one_is_told_of_the_other() {
    let Some((_scratch, zone, dir)) = place() else { return };
    for _ in 0..5 {
        run(&format!("mount {zone}:home {dir}")).ok();
        let both = std::thread::scope(|scope| {
            let other = scope.spawn(|| run(&format!("umount {dir}")));
            [run(&format!("umount {dir}")), other.join().unwrap()]
        });
        assert_eq!(both.iter().filter(|run| run.code == 0).count(), 1, "{both:?}");
        let failed = both.iter().find(|run| run.code != 0).unwrap();
        assert!(failed.code == 32 && !failed.err.contains("in service"), "{failed:?}");
    }
}

/// A path that is no text was lost on the way to the server, and the mount with it.
#[test]
fn paths_that_are_no_text_are_refused() {
    let Some((scratch, zone, _)) = place() else { return };
    let dir = scratch.path("").join(OsStr::from_bytes(b"n\xffo"));
    fs::create_dir(&dir).unwrap();
    let words = ["the path is not UTF-8", "nothing was m"];
    let volume = format!("{zone}:home");
    amberfs(&[OsStr::new("mount"), OsStr::new(&volume), dir.as_os_str()]).fails(32, &words);
    let new = dir.join("zone");
    let arguments = ["zone", "create", "--size", "16M"].map(OsStr::new);
    amberfs(&[&arguments[..], &[new.as_os_str()]].concat()).fails(1, &words);
    assert!(!new.exists());
}

/// Who came second while a zone was opened waited until he gave up, five seconds, and asked its server only then.
#[test]
fn volumes_of_a_zone_are_mounted_at_once() {
    let Some((scratch, zone, dir)) = place() else { return };
    let others = ["one", "two", "three"];
    run(&format!("zone grow {zone} --size 160M")).ok();
    for name in others {
        run(&format!("mkfs {zone}:{name} --size 16M")).ok();
        scratch.mount_point(name);
    }
    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        for name in others {
            let line = format!("mount {zone}:{name} {}", scratch.text(name));
            scope.spawn(move || run(&line).ok());
        }
    });
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(4), "{took:?}");
    run(&format!("mount {zone}:home {dir}")).ok();
    for name in others.map(|name| scratch.text(name)).iter().chain([&dir]) {
        run(&format!("umount {name}")).ok();
    }
}

/// A server that was told to end, and waits for an open file, mounted what came then, and left it without a server at the second signal.
#[test]
fn a_server_that_ends_mounts_nothing() {
    let Some((scratch, zone, dir)) = place() else { return };
    let other = scratch.mount_point("other");
    run(&format!("mkfs {zone}:other --size 16M")).ok();
    run(&format!("mount {zone}:home {dir}")).ok();
    let server = pid(&dir);
    let open = File::create(scratch.path("mnt/open")).unwrap();
    shell(&format!("kill {server}")).ok();
    let is_mounted = || fs::read_to_string("/proc/self/mounts").unwrap().contains(&format!(" {dir} "));
    eventually("it is detached", || !is_mounted());
    run(&format!("mount {zone}:other {other}")).fails(32, &["just ending"]);
    drop(open);
    eventually("it ends", || run(&format!("mount {zone}:other {other}")).code == 0);
    run(&format!("umount {other}")).ok();
}
