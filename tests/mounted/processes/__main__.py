"""Checks of processes.sh, run in an empty directory of the file system. Prints `pass|skip|FAIL NAME: WHY`."""

import os

import attributes  # noqa: F401
import names  # noqa: F401
import sharing  # noqa: F401
from support import CHECKS, Skip


def main():
    top = os.getcwd()
    for function in CHECKS:
        name = function.__name__.replace("_", " ")
        os.chdir(top)
        os.mkdir(function.__name__)
        os.chmod(function.__name__, 0o755)
        os.chdir(function.__name__)
        try:
            function()
            print("pass", name, flush=True)
        except Skip as why:
            print("skip", f"{name}: {why}", flush=True)
        except BaseException as why:
            print("FAIL", f"{name}: {why!r}", flush=True)


main()
