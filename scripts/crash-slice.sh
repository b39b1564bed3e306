#!/bin/bash
# What `make test` asks of the crash explorer: all of one operation with every operation durable, recoveries crashed in
# turn; a slice of two operations under each promise; pairs at the same time; faults planted in the volume's logic, each
# of which has to be found; one program that judges itself.
#
#   crash-slice.sh [COUNT]    COUNT sequences of two under each promise (12 without it)
set -euo pipefail
. "$(dirname "$0")/environment.sh"
amberfs=$CARGO_TARGET_DIR/release/amberfs
"$amberfs" crash --one --durability op
"$amberfs" crash --two "${1:-12}" --depth 1
"$amberfs" crash --concurrent 2
cargo test --release --locked -p amberfs-crash --features planted-faults --test faults -- --nocapture
"$amberfs" crash --program 'tests/programs/sqlite.py wal' --steps 12 --states 300
