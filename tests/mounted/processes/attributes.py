"""Times, extended attributes, ACLs, and who may do what."""

import ctypes
import errno
import mmap
import os
import shutil
import stat
import struct
import subprocess
import tempfile

from support import check, elsewhere, expect, fallocate, get, libc, NOBODY, put, ROOT, Skip, wait_for_tick


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
