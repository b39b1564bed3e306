#!/bin/bash
# Snapshots of a mounted volume as programs see them: copied, compared, listed, walked, removed, and returned to.
# usage: snapshots.sh MOUNT_POINT
. "$(dirname "$0")/suite.sh"
begin snapshots "$@"
amberfs=${AMBERFS:-$CARGO_TARGET_DIR/release/amberfs}
[ -x "$amberfs" ] || cannot "$amberfs is not there: run 'make build' first"
below=${WORK#"$MOUNT/"}
kept() { echo "$MOUNT/.snapshots/$SUITE-$1-$$"; }
take() { "$amberfs" snapshot take "$MOUNT" "$(basename "$(kept "$1")")"; }
remove() { "$amberfs" snapshot remove "$MOUNT" "$(basename "$(kept "$1")")"; }
fails() { ! "$@"; }
drop_caches() { sync && echo 3 >/proc/sys/vm/drop_caches; }

cp -a "$REPOSITORY/crates" "$REPOSITORY/docs" "$LOGS"
tree=$WORK/tree
mkdir "$tree"
cp -a "$LOGS/crates" "$LOGS/docs" "$tree" # into the kernel's pages
setfattr -n user.note -v kept "$tree/docs" 2>/dev/null
check "taken" take one
rm -r "$tree/docs"
find "$tree" -name '*.rs' -exec sed -i 's/fn/function/' {} +
mv "$tree/crates" "$tree/renamed"
was=$(kept one)/$below/tree
check "what was written shortly before is in it" diff -r "$LOGS/crates" "$was/crates"
drop_caches
check "the same from the medium" diff -r "$LOGS/docs" "$was/docs"
check "cp -a copies it" cp -a "$was" "$LOGS/copy"
check "the copy is the same" diff -r "$LOGS/crates" "$LOGS/copy/crates"
check "tar reads it" tar -cf /dev/null -C "$was" .
check "find walks it" test "$(find "$was" | wc -l)" -eq "$(find "$LOGS/copy" | wc -l)"
check "times are kept" test "$(stat -c %Y "$was/docs/design.md")" = "$(stat -c %Y "$LOGS/docs/design.md")"
[ "$(getfattr --only-values -n user.note "$was/docs" 2>/dev/null)" = kept ] && passed "attributes are kept" || skipped "attributes: no getfattr"
check "ls -la lists them" ls -la "$MOUNT/.snapshots" "$(kept one)"
check "a listing of the volume has no .snapshots" fails sh -c "ls -A '$MOUNT' | grep -qx .snapshots"
check "df of it tells of a file system that is full" test "$(df --output=avail "$was" | tail -n 1)" -eq 0
check "nothing is written to it" fails touch "$was/new"
check "nothing is removed from it" fails rm -rf "$was/docs"
check "git reads it" git -C / diff --no-index --quiet "$LOGS/docs" "$was/docs"

# A writer counts: first in one file, then in another. No snapshot has the second ahead of the first.
(
    for n in $(seq 1000); do
        [ ! -e "$WORK/stop" ] || break
        echo "$n" >"$WORK/first.new" && sync "$WORK/first.new" && mv "$WORK/first.new" "$WORK/first"
        echo "$n" >"$WORK/second.new" && sync "$WORK/second.new" && mv "$WORK/second.new" "$WORK/second"
    done
) &
writer=$!
until [ -s "$WORK/second" ]; do sleep 0.01; done
for n in 1 2 3 4 5 6 7 8 9 10; do take "meanwhile-$n" || failed "a snapshot is taken while a program writes"; done
touch "$WORK/stop"
wait "$writer"
ordered() {
    local first second
    for n in 1 2 3 4 5 6 7 8 9 10; do
        first=$(cat "$(kept "meanwhile-$n")/$below/first") second=$(cat "$(kept "meanwhile-$n")/$below/second")
        [ "$first" -eq "$second" ] || [ "$first" -eq $((second + 1)) ] || { echo "$n: $first $second" && return 1; }
    done
}
check "each snapshot is of one moment" ordered

cd "$was" || exit 2
check "one that somebody works in is not removed" fails remove one
cd / || exit 2
check "one that nobody uses is" remove one
check "then it is gone" fails stat "$(kept one)"
for n in 1 2 3 4 5 6 7 8 9 10; do remove "meanwhile-$n" || failed "meanwhile-$n is removed"; done
check "all are gone" fails sh -c "ls '$MOUNT/.snapshots' | grep -q '^$SUITE-.*-$$\$'"

check "a snapshot to return to" take base
echo later >"$WORK/later" && rm "$tree/renamed/cli/Cargo.toml"
exec 3<"$WORK/later"
check "the volume does not return while a file is open" fails "$amberfs" snapshot rollback "$MOUNT" "$(basename "$(kept base)")"
check "it is as it was" test "$(cat "$WORK/later")" = later
exec 3<&-
check "it returns when nobody uses it" "$amberfs" snapshot rollback "$MOUNT" "$(basename "$(kept base)")"
check "what came later is gone" fails stat "$WORK/later"
check "what went is back" diff -r "$(kept base)/$below/tree" "$tree"
check "the one that it returned to is removed" remove base
finish
