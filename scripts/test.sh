#!/bin/bash
# Everything that must pass. Each step's closing lines are repeated at the end.
#
#   test.sh             all steps
#   test.sh STEP...     some: format lint unit licences mounted kill full
#
# A step that fails doesn't stop the others; the exit code says whether all passed.
set -uo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
export PATH=$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin

logs=$CARGO_TARGET_DIR/test-logs
mkdir -p "$logs"
steps=("$@")
[ $# -gt 0 ] || steps=(format lint unit licences mounted kill full)
summary=()
failed=0

step() { # step NAME LINES-TO-REPEAT COMMAND...
    local name=$1 lines=$2 started=$SECONDS status
    shift 2
    echo "== $name"
    "$@" 2>&1 | tee "$logs/$name.log"
    status=${PIPESTATUS[0]}
    summary+=("$(printf '%-9s %-6s %4d s' "$name" "$([ $status -eq 0 ] && echo passed || echo FAILED)" $((SECONDS - started)))")
    while read -r line; do summary+=("            $line"); done < <(closing "$name" "$lines")
    [ $status -eq 0 ] || failed=$((failed + 1))
}

# The lines of a log that sum it up.
closing() {
    case $1 in
        unit) awk '/^test result:/ { run++; for (i = 1; i < NF; i++) { if ($(i+1) ~ /^passed/) p += $i; if ($(i+1) ~ /^failed/) f += $i; if ($(i+1) ~ /^ignored/) g += $i } }
                   END { printf "%d test programs: %d passed, %d failed, %d ignored\n", run, p, f, g }' "$logs/unit.log"
              grep -E '^test .* FAILED$' "$logs/unit.log" ;;
        *) tail -n "$2" "$logs/$1.log" ;;
    esac
}

for name in "${steps[@]}"; do
    case $name in
        format) step format 1 cargo fmt --all --check ;;
        lint) step lint 1 cargo clippy --workspace --all-targets --locked -- -D warnings ;;
        unit) step unit 0 cargo test --workspace --locked --no-fail-fast ;;
        licences) step licences 1 scripts/licences.sh ;;
        mounted | kill | full)
            if [ -z "${built:-}" ]; then
                built=yes
                step build 1 cargo build --release --locked -p amberfs-cli --bins --examples
            fi
            case $name in
                mounted) step mounted 12 scripts/mounted-suites.sh durability=fsync durability=op ;;
                kill) step kill 1 scripts/kill-loop.sh "${KILL_ROUNDS:-20}" ;;
                full) step full 1 scripts/full-volume.sh ;;
            esac
            ;;
        *) echo "test: no step '$name' (format lint unit licences mounted kill full)" >&2; exit 2 ;;
    esac
done

echo
echo "== test: summary"
printf '%s\n' "${summary[@]}"
if [ $failed -eq 0 ]; then echo "test: all steps passed"; else echo "test: $failed step(s) FAILED"; fi
[ $failed -eq 0 ]
