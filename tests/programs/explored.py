"""What `amberfs crash --program` asks of a program: to say what it was promised, and to judge what is left."""
import sys


def acknowledge(n):
    """Step n is durable."""
    print(f"done {n}", flush=True)
    if not sys.stdin.readline():
        sys.exit(1)


def main(description, arguments, run, verdict):
    """`run DIR STEPS` or `judge`; `verdict(directory, low, high)` says `ok N` or `bad WHY` of one state."""
    if arguments[:1] == ["run"] and len(arguments) == 3:
        run(arguments[1], int(arguments[2]))
    elif arguments == ["judge"]:
        for line in sys.stdin:
            directory, low, high = line.rstrip("\n").split("\t")
            print(verdict(directory, int(low), int(high)), flush=True)
    else:
        sys.exit(description)
