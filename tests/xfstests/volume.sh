# What xfstests' common/rc has to know of a volume on a mount, read behind it: it makes no FUSE file system, and checks none.

_fs_type() {
    _df_device "$1" | $AWK_PROG '{ print $2 }' | sed 's/fuse.amberfs/fuse/'
}

# A zone with a volume of this many bytes; or one with the metadata of a disk of so many.
_volume_mkfs() {
    local volume=$1 bytes=$2 zone=${1%:*}
    rm -f "$zone" "$zone.disk"
    if [ "$VOLUME_KIND" = native ]; then
        amberfs zone create "$zone" --size "$bytes" > /dev/null && amberfs mkfs "$volume" > /dev/null
        return
    fi
    truncate -s "$bytes" "$zone.disk" &&
        mke2fs -q -F -t "$VOLUME_KIND" ${MKE2FS_OPTIONS:-} "$zone.disk" > /dev/null &&
        amberfs zone create "$zone" --size "$VOLUME_NVM" > /dev/null &&
        amberfs attach "$volume" "$zone.disk" > /dev/null
}

_scratch_mkfs() {
    _volume_mkfs "$SCRATCH_DEV" "$VOLUME_BYTES"
}

_try_scratch_mkfs_sized() {
    _volume_mkfs "$SCRATCH_DEV" "$1"
}

# Unmounts it, checks it, and mounts it again where it was.
_volume_check() {
    local volume=$1 dir status=0
    dir=$(findmnt -rnc -o TARGET -S "$volume" | head -n 1)
    [ -z "$dir" ] || umount "$dir"
    if ! amberfs fsck -n "$volume" > "$tmp.fsck" 2>&1; then
        _log_err "$volume is inconsistent"
        cat "$tmp.fsck" >> "$seqres.full"
        status=1
    fi
    [ -z "$dir" ] || mount -t fuse.amberfs $MOUNT_OPTIONS "$volume" "$dir"
    return $status
}

_check_test_fs() {
    _volume_check "$TEST_DEV"
}

_check_scratch_fs() {
    _volume_check "${1:-$SCRATCH_DEV}"
}
