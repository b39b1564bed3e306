#!/bin/bash
# Has the kernel offer FUSE over io_uring, to all mounts of the machine that are made meanwhile, until this ends.
#
#   rings.sh COMMAND...    while COMMAND runs; where the kernel has no rings, or this is not root, it says so and runs it without
#   . rings.sh             until the script that sources this ends: $rings is what mount options to test with
uring=/sys/module/fuse/parameters/enable_uring
without=
if [ -e "$uring" ] && offered=$(cat "$uring") && echo Y 2> /dev/null > "$uring"; then
    trap 'echo "$offered" > "$uring"' EXIT
    rings=transport=io_uring
else
    rings=transport=device
    without="LEFT OUT: mounts over io_uring: $uring is not there or cannot be written (Linux 6.14, root)"
    echo "$(basename "$0"): $without" >&2
fi
if [ "${BASH_SOURCE[0]}" = "$0" ]; then "$@"; fi
