//! What `amberfs info` tells of disks with ext on them.

use std::process::Command;

use crate::support::{Scratch, run};

fn mke2fs(path: &std::path::Path, options: &[&str]) {
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
    assert_eq!(told["not_supported"], serde_json::Value::Null);
    mke2fs(&image, &["-t", "ext4", "-O", "encrypt"]);
    let told = run(&format!("info {} --json", image.display())).ok().json();
    assert_eq!(told["not_supported"], "encrypt");
}

#[test]
fn what_is_neither_zone_nor_ext_is_told_as_before() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("text"), "no disk").unwrap();
    run(&format!("info {}", scratch.text("text"))).fails(1, &["is no Amberfs zone"]);
    run("info nbd+unix:///x?socket=/nowhere")
        .fails(1, &["nbd+unix:///x?socket=/nowhere", "opening the disk"]);
}
