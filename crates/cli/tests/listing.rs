//! A directory that is listed while it changes: what is there all the time is listed once.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::attached;
use crate::support::mounted::{names, place};
use crate::support::run;

const STAY: usize = 3000;
const LISTINGS: usize = 60;

/// Makes, renames and removes files, some of them with long names, so that entries move and blocks divide.
fn change_until(over: &AtomicBool, dir: &Path, who: usize) {
    let path = |kind: &str, n: usize| dir.join(format!("{kind}-{who}-{n}-{}", "x".repeat(n * 7 % 90)));
    for n in (0..).take_while(|_| !over.load(Ordering::Relaxed)) {
        fs::write(path("new", n), "").unwrap();
        if n % 3 == 0 {
            fs::rename(path("new", n), path("moved", n)).unwrap();
        }
        // Those of a while ago go.
        if let Some(old) = n.checked_sub(1500) {
            fs::remove_file(path(if old % 3 == 0 { "moved" } else { "new" }, old)).unwrap();
        }
    }
}

fn list_while_it_changes(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let mut stay: Vec<String> =
        (0..STAY).map(|n| format!("stays-{n:04}-{}", "y".repeat(n * 11 % 60))).collect();
    stay.sort();
    stay.iter().for_each(|name| fs::write(dir.join(name), "").unwrap());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for who in 0..2 {
            let over = &over;
            scope.spawn(move || change_until(over, dir, who));
        }
        let listed = std::panic::catch_unwind(|| {
            for n in 0..LISTINGS {
                let mut found = names(dir);
                found.retain(|name| name.starts_with("stays-"));
                assert!(found == stay, "listing {n}: {} names of {STAY}", found.len());
            }
        });
        over.store(true, Ordering::Relaxed);
        listed.unwrap();
    });
}

#[test]
fn what_stays_in_a_native_volume_is_listed_once() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    list_while_it_changes(&scratch.path("mnt").join("dir"));
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck {zone}:home")).ok();
}

#[test]
fn what_stays_on_an_attached_disk_is_listed_once() {
    let Some((scratch, zone, disk, dir)) = attached::place() else { return };
    run(&format!("attach {zone}:disk {disk} --size 24M")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    list_while_it_changes(&scratch.path("mnt").join("dir"));
    run(&format!("umount {dir}")).ok();
    run(&format!("detach {zone}:disk")).ok();
    attached::e2fsck(&disk);
}
