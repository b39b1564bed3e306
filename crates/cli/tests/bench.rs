//! `amberfs bench`: what it answers, what it refuses, and that nothing is left of it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{PROGRAM, Run, Scratch, amberfs, can_mount, eventually, run};
use rustix::process::{Pid, Signal, kill_process};

fn count(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn a_directory_and_a_volume_are_measured_side_by_side() {
    let scratch = Scratch::new();
    let (zone, dir) = (scratch.zone(), scratch.mount_point("dir"));
    let page = scratch.text("page.html");
    let line = format!(
        "bench {dir} {zone}:home --turns 2 --rounds 2 -w metadata:files=20,width=5 -w read:io=512/4K,size=64K"
    );
    let json = run(&format!("{line} --json --html {page}")).ok().json();
    assert_eq!(json["targets"][0]["name"], dir.as_str());
    assert_eq!(json["targets"][1]["about"], "a volume in process, durability=op");
    let figures = json["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 8 + 2);
    for figure in figures {
        for series in figure["series"].as_array().unwrap() {
            assert!(series["per_second"]["median"].as_f64().unwrap() > 0.0, "{figure}");
            assert!(series["cpu_us"]["median"].as_f64().unwrap() > 0.0, "{figure}");
            assert!(
                series["latency"]["p999_ns"].as_u64() >= series["latency"]["p50_ns"].as_u64(),
                "{figure}"
            );
            assert_eq!(series["rounds"].as_array().unwrap().len(), 2);
        }
    }
    assert_eq!(
        (&figures[0]["counts"], &figures[0]["series"][1]["rounds"][0]["operations"]),
        (&"operations".into(), &20.into())
    );
    assert_eq!((&figures[9]["varies"], &figures[9]["value"]), (&"io".into(), &4096.0.into()));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && !page.contains("http"), "a page that needs no network");
    let text = run(&line).ok().out;
    assert!(text.contains("metadata:files=20,width=5: rename") && text.contains("CPU µs"), "{text}");
    let text = run(&format!("{line} --markdown --note tested")).ok().out;
    assert!(text.contains("| read:io=4K,size=64K |") && text.contains("tested"), "{text}");
    assert_eq!(count(Path::new(&dir)), 0);
    assert!(run(&format!("fsck {zone}:home")).ok().out.contains("0 files"), "the volume is as it was");
}

#[test]
fn what_cannot_be_measured_is_told() {
    let scratch = Scratch::new();
    let dir = scratch.mount_point("dir");
    let bench = |rest: &str| run(&format!("bench {rest}"));
    bench("").fails(2, &["nothing to measure", "--peers"]);
    bench(&format!("{dir} -w sorting")).fails(2, &["no workload 'sorting'", "varmail"]);
    bench(&format!("{dir} -w varmail:width=0")).fails(2, &["at least 1"]);
    bench("--peers=ntfs").fails(2, &["no peer 'ntfs'", "btrfs"]);
    bench("--peers=volume,tmpfs --tool fio").fails(2, &["cannot reach the peer 'volume'"]);
    bench("--peers=volume-ext:sync --tool fio").fails(2, &["cannot reach the peer 'volume-ext:sync'"]);
    bench("--peers=ext4-dsik:sync").fails(2, &["no peer 'ext4-dsik'", "ext4-disk"]);
    bench("--peers=ext4-disk:").fails(2, &["peer 'ext4-disk:'", "an option is missing"]);
    bench("--peers=xfs:nojournal").fails(2, &["peer 'xfs:nojournal'", "only an ext4"]);
    bench("--peers=amberfs-ext-disk:dirsnyc")
        .fails(2, &["'amberfs-ext-disk:dirsnyc'", "did you mean 'dirsync'"]);
    bench("--peers=volume-ext:sync_writes=paper").fails(2, &["'sync_writes=paper'", "choose nvm or disk"]);
    bench("--peers=amberfs:snapshot=x").fails(2, &["has to make files"]);
    bench("--peers=tmpfs,tmpfs").fails(2, &["peer 'tmpfs' is named twice"]);
    bench(&format!("{dir} --against ext4")).fails(2, &["--against ext4", &format!("there are {dir}")]);
    if can_mount() {
        bench("--peers=ext4-disk:dirsnyc").fails(2, &["'ext4-disk:dirsnyc'", "mount option 'dirsnyc'"]);
    }
    bench(&format!("{dir} z:v --tool fio")).fails(2, &["cannot reach z:v", "mount it"]);
    bench(&format!("{dir} {dir}")).fails(2, &["named twice"]);
    bench("--peers=tmpfs --size 0").fails(2, &["--size 0"]);
    bench("--peers=tmpfs,ext4,xfs-disk --size 4P").fails(2, &["peers in memory, 2,", "8 PiB", "available"]);
    let page = scratch.text("no/page.html");
    bench(&format!("{dir} --html {page}")).fails(1, &["cannot write", &page, "nothing was measured"]);
    let page = scratch.text("page.html");
    bench(&format!("{} --html {page}", scratch.text("missing"))).fails(1, &["is not there"]);
    assert!(!Path::new(&page).exists(), "a page of nothing");
    bench(&format!("{dir} --tool bonnie")).fails(2, &["no tool 'bonnie'"]);
    bench(&format!("{dir} --rounds 0")).fails(2, &["--rounds"]);
    bench(&format!("{dir} --seconds=-1")).fails(2, &["--seconds"]);
    bench(&scratch.text("missing")).fails(1, &["is not there", "nothing was measured"]);
    std::fs::write(scratch.path("file"), "").unwrap();
    bench(&scratch.text("file")).fails(1, &["is no directory"]);
    bench(&format!("{}:home", scratch.text("missing"))).fails(1, &["No such file"]);
    let list = bench("--list").ok().out;
    for name in ["fileserver", "postmark", "fs_mark", "iozone", "ffsb", "headline"] {
        assert!(list.contains(name), "{name} is not in:\n{list}");
    }
}

/// What a slow target made fewer files for, or passed over in part, stood in reports as if it had been all.
#[test]
fn what_was_measured_with_fewer_files_is_marked() {
    let scratch = Scratch::new();
    let (dir, page) = (scratch.mount_point("dir"), scratch.text("page.html"));
    let line = format!("bench {dir} --rounds 1 -w postmark:files=5000 --html {page}");
    let short = run(&format!("{line} --seconds 0.0001 --json")).ok().json();
    for figure in short["figures"].as_array().unwrap() {
        let fewer = &figure["series"][0]["fewer_files"];
        assert!(fewer["done"].as_u64() < Some(5000) && fewer["of"] == 5000, "{figure}");
    }
    let told = "postmark:files=5000: transactions on ";
    assert!(std::fs::read_to_string(&page).unwrap().contains(told), "nothing is told");
    let text = run(&format!("{line} --seconds 0.0001")).ok().out;
    assert!(text.contains('†') && text.contains(told), "{text}");
    let whole = run(&format!("{line} --turns 1 --json")).ok().json();
    assert!(whole["figures"][1]["series"][0]["fewer_files"].is_null(), "{whole}");
}

/// A bar, a line end or a backtick in a name or a note made other tables of the report.
#[test]
fn a_report_in_markdown_has_names_as_they_are() {
    let scratch = Scratch::new();
    let dir = scratch.mount_point("a|b\nc");
    let line = ["bench", &dir, "--turns", "1", "--rounds", "1", "-w", "statfiles:files=20", "--markdown"];
    let text = amberfs(&[&line[..], &["--note", "with `this`|that"]].concat()).ok().out;
    let shown = dir.replace('|', "\\|").replace('\n', " ");
    let told = format!("- **{shown}**: ");
    assert!(text.starts_with("``amberfs bench") && text.contains("with \\`this\\`\\|that"), "{text}");
    assert!(text.lines().any(|line| line.starts_with(&told)), "{text}");
    let bars = |line: &str| line.matches('|').count() - line.matches("\\|").count();
    let tables: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    assert!(!tables.is_empty() && tables.iter().all(|line| bars(line) == 3), "{text}");
    assert!(tables.iter().any(|line| line.ends_with(&format!(" | {shown} |"))), "{text}");
}

/// Of what the table of mounts writes in octal only the blank was read, and a target there was taken for one on the file system around it.
#[test]
fn a_target_in_a_directory_of_an_odd_name_is_what_it_is() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.mount_point("a b\tc\nd\\e");
    rustix::mount::mount("odd", &dir, "ramfs", rustix::mount::MountFlags::empty(), None).unwrap();
    let run =
        amberfs(&["bench", &dir, "--turns", "1", "--rounds", "1", "-w", "statfiles:files=20", "--json"]);
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(run.ok().json()["targets"][0]["about"], "ramfs");
}

/// What was measured is not lost with what could not be.
#[test]
fn what_was_measured_before_an_error_is_shown() {
    let scratch = Scratch::new();
    let (zone, page) = (scratch.zone(), scratch.text("page.html"));
    let line = format!("bench {zone}:home --turns 1 --rounds 1 -w varmail:files=20 -w read:size=1G");
    let told = run(&format!("{line} --json --html {page}")).fails(1, &["home is full"]);
    let json = told.json();
    assert_eq!(json["complete"], false);
    let workloads: Vec<_> =
        json["figures"].as_array().unwrap().iter().map(|figure| &figure["workload"]).collect();
    assert_eq!(workloads, ["varmail:files=20"]);
    assert!(std::fs::read_to_string(page).unwrap().contains("varmail"));
}

#[test]
fn who_reads_its_complaints_may_be_gone() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = Command::new(PROGRAM).args(["bench", "-w", "sorting"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn a_tool_that_is_not_there_is_told_at_once() {
    let scratch = Scratch::new();
    let dir = scratch.mount_point("dir");
    for (tool, package) in [("fio", "install fio"), ("sqlite", "install sqlite3")] {
        let mut command = Command::new(PROGRAM);
        command.args(["bench", &dir, "--tool", "postmark", "--tool", tool]).env("PATH", &dir);
        Run::of(command.output().unwrap()).fails(1, &["not installed", "nothing was measured"]);
        let mut command = Command::new(PROGRAM);
        command.args(["bench", &dir, "--tool", tool]).env("PATH", &dir);
        Run::of(command.output().unwrap()).fails(1, &[tool, package]);
    }
    assert_eq!(count(Path::new(&dir)), 0);
}

#[test]
fn another_tool_finds_a_full_target_full() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.mount_point("small");
    rustix::mount::mount("small", &dir, "tmpfs", rustix::mount::MountFlags::empty(), Some(c"size=8m"))
        .unwrap();
    let runs = ["fio", "fs_mark"].map(|tool| run(&format!("bench {dir} --tool {tool} --quick")));
    let left = count(Path::new(&dir));
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).unwrap();
    for run in runs {
        run.fails(1, &["is full", "free some space"]);
    }
    assert_eq!(left, 0);
}

#[test]
fn another_tool_is_run_and_leaves_nothing() {
    let scratch = Scratch::new();
    let dir = scratch.mount_point("dir");
    let json = run(&format!("bench {dir} --tool fio --quick --rounds 1 --json")).ok().json();
    let figures = json["figures"].as_array().unwrap();
    assert!(!figures.is_empty());
    for figure in figures {
        let rate = &figure["series"][0]["per_second"]["median"];
        assert!(rate.as_f64().is_some_and(|rate| rate > 0.0), "{figure}");
        assert!(figure["series"][0]["rounds"][0]["syncfs_ns"].as_u64() > Some(0), "{figure}");
    }
    assert_eq!(count(Path::new(&dir)), 0);
    // Each of its operations was timed by nobody.
    let json = run(&format!("bench {dir} --tool fs_mark --quick --json")).ok().json();
    let series = &json["figures"][0]["series"][0];
    assert!(
        series["rounds"].as_array().unwrap().len() == 1 && series["latency"]["p50_ns"].is_null(),
        "{series}"
    );
}

#[test]
fn a_full_volume_is_told_and_left_clean() {
    let scratch = Scratch::new();
    let zone = scratch.zone();
    run(&format!("bench {zone}:home --turns 1 --rounds 1 -w read:size=1G"))
        .fails(1, &["home is full", "what the benchmark made is gone again", "free some space"]);
    assert!(run(&format!("fsck {zone}:home")).ok().out.contains("clean: 0 files"));
}

#[test]
fn a_read_only_mount_and_a_full_one_are_told() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (zone, dir) = (scratch.zone(), scratch.mount_point("mnt"));
    run(&format!("mount {zone}:home {dir} -o ro")).ok();
    run(&format!("bench {dir} --quick")).fails(1, &["is read-only", "mount it read-write"]);
    run(&format!("umount {dir}")).ok();
    run(&format!("mount {zone}:home {dir}")).ok();
    // Its pages are written back later: what is told is not told by the write that had no room.
    run(&format!("bench {dir} --turns 1 --rounds 1 -w read:size=200M")).fails(1, &["is full"]);
    assert_eq!(count(Path::new(&dir)), 0);
    // What the file had comes back when the kernel, which was writing its pages, lets go of it.
    let mut again = None;
    eventually("there is room again", || {
        let run = run(&format!("bench {dir} --turns 3 --rounds 1 -w varmail:files=20 --json"));
        (run.code == 0).then(|| again = Some(run.json())).is_some()
    });
    let json = again.expect("it was measured");
    let machine = &json["figures"][0]["series"][0]["rounds"][0]["machine_cpu_ns"];
    assert!(machine.as_u64().is_some(), "and so does all that the machine does: {machine}");
    let server = &json["figures"][0]["series"][0]["rounds"][0]["server_cpu_ns"];
    assert!(server.as_u64().is_some_and(|ns| ns > 0), "the server's CPU time counts: {server}");
    run(&format!("umount {dir}")).ok();
}

/// Mounts, loop devices and files of a benchmark.
fn left_of(temporary: &str) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mut left: Vec<String> =
        mounts.lines().filter(|line| line.contains(temporary)).map(String::from).collect();
    for device in std::fs::read_dir("/sys/block").unwrap().flatten() {
        let file = std::fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        left.extend(file.contains(temporary).then_some(file));
    }
    left.extend(
        std::fs::read_dir(temporary).unwrap().flatten().map(|entry| entry.path().display().to_string()),
    );
    left
}

/// What is two levels below a directory, if it has this beginning.
fn has_below(dir: &str, peer: &str, beginning: &str) -> bool {
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().collect::<Vec<_>>();
    let begins = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(beginning);
    entries(Path::new(dir)).into_iter().any(|entry| entries(&entry.path().join(peer)).into_iter().any(begins))
}

/// When a benchmark is interrupted.
enum Moment {
    /// So many ms after it was started, whatever it does then.
    After(u64),
    /// When all peers are there and at work.
    AtWork,
}

#[test]
fn interrupted_it_takes_its_peers_with_it() {
    if !can_mount() {
        return;
    }
    let moments = (1..=12).map(|step| Moment::After(step * step * 8)).chain([Moment::AtWork]);
    for moment in moments {
        interrupt("tmpfs,amberfs,volume-ext,amberfs-ext-disk,ext4,ext4-disk:dirsync", "64M", moment);
    }
}

#[test]
fn interrupted_at_work_it_takes_file_systems_of_every_kind_with_it() {
    if can_mount() {
        // xfs takes no less.
        interrupt("tmpfs,xfs,btrfs,fuse,fuse2fs,xfs-disk,btrfs-disk,fuse2fs-disk", "400M", Moment::AtWork);
    }
}

/// What would take hours ends, too: mke2fs writing the inode tables of 4 TiB, a file of 4 TiB being filled.
#[test]
fn interrupted_it_waits_for_nothing_long() {
    if !can_mount() {
        return;
    }
    interrupt("ext4-disk", "4T", Moment::After(1000));
    let scratch = Scratch::new();
    let dir = scratch.mount_point("dir");
    let mut command = Command::new(PROGRAM);
    let child = command.args(["bench", &dir, "-w", "read:size=4096G"]);
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("it fills", || has_below(&dir, "d000000", "f"));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    Run::of(child.wait_with_output().unwrap()).fails(130, &["interrupted"]);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

/// Interrupts a benchmark of `peers`, each of `size`, and finds nothing left of them.
fn interrupt(peers: &str, size: &str, moment: Moment) {
    let scratch = Scratch::new();
    let temporary = scratch.mount_point("tmp");
    let mut command = Command::new(PROGRAM);
    command.args(["bench", "--size", size, &format!("--peers={peers}"), "--disk", &temporary]);
    command.args(["--seconds", "600", "-w", "varmail:threads=2"]).env("TMPDIR", &temporary);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    match moment {
        Moment::After(ms) => std::thread::sleep(Duration::from_millis(ms)),
        Moment::AtWork => eventually("it begins", || has_below(&temporary, "tmpfs", "amberfs-bench-")),
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    // At first it is not there to be asked, and has made nothing.
    let is_early = output.status.code().is_none() && matches!(moment, Moment::After(..100));
    if !is_early {
        let run = Run::of(output);
        assert!(!run.err.contains("left out"), "{}", run.err);
        run.fails(130, &["interrupted", "what the benchmark made is gone again"]);
    }
    // A loop device lets go of its file a moment after the unmount.
    eventually("nothing is left", || left_of(&temporary).is_empty());
}

/// A run of `peers` with their files in `temporary`, each 64 MiB; nothing is left of it.
fn run_peers(temporary: &str, peers: &str, rest: &str) -> Run {
    let mut command = Command::new(PROGRAM);
    command.args(["bench", "--size", "64M", &format!("--peers={peers}"), "--disk", temporary]);
    command.args(["--turns", "20", "--rounds", "1"]).args(rest.split_whitespace()).env("TMPDIR", temporary);
    let run = Run::of(command.output().unwrap()).ok();
    eventually("nothing is left", || left_of(temporary).is_empty());
    run
}

#[test]
fn a_disk_in_nvm_stands_beside_the_kernels_with_what_each_asks_of_it() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let temporary = scratch.mount_point("tmp");
    let peers = "ext4-disk,ext4-disk:dirsync+nojournal,amberfs-ext-disk:sync_writes=disk,volume-ext-disk,volume-ext:sync,ext3-disk,amberfs-ext:ext3";
    let rest = "--against ext4-disk -w fs_mark:sync=1,files=20,size=4K,io=4K --json";
    let run = run_peers(&temporary, peers, rest);
    assert_eq!(run.err, "", "none is left out");
    let json = run.json();
    let names: Vec<&str> =
        json["targets"].as_array().unwrap().iter().map(|target| target["name"].as_str().unwrap()).collect();
    assert_eq!(names.join(","), peers);
    for series in json["figures"][0]["series"].as_array().unwrap() {
        let name = series["target"].as_str().unwrap();
        let disk = &series["rounds"][0]["disk"];
        let [writes, flushes, bytes] = ["writes", "flushes", "bytes"].map(|key| disk[key].as_u64().unwrap());
        // 20 files of 4 KiB each are there in the end, whoever writes them.
        assert!(writes > 0 && flushes > 0 && bytes >= 20 * 4096, "{name}: {disk}");
        // Synced one by one; in NVM, flushed together behind them.
        let waits_for_disk = name.contains("sync_writes=disk") || name.starts_with("ext");
        assert_eq!(flushes >= 20, waits_for_disk, "{name}: {disk}");
        assert_eq!(series["times"][0]["target"], "ext4-disk", "{name}");
        let times = series["times"][0]["ratio"].as_f64().unwrap();
        assert!(times > 0.0 && (name != "ext4-disk" || times == 1.0), "{name}: {times}");
    }
}

#[test]
fn fuse2fs_stands_beside_the_kernel() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let temporary = scratch.mount_point("tmp");
    let page = scratch.text("page.html");
    let rest = format!("--against ext4 -w fs_mark:sync=0,files=20,size=4K,io=4K --json --html {page}");
    let run = run_peers(&temporary, "ext4,fuse2fs-disk", &rest);
    // Where it is not installed, that is told.
    assert!(run.err.is_empty() || run.err.contains("left out: fuse2fs-disk: fuse2fs:"), "{}", run.err);
    for series in run.json()["figures"][0]["series"].as_array().unwrap() {
        let disk = &series["rounds"][0]["disk"];
        let [writes, bytes] = ["writes", "bytes"].map(|key| disk[key].as_u64().unwrap());
        assert!(writes > 0 && bytes >= 20 * 4096, "written before it is counted: {series}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<th>times the rate of ext4</th>") && page.contains("asked of the disk"));
}

#[test]
fn peers_that_cannot_be_set_up_are_left_out() {
    let scratch = Scratch::new();
    let temporary = scratch.mount_point("tmp");
    let arguments = [
        "bench",
        "--size",
        "64M",
        "--peers=volume,xfs,btrfs-disk",
        "--disk",
        "/nowhere",
        "--turns",
        "2",
        "--rounds",
        "1",
        "-w",
        "statfiles:files=20",
        "--against",
        "volume",
        "--against",
        "xfs",
    ];
    // Without a PATH there is no mkfs.
    let mut command = Command::new(PROGRAM);
    let run =
        Run::of(command.args(arguments).env("PATH", "/nowhere").env("TMPDIR", &temporary).output().unwrap())
            .ok();
    assert!(
        run.err.contains("left out: xfs:") && run.err.contains("left out: btrfs-disk: /nowhere"),
        "{}",
        run.err
    );
    assert!(run.out.contains("statfiles:files=20"), "{}", run.out);
    // With what it cannot be compared is told, and not only missing.
    assert!(run.err.contains("--against xfs: it is left out, so nothing is compared with it"), "{}", run.err);
    assert!(!run.err.contains("--against volume"), "{}", run.err);
    assert_eq!(left_of(&temporary), [""; 0]);
    let none = amberfs(&["bench", "--peers=ext4-disk", "--disk", "/nowhere"]);
    none.fails(1, &["left out: ext4-disk", "none of the peers could be set up"]);
}
