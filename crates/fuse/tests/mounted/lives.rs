//! How long things live: inodes without names, handles, mounts.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::io::Errno;

use super::support::{Mounted, PANICS, SILENCE, disturbing, eventually, undisturbed};
use fuse::{Error, MountOptions};

#[test]
fn unlinked_files_live_while_they_are_open() {
    let mounted = Mounted::new();
    let path = mounted.path("file");
    fs::write(&path, b"contents").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(b"CONT", 0).unwrap();
    file.set_len(6).unwrap();
    let mut read = [0; 6];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"CONTen");
    drop(file);
    eventually("closing the orphan", || mounted.volume.open_handles() == 0);
}

/// Its number is another mount's next, and its server is at work still.
#[test]
fn a_mount_that_has_ended_is_known_at_once() {
    let mounted = Mounted::new();
    let unmounter = mounted.mount().unmounter();
    assert!(!unmounter.has_ended());
    let undisturbed = undisturbed();
    rustix::mount::unmount(mounted.dir(), rustix::mount::UnmountFlags::empty()).unwrap();
    drop(undisturbed);
    assert!(unmounter.has_ended());
    mounted.end();
    assert!(unmounter.has_ended());
}

#[test]
fn a_file_without_a_name_lives_and_can_be_given_one() {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags};
    let mounted = Mounted::new();
    let open = || {
        rustix::fs::open(
            mounted.dir(),
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )
    };
    let dropped = File::from(open().unwrap());
    let kept = File::from(open().unwrap());
    dropped.write_all_at(b"nobody", 0).unwrap();
    kept.write_all_at(b"somebody", 0).unwrap();
    assert_eq!(kept.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_dir(mounted.dir()).unwrap().count(), 0);
    let by_number = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&kept));
    rustix::fs::linkat(CWD, &by_number, CWD, mounted.path("name"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop((dropped, kept));
    assert_eq!(fs::read(mounted.path("name")).unwrap(), b"somebody");
    eventually("the file without a name is gone", || mounted.volume.open_handles() <= 1);
}

/// Handles of files that have names are closed when there are many; this one is all there is of the file.
#[test]
fn a_file_without_a_name_outlives_many_others() {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags};
    let mounted = Mounted::new();
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(mounted.dir(), flags, Mode::RUSR | Mode::WUSR).unwrap());
    for number in 0..3000 {
        fs::write(mounted.path(&format!("file-{number}")), b"other").unwrap();
    }
    assert!(mounted.volume.open_handles() <= 2049, "{}", mounted.volume.open_handles());
    file.write_all_at(b"there", 0).unwrap();
    let by_number = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, &by_number, CWD, mounted.path("name"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(mounted.path("name")).unwrap(), b"there");
    drop(file);
    for number in 0..3000 {
        fs::write(mounted.path(&format!("more-{number}")), b"other").unwrap();
    }
    assert!(mounted.volume.open_handles() <= 2048, "it is one of many again");
    assert_eq!(fs::read(mounted.path("name")).unwrap(), b"there");
}

/// Over a ring, bytes are in place before it is known whether they are right.
#[test]
fn a_read_that_fails_at_its_end_fails() {
    let mounted = Mounted::new();
    fs::write(mounted.path("file"), [7; 4096]).unwrap();
    let file = OpenOptions::new().read(true).open(mounted.path("file")).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    mounted.volume.fail_reads();
    let read = file.read_at(&mut [0; 4096], 0);
    if mounted.mount().over_io_uring() {
        assert_eq!(read.unwrap_err().raw_os_error(), Some(5), "EIO");
    } // The kernel itself copies from the medium otherwise, and sees.
    assert!(mounted.path("file").exists(), "it serves on");
}

#[test]
fn replaced_files_live_while_they_are_open() {
    let mounted = Mounted::new();
    fs::write(mounted.path("old"), b"old").unwrap();
    fs::write(mounted.path("new"), b"new").unwrap();
    let old = File::open(mounted.path("old")).unwrap();
    fs::rename(mounted.path("new"), mounted.path("old")).unwrap();
    let mut read = [0; 3];
    old.read_exact_at(&mut read, 0).unwrap();
    assert_eq!((&read, old.metadata().unwrap().nlink()), (b"old", 0));
    assert_eq!(fs::read(mounted.path("old")).unwrap(), b"new");
}

#[test]
fn one_of_two_links_may_go() {
    let mounted = Mounted::new();
    fs::write(mounted.path("one"), b"1").unwrap();
    fs::hard_link(mounted.path("one"), mounted.path("two")).unwrap();
    let file = File::open(mounted.path("one")).unwrap();
    fs::remove_file(mounted.path("one")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    assert_eq!(fs::read(mounted.path("two")).unwrap(), b"1");
    fs::remove_file(mounted.path("two")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
}

#[test]
fn what_cannot_be_opened_lives_on_without_a_name() {
    let mounted = Mounted::new();
    symlink("target", mounted.path("link")).unwrap();
    // O_PATH | O_NOFOLLOW: a descriptor of the link itself.
    let link = rustix_open_path(&mounted.path("link"));
    fs::remove_file(mounted.path("link")).unwrap();
    let attributes = link.metadata().unwrap();
    assert_eq!((attributes.nlink(), attributes.file_type().is_symlink()), (0, true));
    let nobody = Some(rustix::fs::Uid::from_raw(65534));
    if rustix::process::geteuid().is_root() {
        rustix::fs::chownat(&link, "", nobody, None, rustix::fs::AtFlags::EMPTY_PATH).unwrap();
        assert_eq!(link.metadata().unwrap().uid(), 65534);
    }
    assert_eq!(rustix::fs::readlinkat(&link, "", Vec::new()).unwrap().as_bytes(), b"target");
    drop(link);
    eventually("forgetting the link", || mounted.volume.open_handles() == 0);
}

fn rustix_open_path(path: &Path) -> File {
    use rustix::fs::{Mode, OFlags, open};
    open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).unwrap().into()
}

#[test]
fn removed_directories_live_while_someone_is_in_them() {
    let mounted = Mounted::new();
    let dir = mounted.path("dir");
    fs::create_dir(&dir).unwrap();
    let disturbed = disturbing();
    let status = Command::new("sh")
        .current_dir(&dir)
        .args(["-c", r#"rmdir "$PWD" && stat . && [ -z "$(ls -A .)" ] && ! mkdir new && ! test -e new"#])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    drop(disturbed);
    assert!(status.success());
    eventually("closing the directory", || mounted.volume.open_handles() == 0);
}

#[test]
fn handles_kept_for_the_kernel_are_bounded_and_end_with_the_mount() {
    let mounted = Mounted::new();
    for number in 0..4000 {
        fs::write(mounted.path(&format!("file-{number}")), b"x").unwrap();
    }
    let open = mounted.volume.open_handles();
    assert!((1..=2048).contains(&open), "{open} handles are open");
    for number in (0..4000).step_by(7) {
        assert_eq!(fs::read(mounted.path(&format!("file-{number}"))).unwrap(), b"x");
    }
    assert_eq!(mounted.end().open_handles(), 0);
}

#[test]
fn a_panic_in_the_volume_is_an_io_error_and_no_more() {
    let mounted = Mounted::new();
    for _ in 0..10 {
        let error = fs::metadata(mounted.path(PANICS)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5), "{error}");
    }
    fs::write(mounted.path("file"), b"alive").unwrap();
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"alive");
    mounted.end();
}

#[test]
fn a_busy_mount_is_unmounted_lazily_only() {
    let mounted = Mounted::new();
    let mut file = File::create(mounted.path("file")).unwrap();
    match mounted.mount().unmounter().unmount(false) {
        Err(Error::Busy(dir)) => assert_eq!(dir, mounted.dir().canonicalize().unwrap()),
        other => panic!("{other:?}"),
    }
    mounted.mount().unmounter().unmount(true).unwrap();
    mounted.mount().unmounter().unmount(false).unwrap(); // Nothing is left to do.
    assert!(!mounted.path("file").exists(), "the directory is plain again");
    file.write_all(b"still served").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 12);
    drop(file);
    eventually("the end of the session", || mounted.volume.open_handles() == 0);
}

/// Device numbers are used again: who had unmounted a volume and did so once more took away the next one's mount.
#[test]
fn unmounting_again_leaves_a_later_mount_alone() {
    let device = |mounted: &Mounted| fs::metadata(mounted.dir()).unwrap().dev();
    for _ in 0..100 {
        let first = Mounted::new();
        let (unmounter, number) = (first.mount().unmounter(), device(&first));
        first.end();
        let second = Mounted::new();
        let used_twice = device(&second) == number;
        unmounter.unmount(true).unwrap();
        fs::write(second.path("file"), b"there").unwrap();
        assert_eq!(fs::metadata(second.path("file")).unwrap().dev(), device(&second));
        assert_ne!(device(&second), fs::metadata(second.dir().parent().unwrap()).unwrap().dev(), "unmounted");
        if used_twice {
            return;
        }
    }
    let _ = writeln!(
        std::io::stderr(),
        "LEFT OUT: unmounting again: the kernel used no device number twice in 100 mounts"
    );
}

/// Whoever was just taking a message, of the many that closing files sends, took the end for a failure.
#[test]
fn unmounting_while_files_are_being_closed_is_no_failure() {
    use rustix::fs::{Mode, OFlags};
    for _ in 0..60 {
        let mounted = Mounted::new();
        let undisturbed = undisturbed();
        let open = |_| {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            rustix::fs::open(mounted.dir(), flags, Mode::RUSR | Mode::WUSR).unwrap()
        };
        let files: Vec<_> = (0..500).map(open).collect();
        drop(files);
        drop(undisturbed);
        mounted.end();
    }
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let mounted = Mounted::with(&MountOptions { read_only: true, ..MountOptions::default() });
    let error = File::create(mounted.path("file")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(30), "{error}");
    assert_eq!(fs::read_dir(mounted.dir()).unwrap().count(), 0);
}

#[test]
fn mounting_on_what_is_no_directory_fails_clearly() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let volume = std::sync::Arc::new(vfs::model::Model::new());
    let error = fuse::mount(volume.clone(), file.path(), &MountOptions::default()).err().unwrap();
    assert!(matches!(error, Error::MountPoint { .. }), "{error}");
    assert!(error.to_string().contains("Not a directory"), "{error}");
    let error = fuse::mount(volume, Path::new("/nowhere/at/all"), &MountOptions::default()).err().unwrap();
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
}

#[test]
fn the_mount_table_shows_the_volume() {
    let mounted = Mounted::with(&MountOptions {
        fs_name: "/dev/shm/z:one,two".to_owned(),
        nosuid: true,
        nodev: true,
        noexec: true,
        noatime: true,
        ..MountOptions::default()
    });
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let dir = mounted.dir().canonicalize().unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(1) == dir.to_str()).unwrap();
    assert!(line.starts_with("/dev/shm/z:one,two "), "{line}");
    for word in ["fuse.amberfs", "rw", "nosuid", "nodev", "noexec", "noatime", "default_permissions"] {
        assert!(line.split([' ', ',']).any(|option| option == word), "{word}: {line}");
    }
}

/// The example server as a process of its own; `cargo test` builds it.
fn example() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let example = tests.parent().unwrap().parent().unwrap().join("examples/model");
    assert!(example.exists(), "{} is missing: run `cargo build --examples`", example.display());
    example
}

/// What tells the example server the way requests have to come.
fn way() -> &'static str {
    match crate::transport() {
        fuse::Transport::Ring => "io_uring",
        _ => "device",
    }
}

/// A server in a process of its own.
struct Server {
    process: Child,
    says: Receiver<String>,
}

impl Server {
    fn start(command: &mut Command) -> Server {
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let (tell, says) = mpsc::channel();
        std::thread::spawn(move || lines.for_each(|line| _ = tell.send(line)));
        Server { process, says }
    }

    /// Waits until it says this; gives the rest of the line.
    #[track_caller]
    fn hear(&self, what: &str) -> String {
        let mut heard = Vec::new();
        while let Ok(line) = self.says.recv_timeout(Duration::from_secs(60)) {
            if let Some((_, rest)) = line.split_once(what) {
                return rest.to_owned();
            }
            heard.push(line);
        }
        panic!("the server does not say '{what}', but {heard:#?}");
    }

    /// Kills it, and waits for its end.
    fn kill(mut self) {
        self.process.kill().unwrap();
        eventually("the server's end", || self.process.try_wait().unwrap().is_some());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
    }
}

#[test]
fn a_dead_servers_mount_point_can_be_unmounted() {
    let dir = tempfile::tempdir().unwrap();
    let dir_path = dir.path().canonicalize().unwrap();
    let disturbed = disturbing();
    let server = Server::start(Command::new(example()).arg(&dir_path).arg(way()));
    server.hear("mounted on ");
    drop(disturbed);
    server.kill();
    // Attributes may still be in the kernel's cache; a new name is not.
    let error = fs::write(dir_path.join("file"), b"").unwrap_err();
    // The last is of a request that the kernel had for a ring when the thread that waits on it was killed: a ring goes
    // behind its process, so that the mount may not know yet.
    let gone = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED].map(Errno::raw_os_error);
    assert!(error.raw_os_error().is_some_and(|errno| gone.contains(&errno)), "{error}");
    fuse::unmount(&dir_path, false).unwrap();
    assert_eq!(fs::read_dir(&dir_path).unwrap().count(), 0);
}

/// Over io_uring one stayed for ever, and so did whoever synced all file systems: the waiting thread kept the address space, and that
/// the rings, and those the connection.
#[test]
fn a_server_that_is_killed_while_it_asks_itself_ends() {
    const SERVER: &str = "AMBERFS_TEST_ASKS_ITSELF";
    if std::env::var_os(SERVER).is_some() {
        let mounted = Mounted::new();
        let _ = writeln!(std::io::stderr(), "mounted on {}", mounted.dir().display());
        let answer = fuse::apart(|| fs::metadata(mounted.path(SILENCE)).map(drop));
        panic!("that is never answered: {answer:?}");
    }
    let _disturbed = disturbing();
    let this = std::thread::current().name().unwrap().to_owned();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let server = Server::start(command.args(["--exact", &this, "--nocapture"]).env(SERVER, ""));
    let dir = PathBuf::from(server.hear("mounted on "));
    server.hear("asked for");
    server.kill();
    fuse::unmount(&dir, false).unwrap();
    fs::remove_dir(dir).unwrap();
}

/// As an ordinary user: through `fusermount3`, which must be set-user-ID root. In a mount namespace of its own,
/// because `/dev/fuse` is not open to everyone on every machine.
#[test]
fn ordinary_users_mount_and_unmount() {
    if !rustix::process::geteuid().is_root() {
        return; // Then all other tests have shown it.
    }
    let dir = tempfile::tempdir().unwrap();
    let script = r#"
        set -ex
        dir=$1 example=$2 way=$3
        mount --make-rprivate /
        # Copies of the mounts that other tests have at this moment: with one left, their servers would wait for us.
        awk '$3 == "fuse.amberfs" { print $2 }' /proc/mounts | while read -r other; do umount --lazy "$other" || true; done
        mount -t tmpfs -o mode=755 tmpfs "$dir"
        mknod -m 666 "$dir/fuse" c 10 229
        mount --bind "$dir/fuse" /dev/fuse
        cp "$example" "$dir/server"
        mkdir "$dir/mount"
        chown 65534:65534 "$dir/mount"
        as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"; }

        as_nobody timeout 240 "$dir/server" "$dir/mount" writeback "$way" >"$dir/log" 2>&1 &
        server=$!
        trap 'kill $server; cat "$dir/log"' EXIT
        for i in $(seq 2000); do grep -q " $dir/mount " /proc/mounts && break; sleep 0.05; done
        grep " $dir/mount fuse.amberfs rw,nosuid,nodev," /proc/mounts
        as_nobody sh -ec 'cd "$1"; echo text >file; sync file; chmod 600 file; [ "$(cat file)" = text ]; mkdir -p a/b' sh "$dir/mount"
        # Without allow_other, nobody else may look, not even root.
        if ls "$dir/mount"; then exit 1; fi
        as_nobody fusermount3 -u "$dir/mount"
        wait $server
        trap - EXIT
    "#;
    let _disturbed = disturbing();
    let output = Command::new("timeout")
        .args(["300", "unshare", "--mount", "sh", "-c", script, "sh"])
        .args([&dir.path().canonicalize().unwrap(), &example()])
        .arg(way())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
}
