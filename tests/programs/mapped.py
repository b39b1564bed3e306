#!/usr/bin/env python3
"""Shared mappings and msync as a program whose power cuts are explored: `amberfs crash --program tests/programs/mapped.py`.

    mapped.py run DIR STEPS    makes STEPS changes through a mapping, each with msync; after each says `done N` and waits
    mapped.py judge            reads `DIR LOW HIGH` lines; answers `ok N` or `bad WHY` to each

Step N fills slot N % 16 of the file, 100 to 9000 bytes across page boundaries, and syncs what it touched. What a state
must hold: every slot has the bytes of the last step that synced it; only that of a step under way may have any mixture
of its old and new bytes.
"""
import hashlib
import mmap
import os
import sys

from explored import acknowledge, main

SLOTS, SLOT, PAGE = 16, 9301, mmap.PAGESIZE
SIZE = (SLOTS * SLOT + PAGE - 1) // PAGE * PAGE


def body(n):
    if n <= 0:
        return b""
    seed = hashlib.sha256(str(n).encode()).digest()
    return (seed * 282)[: 100 + int.from_bytes(seed[:2], "little") % 8900]


def slot(n):
    """Slot n % SLOTS after step n: the step's bytes, and behind them what the steps before had left there."""
    if n <= 0:
        return bytes(SLOT)
    older = slot(n - SLOTS)
    new = body(n)
    return new + older[len(new):]


def run(directory, steps):
    file = os.open(os.path.join(directory, "mapped"), os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(file, SIZE)
    os.fsync(file)
    parent = os.open(directory, os.O_RDONLY)
    os.fsync(parent)
    acknowledge(0)
    with mmap.mmap(file, SIZE) as mapping:
        for n in range(1, steps + 1):
            at, new = n % SLOTS * SLOT, body(n)
            mapping[at:at + len(new)] = new
            first = at // PAGE * PAGE
            mapping.flush(first, (at + len(new) + PAGE - 1) // PAGE * PAGE - first)
            acknowledge(n)


def verdict(directory, low, high):
    try:
        with open(os.path.join(directory, "mapped"), "rb") as file:
            found = file.read()
    except FileNotFoundError:
        return "ok -1" if low < 0 else "bad the file is gone"
    if len(found) != SIZE:
        return "ok -1" if low < 0 and not found.strip(b"\0") else f"bad it has {len(found)} bytes"
    best = low
    for index in range(SLOTS):
        there = found[index * SLOT:(index + 1) * SLOT]
        settled = max((n for n in range(max(low, 0) + 1) if n % SLOTS == index), default=0)
        under_way = [n for n in range(max(low, 0) + 1, high + 1) if n % SLOTS == index]
        versions = [slot(settled)] + [slot(n) for n in under_way]
        mixed = there not in versions
        if mixed and any(all(byte != version[i] for version in versions) for i, byte in enumerate(there)):
            return f"bad slot {index} has bytes of no step that may be there"
        if under_way and there == versions[-1]:
            best = under_way[-1]
    return f"ok {best}"


main(__doc__, sys.argv[1:], run, verdict)
