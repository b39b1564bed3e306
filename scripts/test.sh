#!/bin/bash
# Everything that must pass. Each step's closing lines are repeated at the end; of one that failed, its last 30.
#
#   test.sh             all steps
#   test.sh STEP...     some: format lint unit licences crash mounted handles user installed disks kill full
#
# A step that fails doesn't stop the others, but for those that need what it builds. One that stands still is ended after 25 minutes, and all
# of it after 75: what ran then is in its log. The exit code says whether all passed: 0, 1 if a step failed, 2 for wrong arguments, 130 if
# interrupted.
set -uo pipefail
. "$(dirname "$0")/environment.sh"
cd "$top" || exit 2

all=(format lint unit licences crash mounted handles user installed disks kill full)
steps=("$@")
[ $# -gt 0 ] || steps=("${all[@]}")
for name in "${steps[@]}"; do
    [[ " ${all[*]} " == *" $name "* ]] || { echo "test: no step '$name' (${all[*]})" >&2; exit 2; }
done

logs=$CARGO_TARGET_DIR/test-logs
mkdir -p "$logs" || exit 2
summary=()
failed=0
running=
job=
trap '[ -z "$job" ] || pkill -TERM -P "$job"; echo "test: interrupted in step ${running:-none}" >&2; exit 130' INT TERM

step() { # step NAME LINES-TO-REPEAT COMMAND...
    local name=$1 lines=$2 started=$SECONDS status result=passed limit=$((75 * 60 - SECONDS)) watch
    shift 2
    running=$name
    [ $limit -lt 1500 ] || limit=1500
    [ $limit -gt 60 ] || limit=60
    echo "== $name"
    : > "$logs/$name.log"
    tell_what_runs $((limit - 5)) < /dev/null >> "$logs/$name.log" 2>&1 &
    watch=$!
    { timeout --kill-after=30 "$limit" "$@" < /dev/null 2>&1 | tee -a "$logs/$name.log"; exit "${PIPESTATUS[0]}"; } &
    job=$!
    wait "$job"
    status=$?
    job=
    kill "$watch" 2> /dev/null
    wait "$watch" 2> /dev/null
    if [ "$status" -ne 0 ]; then
        result=FAILED
        failed=$((failed + 1))
    fi
    summary+=("$(printf '%-9s %-6s %4d s' "$name" $result $((SECONDS - started)))")
    while IFS= read -r line; do summary+=("            $line"); done < <(closing "$name" "$lines")
    if [ "$status" -ne 0 ]; then
        [ "$status" -ne 124 ] || summary+=("            stood still: ended after $limit s")
        summary+=("            exit code $status; the last lines of $logs/$name.log:")
        while IFS= read -r line; do summary+=("            | $line"); done < <(tail -n 30 "$logs/$name.log")
    fi
    return "$status"
}

# After so many seconds, unless it is ended before.
tell_what_runs() {
    sleep "$1" &
    trap "kill $!; exit" TERM
    wait $!
    echo "test: what runs after $1 s"
    ps -eo pid,ppid,stat,etimes,wchan:24,args --sort=-etimes | awk '$4 < 6000 && $2 != 2' | tail -n 60 | cut -c 1-200
}

# The lines of a log that sum it up.
closing() {
    case $1 in
        unit) awk '/^test result:/ { run++; for (i = 1; i < NF; i++) { if ($(i+1) ~ /^passed/) p += $i; if ($(i+1) ~ /^failed/) f += $i; if ($(i+1) ~ /^ignored/) g += $i } }
                   END { printf "%d test programs: %d passed, %d failed, %d ignored\n", run, p, f, g }' "$logs/unit.log"
              # What failed, why, and programs that did not come to say so.
              grep -aoE 'LEFT OUT: .*' "$logs/unit.log" | sort | uniq -c | sed 's/^ *\([0-9]*\) LEFT OUT/LEFT OUT, \1 times/'
              [ "$status" -eq 0 ] || grep -aE '^test .* FAILED$|panicked at|stands still$|signal: |^error' "$logs/unit.log" ;;
        *) tail -n "$2" "$logs/$1.log" ;;
    esac
}

echo "== machine: $(uname -r), $(nproc) CPUs, $(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo) MiB available; room: $(
    df -h --output=avail "$CARGO_TARGET_DIR" | tail -n 1 | tr -d ' ') for builds, $(
    df -h --output=avail "${TMPDIR:-/tmp}" | tail -n 1 | tr -d ' ') in ${TMPDIR:-/tmp}, $(
    df -h --output=avail /dev/shm 2> /dev/null | tail -n 1 | tr -d ' ') in /dev/shm"

. scripts/rings.sh
[ -z "$without" ] || summary+=("$without")

built=
for name in "${steps[@]}"; do
    case $name in
        format) step format 1 cargo fmt --all --check ;;
        lint)
            step lint 1 cargo clippy --workspace --all-targets --locked -- -D warnings
            # No part of `cargo bench` unless asked for, and so of no "all targets".
            step benches 1 cargo clippy -p amberfs-native --bench journaling --bench scale --locked -- -D warnings
            step layers 1 scripts/layers.py
            ;;
        # Twice as many at a time as there are processors: many wait for clocks, disks and servers.
        unit) step unit 0 env RUST_TEST_THREADS=$((2 * $(nproc))) cargo test --workspace --locked --no-fail-fast ;;
        licences) step licences 1 scripts/licences.sh ;;
        *)
            if [ -z "$built" ]; then
                built=no
                step build 1 cargo build --release --locked -p amberfs-cli --bins --examples && built=yes
            fi
            if [ $built = no ]; then
                summary+=("$(printf '%-9s not run: nothing was built' "$name")")
                continue
            fi
            case $name in
                crash) step crash 4 scripts/crash-slice.sh ;;
                mounted) step mounted 18 scripts/mounted-suites.sh "durability=fsync,$rings,nfs_export" durability=op,transport=device ;;
                handles) step handles 1 scripts/file-handles.sh ;;
                user) step user 1 scripts/run-as-user.sh ;;
                installed) step installed 1 scripts/installed.sh ;;
                disks) step disks 32 scripts/disk-suites.sh "$rings" ;;
                kill) step kill 1 scripts/kill-loop.sh "${KILL_ROUNDS:-30}" ;;
                full) step full 1 scripts/full-volume.sh ;;
            esac
            ;;
    esac
done

echo
echo "== test: summary"
printf '%s\n' "${summary[@]}"
if [ $failed -eq 0 ]; then echo "test: all steps passed"; else echo "test: $failed step(s) FAILED"; fi
[ $failed -eq 0 ]
