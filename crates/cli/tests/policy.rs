//! Snapshots taken and let go of by a policy, on a mount, by hand, and unmounted.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use crate::support::mounted::{place, shell};
use crate::support::{eventually, run};
use rustix::mount::MountFlags;

fn names(place: &str) -> Vec<String> {
    let listed = run(&format!("snapshot list {place} --json")).ok().json();
    let rows = listed["snapshots"].as_array().unwrap();
    rows.iter().map(|row| row["name"].as_str().unwrap().to_string()).collect()
}

fn scheduled(place: &str) -> Vec<String> {
    names(place).into_iter().filter(|name| name.starts_with("auto-")).collect()
}

#[test]
fn a_mount_takes_them_and_lets_them_go() {
    let Some((scratch, zone, dir)) = place() else { return };
    let log = scratch.text("log");
    let options = format!("keep=1s=3:daily=2,log={log}");
    run(&format!("mount {zone}:home {dir} -o {options}")).ok();
    run(&format!("snapshot take {dir} mine")).ok();
    run(&format!("snapshot take {dir} auto-20200101T000000Z")).ok();
    let file = scratch.path("mnt/file");
    eventually("the first one", || scheduled(&dir).len() > 1);
    let first = scheduled(&dir).into_iter().find(|name| name != "auto-20200101T000000Z").unwrap();
    run(&format!("snapshot hold {dir} {first} test")).ok();
    let mut writes = 0;
    eventually("the last of three to come behind", || {
        writes += 1;
        fs::write(&file, format!("{writes}")).unwrap();
        let held_and_newer = scheduled(&dir);
        fs::read_to_string(&log).unwrap().matches("took snapshot").count() > 6 && held_and_newer.len() <= 6
    });
    // Nothing changes any more: nothing is taken.
    eventually("the last one", || {
        let before = scheduled(&dir);
        std::thread::sleep(std::time::Duration::from_millis(2500));
        scheduled(&dir) == before
    });
    let kept = scheduled(&dir);
    // Mine, that which only has such a name, the one that is held (and the day's first), and three of the last seconds.
    let is_kept = |name: &str| names(&dir).iter().any(|kept| kept == name);
    assert!(is_kept("mine") && is_kept("auto-20200101T000000Z") && is_kept(&first), "{kept:?}");
    assert!((1 + 3..=1 + 1 + 3 + 1).contains(&kept.len()), "{kept:?}");
    assert_eq!(
        fs::read_to_string(scratch.path(&format!("mnt/.snapshots/{}/file", kept.last().unwrap()))).unwrap(),
        format!("{writes}"),
        "what was in the kernel's pages is in it"
    );
    let told = fs::read_to_string(&log).unwrap();
    assert!(told.contains("took snapshot \"auto-") && told.contains("removed snapshot \"auto-"), "{told}");
    assert!(!told.contains("WARN"), "{told}");
    run(&format!("umount {dir}")).ok();

    // The same by hand.
    let place = format!("{zone}:home");
    run(&format!("snapshot prune {place} --keep hourly")).fails(2, &["hourly=24"]);
    let told = run(&format!("snapshot prune {place} --keep yearly=1 --dry-run --json")).ok().json();
    let would = told["would_remove"].as_array().unwrap().len();
    assert!(would >= 1, "{told}");
    assert_eq!(scheduled(&place), kept, "nothing was removed");
    let told = run(&format!("snapshot prune {place} --keep yearly=1 --json")).ok().json();
    assert_eq!(told["removed"].as_array().unwrap().len(), would);
    assert_eq!(scheduled(&place).len(), kept.len() - would);
    assert!(run(&format!("snapshot prune {place} --keep yearly=1")).ok().out.contains("none"));
    run(&format!("fsck {place}")).ok();

    // What was missed is made up for with one, also when nothing is written.
    run(&format!("mount {zone}:home {dir} -o keep=hourly=1:keep_unchanged")).fails(1, &["keep_unchanged"]);
    run(&format!("mount {zone}:home {dir} -o keep=1s=1,keep_unchanged,log={log}")).ok();
    let last = scheduled(&dir).pop();
    eventually("an unchanged one", || scheduled(&dir).pop() > last);
    // One that somebody works in stays, and the log tells it once.
    let busy = scheduled(&dir).pop().unwrap();
    let opened = fs::File::open(scratch.path(&format!("mnt/.snapshots/{busy}/file")));
    if let Ok(opened) = opened {
        std::thread::sleep(std::time::Duration::from_secs(8));
        assert!(scheduled(&dir).contains(&busy));
        let told = fs::read_to_string(&log).unwrap();
        assert_eq!(told.matches(&format!("snapshot \"{busy}\" should go")).count(), 1, "{told}");
        drop(opened);
        eventually("the one in use to go", || !scheduled(&dir).contains(&busy));
    }
    run(&format!("umount {dir}")).ok();
    run(&format!("mount {zone}:home {dir} -o ro,keep=1s=1,log={log}")).ok();
    let words = "is mounted read-only: no snapshots are taken";
    eventually("the log says why none are taken", || fs::read_to_string(&log).unwrap().contains(words));
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck {place}")).ok();
}

/// Without room for a snapshot the log has one line about it, and the next is taken when there is room again.
#[test]
fn a_full_volume_is_told_once() {
    let Some((scratch, zone, dir)) = place() else { return };
    let log = scratch.text("log");
    run(&format!("mount {zone}:home {dir} -o durability=op,keep=1s=1000,keep_unchanged,log={log}")).ok();
    let warnings = || fs::read_to_string(&log).unwrap().matches("WARN").count();
    let mut files = Vec::new();
    eventually("the warning", || {
        let mut size = 1 << 20;
        while size >= 4096 {
            let path = scratch.path(&format!("mnt/{}", files.len()));
            if fs::write(&path, vec![1; size]).is_err() {
                let _ = fs::remove_file(&path);
                size /= 2;
            } else {
                files.push(path);
            }
        }
        warnings() > 0
    });
    std::thread::sleep(std::time::Duration::from_secs(4));
    let told = fs::read_to_string(&log).unwrap();
    assert_eq!(warnings(), 1, "{told}");
    assert!(
        told.contains("no snapshot is taken as its policy says: too little of the volume is free"),
        "{told}"
    );
    let before = scheduled(&dir);
    files.iter().for_each(|path| fs::remove_file(path).unwrap());
    before.iter().for_each(|name| drop(run(&format!("snapshot remove {dir} {name} --wait"))));
    eventually("another snapshot", || scheduled(&dir).iter().any(|name| !before.contains(name)));
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck {zone}:home")).ok();
}

/// Remounted to be read, a volume was given snapshots and returned to them all the same.
#[test]
fn a_remount_to_be_read_stops_snapshots() {
    let Some((scratch, zone, dir)) = place() else { return };
    let log = scratch.text("log");
    run(&format!("mount {zone}:home {dir} -o keep=1s=3,keep_unchanged,log={log}")).ok();
    eventually("the first one", || !scheduled(&dir).is_empty());
    run(&format!("snapshot take {dir} mine")).ok();
    let by_us = |how: &str| run(&format!("mount {zone}:home {dir} -o remount,{how}")).code == 0;
    let by_the_kernel = |how: &str| {
        let flags = if how == "ro" { MountFlags::RDONLY } else { MountFlags::empty() };
        rustix::mount::mount_remount(dir.as_str(), flags, "").is_ok()
    };
    // By whom is all the same.
    let all: [&dyn Fn(&str) -> bool; 2] = [&by_us, &by_the_kernel];
    for remount in all {
        let stops = || fs::read_to_string(&log).unwrap().matches("it is mounted read-only").count();
        let before = stops();
        eventually("nobody has a file open for writing", || remount("ro"));
        eventually("the log says why none are taken", || stops() > before);
        let (kept, last) = (names(&dir), scheduled(&dir).pop());
        let refused = ["take mount other", "rollback mount mine", "remove mount mine", "hold mount mine tag"];
        for refused in refused.map(|line| line.replace("mount", &dir)) {
            run(&format!("snapshot {refused}")).fails(1, &["is mounted read-only on", "remount,rw"]);
        }
        assert!(run(&format!("snapshot show {dir} mine")).ok().out.contains("mine"));
        std::thread::sleep(std::time::Duration::from_millis(2500));
        assert_eq!(names(&dir), kept);
        assert!(remount("rw"));
        eventually("another one", || scheduled(&dir).pop() > last);
    }
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck {zone}:home")).ok();
}

/// Whatever thread had something to say panicked: the mount died, snapshots were taken no more, `umount` waited for ever.
#[test]
fn a_log_that_is_full_takes_nothing_with_it() {
    let Some((scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir} -o log=/dev/full,keep=1s=2")).ok();
    eventually("a snapshot is taken", || !names(&dir).is_empty());
    run(&format!("umount {dir}")).ok();
    run(&format!("mount {zone}:home {dir} -o log=/dev/full")).ok();
    fs::write(scratch.path("mnt/file"), "before").unwrap();
    run(&format!("snapshot take {dir} here")).ok();
    fs::write(scratch.path("mnt/file"), "after").unwrap();
    run(&format!("snapshot rollback {dir} here")).ok();
    assert_eq!(fs::read_to_string(scratch.path("mnt/file")).unwrap(), "before");
    run(&format!("umount {dir}")).ok();
}

/// `mount` waited for ever for who reads a FIFO, and wrote its log over a disk.
#[test]
fn a_log_is_opened_without_waiting() {
    let Some((scratch, zone, dir)) = place() else { return };
    let fifo = scratch.text("fifo");
    shell(&format!("mkfifo {fifo}")).ok();
    let mount = |log: &str| run(&format!("mount {zone}:home {dir} -o keep=1s=9,keep_unchanged,log={log}"));
    mount(&fifo).fails(32, &[&fifo, "nobody reads this FIFO", "nothing was mounted"]);
    let open = |options: &mut OpenOptions| {
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(&fifo).unwrap()
    };
    let mut reader = open(OpenOptions::new().read(true));
    mount(&fifo).ok();
    let mut read = [0; 100];
    assert!(reader.read(&mut read).is_ok_and(|length| length > 0));
    // One that is full keeps nobody waiting: snapshots are taken, and it is unmounted.
    let mut writer = open(OpenOptions::new().write(true));
    while writer.write(&[b'.'; 100]).is_ok() {}
    let last = scheduled(&dir).pop();
    eventually("another snapshot", || scheduled(&dir).pop() > last);
    run(&format!("umount {dir}")).ok();
    let image = scratch.text("image");
    std::fs::write(&image, [7; 4096]).unwrap();
    let device = shell(&format!("losetup -f --show {image}")).ok().out.trim().to_string();
    mount(&device).fails(32, &[&device, "no file, character device or FIFO"]);
    shell(&format!("losetup -d {device}")).ok();
    assert_eq!(std::fs::read(&image).unwrap(), [7; 4096]);
}
