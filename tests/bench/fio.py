#!/usr/bin/env python3
"""fio on a volume in process, by the engine libamberfs_fio.so, beside fio's own engine on a tmpfs.

    fio.py AMBERFS ENGINE [--size MIB] [--seconds N] [--rounds N]

Both are in memory and run in turns, in every round; figures are medians. A write of the volume is durable when it returns
(durability=op), one of tmpfs is not. Each row is one job of one thread.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROWS = [("read", "4k"), ("randread", "4k"), ("write", "4k"), ("randwrite", "4k"), ("read", "1m"), ("write", "1m")]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def fio(engine, rw, block, arguments):
    """Operations a second, and CPU µs of each."""
    text = run("fio", "--name=job", "--thread", "--norandommap", "--time_based", f"--rw={rw}", f"--bs={block}",
               f"--size={arguments.size}M", f"--runtime={arguments.seconds}", "--output-format=json", *engine)
    job = json.loads(text[text.index("{"):])["jobs"][0]
    rate = job["read" if "read" in rw else "write"]["iops"]
    return rate, (job["usr_cpu"] + job["sys_cpu"]) / 100 * 1e6 / rate


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("amberfs")
    parser.add_argument("engine")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="amberfs-fio.") as scratch:
        zone = f"{scratch}/zone"
        run(arguments.amberfs, "zone", "create", zone, "--size", f"{arguments.size * 2 + 256}M")
        run(arguments.amberfs, "mkfs", f"{zone}:v")
        library = os.path.abspath(arguments.engine)
        engines = {
            "a volume": [f"--ioengine=external:{library}", f"--zone={zone}", "--volume=v", "--filename=file"],
            "tmpfs": ["--ioengine=psync", f"--filename={scratch}/file"],
        }
        print(f"{'':<16}" + "".join(f"{name + ': a second':>22}{'CPU µs':>10}" for name in engines))
        for rw, block in ROWS:
            found = {name: [] for name in engines}
            for _ in range(arguments.rounds):
                for name, engine in engines.items():
                    found[name].append(fio(engine, rw, block, arguments))
            cells = ([statistics.median(column) for column in zip(*rounds)] for rounds in found.values())
            print(f"{rw + ' ' + block:<16}" + "".join(f"{rate:>22,.0f}{cpu:>10.2f}" for rate, cpu in cells))


main()
