//! What queries answer, as JSON that programs can rely on.

use crate::support::{Scratch, run};

#[test]
fn a_zone_is_shown_as_it_is() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    let answer = run(&format!("zone show {zone} --json")).ok().json();
    assert_eq!(answer["path"], zone.as_str());
    assert_eq!(answer["bytes"], 64 << 20);
    assert_eq!(answer["free_bytes"], 30 << 20);
    assert_eq!(answer["uuid"].as_str().unwrap().len(), 36);
    assert_eq!(answer["technology"], "dram");
    assert_eq!(answer["entrance"], "sound");
    for key in ["created", "format_version", "backing", "persist", "persist_reason"] {
        assert!(!answer[key].is_null(), "{key}");
    }
    let created = answer["created"].as_str().unwrap();
    assert!(created.contains('T') && created.ends_with('Z'), "{created} says no zone of time");
    let volume = &answer["volumes"][0];
    assert_eq!((&volume["name"], &volume["kind"]), (&"home".into(), &"native".into()));
    assert_eq!(volume["bytes"], 32 << 20);
    assert_eq!(run(&format!("info {zone} --json")).ok().json(), answer);

    let list = run(&format!("zone list {} --json", scratch.text(""))).ok().json();
    assert_eq!(list["zones"][0]["path"], zone.as_str());
    assert_eq!(list["zones"][0]["volumes"], serde_json::json!([{ "name": "home", "unfinished": false }]));
    assert_eq!(list["zones"][0]["mounted"], serde_json::json!([]));
}

#[test]
fn a_volume_is_shown_as_it_is() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    let info = run(&format!("info {zone}:home --json")).ok().json();
    assert_eq!(
        (&info["label"], &info["clean"], &info["formatted"]),
        (&"mine".into(), &true.into(), &true.into())
    );
    assert_eq!(info["bytes"], 32 << 20);
    assert!(info["blocks_free"].as_u64().unwrap() * 4096 == info["free_bytes"].as_u64().unwrap());

    let df = run(&format!("df {zone}:home --json")).ok().json();
    assert_eq!(df["volumes"][0]["volume"], format!("{zone}:home"));
    assert!(df["volumes"][0]["free_bytes"].as_u64().unwrap() > 16 << 20);

    let fsck = run(&format!("fsck {zone}:home --json")).ok().json();
    assert!(fsck["directories"].as_u64().unwrap() >= 1);
    assert_eq!(fsck["problems"], serde_json::json!([]));

    assert!(run(&format!("dump {zone}:home superblock")).ok().out.contains("format version"));
}

#[test]
fn a_zone_grows() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    run(&format!("zone grow {zone} --size 96M")).ok();
    assert_eq!(run(&format!("zone show {zone} --json")).ok().json()["bytes"], 96 << 20);
    run(&format!("zone grow {zone} --size 64M")).fails(1, &["larger already", "as they were"]);
}

#[test]
fn a_damaged_volume_is_reported_with_the_bits_of_fsck() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    // Both superblocks (blocks 0 and 1 of the volume, which begins at 2 MiB): their contents, not their magic.
    let mut image = std::fs::read(&zone).unwrap();
    for block in [0, 1] {
        let at = (2 << 20) + block * 4096;
        image[at + 64..at + 128].iter_mut().for_each(|byte| *byte ^= 0xFF);
    }
    std::fs::write(&zone, image).unwrap();
    let run = run(&format!("fsck {zone}:home"));
    assert!(run.code & (4 | 8) != 0, "{}{}", run.out, run.err);
}
