#!/bin/bash
# Shows Amberfs at work: a zone in memory, a native volume mounted, programs that nobody here wrote, a server killed
# under load, its recovery, every acknowledged write verified, and one table. The volume stays mounted.
# Run it again as often as you like: it begins anew.
set -uo pipefail
. "$(dirname "$0")/environment.sh"
cd "$top" || exit 1
amberfs=$CARGO_TARGET_DIR/release/amberfs
acknowledged=$CARGO_TARGET_DIR/release/examples/acknowledged
user=$(id -u)
zone=/dev/shm/amberfs-run-$user.zone
place=$zone:demo
mnt=${TMPDIR:-/tmp}/amberfs-run-$user
log=$CARGO_TARGET_DIR/run-acknowledged.log
out=$CARGO_TARGET_DIR/run-output.log
load_seconds=${LOAD_SECONDS:-5}
rows=()
failed=0
left_out=

say() { printf '\n== %s\n' "$*"; }
give_up() {
    echo "run: $*" >&2
    exit 1
}

# A counter of the mounted volume: counter '"bytes_written"' (the first one of that name), or a total of NVM.
stats() { "$amberfs" stats "$mnt" --json 2> /dev/null; }
counter() { grep -o "\"$1\":[0-9.]*" <<< "$stats" | head -n 1 | cut -d: -f2; }
total() { grep -o '"purpose":"total"[^}]*' <<< "$stats" | grep -o "\"$1\":[0-9]*" | cut -d: -f2; }
read_counters() {
    stats=$(stats)
    user_bytes=$(counter bytes_written)
    nvm_bytes=$(total bytes)
    lines=$(($(total lines_flushed) + $(total lines_streamed)))
    fences=$(counter fences)
}
human() { awk -v b="$1" 'BEGIN { split("B KiB MiB GiB", u, " "); i = 1; while (b >= 1024 && i < 4) { b /= 1024; i++ } printf(i == 1 ? "%d %s" : "%.1f %s", b, u[i]) }'; }

# Runs a step and makes it a row: step WHAT COMMAND...
step() {
    local what=$1 started result=ok
    shift
    say "$what"
    read_counters
    local user_before=$user_bytes nvm_before=$nvm_bytes lines_before=$lines fences_before=$fences
    started=$(date +%s%N)
    "$@" > "$out" 2>&1 || result=FAILED
    local took=$((($(date +%s%N) - started) / 1000000))
    tail -n 3 "$out"
    if [ $result = FAILED ]; then
        failed=$((failed + 1))
        tail -n 20 "$out"
    fi
    read_counters
    row "$what" "$result" "$took" "$(human $((user_bytes - user_before)))" "$(human $((nvm_bytes - nvm_before)))" \
        $((lines - lines_before)) $((fences - fences_before))
}
row() { rows+=("$(printf '%-46s %-7s %7s ms %11s %11s %10s %8s' "$@")"); }

clone() {
    # What is checked out here, whether or not it is a repository of its own.
    if git -C "$top" rev-parse --git-dir > /dev/null 2>&1; then
        git -c safe.directory='*' clone --quiet --no-hardlinks "$top" "$mnt/amberfs"
    else
        mkdir "$mnt/amberfs" && cp -r "$top"/{crates,scripts,Cargo.toml} "$mnt/amberfs/" &&
            (cd "$mnt/amberfs" && git init --quiet && git add . && git -c user.name=run -c user.email=run@localhost commit --quiet -m all)
    fi
    echo "$(git -C "$mnt/amberfs" ls-files | wc -l) files checked out"
}
git_fsck() { git -C "$mnt/amberfs" fsck --full --strict --no-dangling && git -C "$mnt/amberfs" gc --quiet && git -C "$mnt/amberfs" fsck --full --no-dangling && git -C "$mnt/amberfs" status --short; }

# The C sources of bzip2 come with the crate bzip2-sys; its makefile builds it and compares what it compresses.
fetch_bzip2() {
    local project=$CARGO_TARGET_DIR/run-fetch
    mkdir -p "$project/src" && : > "$project/src/lib.rs"
    printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2024"\n[dependencies]\nbzip2-sys = "=0.1.13"\n[workspace]\n' > "$project/Cargo.toml"
    (cd "$project" && cargo vendor --quiet "$project/vendor" > /dev/null 2>&1) && [ -d "$project"/vendor/bzip2-sys/bzip2-1.0.8 ]
}
compile() { cp -r "$CARGO_TARGET_DIR/run-fetch/vendor/bzip2-sys/bzip2-1.0.8" "$mnt/bzip2" && make -C "$mnt/bzip2" CC=cc && "$mnt/bzip2/bzip2" -k "$mnt/bzip2/manual.html" && "$mnt/bzip2/bzip2" -t "$mnt/bzip2/manual.html.bz2"; }

transactions() {
    {
        echo 'PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE account(id INTEGER PRIMARY KEY, balance INTEGER);'
        for i in $(seq 1 1000); do echo "INSERT INTO account VALUES($i, 1000);"; done
        for i in $(seq 1 500); do echo "BEGIN; UPDATE account SET balance = balance - 7 WHERE id = $i; UPDATE account SET balance = balance + 7 WHERE id = $((1001 - i)); COMMIT;"; done
    } | sqlite3 "$mnt/bank.db" && bank_is_sound && echo "1500 transactions, each synced"
}
bank_is_sound() { [ "$(sqlite3 "$mnt/bank.db" 'PRAGMA integrity_check; SELECT count(*), sum(balance) FROM account;')" = $'ok\n1000|1000000' ]; }

# Writes until its server is killed: the load's own failure is what is wanted here.
load_and_kill() {
    mkdir -p "$mnt/acknowledged"
    "$acknowledged" write "$mnt/acknowledged" "$log" --threads 2 --seconds 60 2> /dev/null &
    local load=$!
    sleep "$load_seconds"
    read_counters
    kill_user=$user_bytes kill_nvm=$nvm_bytes kill_lines=$lines kill_fences=$fences
    local server
    server=$(counter pid)
    [ -n "$server" ] && kill -9 "$server" || give_up "there is no server to kill"
    wait "$load"
    [ -s "$log" ] || give_up "the load did not write anything before its server was killed"
    echo "$(wc -l < "$log") operations were acknowledged before the server was killed"
}
verify() { "$acknowledged" verify "$mnt/acknowledged" "$log"; }
still_there() { git -C "$mnt/amberfs" fsck --full --no-dangling && bank_is_sound && "$mnt/bzip2/bzip2" -t "$mnt/bzip2/manual.html.bz2"; }

say "a zone in memory, a native volume in it, mounted"
if grep -qF " $mnt " /proc/self/mounts; then "$amberfs" umount "$mnt" || "$amberfs" umount --lazy "$mnt" || give_up "an earlier run's mount on $mnt does not go away"; fi
rm -f "$zone" "$log"
mkdir -p "$mnt"
"$amberfs" zone create "$zone" --size 1G && "$amberfs" mkfs "$place" --label demo && "$amberfs" mount "$place" "$mnt" --verbose || give_up "no volume to show"

step "git clone of this repository" clone
step "git fsck, gc, fsck" git_fsck
if fetch_bzip2; then step "compile bzip2, run its tests" compile; else
    left_out="but for bzip2, whose sources could not be fetched (no network?)"
    say "compile bzip2: left out"
    still_there() { git -C "$mnt/amberfs" fsck --full --no-dangling && bank_is_sound; }
fi
step "SQLite, 1500 transactions (WAL, synced)" transactions

say "load until the server is killed (SIGKILL)"
read_counters
before_user=$user_bytes before_nvm=$nvm_bytes before_lines=$lines before_fences=$fences
load_and_kill
row "load until SIGKILL, $(wc -l < "$log") operations" killed $((load_seconds * 1000)) "$(human $((kill_user - before_user)))" \
    "$(human $((kill_nvm - before_nvm)))" $((kill_lines - before_lines)) $((kill_fences - before_fences))

say "the dead mount is taken away, the volume mounted again"
"$amberfs" umount "$mnt"
started=$(date +%s%N)
"$amberfs" mount "$place" "$mnt" || give_up "the volume does not mount after the kill: zone and log are kept: $zone $log"
took=$((($(date +%s%N) - started) / 1000000))
read_counters
recovery=$(grep -o '"recovery":{[^}]*' <<< "$stats" | grep -o '"seconds":[0-9.e-]*' | cut -d: -f2)
replayed=$(counter transactions_replayed)
[ "${replayed:-0}" -gt 0 ] || give_up "nothing was replayed: was the server killed under load? zone and log are kept: $zone $log"
row "mount again: $replayed transactions replayed" ok "$took" "$(human 0)" "$(human "$nvm_bytes")" "$lines" "$fences"

step "verify what was acknowledged" verify
step "git, SQLite, bzip2: all still whole" still_there
say "amberfs fsck"
"$amberfs" umount "$mnt"
if checked=$("$amberfs" fsck "$place"); then result=ok; else result=FAILED failed=$((failed + 1)); fi
echo "$checked"
"$amberfs" mount "$place" "$mnt" || give_up "the volume does not mount after the check"

printf '\n%-46s %-7s %10s %11s %11s %10s %8s\n' what result time 'user wrote' 'NVM stored' lines fences
printf '%s\n' "${rows[@]}"
printf "%s: %s\n" "fsck: ${checked#*: }" "$result"
awk -v s="${recovery:-0}" 'BEGIN { printf "recovery itself took %.1f ms\n", s * 1e3 }'
echo "(lines: cache lines of 64 bytes sent to NVM; what git and others wrote is counted when the kernel hands it on)"
cat <<END

The volume stays mounted on $mnt. Try:
  ls $mnt                                  use it as any directory
  $amberfs stats $mnt --watch
  $amberfs info $place
  $amberfs umount $mnt && rm $zone         when you have seen enough
END
if [ $failed -eq 0 ]; then echo "run: all of it worked${left_out:+, $left_out}"; else echo "run: $failed step(s) FAILED"; fi
[ $failed -eq 0 ]
