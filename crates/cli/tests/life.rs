//! A volume's life on a mount: by root, by an ordinary user, with several volumes of a zone, and past its server's death.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::mounted::{names, place, shell};
use crate::support::{PROGRAM, Run, Scratch, can_mount, eventually, run};

#[test]
fn a_volume_is_mounted_used_unmounted_and_checked() {
    let Some((scratch, zone, dir)) = place() else { return };
    assert_eq!(
        run(&format!("mount {zone}:home {dir}")).ok().out,
        "",
        "a mount that had nothing to recover is silent"
    );
    std::fs::write(scratch.path("mnt/file"), vec![7; 100_000]).unwrap();
    std::fs::File::open(scratch.path("mnt/file")).unwrap().sync_all().unwrap();

    let stats = run(&format!("stats {dir} --json")).ok().json();
    assert_eq!(stats["volume"], format!("{zone}:home"));
    assert!(stats["user"]["bytes_written"].as_u64().unwrap() >= 100_000);
    let total = stats["nvm"]["written"].as_array().unwrap().last().unwrap();
    assert_eq!(total["purpose"], "total");
    assert!(total["bytes"].as_u64().unwrap() >= 100_000);
    assert!(stats["nvm"]["fences"].as_u64().unwrap() > 0);
    assert_eq!(run(&format!("stats {zone}:home --json")).ok().json()["pid"], stats["pid"]);

    run(&format!("mount {zone}:home {dir}")).fails(32, &["mounted already"]);
    run(&format!("fsck {zone}:home")).fails(8, &["mounted on", "amberfs umount"]);
    run(&format!("zone remove-volume {zone} home --force")).fails(1, &["mounted on"]);
    assert_eq!(run(&format!("df {dir} --json")).ok().json()["volumes"][0]["mounted"], dir.as_str());

    // Busy, then not.
    let open = std::fs::File::open(scratch.path("mnt/file")).unwrap();
    run(&format!("umount {dir}")).fails(32, &["in use", "stays mounted"]);
    drop(open);
    run(&format!("umount {dir}")).ok();
    // The zone is free as soon as umount has returned.
    run(&format!("fsck {zone}:home")).ok();
    assert_eq!(run(&format!("info {zone}:home --json")).ok().json()["clean"], true);

    run(&format!("mount {zone}:home {dir} -o ro")).ok();
    assert_eq!(std::fs::read(scratch.path("mnt/file")).unwrap(), vec![7; 100_000]);
    assert_eq!(std::fs::write(scratch.path("mnt/no"), "no").unwrap_err().raw_os_error(), Some(30), "EROFS");
    run(&format!("umount {dir}")).ok();
}

/// Once, each of these succeeded and changed nothing.
#[test]
fn a_remount_promises_nothing_that_the_mount_does_not_keep() {
    let Some((_scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir} -o durability=fsync,keep=daily=7,commit=2")).ok();
    for option in [
        "durability=op",
        "sync",
        "dirsync",
        "keep=daily=8",
        "commit=5",
        "snapshot=one",
        "noallow_other",
        "cache=1M",
    ] {
        let words = [&*format!("'{option}'"), "mounted otherwise", "stays mounted as it was"];
        run(&format!("mount {zone}:home {dir} -o remount,ro,{option}")).fails(32, &words);
    }
    std::fs::write(format!("{dir}/file"), "still for writing").unwrap();
    // What a line of fstab says of it, repeated by mount(8).
    let same = "defaults,nofail,durability=fsync,keep=daily=7,commit=2,allow_other,x-systemd.automount";
    run(&format!("mount {zone}:home {dir} -o {same},remount,ro")).ok();
    run(&format!("mount {zone}:home {dir} -o {same},remount")).ok();
    run(&format!("mount {zone}:other {dir} -o {same},remount"))
        .fails(32, &["is a mount of", "stays mounted as it was"]);
    run(&format!("mount {zone}:home {dir} -o remount,bogus")).fails(1, &["bogus", "stays mounted as it was"]);
    run(&format!("umount {dir}")).ok();
}

/// Its messages said that it was mounted where it was not, and how to unmount it there; `df` told of the file system around.
#[test]
fn a_volume_that_was_detached_in_use_is_said_to_be() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    let bytes = |run: Run| run.ok().json()["volumes"][0]["bytes"].as_u64().unwrap();
    let before = bytes(run(&format!("df {zone}:home --json")));
    let open = std::fs::File::create(scratch.path("mnt/open")).unwrap();
    run(&format!("umount --lazy {dir}")).ok();
    assert_eq!(bytes(run(&format!("df {zone}:home --json"))), before);
    let detached = ["was detached from", "in use still", "and once more"];
    let listed = run(&format!("zone list {zone} --json")).ok().json();
    assert_eq!(
        listed["zones"][0]["mounted"],
        serde_json::json!([{ "volume": "home", "dir": dir, "detached": true }])
    );
    let words = format!("home detached from {dir}");
    assert!(run(&format!("zone list {zone}")).ok().out.contains(&words));
    for command in [
        "mount {zone}:home {dir}",
        "umount {zone}:home",
        "fsck {zone}:home",
        "mkfs {zone}:home",
        "zone remove-volume {zone} home",
    ] {
        let line = command.replace("{zone}", &zone).replace("{dir}", &dir);
        let code = if line.starts_with("mount") || line.starts_with("umount") {
            32
        } else if line.starts_with("fsck") {
            8
        } else {
            1
        };
        run(&line).fails(code, &detached);
    }
    // Whoever asks a moment before it is closed need not ask again.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            drop(open);
        });
        run(&format!("mount {zone}:home {dir}")).ok();
    });
    assert!(scratch.path("mnt/open").exists());
    run(&format!("umount {dir}")).ok();
}

/// Its server once kept the terminal, or the pipe, of who had mounted it.
#[test]
fn a_log_that_cannot_be_opened_keeps_a_volume_from_being_mounted() {
    let Some((scratch, zone, dir)) = place() else { return };
    for log in [scratch.text("not-there/log"), scratch.text("")] {
        let failed = run(&format!("mount {zone}:home {dir} -o log={log}"));
        let failed = failed.fails(32, &[&log, "opening the log", "nothing was mounted"]);
        assert_eq!(failed.err.matches("opening the log").count(), 1, "told once: {}", failed.err);
    }
    run(&format!("fsck {zone}:home")).ok();
}

#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    std::fs::write(scratch.path("mnt/file"), "before").unwrap();
    // As mount(8) asks its helper: with what the kernel shows of the mount.
    let helper = scratch.path("mount.fuse.amberfs");
    std::os::unix::fs::symlink(PROGRAM, &helper).unwrap();
    let remount = |how: &str| {
        let list =
            format!("rw,nosuid,nodev,user_id=0,group_id=0,default_permissions,allow_other,remount,{how}");
        Run::of(Command::new(&helper).args([&format!("{zone}:home"), &dir, "-o", &list]).output().unwrap())
    };
    let open = std::fs::File::create(scratch.path("mnt/open")).unwrap();
    remount("ro").fails(32, &["in use", "stays mounted as it was"]);
    drop(open);
    eventually("the file is closed", || remount("ro").code == 0);
    assert_eq!(std::fs::write(scratch.path("mnt/file"), "no").unwrap_err().raw_os_error(), Some(30), "EROFS");
    assert_eq!(std::fs::read_to_string(scratch.path("mnt/file")).unwrap(), "before");
    remount("rw").ok();
    std::fs::write(scratch.path("mnt/file"), "after").unwrap();
    let flags = || {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.lines().find(|line| line.contains(&dir)).unwrap().split(' ').nth(3).unwrap().to_string()
    };
    remount("noatime,noexec").ok();
    assert!(flags().contains("noatime") && flags().contains("noexec"), "{}", flags());
    remount("atime,exec").ok();
    assert!(!flags().contains("noatime") && !flags().contains("noexec"), "{}", flags());
    run(&format!("umount {dir}")).ok();
    run(&format!("mount {zone}:home {dir} -o ro")).ok();
    remount("rw").fails(32, &["opened read-only", "amberfs umount"]);
    assert_eq!(std::fs::read_to_string(scratch.path("mnt/file")).unwrap(), "after");
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck {zone}:home")).ok();
}

#[test]
fn one_server_serves_several_volumes_of_a_zone() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (zone, one, two) = (scratch.zone(), scratch.mount_point("one"), scratch.mount_point("two"));
    run(&format!("mount {zone}:home {one}")).ok();
    run(&format!("mkfs {zone}:second --size 16M")).ok();
    run(&format!("mount {zone}:second {two} -o durability=op")).ok();
    std::fs::write(scratch.path("one/a"), "a").unwrap();
    std::fs::write(scratch.path("two/b"), "b").unwrap();
    run(&format!("zone grow {zone} --size 96M")).ok();
    run(&format!("mkfs {zone}:third")).ok();
    assert_eq!(run(&format!("df {zone} --json")).ok().json()["volumes"].as_array().unwrap().len(), 3);
    run(&format!("zone remove-volume {zone} third --force")).ok();
    run(&format!("umount {one}")).ok();
    assert_eq!(std::fs::read_to_string(scratch.path("two/b")).unwrap(), "b");
    run(&format!("umount {two}")).ok();
    run(&format!("fsck {zone}:home")).ok();
    run(&format!("fsck {zone}:second")).ok();
}

/// It was refused: another volume of the zone was mounted.
#[test]
fn a_volume_is_checked_and_repaired_beside_another_ones_mount() {
    let Some((scratch, zone, dir)) = place() else { return };
    let damaged = format!("{zone}:second");
    run(&format!("mkfs {damaged} --size 16M")).ok();
    run(&format!("mount {zone}:home {dir}")).ok();
    assert!(run(&format!("fsck {damaged}")).ok().out.contains("clean"));
    run(&format!("fsck {zone}:home")).fails(8, &["mounted on", "amberfs umount"]);
    run(&format!("fsck {zone}:nope")).fails(8, &["no volume"]);

    // The first superblock's contents: the second one has them, too.
    let shown = run(&format!("zone show {zone} --json")).ok().json();
    let volumes = shown["volumes"].as_array().unwrap().clone();
    let second = volumes.iter().find(|volume| volume["name"] == "second").unwrap();
    let file = std::fs::File::options().write(true).open(&zone).unwrap();
    file.write_all_at(&[0xff; 64], second["start"].as_u64().unwrap() + 64).unwrap();
    let told = run(&format!("fsck {damaged} --json"));
    assert_eq!(told.code, 4, "{}{}", told.out, told.err);
    assert_eq!(told.json()["problems"].as_array().unwrap().len(), 1);
    let told = run(&format!("fsck {damaged} --repair"));
    assert_eq!(told.code, 1, "{}{}", told.out, told.err);
    assert!(told.out.contains("(repaired)") && told.out.contains(": 1 problem, repaired: "), "{}", told.out);
    run(&format!("fsck {damaged}")).ok();
    std::fs::write(scratch.path("mnt/still"), "there").unwrap();
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck {zone}:home")).ok();
}

/// What was written by the mounts before counted as this one's, as long as the server had the zone open for another volume.
#[test]
fn a_mount_was_told_what_the_one_before_it_wrote() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mkfs {zone}:other")).ok();
    let other = scratch.mount_point("other");
    run(&format!("mount {zone}:other {other}")).ok();
    let written = || {
        let stats = run(&format!("stats {dir} --json")).ok().json();
        let rows = stats["nvm"]["written"].as_array().unwrap().clone();
        rows.iter().find(|row| row["purpose"] == "total").unwrap()["bytes"].as_u64().unwrap()
    };
    run(&format!("mount {zone}:home {dir}")).ok();
    std::fs::write(scratch.path("mnt").join("file"), vec![1; 4 << 20]).unwrap();
    shell(&format!("sync --file-system {dir}; {PROGRAM} snapshot take {dir} s1")).ok();
    assert!(written() > 4 << 20);
    run(&format!("umount {dir}")).ok();
    run(&format!("mount {zone}:home {dir}")).ok();
    assert!(written() < 1 << 20, "{}", written());
    run(&format!("umount {dir}")).ok();
    run(&format!("mount {zone}:home {dir} -o snapshot=s1")).ok();
    assert_eq!(written(), 0);
    run(&format!("umount {dir}")).ok();
    run(&format!("umount {other}")).ok();
}

/// The server ends with its last mount. Who mounted another volume of the zone at that moment was told so, and had no mount.
#[test]
fn a_mount_met_a_server_that_was_just_ending() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let zone = scratch.zone();
    run(&format!("mkfs {zone}:other")).ok();
    let (one, other) = (scratch.mount_point("one"), scratch.mount_point("two"));
    for round in 0..60 {
        run(&format!("mount {zone}:home {one}")).ok();
        let ending = {
            let one = one.clone();
            std::thread::spawn(move || run(&format!("umount {one}")))
        };
        std::thread::sleep(std::time::Duration::from_micros(round % 20 * 500));
        run(&format!("mount {zone}:other {other}")).ok();
        ending.join().unwrap().ok();
        run(&format!("umount {other}")).ok();
    }
}

#[test]
fn a_killed_server_leaves_a_volume_that_recovers() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    let mut file = std::fs::File::create(scratch.path("mnt/kept")).unwrap();
    file.write_all(b"kept").unwrap();
    file.sync_all().unwrap();
    let pid = run(&format!("stats {dir} --json")).ok().json()["pid"].to_string();
    shell(&format!("kill -9 {pid}")).ok();
    drop(file);
    eventually("the mount notices that its server is dead", || rustix::fs::statvfs(dir.as_str()).is_err());
    run(&format!("mount {zone}:home {dir}")).fails(32, &["whose server is gone", "amberfs umount"]);
    run(&format!("umount {dir}")).ok();
    assert_eq!(run(&format!("info {zone}:home --json")).ok().json()["clean"], false);
    let checked = run(&format!("fsck -n {zone}:home")).ok();
    assert!(checked.out.contains("was not unmounted cleanly"), "{}", checked.out);
    let mounted = run(&format!("mount {zone}:home {dir}")).ok();
    assert!(mounted.out.contains("not unmounted cleanly"), "{}", mounted.out);
    assert_eq!(std::fs::read_to_string(scratch.path("mnt/kept")).unwrap(), "kept");
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck {zone}:home")).ok();
}

/// The kernel drops pages that it cannot send, and until its clock ticked it said of their `fsync` that it succeeded.
#[test]
fn a_dead_server_acknowledged_what_was_lost() {
    let Some((scratch, zone, dir)) = place() else { return };
    for options in ["durability=fsync", "durability=op"] {
        run(&format!("mount {zone}:home {dir} -o {options}")).ok();
        let file = std::fs::File::create(scratch.path("mnt/file")).unwrap();
        let write = |bytes: &[u8]| file.write_all_at(bytes, 0).and_then(|()| file.sync_data());
        write(&[1; 4096]).unwrap();
        let pid = run(&format!("stats {dir} --json")).ok().json()["pid"].to_string();
        shell(&format!("kill -9 {pid}")).ok();
        eventually("the mount notices that its server is dead", || {
            rustix::fs::statvfs(dir.as_str()).is_err()
        });
        let acknowledged = (0..1000).filter(|_| write(&[2; 4096]).is_ok()).count();
        assert_eq!(acknowledged, 0, "with {options}, of 1000 writes behind the server's death");
        drop(file);
        run(&format!("umount {dir}")).ok();
    }
    run(&format!("mount {zone}:home {dir}")).ok();
    assert_eq!(std::fs::read(scratch.path("mnt/file")).unwrap(), [1; 4096]);
    run(&format!("umount {dir}")).ok();
}

#[test]
fn a_server_in_the_foreground_ends_with_a_signal_or_with_umount() {
    let Some((_scratch, zone, dir)) = place() else { return };
    for signal in [Some("TERM"), Some("INT"), None] {
        let mut server = Command::new(PROGRAM)
            .args(["mount", "--foreground", &format!("{zone}:home"), &dir])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        eventually("it mounts", || run(&format!("stats {dir}")).code == 0);
        match signal {
            Some(signal) => shell(&format!("kill -{signal} {}", server.id())),
            // umount(8) itself, which knows nothing of us.
            None => shell(&format!("umount -i {dir}")),
        }
        .ok();
        assert_eq!(server.wait().unwrap().code(), Some(0), "{signal:?}");
        assert_eq!(run(&format!("info {zone}:home --json")).ok().json()["clean"], true, "{signal:?}");
    }
}

#[test]
fn a_lazy_unmount_ends_when_the_last_file_is_closed() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    let mut file = std::fs::File::create(scratch.path("mnt/late")).unwrap();
    let answer = run(&format!("umount --lazy {dir}")).ok();
    assert!(answer.out.contains("last file"), "{}", answer.out);
    file.write_all(b"late").unwrap();
    drop(file);
    eventually("the server lets go of the zone", || run(&format!("fsck {zone}:home")).code != 8);
    run(&format!("mount {zone}:home {dir}")).ok();
    assert_eq!(std::fs::read_to_string(scratch.path("mnt/late")).unwrap(), "late");
    run(&format!("umount {dir}")).ok();
}

/// Containers' images: what lies below an overlay could not be changed through it, because a volume said that it knew no inode flags; and
/// what had been was a "stale file handle" where the kernel had to look for what it had been before.
#[test]
fn an_overlay_changes_what_it_has_from_a_volume() {
    let Some((scratch, zone, dir)) = place() else { return };
    let overlay = "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged";
    run(&format!("mount {zone}:home {dir}")).ok();
    let below = "mkdir lower lower/dir upper work merged
        echo one > lower/changed; echo two > lower/dir/moved; touch lower/gone; ln -s changed lower/link";
    let mounted = shell(&format!("set -e; cd {dir}; {below}; {overlay}"));
    if mounted.err.contains("unknown filesystem type") {
        let _ = writeln!(std::io::stderr(), "LEFT OUT: overlays of a volume: this kernel has no overlayfs");
        return;
    }
    mounted.ok();
    let changes = "echo more >> changed; mv dir/moved here; rm gone; rm -r dir; mkdir dir; echo new > dir/new; chmod 600 here; mv link dir; chattr +d here";
    shell(&format!("set -e; cd {dir}/merged; {changes}")).ok();
    // At first by a kernel that knows all of it, then by one that knows nothing.
    for _ in 0..2 {
        let shown =
            "find . | sort; cat changed here dir/new; readlink dir/link; lsattr here; stat -c %a here";
        let all = shell(&format!("set -e; cd {dir}/merged; {shown}; cd ..; umount merged")).ok();
        let expected = ".\n./changed\n./dir\n./dir/link\n./dir/new\n./here\none\nmore\ntwo\nnew\nchanged\n";
        assert_eq!(all.out, format!("{expected}------d--------------- here\n600\n"));
        run(&format!("umount {dir}")).ok();
        run(&format!("mount {zone}:home {dir}")).ok();
        shell(&format!("cd {dir}; {overlay}")).ok();
    }
    assert_eq!(
        names(&scratch.path("mnt/lower")),
        ["changed", "dir", "gone", "link"],
        "what is below stays as it was"
    );
    shell(&format!("umount {dir}/merged")).ok();
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck -n {zone}:home")).ok();
}

#[test]
fn caches_are_bounded_by_an_option() {
    let Some((_scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir} -o cache=512K")).fails(1, &["cache=512K", "1M or more"]);
    run(&format!("mount {zone}:home {dir} -o cahce=64M")).fails(1, &["did you mean 'cache'?"]);
    run(&format!("mount {zone}:home {dir} -o cache=1M,durability=op")).ok();
    shell(&format!("cd {dir} && for d in 1 2 3 4; do mkdir $d && (cd $d && seq 500 | xargs touch); done && ls -lR >/dev/null"))
        .ok();
    let stats = run(&format!("stats {dir} --json")).ok().json();
    let told = run(&format!("info {zone}:home --json")).ok().json();
    assert_eq!(stats["native"]["cache_limit_bytes"], 1 << 20);
    assert_eq!(told["cache_limit_bytes"], 1 << 20);
    for caches in [&stats["native"], &told] {
        let used = caches["cache_bytes"].as_u64().unwrap();
        assert!((1..=1 << 20).contains(&used) && caches["table_bytes"].as_u64().unwrap() > 0, "{caches}");
    }
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck {zone}:home")).ok();
    run(&format!("mount {zone}:home {dir}")).ok();
    assert_eq!(shell(&format!("ls {dir}/[1-4] | grep -c '^[0-9][0-9]*$'")).ok().out, "2000\n");
    assert!(run(&format!("stats {dir} --json")).ok().json()["native"]["cache_limit_bytes"].is_null());
    run(&format!("umount {dir}")).ok();
}

/// What a mount is to be told besides, as the zone says it.
#[test]
fn a_persist_method_and_a_technology_are_a_mounts_choice() {
    let Some((scratch, zone, dir)) = place() else { return };
    let shown = |key: &str| run(&format!("zone show {zone} --json")).ok().json()[key].clone();
    run(&format!("mount {zone}:home {dir}")).ok();
    assert_eq!(shown("technology"), "dram");
    run(&format!("umount {dir}")).ok();
    run(&format!("mount {zone}:home {dir} -o persist=clflush,technology=pcm")).ok();
    assert_eq!((shown("persist"), shown("technology")), ("clflush".into(), "pcm".into()));
    std::fs::write(scratch.path("mnt/file"), vec![7; 100_000]).unwrap();
    assert_eq!(std::fs::read(scratch.path("mnt/file")).unwrap(), vec![7; 100_000]);
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck {zone}:home")).ok();
    run(&format!("mount {zone}:home {dir} -o persist=hope")).fails(1, &["hope", "clflush"]);
}

/// A lock that a script held on a file of its own stayed with the server, and who waited for the end of a pipe of its waited for the server's.
#[test]
fn a_server_has_no_files_of_who_started_it() {
    let Some((scratch, zone, dir)) = place() else { return };
    let lock = scratch.text("lock");
    shell(&format!("exec 9>{lock}; flock -x 9; {PROGRAM} mount {zone}:home {dir}")).ok();
    shell(&format!("flock -n {lock} true")).ok();
    // Nobody reads what is said of it: it is mounted all the same.
    run(&format!("umount {dir}")).ok();
    shell(&format!("{PROGRAM} mount -v {zone}:home {dir} >/dev/full")).ok();
    run(&format!("umount {dir}")).ok();
}

#[test]
fn a_mount_is_watched_until_it_ends() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    let watch = |arguments: &[&str]| {
        let mut watching = Command::new(PROGRAM);
        watching.args(["stats", &dir, "--watch"]).args(arguments).stdout(Stdio::piped()).spawn().unwrap()
    };
    let (mut text, mut json) = (watch(&[]), watch(&["--json"]));
    let mut lines = BufReader::new(text.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("user written"));
    // Something is written in each second that is told.
    let mut written = 0;
    let seen = lines.by_ref().take(5).any(|line| {
        let path = scratch.path("mnt/file");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        std::fs::File::open(path).unwrap().sync_all().unwrap();
        written += 1 << 20;
        // By the program, and into NVM, in lines of 64 B: each figure, but for the fences, stands below its name.
        let columns: Vec<&str> = line.split_whitespace().collect();
        let lines = columns[columns.len() - 2].parse::<u64>().unwrap();
        line.trim_start().starts_with("1 MiB")
            && columns.iter().filter(|word| **word == "MiB").count() == 2
            && lines > 16384
    });
    assert!(seen, "no second in which 1 MiB was written");
    let mut answers = BufReader::new(json.stdout.take().unwrap()).lines().map(Result::unwrap);
    let bytes = |line: String| {
        let answer: serde_json::Value = serde_json::from_str(&line).unwrap();
        answer["user"]["bytes_written"].as_u64().unwrap()
    };
    assert!(answers.by_ref().take(10).any(|line| bytes(line) == written), "{written} bytes");
    // Or until nobody reads what it says.
    for arguments in [&[][..], &["--json"]] {
        let mut left = watch(arguments);
        drop(left.stdout.take());
        eventually("who watches for nobody has ended", || left.try_wait().unwrap().is_some());
        assert!(left.wait().unwrap().success());
    }
    run(&format!("umount {dir}")).ok();
    lines.chain(answers).for_each(drop);
    assert!(text.wait().unwrap().success() && json.wait().unwrap().success());
}

/// Commands that met a server which was just ending failed: it did not read what it was asked, its volume was closed already and so
/// said to be read-only, or open still. And a volume was not removed while somebody asked how full it is.
#[test]
fn commands_meet_a_server_that_ends() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (zone, dir) = (scratch.zone(), scratch.mount_point("mnt"));
    for round in 0..40 {
        run(&format!("mount {zone}:home {dir}")).ok();
        let all: [Vec<String>; 5] = [
            vec![format!("umount {dir}"), format!("mount {zone}:home {dir}"), format!("umount {dir}")],
            vec![
                format!("snapshot take {zone}:home s{round}"),
                format!("snapshot remove {zone}:home s{round}"),
            ],
            vec![format!("mkfs {zone}:other --size 16M"), format!("zone remove-volume {zone} other --force")],
            vec![format!("df {zone}"), format!("zone show {zone}"), format!("df {zone}")],
            vec![format!("zone grow {zone} --size {}M", 66 + 2 * round)],
        ];
        std::thread::scope(|scope| {
            for lines in all {
                scope.spawn(move || {
                    lines.iter().for_each(|line| _ = run(line).ok());
                });
            }
        });
    }
}

/// The signal was looked at when the mount was there, and a server that waits for its disk kept it.
#[test]
fn a_server_that_is_still_mounting_ends() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.mount_point("mnt");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let disk = format!("nbd://127.0.0.1:{}/", silent.local_addr().unwrap().port());
    let mount = ["mount", "--foreground", "-o", "ro", &disk, &dir];
    let mut server = Command::new(PROGRAM).args(mount).stderr(Stdio::piped()).spawn().unwrap();
    let _asked = silent.accept().unwrap();
    shell(&format!("kill {}", server.id())).ok();
    let began = Instant::now();
    assert_eq!(server.wait().unwrap().code(), Some(8));
    assert!(began.elapsed() < Duration::from_secs(20), "the disk has 30");
    let mut said = String::new();
    server.stderr.unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("interrupted before anything was mounted"), "{said}");
}

/// One thread that it could not have, and it answered nobody any more.
#[test]
fn a_server_short_of_threads_answers_later() {
    let Some((_scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    let pid = run(&format!("stats {dir} --json")).ok().json()["pid"].as_u64().unwrap();
    let uuid = run(&format!("zone show {zone} --json")).ok().json()["uuid"].as_str().unwrap().to_string();
    let limit = |bytes: &str| shell(&format!("prlimit --pid {pid} --as={bytes}:unlimited")).ok();
    limit(&format!("$(($(awk '/VmSize/ {{ print $2 }}' /proc/{pid}/status) * 1024 + (4 << 20)))"));
    let socket = format!("/run/amberfs/{uuid}.sock");
    let crowd: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let hung_up = |mut stream: &UnixStream| {
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.read(&mut [0]).is_ok_and(|read| read == 0)
    };
    assert!(hung_up(crowd.last().unwrap()), "there were threads for all of them");
    drop(crowd);
    limit("unlimited");
    run(&format!("stats {dir} --json")).ok();
    run(&format!("umount {dir}")).ok();
}
