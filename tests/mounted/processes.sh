#!/bin/bash
# What several processes expect of one file system: locks, shared mappings, appends, files without names.
# usage: processes.sh MOUNT_POINT
. "$(dirname "$0")/suite.sh"
begin processes "$@"
need python3 python3
while read -r result check; do
    case $result in
        pass) passed "$check" ;;
        skip) skipped "$check" ;;
        *) failed "$check" ;;
    esac
done < <(cd "$WORK" && timeout 900 python3 "$HERE/processes" 2>"$LOGS/stderr" || echo "FAIL processes: $(tail -1 "$LOGS/stderr")")
finish
