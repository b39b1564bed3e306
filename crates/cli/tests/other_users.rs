//! What other users put where root looks for their servers: it is asked about what is theirs, and about nothing else, and holds nobody up.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::fs::FlockOperation;
use rustix::process::{Gid, Uid};
use serde_json::{Value as Json, json};

use crate::support::mounted::place;
use crate::support::{PROGRAM, Run, Scratch, can_mount, copy_program, eventually, run};

/// Long enough for any answer on a busy machine, and less than what a few servers that say nothing cost when they were asked in turns.
const SOON: Duration = Duration::from_secs(40);

/// Runs something as another user, in a thread: a thread has a user of its own.
fn as_user<T: Send + 'static>(user: u32, what: impl FnOnce() -> T + Send + 'static) -> T {
    let become_user = move || {
        rustix::thread::set_thread_groups(&[]).unwrap();
        let (group, user) = (Gid::from_raw(user), Uid::from_raw(user));
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        what()
    };
    std::thread::spawn(become_user).join().unwrap()
}

/// What another user has where root looks for their servers; gone with the test.
struct Stranger {
    user: u32,
    dir: PathBuf,
    /// What their fake servers were asked.
    heard: Arc<Mutex<Vec<Json>>>,
}

impl Stranger {
    /// One without anything; another user each time, for tests side by side.
    fn without_dir() -> Stranger {
        static NEXT: AtomicU32 = AtomicU32::new(64_301);
        let user = NEXT.fetch_add(1, Relaxed);
        let dir = PathBuf::from(format!("/tmp/amberfs-{user}"));
        let _ = fs::remove_file(&dir);
        let _ = fs::remove_dir_all(&dir);
        Stranger { user, dir, heard: Arc::default() }
    }

    fn new() -> Stranger {
        let stranger = Stranger::without_dir();
        stranger.make_dir(stranger.dir.clone());
        stranger
    }

    fn make_dir(&self, dir: PathBuf) {
        as_user(self.user, move || fs::DirBuilder::new().mode(0o700).create(dir).unwrap());
    }

    /// A server of theirs at `path` that says what `answer` says; with nothing to say, it keeps who asks waiting.
    fn serve(&self, path: PathBuf, answer: impl Fn(&Json) -> Option<Json> + Clone + Send + 'static) {
        let heard = self.heard.clone();
        let listener = as_user(self.user, move || UnixListener::bind(path).unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten().filter(is_under_test) {
                let (heard, answer) = (heard.clone(), answer.clone());
                std::thread::spawn(move || converse(stream, &heard, &answer));
            }
        });
    }

    /// One that claims to have `zone` open, and to serve its volume `home` on `dir`.
    fn claim(&self, name: &str, zone: &str, dir: &str) {
        let (zone, dir) = (zone.to_string(), dir.to_string());
        let volumes = json!([{ "name": "home", "kind": "native", "bytes": 1, "start": 0, "uuid": "" }]);
        let told =
            json!({ "text": "told by the fake\u{1b}[2J\n", "json": { "bytes": 4711, "volumes": volumes } });
        let answer = move |request: &Json| match request["request"].as_str() {
            Some("hello") => Some(json!({ "ok": hello(&zone, &dir) })),
            Some("ended") => None,
            _ => Some(json!({ "ok": told })),
        };
        self.serve(self.dir.join(name), answer);
    }

    fn heard(&self) -> Vec<Json> {
        self.heard.lock().unwrap().clone()
    }

    /// What they were asked but who they are, which anybody asks all of them who lists zones.
    fn asked(&self) -> Vec<Json> {
        self.heard().into_iter().filter(|request| request["request"] != "hello").collect()
    }

    /// What is left by servers that were killed.
    fn leave_dead(&self, sockets: usize) {
        let dir = self.dir.clone();
        as_user(self.user, move || {
            for n in 0..sockets {
                drop(UnixListener::bind(dir.join(format!("dead-{n}.sock"))).unwrap());
            }
        });
    }
}

/// What a server says that has `zone` open and serves its volume `home` on `dir`, as both are there now.
fn hello(zone: &str, dir: &str) -> Json {
    let file = fs::metadata(zone).map_or(Json::Null, |file| format!("{}:{}", file.dev(), file.ino()).into());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = fields.rfind(|fields| fields[4] == dir);
    let device = mount.map_or("0:0".to_string(), |fields| fields[2].to_string());
    json!({ "pid": 1, "zone": zone, "file": file, "mounts": [{ "volume": "home", "dir": dir, "device": device }] })
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.dir);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Copies of the program under test. Another build of it, at work on this machine, is not heard.
static PROGRAMS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn is_under_test(stream: &UnixStream) -> bool {
    let peer = getsockopt(stream, PeerCredentials).unwrap();
    let Ok(program) = fs::read_link(format!("/proc/{}/exe", peer.pid())) else { return false };
    program == Path::new(PROGRAM).canonicalize().unwrap() || PROGRAMS.lock().unwrap().contains(&program)
}

fn converse(mut stream: UnixStream, heard: &Mutex<Vec<Json>>, answer: &dyn Fn(&Json) -> Option<Json>) {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        let request: Json = serde_json::from_str(&line).unwrap();
        heard.lock().unwrap().push(request.clone());
        if let Some(answer) = answer(&request)
            && writeln!(stream, "{answer}").is_err()
        {
            return;
        }
    }
}

/// A zone that somebody has open, as far as its lock tells.
fn locked_zone(scratch: &Scratch) -> (String, File) {
    let zone = scratch.zone();
    let file = File::open(&zone).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    (zone, file)
}

fn soon(what: impl FnOnce() -> Run) -> Run {
    let began = Instant::now();
    let run = what();
    assert!(began.elapsed() < SOON, "{:?}: {run:?}", began.elapsed());
    run
}

/// Anybody could answer for any zone and any mount: root's commands believed it.
#[test]
fn nobody_answers_for_the_zone_or_mount_of_another() {
    let Some((_scratch, zone, dir)) = place() else { return };
    let stranger = Stranger::new();
    run(&format!("mount {zone}:home {dir}")).ok();
    stranger.claim("fake.sock", &zone, &dir);
    // Its server is killed, and so the only one that claims it is the fake.
    let pid = run(&format!("stats {dir} --json")).ok().json()["pid"].to_string();
    Command::new("kill").args(["-9", &pid]).status().unwrap();
    eventually("the mount's death", || rustix::fs::statvfs(dir.as_str()).is_err());
    run(&format!("stats {dir}")).fails(1, &["its server does not answer"]);
    run(&format!("snapshot list {dir}")).fails(1, &["its server does not answer"]);
    assert!(run(&format!("umount {dir}")).ok().out.contains("its server was not there"));

    let other = Scratch::new();
    let (zone, _lock) = locked_zone(&other);
    stranger.claim("zone.sock", &zone, &dir);
    for command in
        ["info ZONE:home", "df ZONE", "zone show ZONE", "mount ZONE:home DIR", "attach ZONE:disk DISK"]
    {
        let line = command.replace("ZONE", &zone).replace("DIR", &dir).replace("DISK", "/dev/null");
        let told = soon(|| run(&line));
        assert!(told.code != 0 && told.err.contains("is in use by"), "{told:?}");
    }
    assert_eq!(stranger.asked(), Vec::<Json>::new());
}

#[test]
fn a_user_answers_root_for_the_zone_that_is_theirs() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let stranger = Stranger::new();
    let (zone, _lock) = locked_zone(&scratch);
    stranger.claim("theirs.sock", &zone, "/");
    stranger.claim("not-theirs.sock", "/etc/passwd", "/nowhere");
    chown(&zone, Some(stranger.user), None).unwrap();
    let told = run(&format!("info {zone}:home")).ok().out;
    assert_eq!(told, "told by the fake\u{FFFD}[2J\n", "and does nothing to a terminal");
    let listed = run("zone list --json").ok().json();
    let paths: Vec<&str> =
        listed["zones"].as_array().unwrap().iter().map(|row| row["path"].as_str().unwrap()).collect();
    assert!(paths.contains(&zone.as_str()) && !paths.contains(&"/etc/passwd"), "{paths:?}");
    let row = listed["zones"].as_array().unwrap().iter().find(|row| row["path"] == zone.as_str()).unwrap();
    assert_eq!(
        (&row["bytes"], &row["mounted"]),
        (&4711.into(), &serde_json::json!([])),
        "no mount that is not theirs"
    );
    // Root would have asked whatever is mounted there how full it is.
    let df = run(&format!("df {zone} --json")).ok().json();
    assert_eq!(df["volumes"][0]["mounted"], "");
}

/// Mounts something as if `user` had.
fn mount_of(user: u32, dir: &str) -> File {
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id={user},group_id={user}", device.as_raw_fd());
    let data = std::ffi::CString::new(data).unwrap();
    let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
    rustix::mount::mount("zone:home", dir, "fuse.amberfs", flags, data.as_c_str()).unwrap();
    device
}

#[test]
fn a_user_answers_root_for_the_mount_that_is_theirs_and_does_not_keep_it_from_ending() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let (theirs, other) = (Stranger::new(), Stranger::new());
    let dir = scratch.mount_point("mnt");
    for stranger in [&theirs, &other] {
        stranger.claim("fake.sock", "/zone", &dir);
    }
    let _device = mount_of(theirs.user, &dir);
    assert!(run(&format!("stats {dir}")).ok().out.contains("told by the fake"));
    // This server reads that it is to tell of the end, and says nothing.
    let unmounted = || {
        let began = Instant::now();
        assert!(run(&format!("umount {dir}")).ok().out.contains("unmounted"));
        assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    };
    unmounted();
    assert!(theirs.heard().iter().any(|request| request["request"] == "ended"));
    assert_eq!(other.asked(), Vec::<Json>::new());
    // This one says that it has read it, and then nothing: root waited 30 s.
    fs::remove_file(theirs.dir.join("fake.sock")).unwrap();
    theirs.serve(theirs.dir.join("half.sock"), {
        let dir = dir.clone();
        move |request| match request["request"].as_str() {
            Some("hello") => Some(json!({ "ok": hello("/zone", &dir) })),
            _ => Some(json!({ "more": null })),
        }
    });
    let _device = mount_of(theirs.user, &dir);
    unmounted();
    assert_eq!(theirs.asked().last().unwrap()["request"], "ended");
}

/// Who mounts something says what it is of: `--detach` made the disk plain of whatever volume another user had named.
#[test]
fn the_mount_of_another_detached_a_disk_of_roots() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let theirs = Stranger::new();
    let dir = scratch.mount_point("mnt");
    let _device = mount_of(theirs.user, &dir);
    let whose = format!("was mounted by user {}", theirs.user);
    let told = [&whose, "it stays mounted", "without --detach"];
    run(&format!("umount --detach {dir}")).fails(32, &told);
    run(&format!("umount {dir}")).ok();
}

/// Whoever could rename what lies above a mount could have another one unmounted in its place, while their server was asked.
#[test]
fn what_was_put_in_the_place_of_a_mount_was_unmounted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let theirs = Stranger::new();
    for name in ["theirs", "roots"] {
        fs::create_dir(scratch.path(name)).unwrap();
    }
    let (dir, roots) = (scratch.mount_point("theirs/victim"), scratch.mount_point("roots/victim"));
    let _devices = [mount_of(theirs.user, &dir), mount_of(0, &roots)];
    let hello = hello("/zone", &dir);
    let (above, aside, others) = (scratch.path("theirs"), scratch.path("aside"), scratch.path("roots"));
    theirs.serve(theirs.dir.join("fake.sock"), move |request| match request["request"].as_str() {
        Some("hello") => Some(json!({ "ok": hello })),
        Some("ended") => {
            fs::rename(&above, &aside).unwrap();
            symlink(&others, &above).unwrap();
            Some(json!({ "more": {} }))
        }
        _ => None,
    });
    run(&format!("umount {dir}")).ok();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_mounted = |dir: &Path| mounts.contains(&format!(" {} ", dir.display()));
    assert!(is_mounted(&scratch.path("roots/victim")), "root's is still mounted");
    assert!(!is_mounted(&scratch.path("aside/victim")), "theirs is not");
    run(&format!("umount {roots}")).ok();
}

/// Each socket cost 15 seconds, and a lock held on the directory all the time there is.
#[test]
fn servers_that_say_nothing_do_not_hold_root_up() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let stranger = Stranger::new();
    let (zone, _lock) = locked_zone(&scratch);
    chown(&zone, Some(stranger.user), None).unwrap();
    for n in 0..40 {
        stranger.serve(stranger.dir.join(format!("{n}.sock")), |_| None);
    }
    stranger.leave_dead(1);
    let dir = File::open(&stranger.dir).unwrap();
    rustix::fs::flock(&dir, FlockOperation::LockExclusive).unwrap();
    soon(|| run(&format!("info {zone}:home"))).fails(1, &["is in use by"]);
    soon(|| run("zone list")).ok();
    assert!(stranger.asked().is_empty() && !stranger.heard().is_empty(), "{:?}", stranger.heard());
}

#[test]
fn dead_sockets_of_others_are_passed_over_and_left() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let stranger = Stranger::new();
    let (zone, _lock) = locked_zone(&scratch);
    chown(&zone, Some(stranger.user), None).unwrap();
    stranger.leave_dead(200);
    let pipe = stranger.dir.join("pipe.sock");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o666.into()).unwrap();
    stranger.claim("zone.sock", &zone, "/nowhere");
    assert!(soon(|| run(&format!("info {zone}:home"))).ok().out.contains("told by the fake"));
    assert!(soon(|| run("zone list")).ok().out.contains(&zone));
    assert_eq!(fs::read_dir(&stranger.dir).unwrap().count(), 202);
}

/// What is not a directory of the user in whose name it stands, alone, is not looked into.
#[test]
fn a_directory_that_others_could_have_made_is_not_looked_into() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let (zone, _lock) = locked_zone(&scratch);
    let owner = Stranger::without_dir();
    let other = Stranger::without_dir();
    chown(&zone, Some(owner.user), None).unwrap();
    let is_not_asked = |who: &Stranger, why: &str| {
        soon(|| run(&format!("info {zone}:home"))).fails(1, &["is in use by"]);
        soon(|| run("zone list")).ok();
        assert_eq!(who.heard(), Vec::<Json>::new(), "{why}");
    };
    let hello = hello(&zone, "/nowhere");
    let answer = move |_: &Json| Some(json!({ "ok": hello }));

    // A symbolic link to a directory of theirs.
    let elsewhere = scratch.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    chown(&elsewhere, Some(owner.user), None).unwrap();
    owner.serve(elsewhere.join("zone.sock"), answer.clone());
    symlink(&elsewhere, &owner.dir).unwrap();
    is_not_asked(&owner, "a symbolic link");
    fs::remove_file(&owner.dir).unwrap();

    // Somebody else made it: root does not look there, and neither does whose name it has.
    as_user(other.user, {
        let dir = owner.dir.clone();
        move || fs::DirBuilder::new().mode(0o755).create(dir).unwrap()
    });
    other.serve(owner.dir.join("zone.sock"), answer.clone());
    fs::set_permissions(owner.dir.join("zone.sock"), PermissionsExt::from_mode(0o777)).unwrap();
    is_not_asked(&other, "another's");
    let program = scratch.path("amberfs");
    copy_program(&program);
    PROGRAMS.lock().unwrap().push(program.clone());
    let mut own = Command::new("setpriv");
    own.args([
        &format!("--reuid={}", owner.user),
        &format!("--regid={}", owner.user),
        "--clear-groups",
        "--",
    ]);
    own.arg(&program).args(["info", &format!("{zone}:home")]).env_remove("XDG_RUNTIME_DIR");
    Run::of(own.output().unwrap()).fails(1, &["is in use by"]);
    assert_eq!(other.heard(), Vec::<Json>::new(), "its own user asks nobody there, either");
    fs::remove_dir_all(&owner.dir).unwrap();

    // Theirs, with a socket at which somebody else listens, and with a link to a socket.
    owner.make_dir(owner.dir.clone());
    let root = Stranger { user: 0, dir: owner.dir.clone(), heard: Arc::default() };
    root.serve(owner.dir.join("roots.sock"), answer.clone());
    symlink(elsewhere.join("zone.sock"), owner.dir.join("link.sock")).unwrap();
    is_not_asked(&root, "who listens is not the owner");
    assert_eq!(owner.heard(), Vec::<Json>::new(), "a symbolic link to a socket");

    // Theirs, but others may write to it. And that this would have been asked, if they might not:
    owner.serve(owner.dir.join("zone.sock"), answer);
    fs::set_permissions(&owner.dir, PermissionsExt::from_mode(0o777)).unwrap();
    is_not_asked(&owner, "others may write to it");
    fs::set_permissions(&owner.dir, PermissionsExt::from_mode(0o755)).unwrap();
    run(&format!("info {zone}:home")).ok();
    assert!(!owner.heard().is_empty());
    assert!(Path::new(&zone).exists());
}
