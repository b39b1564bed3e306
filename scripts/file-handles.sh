#!/bin/bash
# File handles (open_by_handle_at(2), as NFS servers use them) outlive what the kernel and the server know: each is opened in a mount that
# is new. Of files that are gone, or whose number another one has, they are stale. A native volume with snapshots, and a disk of ext4.
. "$(dirname "$0")/mounted-volume.sh"

[ "$(id -u)" -eq 0 ] || { echo "file-handles: only root may open files by handle" >&2; exit 2; }
handles() { python3 "$top/tests/mounted/handles.py" "$@"; }
kept() { echo "$scratch/${1//\//:}.handle"; }
keep() { handles keep "$mnt/$1" "$(kept "$1")" || exit 2; }
opens() { # opens NAME SHOWN: the handle of NAME leads to what shows so
    local shown
    shown=$(handles open "$mnt" "$(kept "$1")") && echo "$shown" && [ "$shown" = "$2" ]
}
stale() {
    local said
    said=$(handles open "$mnt" "$(kept "$1")" 2>&1) || [ "$said" = "open_by_handle_at: ESTALE" ] || { echo "$said" && return 1; }
    [ "$said" = "open_by_handle_at: ESTALE" ]
}
anew() { volume_umount && volume_mount nfs_export || exit 2; }
unlisted() { ls -A "$mnt" > "$scratch/listed" && ! grep -qx .snapshots "$scratch/listed"; }
# Files until one has one of these inode numbers.
until_number() {
    local n
    for n in $(seq 5000); do
        echo new > "$mnt/new-$n" || return 1
        [[ " $* " != *" $(stat -c %i "$mnt/new-$n") "* ]] || return 0
    done
    return 1
}

all() {
    # What handles stand for, and what shows of it.
    local -A shows=([file]=one [dir]="deep file link" [dir/file]=two [dir/deep]=file [dir/deep/file]=three [dir/link]=file)
    local name number
    volume_mount nfs_export || exit 2
    mkdir -p "$mnt/dir/deep"
    echo one > "$mnt/file" && echo two > "$mnt/dir/file" && echo three > "$mnt/dir/deep/file" && ln -s file "$mnt/dir/link"
    if [ "$kind" = native ]; then
        "$amberfs" snapshot take "$mnt" was > "$scratch/out" && "$amberfs" snapshot take "$mnt" gone > "$scratch/out" || exit 2
        for name in "${!shows[@]}"; do shows[.snapshots/was/$name]=${shows[$name]}; done
        shows[.snapshots]="gone was" shows[.snapshots/was]="dir file"
        keep .snapshots/gone/dir && keep .snapshots/gone/file
    fi
    for name in "${!shows[@]}"; do keep "$name"; done
    for name in "${!shows[@]}"; do
        anew
        check "$name opens in a new mount" opens "$name" "${shows[$name]}"
        check "and opens again" opens "$name" "${shows[$name]}"
    done
    check "nothing more is listed for that" unlisted
    anew
    ls -la "$mnt" > "$scratch/out"
    for name in "${!shows[@]}"; do check "$name opens where the root was listed" opens "$name" "${shows[$name]}"; done
    check "the root is listed as before" unlisted

    mv "$mnt/dir/deep" "$mnt/moved" && mv "$mnt/file" "$mnt/moved/file-2"
    shows[dir/deep]="file file-2"
    anew
    for name in file dir/deep dir/deep/file; do check "$name, which was moved, opens" opens "$name" "${shows[$name]}"; done

    number=$(stat -c %i "$mnt/dir/file")
    rm "$mnt/dir/file" "$mnt/dir/link" && rm -r "$mnt/moved"
    anew
    for name in file dir/file dir/link dir/deep dir/deep/file; do check "$name, which was removed, is stale" stale "$name"; done
    check "its number is used again" until_number "$number"
    check "the handle of who had the number is stale" stale dir/file
    anew
    check "and stale in a new mount" stale dir/file
}

kind=native
volume_begin handles 96M
all
"$amberfs" snapshot remove "$mnt" gone > "$scratch/out" || exit 2
anew
for name in .snapshots/gone/dir .snapshots/gone/file; do check "$name of a removed snapshot is stale" stale "$name"; done
check "the other one opens" opens .snapshots/was/dir/deep/file three
for n in $(seq 20); do echo later > "$mnt/later-$n" && keep "later-$n"; done
mapfile -t numbers < <(stat -c %i "$mnt"/later-*)
all_stale() { for n in $(seq 20); do stale "later-$n" || return 1; done; }
check "the volume returns to its snapshot" "$amberfs" snapshot rollback "$mnt" was
check "files that it never had are stale" all_stale
anew
check "also in a new mount" all_stale
check "their numbers are used again" until_number "${numbers[@]}"
check "they are still stale" all_stale
check "what the snapshot has, the volume has again" opens dir/deep/file three
volume_umount && volume_mount snapshot=was,nfs_export || exit 2
keep dir && keep dir/file
volume_umount && volume_mount snapshot=was,nfs_export || exit 2
check "a directory of a snapshot that is mounted opens" opens dir "deep file link"
check "so does a file" opens dir/file two
volume_end

kind=ext4
disk_begin handles 64M 64M -t ext4 -I 256
all
volume_umount
check "e2fsck finds nothing wrong" disk_check
volume_end

echo "file handles: $passed passed, $failed failed"
[ $failed -eq 0 ]
