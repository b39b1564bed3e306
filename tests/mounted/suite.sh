# shellcheck shell=bash
# Sourced by the suites in this folder: counting, and installing what a suite needs.
#
# A suite calls `begin NAME "$@"`, then `passed`, `failed` and `skipped` once a check, and ends with `finish`.

set -u
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPOSITORY=$(cd "$HERE/../.." && pwd)
TOOLS=${AMBERFS_TOOLS:-$REPOSITORY/target/tools}
. "$REPOSITORY/scripts/environment.sh"

passes=0 failures=0 skips=0

# begin NAME DIR...: checks that DIR is a mount point and makes $WORK, a scratch directory in it.
begin() {
    SUITE=$1
    MOUNT=${2:-}
    if [ -z "$MOUNT" ] || ! mountpoint -q "$MOUNT"; then
        echo "$SUITE: '$MOUNT' is not a mount point; usage: $SUITE.sh MOUNT_POINT ..." >&2
        exit 2
    fi
    MOUNT=$(cd "$MOUNT" && pwd -P)
    WORK=$(mktemp -d "$MOUNT/$SUITE.XXXXXX") || exit 2
    chmod 755 "$WORK"
    LOGS=$(mktemp -d "${TMPDIR:-/tmp}/$SUITE.XXXXXX") || exit 2
    echo "== $SUITE on $(findmnt -no FSTYPE,SOURCE,OPTIONS --target "$MOUNT" | tail -1)"
}

passed() { passes=$((passes + 1)); [ -n "${QUIET:-}" ] || echo "pass  $*"; }
failed() { failures=$((failures + 1)); echo "FAIL  $*"; }
skipped() { skips=$((skips + 1)); echo "SKIP  $*"; }

# check NAME COMMAND...: passes if the command succeeds; shows its output if not.
check() {
    local name=$1
    shift
    if "$@" >"$LOGS/check" 2>&1; then
        passed "$name"
    else
        failed "$name"
        cp "$LOGS/check" "$LOGS/${name// /-}"
        { head -2 "$LOGS/check"; tail -8 "$LOGS/check"; } | sed 's/^/      /'
    fi
}

finish() {
    cd /
    rm -rf "$WORK"
    if [ "$failures" -eq 0 ]; then rm -rf "$LOGS"; else echo "logs: $LOGS"; fi
    echo "$SUITE: $passes passed, $failures failed, $skips skipped"
    [ "$failures" -eq 0 ]
    exit
}

# cannot WHAT: the suite can't run at all, which is a failure and not a quiet skip.
cannot() {
    failed "$SUITE CANNOT RUN: $*"
    finish
}

# need COMMAND PACKAGE: installs a Debian package unless its command is there.
need() {
    command -v "$1" >/dev/null && return
    echo "$SUITE: installing $2, which has $1"
    DEBIAN_FRONTEND=noninteractive apt-get install -qy -o DPkg::Lock::Timeout=600 "$2" >"$LOGS/apt" 2>&1 ||
        { tail -5 "$LOGS/apt"; cannot "$1 is missing and Debian package $2 could not be installed"; }
}

# need_tool CRATE VERSION: builds a Rust program into $TOOLS unless it is there; as little optimised as our own tests, since that is sooner done
# than gained.
need_tool() {
    [ -x "$TOOLS/bin/$1" ] && return
    # One at a time: suites that are at work beside each other build in the same place.
    mkdir -p "$TOOLS"
    exec 9> "$TOOLS/lock"
    flock 9
    if [ ! -x "$TOOLS/bin/$1" ]; then
        echo "$SUITE: building $1 $2 into $TOOLS"
        # Outside the repository: its toolchain file and lock file are not meant for strangers.
        (cd "$LOGS" && CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=false \
            cargo install "$1" --debug --version "$2" --root "$TOOLS" --target-dir "$TOOLS/build" >"$LOGS/cargo" 2>&1) ||
            { tail -20 "$LOGS/cargo"; cannot "$1 could not be built"; }
        rm -rf "$TOOLS/build"
    fi
    exec 9>&-
}
