#!/bin/bash
# The suites of tests/mounted on disks with their metadata in NVM, and beside them servers killed under load; e2fsck has the last word each time.
#
#   disk-suites.sh [MOUNT-OPTIONS]    added to those of each mount
set -uo pipefail
cd "$(dirname "$0")" || exit 2
. ./environment.sh
more=${1:+,$1}
status=0 closing=()
run() { # run NAME COMMAND...
    "${@:2}" 2>&1 | tee "$outputs/$1" || { status=1 && closing+=("$1: FAILED"); }
    while read -r line; do closing+=("$line"); done < <(closing_lines < "$outputs/$1")
}
end() {
    printf '\n'
    printf '%s\n' "${closing[@]}"
    exit $status
}
suites() {
    run ext4 ./mounted-suites.sh --disk ext4 "nosync$more"
    # Fewer operations than on ext4: these two differ in how they map files.
    export SUITES="pjdfstest processes fsx" FSX_SEEDS=2 FSX_OPERATIONS=3000
    run ext3 ./mounted-suites.sh --disk ext3 "sync$more"
    run ext2 ./mounted-suites.sh --disk ext2 "dirsync$more"
    end
}
# Each kind with each promise; the third round of each kills while recovering, too.
kills() {
    kill_loop() { ./kill-loop.sh 3 "$1" "${@:2}" | sed 's/^kill-loop of/\n&/'; }
    run "kill ext4" kill_loop ext4 sync dirsync nosync
    run "kill ext3" kill_loop ext3 nosync sync dirsync
    run "kill ext2" kill_loop ext2 dirsync nosync sync
    end
}
outputs=$(mktemp -d "${TMPDIR:-/tmp}/amberfs-disks.XXXXXX") || exit 2
trap 'rm -rf "$outputs"' EXIT
set -m # a process group of its own
(kills) > "$outputs/kills" 2>&1 < /dev/null &
beside=$!
set +m
trap 'kill -TERM -- -$beside; exit 130' INT TERM
(suites) 2>&1 | tee "$outputs/suites" || status=1
wait $beside || status=1
cat "$outputs/kills"
printf '\n'
for each in suites kills; do closing_lines < "$outputs/$each"; done
exit $status
