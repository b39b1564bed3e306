"""What the checks have in common: how one is entered, other processes, and calls that Python has not."""

import ctypes
import errno
import os
import sys
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
