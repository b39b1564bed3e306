//! What chattr(1) sets on mounts, of native volumes and of disks.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use crate::attached::{e2fsck, place as place_with_disk};
use crate::support::mounted::{place, shell};
use crate::support::run;

/// Where `chattr +i` or `+a` had been, nothing could be read on a mount.
#[test]
fn what_the_kernel_had_protected_could_not_be_read() {
    let Some((scratch, zone, disk, dir)) = place_with_disk() else { return };
    let at = |name: &str| scratch.path("mnt").join(name);
    shell(&format!("mount -o loop {disk} {dir}")).ok();
    fs::write(at("fixed"), "fixed").unwrap();
    fs::write(at("log"), "log\n").unwrap();
    shell(&format!("chattr +i {dir}/fixed && chattr +a {dir}/log && umount {dir}")).ok();
    run(&format!("attach {zone}:disk {disk} --size 24M")).ok();
    run(&format!("mount {zone}:disk {dir}")).ok();
    assert_eq!(
        (fs::read(at("fixed")).unwrap(), fs::read(at("log")).unwrap()),
        (b"fixed".into(), b"log\n".into())
    );
    let mut log = fs::OpenOptions::new().append(true).open(at("log")).unwrap();
    for _ in 0..3 {
        log.write_all(&[b'n'; 3_000_001]).unwrap();
        log.sync_all().unwrap();
        log.write_all(b"\n").unwrap();
    }
    drop(log);
    for name in ["fixed", "log"] {
        let refused = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied, "{name}");
        };
        refused(fs::remove_file(at(name)));
        refused(fs::rename(at(name), at("other")));
        refused(File::create(at(name)).map(drop));
        let file = fs::OpenOptions::new().read(true).write(true).open(at(name)).unwrap();
        refused((&file).write_all(b"?").and_then(|()| if name == "log" { file.sync_all() } else { Ok(()) }));
    }
    run(&format!("umount {dir}")).ok();
    run(&format!("detach {zone}:disk")).ok();
    e2fsck(&disk);
    shell(&format!("mount -o loop {disk} {dir}")).ok();
    let line = [&vec![b'n'; 3_000_001][..], b"\n"].concat();
    assert_eq!(fs::read(at("fixed")).unwrap(), b"fixed");
    assert!(fs::read(at("log")).unwrap() == [b"log\n", &line.repeat(3)[..]].concat());
    shell(&format!("chattr -i {dir}/fixed && chattr -a {dir}/log && umount {dir}")).ok();
}

/// What is protected on the volume that is mounted with `mount` can be told, and cannot be removed or changed.
fn is_protected(mount: &str, dir: &str) {
    let at = |name: &str| Path::new(dir).join(name);
    let forbidden = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
    };
    for options in ["transport=device", "durability=op"] {
        run(&format!("mount {mount} {dir} -o {options}")).ok();
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("sub/file"), "before").unwrap();
        let mut open = File::options().append(true).open(at("sub/file")).unwrap();
        // It is in the kernel's pages alone still, but where chattr(1) has opened and closed the file before.
        open.write_all(b" and until").unwrap();
        let before = ioctl_getflags(&open).unwrap();
        ioctl_setflags(&open, before | IFlags::IMMUTABLE).unwrap();
        shell(&format!("chattr -R +i {dir}/sub && lsattr {dir}/sub | grep -q -- ----i---------")).ok();
        forbidden(open.write_all(b"after"));
        drop(open);
        run(&format!("umount {dir}")).ok();
        run(&format!("mount {mount} {dir} -o {options}")).ok();
        assert_eq!(fs::read(at("sub/file")).unwrap(), b"before and until");
        forbidden(fs::remove_file(at("sub/file")));
        forbidden(fs::write(at("sub/new"), ""));
        forbidden(fs::rename(at("sub"), at("other")));
        shell(&format!("chattr -R -i {dir}/sub && chattr +ad {dir}/sub/file")).ok();
        shell(&format!("chattr +S {dir}/sub")).fails(1, &["Operation not supported"]);
        let mut open = File::options().append(true).open(at("sub/file")).unwrap();
        open.write_all(b" again").and_then(|()| open.sync_all()).unwrap();
        drop(open);
        forbidden(fs::remove_file(at("sub/file")));
        forbidden(File::create(at("sub/file")).map(drop));
        assert_eq!(fs::read(at("sub/file")).unwrap(), b"before and until again");
        shell(&format!("touch {dir}/sub/file")).ok();
        shell(&format!("touch -d @1 {dir}/sub/file")).fails(1, &["Operation not permitted"]);
        let told = shell(&format!("lsattr {dir}/sub | cut -c6-7; chattr -a {dir}/sub/file")).ok();
        assert_eq!(told.out, "ad\n");
        let over = File::options().write(true).open(at("sub/file")).unwrap();
        over.write_all_at(b"B", 0).and_then(|()| over.sync_all()).unwrap();
        drop(over);
        fs::remove_dir_all(at("sub")).unwrap();
        run(&format!("umount {dir}")).ok();
    }
}

/// A mount said that it had no flags, and what was protected on the disk could neither be told nor removed.
#[test]
fn chattr_did_not_work_on_mounts_of_disks() {
    let Some((_scratch, zone, disk, dir)) = place_with_disk() else { return };
    run(&format!("attach {zone}:disk {disk} --size 24M")).ok();
    is_protected(&format!("{zone}:disk"), &dir);
    run(&format!("detach {zone}:disk")).ok();
    e2fsck(&disk);
}

#[test]
fn chattr_did_not_work_on_native_volumes() {
    let Some((scratch, zone, dir)) = place() else { return };
    let at = |name: &str| scratch.path("mnt").join(name);
    is_protected(&format!("{zone}:home"), &dir);
    run(&format!("mount {zone}:home {dir}")).ok();
    fs::write(at("file"), "kept").unwrap();
    shell(&format!("chattr +i {dir}/file")).ok();
    run(&format!("snapshot take {dir} fixed")).ok();
    shell(&format!("chattr =A {dir}/file")).ok();
    let told = run(&format!("snapshot diff {dir} fixed --json")).ok().json();
    assert_eq!(told["differences"][0]["what"], serde_json::json!(["flags"]), "{told}");
    let shown = shell(&format!("lsattr {dir}/.snapshots/fixed/file {dir}/file | cut -c1-8")).ok();
    assert_eq!(shown.out, "----i---\n-------A\n");
    shell(&format!("chattr -i {dir}/.snapshots/fixed/file")).fails(1, &["Read-only file system"]);
    let kept = File::options().write(true).open(at(".snapshots/fixed/file")).unwrap();
    assert_eq!(kept.write_at(b"not so", 0).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(kept.set_len(0).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    drop(kept);
    run(&format!("umount {dir}")).ok();
    run(&format!("snapshot rollback {zone}:home fixed")).ok();
    run(&format!("mount {zone}:home {dir}")).ok();
    assert_eq!(fs::remove_file(at("file")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    run(&format!("umount {dir}")).ok();
    run(&format!("fsck -n {zone}:home")).ok();
}

/// The same by the numbers of XFS, as xfs_io(8) sets them.
#[test]
fn flags_had_one_name_of_two() {
    let Some((_scratch, zone, dir)) = place() else { return };
    run(&format!("mount {zone}:home {dir}")).ok();
    let program = "
import fcntl, struct, sys
file = open(sys.argv[1], 'w')
def set(flags, project=0):
    fcntl.ioctl(file, 0x401c5820, struct.pack('=5I8x', flags, 0, 0, project, 0))
set(0x8)
print(struct.unpack('=5I8x', fcntl.ioctl(file, 0x801c581f, bytes(28))))
try:
    set(0x8 | 0x80, 7)
except OSError as error:
    print(error.strerror)
set(0x80)
";
    let told =
        shell(&format!("python3 - {dir}/file <<'END'{program}END\nlsattr {dir}/file | cut -c1-8")).ok();
    assert_eq!(told.out, "(8, 0, 0, 0, 0)\nOperation not supported\n------d-\n");
    run(&format!("umount {dir}")).ok();
}

/// Whoever wrote over a log that may only grow kept others from appending to the same page, for as long as the kernel had that. And what had
/// been stored to a mapping before `chattr +i` was lost where operations are durable; its times were lost anywhere.
#[test]
fn what_was_on_its_way_was_refused() {
    let Some((scratch, zone, dir)) = place() else { return };
    let at = |name: &str| scratch.path("mnt").join(name);
    for options in ["durability=fsync", "durability=op"] {
        run(&format!("mount {zone}:home {dir} -o {options}")).ok();
        fs::write(at("log"), "one\n").unwrap();
        shell(&format!("chattr +a {dir}/log")).ok();
        let over = File::options().write(true).open(at("log")).unwrap();
        let refused = over.write_at(b"X", 0).and_then(|_| over.sync_all());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
        let mut log = File::options().append(true).open(at("log")).unwrap();
        for line in ["two\n", "three\n", "four\n"] {
            log.write_all(line.as_bytes()).unwrap();
            let _ = log.sync_all(); // it may be told of what was refused
        }
        drop((over, log));
        let stored = "
import fcntl, mmap, os, struct, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(file, b'x' * 5000)
os.fsync(file)
os.utime(file, (1, 1))
pages = mmap.mmap(file, 5000)
pages[:6] = b'stored'
fcntl.ioctl(file, 0x40086602, struct.pack('=Q', 0x10))
pages.flush()
os.fsync(file)
";
        shell(&format!("python3 - {dir}/stored <<'END'{stored}END")).ok();
        let modified = fs::metadata(at("stored")).unwrap().modified().unwrap();
        assert!(modified.elapsed().unwrap().as_secs() < 60);
        run(&format!("umount {dir}")).ok();
        run(&format!("mount {zone}:home {dir} -o {options}")).ok();
        assert_eq!(fs::read_to_string(at("log")).unwrap(), "one\ntwo\nthree\nfour\n", "{options}");
        assert_eq!(fs::read(at("stored")).unwrap()[..6], *b"stored", "{options}");
        assert_eq!(fs::metadata(at("stored")).unwrap().modified().unwrap(), modified, "{options}");
        shell(&format!("cd {dir}; chattr -a log; chattr -i stored; rm log stored")).ok();
        run(&format!("umount {dir}")).ok();
    }
}
