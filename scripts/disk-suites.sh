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
export SUITES="pjdfstest processes"
run ext3 ./mounted-suites.sh --disk ext3 "sync$more"
run ext2 ./mounted-suites.sh --disk ext2 "dirsync$more"
kill() { ./kill-loop.sh 6 ext4 | sed 's/^kill-loop of/\n&/'; }
run kill kill
printf '\n'
printf '%s\n' "${closing[@]}"
exit $status
