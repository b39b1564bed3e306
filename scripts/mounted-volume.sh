# Sourced by scripts that work on a mounted volume: makes zone and volume, mounts, kills, and cleans up.
#
#   volume_begin NAME ZONE-SIZE    a new zone in memory, not mounted: $zone, $place, $mnt, $scratch
#   disk_begin NAME ZONE-SIZE DISK-SIZE MKE2FS-ARGUMENTS...
#                                  the same, with a new ext disk attached: $disk
#   disk_check                     detaches the disk; e2fsck has to find nothing wrong
#   volume_mount [OPTIONS]         mounts $place on $mnt
#   volume_umount                  unmounts, whatever state the mount is in
#   volume_kill                    SIGKILL to the server
#   check WHAT COMMAND...          counts it as $passed or $failed, and shows what it had to say if it failed; of $kind, if that is set
#   volume_end                     unmounts and removes everything; also done when the script ends
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
amberfs=$CARGO_TARGET_DIR/release/amberfs
acknowledged=$CARGO_TARGET_DIR/release/examples/acknowledged
[ -x "$amberfs" ] && [ -x "$acknowledged" ] || { echo "$0: run 'make build' first" >&2; exit 2; }

volume_begin() {
    zone_begin "$1" "$2" && "$amberfs" mkfs "$place" || exit 2
}

disk_begin() {
    zone_begin "$1" "$2" || exit 2
    disk=$(zone_directory "$3")/$(basename "$scratch").disk
    truncate -s "$3" "$disk" && mke2fs -q -F "${@:4}" "$disk" && "$amberfs" attach "$place" "$disk" || exit 2
}

disk_check() {
    "$amberfs" detach "$place" > /dev/null && e2fsck -fn "$disk" < /dev/null
}

zone_begin() {
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/amberfs-$1.XXXXXX") || exit 2
    mnt=$scratch/mnt
    mkdir "$mnt"
    trap volume_end EXIT
    trap 'exit 130' INT TERM
    zone=$(zone_directory "$2")/$(basename "$scratch").zone
    place=$zone:test
    "$amberfs" zone create "$zone" --size "$2"
}

# Where a zone of this size fits: in memory if there is room in it (containers often have a /dev/shm of 64 MiB, then a
# tmpfs of its own), else in a file.
zone_directory() {
    local bytes room memory
    bytes=$(numfmt --from=iec "$1")
    memory=$(($(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo) * 1024))
    room=$(df --output=avail -B1 /dev/shm 2> /dev/null | tail -n 1)
    if [ "$memory" -lt $((bytes + bytes / 2)) ]; then
        echo "$(basename "$0"): little memory ($((memory >> 20)) MiB): the zone is a file in $scratch" >&2
        echo "$scratch"
    elif [ "${room:-0}" -gt $((bytes + (64 << 20))) ] && [ -w /dev/shm ]; then
        echo /dev/shm
    elif mkdir "$scratch/memory" && mount -t tmpfs -o "size=$((bytes + (64 << 20)))" amberfs-test "$scratch/memory" 2> /dev/null; then
        echo "$scratch/memory"
    else
        echo "$(basename "$0"): little room in /dev/shm: the zone is a file in $scratch" >&2
        echo "$scratch"
    fi
}

volume_mount() { "$amberfs" mount "$place" "$mnt" ${1:+-o "$1"}; }

volume_umount() { "$amberfs" umount "$mnt"; }

# The process that serves $mnt.
volume_server() { "$amberfs" stats "$mnt" --json | grep -o '"pid":[0-9]*' | cut -d: -f2; }

volume_kill() {
    local server
    server=$(volume_server)
    [ -n "$server" ] && kill -9 "$server" || return 1
    # Dead is who has no open file any more, also while nobody has asked for its exit code.
    while [ -n "$(ls "/proc/$server/fd" 2> /dev/null)" ]; do sleep 0.01; done
}

passed=0
failed=0
check() { # check WHAT COMMAND...
    local what=$1
    shift
    if "$@" > "$scratch/out" 2>&1; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAILED: ${kind:+$kind: }$what"
        tail -n 5 "$scratch/out"
    fi
}

volume_end() {
    trap - EXIT
    if mountpoint -q "$mnt" || grep -qF " $mnt " /proc/self/mounts; then "$amberfs" umount "$mnt" > /dev/null 2>&1 || "$amberfs" umount --lazy "$mnt"; fi
    rm -f ${zone:+"$zone"} ${disk:+"$disk"}
    if mountpoint -q "$scratch/memory"; then umount "$scratch/memory" || umount --lazy "$scratch/memory"; fi
    rm -rf "$scratch"
}
