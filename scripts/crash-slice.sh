#!/bin/bash
# What `make test` asks of the crash explorer: all of one operation under every promise, recoveries crashed in turn for each difference
# that one which was cut short could see; each way to log bytes under each promise, with snapshots, rollbacks, clones and garbage; a slice of two operations under each promise; pairs at the same time; an attached ext disk, both media at once, under both of its
# promises;
# repairs that are cut short; faults planted in the volumes' logic, each of which has to be found; one program that judges itself.
#
#   crash-slice.sh [COUNT]    COUNT sequences of two under each promise (12 without it)
set -euo pipefail
. "$(dirname "$0")/environment.sh"
amberfs=$CARGO_TARGET_DIR/release/amberfs
"$amberfs" crash --one --exact
named() { "$amberfs" crash --list | grep -oE "^($1)[^ ]*" | grep -v '^empty-log'; } # named PATTERN: what is called so, but for ext's
# Each with every way to log, and under every promise: but each pair of these has every third.
mapfile -t kept < <(named 'write-|snapshot|roll-back|clone-|empty-|reserved-|moved-')
turn=0
for journal in block diff block-switch; do
    for promise in op fsync snapshot; do
        third=()
        for ((i = turn % 3; i < ${#kept[@]}; i += 3)); do third+=("${kept[i]}"); done
        "$amberfs" crash --journal $journal --durability $promise "${third[@]}"
        turn=$((turn + 1))
    done
    turn=$((turn + 1))
done
"$amberfs" crash --two "${1:-12}" --depth 1
"$amberfs" crash --concurrent 2
ext_slice=(create create-unlink mkdir-rmdir unlink-file unlink-open-close rename-over rename-exchange-dirs rename-dir-across
  write-sub-block write-across write-append-block truncate-down-up open-truncate setxattr-large tmpfile-link
  checkpoint-create checkpoint-write checkpoint-unlink checkpoint-between checkpoint-while-open checkpoint-reused
  fdatasync commit-append pages-overwrite pages-synced pages-cut-grown pages-reused empty-log-unlinked)
mapfile -t full < <(named 'full-')
"$amberfs" crash --volume ext "${ext_slice[@]}" "${full[@]}"
"$amberfs" crash --volume ext2 --depth 1 "${ext_slice[@]}"
"$amberfs" crash --volume ext-tight --depth 1 mkdir+mkdir-in-dir+checkpoint-nothing "${ext_slice[@]}" "${full[@]}"
"$amberfs" crash --repairs 97
cargo test --locked -p amberfs-crash --features planted-faults --test faults --test ext_faults -- --nocapture
"$amberfs" crash --program 'tests/programs/sqlite.py wal' --steps 12 --states 300
