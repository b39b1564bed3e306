#!/bin/bash
# xfstests, the suite of the kernel's own file systems, on mounts. It has to be there, and built: it is in no distribution's packages (see CONTRIBUTING.md).
#
#   xfstests.sh DIR [KIND [ARGUMENT...]]
#
# DIR is where it is; nothing is changed there. KIND: native (the default), or ext2, ext3, ext4 for a disk with its metadata in NVM, made by mke2fs
# with MKE2FS_OPTIONS. The arguments are those of its `check`; without any, `-g quick`. What fails and is not in tests/xfstests/known is a failure.
# It runs in a mount namespace of its own, with copies of the system's lists of users and of its directory of helpers: nothing is left on the machine.
set -uo pipefail
. "$(dirname "$0")/environment.sh"
[ -n "${1:-}" ] || { sed -n 's/^#   //p' "$0" >&2; exit 2; }
if [ "$1" != --inside ]; then
    [ "$(id -u)" = 0 ] || { echo "xfstests: it mounts, which only root may" >&2; exit 2; }
    exec unshare --mount --propagation private -- "$0" --inside "$@"
fi
suite=$(realpath "$2") kind=${3:-native}
shift $(($# > 3 ? 3 : $#))
[ $# -gt 0 ] || set -- -g quick
case $kind in native | ext[234]) ;; *) echo "xfstests: '$kind' is no kind of volume: native, ext2, ext3, ext4" >&2; exit 2 ;; esac
[ -x "$suite/check" ] && [ -x "$suite/src/af_unix" ] || { echo "xfstests: $suite has no built xfstests: fetch it, and run 'make' there" >&2; exit 2; }
command -v xfs_io > /dev/null || { echo "xfstests: it needs xfs_io (on Debian: apt-get install xfsprogs)" >&2; exit 2; }
[ -x "$CARGO_TARGET_DIR/release/amberfs" ] || { echo "xfstests: nothing is built: run 'make build'" >&2; exit 2; }

scratch=$(mktemp -d "${TMPDIR:-/tmp}/amberfs-xfstests.XXXXXX") || exit 2
zones=/dev/shm/$(basename "$scratch") helpers=$(realpath /sbin)
# What a test has left mounted ends with the namespace.
trap 'umount --lazy --recursive "$scratch/scratch" 2> /dev/null; umount --lazy --recursive "$scratch/test" 2> /dev/null; umount --lazy "$helpers" "$scratch/sbin" 2> /dev/null; rm -f "$zones".*; rm -rf --one-file-system "$scratch"' EXIT
# Other users have to come through.
chmod 755 "$scratch" && mkdir "$scratch"/{sbin,suite,results,test,scratch} || exit 2
mount -t tmpfs tmpfs "$scratch/sbin" && cp -a "$helpers/." "$scratch/sbin/" && mount --bind "$scratch/sbin" "$helpers" || exit 2
make --silent -C "$top" install PREFIX="$scratch/prefix" SBINDIR="$helpers" > /dev/null || exit 2
export PATH=$scratch/prefix/bin:$PATH
# Users that its tests become.
for list in passwd group; do
    cp "/etc/$list" "$scratch/$list" && id=60700 || exit 2
    for name in fsgqa fsgqa2 123456-fsgqa; do
        case $list in
            passwd) grep -q "^$name:" "$scratch/$list" || echo "$name:*:$id:$id::/tmp:/bin/bash" >> "$scratch/$list" ;;
            group) grep -q "^$name:" "$scratch/$list" || echo "$name:*:$id:" >> "$scratch/$list" ;;
        esac
        id=$((id + 1))
    done
    mount --bind "$scratch/$list" "/etc/$list" || exit 2
done
# The suite as it is, but for what it has to know of a volume.
ln -s "$suite"/* "$scratch/suite/" && rm -f "$scratch/suite"/{common,results,local.config} && cp -r "$suite/common" "$scratch/suite/" || exit 2
cat "$top/tests/xfstests/volume.sh" >> "$scratch/suite/common/rc"

export VOLUME_KIND=$kind VOLUME_BYTES=${VOLUME_BYTES:-4G} VOLUME_NVM=${VOLUME_NVM:-512M}
export FSTYP=fuse FUSE_SUBTYP=.amberfs RESULT_BASE=$scratch/results
export TEST_DEV=$zones.test:t TEST_DIR=$scratch/test SCRATCH_DEV=$zones.scratch:s SCRATCH_MNT=$scratch/scratch
cd "$scratch/suite" || exit 2
(. "$top/tests/xfstests/volume.sh" && _volume_mkfs "$TEST_DEV" 2G && _volume_mkfs "$SCRATCH_DEV" "$VOLUME_BYTES") || exit 2
./check "$@"

status=0 known=0
class=${kind%[234]}
failures=$(sed -n 's/^Failures: //p' "$RESULT_BASE/check.log" 2> /dev/null)
ran=$(sed -n 's/^Ran: //p' "$RESULT_BASE/check.log" 2> /dev/null | wc -w) skipped=$(sed -n 's/^Not run: //p' "$RESULT_BASE/check.log" 2> /dev/null | wc -w)
echo
for test in $failures; do
    if why=$(grep -E "^$test (any|$class) " "$top/tests/xfstests/known" | cut -d' ' -f3-) && [ -n "$why" ]; then
        known=$((known + 1))
        echo "known: $test: $why"
    else
        status=1
        echo "FAILED: $test"
    fi
done
[ "$ran" -gt 0 ] || status=1
if [ $status -ne 0 ]; then
    kept=$(mktemp -d "${TMPDIR:-/tmp}/amberfs-xfstests-results.XXXXXX") && cp -r "$RESULT_BASE/." "$kept/" && echo "what they left is in $kept"
fi
echo "xfstests on $kind: $((ran - skipped)) of $ran ran, $(wc -w <<< "$failures") failed, $known of them as known"
exit $status
