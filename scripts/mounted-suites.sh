#!/bin/bash
# Every suite of tests/mounted on a mounted volume, for each list of mount options; then the volume has to pass its check.
#
#   mounted-suites.sh [MOUNT-OPTIONS...]              a native volume; default: durability=fsync
#   mounted-suites.sh --disk KIND [MOUNT-OPTIONS...]  a new disk of ext2, ext3 or ext4 with its metadata in NVM; e2fsck checks it, too
#
# SUITES are those to run, if not all. The first mount of a native volume has the long run of fsx.
. "$(dirname "$0")/mounted-volume.sh"

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
    export FSX_LONG=yes
fi
status=0
closing=()
[ $# -gt 0 ] || set -- durability=fsync
for options in "$@"; do
    named=${kind:+$kind,}$options
    echo "== ${kind:-native} volume mounted with -o $options"
    volume_mount "$options,log=$scratch/server.log" || exit 1
    chmod 755 "$scratch"
    printf -v AMBERFS_REMOUNT '%q umount %q && %q mount %q %q -o %q' "$amberfs" "$mnt" "$amberfs" "$place" "$mnt" "$options,log=$scratch/server.log"
    export AMBERFS_REMOUNT
    (cd "$scratch" && exec "$top/tests/mounted/suites.sh" "$mnt" ${SUITES:-}) 2>&1 | tee "$scratch/suites.log"
    suites=${PIPESTATUS[0]}
    unset FSX_LONG
    [ "$suites" -eq 0 ] || status=1
    # Its closing lines stand after the last empty line.
    while read -r line; do closing+=("$named: $line"); done < <(tac "$scratch/suites.log" | sed '/^$/q' | tac | sed '/^$/d')
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
done
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
