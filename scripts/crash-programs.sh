#!/bin/bash
# Programs that nobody here wrote, their power cut anywhere: crash-programs.sh [STATES] [PROGRAM...]
#
# Each works on a recorded mount, then judges itself what every power cut leaves. See docs/crash.md.
set -uo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
amberfs=$CARGO_TARGET_DIR/release/amberfs
states=${1:-10000}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- sqlite-wal sqlite-rollback mapped git rocksdb
failed=0
lines=()

cut() { # cut STEPS DURABILITY COMMAND
    local line
    line=$("$amberfs" crash --program "$3" --steps "$1" --durability "$2" --states "$states") || failed=$((failed + 1))
    echo "$line"
    lines+=("$line")
}

for program in "$@"; do
    case $program in
        sqlite-wal) for mode in op fsync; do cut 60 $mode "tests/programs/sqlite.py wal"; done ;;
        sqlite-rollback) for mode in op fsync; do cut 40 $mode "tests/programs/sqlite.py rollback"; done ;;
        mapped) for mode in op fsync; do cut 60 $mode tests/programs/mapped.py; done ;;
        git) cut 12 op tests/programs/git.py ;;
        rocksdb) for mode in op fsync; do cut 120 $mode tests/programs/rocksdb.sh; done ;;
        *) echo "crash-programs: no program '$program' (sqlite-wal sqlite-rollback mapped git rocksdb)" >&2; exit 2 ;;
    esac
done
echo "crash-programs: ${#lines[@]} lives explored, $failed with a broken promise"
[ $failed -eq 0 ]
