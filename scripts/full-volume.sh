#!/bin/bash
# A volume that fills up: what was written stays whole, what does not fit gets ENOSPC, removing gives the space back.
# Once with each durability. With durability=fsync the kernel holds written pages back, so ENOSPC comes with fsync or
# close, and with a write only behind those that were taken in vain.
. "$(dirname "$0")/mounted-volume.sh"

volume_begin full 96M
head -c 3000000 /dev/urandom > "$scratch/content"
free_kib() { df --output=avail -k "$mnt" | tail -n 1 | tr -d ' '; }

# Whole files until no more fit.
fill() {
    local index=0
    while [ $index -lt 200 ] && cp "$scratch/content" "$mnt/file-$index" 2> "$scratch/err" && sync "$mnt/file-$index" 2> "$scratch/err"; do
        index=$((index + 1))
    done
    files=$index
    rm -f "$mnt/file-$index"
    grep -q 'No space left' "$scratch/err"
}

whole() { for ((i = 0; i < files; i++)); do cmp "$scratch/content" "$mnt/file-$i" || return 1; done; }
top_up() { ! dd if=/dev/zero of="$mnt/rest" bs=4k count=4096 conv=fsync; }
small_files() { for ((i = 0; i < 20000; i++)); do echo "$i" > "$mnt/many/$i" || return 0; done 2> /dev/null; return 1; }
# Who never asks how it went hears of it before the kernel has taken much more than there is room for: its share of memory
# for one mount's dirty pages.
endless() {
    local most=$(((96 << 20) + $(awk '/^MemTotal:/ { print $2 }' /proc/meminfo) * 1024 / 100))
    timeout 120 dd if=/dev/zero of="$mnt/endless" bs=1M 2> "$scratch/err"
    local code=$?
    cat "$scratch/err"
    [ $code -eq 1 ] && grep -q 'No space left' "$scratch/err" && [ "$(stat -c %s "$mnt/endless")" -le "$most" ]
}
came_back() { [ $((at_first - at_last)) -le 256 ]; }

for durability in fsync op; do
    check "mount with durability=$durability" volume_mount "durability=$durability"
    at_first=$(free_kib)
    check "writing without end ends in ENOSPC" endless
    check "what was written goes" rm "$mnt/endless"
    check "a directory" mkdir "$mnt/many"
    check "the volume fills up with ENOSPC" fill
    echo "full: $files files of 3 MB fit with durability=$durability"
    check "files written before are whole" whole
    check "the rest fills up, too" top_up
    check "a full volume can be listed" ls -l "$mnt"
    check "small files end in ENOSPC, too" small_files
    check "a full volume takes removals" rm "$mnt/file-0" "$mnt/rest"
    check "and is written to again" cp "$scratch/content" "$mnt/file-0"
    check "all is whole still" whole

    check "unmount when full" volume_umount
    check "fsck when full" "$amberfs" fsck -n "$place"
    check "mount when full" volume_mount "durability=$durability"
    check "all is whole after mounting" whole

    # Full again, and then the server is killed.
    top_up 2> /dev/null
    check "a server is there to kill" volume_kill
    check "the dead mount goes away" volume_umount
    check "a full volume recovers" volume_mount "durability=$durability"
    check "all is whole after recovery" whole

    rm -rf "${mnt:?}"/*
    sync "$mnt"
    check "everything is removed" test -z "$(ls -A "$mnt")"
    check "unmount when empty" volume_umount
    check "mount when empty" volume_mount
    at_last=$(free_kib)
    check "the space came back ($at_last KiB free, $at_first at first)" came_back
    check "unmount at the end" volume_umount
    check "fsck at the end" "$amberfs" fsck -n "$place"
done
echo "full: $passed passed, $failed failed"
[ $failed -eq 0 ]
