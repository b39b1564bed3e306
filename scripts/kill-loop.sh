#!/bin/bash
# Load, SIGKILL to the server, mount (which recovers), verify every acknowledged write, check; again and again.
# Every third round kills the server while it recovers, too.
#
#   kill-loop.sh [ROUNDS [KIND [MOUNT-OPTIONS...]]]    of a native volume, or of a disk of ext2, ext3 or ext4 with its metadata in
#                                   NVM; of several lists of options each round takes the next. KILL_SEED=N repeats the delays of a run
. "$(dirname "$0")/mounted-volume.sh"

rounds=${1:-10}
seed=${KILL_SEED:-$RANDOM}
RANDOM=$seed
echo "kill-loop: $rounds rounds, KILL_SEED=$seed"
kind=${2:-}
lists=("${@:3}")
[ ${#lists[@]} -gt 0 ] || lists=("")
if [ -n "$kind" ]; then disk_begin kill 64M 1G -t "$kind"; else volume_begin kill 384M; fi
passed=0
failed=0
operations=0
slowest=0

fail() {
    echo "FAILED in round $round: $*"
    failed=$((failed + 1))
    # What is left of the zone helps more than a fresh start.
    kept=${TMPDIR:-/tmp}/amberfs-kill-$seed-$round.zone
    cp --sparse=always "$zone" "$kept" && echo "kill-loop: the zone as it is now: $kept"
    echo "kill-loop: $passed rounds passed, $failed failed"
    exit 1
}

# Kills a server that has just begun to mount. Not over io_uring: Linux 6.18 may leave a server that is killed while it asks its own mount for
# the first time waiting for ever.
kill_in_recovery() {
    "$amberfs" mount --foreground -o "transport=device${options:+,$options}" "$place" "$mnt" > /dev/null 2>&1 &
    local server=$!
    sleep "0.00$((RANDOM % 10))"
    kill -9 "$server"
    wait "$server" 2> /dev/null
    if grep -qF " $mnt " /proc/self/mounts; then "$amberfs" umount "$mnt" > /dev/null; fi
}

for ((round = 1; round <= rounds; round++)); do
    options=${lists[(round - 1) % ${#lists[@]}]}
    volume_mount "$options" > "$scratch/out" || fail "mount: $(cat "$scratch/out")"
    work=$mnt/round-$round
    mkdir "$work" || fail "mkdir"
    log=$scratch/round-$round.log
    "$acknowledged" write "$work" "$log" --threads $((1 + RANDOM % 3)) --seconds 60 2> /dev/null &
    load=$!
    # What is in flight at its death makes a round worth it, not how long it went well before; but checkpoints should come, too.
    sleep "$((round % 3 ? 0 : RANDOM % 3)).$((RANDOM % 10))$((RANDOM % 10))"
    sleep 0.2
    volume_kill || fail "no server to kill"
    wait "$load" 2> /dev/null
    volume_umount > "$scratch/out" 2>&1 || fail "umount of the dead mount: $(cat "$scratch/out")"
    if [ $((round % 3)) -eq 0 ]; then kill_in_recovery; fi

    started=$(date +%s%N)
    volume_mount "$options" > "$scratch/out" 2>&1 || fail "mount after the kill: $(cat "$scratch/out")"
    took=$((($(date +%s%N) - started) / 1000000))
    [ $took -gt $slowest ] && slowest=$took
    # This round's work, and that of earlier rounds, which survived their own kills and all those since.
    for ((earlier = round > 4 ? round - 4 : 1; earlier <= round; earlier++)); do
        [ -s "$scratch/round-$earlier.log" ] || continue
        "$acknowledged" verify "$mnt/round-$earlier" "$scratch/round-$earlier.log" > "$scratch/out" 2>&1 \
            || { tail -n 20 "$scratch/out"; fail "acknowledged writes of round $earlier are lost"; }
    done
    operations=$((operations + $(wc -l < "$log")))
    [ $round -gt 4 ] && rm -rf "$mnt/round-$((round - 4))" "$scratch/round-$((round - 4)).log"
    volume_umount > "$scratch/out" 2>&1 || fail "umount: $(cat "$scratch/out")"
    "$amberfs" fsck -n "$place" > "$scratch/out" 2>&1 || { tail -n 20 "$scratch/out"; fail "fsck"; }
    passed=$((passed + 1))
done
# A load that does nothing proves nothing.
[ "$operations" -ge $((rounds * 20)) ] || fail "only $operations operations were acknowledged in all"
if [ -n "$kind" ]; then disk_check > "$scratch/out" 2>&1 || { tail -n 20 "$scratch/out"; fail "e2fsck"; }; fi
echo "kill-loop${kind:+ of $kind}${lists[0]:+, mounted with ${lists[*]}}: $passed rounds passed, $failed failed: $operations acknowledged operations verified, slowest mount after a kill $slowest ms"
