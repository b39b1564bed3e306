"""What processes share: locks, mappings, pages, databases."""

import errno
import fcntl
import mmap
import os
import signal
import sqlite3
import struct
import subprocess
import time

from support import check, child, elsewhere, ended_well, expect, fallocate, get, put


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
