//! What `amberfs info` tells of disks with ext on them, and of volumes that have one.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value as Json;

use crate::attached::{e2fsck, kill, place, server_of};
use crate::support::mounted::shell;
use crate::support::{Scratch, run};

fn mke2fs(path: &Path, options: &[&str]) {
    let status = Command::new("mke2fs").args(["-q", "-F"]).args(options).arg(path).arg("8M").status();
    assert!(status.expect("mke2fs is installed (scripts/install-deps.sh test)").success());
}

#[test]
fn info_tells_what_is_on_a_disk() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    mke2fs(&image, &["-t", "ext4", "-L", "data", "-b", "1024"]);
    let told = run(&format!("info {} --json", image.display())).ok().json();
    assert_eq!((&told["kind"], &told["label"]), (&"ext4".into(), &"data".into()));
    assert_eq!(
        (&told["bytes"], &told["block_bytes"], &told["clean"]),
        (&(8 << 20).into(), &1024.into(), &true.into())
    );
    assert!(told["features"].as_str().unwrap().split(' ').any(|name| name == "metadata_csum"), "{told}");
    assert_eq!(told["not_supported"], Json::Null);
    mke2fs(&image, &["-t", "ext4", "-O", "encrypt"]);
    let told = run(&format!("info {} --json", image.display())).ok().json();
    assert_eq!(told["not_supported"], "encrypt");
}

#[test]
fn what_is_neither_zone_nor_ext_is_told_as_before() {
    let scratch = Scratch::new();
    fs::write(scratch.path("text"), "no disk").unwrap();
    run(&format!("info {}", scratch.text("text"))).fails(1, &["is no Amberfs zone"]);
    run("info nbd+unix:///x?socket=/nowhere")
        .fails(1, &["nbd+unix:///x?socket=/nowhere", "opening the disk"]);
}

/// Of a disk that had been taken from its volume by force, `info` said that it is attached, and everything else that it is not.
#[test]
fn a_disk_taken_by_force_was_told_to_be_attached() {
    let Some((scratch, zone, disk, dir)) = place() else { return };
    let info = |volume: &str| run(&format!("info {zone}:{volume} --json")).ok().json();
    run(&format!("attach {zone}:disk {disk} --size 16M")).ok();
    assert_eq!(info("disk")["attached"], true);
    // With nothing in NVM that counts, and with something.
    run(&format!("attach --force-from-disk {disk}")).ok();
    let told = info("disk");
    let because = |told: &Json| told["use_not_known"].as_str().unwrap_or_default().to_string();
    assert!(told["attached"] == false && because(&told).contains("has no disk"), "{told}");
    run(&format!("mount {zone}:disk {dir}")).fails(32, &["has no disk"]);
    run(&format!("zone remove-volume {zone} disk --force")).ok();
    shell(&format!("mke2fs -q -F -t ext4 {disk}")).ok();
    run(&format!("attach {zone}:disk {disk} --size 16M")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    fs::write(Path::new(&dir).join("file"), "text").unwrap();
    run(&format!("umount {dir}")).ok();
    // A copy of another size or UUID is another disk, and this one attached still.
    let kept = scratch.text("kept");
    fs::rename(&disk, &kept).unwrap();
    shell(&format!("truncate -s 64M {disk} && mke2fs -q -F -t ext4 {disk}")).ok();
    let told = info("disk");
    assert!(told["attached"] == true && because(&told).contains("not the disk of volume"), "{told}");
    fs::rename(&kept, &disk).unwrap();
    assert_eq!(info("disk")["has_errors"], false);
    run(&format!("attach --force-from-disk {disk}")).ok();
    let told = info("disk");
    assert!(told["attached"] == false && because(&told).contains("taken its mark away"), "{told}");
    run(&format!("mount {zone}:disk {dir}")).fails(32, &["not the disk of volume 'disk'"]);
}

/// A check that is to change nothing replayed the log, and went on with both: copies made before it no longer fit.
#[test]
fn a_check_changes_neither_nvm_nor_disk() {
    let Some((scratch, zone, disk, dir)) = place() else { return };
    let home = scratch.mount_point("home");
    run(&format!("mkfs {zone}:home --size 16M")).ok();
    run(&format!("attach {zone}:disk {disk} --size 16M")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    let write = |name: &str| {
        let mut file = fs::File::create(scratch.path("mnt").join(name)).unwrap();
        std::io::Write::write_all(&mut file, &[7; 5000]).unwrap();
        file.sync_all().unwrap();
    };
    (0..100).for_each(|n| write(&n.to_string()));
    kill(&server_of(&dir));
    run(&format!("umount {dir}")).ok();
    let both = || (fs::read(&zone).unwrap(), fs::read(&disk).unwrap());
    let check = || run(&format!("fsck -n {zone}:disk --json")).ok().json();
    let before = both();
    let checked = check();
    assert_eq!(check(), checked);
    assert_eq!((&checked["needs_recovery"], &checked["log_replayed"]), (&true.into(), &false.into()));
    assert!(checked["inodes"].as_u64() > Some(100), "{checked}: as it will be");
    assert!(both() == before, "something was written");
    let told = run(&format!("fsck {zone}:disk")).ok().out;
    assert!(told.contains("clean with its log replayed in memory"), "{told}");
    // By the server of another volume, which has the zone.
    run(&format!("mount {zone}:home {home}")).ok();
    let on_disk = fs::read(&disk).unwrap();
    assert_eq!(check(), checked);
    run(&format!("umount {home}")).ok();
    assert!(fs::read(&disk).unwrap() == on_disk, "something was written");

    let told = run(&format!("mount {zone}:disk {dir}")).ok().out;
    assert!(told.contains("was not unmounted cleanly: replayed"), "{told}");
    write("later");
    kill(&server_of(&dir));
    run(&format!("umount {dir}")).ok();
    let told = run(&format!("fsck -p {zone}:disk")).ok().out;
    assert!(told.contains("clean, log replayed"), "{told}");
    assert_eq!(check()["needs_recovery"], false);
    run(&format!("detach {zone}:disk")).ok();
    e2fsck(&disk);
}
