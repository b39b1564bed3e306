#!/bin/bash
# Every suite of tests/mounted on a mounted native volume, as it is by default and with every operation durable;
# then the volume has to pass its check.
#
#   mounted-suites.sh [MOUNT-OPTIONS...]    default: durability=fsync
. "$(dirname "$0")/mounted-volume.sh"

export AMBERFS_TOOLS=${AMBERFS_TOOLS:-$CARGO_TARGET_DIR/tools}
volume_begin suites 2G
status=0
closing=()
[ $# -gt 0 ] || set -- durability=fsync
for options in "$@"; do
    echo "== mounted with -o $options"
    volume_mount "$options,log=$scratch/server.log" || exit 1
    chmod 755 "$scratch"
    (cd "$scratch" && exec "$top/tests/mounted/suites.sh" "$mnt") 2>&1 | tee "$scratch/suites.log"
    suites=${PIPESTATUS[0]}
    [ "$suites" -eq 0 ] || status=1
    # Its closing lines stand after the last empty line.
    while read -r line; do closing+=("$options: $line"); done < <(tac "$scratch/suites.log" | sed '/^$/q' | tac | sed '/^$/d')
    if [ -s "$scratch/server.log" ]; then
        echo "what the server had to say:"
        tail -n 20 "$scratch/server.log"
    fi
    volume_umount || status=1
    if checked=$("$amberfs" fsck -n "$place"); then closing+=("$options: fsck: clean"); else
        closing+=("$options: fsck: FAILED")
        echo "$checked" | tail -n 20
        status=1
    fi
done
echo
printf '%s\n' "${closing[@]}"
exit $status
