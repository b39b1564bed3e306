#!/usr/bin/env python3
"""Measures anew what docs/performance.md shows, and puts it there.

    figures.py [NAME...]      all figures, some 40 minutes, or those of these names

A figure stands in that page between `<!-- figures: NAME -->` and `<!-- end -->`, with the command that gave it, the commit, the date
and the machine. Each is written as soon as it is measured; one whose command fails stays as it was, and the exit code is 1.
Needs root, 20 GiB of memory, and a machine with nothing else to do; `make figures` installs the programs.
"""

import datetime
import os
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
PAGE = TOP / "docs" / "performance.md"

# By name: what is run, and the tables of its report that the page shows, by how they begin; none: its lines as they are.
RATE, RATIO, CPU, TAIL, DISK = "a second", "times the rate", "CPU µs", "99 of 100", "asked of the disk"
FIGURES = {
    "operations": ("make bench-operations OPERATIONS='--million --volume 16 --rounds 3'", ()),
    "headline": ("make bench BENCH=--markdown", (RATE, CPU, TAIL)),
    "requests": (
        "make bench PEERS=amberfs,amberfs-op,fuse,fuse2fs,ext4,ext4-disk "
        "BENCH='--rounds 3 --seconds 0.15 --scale 0.005 --against fuse --markdown'",
        (RATE, RATIO),
    ),
    "synced": ("make bench-synced", (RATE, RATIO, TAIL)),
    "ext": ("make bench-ext", (RATE, RATIO, DISK)),
    "snapshots": ("make bench-snapshots", ()),
    "journaling": ("make bench-journaling JOURNALING=--quick", ()),
    "scale": ("make bench-scale", ()),
    "fio": ("make bench-fio FIO='--seconds 1'", ()),
}


def main():
    names = sys.argv[1:] or list(FIGURES)
    if unknown := [name for name in names if name not in FIGURES]:
        sys.exit(f"figures: no figure '{unknown[0]}': {', '.join(FIGURES)}")
    failed = [name for name in names if not measure(name)]
    if failed:
        sys.exit(f"figures: not measured, and left as they were: {', '.join(failed)}")


def measure(name):
    """Puts figure `name` into the page; whether its command succeeded."""
    command, tables = FIGURES[name]
    print(f"figures: {name}: {command}", file=sys.stderr, flush=True)
    begun = datetime.datetime.now(datetime.timezone.utc)
    load = os.getloadavg()[0]
    done = subprocess.run(["bash", "-c", command], cwd=TOP, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(f"figures: {command}: exit code {done.returncode}", file=sys.stderr, flush=True)
        return False
    what = f"`{command}`, commit {commit()}, {begun:%Y-%m-%d %H:%M} UTC, load {load:.1f} before: {machine()}."
    shown = markdown(done.stdout, tables) if tables else f"```text\n{plain(done.stdout)}\n```"
    text = PAGE.read_text()
    block = f"<!-- figures: {name} -->\n{what}\n\n{shown}\n<!-- end -->"
    text, count = re.subn(rf"<!-- figures: {name} -->\n.*?<!-- end -->", lambda _: block, text, flags=re.DOTALL)
    if count != 1:
        sys.exit(f"figures: {PAGE.name} has {count} places for '{name}'")
    PAGE.write_text(text)
    return True


def commit():
    """The commit that is measured; that the page itself has changed meanwhile is no matter."""
    changed = subprocess.run(["git", "-C", str(TOP), "status", "--porcelain", "--", ".", ":!docs"], capture_output=True, text=True)
    described = subprocess.run(["git", "-C", str(TOP), "describe", "--always"], capture_output=True, text=True)
    return (described.stdout.strip() or "unknown") + ("-dirty" if changed.stdout else "")


def machine():
    model = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = re.match(r"\d+\.\d+|.*", os.uname().release)[0]
    return f"{os.cpu_count()} processors ({model[1] if model else 'of a kind unknown'}), {memory:.0f} GiB, Linux {kernel}"


def markdown(output, prefixes):
    """The tables of `amberfs bench --markdown` that begin so, with what its targets are."""
    paragraphs = re.split(r"\n\n+", plain(output))
    targets = [text for text in paragraphs if text.startswith("- **")]
    tables = [text.rstrip() for text in paragraphs if text.startswith(tuple(f"| {prefix}" for prefix in prefixes))]
    tables = [text for text in tables if re.search(r"\| [\d.]", text)]
    notes = [text.rstrip() for text in paragraphs if text.startswith("†")]
    if not tables:
        sys.exit("figures: the report has none of its tables")
    return "\n\n".join(targets[:1] + tables + notes)


def plain(output):
    """A report in plain text, without what make and cargo say of themselves."""
    said = re.compile(r"^(make(\[\d+\])?:|cargo |scripts/|tests/bench/|\s+(Compiling|Finished|Running|Blocking)\b)")
    return "\n".join(line.rstrip() for line in output.splitlines() if not said.match(line)).strip("\n")


if __name__ == "__main__":
    main()
