"""Names and inodes: removed and open, renamed, listed, opened by handle, without a name."""

import ctypes
import errno
import os
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
import time

from support import check, child, elsewhere, ended_well, expect, get, libc, put, rename2, ROOT, Skip


@check
def an_unlinked_file_lives_until_it_is_closed():
    fd = os.open(put("unlinked", b"old"), os.O_RDWR)
    second = os.open("unlinked", os.O_RDONLY)
    os.unlink("unlinked")
    assert os.fstat(fd).st_nlink == 0
    put("unlinked", b"new")
    os.pwrite(fd, b"OLD and longer", 0)
    os.ftruncate(fd, 7)
    os.fchmod(fd, 0o600)
    os.close(fd)
    assert os.read(second, 100) == b"OLD and" and os.fstat(second).st_mode & 0o777 == 0o600
    assert get("unlinked") == b"new"


@check
def closing_an_unlinked_file_frees_its_space():
    free = lambda: os.statvfs(".").f_bfree
    before = free()
    fd = os.open("large", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"x" * (4 << 20))
    os.fsync(fd)
    os.unlink("large")
    held = free()
    assert held <= before - 900, f"{before - held} blocks held by an open file of 1024"
    os.close(fd)
    for _ in range(1500):
        if free() >= before - 8:
            return
        time.sleep(0.02)
    raise AssertionError(f"{before - free()} blocks lost")


@check
def renaming_over_an_open_file_leaves_it_readable():
    fd = os.open(put("target", b"target"), os.O_RDONLY)
    os.rename(put("source", b"source"), "target")
    assert os.read(fd, 10) == b"target" and get("target") == b"source"


@check
def a_removed_working_directory_still_answers():
    os.mkdir("gone")

    def worker():
        os.chdir("gone")
        os.rmdir("../gone")
        assert stat.S_ISDIR(os.stat(".").st_mode)
        assert os.listdir(".") == []
        expect(errno.ENOENT, os.open, "new", os.O_CREAT | os.O_WRONLY)
        expect(errno.ENOENT, os.mkdir, "new")
        expect(errno.ENOENT, os.stat, "old")

    elsewhere(worker)


@check
def an_unlinked_fifo_still_connects():
    os.mkfifo("fifo")
    fd = os.open("fifo", os.O_RDWR)
    os.unlink("fifo")
    os.write(fd, b"x")
    assert os.read(fd, 1) == b"x" and os.fstat(fd).st_nlink == 0


@check
def what_is_held_without_a_name_keeps_its_number():
    os.mkfifo("fifo")
    os.symlink("target", "link")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    if ROOT:
        os.mknod("node", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    held = {name: os.open(name, os.O_PATH | os.O_NOFOLLOW) for name in os.listdir(".")}
    before = {name: os.fstat(fd) for name, fd in held.items()}
    for name in held:
        os.unlink(name)
    numbers = {os.stat(put(f"file-{n}")).st_ino for n in range(100)}
    for name, fd in held.items():
        assert before[name].st_ino not in numbers, f"another file has the number of the {name}"
        if name != "link":
            os.chmod(f"/proc/self/fd/{fd}", 0o640)
        after = os.fstat(fd)
        assert (after.st_ino, stat.S_IFMT(after.st_mode)) == (before[name].st_ino, stat.S_IFMT(before[name].st_mode)), name
        assert after.st_nlink == 0 and after.st_mode & 0o7777 == (0o777 if name == "link" else 0o640), (name, after)
    assert os.readlink("", dir_fd=held["link"]) == "target"


@check
def sockets_and_fifos_connect_processes():
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket")
    server.listen()

    def client():
        peer = socket.socket(socket.AF_UNIX)
        peer.connect("socket")
        peer.send(b"hello")

    pid = child(client)
    assert server.accept()[0].recv(5) == b"hello"
    ended_well(pid)
    os.mkfifo("pipe")
    pid = child(lambda: os.write(os.open("pipe", os.O_WRONLY), b"hi"))
    assert os.read(os.open("pipe", os.O_RDONLY), 2) == b"hi"
    ended_well(pid)


@check
def rename_flags_work():
    NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
    put("left", b"l"), put("right", b"r")
    expect(errno.EEXIST, rename2, "left", "right", NOREPLACE)
    rename2("left", "right", EXCHANGE)
    assert (get("left"), get("right")) == (b"r", b"l")
    rename2("left", "free", NOREPLACE)
    assert get("free") == b"r" and not os.path.exists("left")
    rename2("free", "other", WHITEOUT)
    left = os.lstat("free")
    assert (get("other"), left.st_mode, left.st_rdev) == (b"r", stat.S_IFCHR, 0)
    rename2("right", "other", WHITEOUT)
    assert get("other") == b"l" and os.lstat("right").st_ino != left.st_ino
    expect(errno.EINVAL, rename2, "other", "free", WHITEOUT | EXCHANGE)


@check
def an_overlay_has_its_upper_layer_here():
    if not ROOT or "\toverlay\n" not in open("/proc/filesystems").read():
        raise Skip("it takes root, and a kernel that has overlays")
    with tempfile.TemporaryDirectory() as lower:
        put(lower + "/changed", b"old"), put(lower + "/gone", b"g"), put(lower + "/moved", b"m")
        os.mkdir(lower + "/tree"), put(lower + "/tree/leaf", b"leaf")
        for name in "upper", "work", "merged":
            os.mkdir(name)
        here = os.getcwd()
        layers = f"lowerdir={lower},upperdir={here}/upper,workdir={here}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, "merged"], check=True)
        try:
            with open("merged/changed", "ab") as file:
                file.write(b" and new")
            os.unlink("merged/gone")
            os.rename("merged/moved", "merged/there")
            shutil.rmtree("merged/tree")
            os.mkdir("merged/tree")
            assert sorted(os.listdir("merged")) == ["changed", "there", "tree"]
            assert (get("merged/changed"), get("merged/there")) == (b"old and new", b"m")
            assert os.listdir("merged/tree") == []
        finally:
            subprocess.run(["umount", "merged"], check=True)
        for name in "gone", "moved":
            assert stat.S_ISCHR(os.lstat("upper/" + name).st_mode), name
        assert os.getxattr("upper/tree", "trusted.overlay.opaque") == b"y"
        assert (get("upper/changed"), get(lower + "/changed")) == (b"old and new", b"old")


@check
def listing_while_removing_shows_each_name_once():
    os.mkdir("many")
    names = {f"entry-{number:05}" for number in range(5000)}
    for name in names:
        put("many/" + name)
    seen = []
    with os.scandir("many") as entries:
        for entry in entries:
            seen.append(entry.name)
            os.unlink(entry.path)
    assert len(seen) == len(names) and set(seen) == names
    assert os.listdir("many") == []
    os.rmdir("many")


@check
def a_listing_shows_what_another_process_has_changed():
    os.mkdir("listed")
    put("listed/a")
    assert os.listdir("listed") == ["a"] == os.listdir("listed")
    elsewhere(put, "listed/b")
    assert sorted(os.listdir("listed")) == ["a", "b"]
    elsewhere(os.rename, "listed/a", "listed/c")
    assert sorted(os.listdir("listed")) == ["b", "c"]
    elsewhere(os.unlink, "listed/b")
    assert os.listdir("listed") == ["c"] and not os.path.exists("listed/b")


@check
def files_open_by_handle():
    if not ROOT:
        raise Skip("needs root")
    put("handled", b"by handle")
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    mount_id = ctypes.c_int()
    if libc.name_to_handle_at(-100, b"handled", handle, ctypes.byref(mount_id), 0) != 0:
        if ctypes.get_errno() == errno.EOPNOTSUPP:
            raise Skip("mounted without nfs_export")
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    at = os.open(".", os.O_RDONLY)
    fd = libc.open_by_handle_at(at, handle, os.O_RDONLY)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    assert os.read(fd, 20) == b"by handle"
    os.close(fd)
    os.unlink("handled")
    for _ in range(1500):  # The kernel and the server forget the inode in their own time.
        fd = libc.open_by_handle_at(at, handle, os.O_RDONLY)
        if fd < 0:
            assert ctypes.get_errno() == errno.ESTALE, errno.errorcode[ctypes.get_errno()]
            return
        os.close(fd)
        time.sleep(0.02)
    raise AssertionError("a removed file still opens by handle")


@check
def files_without_a_name_get_one():
    try:
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o644)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise Skip("O_TMPFILE is not supported") from error
        raise
    os.write(fd, b"unnamed")
    if libc.linkat(-100, b"/proc/self/fd/%d" % fd, -100, b"named", 0x400) != 0:
        raise OSError(ctypes.get_errno(), "linkat")
    assert get("named") == b"unnamed"
