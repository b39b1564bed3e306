#!/bin/bash
# stress-ng's file system stressors, verifying, each for a bounded time.
# usage: stress.sh MOUNT_POINT [SECONDS]    for each, 1 (STRESS_SECONDS) unless said
. "$(dirname "$0")/suite.sh"
begin stress "$@"
seconds=${2:-${STRESS_SECONDS:-1}}
need stress-ng stress-ng
cd "$WORK" || exit 2 # some stressors make files in the working directory

# STRESSOR REASON: what does not test this file system, or harms the machine.
excluded='bind-mount mounts over the whole machine
binderfs tests another file system
procfs tests another file system
eventfd uses no file system
ioprio uses no file system
verity needs fs-verity, which FUSE does not have
fiemap needs FIEMAP, which FUSE does not have'

for stressor in $(stress-ng --class 'filesystem?' 2>&1 | sed -n "s/^class 'filesystem' stressors: //p"); do
    if why=$(grep "^$stressor " <<<"$excluded"); then
        echo "excluded: $why"
        continue
    fi
    log=$LOGS/$stressor
    # 7 says that its end came while a stressor was counting, and nothing of the file system: then it is run again.
    for _ in 1 2 3; do
        timeout -k 5 $((seconds * 10 + 300)) stress-ng --"$stressor" 2 --timeout "${seconds}s" --verify \
            --temp-path "$WORK" >"$log" 2>&1
        status=$?
        [ $status = 7 ] || break
    done
    # 0 success, 3 out of resources, 4 not implemented
    case $status in
        0)
            if grep -q 'skipped\|not implemented' "$log" && ! grep -q 'successful run' "$log"; then
                skipped "$stressor: $(grep -m1 'skipped\|not implemented' "$log")"
            else
                passed "$stressor"
            fi
            ;;
        3 | 4) skipped "$stressor: $(grep -m1 -i 'skip\|not implemented\|resource\|fail\|space' "$log" || tail -1 "$log")" ;;
        124 | 137) failed "$stressor: hangs" ;;
        *) failed "$stressor: status $status"; grep -i 'fail\|error' "$log" | head -5 | sed 's/^/      /' ;;
    esac
done
# stress-ng has more than forty of them.
[ "$passes" -ge 25 ] || failed "only $passes stressors passed: what did stress-ng say of its classes?"
[ "$skips" -le 5 ] || failed "$skips stressors were skipped"
finish
