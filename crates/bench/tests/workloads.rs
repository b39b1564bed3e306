//! Workloads do what their parameters say, wherever they run, and leave nothing behind.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bench::{
    Amount, Below, Directory, Error, Ground, InProcess, Kind, Measured, Plan, Reach, Target, Terms, Workload,
    prepare,
};
use native::{FormatOptions, MountOptions, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use tempfile::TempDir;
use vfs::model::Model;

fn terms(turns: u64) -> Terms {
    Terms { amount: Amount::Turns(turns), seed: 5, interrupted: Arc::new(AtomicBool::new(false)) }
}

fn one(request: &str) -> Workload {
    bench::workloads(request, 0.001).unwrap().remove(0)
}

/// A directory in memory, or where temporary files are.
fn scratch() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

fn entries<G: Ground>(ground: &G) -> Vec<String> {
    let mut names = Vec::new();
    ground.list(ground.top(), &mut |name, _| names.push(String::from_utf8_lossy(name).into_owned())).unwrap();
    names
}

/// Runs two rounds of a workload, so that the second finds what the first one left.
fn run<G: Ground>(ground: &G, workload: &Workload, terms: &Terms) -> Vec<Measured> {
    let below = Below::default();
    let mut stage = prepare(ground, workload, &below, terms).unwrap();
    assert_eq!(entries(ground).len(), 1, "{}: a directory of its own", workload.name);
    stage.round(terms, 1.0).unwrap();
    let measured = stage.round(terms, 1.0).unwrap();
    stage.remove().unwrap();
    assert_eq!(entries(ground), [""; 0], "{}: it leaves nothing behind", workload.name);
    measured
}

/// Every entry of the catalogue, as small as can be.
fn run_all<G: Ground>(ground: &G) {
    for entry in bench::catalogue() {
        let has = |key: &str| entry.parameters.iter().any(|(name, _)| *name == key);
        let small = [("files", "20"), ("threads", "3"), ("mean", "2K"), ("size", "64K"), ("every", "4")];
        let given: Vec<String> =
            small.iter().filter(|(key, _)| has(key)).map(|(key, value)| format!("{key}={value}")).collect();
        let workload = one(&format!("{}:{}", entry.name, given.join(",")));
        let measured = run(ground, &workload, &terms(4));
        assert!(!measured.is_empty(), "{}", entry.name);
        for Measured { phase, sample, tally, .. } in measured {
            assert!(sample.operations > 0 && tally.operations() > 0, "{}: {phase}", entry.name);
            assert!(sample.wall_ns > 0 && sample.cpu_ns > 0, "{}: {phase}", entry.name);
        }
    }
}

#[test]
fn every_workload_runs_on_the_model() {
    run_all(&InProcess::new(Arc::new(Model::new())));
}

#[test]
fn every_workload_runs_by_system_calls() {
    let dir = scratch();
    run_all(&Directory::open(dir.path()).unwrap());
}

/// Files of which the time for making them was up before the pass that syncs them counted as synced; and who made fewer than there can be had the time that
/// it takes to find the others missing counted.
#[test]
fn what_is_counted_has_been_through_all_passes() {
    let ground = InProcess::new(Arc::new(Model::new()));
    let terms = Terms { amount: Amount::Time(Duration::from_millis(1)), ..terms(0) };
    let fs_mark = bench::workloads("fs_mark:files=20000,size=4K,sync=5", 1.0).unwrap().remove(0);
    let Measured { sample, tally, .. } = run(&ground, &fs_mark, &terms).remove(0);
    assert!((1..20_000).contains(&sample.operations), "{}: the time is up before", sample.operations);
    assert_eq!(tally.kinds[&Kind::Sync].count(), sample.operations);
    let metadata = bench::workloads("metadata:files=20000", 1.0).unwrap().remove(0);
    for Measured { phase, sample, tally, .. } in run(&ground, &metadata, &terms) {
        assert_eq!(tally.skipped, 0, "{phase}: of {}", sample.operations);
    }
}

/// A native volume of so many MiB.
fn volume(dir: &Path, mib: u64, read_only: bool) -> (Zone, Volume) {
    let bytes = mib << 20;
    let zone = Zone::create(&dir.join("zone"), bytes + nvm::SEGMENT, false, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, Some(bytes)).unwrap();
    native::format(&region, &FormatOptions::default()).unwrap();
    let options = MountOptions { read_only, ..MountOptions::default() };
    (zone, Volume::open(region, &options).unwrap())
}

#[test]
fn every_workload_runs_on_a_native_volume() {
    let dir = scratch();
    let (_zone, volume) = volume(dir.path(), 64, false);
    let volume = Arc::new(volume);
    run_all(&InProcess::new(Arc::clone(&volume)));
    volume.close().unwrap();
    assert!(native::check(volume.region(), false).unwrap().problems.is_empty());
}

/// A disk of so many MiB with an ext4 on it and its metadata in NVM; nothing if there is no mke2fs.
fn ext_volume(dir: &Path, mib: u64) -> Option<(Zone, ext::Volume)> {
    let image = dir.join("image");
    std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
    let made = Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&image).status();
    if !made.is_ok_and(|status| status.success()) {
        let _ = writeln!(std::io::stderr(), "LEFT OUT: there is no mke2fs");
        return None;
    }
    let zone = Zone::create(&dir.join("zone"), 32 << 20, false, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, None).unwrap();
    let disk = Arc::new(disk::Disk::open_path(&image, &disk::OpenOptions::default()).unwrap());
    ext::attach(&region, &disk).unwrap();
    let volume = ext::Volume::mount(&region, disk, &ext::Options::default()).unwrap();
    Some((zone, volume))
}

#[test]
fn every_workload_runs_on_an_ext_volume() {
    let dir = scratch();
    let Some((_zone, volume)) = ext_volume(dir.path(), 64) else { return };
    let volume = Arc::new(volume);
    let ground = InProcess::new(Arc::clone(&volume));
    ground.remove_dir(ground.top(), c"lost+found").unwrap();
    run_all(&ground);
    assert_eq!(ext::check_volume(&volume).unwrap().findings, [""; 0]);
    volume.unmount().unwrap();
}

#[test]
fn what_an_ext_volume_owes_its_disk_is_there_behind_a_turn() {
    let dir = scratch();
    let Some((_zone, volume)) = ext_volume(dir.path(), 64) else { return };
    // Nothing goes there by itself.
    let hour = Duration::from_secs(3600);
    let target = Target::ext_volume("ext", "", volume, hour).unwrap();
    let report =
        bench::run(&plan("writefsync:io=4K,every=1,size=1M"), &[target], &|_| {}).complete().unwrap();
    let tally = &report.figures[0].series[0].tally;
    assert_eq!((tally.count(Kind::Append), tally.count(Kind::Sync)), (6, 6));
    let image = std::fs::read(dir.path().join("image")).unwrap();
    // What threads write; the file is gone again, but nobody has used its blocks since.
    assert!(image.chunks(4096).any(|block| block.iter().all(|byte| *byte == 0xA5)));
}

#[test]
fn each_turn_is_settled_and_what_cannot_be_is_told() {
    let ground = InProcess::new(Arc::new(Model::new()));
    let settled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&settled);
    // The third time its disk is gone.
    let settle = move || match count.fetch_add(1, Ordering::Relaxed) {
        2 => Err("no disk".to_string()),
        _ => Ok(()),
    };
    let below = Below { settle: Some(Box::new(settle)), ..Below::default() };
    let (workload, terms) = (one("varmail:files=20"), terms(1));
    let mut stage = prepare(&ground, &workload, &below, &terms).unwrap();
    stage.round(&terms, 1.0).unwrap();
    stage.round(&terms, 1.0).unwrap();
    assert_eq!(settled.load(Ordering::Relaxed), 2);
    let fault = stage.round(&terms, 1.0).unwrap_err();
    assert_eq!((fault.doing, fault.why.as_deref()), ("bring to its disk what waits for it", Some("no disk")));
}

/// That its server had gone, or what its disk said, was "Input/output error".
#[test]
fn why_a_turn_could_not_be_settled_was_not_told() {
    let dir = scratch();
    let settle: bench::Settle = Box::new(|| Err("its server does not answer".to_string()));
    let server = bench::Server { pid: std::process::id(), settle: Some(settle) };
    let targets = [Target::directory("dir", dir.path(), Some(server)).unwrap()];
    let error = bench::run(&plan("varmail:files=20"), &targets, &|_| {}).complete().unwrap_err();
    let told = "dir: varmail:files=20: bring to its disk what waits for it: its server does not answer";
    assert_eq!(error.to_string(), told);
}

#[test]
fn metadata_does_each_operation_once_for_each_file() {
    for threads in [1, 4] {
        let ground = InProcess::new(Arc::new(Model::new()));
        let all_of = |of| Some(Reach { done: of, of });
        let workload = one(&format!("metadata:files=50,width=10,threads={threads}"));
        let measured = run(&ground, &workload, &terms(1));
        let counts: Vec<(&str, u64)> =
            measured.iter().map(|found| (found.phase, found.sample.operations)).collect();
        let all = ["create, close", "stat", "open, close", "readdir", "rename", "unlink", "mkdir", "rmdir"];
        assert_eq!(counts, all.map(|phase| (phase, if phase == "readdir" { 5 } else { 50 })));
        let reached = measured.iter().all(|found| found.sample.reach == all_of(found.sample.operations));
        assert!(reached, "{measured:?}");
        let by_kind = |at: usize, kind| measured[at].tally.count(kind);
        assert_eq!((by_kind(0, Kind::Create), by_kind(0, Kind::Close), by_kind(0, Kind::Stat)), (50, 50, 0));
        assert_eq!((by_kind(4, Kind::Rename), by_kind(5, Kind::Unlink)), (50, 50));
    }
}

#[test]
fn loops_do_as_many_operations_as_turns_and_threads_make() {
    let ground = InProcess::new(Arc::new(Model::new()));
    let count = |request: &str, turns| {
        let measured = run(&ground, &one(request), &terms(turns)).remove(0);
        assert_eq!(measured.tally.skipped, 0, "{request}");
        measured
    };
    // Ten files opened, read and closed, and one record of the log, by each of two threads, three times.
    let web = count("webserver:files=10,threads=2", 3);
    assert_eq!(web.sample.operations, 2 * 3 * 31);
    assert_eq!((web.tally.count(Kind::Read), web.tally.count(Kind::Append)), (60, 6));
    let mail = count("varmail:files=40,threads=1", 5);
    assert_eq!((mail.tally.count(Kind::Sync), mail.tally.count(Kind::Unlink)), (10, 5));
    assert_eq!(mail.sample.operations, 5 * 13);
    let write = count("write:io=512,threads=2,size=64K,sync=each", 7);
    assert_eq!((write.tally.count(Kind::Write), write.tally.count(Kind::Sync)), (14, 14));
    assert_eq!((write.sample.operations, write.sample.bytes), (14, 14 * 512));
    let read = count("read:io=4K,at=next,file=one,size=64K", 20);
    assert_eq!(read.sample.bytes, 20 * 4096, "it goes on from the start, and reads no short piece");
    let append = count("writefsync:io=8K,every=4,size=1M", 2);
    assert_eq!((append.tally.count(Kind::Append), append.tally.count(Kind::Sync)), (8, 2));
}

#[test]
fn fs_mark_syncs_as_its_modes_say() {
    let ground = InProcess::new(Arc::new(Model::new()));
    for (mode, syncs, of_all) in [(0, 0, 0), (1, 6, 0), (2, 1, 1), (3, 6, 0), (4, 6, 1), (5, 6, 0), (6, 6, 1)]
    {
        let request = format!("fs_mark:files=6,size=100,threads=2,sync={mode}");
        let measured = run(&ground, &one(&request), &terms(1)).remove(0);
        let counted = (measured.tally.count(Kind::Sync), measured.tally.count(Kind::SyncAll));
        assert_eq!(counted, (syncs, of_all), "{request}");
        assert_eq!((measured.sample.operations, measured.tally.count(Kind::Create)), (6, 6), "{request}");
    }
}

#[test]
fn an_even_mix_has_all_its_operations_and_leaves_as_many_files() {
    let ground = InProcess::new(Arc::new(Model::new()));
    let measured = run(&ground, &one("ffsb:mix=even,files=400,threads=2"), &terms(1500)).remove(0);
    let count = |kind| measured.tally.count(kind);
    for kind in [Kind::Create, Kind::Unlink, Kind::Stat, Kind::Read, Kind::Write, Kind::Append, Kind::Sync] {
        assert!(count(kind) > 100, "{kind:?}: {}", count(kind));
    }
    // One in ten each; which, chance decides.
    let (made, removed) = (count(Kind::Create), count(Kind::Unlink));
    assert!(made.abs_diff(removed) < 120, "{made} made, {removed} removed");
    assert!(count(Kind::Sync) > made / 2 && count(Kind::Read) > 3 * made / 2);
}

#[test]
fn postmark_has_as_many_directories_as_it_is_told() {
    let [one_dir, many] =
        ["postmark:files=100", "postmark:files=100,dirs=50"].map(|request| one(request).set);
    assert_eq!((one_dir.files, one_dir.width, many.files, many.width), (200, 200, 200, 4));
}

#[test]
fn a_time_ends_a_loop() {
    let ground = InProcess::new(Arc::new(Model::new()));
    let terms = Terms { amount: Amount::Time(Duration::from_millis(40)), ..terms(0) };
    // With nothing to do, too: no file is there that could be removed.
    for request in ["statfiles:files=20", "postmark:files=20"] {
        let began = Instant::now();
        run(&ground, &one(request), &terms);
        assert!(began.elapsed() >= Duration::from_millis(80), "{request}: two rounds");
    }
}

#[test]
fn where_a_pass_takes_too_long_it_ends_early_and_the_next_goes_on_with_what_is_there() {
    let ground = InProcess::new(Arc::new(Model::new()));
    // Every thread's first operation takes longer than this.
    let terms = Terms { amount: Amount::Time(Duration::from_nanos(1)), ..terms(0) };
    for request in [
        "metadata:files=50,threads=2",
        "createfiles:files=50",
        "fs_mark:files=50,sync=6",
        "postmark:files=50",
    ] {
        for Measured { phase, sample, .. } in run(&ground, &one(request), &terms) {
            // Its directories are all there, but not the files in them.
            let reach = sample.reach.unwrap();
            assert!(reach.done < reach.of, "{request}: {phase}: {reach:?}");
            // Shuffled, its turns may be those of files that are not there.
            assert!(sample.operations < 50, "{request}: {phase}: {}", sample.operations);
            let makes = matches!(phase, "" | "create, close" | "create" | "mkdir");
            assert!(!makes || sample.operations > 0, "{request}: {phase}");
        }
    }
}

fn plan(request: &str) -> Plan {
    Plan { workloads: vec![one(request)], rounds: 2, terms: terms(3) }
}

#[test]
fn a_campaign_has_a_sample_of_each_round_on_each_target() {
    let (here, there) = (scratch(), scratch());
    let (zone, volume) = volume(there.path(), 32, false);
    let targets = [
        Target::directory("here", here.path(), None).unwrap(),
        Target::volume("there", "a volume", volume, zone),
    ];
    let seen = std::cell::RefCell::new(Vec::new());
    let notice = |progress: bench::Progress<'_>| seen.borrow_mut().push((progress.done, progress.of));
    let report = bench::run(&plan("postmark:files=20"), &targets, &notice).complete().unwrap();
    assert_eq!(*seen.borrow(), (0..6).map(|done| (done, 6)).collect::<Vec<_>>());
    let names: Vec<String> = report.figures.iter().map(bench::Figure::name).collect();
    assert_eq!(names, ["postmark:files=20: create", "postmark:files=20: transactions"]);
    for figure in &report.figures {
        assert_eq!(figure.series.iter().map(|series| series.samples.len()).collect::<Vec<_>>(), [2, 2]);
    }
    let page = bench::page(&report, &[], &["a <head>".to_string()]);
    assert!(page.contains("<svg") && page.contains("a &lt;head&gt;"));
    assert!(!page.contains("http") && !page.contains("<script"), "it needs no network");
    assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 0);
}

#[test]
fn a_full_target_is_told_and_left_as_it_was() {
    let dir = scratch();
    let (zone, volume) = volume(dir.path(), 16, false);
    let targets = [Target::volume("small", "", volume, zone)];
    let error = bench::run(&plan("read:size=100M"), &targets, &|_| {}).complete().unwrap_err();
    assert!(matches!(&error, Error::Full { target, .. } if target == "small"), "{error:?}");
    assert!(error.to_string().contains("small is full: read:size=100M needs more room"), "{error}");
    assert!(error.remedy().unwrap().contains("free some space"));
    // While it runs, too, not only when its files are made.
    let error = bench::run(&plan("createfiles:files=100,mean=1M"), &targets, &|_| {}).complete().unwrap_err();
    assert!(matches!(error, Error::Full { doing: "write" | "create", .. }), "{error:?}");
    bench::run(&plan("postmark:files=20"), &targets, &|_| {}).complete().unwrap();
}

#[test]
fn a_log_that_all_append_to_does_not_fill_a_volume() {
    let dir = scratch();
    let (zone, volume) = volume(dir.path(), 128, false);
    let targets = [Target::volume("volume", "", volume, zone)];
    let mut plan = plan("webserver:files=10,append=1M,threads=2");
    // Half a MiB each on average, 128 MiB and more a round.
    plan.terms.amount = Amount::Turns(128);
    let report = bench::run(&plan, &targets, &|_| {}).complete().unwrap();
    assert!(report.figures[0].series[0].tally.count(Kind::Truncate) >= 2);
}

#[test]
fn a_read_only_target_is_told() {
    let dir = scratch();
    drop(volume(dir.path(), 16, false));
    let zone = Zone::open(&dir.path().join("zone"), &OpenOptions::default()).unwrap();
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let volume = Volume::open(zone.volume("v").unwrap(), &options).unwrap();
    let targets = [Target::volume("sealed", "", volume, zone)];
    let error = bench::run(&plan("varmail:files=20"), &targets, &|_| {}).complete().unwrap_err();
    assert_eq!(error, Error::ReadOnly { target: "sealed".to_string() });
}

#[test]
fn who_interrupts_it_finds_nothing_left() {
    let dir = scratch();
    let targets = [Target::directory("dir", dir.path(), None).unwrap()];
    let mut plan = plan("varmail:files=20");
    plan.terms.amount = Amount::Time(Duration::from_secs(600));
    let interrupted = Arc::clone(&plan.terms.interrupted);
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Once it is at work.
            let patience = Instant::now() + Duration::from_secs(60);
            while std::fs::read_dir(dir.path()).unwrap().count() == 0 {
                assert!(Instant::now() < patience, "it does not begin");
                std::thread::sleep(Duration::from_millis(5));
            }
            interrupted.store(true, Ordering::Relaxed);
        });
        bench::run(&plan, &targets, &|_| {}).complete().unwrap_err()
    });
    assert_eq!(error, Error::Interrupted);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
