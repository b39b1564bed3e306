//! A disk's way through the commands: attached, mounted, killed, checked, detached, and everything that can be wrong on the way.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::support::mounted::shell;
use crate::support::{PROGRAM, Run, Scratch, can_mount, eventually, run};

/// A zone, a disk with an ext4 on it, and a directory.
pub(crate) fn place() -> Option<(Scratch, String, String, String)> {
    if !can_mount() {
        return None;
    }
    let scratch = Scratch::new();
    let (zone, disk, dir) = (scratch.text("nvm"), scratch.text("disk"), scratch.mount_point("mnt"));
    run(&format!("zone create {zone} --size 40M")).ok();
    shell(&format!("truncate -s 64M {disk} && mke2fs -q -F -t ext4 {disk}")).ok();
    Some((scratch, zone, disk, dir))
}

pub(crate) fn e2fsck(disk: &str) {
    let output = Command::new("e2fsck").args(["-fn", disk]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
}

pub(crate) fn server_of(dir: &str) -> String {
    run(&format!("stats {dir} --json")).ok().json()["pid"].to_string()
}

pub(crate) fn kill(pid: &str) {
    shell(&format!("kill -9 {pid}")).ok();
    eventually("the server's end", || {
        fs::read_dir(format!("/proc/{pid}/fd")).map_or(true, |mut fds| fds.next().is_none())
    });
}

#[test]
fn a_disk_lives_in_nvm_and_is_a_plain_one_again() {
    let Some((scratch, zone, disk, dir)) = place() else { return };
    let at = |name: &str| scratch.path("mnt").join(name);
    assert!(run(&format!("attach {zone}:disk {disk} --size 24M")).ok().out.contains("is attached"));
    let info = run(&format!("info {zone}:disk --json")).ok().json();
    assert_eq!(
        (&info["kind"], &info["attached"], &info["disk"]),
        (&"ext".into(), &true.into(), &disk.clone().into())
    );
    // While it is attached, nobody else takes it.
    let refused = Command::new("e2fsck").args(["-fn", &disk]).output().unwrap();
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("unsupported feature")
    );
    shell(&format!("mount -o loop {disk} {dir}")).fails(32, &[]);

    run(&format!("mount {zone}:disk {dir}")).ok();
    fs::create_dir_all(at("a/b")).unwrap();
    for n in 0..300 {
        fs::write(at(&format!("a/b/{n}")), vec![n as u8; n]).unwrap();
    }
    for entry in fs::read_dir(at("a/b")).unwrap() {
        fs::File::open(entry.unwrap().path()).unwrap().sync_all().unwrap();
    }
    fs::write(at("later"), "not synced").unwrap();
    kill(&server_of(&dir));
    run(&format!("umount {dir}")).ok();
    let told = run(&format!("mount {zone}:disk {dir}")).ok().out;
    assert!(told.contains("was not unmounted cleanly: replayed"), "{told}");
    for n in 0..300 {
        assert_eq!(fs::read(at(&format!("a/b/{n}"))).unwrap(), vec![n as u8; n]);
    }
    let stats = run(&format!("stats {dir} --json")).ok().json();
    assert_eq!(
        stats["ext"]["disk"]["metadata"]["bytes_written"], 1024,
        "but for the mark, metadata stays in NVM"
    );
    run(&format!("umount {dir}")).ok();
    assert!(run(&format!("fsck {zone}:disk")).ok().out.contains("clean"));
    let row = |of: &str| run(&format!("df {of} --json")).ok().json()["volumes"][0].clone();
    let at_rest = row(&format!("{zone}:disk"));
    run(&format!("mount {zone}:disk {dir} -o ro")).ok();
    assert_eq!(fs::write(at("no"), "").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let mounted = row(&dir);
    for key in ["bytes", "used_bytes", "free_bytes", "used_percent", "files"] {
        assert!(at_rest[key].as_u64() > Some(0) && at_rest[key] == mounted[key], "{at_rest} {mounted}");
    }
    run(&format!("detach {zone}:disk")).fails(1, &["is mounted on", "umount"]);
    run(&format!("umount {dir}")).ok();
    assert!(run(&format!("detach {zone}:disk")).ok().out.contains("plain ext disk again"));
    e2fsck(&disk);
    shell(&format!("mount -o loop {disk} {dir}")).ok();
    assert_eq!(fs::read(at("a/b/299")).unwrap(), vec![43; 299]);
    fs::write(at("by the kernel"), "and back").unwrap();
    shell(&format!("umount {dir}")).ok();
    run(&format!("attach {zone}:disk {disk}")).ok();
    run(&format!("mount {zone}:disk {dir} -o fetch=eager")).ok();
    let fetched = &run(&format!("stats {dir} --json")).ok().json()["ext"]["fetched"];
    assert!(fetched["blocks"].as_u64() > fetched["requests"].as_u64(), "{fetched}");
    assert_eq!(fetched["left_out"], 0);
    assert_eq!(fs::read(at("by the kernel")).unwrap(), b"and back");
    run(&format!("umount {dir}")).ok();
}

/// A removed file of which something is damaged kept everybody from the file system: it could be neither mounted nor detached.
#[test]
fn a_removed_file_that_is_damaged_stays_alone() {
    let Some((scratch, zone, disk, dir)) = place() else { return };
    let at = |name: &str| scratch.path("mnt").join(name);
    let from = scratch.mount_point("from");
    fs::write(format!("{from}/big"), vec![7; 800_000]).unwrap();
    shell(&format!("mke2fs -q -F -t ext2 -b 1024 -d {from} {disk}")).ok();
    let stat = shell(&format!("debugfs -R 'stat /big' {disk}")).ok().out;
    let indirect = stat.split("(IND):").nth(1).unwrap();
    let block: u64 = indirect[..indirect.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap();
    let raw = fs::File::options().write(true).open(&disk).unwrap();
    raw.write_all_at(&0x7FFF_FFFF_u32.to_le_bytes(), block * 1024 + 400).unwrap();
    drop(raw);

    run(&format!("attach {zone}:disk {disk} --size 24M")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    fs::write(at("kept"), "kept").unwrap();
    fs::File::open(at("kept")).unwrap().sync_all().unwrap();
    fs::remove_file(at("big")).unwrap();
    run(&format!("umount {dir}")).ok();
    for options in ["", "-o ro", ""] {
        run(&format!("mount {zone}:disk {dir} {options}")).ok();
        assert_eq!(fs::read(at("kept")).unwrap(), b"kept");
        run(&format!("umount {dir}")).ok();
    }
    run(&format!("fsck {zone}:disk")).fails(4, &[]);
    run(&format!("detach {zone}:disk")).ok();
    assert_eq!(run(&format!("info {disk} --json")).ok().json()["has_errors"], true);
    // The next check ends what was begun.
    shell(&format!("e2fsck -p {disk}; e2fsck -fy {disk}; test $? -le 1")).ok();
    e2fsck(&disk);
    run(&format!("mount {disk} {dir} -o ro")).ok();
    assert_eq!(fs::read(at("kept")).unwrap(), b"kept");
    assert!(!at("big").exists());
    // It was called a zone that is open read-only, and what was told to do about that led nowhere.
    let other = scratch.mount_point("other");
    run(&format!("mount {disk}:home {other}"))
        .fails(32, &["is no zone, and has no volumes", "nothing was mounted"]);
    run(&format!("umount {dir}")).ok();
}

/// Inodes of 128 bytes have whole seconds: the kernel kept finer ones, which were others behind the next mount.
#[test]
fn times_of_small_inodes_were_finer_until_the_next_mount() {
    let Some((scratch, zone, disk, dir)) = place() else { return };
    let at = |name: &str| scratch.path("mnt").join(name);
    shell(&format!("mke2fs -q -F -t ext4 -I 128 {disk}")).ok();
    run(&format!("attach {zone}:disk {disk}")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    let times = || {
        use std::os::unix::fs::MetadataExt;
        let of = |name: &str| fs::metadata(at(name)).unwrap();
        ["made", "written", "dir"]
            .map(of)
            .map(|of| (of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec()))
    };
    fs::write(at("made"), "").unwrap();
    fs::create_dir(at("dir")).unwrap();
    for n in 0..20 {
        fs::write(at("written"), vec![n; 5000]).unwrap();
        fs::write(at(&format!("dir/{n}")), "").unwrap();
    }
    let before = times();
    assert!(before.iter().all(|(_, modified, _, changed)| (*modified, *changed) == (0, 0)), "{before:?}");
    run(&format!("umount {dir}")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    assert_eq!(times(), before);
    run(&format!("umount {dir}")).ok();
    run(&format!("detach {zone}:disk")).ok();
    e2fsck(&disk);
}

/// A disk that was named from the directory where it is was looked for in the server's.
#[test]
fn a_disk_named_by_a_relative_path_is_found_by_a_server_that_runs_elsewhere() {
    let Some((scratch, zone, disk, dir)) = place() else { return };
    let here = scratch.path("");
    let from_here = |line: &str| {
        let arguments: Vec<&str> = line.split(' ').collect();
        Run::of(Command::new(PROGRAM).args(arguments).current_dir(&here).output().unwrap())
    };
    run(&format!("mkfs {zone}:home --size 16M")).ok();
    let home = scratch.mount_point("home");
    from_here("attach nvm:disk disk --size 12M").ok();
    assert_eq!(run(&format!("info {zone}:disk --json")).ok().json()["disk"], disk);
    run(&format!("detach {zone}:disk")).ok();
    from_here("attach nvm:disk ./disk").ok();
    // This server's directory is the root directory.
    from_here("mount nvm:home home").ok();
    from_here("mount nvm:disk mnt").ok();
    fs::write(Path::new(&dir).join("file"), "text").unwrap();
    from_here("umount mnt").ok();
    fs::rename(&disk, scratch.path("moved")).unwrap();
    from_here("mount nvm:disk mnt").fails(32, &["disk=DISK"]);
    from_here("mount nvm:disk mnt -o disk=moved").ok();
    assert_eq!(fs::read(Path::new(&dir).join("file")).unwrap(), b"text");
    from_here("umount mnt").ok();
    run(&format!("umount {home}")).ok();
    // It had to be said again each time where the disk is.
    assert_eq!(run(&format!("info {zone}:disk --json")).ok().json()["disk"], scratch.text("moved"));
    from_here("mount nvm:disk mnt").ok();
    from_here("umount mnt").ok();
    from_here("detach nvm:disk").ok();
    e2fsck(&scratch.text("moved"));
}

/// Such a name was cut. Where that parted a character, nobody could read any more which disk the volume had, and the disk had its mark.
#[test]
fn a_disk_with_a_long_name_was_out_of_reach_once_it_was_attached() {
    let Some((scratch, zone, disk, _)) = place() else { return };
    let mut dir = scratch.path("");
    // One of two lengths parts a character behind 1024 bytes.
    for name in ["x", "xx"].map(|first| format!("{first}{}", format!("/{}", "é".repeat(80)).repeat(7))) {
        dir.push(name);
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("disk").display().to_string();
        fs::copy(&disk, &path).unwrap();
        run(&format!("attach {zone}:disk {path} --size 12M"))
            .fails(1, &["a volume keeps 1024 at most", "nothing was changed", "a link to it"]);
        e2fsck(&path);
        dir = scratch.path("");
    }
}

/// It was, and what was written went nowhere.
#[test]
fn a_volume_whose_disk_became_read_only_is_not_mounted_to_be_written() {
    let Some((scratch, zone, disk, dir)) = place() else { return };
    run(&format!("attach {zone}:disk {disk}")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    fs::write(Path::new(&dir).join("file"), "text").unwrap();
    run(&format!("umount {dir}")).ok();
    let device = shell(&format!("losetup -r -f --show {disk}")).ok().out.trim().to_string();
    run(&format!("mount {zone}:disk {dir} -o disk={device}")).fails(32, &["read-only", "-o ro"]);
    run(&format!("mount {zone}:disk {dir} -o ro,disk={device}")).ok();
    assert_eq!(fs::read(Path::new(&dir).join("file")).unwrap(), b"text");
    run(&format!("umount {dir}")).ok();
    shell(&format!("losetup -d {device}")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    run(&format!("umount {dir}")).ok();
    run(&format!("detach {zone}:disk")).ok();
    e2fsck(&disk);
    drop(scratch);
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let Some((scratch, zone, disk, dir)) = place() else { return };
    run(&format!("attach {zone}:disk")).fails(2, &["DISK"]);
    run(&format!("attach {zone}:disk {}", scratch.text("nothing")))
        .fails(1, &["opening the disk", "nothing was changed"]);
    fs::write(scratch.path("zeros"), vec![0; 1 << 20]).unwrap();
    // The zone was changed by each of them: a volume was made, and removed.
    let before = fs::read(&zone).unwrap();
    run(&format!("attach {zone}:disk {}", scratch.text("zeros")))
        .fails(1, &["no ext2, ext3 or ext4 here, but zeros", "nothing was changed"]);
    run(&format!("attach {zone}:disk {disk} --size 4M"))
        .fails(1, &["takes 8 MiB at least", "nothing was changed"]);
    assert!(fs::read(&zone).unwrap() == before, "the zone was changed");
    run(&format!("attach {zone}:disk {disk} --size 12M")).ok();
    run(&format!("attach {zone}:disk {disk}"))
        .fails(1, &["has a disk", "zone remove-volume ZONE disk --force"]);
    run(&format!("attach {zone}:other {disk} --size 12M"))
        .fails(1, &["newest metadata of this disk is in NVM"]);
    run(&format!("info {disk}")).ok();

    // Another disk, and this one as it was before.
    let copy = scratch.text("copy");
    shell(&format!("truncate -s 64M {copy} && mke2fs -q -F -t ext4 {copy}")).ok();
    run(&format!("mount {zone}:disk {dir} -o disk={copy}")).fails(32, &["its UUID is"]);
    // Where it was there is another one now, which did not say that it may be elsewhere.
    let aside = scratch.text("aside");
    fs::rename(&disk, &aside).unwrap();
    for there in [&copy, &scratch.text("zeros")] {
        fs::copy(there, &disk).unwrap();
        run(&format!("mount {zone}:disk {dir}"))
            .fails(32, &["opening the volume", "say where: -o disk=DISK"]);
    }
    fs::rename(&aside, &disk).unwrap();
    run(&format!("mount {zone}:disk {dir} -o snapshot=x")).fails(32, &["no snapshots"]);
    run(&format!("mount {zone}:disk {dir} -o fetch=never")).fails(1, &["choose eager or touch"]);
    run(&format!("snapshot take {zone}:disk x")).fails(1, &["ext"]);
    let moved = scratch.text("moved");
    fs::rename(&disk, &moved).unwrap();
    let if_lost = format!("if it is lost, 'amberfs zone remove-volume {zone} disk --force'");
    run(&format!("mount {zone}:disk {dir}")).fails(32, &["disk=DISK", &if_lost]);
    let forgiven = run(&format!("mount -v {zone}:disk {dir} -o nofail")).ok().out;
    assert!(forgiven.contains("nothing was mounted: 'nofail'"), "{forgiven}");
    run(&format!("mount {zone}:disk {dir} -o nofail,disk={}", scratch.text("gone"))).ok();
    run(&format!("detach {zone}:disk")).fails(1, &["--disk DISK", &if_lost]);
    run(&format!("mount {zone}:disk {dir} -o disk={moved}")).ok();
    fs::write(Path::new(&dir).join("file"), "text").unwrap();
    run(&format!("umount {dir}")).ok();
    run(&format!("detach {zone}:disk --disk {moved}")).ok();
    run(&format!("mount {zone}:disk {dir}")).fails(32, &["has no disk", "amberfs attach"]);
    run(&format!("detach {zone}:disk")).fails(1, &["has no disk"]);
    e2fsck(&moved);

    // The NVM is lost.
    run(&format!("attach {zone}:disk {moved}")).ok();
    fs::remove_file(&zone).unwrap();
    assert!(run(&format!("attach --force-from-disk {moved}")).ok().out.contains("e2fsck -f"));
    assert!(run(&format!("attach --force-from-disk {moved}")).ok().out.contains("no mark"));
    run(&format!("zone create {zone} --size 40M")).ok();
    run(&format!("attach {zone}:disk {moved}")).fails(1, &["not unmounted cleanly", "e2fsck"]);
    // The check that it asks for is made without being forced.
    let checked = Command::new("e2fsck").args(["-p", &moved]).output().unwrap();
    assert!(checked.status.code() < Some(2), "{checked:?}");
    run(&format!("attach {zone}:disk {moved}")).ok();

    // The NVM is given up, and there still: nothing is left to detach.
    run(&format!("mount {zone}:disk {dir}")).ok();
    fs::write(Path::new(&dir).join("other"), "text").unwrap();
    run(&format!("umount {dir}")).ok();
    let forced = run(&format!("attach --force-from-disk {moved}")).ok().out;
    assert!(forced.contains("amberfs zone remove-volume ZONE VOLUME --force"), "{forced}");
    let checked = Command::new("e2fsck").args(["-p", &moved]).output().unwrap();
    assert!(checked.status.code() < Some(2), "{checked:?}");
    for refused in [format!("detach {zone}:disk"), format!("attach {zone}:disk {moved}")] {
        run(&refused).fails(1, &["amberfs zone remove-volume ZONE disk --force"]);
    }
    run(&format!("zone remove-volume {zone} disk --force")).ok();
    run(&format!("attach {zone}:disk {moved}")).ok();
}

/// In a zone whose free bytes are in pieces, and for a disk whose journal leaves it as it cannot be taken, a volume was made and removed again.
#[test]
fn what_cannot_be_attached_leaves_the_zone_as_it_was() {
    let Some((scratch, zone, disk, _)) = place() else { return };
    let other = scratch.text("other");
    fs::copy(&disk, &other).unwrap();
    run(&format!("mkfs {zone}:first --size 16M")).ok();
    run(&format!("mkfs {zone}:second --size 16M")).ok();
    run(&format!("zone remove-volume {zone} first --force")).ok();
    run(&format!("attach {zone}:other {other} --size 10M")).ok();
    let before = fs::read(&zone).unwrap();
    let unchanged = || assert!(fs::read(&zone).unwrap() == before, "the zone was changed");
    run(&format!("attach {zone}:disk {disk}"))
        .fails(1, &["its largest free piece has 6 MiB of 12 MiB", "8 MiB at least", "nothing was changed"]);
    unchanged();
    run(&format!("attach {zone}:disk {disk} --size 12M"))
        .fails(1, &["the largest gap has 6291456", "nothing was changed"]);
    unchanged();
    run(&format!("zone remove-volume {zone} second --force")).ok();
    let before = fs::read(&zone).unwrap();
    shell(&format!(
        "debugfs -w -R 'set_super_value state 0' {disk} && debugfs -w -R 'feature needs_recovery' {disk}"
    ))
    .ok();
    run(&format!("attach {zone}:disk {disk}")).fails(1, &["not unmounted cleanly", "e2fsck"]);
    assert!(fs::read(&zone).unwrap() == before, "the zone was changed");
    assert_eq!(Command::new("e2fsck").args(["-fy", &disk]).status().unwrap().code(), Some(1));
    run(&format!("attach {zone}:disk {disk}")).ok();
}

/// Who named a wrong disk was told to make room for it first.
#[test]
fn a_disk_that_cannot_be_attached_is_told_before_the_room_that_it_lacks() {
    let Some((scratch, zone, disk, _)) = place() else { return };
    run(&format!("mkfs {zone}:full")).ok();
    let plain = scratch.text("plain");
    fs::write(&plain, vec![0; 1 << 20]).unwrap();
    for rest in ["", " --size 1G"] {
        let wrong =
            run(&format!("attach {zone}:disk {plain}{rest}")).fails(1, &["no ext2, ext3 or ext4 here"]);
        assert!(!wrong.err.contains("no room"), "{}", wrong.err);
        run(&format!("attach {zone}:disk {disk}{rest}")).fails(1, &["no room", "nothing was changed"]);
    }
}

/// 8 MiB of NVM for a disk of 8 GiB were taken without a word.
#[test]
fn a_disk_with_more_metadata_than_nvm_is_attached_with_a_word_and_works() {
    let Some((scratch, _, disk, dir)) = place() else { return };
    let zone = scratch.text("large");
    run(&format!("zone create {zone} --size 256M")).ok();
    fs::remove_file(&disk).unwrap();
    shell(&format!("truncate -s 8G {disk} && mke2fs -q -F -t ext4 -J size=4 {disk}")).ok();
    run(&format!("attach {zone}:disk {disk} --size 6M")).fails(1, &["takes 8 MiB at least", "MiB hold all"]);
    let told = run(&format!("attach {zone}:disk {disk} --size 8M")).ok().out;
    assert!(told.contains("with all inodes in use") && told.contains("have room for all of it"), "{told}");
    let info = run(&format!("info {zone}:disk --json")).ok().json();
    // 64 groups: descriptors, two bitmaps each, 8192 inodes of 256 bytes each.
    let fixed = 4096 + 4096 + 64 * (2 * 4096 + 8192 * 256);
    assert_eq!(info["fixed_metadata_bytes"], fixed);
    assert_eq!(info["has_room_for_all_of_it"], false);
    // It works: all inodes of a group and more, where there are frames for 1,500 blocks.
    run(&format!("mount {zone}:disk {dir}")).ok();
    shell(&format!(
        "cd {dir} && for d in $(seq 40); do mkdir $d; seq 50 | (cd $d && xargs touch); done; sync -f {dir}"
    ))
    .ok();
    run(&format!("umount {dir}")).ok();
    run(&format!("detach {zone}:disk")).ok();
    e2fsck(&disk);
    run(&format!("zone remove-volume {zone} disk --force")).ok();

    let all = info["bytes_for_all_of_it"].as_u64().unwrap();
    assert!((fixed..fixed * 3 / 2).contains(&all), "{all}");
    let told = run(&format!("attach {zone}:disk {disk} --size {all}")).ok().out;
    assert!(told.contains("is attached") && !told.contains("all inodes"), "{told}");
    assert_eq!(run(&format!("info {zone}:disk --json")).ok().json()["has_room_for_all_of_it"], true);
    run(&format!("detach {zone}:disk")).ok();
}

/// The kernel took what a program wrote to a full disk for as long as it did, and `write` never failed.
#[test]
fn writing_without_end_to_a_full_disk_never_failed() {
    let Some((scratch, zone, disk, dir)) = place() else { return };
    run(&format!("attach {zone}:disk {disk} --size 24M")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    let mut file = fs::File::create(scratch.path("mnt/endless")).unwrap();
    let mut written = 0u64;
    let error = loop {
        match file.write(&[7; 1 << 20]) {
            Ok(some) => written += some as u64,
            Err(error) => break error,
        }
        assert!(written < 4 << 30, "{written} bytes on a disk of 64 MiB");
    };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "after {written} bytes");
    drop(file);
    fs::remove_file(scratch.path("mnt/endless")).unwrap();
    fs::write(scratch.path("mnt/again"), vec![7; 1 << 20]).unwrap();
    run(&format!("umount {dir}")).ok();
    run(&format!("detach {zone}:disk")).ok();
    e2fsck(&disk);
}

/// What the kernel asks for is refused at once; what it takes into its pages, when it is written back.
#[test]
fn what_goes_beyond_the_largest_file_is_refused_on_a_mount() {
    let Some((scratch, zone, disk, dir)) = place() else { return };
    shell(&format!("mke2fs -q -F -t ext2 -b 1024 {disk}")).ok();
    run(&format!("attach {zone}:disk {disk} --size 24M")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    let most = (12 + 256 + (1 << 16) + (1 << 24)) * 1024;
    let is_refused = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::FileTooLarge);
    };
    let path = scratch.path("mnt/large");
    let file = fs::File::create(&path).unwrap();
    is_refused(file.set_len(most + 1));
    let flags = rustix::fs::FallocateFlags::empty();
    is_refused(rustix::fs::fallocate(&file, flags, most, 1).map_err(Into::into));
    file.write_all_at(b"0123456789", most - 3).unwrap();
    is_refused(file.sync_all());
    is_refused(file.write_at(b"x", most).map(drop));
    file.set_len(most).unwrap();
    file.sync_all().unwrap();
    drop(file);
    run(&format!("umount {dir}")).ok();
    run(&format!("detach {zone}:disk")).ok();
    e2fsck(&disk);
    shell(&format!("mount -o loop {disk} {dir}")).ok();
    let mut end = [0; 4];
    fs::File::open(&path).unwrap().read_exact_at(&mut end, most - 4).unwrap();
    shell(&format!("umount {dir}")).ok();
    assert_eq!(&end, b"\x00012");
}

/// What an operation finds damaged is told, and noted on the disk: whoever has it next looks at all of it.
#[test]
fn damage_that_is_met_is_on_record() {
    let Some((_scratch, zone, disk, dir)) = place() else { return };
    shell(&format!("mke2fs -q -F -t ext4 {disk} && debugfs -w -R 'mknod lost p' {disk} && debugfs -w -R 'clri lost' {disk}")).ok();
    run(&format!("attach {zone}:disk {disk}")).ok();
    let has_errors = || run(&format!("info {zone}:disk --json")).ok().json()["has_errors"].clone();
    assert_eq!(has_errors(), false);
    run(&format!("mount {zone}:disk {dir}")).ok();
    let stats = || run(&format!("stats {dir} --json")).ok().json();
    assert_eq!(stats()["ext"]["damage_met"], 0, "{}", stats());
    shell(&format!("stat {dir}/lost")).fails(1, &["needs cleaning"]);
    shell(&format!("echo sound > {dir}/other")).ok();
    let told = stats();
    assert!(told["ext"]["damage_met"].as_u64() > Some(0), "{told}");
    assert!(told["ext"]["damage_first"].as_str().unwrap().contains("'lost'"), "{told}");
    run(&format!("umount {dir}")).ok();
    assert_eq!(has_errors(), true);
    let detached = run(&format!("detach {zone}:disk")).ok().out;
    assert!(
        detached.contains(&format!("damage was found in it: before anything else, e2fsck -f {disk}")),
        "{detached}"
    );
    run(&format!("attach {zone}:disk {disk}")).fails(1, &["marked as having errors", "e2fsck -f"]);
    // What preens a disk at boot does not pass it over.
    let preened = Command::new("e2fsck").args(["-p", &disk]).output().unwrap();
    assert_eq!(preened.status.code(), Some(1), "what was wrong is corrected: {preened:?}");
    run(&format!("attach {zone}:disk {disk}")).ok();
    assert_eq!(has_errors(), false);
}

/// What is measured in process goes the way of the mount, and leaves the disk as it was.
#[test]
fn an_attached_disk_is_measured_in_process() {
    let Some((_scratch, zone, disk, _dir)) = place() else { return };
    run(&format!("attach {zone}:disk {disk}")).ok();
    let line = format!("bench {zone}:disk --turns 20 --rounds 1 -w varmail:files=20,threads=2");
    let json = run(&format!("{line} --json")).ok().json();
    assert_eq!(json["targets"][0]["about"], format!("{disk} with its metadata in NVM, in process"));
    let rate = &json["figures"][0]["series"][0]["per_second"]["median"];
    assert!(rate.as_f64().is_some_and(|rate| rate > 0.0), "{json}");
    run(&format!("{line} -w read:size=1G")).fails(1, &["is full", "what the benchmark made is gone again"]);
    run(&format!("fsck {zone}:disk")).ok();
    run(&format!("detach {zone}:disk")).ok();
    e2fsck(&disk);
    run(&line).fails(1, &["has no disk"]);
}

/// What is written may come to its place only when it is unmounted: damage that is met then is noted, too.
#[test]
fn damage_that_is_met_while_unmounting_is_on_record() {
    let Some((scratch, zone, disk, dir)) = place() else { return };
    let shown = shell(&format!("dumpe2fs {disk} 2>/dev/null")).ok().out;
    let bitmap = shown.split("Block bitmap at ").nth(1).unwrap().split(' ').next().unwrap();
    let at = bitmap.parse::<u64>().unwrap() * 1024 + 10;
    let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
    file.write_all_at(&[0x55], at).unwrap();
    drop(file);
    run(&format!("attach {zone}:disk {disk}")).ok();
    run(&format!("mount {zone}:disk {dir} -o commit=3600")).ok();
    fs::write(scratch.path("mnt/late"), vec![7; 100_000]).unwrap();
    run(&format!("umount {dir}")).ok();
    assert_eq!(run(&format!("info {zone}:disk --json")).ok().json()["has_errors"], true);
    run(&format!("mount {zone}:disk {dir}")).ok();
    assert_eq!(fs::read(scratch.path("mnt/late")).unwrap(), vec![7; 100_000], "others had room");
    run(&format!("umount {dir}")).ok();
    assert!(run(&format!("detach {zone}:disk")).ok().out.contains("damage was found"));
}

/// Damage among what was committed: nothing is mounted before somebody has said that it may be given up.
#[test]
fn a_damaged_log_is_told_and_given_up_when_asked() {
    let Some((scratch, zone, disk, dir)) = place() else { return };
    let at = |n: usize| scratch.path("mnt").join(format!("file {n}"));
    let content = |n: usize| format!("synced as number {n};").repeat(50).into_bytes();
    run(&format!("attach {zone}:disk {disk}")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    for n in 0..10 {
        let mut file = fs::File::create(at(n)).unwrap();
        file.write_all(&content(n)).unwrap();
        file.sync_all().unwrap();
    }
    kill(&server_of(&dir));
    run(&format!("umount {dir}")).ok();
    let bytes = fs::read(&zone).unwrap();
    let record = bytes.windows(content(4).len()).position(|bytes| bytes == content(4)).unwrap();
    let damage = |at| fs::File::options().write(true).open(&zone).unwrap().write_all_at(b"?", at).unwrap();
    damage(record as u64);
    let words = ["its log in NVM is damaged", "nothing was changed", "fsck --repair"];
    run(&format!("mount {zone}:disk {dir}")).fails(32, &words);
    run(&format!("detach {zone}:disk")).fails(1, &words);
    for how in ["", "-p"] {
        let told = run(&format!("fsck {how} {zone}:disk")).fails(4, &[]).out;
        for word in
            ["its log in NVM is damaged", "(left)", "all else, was not checked", "amberfs fsck --repair"]
        {
            assert!(told.contains(word), "{word}: {told}");
        }
    }
    assert_eq!(run(&format!("fsck {zone}:disk --json")).fails(4, &[]).json()["log_damaged"], true);
    let told = run(&format!("fsck --repair {zone}:disk")).fails(5, &[]).out;
    assert!(told.contains("(repaired with loss)") && told.contains("e2fsck -f on the disk"), "{told}");
    run(&format!("mount {zone}:disk {dir}")).ok();
    for n in (0..10).filter(|n| *n != 4) {
        assert_eq!(fs::read(at(n)).unwrap(), content(n));
    }
    run(&format!("umount {dir}")).ok();
    let detached = run(&format!("detach {zone}:disk")).ok().out;
    assert!(detached.contains("damage was found in it"), "{detached}");
    shell(&format!("e2fsck -fy {disk}; test $? -le 1")).ok();
    e2fsck(&disk);
}
