#!/bin/bash
# What the README shows, and what `make run` does once all is built, done by an ordinary user: in a copy of these sources that is
# theirs, mounted by fusermount3. Root makes a user for it, and where an ordinary user may not open /dev/fuse, because no udev
# gave it the mode that it has elsewhere, a /dev/fuse that they may, seen by nobody else. Everything is taken away again.
set -uo pipefail
. "$(dirname "$0")/environment.sh"
cd "$top" || exit 2
give_up() {
    echo "user: $*" >&2
    exit 1
}
for program in amberfs examples/acknowledged; do
    [ -x "$CARGO_TARGET_DIR/release/$program" ] || { echo "user: run 'make build' first" >&2; exit 2; }
done

# Mounts made from here on end with this script, whatever happens.
if [ "$(id -u)" -eq 0 ] && [ -z "${AMBERFS_USER_APART:-}" ]; then AMBERFS_USER_APART=1 exec unshare --mount "$0" "$@"; fi

user=$(id -un)
if [ "$(id -u)" -eq 0 ]; then
    user=amberfs-tests
    id "$user" > /dev/null 2>&1 || useradd --system --user-group --no-create-home --shell /usr/sbin/nologin "$user" || give_up "no user could be made"
fi
uid=$(id -u "$user")
scratch=$(mktemp -d "${TMPDIR:-/tmp}/amberfs-user.XXXXXX") || exit 1
chmod 755 "$scratch"
home=$scratch/home
zone=/dev/shm/$(basename "$scratch").zone
mnt=$home/mnt
run_mnt=$scratch/tmp/amberfs-run-$uid
finish() {
    trap - EXIT
    for dir in "$mnt" "$run_mnt"; do
        if grep -qF " $dir " /proc/self/mounts; then as_user amberfs umount "$dir" > /dev/null || as_user amberfs umount --lazy "$dir"; fi
    done
    if mountpoint -q "$scratch/dev"; then umount --lazy /dev/fuse "$scratch/dev"; fi
    rm -rf "$scratch" "$zone" "/dev/shm/amberfs-run-$uid.zone"
}
trap finish EXIT
trap 'exit 130' INT TERM

# Runs a command with nothing of root's environment.
as_user() {
    local clean=(env -i "HOME=$home" "TMPDIR=$scratch/tmp" "XDG_RUNTIME_DIR=$scratch/tmp" "PATH=$home/amberfs/target/release:/usr/local/bin:/usr/bin:/bin" "LOAD_SECONDS=1")
    if [ "$(id -u)" -eq 0 ]; then runuser -u "$user" -- "${clean[@]}" "$@"; else "${clean[@]}" "$@"; fi
}

mkdir -p "$home/amberfs/target/release/examples" "$mnt" "$scratch/tmp"
without=(--exclude=./target --exclude=./fuzz/target)
# Of a worktree it is a file that points to where the copy's user cannot look.
[ -d .git ] || without+=(--exclude=./.git)
tar -c "${without[@]}" . | tar -x -C "$home/amberfs" || give_up "the sources could not be copied"
cp "$CARGO_TARGET_DIR/release/amberfs" "$home/amberfs/target/release/"
cp "$CARGO_TARGET_DIR/release/examples/acknowledged" "$home/amberfs/target/release/examples/"
[ "$user" = "$(id -un)" ] || chown -R "$user:" "$home" "$scratch/tmp"
cd "$home/amberfs" || exit 1

if ! as_user test -r /dev/fuse -a -w /dev/fuse; then
    [ "$(id -u)" -eq 0 ] || give_up "$user may not open /dev/fuse"
    mkdir "$scratch/dev" && mount -t tmpfs amberfs-user "$scratch/dev" && mknod -m 666 "$scratch/dev/fuse" c 10 229 &&
        mount --bind "$scratch/dev/fuse" /dev/fuse || give_up "no /dev/fuse for an ordinary user"
fi

# The commands of a block of code of README.md: commands HEADING FENCE.
commands() { awk -v heading="## $1" -v fence="\`\`\`$2" '$0 == heading { here = 1 } here && $0 == fence { inside = 1; next } inside && /^```/ { exit } inside' README.md; }
# Runs them as they stand there, but for their zone and directory, until one fails.
show() {
    sed "s,/dev/shm/demo,$zone,g; s,/mnt,$mnt,g" > "$scratch/commands"
    [ -s "$scratch/commands" ] || give_up "README.md has no such commands any more"
    chmod 644 "$scratch/commands"
    as_user bash -ex "$scratch/commands" || give_up "what README.md shows does not work for an ordinary user"
}
is_theirs() { grep -F " $1 " /proc/self/mounts | grep -q "user_id=$uid,"; }

echo "== the tour, as $user"
commands "A tour" console | sed -n 's/^# //p' | show
echo "== snapshots, as $user"
as_user amberfs mount "$zone:home" "$mnt" && is_theirs "$mnt" || give_up "$zone:home is not mounted on $mnt by $user"
as_user bash -c "echo report > '$mnt/report.txt' && mkdir '$mnt/etc' && echo root > '$mnt/etc/passwd'"
commands Snapshots sh | show
as_user amberfs umount "$mnt" || give_up "$user cannot unmount"
echo "== a policy's snapshots, as $user"
for round in 1 2 3; do
    as_user amberfs mount "$zone:home" "$mnt" -o "keep=1s=2,log=$scratch/tmp/policy.log" || give_up "$user cannot mount with a policy"
    for ((try = 0; try < 100; try++)); do
        as_user dd if=/dev/zero of="$mnt/pages" bs=1M count=64 status=none
        [ "$(grep -c 'took snapshot' "$scratch/tmp/policy.log")" -ge "$round" ] && break
        sleep 0.1
    done
    [ $try -lt 100 ] || give_up "no snapshot is taken: $(cat "$scratch/tmp/policy.log")"
    as_user amberfs umount "$mnt" || give_up "$user cannot unmount what has a policy"
done
echo "== make run, as $user"
as_user scripts/run.sh || give_up "make run does not work for an ordinary user"
is_theirs "$run_mnt" || give_up "$run_mnt is not mounted by $user"
as_user amberfs umount "$run_mnt" || give_up "$user cannot unmount"
echo "user: the README's tour, its snapshots and make run work for $user (uid $uid)"
