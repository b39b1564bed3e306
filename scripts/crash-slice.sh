#!/bin/bash
# What `make test` asks of the crash explorer: all of one operation with every operation durable, recoveries crashed in
# turn; and a slice of two operations under each promise.
#
#   crash-slice.sh [COUNT]    COUNT sequences of two under each promise (12 without it)
set -euo pipefail
. "$(dirname "$0")/environment.sh"
amberfs=$CARGO_TARGET_DIR/release/amberfs
"$amberfs" crash --one --durability op
"$amberfs" crash --two "${1:-12}" --depth 1
