//! Disks in use by the commands: several of one zone at once, one at the end of a network, one that vanishes and comes back.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value as Json;

#[path = "../../disk/tests/servers/mod.rs"]
mod servers;

use crate::support::mounted::shell;
use crate::support::{PROGRAM, Scratch, can_mount, eventually, run};
use servers::NbdServer;

/// A scratch directory, a zone in it, and as many disks with an ext4 on them, of which each has a file.
fn place(disks: usize) -> Option<(Scratch, String, Vec<String>)> {
    can_mount().then(|| {
        let scratch = Scratch::new();
        let zone = scratch.text("nvm");
        run(&format!("zone create {zone} --size 64M")).ok();
        let disk = |n: usize| {
            let disk = scratch.text(&format!("disk-{n}"));
            shell(&format!("truncate -s 64M {disk} && mke2fs -q -F -t ext4 {disk}")).ok();
            disk
        };
        let disks = (0..disks).map(disk).collect();
        (scratch, zone, disks)
    })
}

fn e2fsck(disk: &str) {
    shell(&format!("e2fsck -fn {disk}")).ok();
}

/// Makes files in a directory, each of which is synced.
fn write_files(dir: &str, from: usize, to: usize) {
    for n in from..to {
        let mut file = File::create(Path::new(dir).join(format!("file-{n}"))).unwrap();
        file.write_all(&contents(n)).unwrap();
        file.sync_all().unwrap();
    }
}

fn contents(n: usize) -> Vec<u8> {
    (0..n * 97 % 20_000).map(|at| (at * 31 + n) as u8).collect()
}

fn check_files(dir: &str, to: usize) {
    for n in 0..to {
        let read = fs::read(Path::new(dir).join(format!("file-{n}"))).unwrap();
        assert!(read == contents(n), "file-{n} in {dir}");
    }
}

/// What a plain disk has, by the kernel.
fn check_plain(scratch: &Scratch, disk: &str, to: usize) {
    e2fsck(disk);
    let dir = scratch.text("plain");
    fs::create_dir_all(&dir).unwrap();
    shell(&format!("mount -o loop,ro {disk} {dir}")).ok();
    check_files(&dir, to);
    shell(&format!("umount {dir}")).ok();
}

/// One server has them all; what comes and goes beside does not disturb it.
#[test]
fn two_disks_of_one_zone_are_mounted_at_once_and_written() {
    let Some((scratch, zone, disks)) = place(3) else { return };
    let dirs: Vec<String> = (0..3).map(|n| scratch.mount_point(&format!("mnt-{n}"))).collect();
    for (n, (dir, disk)) in dirs[..2].iter().zip(&disks).enumerate() {
        run(&format!("attach {zone}:disk-{n} {disk} --size 12M")).ok();
        run(&format!("mount {zone}:disk-{n} {dir}")).ok();
    }
    std::thread::scope(|scope| {
        for dir in &dirs[..2] {
            scope.spawn(|| write_files(dir, 0, 150));
        }
        // Beside them, by their server: it was refused while any volume of the zone was mounted.
        let third = format!("attach {zone}:disk-2 {} --size 12M", disks[2]);
        assert!(run(&third).ok().out.contains("is attached"));
        run(&third).fails(1, &["has a disk", "nothing was changed"]);
        run(&format!("mount {zone}:disk-2 {}", dirs[2])).ok();
        write_files(&dirs[2], 0, 30);
        run(&format!("detach {zone}:disk-2")).fails(1, &["is mounted on", "umount"]);
        run(&format!("umount {}", dirs[2])).ok();
        run(&format!("detach {zone}:disk-2")).ok();
    });
    let dirs = &dirs[..2];
    let pids: Vec<_> =
        dirs.iter().map(|dir| run(&format!("stats {dir} --json")).ok().json()["pid"].clone()).collect();
    assert_eq!(pids[0], pids[1]);
    // One is killed with the other.
    shell(&format!("kill -9 {}", pids[0])).ok();
    eventually("the server's end", || {
        fs::read_dir(format!("/proc/{}/fd", pids[0])).map_or(true, |mut fds| fds.next().is_none())
    });
    for (n, dir) in dirs.iter().enumerate() {
        run(&format!("umount {dir}")).ok();
        run(&format!("mount {zone}:disk-{n} {dir}")).ok();
        check_files(dir, 150);
        write_files(dir, 150, 200);
    }
    // The one with the other still mounted, and the last.
    run(&format!("umount --detach {}", dirs[0])).ok();
    check_plain(&scratch, &disks[0], 200);
    check_files(&dirs[1], 200);
    run(&format!("umount --detach {}", dirs[1])).ok();
    for (disk, to) in disks.iter().zip([200, 200, 30]) {
        check_plain(&scratch, disk, to);
    }
    run(&format!("mkfs {zone}:home --size 16M")).ok();
    run(&format!("mount {zone}:home {}", dirs[0])).ok();
    run(&format!("umount --detach {}", dirs[0])).fails(32, &["has no disk", "stays mounted"]);
    run(&format!("umount {}", dirs[0])).ok();
}

/// What the server of the disk had of its own goes with it: it caches, and is killed.
fn forgetful(image: &str) -> NbdServer {
    NbdServer::nbdkit(&["--filter=cache", "file", &format!("file={image}"), "cache=writeback"])
}

#[test]
fn a_disk_at_the_end_of_a_network_is_attached_mounted_and_detached() {
    let Some((scratch, zone, disks)) = place(1) else { return };
    let dir = scratch.mount_point("mnt");
    let server = forgetful(&disks[0]);
    let uri = &server.uri;
    assert_eq!(run(&format!("info {uri} --json")).ok().json()["kind"], "ext4");
    run(&format!("attach {zone}:disk {uri} --size 12M")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    write_files(&dir, 0, 100);
    run(&format!("umount {dir}")).ok();
    run(&format!("mount -o ro {uri} {dir}")).fails(32, &["newest metadata of this disk is in NVM"]);
    run(&format!("mount {zone}:disk {dir}")).ok();
    check_files(&dir, 100);
    run(&format!("umount --detach {dir}")).ok();
    run(&format!("mount -o ro {uri} {dir}")).ok();
    check_files(&dir, 100);
    run(&format!("umount {dir}")).ok();
    drop(server);
    check_plain(&scratch, &disks[0], 100);
}

#[test]
fn a_disk_that_vanishes_below_a_mount_comes_back_without_loss() {
    let Some((scratch, zone, disks)) = place(1) else { return };
    let dir = scratch.mount_point("mnt");
    let mut server = forgetful(&disks[0]);
    run(&format!("attach {zone}:disk {} --size 12M", server.uri)).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    write_files(&dir, 0, 50);
    server.kill();
    // What NVM has room for needs no disk; what it has not fails, and says so.
    write_files(&dir, 50, 60);
    let large = Path::new(&dir).join("large");
    let mut file = File::create(&large).unwrap();
    let refused = file.write_all(&vec![7; 8 << 20]).and_then(|()| file.sync_all()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(5), "EIO: {refused}");
    drop(file);
    let gone = || run(&format!("stats {dir} --json")).ok().json()["ext"]["disk_gone"].clone();
    assert!(gone().as_str().is_some_and(|why| !why.is_empty()), "{}", gone());
    // Unmounted without its disk: what NVM has stays there, and that not all went well is said; its server had ended before that.
    let lost = "MiB that were written and never synced are lost";
    let if_lost = format!("if it is lost, 'amberfs zone remove-volume {zone} disk --force'");
    run(&format!("umount {dir}")).fails(2, &["it is unmounted", lost, &if_lost]);
    run(&format!("mount {zone}:disk {dir}")).fails(32, &["opening the disk"]);
    server.again();
    assert!(run(&format!("mount {zone}:disk {dir}")).ok().out.contains("replayed"));
    check_files(&dir, 60);
    // And below a mount that stays: the server of the disk is found again.
    server.kill();
    server.again();
    eventually("the disk's return", || {
        let file = File::create(&large).and_then(|mut file| {
            file.write_all(&vec![7; 8 << 20])?;
            file.sync_all()
        });
        file.is_ok()
    });
    assert!(gone().is_null(), "{}", gone());
    write_files(&dir, 60, 80);
    run(&format!("umount --detach {dir}")).ok();
    drop(server);
    check_plain(&scratch, &disks[0], 80);
}

/// It said that 0 B were lost.
#[test]
fn unmounting_without_the_disk_loses_nothing_that_was_synced_and_says_nothing_of_it() {
    let Some((scratch, zone, disks)) = place(1) else { return };
    let dir = scratch.mount_point("mnt");
    let mut server = forgetful(&disks[0]);
    run(&format!("attach {zone}:disk {} --size 12M", server.uri)).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    write_files(&dir, 0, 20);
    server.kill();
    let told = run(&format!("umount {dir}")).fails(2, &["what was synced is in NVM and on the disk\n"]);
    assert!(!told.err.contains("are lost"), "{}", told.err);
    server.again();
    run(&format!("mount {zone}:disk {dir}")).ok();
    check_files(&dir, 20);
    run(&format!("umount --detach {dir}")).ok();
    drop(server);
    check_plain(&scratch, &disks[0], 20);
}

/// The server held its lock while it looked for the disk of one volume: half a minute for every command about another.
#[test]
fn a_disk_that_does_not_answer_keeps_no_other_volume_waiting() {
    let Some((scratch, zone, disks)) = place(1) else { return };
    let (dir, home) = (scratch.mount_point("mnt"), scratch.mount_point("home"));
    let server = forgetful(&disks[0]);
    run(&format!("attach {zone}:disk {} --size 12M", server.uri)).ok();
    run(&format!("mkfs {zone}:home --size 16M")).ok();
    run(&format!("mount {zone}:home {home}")).ok();
    server.signal("STOP");
    let mut mounting = Command::new(PROGRAM).args(["mount", &format!("{zone}:disk"), &dir]).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    run(&format!("stats {home}")).ok();
    run(&format!("info {zone}:home")).ok();
    run(&format!("snapshot take {home} one")).ok();
    assert!(mounting.try_wait().unwrap().is_none(), "it waits for the disk, and nobody for it");
    server.signal("CONT");
    assert!(mounting.wait().unwrap().success());
    write_files(&dir, 0, 10);
    run(&format!("umount {dir}")).ok();
    run(&format!("umount {home}")).ok();
    run(&format!("detach {zone}:disk")).ok();
    drop(server);
    check_plain(&scratch, &disks[0], 10);
}

/// Of such a disk, `df` showed the size of its NVM and no use.
#[test]
fn the_use_of_an_unmounted_disk_at_the_end_of_a_network_is_told_if_it_answers() {
    let Some((scratch, zone, disks)) = place(1) else { return };
    let dir = scratch.mount_point("mnt");
    let mut server = forgetful(&disks[0]);
    run(&format!("attach {zone}:disk {} --size 12M", server.uri)).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    write_files(&dir, 0, 20);
    let row = |of: &str| run(&format!("df {of} --json")).ok().json()["volumes"][0].clone();
    run(&format!("umount {dir}")).ok();
    let at_rest = row(&format!("{zone}:disk"));
    run(&format!("mount {zone}:disk {dir} -o ro")).ok();
    let mounted = row(&dir);
    run(&format!("umount {dir}")).ok();
    for key in ["bytes", "used_bytes", "free_bytes", "used_percent", "files"] {
        assert!(at_rest[key].as_u64() > Some(0) && at_rest[key] == mounted[key], "{at_rest} {mounted}");
    }
    let uri = server.uri.clone();
    let is_not_known = || {
        let told = run(&format!("df {zone}:disk --json")).ok();
        assert!(told.err.contains("how much of it is used is not known"), "{}", told.err);
        let row = &told.json()["volumes"][0];
        assert_eq!((&row["bytes"], &row["used_bytes"]), (&(64 << 20).into(), &Json::Null));
        let told = run(&format!("info {zone}:disk --json")).ok().json();
        assert!(told["use_not_known"].as_str().unwrap().contains(&uri), "{told}");
        assert_eq!(told["free_bytes"], Json::Null);
    };
    server.signal("STOP");
    is_not_known();
    server.kill();
    is_not_known();
}

/// Their sockets had the process's number in their names: the second server took the first one's away.
#[test]
fn servers_of_disks_in_two_containers_have_sockets_of_their_own() {
    let Some((scratch, _, disks)) = place(2) else { return };
    let mut servers = Vec::new();
    let dirs = [scratch.mount_point("one"), scratch.mount_point("two")];
    for (disk, dir) in disks.iter().zip(&dirs) {
        let mut server = Command::new("unshare");
        server.args([
            "--pid",
            "--fork",
            "--kill-child",
            PROGRAM,
            "mount",
            "--foreground",
            "-o",
            "ro",
            disk,
            dir,
        ]);
        servers.push(server.stdout(Stdio::null()).spawn().unwrap());
        eventually("it mounts", || run(&format!("stats {dir}")).code == 0);
    }
    for (disk, dir) in disks.iter().zip(&dirs) {
        let stats = run(&format!("stats {dir} --json")).ok().json();
        assert_eq!((&stats["volume"], &stats["pid"]), (&disk.clone().into(), &1.into()));
        run(&format!("umount {dir}")).ok();
    }
    for mut server in servers {
        assert!(server.wait().unwrap().success());
    }
}
