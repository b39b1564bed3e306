//! A mounted volume returns to a snapshot: quietly, refused while it is in use, and never with what was rolled away.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::support::mounted::{names, place, shell};
use crate::support::{Scratch, can_mount, eventually, run};

/// A process with a working directory, until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn within(dir: &Path) -> Sleeper {
        let sleep = Command::new("sleep").arg("600").current_dir(dir).stdout(Stdio::null()).spawn();
        Sleeper(sleep.unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A tree that later ones differ from in all ways: what is changed, gone, new, renamed, another kind of thing.
fn first_tree(dir: &str) {
    shell(&format!(
        "cd {dir} && mkdir -p a/b/c d && seq 20000 >a/b/c/numbers && echo old >d/file && echo here >gone && ln -s d/file link && \
         dd if=/dev/urandom of=random bs=1M count=2 status=none && ln random a/hard && echo x >becomes"
    ))
    .ok();
}

fn second_tree(dir: &str) {
    shell(&format!(
        "cd {dir} && rm gone && seq 5 >a/b/c/numbers && echo new >d/file && mkdir new && echo n >new/file && mv a/b moved && \
         rm becomes && mkdir becomes && echo y >becomes/within && ln -sf new/file link && \
         dd if=/dev/zero of=random bs=4k seek=3 count=5 conv=notrunc status=none"
    ))
    .ok();
}

#[test]
fn a_quiet_mount_shows_the_snapshot_again() {
    if !can_mount() {
        return;
    }
    for durability in ["fsync", "op"] {
        let scratch = Scratch::new();
        let (zone, dir) = (scratch.zone(), scratch.mount_point("mnt"));
        let at = |name: &str| scratch.path("mnt").join(name);
        run(&format!("mount {zone}:home {dir} -o durability={durability}")).ok();
        first_tree(&dir);
        shell(&format!("cp -a {dir}/. {}", scratch.mount_point("first"))).ok();
        run(&format!("snapshot take {dir} first")).ok();
        second_tree(&dir);
        shell(&format!("cd {dir}/new && seq 100 | xargs touch")).ok();
        shell(&format!("cp -a {dir}/. {}", scratch.mount_point("second"))).ok();
        run(&format!("snapshot take {dir} second")).ok();
        // What the kernel knows: names, that names are not there, attributes, listings, pages.
        shell(&format!("ls -lR {dir} && cat {dir}/d/file {dir}/random >/dev/null && ls {dir}/.snapshots"))
            .ok();
        assert!(!at("gone").exists() && at("new/file").exists() && at("becomes/within").exists());
        let inodes: BTreeSet<u64> =
            fs::read_dir(at("new")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().ino()).collect();

        run(&format!("snapshot rollback {dir} third")).fails(1, &["no snapshot", "nothing was changed"]);
        run(&format!("snapshot rollback {dir} first"))
            .fails(1, &["second", "nothing was changed", "--discard-newer"]);
        run(&format!("snapshot hold {dir} second test")).ok();
        run(&format!("snapshot rollback {dir} first --discard-newer")).fails(1, &["held by test"]);
        shell(&format!("diff -r --no-dereference {dir} {}", scratch.text("second"))).ok();
        run(&format!("snapshot release {dir} second test")).ok();

        let told = run(&format!("snapshot rollback {dir} first --discard-newer --json")).ok().json();
        assert_eq!(told["name"], "first");
        let is_first = || {
            shell(&format!("diff -r --no-dereference {dir} {}", scratch.text("first"))).ok();
            assert_eq!(names(&at("")), ["a", "becomes", "d", "gone", "link", "random"]);
            assert_eq!(fs::read_to_string(at("gone")).unwrap(), "here\n");
            assert!(at("becomes").is_file() && !at("new").exists());
            assert_eq!(fs::metadata(at("random")).unwrap().ino(), fs::metadata(at("a/hard")).unwrap().ino());
            assert_eq!(names(&at(".snapshots")), ["first"]);
        };
        is_first();
        run(&format!("stats {dir}")).ok();
        // Files with numbers that others had which were rolled away. (Some of these have become directories' nodes.)
        let mut found = false;
        for n in 0..600 {
            let path = at(&format!("d/{n}"));
            fs::write(&path, format!("number {n}")).unwrap();
            found |= inodes.contains(&fs::metadata(&path).unwrap().ino());
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("number {n}"));
        }
        assert!(found, "no number was used again");
        shell(&format!("rm {dir}/d/[0-9]*")).ok();
        run(&format!("snapshot take {dir} again")).ok();
        shell(&format!("diff -r --no-dereference {dir}/.snapshots/again {}", scratch.text("first"))).ok();
        run(&format!("snapshot remove {dir} again --wait")).ok();
        run(&format!("umount {dir}")).ok();
        run(&format!("fsck {zone}:home")).ok();
        run(&format!("mount {zone}:home {dir} -o durability={durability}")).ok();
        is_first();
        run(&format!("umount {dir}")).ok();
    }
}

#[test]
fn a_volume_in_use_is_left_as_it_is() {
    let Some((scratch, zone, dir)) = place() else { return };
    let at = |name: &str| scratch.path("mnt").join(name);
    run(&format!("mount {zone}:home {dir}")).ok();
    first_tree(&dir);
    run(&format!("snapshot take {dir} first")).ok();
    second_tree(&dir);
    shell(&format!("cp -a {dir}/. {}", scratch.mount_point("second"))).ok();
    let refused = || {
        run(&format!("snapshot rollback {dir} first"))
            .fails(1, &["are open", "nothing was changed", "fuser"]);
        shell(&format!("diff -r --no-dereference {dir} {}", scratch.text("second"))).ok();
    };
    // With dirty pages in the kernel's cache, which are still written.
    let mut file = OpenOptions::new().append(true).open(at("moved/c/numbers")).unwrap();
    shell(&format!("echo more >>{}", scratch.text("second/moved/c/numbers"))).ok();
    file.write_all(b"more\n").unwrap();
    refused();
    file.sync_all().unwrap();
    drop(file);
    let sleeper = Sleeper::within(&at("moved/c"));
    refused();
    let cwd = fs::read_link(format!("/proc/{}/cwd", sleeper.0.id())).unwrap();
    assert_eq!(cwd, at("moved/c"), "it still has its name");
    drop(sleeper);
    let unlinked = File::open(at("d/file")).unwrap();
    fs::remove_file(at("d/file")).unwrap();
    fs::remove_file(scratch.path("second/d/file")).unwrap();
    refused();
    let mut text = [0; 3];
    unlinked.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"new");
    drop(unlinked);
    let kept = File::open(at(".snapshots/first/d/file")).unwrap();
    refused();
    drop(kept);
    shell(&format!("mount -t tmpfs none {dir}/new")).ok();
    run(&format!("snapshot rollback {dir} first")).fails(1, &["mounted on", "unmount"]);
    shell(&format!("umount {dir}/new")).ok();
    // Somebody in the root directory is in no way: that is the same in every tree.
    let sleeper = Sleeper::within(&at(""));
    run(&format!("snapshot rollback {dir} first")).ok();
    assert_eq!(fs::read_to_string(at("d/file")).unwrap(), "old\n");
    drop(sleeper);
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck {zone}:home")).ok();
}

/// Programs work on the mount all the time; whenever it is quiet for a moment, it returns. Nothing of what they had written
/// before turns up behind that.
#[test]
fn nothing_that_was_rolled_away_is_written_later() {
    let Some((scratch, zone, dir)) = place() else { return };
    let at = |name: &str| scratch.path("mnt").join(name);
    run(&format!("mount {zone}:home {dir} -o threads=3")).ok();
    fs::create_dir(at("work")).unwrap();
    fs::write(at("work/base"), vec![b'-'; 1 << 20]).unwrap();
    run(&format!("snapshot take {dir} base")).ok();
    let mut returned = 0;
    for round in 0..12 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (stop, at) = (&stop, &at);
                scope.spawn(move || {
                    // Whatever fails when the tree changes under it may fail.
                    for n in 0.. {
                        if stop.load(Relaxed) {
                            break;
                        }
                        let _ = fs::metadata(at(&format!("absent-{thread}-{n}")));
                        let _ = fs::create_dir(at(&format!("dir-{thread}")));
                        let _ = fs::write(at(&format!("dir-{thread}/file")), vec![b'x'; 100_000]);
                        let _ = OpenOptions::new()
                            .write(true)
                            .open(at("work/base"))
                            .and_then(|file| file.write_all_at(b"xxxx", (n * 4096) % (1 << 20)));
                        std::thread::sleep(std::time::Duration::from_millis(n % 7));
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            let busy = run(&format!("snapshot rollback {dir} base"));
            returned += i32::from(busy.code == 0);
            assert!(busy.code == 0 || busy.err.contains("nothing was changed"), "{busy:?}");
            stop.store(true, Relaxed);
        });
        run(&format!("snapshot rollback {dir} base")).ok();
        assert_eq!(names(&at("")), ["work"], "round {round}");
        assert!(fs::read(at("work/base")).unwrap() == vec![b'-'; 1 << 20], "round {round}");
        shell("sync").ok();
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
        assert!(fs::read(at("work/base")).unwrap() == vec![b'-'; 1 << 20], "round {round}");
    }
    eprintln!("it returned {returned} times of 12 under load");
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck {zone}:home")).ok();
    run(&format!("mount {zone}:home {dir}")).ok();
    assert!(fs::read(at("work/base")).unwrap() == vec![b'-'; 1 << 20]);
    run(&format!("umount {dir}")).ok();
}

/// Both superblocks are damaged while the volume is mounted, which nobody reads until it is opened again.
#[test]
fn a_volume_that_cannot_be_opened_again_says_so() {
    let Some((scratch, zone, dir)) = place() else { return };
    let log = scratch.text("log");
    run(&format!("mount {zone}:home {dir} -o log={log}")).ok();
    fs::write(scratch.path("mnt/file"), "old").unwrap();
    run(&format!("snapshot take {dir} first")).ok();
    let image = fs::read(&zone).unwrap();
    let magic = b"AMBERNAT";
    let file = OpenOptions::new().write(true).open(&zone).unwrap();
    let places: Vec<usize> = (0..image.len())
        .step_by(4096)
        .filter(|at| image[*at..*at + 64].windows(8).any(|it| it == magic))
        .collect();
    assert_eq!(places.len(), 2, "superblocks");
    places.iter().for_each(|at| file.write_all_at(&[0; 4096], *at as u64).unwrap());
    run(&format!("snapshot rollback {dir} first")).fails(1, &["every request fails", "umount"]);
    for attempt in
        [fs::read_to_string(scratch.path("mnt/file")).map(drop), fs::write(scratch.path("mnt/file"), "")]
    {
        assert_eq!(attempt.unwrap_err().raw_os_error(), Some(5), "EIO");
    }
    run(&format!("snapshot take {dir} second")).fails(1, &["could not be opened again"]);
    run(&format!("stats {zone}:home")).ok();
    eventually("the line in the log", || fs::read_to_string(&log).unwrap().contains("every request fails"));
    run(&format!("umount {dir}")).ok();
    // What the zone had is there, once its superblock is.
    places.iter().for_each(|at| file.write_all_at(&image[*at..*at + 4096], *at as u64).unwrap());
    run(&format!("fsck {zone}:home")).ok();
}
