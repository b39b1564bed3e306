#!/usr/bin/env python3
"""SQLite as a program whose power cuts are explored: `amberfs crash --program 'tests/programs/sqlite.py wal'`.

    sqlite.py wal|rollback run DIR STEPS    commits STEPS transactions; after each says `done N` and waits for a line
    sqlite.py wal|rollback judge            reads `DIR LOW HIGH` lines; answers `ok N` or `bad WHY` to each

What a state must hold: SQLite's own integrity check passes, and the rows are exactly those of the first N
transactions, LOW <= N <= HIGH.
"""
import hashlib
import os
import sqlite3
import sys

from explored import acknowledge, main

# A write-ahead log is synced by every commit with FULL. A rollback journal ends by its removal, and only EXTRA syncs
# the directory after that: with less, SQLite promises consistency but not durability.
MODES = {"wal": ("WAL", "FULL"), "rollback": ("DELETE", "EXTRA")}


def body(n):
    """What transaction n writes: 100 to 5000 bytes, so that rows take parts of a page and several."""
    seed = hashlib.sha256(str(n).encode()).digest()
    return (seed * 160)[: 100 + int.from_bytes(seed[:2], "little") % 4900]


def rows(n):
    """The rows after n transactions: each adds one, each fifth removes those that are older than ten."""
    oldest = max(0, n - n % 5 - 10)
    return {i: body(i) for i in range(1, n + 1) if i > oldest}


def opened(directory, mode):
    journal, synchronous = MODES[mode]
    database = sqlite3.connect(os.path.join(directory, "data.db"), isolation_level=None)
    database.execute(f"PRAGMA journal_mode={journal}")
    database.execute(f"PRAGMA synchronous={synchronous}")
    database.execute("PRAGMA wal_autocheckpoint=20")
    return database


def run(directory, mode, steps):
    database = opened(directory, mode)
    database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, body BLOB)")
    acknowledge(0)
    for n in range(1, steps + 1):
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO rows VALUES (?, ?)", (n, body(n)))
        if n % 5 == 0:
            database.execute("DELETE FROM rows WHERE id <= ?", (n - 10,))
        database.execute("COMMIT")
        acknowledge(n)
    database.close()


def verdict(directory, mode, low, high):
    if not os.path.exists(os.path.join(directory, "data.db")):
        return "ok -1" if low < 0 else "bad the database is gone"
    database = opened(directory, mode)
    try:
        answers = [row[0] for row in database.execute("PRAGMA integrity_check")]
        if answers != ["ok"]:
            return f"bad integrity_check: {answers[0]}"
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'rows'").fetchone():
            return "ok -1" if low < 0 else "bad the table is gone"
        found = dict(database.execute("SELECT id, body FROM rows"))
    finally:
        database.close()
    for n in range(max(low, 0), high + 1):
        if found == rows(n):
            return f"ok {n}"
    return f"bad the rows {sorted(found)} are not those after {low} to {high} transactions"


def judged(directory, mode, low, high):
    try:
        return verdict(directory, mode, low, high)
    except sqlite3.Error as error:
        return f"bad {error}"


if len(sys.argv) < 3 or sys.argv[1] not in MODES:
    sys.exit(__doc__)
main(__doc__, sys.argv[2:],
     lambda directory, steps: run(directory, sys.argv[1], steps),
     lambda directory, low, high: judged(directory, sys.argv[1], low, high))
