//! Mounts in mount namespaces of their own, and of ordinary users.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::support::mounted::{place, shell};
use crate::support::{PROGRAM, Run, Scratch, can_mount, run};

/// As mount(8) and umount(8) call their helpers with `-N`.
#[test]
fn a_volume_is_mounted_in_another_namespace() {
    if !can_mount() || shell("unshare --mount true").code != 0 {
        let _ = writeln!(std::io::stderr(), "LEFT OUT: mounting in another namespace needs unshare");
        return;
    }
    let scratch = Scratch::new();
    let (zone, dir) = (scratch.zone(), scratch.mount_point("mnt"));
    let mut there = Command::new("unshare");
    there.args(["--mount", "--propagation", "private", "sh", "-c", "echo ready; exec cat"]);
    let mut there = there.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    there.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let pid = there.id();
    for name in ["mount.amberfs", "umount.fuse.amberfs"] {
        std::os::unix::fs::symlink(PROGRAM, scratch.path(name)).unwrap();
    }
    let helper = |line: &str| shell(&format!("{}/{line}", scratch.text("").trim_end_matches('/')));
    helper(&format!("mount.amberfs {zone}:home {dir} -n -N {pid} -o rw")).ok();
    shell(&format!("nsenter --target {pid} --mount sh -c 'echo there > {dir}/file'")).ok();
    assert!(!scratch.path("mnt/file").exists(), "it is not mounted here");
    run(&format!("mount {zone}:home {dir}")).fails(32, &["another mount namespace", "nothing was mounted"]);
    helper(&format!("umount.fuse.amberfs {dir} -N /proc/{pid}/ns/mnt")).ok();
    run(&format!("mount {zone}:home {dir}")).ok();
    assert_eq!(std::fs::read_to_string(scratch.path("mnt/file")).unwrap(), "there\n");
    run(&format!("umount {dir}")).ok();
    run(&format!("mount -N no-such-file {zone}:home {dir}")).fails(32, &["entering the mount namespace"]);
    // Its owner could have put any program in the place of the server's.
    let mut theirs = Command::new("unshare");
    theirs.args(["--user", "--map-root-user", "--mount", "sh", "-c", "echo ready; exec cat"]);
    let mut theirs = theirs.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    if theirs.stdout.as_mut().unwrap().read_exact(&mut ready).is_ok() {
        for namespace in [theirs.id().to_string(), format!("/proc/{}/ns/mnt", theirs.id())] {
            let refused = run(&format!("mount -N {namespace} {zone}:home {dir}"));
            refused.fails(32, &["another user namespace", "nsenter(1)"]);
        }
    } else {
        let _ = writeln!(std::io::stderr(), "LEFT OUT: no user namespaces here");
    }
    drop(theirs.stdin.take());
    theirs.wait().unwrap();
    drop(there.stdin.take());
    there.wait().unwrap();
}

/// In a mount namespace of its own, because `/dev/fuse` is not open to everyone on every machine.
#[test]
fn an_ordinary_user_mounts_with_fusermount() {
    let there = |program: &str| shell(&format!("command -v {program}")).code == 0;
    if !can_mount() || !["fusermount3", "runuser", "unshare"].into_iter().all(there) {
        let _ = writeln!(
            std::io::stderr(),
            "LEFT OUT: mounting as an ordinary user needs fusermount3, runuser and unshare"
        );
        return;
    }
    let scratch = Scratch::new();
    let script = r#"
        set -ex
        dir=$1 home=$1/home
        # Whatever fails, no server stays.
        trap 'umount --lazy "$home/mnt" || true' EXIT
        alone
        mount -t tmpfs -o mode=755 tmpfs "$dir"
        mknod -m 666 "$dir/fuse" c 10 229
        mount --bind "$dir/fuse" /dev/fuse
        # The program may lie where an ordinary user cannot look.
        cp "$2" "$dir/amberfs"
        mkdir "$home"
        chown nobody "$home"
        # As a login makes it, here alone.
        mkdir -p /run/user
        mount -t tmpfs -o mode=755 tmpfs /run/user
        run=/run/user/$(id -u nobody)
        mkdir -m 700 "$run"
        chown nobody "$run"
        as_user() { (cd / && runuser -u nobody -- env XDG_RUNTIME_DIR="$run" "$@"); }
        user() { as_user "$dir/amberfs" "$@"; }
        as_user mkdir "$home/mnt"
        user zone create "$home/zone" --size 64M
        user mkfs "$home/zone:mine"
        user mount "$home/zone:mine" "$home/mnt"
        as_user sh -ec 'echo hello > "$1/file"; sync "$1/file"' sh "$home/mnt"
        [ "$(as_user cat "$home/mnt/file")" = hello ]
        user stats "$home/mnt" --json | grep -F "$home/zone:mine"
        # Root may ask, also the kernel through the server, and unmount.
        "$dir/amberfs" df "$home/mnt" --json | grep '"bytes": *[1-9]'
        "$dir/amberfs" stats "$home/mnt" --json | grep -F "$home/zone:mine"
        "$dir/amberfs" info "$home/zone:mine" | grep "mounted *$home/mnt"
        "$dir/amberfs" zone list | grep "^ *$home/zone .*mine on $home/mnt"
        "$dir/amberfs" umount "$home/mnt"
        user info "$home/zone:mine" | grep "clean *yes"
        user mount "$home/zone:mine" "$home/mnt"
        user umount "$home/mnt"
        user fsck "$home/zone:mine"
        # The root of a user namespace has no directory in /run.
        as_user unshare --user --map-root-user --mount sh -ec '
            trap "umount --lazy $3 || true" EXIT
            "$1" mount "$2:mine" "$3" 2>&1 | { ! grep . >&2; }
            "$1" stats "$3" --json | grep -F "$2:mine"
            "$1" umount "$3"
        ' sh "$dir/amberfs" "$home/zone" "$home/mnt"
        # Root's zone is not the user's.
        "$dir/amberfs" zone create "$dir/zone" --size 64M
        chmod 600 "$dir/zone"
        ! user zone show "$dir/zone"
        "$dir/amberfs" mkfs "$dir/zone:of-root"
        mkdir "$dir/mnt"
        "$dir/amberfs" mount "$dir/zone:of-root" "$dir/mnt"
        user umount "$dir/mnt" 2>&1 | grep "mounted by root, who alone may unmount it"
        "$dir/amberfs" umount "$dir/mnt"
    "#;
    in_namespace(script, &[scratch.text("").trim_end_matches('/'), PROGRAM]).ok();
}

/// A zone whose server did not answer was missing in the list, and "not mounted". Where servers listen nobody else looks meanwhile.
#[test]
fn a_server_that_does_not_answer_is_told() {
    let Some((_scratch, zone, dir)) = place() else { return };
    let script = r#"
        set -ex
        mounted "$@"
        pid=$("$amberfs" stats "$dir" --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
        kill -STOP "$pid"
        trap 'kill -CONT "$pid"; "$amberfs" umount "$dir"' EXIT
        said="process $pid, a server of yours, has not answered"
        not_waited() { ! grep "$said" >&2; }
        "$amberfs" zone list 2>&1 | grep "$said"
        "$amberfs" stats "$zone:home" 2>&1 | tee /dev/stderr | grep "in use by process $pid"
        # Who wants another zone's server does not wait for it: neither if there is none, nor if there is one.
        "$amberfs" zone create "$zone.other" --size 64M
        "$amberfs" mkfs "$zone.other:home"
        mkdir "$dir.other"
        "$amberfs" mount "$zone.other:home" "$dir.other" 2>&1 | tee /dev/stderr | not_waited
        "$amberfs" info "$zone.other:home" 2>&1 | tee /dev/stderr | not_waited
        "$amberfs" umount "$dir.other"
    "#;
    in_namespace(script, &[PROGRAM, &zone, &dir]).ok();
}

/// With a copy elsewhere it stays in service, and nobody knew why `umount` did not return.
#[test]
fn what_an_unmount_waits_for_is_told() {
    let Some((_scratch, zone, dir)) = place() else { return };
    let script = r#"
        set -ex
        mounted "$@"
        unshare --mount --propagation private sleep 6 &
        for _ in $(seq 100); do [ "$(cat /proc/$!/comm)" = sleep ] && break; sleep 0.1; done
        "$amberfs" umount "$dir" 2>&1 | tee /dev/stderr | grep "unmounted here; waiting"
        wait
    "#;
    in_namespace(script, &[PROGRAM, &zone, &dir]).ok();
}

/// Runs a script in a mount namespace, where `alone` has nothing mounted be seen elsewhere, and gives up copies of other tests' mounts: with one
/// left, their servers would wait for us; `mounted` also mounts a volume, whose server listens where nobody else looks.
fn in_namespace(script: &str, arguments: &[&str]) -> Run {
    const ALONE: &str = r#"
        alone() {
            mount --make-rprivate /
            awk '$3 == "fuse.amberfs" { print $2 }' /proc/mounts |
                while read -r other; do umount --lazy "$other" || true; done
        }
        mounted() {
            amberfs=$1 zone=$2 dir=$3
            alone
            mount -t tmpfs tmpfs /run
            "$amberfs" mount "$zone:home" "$dir"
        }
    "#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{ALONE}{script}"), "sh"]).args(arguments);
    Run::of(command.output().unwrap())
}
