#!/bin/bash
# Runs every suite of this folder on a mount, or those named.
# usage: suites.sh MOUNT_POINT [SUITE...]
set -uo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
status=0 closing=()
mounted=${1:-}
shift
[ $# -gt 0 ] || set -- pjdfstest processes snapshots storm fsx fio stress
for suite in "$@"; do
    output=$("$HERE/$suite.sh" "$mounted" | tee /dev/stderr) || status=1
    closing+=("$(tail -1 <<<"$output")")
done
printf '\n'
printf '%s\n' "${closing[@]}"
exit $status
