#!/bin/bash
# fio writes random blocks of mixed sizes with checksums and verifies them: buffered, direct, mapped, several jobs.
# usage: fio.sh MOUNT_POINT [SIZE]
# AMBERFS_REMOUNT, if set, is a command that unmounts MOUNT_POINT and mounts it again; then all is verified once more. scripts/mounted-suites.sh
# sets it.
. "$(dirname "$0")/suite.sh"
begin fio "$@"
size=${2:-32m}
need fio fio
cd "$LOGS" || exit 2 # fio leaves its verification state in the working directory

# NAME ENGINE OPTIONS
jobs='buffered psync --bssplit=512/20:4k/40:10k/20:64k/15:1m/5 --blockalign=512
direct psync --direct=1 --bs=4k
direct-large libaio --direct=1 --bssplit=4k/50:128k/50 --blockalign=4k --iodepth=8
mapped mmap --bs=4k
synced psync --bs=4k --fsync=8
many psync --bssplit=4k/60:32k/40 --blockalign=4k --numjobs=4'

run() { # NAME ENGINE OPTIONS... runs or, with VERIFY set, only verifies
    local name=$1 engine=$2
    shift 2
    fio --name="$name" --directory="$WORK" --ioengine="$engine" --size="$size" --rw=randrw --rwmixwrite=70 \
        --verify=crc32c --verify_fatal=1 --randseed=4242 --end_fsync=1 --group_reporting --output-format=terse \
        ${VERIFY:+--verify_only} "$@"
}
while read -r name engine options; do
    # shellcheck disable=SC2086 # the options are words
    check "fio $name" run "$name" "$engine" $options
done <<<"$jobs"

if [ -n "${AMBERFS_REMOUNT:-}" ]; then
    check "remount" bash -c "$AMBERFS_REMOUNT"
    while read -r name engine options; do
        # shellcheck disable=SC2086
        VERIFY=1 check "fio $name after the remount" run "$name" "$engine" $options
    done <<<"$jobs"
else
    echo "AMBERFS_REMOUNT is not set: not verified after a remount"
fi
finish
