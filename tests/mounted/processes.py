"""Checks of processes.sh, run in an empty directory of the file system. Prints `pass|skip|FAIL NAME: WHY`."""

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import signal
import socket
import sqlite3
import stat
import struct
import subprocess
import sys
import tempfile
import time

libc = ctypes.CDLL(None, use_errno=True)
CHECKS = []
ROOT = os.geteuid() == 0
NOBODY = 65534


class Skip(Exception):
    pass


def check(function):
    CHECKS.append(function)
    return function


def expect(error, call, *arguments):
    try:
        call(*arguments)
    except OSError as caught:
        assert caught.errno == error, f"{errno.errorcode.get(caught.errno)} instead of {errno.errorcode[error]}"
    else:
        raise AssertionError(f"no {errno.errorcode[error]}")


def child(function, *arguments):
    """Forks; the child's exit status says whether `function` succeeded."""
    pid = os.fork()
    if pid == 0:
        try:
            function(*arguments)
        except BaseException as error:
            print(f"{function.__name__}: {error!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return pid


def ended_well(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "a child process failed"


def elsewhere(function, *arguments):
    ended_well(child(function, *arguments))


def put(path, data=b"", mode=0o644):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)
    os.write(fd, data)
    os.close(fd)
    return path


def get(path):
    with open(path, "rb") as file:
        return file.read()


def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def rename2(old, new, flags):
    if libc.renameat2(-100, old.encode(), -100, new.encode(), flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def wait_for_tick():
    """Waits until the clock that files are stamped with, which ticks every few ms, is past now: seldom so soon on a busy machine. That it shows another
    time is not enough: stamps are never older than the newest that any file system took of the finer clock (Linux 6.13)."""
    now = time.time_ns()
    while time.clock_gettime_ns(5) <= now:  # CLOCK_REALTIME_COARSE
        time.sleep(0.004)


# Locks


@check
def flock_excludes_other_processes():
    fd = os.open(put("flock"), os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)

    def other():
        mine = os.open("flock", os.O_RDWR)
        expect(errno.EWOULDBLOCK, fcntl.flock, mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        expect(errno.EWOULDBLOCK, fcntl.flock, mine, fcntl.LOCK_SH | fcntl.LOCK_NB)

    elsewhere(other)
    fcntl.flock(fd, fcntl.LOCK_SH)
    elsewhere(lambda: fcntl.flock(os.open("flock", os.O_RDWR), fcntl.LOCK_SH | fcntl.LOCK_NB))
    fcntl.flock(fd, fcntl.LOCK_UN)
    elsewhere(lambda: fcntl.flock(os.open("flock", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB))


@check
def byte_ranges_lock_between_processes():
    fd = os.open(put("ranges", bytes(100)), os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 20)

    def other():
        mine = os.open("ranges", os.O_RDWR)
        expect(errno.EAGAIN, fcntl.lockf, mine, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 29)
        expect(errno.EAGAIN, fcntl.lockf, mine, fcntl.LOCK_SH | fcntl.LOCK_NB, 30, 0)
        fcntl.lockf(mine, fcntl.LOCK_EX | fcntl.LOCK_NB, 20, 0)
        fcntl.lockf(mine, fcntl.LOCK_EX | fcntl.LOCK_NB, 20, 30)
        answer = fcntl.fcntl(mine, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        kind, _, start, length, pid = struct.unpack("hhqqi4x", answer)
        assert (kind, start, length, pid) == (fcntl.F_WRLCK, 20, 10, os.getppid()), (kind, start, length, pid)

    elsewhere(other)


@check
def a_waiting_lock_is_granted_when_its_holder_dies():
    put("wait")
    ready, told = os.pipe()

    def holder():
        fcntl.lockf(os.open("wait", os.O_RDWR), fcntl.LOCK_EX)
        os.write(told, b"x")
        time.sleep(60)

    pid = child(holder)
    os.read(ready, 1)
    waiter = child(lambda: fcntl.lockf(os.open("wait", os.O_RDWR), fcntl.LOCK_EX))
    time.sleep(0.2)
    assert os.waitpid(waiter, os.WNOHANG) == (0, 0), "the waiter did not wait"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    ended_well(waiter)


@check
def open_file_description_locks_exclude_descriptions():
    F_OFD_SETLK = 37
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 10, 0)
    one, two = os.open(put("ofd"), os.O_RDWR), os.open("ofd", os.O_RDWR)
    fcntl.fcntl(one, F_OFD_SETLK, lock)
    expect(errno.EAGAIN, fcntl.fcntl, two, F_OFD_SETLK, lock)


# Contents seen from several sides


@check
def shared_mappings_are_coherent_between_processes():
    put("shared", bytes(8192))
    fd = os.open("shared", os.O_RDWR)
    mine = mmap.mmap(fd, 8192)
    mine[0:3] = b"one"

    def other():
        theirs = mmap.mmap(os.open("shared", os.O_RDWR), 8192)
        assert theirs[0:3] == b"one"
        theirs[5000:5003] = b"two"

    elsewhere(other)
    assert mine[5000:5003] == b"two"
    assert os.pread(fd, 3, 5000) == b"two", "read does not see the mapping"
    os.pwrite(fd, b"three", 100)
    assert mine[100:105] == b"three", "the mapping does not see write"
    mine.flush()
    elsewhere(lambda: subprocess.run(["grep", "-q", "three", "shared"], check=True))


@check
def private_mappings_stay_private():
    fd = os.open(put("private", b"before"), os.O_RDWR)
    mine = mmap.mmap(fd, 6, flags=mmap.MAP_PRIVATE)
    mine[0:6] = b"after!"
    assert get("private") == b"before" and mine[0:6] == b"after!"


@check
def a_mapping_outlives_its_descriptor_and_name():
    fd = os.open(put("mapped", b"x" * 4096), os.O_RDWR)
    mine = mmap.mmap(fd, 4096)
    os.close(fd)
    os.unlink("mapped")
    mine[10:12] = b"yz"
    mine.flush()
    assert mine[9:13] == b"xyzx"


@check
def appends_of_two_processes_do_not_overwrite():
    put("appended")

    def writer(letter):
        fd = os.open("appended", os.O_WRONLY | os.O_APPEND)
        for number in range(2000):
            os.write(fd, b"%c%06d\n" % (letter, number))

    for pid in [child(writer, letter) for letter in b"ab"]:
        ended_well(pid)
    lines = get("appended").split()
    assert len(lines) == 4000, len(lines)
    for letter in (b"a", b"b"):
        numbers = [int(line[1:]) for line in lines if line[:1] == letter]
        assert numbers == list(range(2000)), "an append is lost or torn"


@check
def direct_io_agrees_with_the_page_cache():
    page = mmap.mmap(-1, 8192)
    page[:] = b"d" * 8192
    fd = os.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    assert os.pwrite(fd, page, 0) == 8192
    assert get("direct") == b"d" * 8192
    buffered = os.open("direct", os.O_RDWR)
    os.pwrite(buffered, b"buffered", 4096)
    assert os.preadv(fd, [page], 0) == 8192
    assert page[4096:4104] == b"buffered", "direct read misses a buffered write"
    page[0:6] = b"direct"
    os.pwritev(fd, [page], 0)
    assert os.pread(buffered, 6, 0) == b"direct", "buffered read misses a direct write"


@check
def data_and_holes_agree_with_what_is_not_yet_written_back():
    fd = os.open("holes", os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(fd, b"x" * 4096, 1 << 20)
    size = (1 << 20) + 4096
    data, offset = [], 0
    while offset < size:
        start = os.lseek(fd, offset, os.SEEK_DATA)
        offset = os.lseek(fd, start, os.SEEK_HOLE)
        assert start < offset <= size, (start, offset)
        data.append((start, offset))
    assert data and data[-1][0] <= 1 << 20 and data[-1][1] == size, f"the written page is not data: {data}"
    expect(errno.ENXIO, os.lseek, fd, size, os.SEEK_DATA)


@check
def what_is_stored_to_a_mapping_is_no_hole():
    # Whoever copies the file while it is in use, as backups do, asks where data is, and took the answer for all there is.
    fd = os.open("mapped", os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, 1 << 20)
    with mmap.mmap(fd, 1 << 20) as mapped:
        mapped[500000:500005] = b"hello"
        assert os.fstat(fd).st_blocks > 0, "all of it seems to be a hole"
        start = os.lseek(fd, 0, os.SEEK_DATA)
        assert start <= 500000 < os.lseek(fd, start, os.SEEK_HOLE), "what is there seems to be a hole"
    put("new", b"x" * 280000)
    assert os.stat("new").st_blocks > 0, "a new file seems to be a hole"


@check
def copy_file_range_copies_what_is_not_yet_written_back():
    one, two = os.open("source", os.O_RDWR | os.O_CREAT), os.open("copy", os.O_RDWR | os.O_CREAT)
    os.write(one, bytes(range(256)) * 64)
    os.write(two, b"z" * 20000)
    left, source, target = 10000, 100, 5000
    while left:
        copied = os.copy_file_range(one, two, left, source, target)
        assert copied > 0
        left, source, target = left - copied, source + copied, target + copied
    expected = bytearray(b"z" * 20000)
    expected[5000:15000] = (bytes(range(256)) * 64)[100:10100]
    assert os.pread(two, 30000, 0) == expected


@check
def fallocate_punches_zeroes_and_keeps_the_size():
    fd = os.open("allocated", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"x" * 16384)
    KEEP, PUNCH, ZERO, COLLAPSE = 1, 2, 16, 8
    fallocate(fd, PUNCH | KEEP, 4096, 4096)
    fallocate(fd, ZERO, 10000, 100)
    fallocate(fd, KEEP, 0, 1 << 20)
    data = os.pread(fd, 1 << 21, 0)
    assert len(data) == 16384 and data.count(b"x") == 16384 - 4096 - 100
    assert data[4096:8192] == bytes(4096) and data[10000:10100] == bytes(100)
    fallocate(fd, 0, 0, 20000)
    assert os.fstat(fd).st_size == 20000
    expect(errno.EOPNOTSUPP, fallocate, fd, COLLAPSE, 0, 4096)


# Names and inodes


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
def times_are_kept_to_the_nanosecond():
    put("times")
    for when in (1_234_567_890_123_456_789, -1_250_000_001, 5_000_000_000_000_000_003):
        os.utime("times", ns=(when, when + 1))
        found = os.stat("times")
        assert (found.st_atime_ns, found.st_mtime_ns) == (when, when + 1), found


@check
def writing_moves_mtime_and_ctime():
    put("moved", b"x")
    before = os.stat("moved")
    wait_for_tick()
    fd = os.open("moved", os.O_RDWR)
    os.write(fd, b"y")
    during = os.fstat(fd)
    os.fsync(fd)
    os.close(fd)
    after = os.stat("moved")
    assert before.st_mtime_ns < during.st_mtime_ns and before.st_ctime_ns < during.st_ctime_ns
    assert abs(after.st_mtime_ns - during.st_mtime_ns) < 10_000_000, "mtime is not that of the write"
    wait_for_tick()
    os.truncate("moved", 0)
    assert os.stat("moved").st_mtime_ns > after.st_mtime_ns, "truncation leaves mtime"


@check
def all_that_changes_contents_moves_mtime_and_ctime():
    put("changed", b"x" * 16384)
    put("source", b"y" * 4096)
    source, file = os.open("source", os.O_RDONLY), os.open("changed", os.O_RDWR)
    direct = os.open("changed", os.O_RDWR | os.O_DIRECT)
    aligned = mmap.mmap(-1, 4096)
    ways = {
        "pwrite": lambda: os.pwrite(file, b"z", 5),
        "pwrite to O_DIRECT": lambda: os.pwritev(direct, [aligned], 4096),
        "posix_fallocate": lambda: os.posix_fallocate(file, 0, 20_000),
        "punch a hole": lambda: fallocate(file, 1 | 2, 0, 4096),
        "copy_file_range": lambda: os.copy_file_range(source, file, 4096, 0, 8192),
        "ftruncate to the present length": lambda: os.ftruncate(file, 20_000),
    }
    for what, change in ways.items():
        before = os.fstat(file)
        wait_for_tick()
        change()
        after = os.fstat(file)
        assert after.st_mtime_ns > before.st_mtime_ns and after.st_ctime_ns > before.st_ctime_ns, what


@check
def what_is_made_later_is_not_older():
    # Somebody else on the machine looks at a log and writes to it, which takes the kernel's stamps ahead of its coarse clock.
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as log:
        for n in range(50):
            log.write(b"line")
            log.flush()
            os.fstat(log.fileno())
            put("source", b"x" * n)
            os.mkdir(f"later {n}")
            put(f"empty {n}")
            times = [os.stat(name).st_mtime_ns for name in ("source", f"later {n}", f"empty {n}")]
            assert times == sorted(times), f"round {n}: {times}"
            os.rmdir(f"later {n}")


# Attributes and permissions


@check
def extended_attributes_tell_their_size_and_refuse_small_buffers():
    put("attributes")
    os.setxattr("attributes", "user.name", b"value")
    assert os.getxattr("attributes", "user.name") == b"value"
    assert os.listxattr("attributes") == ["user.name"]
    buffer = ctypes.create_string_buffer(16)
    path, name = b"attributes", b"user.name"
    assert libc.getxattr(path, name, None, 0) == 5
    assert libc.getxattr(path, name, buffer, 4) == -1 and ctypes.get_errno() == errno.ERANGE
    assert libc.listxattr(path, None, 0) == 10
    assert libc.listxattr(path, buffer, 3) == -1 and ctypes.get_errno() == errno.ERANGE
    expect(errno.EEXIST, os.setxattr, "attributes", "user.name", b"", os.XATTR_CREATE)
    expect(errno.ENODATA, os.setxattr, "attributes", "user.other", b"", os.XATTR_REPLACE)
    os.removexattr("attributes", "user.name")
    expect(errno.ENODATA, os.getxattr, "attributes", "user.name")
    expect(errno.ENODATA, os.removexattr, "attributes", "user.name")


def as_nobody(function, *arguments):
    def switched():
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        function(*arguments)

    elsewhere(switched)


def acl(*entries):
    """POSIX ACL in the kernel's form: entries are (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


USER_OBJ, USER, GROUP_OBJ, MASK, OTHER, NONE = 1, 2, 4, 16, 32, 0xFFFFFFFF


@check
def acls_grant_and_are_inherited():
    if not ROOT:
        raise Skip("needs root")
    put("acl", b"secret", 0o600)
    as_nobody(expect, errno.EACCES, os.open, "acl", os.O_RDONLY)
    entries = [(USER_OBJ, 6, NONE), (USER, 4, NOBODY), (GROUP_OBJ, 0, NONE), (MASK, 4, NONE), (OTHER, 0, NONE)]
    os.setxattr("acl", "system.posix_acl_access", acl(*entries))
    as_nobody(lambda: os.read(os.open("acl", os.O_RDONLY), 6))
    as_nobody(expect, errno.EACCES, os.open, "acl", os.O_RDWR)
    assert os.stat("acl").st_mode & 0o777 == 0o640, "the mask is not the group's permission"
    os.chmod("acl", 0o600)
    as_nobody(expect, errno.EACCES, os.open, "acl", os.O_RDONLY)

    os.mkdir("inherits")
    entries = [(USER_OBJ, 7, NONE), (USER, 7, NOBODY), (GROUP_OBJ, 5, NONE), (MASK, 7, NONE), (OTHER, 0, NONE)]
    os.setxattr("inherits", "system.posix_acl_default", acl(*entries))
    old = os.umask(0o077)
    put("inherits/file", b"", 0o666)
    os.mkdir("inherits/dir", 0o777)
    os.umask(old)
    assert os.stat("inherits/file").st_mode & 0o777 == 0o660, "a default ACL replaces the umask"
    assert os.getxattr("inherits/dir", "system.posix_acl_default") == acl(*entries)
    os.chmod("inherits", 0o755)
    as_nobody(lambda: os.write(os.open("inherits/file", os.O_WRONLY), b"x"))
    os.umask(0o022)
    put("plain", b"", 0o666)
    assert os.stat("plain").st_mode & 0o777 == 0o644, "the umask is not applied"


@check
def set_user_id_goes_when_others_change_the_file():
    if not ROOT:
        raise Skip("needs root")

    def write():
        os.write(os.open("suid", os.O_WRONLY), b"x")

    def truncate():
        os.truncate("suid", 0)

    def open_truncating():
        os.open("suid", os.O_WRONLY | os.O_TRUNC)

    def direct():
        os.pwrite(os.open("suid", os.O_WRONLY | os.O_DIRECT), mmap.mmap(-1, 4096), 0)

    def allocate():
        fallocate(os.open("suid", os.O_WRONLY), 0, 0, 100)

    def copy():
        os.copy_file_range(os.open("suid", os.O_RDONLY), os.open("suid", os.O_WRONLY), 2, 0, 2)

    for change in (write, truncate, open_truncating, direct, allocate, copy):
        put("suid", b"data")
        os.chmod("suid", 0o6777)
        as_nobody(change)
        assert os.stat("suid").st_mode & 0o7777 == 0o777, f"after {change.__name__}: {os.stat('suid').st_mode:o}"
        os.chmod("suid", 0o6777)
        change()
        assert os.stat("suid").st_mode & 0o7777 == 0o6777, f"after root's {change.__name__}"
        os.unlink("suid")


@check
def a_program_runs_without_the_set_user_id_that_a_change_took():
    if not ROOT:
        raise Skip("needs root")
    if os.statvfs(".").f_flag & (os.ST_NOEXEC | os.ST_NOSUID):
        raise Skip("mounted noexec or nosuid")
    program = shutil.which("id")

    def opened(flags=0):
        return os.open("program", os.O_WRONLY | flags)

    def nothing():
        pass

    def write():
        os.pwrite(opened(), get(program)[:1], 0)

    def direct():
        page = mmap.mmap(-1, 4096)
        page[:] = get(program)[:4096]
        os.pwrite(opened(os.O_DIRECT), page, 0)

    def allocate():
        fallocate(opened(), 1, 0, 100)

    def copy():
        os.copy_file_range(os.open("copy", os.O_RDONLY), opened(), 2, 0, 0)

    def truncate():
        os.ftruncate(opened(), os.path.getsize(program))

    shutil.copyfile(program, "copy")
    for change in (nothing, write, direct, allocate, copy, truncate):
        shutil.copyfile(program, "program")
        os.chmod("program", 0o4777)
        # Who runs it has not looked at its mode since the change: the kernel has to know.
        run = subprocess.run(
            ["./program", "-u"], user=NOBODY, group=NOBODY, extra_groups=[], preexec_fn=change, capture_output=True
        )
        expected = b"0\n" if change is nothing else b"%d\n" % NOBODY
        assert run.stdout == expected, f"after {change.__name__} it ran as {run.stdout} {run.stderr}"
        os.unlink("program")


@check
def setting_an_acl_takes_the_set_group_id_of_strange_groups():
    if not ROOT:
        raise Skip("needs root")
    entries = acl((USER_OBJ, 7, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 5, NONE))
    for group, groups, kept in ((0, [], False), (NOBODY, [], True), (7, [5, 7], True), (7, [5], False)):
        put("sgid")
        os.chown("sgid", NOBODY, group)
        os.chmod("sgid", 0o2755)

        def set_acl():
            os.setgroups(groups)
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.setxattr("sgid", "system.posix_acl_access", entries)

        elsewhere(set_acl)
        assert bool(os.stat("sgid").st_mode & stat.S_ISGID) == kept, (group, groups)


@check
def file_capabilities_go_when_the_file_is_written():
    if not ROOT:
        raise Skip("needs root")
    put("caps", b"x", 0o755)
    os.setxattr("caps", "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
    put("caps", b"y")
    expect(errno.ENODATA, os.getxattr, "caps", "security.capability")


@check
def programs_run_and_are_busy_while_they_run():
    if os.statvfs(".").f_flag & os.ST_NOEXEC:
        raise Skip("mounted noexec")
    subprocess.run(["cp", "/bin/sleep", "program"], check=True)
    running = subprocess.Popen(["./program", "60"])
    try:
        expect(errno.ETXTBSY, os.open, "program", os.O_WRONLY)
    finally:
        running.kill()
        running.wait()
    os.close(os.open("program", os.O_WRONLY))


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


@check
def sqlite_in_wal_mode_serves_two_processes():
    def connect():
        connection = sqlite3.connect("database", timeout=60, isolation_level=None)
        connection.execute("pragma mmap_size=1048576")
        return connection

    connection = connect()
    assert connection.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    connection.execute("create table numbers (writer, number)")
    connection.close()

    def writer(name):
        mine = connect()
        for number in range(200):
            mine.execute("insert into numbers values (?, ?)", (name, number))

    for pid in [child(writer, name) for name in "ab"]:
        ended_well(pid)
    connection = connect()
    assert connection.execute("select count(*), sum(number) from numbers").fetchone() == (400, 2 * 19900)
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)


def main():
    top = os.getcwd()
    for function in CHECKS:
        name = function.__name__.replace("_", " ")
        os.chdir(top)
        os.mkdir(function.__name__)
        os.chmod(function.__name__, 0o755)
        os.chdir(function.__name__)
        try:
            function()
            print("pass", name, flush=True)
        except Skip as why:
            print("skip", f"{name}: {why}", flush=True)
        except BaseException as why:
            print("FAIL", f"{name}: {why!r}", flush=True)


main()
