//! Snapshots from the shell: taken, seen in the mount and alone, kept and removed.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::support::mounted::{names, place, shell};
use crate::support::{PROGRAM, Run, Scratch, can_mount, copy_program, eventually, run};

/// Takes everything out of the kernel's caches that nobody uses.
fn drop_caches() {
    // Where that is not allowed, the caches are tested all the same.
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
}

/// A file of a snapshot can be opened for writing, since the kernel does not ask; then with a writeback cache it took what was
/// written, and showed that until it was forgotten.
#[test]
fn a_write_to_a_snapshot_succeeded() {
    let Some((scratch, zone, dir)) = place() else { return };
    for options in ["durability=fsync", "durability=op"] {
        run(&format!("mount {zone}:home {dir} -o {options}")).ok();
        fs::write(scratch.path("mnt/file"), "as it was").unwrap();
        run(&format!("snapshot take {dir} {options}")).ok();
        let kept = scratch.path("mnt/.snapshots").join(options).join("file");
        let before = fs::metadata(&kept).unwrap();
        for how in [File::options().write(true).clone(), File::options().append(true).clone()] {
            let file = how.open(&kept).unwrap();
            for offset in [0, 5, 1 << 20] {
                assert_eq!(file.write_at(b"not so", offset).unwrap_err().raw_os_error(), Some(30), "EROFS");
            }
            file.sync_all().unwrap();
        }
        assert_eq!(fs::write(&kept, "not so").unwrap_err().raw_os_error(), Some(30), "EROFS");
        assert_eq!(fs::read_to_string(&kept).unwrap(), "as it was");
        let after = fs::metadata(&kept).unwrap();
        assert_eq!((after.len(), after.modified().unwrap()), (before.len(), before.modified().unwrap()));
        run(&format!("umount {dir}")).ok();
    }
}

/// Who has the directory of snapshots open and begins anew sees what was taken since.
#[test]
fn an_open_listing_of_snapshots_begins_anew() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    run(&format!("snapshot take {dir} first")).ok();
    let mut listing = rustix::fs::Dir::new(fs::File::open(scratch.path("mnt/.snapshots")).unwrap()).unwrap();
    let mut count = || {
        listing.rewind();
        listing.by_ref().map(Result::unwrap).count()
    };
    (0..3).for_each(|_| assert_eq!(count(), 3));
    run(&format!("snapshot take {dir} second")).ok();
    assert_eq!(count(), 4);
    run(&format!("snapshot remove {dir} first")).ok();
    assert_eq!(count(), 3);
    drop(listing);
    run(&format!("umount {dir}")).ok();
}

#[test]
fn a_mount_shows_what_was() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    let at = |name: &str| scratch.path("mnt").join(name);
    let kept = |name: &str| at(".snapshots").join(name);
    assert!(names(&at(".snapshots")).is_empty());
    assert!(fs::metadata(kept("first")).is_err(), "the kernel is told that it is not there");
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("dir/file"), "as it was").unwrap(); // into the kernel's pages
    shell(&format!("cd {dir} && ln -s dir/file link && seq 20000 >dir/numbers")).ok();
    shell(&format!("cp -a {dir}/. {}", scratch.mount_point("copy"))).ok();
    run(&format!("snapshot take {dir} first --comment before")).ok();
    fs::write(at("dir/file"), "as it is").unwrap();
    fs::remove_file(at("link")).unwrap();
    shell(&format!("seq 5 20 >>{dir}/dir/numbers")).ok();

    assert_eq!(names(&at(".snapshots")), ["first"]);
    assert!(!names(&at("")).contains(&".snapshots".to_string()), "it is not listed");
    for _ in 0..2 {
        assert_eq!(fs::read_to_string(kept("first/dir/file")).unwrap(), "as it was");
        shell(&format!("diff -r --no-dereference {} {}/copy", kept("first").display(), scratch.text("")))
            .ok();
        drop_caches();
    }
    shell(&format!(
        "ls -la {0} {0}/first && cp -a {0}/first {1}",
        at(".snapshots").display(),
        scratch.text("again")
    ))
    .ok();
    shell(&format!("diff -r --no-dereference {0}/again {0}/copy", scratch.text(""))).ok();
    let inode = fs::metadata(kept("first/dir/file")).unwrap().ino();
    for attempt in [
        fs::write(kept("first/dir/file"), "no"),
        fs::remove_file(kept("first/dir/file")),
        fs::create_dir(kept("first/new")),
        fs::create_dir(kept("new")),
    ] {
        assert_eq!(attempt.unwrap_err().raw_os_error(), Some(30), "EROFS");
    }
    assert_eq!(fs::create_dir(at(".snapshots")).unwrap_err().raw_os_error(), Some(17), "EEXIST");
    assert_eq!(fs::remove_dir(at(".snapshots")).unwrap_err().raw_os_error(), Some(16), "EBUSY");
    let across = fs::rename(kept("first/dir/file"), at("moved")).unwrap_err();
    assert_eq!(across.raw_os_error(), Some(18), "EXDEV");
    shell(&format!("mkdir {0}/back && cp -a {1}/dir/. {0}/back", at("").display(), kept("first").display()))
        .ok();
    assert_eq!(fs::read_to_string(at("back/file")).unwrap(), "as it was");

    // Numbers stay from mount to mount.
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck {zone}:home")).ok();
    let listed = run(&format!("snapshot list {zone}:home --json")).ok().json();
    assert_eq!(
        (&listed["snapshots"][0]["name"], &listed["snapshots"][0]["comment"]),
        (&"first".into(), &"before".into())
    );
    run(&format!("mount {zone}:home {dir}")).ok();
    assert_eq!(fs::metadata(kept("first/dir/file")).unwrap().ino(), inode);
    run(&format!("umount {dir}")).ok();
}

#[test]
fn a_snapshot_in_use_is_not_removed_and_one_removed_is_gone() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    let at = |name: &str| scratch.path("mnt").join(name);
    fs::write(at("file"), "old").unwrap();
    run(&format!("snapshot take {dir} kept")).ok();
    fs::write(at("file"), "new").unwrap();
    let file = File::open(at(".snapshots/kept/file")).unwrap();
    let mut bytes = [0; 3];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"old");
    run(&format!("snapshot remove {dir} kept")).fails(1, &["are open", "it is kept"]);
    assert_eq!(fs::read_to_string(at(".snapshots/kept/file")).unwrap(), "old");
    drop(file);
    run(&format!("snapshot hold {dir} kept backup")).ok();
    run(&format!("snapshot remove {dir} kept")).fails(1, &["held by backup"]);
    run(&format!("snapshot hold {dir} kept backup")).fails(1, &["already"]);
    assert_eq!(
        run(&format!("snapshot show {dir} kept --json")).ok().json()["holds"],
        serde_json::json!(["backup"])
    );
    run(&format!("snapshot release {dir} kept backup")).ok();
    run(&format!("snapshot take {dir} kept")).fails(1, &["already"]);
    let old = fs::metadata(at(".snapshots/kept")).unwrap();
    run(&format!("snapshot remove {dir} kept --wait")).ok();
    assert!(names(&at(".snapshots")).is_empty());
    assert_eq!(fs::metadata(at(".snapshots/kept/file")).unwrap_err().raw_os_error(), Some(2), "ENOENT");
    run(&format!("snapshot remove {dir} kept")).fails(1, &["no snapshot"]);
    // Another of the same name is another.
    run(&format!("snapshot take {dir} kept")).ok();
    assert_eq!(fs::read_to_string(at(".snapshots/kept/file")).unwrap(), "new");
    assert_ne!(fs::metadata(at(".snapshots/kept")).unwrap().ino(), old.ino());
    run(&format!("umount {dir}")).ok();
    // Unmounted, too.
    run(&format!("snapshot take {zone}:home second --comment unmounted")).ok();
    run(&format!("snapshot remove {zone}:home kept --wait")).ok();
    let listed = run(&format!("snapshot list {zone}:home --json")).ok().json();
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 1);
    assert!(run(&format!("snapshot show {zone}:home second")).ok().out.contains("unmounted"));
    run(&format!("fsck {zone}:home")).ok();
}

#[test]
fn a_snapshot_is_mounted_alone() {
    let Some((scratch, zone, dir)) = place() else { return };
    let other = scratch.mount_point("other");
    run(&format!("mount {zone}:home {dir} -o durability=op")).ok();
    fs::write(scratch.path("mnt/file"), "old").unwrap();
    run(&format!("snapshot take {dir} kept")).ok();
    fs::write(scratch.path("mnt/file"), "new").unwrap();
    let shown = format!("{dir}/.snapshots/kept");
    run(&format!("mount {zone}:home {other} -o snapshot=kept")).fails(32, &["mounted already", &shown]);
    let pid = run(&format!("stats {dir} --json")).ok().json()["pid"].to_string();
    // Its server is killed: the volume needs recovery, the snapshot does not.
    shell(&format!("kill -9 {pid}")).ok();
    eventually("the server's end", || !Path::new(&format!("/proc/{pid}")).exists());
    run(&format!("umount {dir}"));
    let before = fs::read(&zone).unwrap();
    run(&format!("mount {zone}:home {other} -o snapshot=kept")).ok();
    assert_eq!(fs::read_to_string(scratch.path("other/file")).unwrap(), "old");
    assert_eq!(fs::write(scratch.path("other/file"), "no").unwrap_err().raw_os_error(), Some(30), "EROFS");
    run(&format!("snapshot take {other} more")).fails(1, &["a snapshot of the volume is mounted"]);
    run(&format!("stats {other}")).ok();
    run(&format!("umount {other}")).ok();
    assert!(fs::read(&zone).unwrap() == before, "not a byte of the zone was changed");
    run(&format!("mount {zone}:home {other} -o snapshot=none")).fails(32, &["no snapshot"]);
    run(&format!("mount {zone}:home {dir}")).ok();
    assert_eq!(fs::read_to_string(scratch.path("mnt/file")).unwrap(), "new");
    run(&format!("umount {dir}")).ok();
}

#[test]
fn a_volume_returns_to_a_snapshot_and_a_snapshot_becomes_a_volume() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (zone, dir, other) = (scratch.text("z"), scratch.mount_point("mnt"), scratch.mount_point("other"));
    run(&format!("zone create {zone} --size 256M")).ok();
    run(&format!("mkfs {zone}:home --size 64M")).ok();
    run(&format!("mount {zone}:home {dir}")).ok();
    let file = scratch.path("mnt/file");
    for (text, name) in [("one", "first"), ("two", "second"), ("three", "third")] {
        fs::write(&file, text).unwrap();
        run(&format!("snapshot take {dir} {name}")).ok();
    }
    run(&format!("snapshot rollback {dir} first")).fails(1, &["second, third", "nothing was changed"]);
    run(&format!("snapshot clone {dir} second copy")).ok();
    run(&format!("snapshot clone {dir} second copy")).fails(1, &["copy"]);
    run(&format!("snapshot clone {dir} none another")).fails(1, &["no snapshot \"none\""]);
    run(&format!("mount {zone}:copy {other}")).ok();
    assert_eq!(fs::read_to_string(scratch.path("other/file")).unwrap(), "two");
    fs::write(scratch.path("other/file"), "its own").unwrap();
    run(&format!("umount {other}")).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "three");
    run(&format!("umount {dir}")).ok();

    run(&format!("snapshot rollback {zone}:home first"))
        .fails(1, &["second, third", "would be lost", "nothing was changed"]);
    run(&format!("snapshot rollback {zone}:home first --discard-newer")).ok();
    run(&format!("fsck {zone}:home")).ok();
    run(&format!("fsck {zone}:copy")).ok();
    run(&format!("snapshot clone {zone}:home first unmounted")).ok();
    for volume in ["home", "unmounted"] {
        run(&format!("mount {zone}:{volume} {dir}")).ok();
        assert_eq!(fs::read_to_string(&file).unwrap(), "one", "{volume}");
        run(&format!("umount {dir}")).ok();
    }
    let listed = run(&format!("snapshot list {zone}:home --json")).ok().json();
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), 1);
}

/// All that tell what snapshots take tell the same; returns how many there are.
fn assert_usage_agrees(place: &str) -> usize {
    let listed = run(&format!("snapshot list {place} --json")).ok().json()["snapshots"].clone();
    assert_eq!(run(&format!("info {place} --json")).ok().json()["snapshots"], listed);
    let rows = listed.as_array().unwrap();
    for row in rows {
        let name = row["name"].as_str().unwrap();
        assert!(row["own_bytes"].as_u64() > Some(0) && row["shared_bytes"].is_u64(), "{row}");
        assert_eq!(&run(&format!("snapshot show {place} {name} --json")).ok().json(), row);
    }
    rows.len()
}

#[test]
fn what_differs_is_told() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    let at = |name: &str| scratch.path("mnt").join(name);
    fs::create_dir(at("dir")).unwrap();
    for name in ["dir/changed", "dir/moved", "gone", "linked"] {
        fs::write(at(name), "as it was").unwrap();
    }
    run(&format!("snapshot take {dir} first")).ok();
    assert_eq!(run(&format!("snapshot diff {dir} first")).ok().out, "");
    fs::write(at("dir/changed"), "as it is").unwrap(); // into the kernel's pages
    fs::rename(at("dir/moved"), at("with blank -> \\")).unwrap();
    fs::rename(at("dir"), at("folder")).unwrap();
    fs::remove_file(at("gone")).unwrap();
    fs::hard_link(at("linked"), at("also")).unwrap();
    std::os::unix::fs::symlink("gone", at("link")).unwrap();
    let lines = "M /\n+ /also\nM /also\nR /dir/ -> /folder/\nM /folder/\nM /folder/changed\n- /gone\n+ /link\n\
                 R /dir/moved -> /with\\040blank\\040->\\040\\134\n";
    assert_eq!(run(&format!("snapshot diff {dir} first")).ok().out, lines);
    run(&format!("snapshot take {dir} second")).ok();
    (0..3000).for_each(|n| fs::write(at(&format!("{n:0>100}")), "").unwrap());
    let of = |line: &str| run(line).ok().json()["differences"].as_array().unwrap().clone();
    let many = of(&format!("snapshot diff {dir} second --json"));
    assert_eq!(many.len(), 3001, "the root directory and all of them, though they fill several lines");
    assert!(many[1..].iter().all(|it| it["change"] == "added" && it["type"] == "file"));
    assert_eq!(many[3000]["path"], format!("/{:0>100}", 2999));
    assert_eq!(run(&format!("snapshot diff {dir} first second")).ok().out, lines);
    let backwards = run(&format!("snapshot diff {dir} second first")).ok().out;
    assert!(backwards.contains("R /folder/ -> /dir/\n") && backwards.contains("+ /gone\n"), "{backwards}");
    assert_eq!(assert_usage_agrees(&format!("{zone}:home")), 2);
    run(&format!("snapshot diff {dir} first first")).fails(1, &["no different from itself"]);
    run(&format!("snapshot diff {dir} first third")).fails(1, &["no snapshot \"third\"", "while: comparing"]);
    run(&format!("umount {dir}")).ok();

    // Unmounted: two snapshots change nothing.
    let before = fs::read(&zone).unwrap();
    assert_eq!(run(&format!("snapshot diff {zone}:home first second")).ok().out, lines);
    let json = run(&format!("snapshot diff {zone}:home first second --json")).ok().json();
    assert!(fs::read(&zone).unwrap() == before, "not a byte of the zone was changed");
    assert_eq!((&json["from"], &json["to"]), (&"first".into(), &"second".into()));
    let find = |path: &str| {
        let all = json["differences"].as_array().unwrap().iter().rev();
        all.clone().find(|it| it["path"] == path).unwrap_or_else(|| panic!("{path} is not told: {json}"))
    };
    let changed = find("/folder/changed");
    assert_eq!((&changed["change"], &changed["type"]), (&"modified".into(), &"file".into()));
    assert_eq!(changed["what"], serde_json::json!(["data", "times"]));
    assert_eq!(find("/also")["what"], serde_json::json!(["links"]));
    assert_eq!(find("/link")["type"], "symlink");
    assert_eq!(find("/with\\040blank\\040->\\040\\134")["from"], "/dir/moved");
    // The kernel may write a file's times back behind its bytes, on a busy machine as late as when it is unmounted.
    let late = serde_json::json!({"change": "modified", "what": ["times"], "type": "file", "path": "/folder/changed"});
    let mut unmounted = of(&format!("snapshot diff {zone}:home second --json"));
    unmounted.retain(|it| *it != late);
    assert_eq!(unmounted, many);
    run(&format!("fsck {zone}:home")).ok();
    assert_eq!(assert_usage_agrees(&format!("{zone}:home")), 2);
}

/// It was refused, as if it had to be recovered; and a name was taken that no list of mount options can have.
#[test]
fn a_zone_that_cannot_be_written_to_is_compared_with_what_it_is_now() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    run(&format!("snapshot take {dir} a,b")).fails(1, &["comma", "nothing was changed"]);
    run(&format!("snapshot take {dir} first")).ok();
    fs::write(scratch.path("mnt/file"), "new").unwrap();
    run(&format!("umount {dir}")).ok();
    let read_only = format!("mount --bind {zone} {zone} && mount -o remount,ro,bind {zone}");
    let line = format!("{read_only} && exec {PROGRAM} snapshot diff {zone}:home first");
    let differences = shell(&format!("unshare --mount sh -c '{line}'")).ok().out;
    assert!(differences.contains("+ /file\n"), "{differences}");
}

/// `info` told it, and `df` did not; of a directory in a snapshot `df` told about the volume.
#[test]
fn df_tells_what_snapshots_have_alone_and_share() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir} -o durability=op")).ok();
    let at = |name: &str| scratch.path("mnt").join(name);
    fs::write(at("both"), vec![1; 1 << 20]).unwrap();
    fs::write(at("old"), vec![2; 1 << 20]).unwrap();
    run(&format!("snapshot take {dir} s1")).ok();
    fs::remove_file(at("old")).unwrap();
    run(&format!("snapshot take {dir} s2")).ok();
    let told = |json: &serde_json::Value, key: &str| -> Vec<(String, u64, u64)> {
        let number = |row: &serde_json::Value, key: &str| row[key].as_u64().unwrap();
        let rows = json["snapshots"].as_array().unwrap().iter();
        rows.map(|row| {
            (row[key].as_str().unwrap().into(), number(row, "own_bytes"), number(row, "shared_bytes"))
        })
        .collect()
    };
    let listed = told(&run(&format!("snapshot list {dir} --json")).ok().json(), "name");
    assert!(listed[0].1 >= 1 << 20 && listed[0].2 >= 1 << 20, "{listed:?}");
    for place in [dir.clone(), format!("{dir}/.snapshots"), format!("{zone}:home"), zone.clone()] {
        assert_eq!(told(&run(&format!("df {place} --json")).ok().json(), "snapshot"), listed, "{place}");
    }
    let info = run(&format!("info {dir} --json")).ok().json();
    assert_eq!(info["volume"], "home", "{info}");
    assert_eq!(info, run(&format!("info {zone}:home --json")).ok().json());
    let text = run(&format!("df {dir}")).ok().out;
    assert!(text.contains("own bytes  shared bytes") && text.contains("s2"), "{text}");

    fs::create_dir(at("later")).unwrap();
    let of = format!("{dir}/.snapshots/s1");
    let df = run(&format!("df {of} --json")).ok().json();
    assert_eq!(told(&df, "snapshot"), listed[..1]);
    let volume = &df["volumes"][0];
    assert_eq!((&volume["volume"], &volume["mounted"]), (&format!("{zone}:home@s1").into(), &of.into()));
    let bytes = volume["used_bytes"].as_u64().unwrap();
    assert!((2 << 20..4 << 20).contains(&bytes) && volume["free_bytes"] == 0, "{volume}");
    run(&format!("umount {dir}")).ok();
    let at_rest = |line: &str| run(&format!("{line} {zone}:home --json")).ok().json();
    assert_eq!(told(&at_rest("df"), "snapshot"), told(&at_rest("snapshot list"), "name"));
}

/// A clone of a mounted volume said nothing until it was there.
#[test]
fn a_server_tells_how_far_cloning_has_come() {
    let Some((scratch, _, dir)) = place() else { return };
    let zone = scratch.text("large");
    run(&format!("zone create {zone} --size 120M")).ok();
    run(&format!("mkfs {zone}:home --size 32M")).ok();
    run(&format!("mount {zone}:home {dir}")).ok();
    fs::write(scratch.path("mnt").join("file"), vec![1; 8 << 20]).unwrap();
    run(&format!("snapshot take {dir} s1")).ok();
    // On a terminal, which script(1) makes.
    let line = format!("{PROGRAM} snapshot clone {dir} s1 copy");
    let shown = shell(&format!("script --quiet --return --command '{line}' /dev/null </dev/null")).ok().out;
    assert!(shown.contains("copied"), "{shown:?}");
    assert_eq!(shell(&format!("{PROGRAM} snapshot clone {dir} s1 again 2>&1")).ok().out, "");
    run(&format!("umount {dir}")).ok();
}

/// While a server copied a snapshot of a volume that it does not serve, the volume could be formatted: that failed, with its
/// superblocks gone. And with the last mount the server ended, in the middle of the copy, which stayed as it was.
#[test]
fn what_is_cloned_was_nobodys() {
    let Some((scratch, _, dir)) = place() else { return };
    let zone = scratch.text("large");
    run(&format!("zone create {zone} --size 1000M")).ok();
    run(&format!("mkfs {zone}:home --size 450M")).ok();
    run(&format!("mkfs {zone}:other --size 32M")).ok();
    run(&format!("mount {zone}:home {dir}")).ok();
    shell(&format!("fallocate --length 400M {dir}/large; echo small > {dir}/small")).ok();
    run(&format!("snapshot take {dir} s1")).ok();
    run(&format!("umount {dir}")).ok();
    // A memory so slow that copying takes seconds.
    run(&format!("mount {zone}:other {dir} -o technology=pcm")).ok();
    let clone = format!("snapshot clone {zone}:home s1 copy");
    let mut cloning = Command::new(PROGRAM).args(clone.split(' ')).spawn().unwrap();
    eventually("the copy is made", || run(&format!("zone show {zone}")).ok().out.contains("copy"));
    for line in [
        format!("mkfs {zone}:home --force"),
        format!("mkfs {zone}:copy --force"),
        format!("zone remove-volume {zone} copy --force"),
        format!("mount {zone}:home {dir}"),
    ] {
        let code = if line.starts_with("mount") { 32 } else { 1 };
        run(&line).fails(code, &["is being changed by another command"]);
    }
    run(&format!("umount {dir}")).ok();
    assert!(cloning.try_wait().unwrap().is_none(), "it was copied too fast to tell");
    assert!(run("zone list").ok().out.contains(&zone), "the server has ended");
    assert!(cloning.wait().unwrap().success());
    for volume in ["home", "copy"] {
        run(&format!("fsck -n {zone}:{volume}")).ok();
        run(&format!("mount {zone}:{volume} {dir}")).ok();
        assert_eq!(fs::read(scratch.path("mnt").join("small")).unwrap(), b"small\n");
        run(&format!("umount {dir}")).ok();
    }
}

/// A server that was killed while it copied a snapshot left a volume without a file system, for ever.
#[test]
fn a_clone_that_was_cut_off_is_known_for_what_it_is() {
    let Some((scratch, _, dir)) = place() else { return };
    let zone = scratch.text("large");
    run(&format!("zone create {zone} --size 1000M")).ok();
    run(&format!("mkfs {zone}:home --size 450M")).ok();
    // A memory so slow that copying takes seconds.
    run(&format!("mount {zone}:home {dir} -o technology=pcm")).ok();
    shell(&format!("fallocate --length 200M {dir}/large; echo small > {dir}/small")).ok();
    run(&format!("snapshot take {dir} s1")).ok();
    let clone = format!("snapshot clone {dir} s1 copy");
    let mut cloning = Command::new(PROGRAM).args(clone.split(' ')).spawn().unwrap();
    let copy = || run(&format!("zone show {zone} --json")).ok().json()["volumes"][1].clone();
    eventually("the copy is made", || copy()["name"] == "copy");
    assert_eq!(copy()["unfinished"], true);
    assert!(run(&format!("info {zone}:copy")).ok().out.contains("is being changed by another command"));
    run(&format!("df {zone}")).ok();
    let server = run(&format!("stats {dir} --json")).ok().json()["pid"].as_u64().unwrap();
    shell(&format!("kill -KILL {server}")).ok();
    cloning.wait().unwrap();
    run(&format!("umount {dir}")).ok();

    // Who only looks changes nothing.
    assert_eq!((&copy()["name"], &copy()["unfinished"]), (&"copy".into(), &true.into()));
    assert!(run(&format!("zone list {zone}")).ok().out.contains("home, copy (unfinished)"));
    run(&format!("df {zone}")).ok();
    run(&format!("df {zone}:copy")).fails(1, &["unfinished"]);
    run(&format!("fsck {zone}:copy")).fails(8, &["unfinished"]);
    let cloned = run(&format!("snapshot clone {zone}:home s1 copy")).ok();
    assert!(cloned.err.contains("making volume 'copy' had been cut off"), "{}", cloned.err);
    assert_eq!(copy()["unfinished"], false);
    assert_eq!(run(&format!("fsck {zone}:copy")).ok().err, "");
    run(&format!("mount {zone}:copy {dir}")).ok();
    assert_eq!(fs::read(scratch.path("mnt").join("small")).unwrap(), b"small\n");
    run(&format!("umount {dir}")).ok();
}

/// It said that no volume is served there.
#[test]
fn another_user_is_told_whose_server_it_is() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    // Where nobody may look, whatever directories this is built in.
    let open = tempfile::TempDir::new().unwrap();
    let all = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    let program = open.path().join("amberfs");
    copy_program(&program);
    for path in [open.path(), &program, &scratch.path("")] {
        all(path);
    }
    let as_nobody = |line: &str| {
        let mut command = Command::new(&program);
        Run::of(command.args(line.split(' ')).uid(65534).gid(65534).current_dir("/").output().unwrap())
    };
    for line in ["snapshot list", "stats"] {
        as_nobody(&format!("{line} {dir}")).fails(1, &[&zone, "served by root"]);
    }
    as_nobody(&format!("snapshot take {dir} s1")).fails(1, &["served by root", "have root do it"]);
    let df = as_nobody(&format!("df {dir} --json")).ok().json();
    assert!(df["snapshots"].is_null() && df["volumes"][0]["bytes"].as_u64() > Some(0), "{df}");
    run(&format!("umount {dir}")).ok();
}
