"""What the benchmarks in this directory mount: file systems on loop devices over a tmpfs, and volumes of Amberfs.

They are in a directory of their own (`memory`), and whatever happens, nothing that is mounted there stays.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile


def run(*command):
    """What a program prints; an OSError with what it complains of if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def syncfs(path):
    directory = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(directory) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", path)
    finally:
        os.close(directory)


def terminated(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


@contextlib.contextmanager
def memory(program, size):
    """A tmpfs with pages of 2 MiB, which goes with all that is mounted in it. `program` unmounts what is Amberfs's."""
    signal.signal(signal.SIGTERM, terminated)
    with tempfile.TemporaryDirectory(prefix="amberfs-bench-", dir="/tmp") as scratch:
        try:
            run("mount", "-t", "tmpfs", "-o", f"size={size},huge=always", "tmpfs", scratch)
            yield scratch
        finally:
            end(program, scratch)


def end(program, scratch):
    """Unmounts all that is mounted in and on `scratch`; loop devices go with what is mounted from them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with open("/proc/self/mounts") as mounts:
        mounted = [line.split()[1:3] for line in mounts]
    for top, kind in reversed([mount for mount in mounted if mount[0] == scratch or mount[0].startswith(f"{scratch}/")]):
        run(*([program] if "fuse" in kind else []), "umount", top)


class Loop:
    """A file system on a loop device, which goes when it is unmounted. `make` is its mkfs, `options` are its mount's."""

    def __init__(self, name, scratch, megabytes, make, *options):
        self.name = name
        self.image, self.top = f"{scratch}/{name}.img", f"{scratch}/{name}"
        os.mkdir(self.top)
        with open(self.image, "wb") as image:
            image.truncate(megabytes << 20)
        run(*make, self.image)
        run("mount", "-t", name, "-o", ",".join(["loop", *options]), self.image, self.top)


class Volume:
    """A mounted volume in a zone of its own, and its server."""

    def __init__(self, program, scratch, megabytes, name="amberfs", *options):
        self.program, self.zone, self.top = program, f"{scratch}/{name}.zone", f"{scratch}/{name}"
        os.mkdir(self.top)
        run(program, "zone", "create", self.zone, "--size", f"{megabytes}M")
        run(program, "mkfs", f"{self.zone}:v")
        run(program, "mount", *(["-o", ",".join(options)] if options else []), f"{self.zone}:v", self.top)
        uuid = json.loads(run(program, "zone", "show", self.zone, "--json"))["uuid"]
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(f"/run/amberfs/{uuid}.sock")
        self.answers = self.socket.makefile("r")

    def request(self, **request):
        """What comes in parts before the end of the answer."""
        self.socket.sendall((json.dumps(request | {"volume": "v"}) + "\n").encode())
        parts = []
        while "more" in (answer := json.loads(self.answers.readline())):
            parts += answer["more"]
        if "ok" not in answer:
            raise OSError(f"the server of {self.zone} says {answer}")
        return parts

    def snapshot(self, **ask):
        self.request(request="snapshot", ask=ask)
