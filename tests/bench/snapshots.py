#!/usr/bin/env python3
"""How long taking and removing snapshots takes: a mounted native volume, btrfs, and what `syncfs` takes on ext4 and xfs.

    snapshots.py AMBERFS [--files N] [--bytes N] [--rounds N]

All of them lie on one tmpfs: the volume in a zone there, the others on loop devices over files there. Each gets the same
tree of files; between two snapshots a tenth of them is written anew, and told by a comparison. Rounds go from one to the next, so that all have
their share of whatever else the machine does. Needs root, loop devices, and mkfs of the others.

A removal counts when it is durable, and in every second round when the space has come back. For that btrfs waits for its
next commit, every 30 s; here it is mounted to commit every second.
"""

import argparse
import fcntl
import os
import random
import statistics
import struct
import sys
import time

from mounted import Loop, Volume, memory, run, syncfs

# linux/btrfs.h: _IOW(0x94, 23, 4096 bytes), _IOW(0x94, 15, 4096 bytes), _IO(0x94, 8), _IOW(0x94, 65, 16 bytes)
SNAP_CREATE_V2, SNAP_DESTROY, SYNC, SUBVOL_SYNC_WAIT = 0x50009417, 0x5000940F, 0x9408, 0x40109441
FILES_IN_DIRECTORY = 200


class Synced(Loop):
    """Only makes durable what was written."""

    def __init__(self, kind, scratch, megabytes, *options):
        super().__init__(kind, scratch, megabytes, (f"mkfs.{kind}", "-q", "-F" if kind == "ext4" else "-f"), *options)
        self.tree = self.top

    def end(self):
        pass


class Btrfs(Synced):
    def __init__(self, scratch, megabytes):
        super().__init__("btrfs", scratch, megabytes, "commit=1")
        self.tree = f"{self.top}/tree"
        run("btrfs", "subvolume", "create", self.tree)
        self.directory = os.open(self.top, os.O_RDONLY)
        self.source = os.open(self.tree, os.O_RDONLY)
        self.ids = {}

    def take(self, name):
        arguments = bytearray(struct.pack("=qQQ32s4040s", self.source, 0, 0, b"", name.encode()))
        fcntl.ioctl(self.directory, SNAP_CREATE_V2, arguments)

    def remember(self, name):
        text = run("btrfs", "subvolume", "show", f"{self.top}/{name}")
        self.ids[name] = int(next(line for line in text.splitlines() if "Subvolume ID" in line).split()[-1])

    def remove(self, name, wait):
        fcntl.ioctl(self.directory, SNAP_DESTROY, bytearray(struct.pack("=q4088s", 0, name.encode())))
        fcntl.ioctl(self.directory, SYNC)
        if not wait:
            return
        try:
            fcntl.ioctl(self.directory, SUBVOL_SYNC_WAIT, struct.pack("=QII", self.ids[name], 0, 0))
        except FileNotFoundError:
            pass  # it is gone already

    def end(self):
        os.close(self.source)
        os.close(self.directory)


class Amberfs(Volume):
    def __init__(self, program, scratch, megabytes):
        super().__init__(program, scratch, megabytes)
        self.name, self.tree = "amberfs", self.top

    def compare(self, name, other):
        return self.request(request="snapshot-diff", pair={"from": name, "to": other})

    def take(self, name):
        self.snapshot(take={"name": name, "comment": ""})

    def remember(self, name):
        pass

    def remove(self, name, wait):
        self.snapshot(remove={"name": name, "wait": wait})

    def end(self):
        pass


def paths(tree, files):
    return [f"{tree}/{n // FILES_IN_DIRECTORY}/{n}" for n in range(files)]


def write(path, length, seed):
    with open(path, "wb") as file:
        file.write(seed.to_bytes(8, "little") * (length // 8))


def timed(action):
    begun = time.perf_counter()
    action()
    return (time.perf_counter() - begun) * 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=16 << 10)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    figures = {}
    with memory(arguments.program, "20G") as scratch:
        targets = []
        try:
            megabytes = 1024 + arguments.files * arguments.bytes * 3 // (1 << 20)
            targets.append(Amberfs(arguments.program, scratch, megabytes))
            targets.append(Btrfs(scratch, megabytes))
            targets += [Synced(kind, scratch, megabytes) for kind in ("ext4", "xfs")]
            measure(targets, arguments, figures)
        finally:
            for target in targets:
                target.end()
    report(figures)


def measure(targets, arguments, figures):
    for target in targets:
        for path in paths(target.tree, arguments.files):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write(path, arguments.bytes, 1)
        syncfs(target.tree)
    for number in range(arguments.rounds):
        chosen = random.Random(number).sample(range(arguments.files), arguments.files // 10)
        for target in targets:
            note = lambda what, value: figures.setdefault((target.name, what), []).append(value)
            every = paths(target.tree, arguments.files)
            for n in chosen:
                write(every[n], arguments.bytes, number)
            note("sync", timed(lambda: syncfs(target.tree)))
            if not hasattr(target, "remove"):
                continue
            name = f"round-{number}"
            note("take", timed(lambda: target.take(name)))
            target.remember(name)
            note("both", figures[target.name, "sync"][-1] + figures[target.name, "take"][-1])
            if number > 0 and hasattr(target, "compare"):
                told = []
                note("compare", timed(lambda: told.extend(target.compare(f"round-{number - 1}", name))))
                assert len(told) == len(chosen), f"{len(told)} differences of {len(chosen)}"
    for number in range(arguments.rounds):
        for target in targets:
            if hasattr(target, "remove"):
                wait = number % 2 == 1
                took = timed(lambda: target.remove(f"round-{number}", wait))
                figures.setdefault((target.name, "space" if wait else "remove"), []).append(took)


def report(figures):
    def shown(name, what):
        values = figures.get((name, what))
        if not values:
            return f"{'-':>24}"
        low, middle, high = statistics.quantiles(values, n=4)
        return f"{middle:.2f} [{low:.2f}-{high:.2f}]".rjust(24)

    columns = {
        "sync": "syncfs, a tenth new",
        "take": "take, when synced",
        "both": "both",
        "compare": "what differs",
        "remove": "remove, durable",
        "space": "and the space back",
    }
    print("ms, medians [quartiles]  " + "".join(f"{text:>24}" for text in columns.values()))
    for name in ("amberfs", "btrfs", "ext4", "xfs"):
        print(f"{name:24} " + "".join(shown(name, what) for what in columns))
    for what, text in columns.items():
        if ("btrfs", what) in figures:
            ours, theirs = (statistics.median(figures[name, what]) for name in ("amberfs", "btrfs"))
            print(f"{text}: {100 * (1 - ours / theirs):.1f} % less than btrfs")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"snapshots: {error}")
