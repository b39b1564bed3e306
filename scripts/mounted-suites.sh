#!/bin/bash
# Every suite of tests/mounted on a mounted volume, for each list of mount options; then the volume has to pass its check.
#
#   mounted-suites.sh [MOUNT-OPTIONS...]              a native volume; default: durability=fsync
#   mounted-suites.sh --disk KIND [MOUNT-OPTIONS...]  a new disk of ext2, ext3 or ext4 with its metadata in NVM; e2fsck checks it, too
#
# Each has a volume of its own, and they are at work beside each other; every second one begins with the suites that wait most. SUITES are those
# to run, if not all. The first mount of a native volume has the long run of fsx (FSX_LONG).
. "$(dirname "$0")/mounted-volume.sh"

first=1
[ "${1:-}" != --disk ] || first=3
if [ $# -gt $first ]; then
    outputs=$(mktemp -d "${TMPDIR:-/tmp}/amberfs-suites.XXXXXX") || exit 2
    trap 'rm -rf "$outputs"' EXIT
    jobs=()
    trap 'for job in "${jobs[@]}"; do kill -TERM -- -$job; done; wait; exit 130' INT TERM
    set -m # a process group for each
    for ((n = first; n <= $#; n++)); do
        order=${SUITES:-}
        if [ -z "$order" ] && [ $first = 1 ] && [ $(((n - first) % 2)) = 1 ]; then
            order="fsx fio stress pjdfstest processes snapshots storm"
        fi
        long=$([ $n = $first ] && echo yes || echo no)
        SUITES=$order FSX_LONG=$long "$0" "${@:1:first-1}" "${!n}" > "$outputs/$n" 2>&1 < /dev/null &
        jobs+=($!)
    done
    set +m
    status=0
    for ((n = first; n <= $#; n++)); do
        wait "${jobs[n - first]}" || status=1
        cat "$outputs/$n"
    done
    echo
    for ((n = first; n <= $#; n++)); do closing_lines < "$outputs/$n"; done
    exit $status
fi

export AMBERFS_TOOLS=${AMBERFS_TOOLS:-$CARGO_TARGET_DIR/tools}
kind=
if [ "${1:-}" = --disk ]; then
    kind=$2
    shift 2
    disk_begin suites 256M 3G -t "$kind" -I 256
    # It has no snapshots.
    : "${SUITES:=pjdfstest processes storm fsx fio stress}"
else
    volume_begin suites 2G
    export FSX_LONG=${FSX_LONG:-yes}
fi
status=0
closing=()
options=${1:-durability=fsync}
named=${kind:+$kind,}$options
echo "== ${kind:-native} volume mounted with -o $options"
volume_mount "$options,log=$scratch/server.log" || exit 1
chmod 755 "$scratch"
printf -v AMBERFS_REMOUNT '%q umount %q && %q mount %q %q -o %q' "$amberfs" "$mnt" "$amberfs" "$place" "$mnt" "$options,log=$scratch/server.log"
export AMBERFS_REMOUNT
(cd "$scratch" && exec "$top/tests/mounted/suites.sh" "$mnt" ${SUITES:-}) 2>&1 | tee "$scratch/suites.log"
suites=${PIPESTATUS[0]}
[ "$suites" -eq 0 ] || status=1
while read -r line; do closing+=("$named: $line"); done < <(closing_lines < "$scratch/suites.log")
if [ -s "$scratch/server.log" ]; then
    echo "what the server had to say:"
    tail -n 20 "$scratch/server.log"
fi
volume_umount || status=1
if checked=$("$amberfs" fsck -n "$place"); then closing+=("$named: fsck: clean"); else
    closing+=("$named: fsck: FAILED")
    echo "$checked" | tail -n 20
    status=1
fi
if [ -n "$kind" ]; then
    if checked=$(disk_check 2>&1); then closing+=("$kind: e2fsck: clean"); else
        closing+=("$kind: e2fsck: FAILED")
        echo "$checked" | tail -n 20
        status=1
    fi
fi
echo
printf '%s\n' "${closing[@]}"
exit $status
