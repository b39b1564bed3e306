"""File handles, as a server of NFS keeps them: told of a file, and good for it whatever is mounted anew meanwhile.

    handles.py keep NAME FILE     writes what stands for NAME to FILE
    handles.py open MOUNT FILE    opens what FILE stands for, in MOUNT: prints a file's bytes, a directory's names, a link's target
"""

import ctypes
import errno
import os
import stat
import struct
import sys

AT_FDCWD = -100
LONGEST = 128
libc = ctypes.CDLL(None, use_errno=True)


def fail(call):
    number = ctypes.get_errno()
    sys.exit(f"{call}: {errno.errorcode.get(number, number)}")


def keep(name, file):
    handle = ctypes.create_string_buffer(struct.pack("Ii", LONGEST, 0), 8 + LONGEST)
    mount = ctypes.c_int()
    if libc.name_to_handle_at(AT_FDCWD, os.fsencode(name), handle, ctypes.byref(mount), 0) != 0:
        fail("name_to_handle_at")
    with open(file, "wb") as kept:
        kept.write(handle.raw)


def show(mount, file):
    with open(file, "rb") as kept:
        handle = ctypes.create_string_buffer(kept.read(), 8 + LONGEST)
    at = os.open(mount, os.O_RDONLY)
    found = libc.open_by_handle_at(at, handle, os.O_PATH | os.O_NOFOLLOW)
    if found < 0:
        fail("open_by_handle_at")
    kind = stat.S_IFMT(os.fstat(found).st_mode)
    if kind == stat.S_IFLNK:
        print(os.readlink("", dir_fd=found))
        return
    opened = libc.open_by_handle_at(at, handle, os.O_RDONLY | os.O_NONBLOCK)
    if opened < 0:
        fail("open_by_handle_at")
    if kind == stat.S_IFDIR:
        print(*sorted(os.listdir(opened)))
        # A directory is somewhere: its path leads to it.
        path = os.readlink(f"/proc/self/fd/{opened}")
        assert os.path.samestat(os.stat(path), os.fstat(opened)), path
    else:
        sys.stdout.buffer.write(os.read(opened, 1 << 16))


{"keep": keep, "open": show}[sys.argv[1]](*sys.argv[2:])
