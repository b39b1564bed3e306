//! Disks by themselves, mounted to be read: what cannot be attached, journals that nobody has replayed, and who keeps them from it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::support::mounted::shell;
use crate::support::{PROGRAM, Run, Scratch, can_mount, run};

/// A scratch directory and one in it to mount on.
fn place() -> Option<(Scratch, String)> {
    can_mount().then(|| {
        let scratch = Scratch::new();
        let dir = scratch.mount_point("mnt");
        (scratch, dir)
    })
}

/// A directory with files of all sizes, and a disk that mke2fs filled with it.
fn filled(scratch: &Scratch, name: &str, options: &str) -> (String, String) {
    let (tree, disk) = (scratch.text(&format!("{name}.tree")), scratch.text(name));
    fs::create_dir_all(Path::new(&tree).join("a/b")).unwrap();
    for (n, bytes) in [0, 1, 60, 100, 5000, 70_000].into_iter().enumerate() {
        let contents: Vec<u8> = (0..bytes).map(|at| (at * 7 + n) as u8).collect();
        fs::write(Path::new(&tree).join(format!("a/b/{n}")), contents).unwrap();
    }
    symlink("a/b/4", Path::new(&tree).join("link")).unwrap();
    shell(&format!("truncate -s 32M {disk} && mke2fs -q -F -t ext4 {options} -d {tree} {disk}")).ok();
    (tree, disk)
}

/// The library alone could read these: there was no way to mount one.
#[test]
fn what_cannot_be_attached_is_mounted_to_be_read_and_stays_as_it_is() {
    let Some((scratch, dir)) = place() else { return };
    let zone = scratch.zone();
    for (feature, options) in
        [("inline_data", "-O inline_data"), ("bigalloc", "-O bigalloc"), ("quota", "-O quota")]
    {
        let (tree, disk) = filled(&scratch, feature, options);
        let before = fs::read(&disk).unwrap();
        // It was told of as if it could be attached.
        assert_eq!(run(&format!("info {disk} --json")).ok().json()["only_read"], feature);
        let way = format!("amberfs mount -o ro {disk} DIR");
        run(&format!("attach {zone}:disk {disk} --size 12M")).fails(1, &["not be written", feature, &way]);
        run(&format!("mount {disk} {dir}")).fails(32, &["nothing was mounted", &way, "amberfs attach"]);
        run(&format!("mount -o ro {disk} {dir}")).ok();
        shell(&format!("diff -r --no-dereference {tree} {dir} --exclude=lost+found")).ok();
        let refused = fs::write(Path::new(&dir).join("new"), "").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        run(&format!("mount -o remount,rw {disk} {dir}")).fails(32, &["opened read-only"]);

        let stats = run(&format!("stats {dir} --json")).ok().json();
        assert_eq!(stats["volume"], *disk);
        let metadata = &stats["disk"]["metadata"];
        assert!(metadata["bytes_read"].as_u64() > Some(0) && metadata["bytes_written"] == 0, "{stats}");
        let info = run(&format!("info {dir} --json")).ok().json();
        assert_eq!((&info["disk"], &info["kind"]), (&disk.clone().into(), &"ext4".into()), "{info}");
        let row = run(&format!("df {dir} --json")).ok().json()["volumes"][0].clone();
        assert_eq!((&row["volume"], row["files"].as_u64() > Some(8)), (&disk.clone().into(), true), "{row}");
        run(&format!("snapshot list {dir}")).fails(1, &["no snapshots"]);
        assert!(run(&format!("umount {dir}")).ok().out.is_empty(), "its server says when it has ended");
        assert!(fs::read(&disk).unwrap() == before, "{feature}: the disk changed");
    }
}

#[test]
fn a_journal_is_read_where_it_is() {
    let Some((scratch, dir)) = place() else { return };
    let (_, disk) = filled(&scratch, "disk", "");
    let image = scratch.text("image");
    shell(&format!(
        "mount -o loop {disk} {dir} && echo committed > {dir}/by-the-kernel && mkdir {dir}/d && sync -f {dir} && cp {disk} {image}; \
         umount {dir}"
    ))
    .ok();
    let before = fs::read(&image).unwrap();
    assert_eq!(run(&format!("info {image} --json")).ok().json()["clean"], false);
    // As mount(8) calls it.
    let helper = scratch.path("mount.amberfs");
    symlink(PROGRAM, &helper).unwrap();
    let mount = |options: &str| {
        Run::of(Command::new(&helper).args([image.as_str(), &dir, "-o", options]).output().unwrap())
    };
    mount("rw").fails(32, &["mount.amberfs:", "without NVM it can be read"]);
    let told = mount("ro,noatime,data=ordered").ok().out;
    assert!(told.contains("of its journal is read from there"), "{told}");
    assert_eq!(fs::read_to_string(Path::new(&dir).join("by-the-kernel")).unwrap(), "committed\n");
    assert!(Path::new(&dir).join("d").is_dir());
    // Others may read it at the same time, each with a server of its own.
    let second = scratch.mount_point("second");
    run(&format!("mount -o ro {image} {second}")).ok();
    run(&format!("umount {dir}")).ok();
    assert_eq!(fs::read_to_string(Path::new(&second).join("by-the-kernel")).unwrap(), "committed\n");
    run(&format!("umount {second}")).ok();
    assert!(fs::read(&image).unwrap() == before, "the disk changed");
}

#[test]
fn who_writes_to_a_disk_keeps_readers_away_and_what_is_no_disk_is_refused() {
    let Some((scratch, dir)) = place() else { return };
    let zone = scratch.zone();
    let (_, disk) = filled(&scratch, "disk", "");
    let mounted = scratch.mount_point("mounted");
    shell(&format!("mount -o loop {disk} {mounted}")).ok();
    run(&format!("mount -o ro {disk} {dir}")).fails(32, &["in use", "backing file"]);
    shell(&format!("umount {mounted}")).ok();

    run(&format!("mount -o ro {disk} {mounted}")).ok();
    run(&format!("attach {zone}:disk {disk} --size 12M")).fails(1, &["in use", "nothing was changed"]);
    run(&format!("umount {mounted}")).ok();

    for options in ["snapshot=s", "ro,keep=daily=1"] {
        run(&format!("mount -o {options} {disk} {dir}")).fails(32, &["no snapshots"]);
    }
    run(&format!("mount -o ro,disk=/dev/x {disk} {dir}")).fails(32, &["means nothing"]);
    run(&format!("mount -o ro,data=journal {disk} {dir}"))
        .fails(1, &["Synced bytes of files go to NVM first"]);
    for option in ["data=ordered", "fetch=touch", "synced=1M", "clean=1M", "sync_writes=disk", "disk=/dev/x"]
    {
        let (name, _) = option.split_once('=').unwrap();
        let told = ["has its files in NVM", &format!("'{name}' means nothing")];
        run(&format!("mount -o {option} {zone}:home {dir}")).fails(32, &told);
    }

    run(&format!("attach {zone}:disk {disk} --size 12M")).ok();
    run(&format!("mount -o ro {disk} {dir}")).fails(32, &["newest metadata of this disk is in NVM"]);
    run(&format!("mount -o data=ordered,errors=continue {zone}:disk {dir}")).ok();
    run(&format!("mount -o ro {disk} {mounted}")).fails(32, &["in use"]);
    run(&format!("umount {dir}")).ok();

    run(&format!("mount -o ro {zone} {dir}")).fails(32, &["names no volume", ":home"]);
    run(&format!("mount -o ro {} {dir}", scratch.text("nothing")))
        .fails(32, &["ZONE:VOLUME", "nothing was mounted"]);
    fs::write(scratch.path("zeros"), vec![0; 1 << 20]).unwrap();
    run(&format!("mount -o ro {} {dir}", scratch.text("zeros"))).fails(32, &["no ext2, ext3 or ext4 here"]);
}

/// It was called damaged, with the advice to run e2fsck on it.
#[test]
fn info_says_that_a_disk_is_the_journal_of_another() {
    let scratch = Scratch::new();
    let journal = scratch.text("journal");
    shell(&format!("truncate -s 16M {journal} && mke2fs -q -F -O journal_dev -b 4096 {journal}")).ok();
    run(&format!("info {journal}")).fails(1, &["not supported: journal_dev"]);
}
