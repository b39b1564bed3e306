#!/bin/bash
# POSIX conformance: pjdfstest (https://github.com/saidsay-so/pjdfstest), as root.
# usage: pjdfstest.sh MOUNT_POINT
. "$(dirname "$0")/suite.sh"
begin pjdfstest "$@"
[ "$(id -u)" = 0 ] || cannot "it switches between users, so it needs root"
[ -e /usr/include/sys/acl.h ] || [ -x "$TOOLS/bin/pjdfstest" ] || need no-such-command libacl1-dev
need_tool pjdfstest '~0.2'

# It wants two ordinary users, each with the group of its own user entry.
id amberfs-tests >/dev/null 2>&1 || useradd --system --user-group --no-create-home --shell /usr/sbin/nologin amberfs-tests ||
    cannot "the user amberfs-tests could not be made"
nobody_group=$(id -gn nobody) || cannot "there is no user nobody"
other=$(mktemp -d /dev/shm/pjdfstest.XXXXXX) # another file system, for EXDEV
chmod 777 "$WORK"

configure() { # allow_remount
    cat <<TOML
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = $1
[dummy_auth]
entries = [["nobody", "$nobody_group"], ["amberfs-tests", "amberfs-tests"]]
TOML
}
configure false >"$LOGS/config.toml"
configure true >"$LOGS/remount.toml"

# mount(8) would ask a helper program to remount; the kernel does it alone.
mkdir "$LOGS/bin"
printf '#!/bin/sh\nexec %s -i "$@"\n' "$(command -v mount)" >"$LOGS/bin/mount"
chmod +x "$LOGS/bin/mount"

run() { # CONFIG LOG [PATTERN]
    PATH="$LOGS/bin:$PATH" NO_COLOR=1 "$TOOLS/bin/pjdfstest" -c "$1" -p "$WORK" -s "$other" -- ${3:+"$3"} >"$2" 2>&1
}
# The tests of read-only file systems (EROFS) remount it, which Linux refuses while a file that was unlinked is
# open; other tests leave such files behind. So they run in a process of their own.
run "$LOGS/config.toml" "$LOGS/all"
run "$LOGS/remount.toml" "$LOGS/erofs" erofs
rm -rf "$other"

# Each test's line is "NAME  ok|FAILED|skipped", then the reasons, indented.
export QUIET=1
results() { sed 's/\x1b\[[0-9;]*m//g' "$1" | grep -aE '^[a-z0-9_:]+ +(ok|FAILED|skipped)$'; }
reason() { sed 's/\x1b\[[0-9;]*m//g' "$1" | grep -aF -A1 "$2 " | sed -n '2s/^[[:space:]]*//p' | head -1; }
while read -r name result; do
    log=$LOGS/all
    [[ $name == *erofs* ]] && { log=$LOGS/erofs; result=$(results "$log" | awk -v name="$name" '$1 == name { print $2 }'); }
    case $result in
        ok) passed "$name" ;;
        skipped) skipped "$name: $(reason "$log" "$name")" ;;
        *) failed "$name: $(reason "$log" "$name")" ;;
    esac
done < <(results "$LOGS/all")
[ "$((passes + failures + skips))" -ge 390 ] || failed "only $((passes + failures + skips)) tests ran: $(tail -1 "$LOGS/all")"
# ext4 skips 15 of them.
[ "$skips" -le 15 ] || failed "$skips tests were skipped"
finish
