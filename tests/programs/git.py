#!/usr/bin/env python3
"""git as a program whose power cuts are explored: `amberfs crash --program tests/programs/git.py`.

    git.py run DIR STEPS    makes STEPS commits; after each says `done N` and waits for a line
    git.py judge            reads `DIR LOW HIGH` lines; answers `ok N` or `bad WHY` to each

What a state must hold: `git fsck` finds nothing, and the branch has the first N commits with their files,
LOW <= N <= HIGH. git syncs what it writes and renames into place, but never a directory, so a commit is sure to
survive only where a rename is durable when it returns: on a mount with `durability=op`.
"""
import os
import subprocess
import sys

from explored import acknowledge, main

ENVIRONMENT = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    **{f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER")
       for what, value in (("NAME", "n"), ("EMAIL", "n@localhost"), ("DATE", "1700000000 +0000"))},
}
SETTINGS = ["-c", "core.fsync=all", "-c", "core.fsyncMethod=fsync", "-c", "gc.auto=0", "-c", "safe.directory=*"]


def git(directory, *arguments):
    return subprocess.run(["git", "-C", directory, *SETTINGS, *arguments], env=ENVIRONMENT, text=True,
                          capture_output=True, stdin=subprocess.DEVNULL)


def must(answer):
    if answer.returncode != 0:
        sys.exit(f"git failed: {answer.stderr}")


def name(n):
    return f"file{n % 5}"


def text(n):
    return f"commit {n}\n" * (1 + n * 37 % 400)


def run(directory, steps):
    must(git(directory, "init", "--quiet", "--initial-branch=main", "."))
    acknowledge(0)
    for n in range(1, steps + 1):
        with open(os.path.join(directory, name(n)), "w") as file:
            file.write(text(n))
        must(git(directory, "add", name(n)))
        must(git(directory, "commit", "--quiet", "-m", str(n)))
        acknowledge(n)


def verdict(directory, low, high):
    if not os.path.exists(os.path.join(directory, ".git/HEAD")):
        return "ok -1" if low < 0 else "bad the repository is gone"
    if low < 0 and git(directory, "rev-parse", "--git-dir").returncode != 0:
        return "ok -1"  # half of an `init` that had not returned
    fsck = git(directory, "fsck", "--full", "--strict", "--no-dangling", "--no-progress")
    if fsck.returncode != 0:
        return "bad fsck: " + (fsck.stdout + fsck.stderr).strip().replace("\n", "; ")
    log = git(directory, "log", "--format=%s", "--reverse")
    commits = log.stdout.split() if log.returncode == 0 else []
    n = len(commits)
    if commits != [str(i) for i in range(1, n + 1)]:
        return f"bad the commits are {commits}"
    if not max(low, 0) <= n <= high:
        return f"bad {n} commits, not {low} to {high}"
    for i in range(max(1, n - 4), n + 1):
        if git(directory, "show", f"HEAD:{name(i)}").stdout != text(i):
            return f"bad {name(i)} is not that of commit {i}"
    return f"ok {n}"


main(__doc__, sys.argv[1:], run, verdict)
