//! A mount whose medium cannot be read any more.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::attached::{kill, server_of};
use crate::support::mounted::{place, shell};
use crate::support::{PROGRAM, Scratch, can_mount, eventually, run};

/// Success, or an I/O error; what is there is not missing.
#[track_caller]
fn right_or_unreadable<T>(answer: io::Result<T>) -> bool {
    match answer {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
            false
        }
    }
}

/// Names that exist were not found, the root was stale, `stats` found no server, and `umount` said "in use".
#[test]
fn a_zone_cut_short_under_its_mount_lost_names() {
    let Some((scratch, zone, dir)) = place() else { return };
    let whole = scratch.path("whole");
    run(&format!("mount {zone}:home {dir}")).ok();
    let large = Path::new(&dir).join("d");
    fs::create_dir(&large).unwrap();
    for number in 0..2000 {
        fs::write(large.join(format!("file-{number}")), b"small").unwrap();
    }
    fs::write(Path::new(&dir).join("large"), vec![7; 10 << 20]).unwrap();
    run(&format!("umount {dir}")).ok();
    fs::copy(&zone, &whole).unwrap();
    for bytes in [8 << 20, 5 << 20, 1500 << 10] {
        fs::copy(&whole, &zone).unwrap();
        run(&format!("mount {zone}:home {dir}")).ok();
        File::options().write(true).open(&zone).unwrap().set_len(bytes).unwrap();
        let mut all = right_or_unreadable(fs::metadata(large.join("file-1999")));
        all &=
            right_or_unreadable(fs::read_dir(&large).and_then(|list| list.collect::<io::Result<Vec<_>>>()));
        all &= right_or_unreadable(File::create(large.join("new")));
        all &= right_or_unreadable(fs::read(Path::new(&dir).join("large")));
        // After this the kernel asks for the root directory anew.
        all &= right_or_unreadable(File::create(Path::new(&dir).join("new")));
        right_or_unreadable(fs::metadata(&dir));
        assert!(!all, "{bytes} bytes left, and all could be read");
        let stats = run(&format!("stats {dir} --json")).ok();
        assert_eq!(stats.json()["dir"], dir.as_str());
        let df = run(&format!("df {dir} --json")).ok();
        assert_eq!(df.json()["volumes"][0]["mounted"], dir.as_str());
        run(&format!("info {zone}:home"))
            .fails(1, &["was cut short while it was in use", "the medium failed"]);
        // The server tells that it could not write the last checkpoint; there is no mount any more.
        run(&format!("umount {dir}")).fails(2, &["the medium failed", "it is unmounted"]);
        run(&format!("umount {dir}")).fails(32, &["not a mount point"]);
    }
}

/// Of a zone without a byte left `umount` said that a node is damaged, and to run `fsck`.
#[test]
fn a_zone_emptied_under_its_mount_was_told_to_be_damaged() {
    let Some((_scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    fs::write(Path::new(&dir).join("file"), b"text").unwrap();
    shell(&format!("sync {dir}/file")).ok();
    File::options().write(true).open(&zone).unwrap().set_len(0).unwrap();
    assert!(!right_or_unreadable(File::create(Path::new(&dir).join("new"))));
    let empty = format!("{zone} is empty");
    run(&format!("info {zone}:home")).fails(1, &[&empty]);
    let told = run(&format!("umount {dir}")).fails(2, &[&empty, "it is unmounted"]);
    assert!(!told.err.contains("damaged"), "{}", told.err);
    for line in ["info {}", "info {}:home", "mkfs {}:home", "zone grow {}"] {
        run(&line.replace("{}", &zone)).fails(1, &["is no Amberfs zone (it is empty)"]);
    }
}

/// Bytes that the kernel could not read when it took an answer from `/dev/fuse` were an I/O error of which nobody else heard.
#[test]
fn what_the_kernel_cannot_read_of_an_answer_is_a_failure_of_the_medium() {
    let Some((scratch, _, dir)) = place() else { return };
    let zone = scratch.text("large");
    run(&format!("zone create {zone} --size 64M")).ok();
    run(&format!("mkfs {zone}:home")).ok();
    run(&format!("mount {zone}:home {dir} -o transport=device")).ok();
    fs::write(Path::new(&dir).join("file"), vec![7; 30 << 20]).unwrap();
    shell(&format!("sync {dir}/file")).ok();
    File::options().write(true).open(&zone).unwrap().set_len(20 << 20).unwrap();
    shell(&format!("dd if={dir}/file of=/dev/null iflag=direct bs=1M")).fails(1, &["Input/output error"]);
    run(&format!("umount {dir}")).fails(2, &["the medium failed", "it is unmounted"]);
}

/// A second signal, which waits for no open file, ended a server whose volume could not be closed with 0, and without a word.
#[test]
fn a_volume_that_cannot_be_closed_at_the_second_signal_is_told() {
    let Some((_scratch, zone, dir)) = place() else { return };
    let server = Command::new(PROGRAM)
        .args(["mount", "--foreground", &format!("{zone}:home"), &dir])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("it mounts", || run(&format!("stats {dir}")).code == 0);
    let open = File::create(Path::new(&dir).join("open")).unwrap();
    File::options().write(true).open(&zone).unwrap().set_len(2 << 20).unwrap();
    let end = || shell(&format!("kill {}", server.id())).ok();
    end();
    let is_mounted = || fs::read_to_string("/proc/self/mounts").unwrap().contains(&format!(" {dir} "));
    eventually("it is detached", || !is_mounted());
    end();
    let ended = server.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{told}");
    assert!(told.contains("the medium failed"), "{told}");
    drop(open);
}

/// What cannot be read counted as zeros, and was overwritten.
#[test]
fn nothing_is_made_of_what_cannot_be_read() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.text("image");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let device = shell(&format!("losetup -f --show {image}")).ok().out.trim().to_string();
    File::options().write(true).open(&image).unwrap().set_len(0).unwrap();
    shell(&format!("blockdev --flushbufs {device}"));
    let made = run(&format!("zone create {device}"));
    shell(&format!("losetup -d {device}")).ok();
    made.fails(1, &["cannot read what is there", "what was there is unchanged"]);
}

/// Of one device there may be several nodes, and a loop device shows a file: the lock was on what was named, and two servers wrote to one zone.
#[test]
fn a_zone_on_a_device_has_one_user_by_whatever_name() {
    let scratch = Scratch::new();
    if !can_mount() {
        return;
    }
    let image = scratch.text("image");
    shell(&format!("truncate -s 64M {image}")).ok();
    let device = shell(&format!("losetup -f --show {image}")).ok().out.trim().to_string();
    let minor = &device[device.find(char::is_numeric).unwrap()..];
    let node = scratch.text("node");
    shell(&format!("mknod {node} b 7 {minor}")).ok();
    let dir = scratch.mount_point("mnt");
    run(&format!("zone create {device}")).ok();
    run(&format!("mkfs {device}:home")).ok();
    run(&format!("mount {device}:home {dir}")).ok();
    fs::write(scratch.path("mnt/file"), "amber").unwrap();
    for name in [&image, &node] {
        run(&format!("fsck {name}:home")).fails(8, &["is in use"]);
        run(&format!("zone remove-volume {name} home --force")).fails(1, &["is in use"]);
    }
    run(&format!("zone create {image} --force")).fails(1, &["is in use"]);
    let made = Command::new("mke2fs").args(["-q", "-F", &device]).output().unwrap();
    assert!(!made.status.success(), "the kernel keeps others from it");
    // A server that is killed lets go of it, sooner or later.
    for _ in 0..5 {
        kill(&server_of(&dir));
        run(&format!("umount {dir}")).ok();
        run(&format!("mount {device}:home {dir}")).ok();
    }
    assert_eq!(fs::read(scratch.path("mnt/file")).unwrap(), b"amber");
    run(&format!("umount {dir}")).ok();
    // Another node is as good as the first, and several may read.
    assert!(run(&format!("fsck {node}:home")).ok().out.contains("1 file"));
    run(&format!("mount {node}:home {dir}")).ok();
    run(&format!("fsck {device}:home")).fails(8, &["is in use"]);
    run(&format!("umount {dir}")).ok();
    // What the kernel has is not taken, not even by force.
    shell(&format!("mke2fs -q -F {device} && mount {device} {dir}")).ok();
    run(&format!("zone create {device} --force")).fails(1, &["is in use", "the kernel has it mounted"]);
    shell(&format!("umount {dir} && e2fsck -fn {device} && losetup -d {device}")).ok();
}

/// One page of a copy that could not be read condemned the other copy as well.
#[test]
fn a_zone_of_which_one_entrance_cannot_be_read_is_used_by_the_other() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (below, dir) = (scratch.mount_point("below"), scratch.mount_point("mnt"));
    shell(&format!("mount -t tmpfs -o size=40M tmpfs {below}")).ok();
    let zone = format!("{below}/zone");
    for at in [0, 1 << 20] {
        run(&format!("zone create {zone} --size 32M --force")).ok();
        run(&format!("mkfs {zone}:home --size 16M")).ok();
        run(&format!("mount {zone}:home {dir}")).ok();
        fs::write(scratch.path("mnt/file"), "amber").unwrap();
        run(&format!("umount {dir}")).ok();
        // A page that is not there, where none can be had, is as one that fails.
        let hole = format!("fallocate -p -o {at} -l 4096 {zone}; dd if=/dev/zero of={below}/rest bs=4096");
        shell(&hole).fails(1, &["No space left"]);
        let told = run(&format!("zone show {zone}")).ok().out;
        assert!(told.contains("the medium failed") && told.contains("home"), "{told}");
        run(&format!("fsck {zone}:home")).fails(4, &[]);
        let told = run(&format!("dump {zone} entrance")).ok().out;
        assert!(told.contains("the medium failed") && told.contains("home"), "{told}");
        shell(&format!("rm {below}/rest {zone}")).ok();
    }
    shell(&format!("umount {below}")).ok();
}
