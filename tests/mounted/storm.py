"""Random operations by several processes in one tree, in the manner of fsstress.

    storm.py run DIR SEED PROCESSES OPERATIONS    works in DIR/tree
    storm.py look DIR FILE                        writes all that can be seen of DIR/tree to FILE, having checked it

Every 16 bytes that are written name the file (by inode) and the place they are for, so that bytes of another file or place are
found, whoever wrote last. Errors that races explain are expected; all others are failures.
"""

import collections
import errno
import hashlib
import mmap
import os
import random
import stat
import struct
import sys

NAMES = [f"{letter}{number}" for letter in "abcdefg" for number in range(4)] + ["long-" + "n" * 240]
DEPTH = 3
LENGTH = 300_000
RACES = {
    errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.ELOOP, errno.EXDEV,
    errno.ENODATA, errno.EBUSY,
}
# What an operation may be answered where it does not fit what it is asked of: a fifo, a device, its own child, a directory.
UNFIT = {errno.EINVAL, errno.ENXIO, errno.EPERM, errno.ESPIPE, errno.ENODEV}
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16


def pattern(ino, offset, length):
    first, last = offset // 16, (offset + length + 15) // 16
    whole = b"".join(struct.pack("<QQ", ino, place) for place in range(first, last))
    return whole[offset - first * 16:][:length]


def check_bytes(ino, offset, found, path):
    """Each of them is what was written there, or zero."""
    wanted = pattern(ino, offset, len(found))
    if found != wanted:
        for at, (have, want) in enumerate(zip(found, wanted)):
            assert have in (0, want), f"{path}: byte {offset + at} is {have}, not {want} or 0"


class Process:
    def __init__(self, top, seed):
        self.top, self.random, self.done = top, random.Random(seed), set()

    def path(self):
        return os.path.join(self.top, *self.random.choices(NAMES, k=self.random.randint(1, DEPTH)))

    def opened(self, flags):
        file = os.open(self.path(), flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "no regular file")
        return file

    def place(self):
        offset = self.random.randrange(LENGTH)
        if self.random.random() < 0.4:
            offset -= offset % 4096
        length = self.random.choice([1, 16, 100, 4096, 8192, self.random.randrange(1, 70_000)])
        return offset, length

    def with_file(self, flags, what):
        file = self.opened(flags)
        try:
            what(file, os.fstat(file).st_ino)
        finally:
            os.close(file)

    # What they do.
    def create(self): os.close(os.open(self.path(), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    def mkdir(self): os.mkdir(self.path())
    def mknod(self): os.mknod(self.path(), self.random.choice([stat.S_IFIFO, stat.S_IFSOCK]) | 0o600)
    def symlink(self): os.symlink(self.random.choice(NAMES), self.path())
    def link(self): os.link(self.path(), self.path(), follow_symlinks=False)
    def unlink(self): os.unlink(self.path())
    def rmdir(self): os.rmdir(self.path())
    def rename(self): os.rename(self.path(), self.path())
    def chmod(self): os.chmod(self.path(), self.random.choice([0o600, 0o644, 0o755, 0o4755]))
    def utimes(self): os.utime(self.path(), (self.random.randrange(2**31), self.random.randrange(2**31)), follow_symlinks=False)
    def set_attribute(self): os.setxattr(self.path(), f"user.{self.random.randrange(5)}", os.urandom(self.random.choice([0, 10, 300])))
    def remove_attribute(self): os.removexattr(self.path(), f"user.{self.random.randrange(5)}")
    def sync(self): self.with_file(os.O_RDWR, lambda file, ino: os.fsync(file))

    def list(self):
        for entry in os.scandir(os.path.dirname(self.path())):
            assert entry.name in NAMES or entry.name.startswith("mapped-"), f"a name that nobody gave: {entry.path}"
            entry.stat(follow_symlinks=False)

    def write(self, flags=0):
        offset, length = self.place()
        self.with_file(os.O_RDWR | flags, lambda file, ino: os.pwrite(file, pattern(ino, offset, length), offset))

    def write_synced(self): self.write(os.O_SYNC)

    def write_direct(self):
        offset, length = (number // 4096 * 4096 for number in self.place())

        def change(file, ino):
            with mmap.mmap(-1, length + 4096) as pages:
                pages[:length + 4096] = pattern(ino, offset, length + 4096)
                os.pwritev(file, [pages], offset)
        self.with_file(os.O_RDWR | os.O_DIRECT, change)

    def read(self):
        offset, length = self.place()
        self.with_file(os.O_RDONLY, lambda file, ino: check_bytes(ino, offset, os.pread(file, length, offset), file))

    def write_mapped(self):
        # In a file of its own: a mapping of one that others cut ends in SIGBUS, which is no fault of the file system.
        path = os.path.join(self.top, f"mapped-{os.getpid()}")
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            ino = os.fstat(file).st_ino
            os.pwrite(file, pattern(ino, 40_000, 100), 40_000)
            with mmap.mmap(file, 40_100) as mapped:
                at = self.random.randrange(40_000)
                mapped[at:at + 100] = pattern(ino, at, 100)
                if self.random.random() < 0.3:
                    mapped.flush()
        finally:
            os.close(file)

    def truncate(self):
        self.with_file(os.O_RDWR, lambda file, ino: os.ftruncate(file, self.random.randrange(LENGTH)))

    def fallocate(self):
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        mode, (offset, length) = self.random.choice([0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE]), self.place()

        def allocate(file, _):
            if libc.fallocate(file, mode, offset, length) != 0:
                raise OSError(ctypes.get_errno(), "fallocate")
        self.with_file(os.O_RDWR, allocate)

    def without_name(self):
        """Makes a file, removes its name, and goes on."""
        path = self.path()
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            ino = os.fstat(file).st_ino
            os.unlink(path)
            os.pwrite(file, pattern(ino, 0, 10_000), 0)
            check_bytes(ino, 0, os.pread(file, 10_000, 0), path)
        finally:
            os.close(file)

    WEIGHTS = {
        create: 12, mkdir: 6, mknod: 2, symlink: 3, link: 5, unlink: 8, rmdir: 4, rename: 8, chmod: 3, utimes: 3,
        set_attribute: 3, remove_attribute: 2, sync: 2, list: 3, write: 14, write_synced: 2, write_direct: 3, read: 10,
        write_mapped: 2, truncate: 4, fallocate: 4, without_name: 2,
    }

    def run(self, operations):
        what, weights = list(self.WEIGHTS), list(self.WEIGHTS.values())
        for chosen in self.random.choices(what, weights, k=operations):
            try:
                chosen(self)
                self.done.add(chosen.__name__)
            except OSError as error:
                if error.errno not in RACES | UNFIT:
                    raise


def run(top, seed, processes, operations):
    tree = os.path.join(top, "tree")
    os.mkdir(tree)
    for name in NAMES[:12]:
        os.mkdir(os.path.join(tree, name))
    told, tell = os.pipe()
    children = []
    for number in range(processes):
        pid = os.fork()
        if pid == 0:
            try:
                process = Process(tree, seed * 1000 + number)
                process.run(operations)
                os.write(tell, "".join(f"{name}\n" for name in process.done).encode())
            except BaseException as error:
                print(f"process {number}: {error!r}", file=sys.stderr)
                os._exit(1)
            os._exit(0)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * processes, f"exit codes {codes}"
    os.close(tell)
    with open(told) as names:
        rare = {one.__name__ for one in Process.WEIGHTS} - set(names.read().split())
    assert not rare, f"none of these succeeded once: {rare}"


def look(top, out):
    """Link counts are those of the names there are, no byte is another's, and no two inodes have one number."""
    links, found, lines = collections.Counter(), {}, []
    tree = os.path.join(top, "tree")

    def fail(error):
        raise error
    for where, dirs, files in os.walk(tree, onerror=fail):
        status = os.stat(where)
        subdirectories = [name for name in dirs if not os.path.islink(os.path.join(where, name))]
        assert status.st_nlink == 2 + len(subdirectories), f"{where}: {status.st_nlink} links, {len(subdirectories)} directories"
        lines.append(("d", os.path.relpath(where, tree), status.st_mode, status.st_mtime_ns, status.st_ctime_ns))
        for name in files + [name for name in dirs if name not in subdirectories]:
            path = os.path.join(where, name)
            status = os.lstat(path)
            links[status.st_ino] += 1
            found[status.st_ino] = (path, status.st_nlink)
            what, attributes = "", []
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    data = file.read()
                assert len(data) == status.st_size, f"{path}: {len(data)} bytes of {status.st_size}"
                check_bytes(status.st_ino, 0, data, path)
                what = hashlib.sha256(data).hexdigest()
                attributes = sorted((key, os.getxattr(path, key)) for key in os.listxattr(path))
            elif stat.S_ISLNK(status.st_mode):
                what = os.readlink(path)
            lines.append((os.path.relpath(path, tree), status.st_mode, status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ctime_ns, what, attributes))
    for ino, (path, count) in found.items():
        assert links[ino] == count, f"{path}: {count} links, {links[ino]} names"
    with open(out, "w") as file:
        file.writelines(f"{line}\n" for line in sorted(map(str, lines)))


if __name__ == "__main__":
    arguments = sys.argv[2:]
    if sys.argv[1] == "run":
        run(arguments[0], *map(int, arguments[1:]))
    else:
        look(*arguments)
