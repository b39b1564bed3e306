#!/bin/bash
# Several processes do everything at random in one small tree; what is left must hang together, also after a remount.
# usage: storm.sh MOUNT_POINT [PROCESSES [OPERATIONS]]
# AMBERFS_REMOUNT, if set, is a command that unmounts MOUNT_POINT and mounts it again. scripts/mounted-suites.sh sets it.
. "$(dirname "$0")/suite.sh"
begin storm "$@"
need python3 python3
seed=${STORM_SEED:-$RANDOM}
echo "seed $seed (STORM_SEED=$seed repeats what each process wants to do)"
storm() { python3 "$HERE/storm.py" "$@"; }
check "storm" timeout 600 python3 "$HERE/storm.py" run "$WORK" "$seed" "${2:-4}" "${3:-6000}"
check "look" storm look "$WORK" "$LOGS/before"
if [ -n "${AMBERFS_REMOUNT:-}" ]; then
    check "remount" bash -c "$AMBERFS_REMOUNT"
    check "look after the remount" storm look "$WORK" "$LOGS/after"
    check "nothing has changed" cmp "$LOGS/before" "$LOGS/after"
else
    echo "AMBERFS_REMOUNT is not set: not looked at after a remount"
fi
check "remove" rm -r "$WORK/tree"
finish
