#!/usr/bin/env python3
"""The tables of Shortcut-JFS §IV for Amberfs's four ways to log, and beside ext3 with `data=journal`.

    journaling.py AMBERFS [--quick] [--full] [--rounds N] [--mounted]

First the benchmark `journaling` of crates/native runs: the schemes in process, on DRAM and emulated PCM, and what the caches
hold. Then (with --mounted only) file systems are compared by the same system calls on the same tmpfs:

- ext3 (mke2fs -t ext3) with data=journal, on a loop device over a file there, mounted by the kernel;
- Amberfs, on a zone there, mounted by FUSE with durability=fsync, and with durability=op.

and beside them Amberfs in process, without system calls, durable at each write. The second part needs root, loop devices
and mke2fs; what is missing is said in one line, and the rest goes on.

A batch is synced as in the paper, where what was written commits with time: once, at its end ("at the end"); or after
each write, by fdatasync ("each write"; durability=op needs none). Its bytes are those that the loop device was given, or the
volume's account has, when all is where it belongs: after syncfs on ext3, a checkpoint of Amberfs.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys

from mounted import Loop, Volume, memory, run, syncfs

PATTERNS = ["initial write", "sequential rewrite", "random write", "random pwrite"]
SIZES = [256, 1 << 10, 2 << 10, 4 << 10, 16 << 10]
POSTMARK_SIZES = [1 << 10, 4 << 10]
FILE_BYTES = 64 << 20
LINE, SECTOR = 64, 512
MEGABYTES = 1024


class Ext3(Loop):
    def __init__(self, scratch):
        make = ("mke2fs", "-q", "-F", "-t", "ext3", "-b", "4096", "-E", "lazy_itable_init=0")
        super().__init__("ext3", scratch, MEGABYTES, make, "data=journal")
        device = os.stat(self.top).st_dev
        self.counters = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat"

    def settle(self):
        syncfs(self.top)

    def written(self):
        """Bytes, since the device is there."""
        with open(self.counters) as counters:
            return int(counters.read().split()[6]) * SECTOR


class Amberfs(Volume):
    def __init__(self, program, scratch, durability):
        super().__init__(program, scratch, MEGABYTES, durability, f"durability={durability}")

    def settle(self):
        """A snapshot is a checkpoint; it is removed at once."""
        self.snapshot(take={"name": "settled", "comment": ""})
        self.snapshot(remove={"name": "settled", "wait": True})

    def written(self):
        total = json.loads(run(self.program, "stats", "--json", self.top))["nvm"]["written"][-1]
        return (total["lines_flushed"] + total["lines_streamed"]) * LINE


class Called:
    """Amberfs in process, a volume for each batch."""

    def __init__(self, scratch):
        self.top = scratch


def batch(bench, target, sync, *what):
    """Runs one, and returns MB/s and bytes written for each byte."""
    if isinstance(target, Called):
        ran = json.loads(run(bench, "--in", target.top, "--called", *what))
        return ran["bytes"] / ran["seconds"] / 1e6, ran["sent"] / ran["bytes"]
    before = target.written()
    ran = json.loads(run(bench, "--in", target.top, "--sync", sync, *what))
    target.settle()
    written = target.written() - before - target.idle
    if os.path.exists(f"{target.top}/new"):
        os.unlink(f"{target.top}/new")
        target.settle()
    return ran["bytes"] / ran["seconds"] / 1e6, written / ran["bytes"]


def prepare(target):
    with open(f"{target.top}/data", "wb") as file:
        for _ in range(FILE_BYTES >> 20):
            file.write(b"\x5a" * (1 << 20))
        os.fsync(file.fileno())
    target.settle()
    before = target.written()
    target.settle()
    target.idle = target.written() - before


def workloads():
    for pattern in PATTERNS:
        for size in SIZES:
            yield f"{pattern}, {size} B", ("--pattern", pattern, "--size", str(size)), True
    for fileset in ("1", "2"):
        for size in POSTMARK_SIZES:
            yield f"fileset {fileset}, {size} B", ("--fileset", fileset, "--size", str(size)), False


def compare(bench, targets, rounds):
    """Figures by workload, when it is synced, and target; rounds go from one target to the next."""
    figures = {}
    for number in range(rounds):
        for name, what, has_each in workloads():
            ways = [("end", label) for label in targets if label != OP]
            ways += [("each", label) for label in targets if has_each and label != CALLED]
            random.Random(number).shuffle(ways)
            for when, label in ways:
                sync = "none" if label == OP else when
                figures.setdefault((name, when, label), []).append(batch(bench, targets[label], sync, *what))
    return figures


EXT3, FSYNC, OP, CALLED = "ext3", "Amberfs", "Amberfs, op", "in process"


def report(figures):
    for when, labels in (("end", (EXT3, FSYNC, CALLED)), ("each", (EXT3, FSYNC, OP))):
        if not any(key[1] == when and key[2] == EXT3 for key in figures):
            labels = labels[1:]
        text = "once, at the end" if when == "end" else "after each write"
        print(f"\nSynced {text}: MB/s [quartiles]; bytes to the medium for each written (\"in process\" is durable at each write)")
        heads = "".join(f"{label:>30}" for label in labels)
        print(f"{'':28}{heads}" + (f"{'Amberfs / ext3':>18}" if EXT3 in labels else ""))
        ratios = {}
        for name, _, has_each in workloads():
            if when == "each" and not has_each:
                continue
            line = f"{name:28}"
            for label in labels:
                speeds, sizes = zip(*figures[name, when, label])
                line += f"{shown(speeds)}; {statistics.median(sizes):.2f}".rjust(30)
            if EXT3 in labels:
                pairs = zip(figures[name, when, EXT3], figures[name, when, FSYNC])
                ratio = statistics.median(ours[0] / theirs[0] for theirs, ours in pairs)
                ratios.setdefault("patterns" if has_each else "filesets", []).append(ratio)
                line += f"{ratio:.2f} ×".rjust(18)
            print(line)
        for what, values in ratios.items():
            papers = "2.1" if what == "patterns" else "1.8"
            print(f"{what}: geometric mean {statistics.geometric_mean(values):.2f} × ext3 (the paper's, in the kernel, has {papers})")


def shown(values):
    figure = lambda value: f"{value:.1f}" if value < 100 else f"{value:.0f}"
    if len(values) == 1:
        return figure(values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{figure(middle)} [{figure(low)}-{figure(high)}]"


def find_bench():
    """Builds the benchmark, and says where it is."""
    command = ["cargo", "bench", "--locked", "-p", "amberfs-native", "--bench", "journaling", "--no-run"]
    done = subprocess.run(command + ["--message-format=json"], check=True, stdout=subprocess.PIPE, text=True)
    messages = (json.loads(line) for line in done.stdout.splitlines())
    return [message["executable"] for message in messages if message.get("executable")][-1]


def compare_mounted(program, bench, rounds):
    targets = {}
    with memory(program, "8G") as scratch:
        set_up(program, scratch, targets)
        if FSYNC in targets and OP in targets:
            report(compare(bench, targets, rounds))


def set_up(program, scratch, targets):
    try:
        targets[CALLED] = Called(scratch)
        for label, make in (
            (FSYNC, lambda: Amberfs(program, scratch, "fsync")),
            (OP, lambda: Amberfs(program, scratch, "op")),
            (EXT3, lambda: Ext3(scratch)),
        ):
            target = make()
            prepare(target)
            targets[label] = target
    except OSError as error:
        print(f"journaling: compared without what could not be set up: {error}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", metavar="AMBERFS")
    parser.add_argument("--quick", action="store_true", help="less data, fewer rounds")
    parser.add_argument("--full", action="store_true", help="filesets as large as the paper's, in process")
    parser.add_argument("--mounted", action="store_true", help="only the comparison with ext3")
    parser.add_argument("--rounds", type=int, default=0)
    arguments = parser.parse_args()
    bench = find_bench()
    options = [f"--{name}" for name in ("quick", "full") if getattr(arguments, name)]
    options += ["--rounds", str(arguments.rounds)] if arguments.rounds else []
    if not arguments.mounted:
        subprocess.run([bench, *options], check=True)
    if os.geteuid() != 0:
        print("journaling: not compared with ext3: only root can mount it")
        return
    compare_mounted(arguments.program, bench, arguments.rounds or (1 if arguments.quick else 3))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"journaling: {error}")
