//! What `amberfs dump` shows of each structure.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::support::{Scratch, can_mount, run};
use serde_json::Value as Json;
use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO};

/// Fills a volume with something of each structure, and leaves a log behind.
fn use_volume(zone: &str) {
    let root = &Caller::root();
    let zone = nvm::Zone::open(zone.as_ref(), &nvm::OpenOptions::default()).unwrap();
    let volume =
        native::Volume::open(zone.volume("home").unwrap(), &native::MountOptions::default()).unwrap();
    let write = |name: &[u8], length: usize| {
        let file = volume.create(root, ROOT_INO, name, 0o640, OpenFlags::READ | OpenFlags::WRITE).unwrap();
        volume.write(root, file.handle, 0, &vec![7; length]).unwrap();
        volume.release(file.handle).unwrap();
        file.attr.ino
    };
    assert_eq!(write(b"large", 100_000), 3);
    volume.setxattr(root, 3, b"user.colour", b"amber", vfs::XattrMode::Create).unwrap();
    write(b"small", 10);
    volume.take_snapshot("first", "to be dumped").unwrap();
    volume.hold_snapshot("first", "reader").unwrap();
    volume.checkpoint().unwrap();
    write(b"late", 5000);
    volume.abandon();
}

#[test]
fn every_structure_is_dumped_as_text_and_as_json() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    use_volume(&zone);
    let dump = |structure: &str| {
        // Words of the text, and the same in JSON.
        let text = run(&format!("dump {zone}:home {structure}")).ok().out;
        let json = run(&format!("dump {zone}:home {structure} --json")).ok().json();
        assert!(
            text.len() > 20 && json.as_object().is_some_and(|object| !object.is_empty()),
            "{structure}: {text}"
        );
        json
    };
    let has =
        |rows: &Json, key: &str, value: &str| rows.as_array().unwrap().iter().any(|row| row[key] == value);

    assert_eq!(dump("superblock")["areas"].as_array().unwrap().len(), 7);
    let checkpoint = dump("checkpoint");
    assert_eq!(checkpoint["clean"], false);
    let log = dump("log");
    let items = log["items"].as_array().unwrap();
    assert!(items.iter().any(|item| item["item"].as_str().unwrap().starts_with("Create")), "{items:?}");
    assert_eq!(dump("nat")["entries"][0]["node"], 0);
    let sit = dump("sit");
    assert!(has(&sit["segments"], "kind", "Data") && has(&sit["segments"], "kind", "Meta"), "{sit}");
    let journal = dump("sit-journal");
    assert_eq!(journal["segments"].as_array().unwrap().len() as u64, checkpoint["sit_journal_entries"]);
    let snapshot = &dump("snapshots")["snapshots"][0];
    assert_eq!(
        (&snapshot["name"], &snapshot["comment"], &snapshot["holds"], &snapshot["state"]),
        (&"first".into(), &"to be dumped".into(), &"reader".into(), &"Kept".into())
    );
    let data = sit["segments"].as_array().unwrap().iter().find(|row| row["kind"] == "Data").unwrap();
    assert!(has(&dump(&format!("bia:{}", data["segment"]))["blocks"], "kind", "Data"));
    let node = dump("node:0");
    assert_eq!((&node["kind"], &node["inodes"][0]["inode"]), (&"Inode".into(), &1.into()));
    let root = dump("inode:1");
    assert!(has(&root["entries"], "name", "large") && has(&root["entries"], "name", "small"), "{root}");
    let file = dump("inode:3");
    assert_eq!((&file["size_bytes"], &file["mode"]), (&100_000.into(), &"100640".into()));
    assert!(has(&file["attributes"], "name", "user.colour"));
    assert_eq!(file["runs"][0]["file_block"], 0);
    let body =
        dump(&format!("node:{}", file["index_nodes"].get(0).map_or(&file["node"], |node| &node["node"])));
    assert!(body["kind"].is_string());

    // Both copies of the entrance, also without a volume's name.
    let entrance = dump("entrance");
    assert_eq!(run(&format!("dump {zone} entrance --json")).ok().json(), entrance);
    for copy in ["copy_0", "copy_1"] {
        assert_eq!(entrance[copy]["index"][0]["name"], "home");
        assert_eq!(entrance[copy]["uuid"], run(&format!("zone show {zone} --json")).ok().json()["uuid"]);
    }
}

/// What is not there is called by its name; it was a "stale file handle".
#[test]
fn a_structure_that_is_not_there_is_said_to_be_missing() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    run(&format!("dump {zone}:home node:77")).fails(1, &["there is no node 77"]);
    run(&format!("dump {zone}:home inode:77 --json")).fails(1, &["there is no inode 77"]);
    run(&format!("dump {zone}:home bia:7777")).fails(1, &["there is no segment 7777"]);
    run(&format!("dump {zone} nat")).fails(2, &["names no volume", "zone show"]);
    run(&format!("dump {zone}:home heap")).fails(2, &["no structure \"heap\"", "entrance", "sit-journal"]);
}

/// With another volume of the zone mounted, nothing could be dumped.
#[test]
fn a_structure_is_dumped_beside_the_mount_of_another_volume() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let zone = scratch.text("zone");
    run(&format!("zone create {zone} --size 96M")).ok();
    for name in ["home", "other"] {
        run(&format!("mkfs {zone}:{name} --size 40M")).ok();
    }
    use_volume(&zone);
    let lines =
        ["entrance", "log", "nat", "sit", "inode:1", "entrance --json", "sit --json", "inode:1 --json"]
            .map(|structure| format!("dump {zone}:home {structure}"));
    let alone = lines.clone().map(|line| run(&line).ok().out);
    let dir = scratch.mount_point("mnt");
    run(&format!("mount {zone}:other {dir}")).ok();
    assert_eq!(lines.map(|line| run(&line).ok().out), alone);
    run(&format!("dump {zone}:home inode:77 --json")).fails(1, &["there is no inode 77"]);
    run(&format!("dump {zone}:home heap")).fails(2, &["no structure \"heap\""]);
    run(&format!("dump {zone}:none nat")).fails(1, &["no volume \"none\""]);
    run(&format!("dump {zone}:other nat")).fails(1, &["is mounted on", "amberfs umount"]);
    run(&format!("umount {dir}")).ok();
}

/// A copy of the entrance that is damaged is shown as such, and left as it is.
#[test]
fn a_damaged_entrance_is_dumped() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    let file = std::fs::File::options().write(true).open(&zone).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 8], (1 << 20) + 100).unwrap();
    for _ in 0..2 {
        let entrance = run(&format!("dump {zone} entrance --json")).ok().json();
        assert_eq!(entrance["copy_0"]["index"][0]["name"], "home");
        assert!(entrance["copy_1"]["damage"].as_str().unwrap().contains("checksum"), "{entrance}");
    }
}

/// Where both copies of the entrance are damaged nothing else is left to be looked at.
#[test]
fn an_entrance_of_which_both_copies_are_damaged_is_dumped() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    let file = File::options().read(true).write(true).open(&zone).unwrap();
    for copy in [0, 1 << 20] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, copy + 40).unwrap();
        file.write_all_at(&[byte[0] ^ 1], copy + 40).unwrap();
    }
    let told = run(&format!("dump {zone} entrance --json"));
    assert_eq!(told.code, 1);
    assert!(told.err.contains("both copies of the zone's entrance are damaged"), "{told:?}");
    for copy in ["copy_0", "copy_1"] {
        assert!(told.json()[copy]["damage"].as_str().unwrap().contains("checksum"), "{told:?}");
        assert_eq!(told.json()[copy]["index"][0]["name"], "home");
    }
}
