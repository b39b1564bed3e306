#!/bin/bash
# Runs every suite of this folder on a mount.
# usage: suites.sh MOUNT_POINT
HERE=$(cd "$(dirname "$0")" && pwd)
status=0 closing=()
for suite in pjdfstest processes snapshots fsx fio stress; do
    output=$("$HERE/$suite.sh" "${1:-}" | tee /dev/stderr) || status=1
    closing+=("$(tail -1 <<<"$output")")
done
printf '\n'
printf '%s\n' "${closing[@]}"
exit $status
