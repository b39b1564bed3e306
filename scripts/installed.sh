#!/bin/bash
# `make install`, and what mount(8), mkfs(8), fsck(8) and an fstab line do then. In a mount namespace of its own, with a copy of the system's
# directory of helpers in place of it: nothing is left on the machine. Needs root.
set -uo pipefail
. "$(dirname "$0")/environment.sh"
[ "$(id -u)" = 0 ] || { echo "installed: LEFT OUT: it mounts, which only root may"; exit 0; }
if [ "${1:-}" != --inside ]; then exec unshare --mount --propagation private -- "$0" --inside; fi
cd "$top" || exit 2
done=0
fail() {
    echo "installed: FAILED: $*: $(tail -n 3 "$scratch/out")"
    exit 1
}
does() { # does CODE COMMAND...: the command ends with this code
    local wanted=$1 code
    shift
    "$@" > "$scratch/out" 2>&1
    code=$?
    [ "$code" -eq "$wanted" ] || fail "'$*' ended with $code, not $wanted"
    done=$((done + 1))
}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/amberfs-installed.XXXXXX") || exit 2
mnt=$scratch/mnt zone=/dev/shm/$(basename "$scratch").zone prefix=$scratch/prefix helpers=$(realpath /sbin)
trap 'mountpoint -q "$mnt" && umount --lazy "$mnt"; umount --lazy "$helpers" "$scratch/sbin" 2> /dev/null; rm -f "$zone"; rm -rf "$scratch"' EXIT
mkdir "$mnt" "$scratch/sbin"
# mount(8) and fsck(8) look for helpers there, and nowhere else.
mount -t tmpfs tmpfs "$scratch/sbin" && cp -a "$helpers/." "$scratch/sbin/" && mount --bind "$scratch/sbin" "$helpers" || exit 2

does 0 sh -c "umask 077; make --silent install PREFIX='$prefix' SBINDIR='$helpers'"
closed=$(find "$prefix" ! -perm -044)
[ -z "$closed" ] || fail "others cannot read $closed"
export PATH=$prefix/bin:$PATH
does 0 amberfs zone create "$zone" --size 64M
does 0 mkfs -t amberfs "$zone:home"
does 1 mkfs -t amberfs "$zone:home"
does 0 mount -t amberfs "$zone:home" "$mnt"
does 0 cp -a docs "$mnt/"
does 0 mount -o remount,ro "$mnt"
does 1 touch "$mnt/file"
does 8 fsck -t amberfs "$zone:home"
does 0 umount "$mnt"
does 0 fsck -t amberfs "$zone:home"
echo "$zone:home $mnt amberfs noatime,durability=op 0 0" > "$scratch/fstab"
does 0 mount --fstab "$scratch/fstab" "$mnt"
does 0 diff -r docs "$mnt/docs"
grep -q " $mnt .*noatime" /proc/self/mounts || fail "the options of the fstab line are not in force"
does 0 umount "$mnt"
does 32 mount -t amberfs "$zone:nothing" "$mnt"
does 32 mount -t amberfs -o nofail "$zone:nothing" "$mnt"
# A machine comes up without what it may lack.
echo "$zone.gone:home $mnt amberfs defaults 0 0" > "$scratch/fstab"
does 32 mount --fstab "$scratch/fstab" --all
echo "$zone.gone:home $mnt amberfs nofail 0 0" > "$scratch/fstab"
does 0 mount --fstab "$scratch/fstab" --all
does 0 mount --fstab "$scratch/fstab" "$mnt"
does 32 mountpoint --quiet "$mnt"
does 0 test -s "$prefix/share/man/man8/mount.amberfs.8"
does 0 make --silent uninstall PREFIX="$prefix" SBINDIR="$helpers"
left=$(find "$prefix" "$helpers" \( -type f -o -type l \) -name '*amberfs*')
[ -z "$left" ] || fail "uninstall left $left"
echo "installed: $done commands did what they should"
