# Sourced by scripts that work on a mounted volume: makes zone and volume, mounts, kills, and cleans up.
#
#   volume_begin NAME ZONE-SIZE    a new zone in memory, not mounted: $zone, $place, $mnt, $scratch
#   volume_mount [OPTIONS]         mounts $place on $mnt
#   volume_umount                  unmounts, whatever state the mount is in
#   volume_kill                    SIGKILL to the server
#   volume_end                     unmounts and removes everything; also done when the script ends
set -uo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$top/target}
export PATH=$PATH:/usr/sbin:/sbin
amberfs=$CARGO_TARGET_DIR/release/amberfs
acknowledged=$CARGO_TARGET_DIR/release/examples/acknowledged
[ -x "$amberfs" ] && [ -x "$acknowledged" ] || { echo "$0: run 'make build' first" >&2; exit 2; }

volume_begin() {
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/amberfs-$1.XXXXXX") || exit 2
    mnt=$scratch/mnt
    mkdir "$mnt"
    zone=/dev/shm/$(basename "$scratch").zone
    place=$zone:test
    trap volume_end EXIT
    trap 'exit 130' INT TERM
    "$amberfs" zone create "$zone" --size "$2" && "$amberfs" mkfs "$place" || exit 2
}

volume_mount() { "$amberfs" mount "$place" "$mnt" ${1:+-o "$1"}; }

volume_umount() { "$amberfs" umount "$mnt"; }

# The process that serves $mnt.
volume_server() { "$amberfs" stats "$mnt" --json | grep -o '"pid":[0-9]*' | cut -d: -f2; }

volume_kill() {
    local server
    server=$(volume_server)
    [ -n "$server" ] && kill -9 "$server"
}

volume_end() {
    trap - EXIT
    if mountpoint -q "$mnt" || grep -qF " $mnt " /proc/self/mounts; then "$amberfs" umount "$mnt" > /dev/null 2>&1 || "$amberfs" umount --lazy "$mnt"; fi
    rm -f "$zone"
    rm -rf "$scratch"
}
