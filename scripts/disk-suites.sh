#!/bin/bash
# The suites of tests/mounted on disks with their metadata in NVM, and servers killed under load; e2fsck has the last word each time.
#
#   disk-suites.sh [MOUNT-OPTIONS]    added to those of each mount
set -uo pipefail
cd "$(dirname "$0")" || exit 2
more=${1:+,$1}
status=0 closing=()
run() { # run NAME COMMAND...
    local output
    output=$("${@:2}" 2>&1 | tee /dev/stderr) || { status=1 && closing+=("$1: FAILED"); }
    while read -r line; do closing+=("$line"); done < <(tac <<< "$output" | sed '/^$/q' | tac | sed '/^$/d')
}
run ext4 ./mounted-suites.sh --disk ext4 "nosync$more"
# Fewer operations than on ext4: these two differ in how they map files.
export SUITES="pjdfstest processes fsx" FSX_SEEDS=2 FSX_OPERATIONS=3000
run ext3 ./mounted-suites.sh --disk ext3 "sync$more"
run ext2 ./mounted-suites.sh --disk ext2 "dirsync$more"
# Each kind with each promise; the third round of each kills while recovering, too.
kill() { ./kill-loop.sh 3 "$1" "${@:2}" | sed 's/^kill-loop of/\n&/'; }
run "kill ext4" kill ext4 sync dirsync nosync
run "kill ext3" kill ext3 nosync sync dirsync
run "kill ext2" kill ext2 dirsync nosync sync
printf '\n'
printf '%s\n' "${closing[@]}"
exit $status
