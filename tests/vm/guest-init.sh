#!/bin/busybox sh
# The first process of the emulated machine: loads modules, runs the phase named on the kernel's command line,
# and powers off. What it learns goes to the console as lines "ok WHAT" and "FAILED WHAT".
#
#   phase=work     makes zone and volume on a fresh NVDIMM, mounts, and writes until the power goes
#   phase=recover  mounts what is left, verifies every acknowledged write (/acknowledged.log), checks, uses it
#   dax=fsdax      the zone is a file on ext4 -o dax;   dax=devdax   the zone is /dev/dax0.0
/bin/busybox --install -s /bin
export PATH=/usr/bin:/usr/sbin:/bin:/sbin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp

while read -r module; do insmod "/modules/$module" || echo "insmod $module failed"; done < /modules/order

phase= dax= threads=4
for word in $(cat /proc/cmdline); do
    case $word in phase=*|dax=*|threads=*) eval "$word" ;; esac
done

finish() { sync; poweroff -f; sleep 60; }

# Runs a command quietly; shows its output only if it fails, and then ends the phase.
must() {
    what=$1; shift
    if "$@" > /tmp/out 2>&1; then echo "ok $dax: $what"; else
        status=$?
        echo "FAILED $dax: $what (exit $status): $*"
        cat /tmp/out
        finish
    fi
}

contains() { # contains FILE-MAKING-COMMAND... -- TEXT
    text=$1; shift
    "$@" > /tmp/contains 2>&1 && grep -q "$text" /tmp/contains || { cat /tmp/contains; return 1; }
}

# Devices appear a moment after their drivers are loaded.
appears() {
    for _ in $(seq 100); do [ -e "$1" ] && return 0; sleep 0.1; done
    ls /dev /sys/bus/nd/devices
    return 1
}

zone_path() {
    if [ "$dax" = fsdax ]; then
        zone=/dax/zone
        appears /dev/pmem0 && mount -t ext4 -o dax /dev/pmem0 /dax
    else
        zone=/dev/dax0.0
        appears "$zone"
    fi
}

prepare() {
    if [ "$dax" = fsdax ]; then
        must "ndctl makes an fsdax namespace" ndctl create-namespace -f -e namespace0.0 -m fsdax
        must "mkfs.ext4 on the NVDIMM" mkfs.ext4 -q -F -b 4096 /dev/pmem0
    else
        must "ndctl makes a devdax namespace" ndctl create-namespace -f -e namespace0.0 -m devdax
    fi
    must "the zone's place is there" zone_path
    if [ "$dax" = fsdax ]; then
        must "zone create" amberfs zone create "$zone" --size 176M
    else
        must "zone create" amberfs zone create "$zone" --force
    fi
    must "mkfs" amberfs mkfs "$zone:work" --kind native
}

# The port to the host that takes the log of acknowledged writes: a write returns when the host has it.
log_port() {
    for name in /sys/class/virtio-ports/*/name; do
        if [ "$(cat "$name")" = acknowledged ]; then echo "/dev/$(basename "$(dirname "$name")")"; fi
    done
}

case $phase in
work)
    prepare
    if [ "$dax" = fsdax ]; then
        must "the zone is mapped with MAP_SYNC" contains 'backing.*MAP_SYNC' amberfs info "$zone:work"
    else
        must "the zone is a DAX device" contains 'backing.*DAX device' amberfs info "$zone:work"
    fi
    must "lines are flushed, not synced by the kernel" contains 'persist  *cl' amberfs info "$zone:work"
    must "mount" amberfs mount "$zone:work" /mnt
    port=$(log_port)
    [ -c "$port" ] || { echo "FAILED $dax: no port for the log"; finish; }
    echo "WORKING"
    acknowledged write /mnt "$port" --threads "$threads" --seconds 600
    echo "FAILED $dax: the load ended by itself (exit $?)"
    ;;
recover)
    must "the zone's place is there after the power cut" zone_path
    must "the zone is listed" contains work amberfs zone show "$zone"
    must "mount recovers" amberfs mount "$zone:work" /mnt
    if acknowledged verify /mnt /acknowledged.log > /tmp/verify 2>&1; then
        echo "ok $dax: $(tail -n 1 /tmp/verify)"
    else
        echo "FAILED $dax: acknowledged writes"; tail -n 20 /tmp/verify
    fi
    must "the volume takes new files" cp /usr/bin/amberfs /mnt/copy
    must "umount" amberfs umount /mnt
    must "fsck finds nothing" amberfs fsck -n "$zone:work"
    must "mount again" amberfs mount "$zone:work" /mnt
    must "the new file is whole" cmp /usr/bin/amberfs /mnt/copy
    must "umount again" amberfs umount /mnt
    must "the volume is removed" amberfs zone remove-volume "$zone" work --force
    dd if=/dev/zero of=/tmp/disk bs=1M count=64 2> /dev/null
    must "an ext4 image is made" mkfs.ext4 -q -F /tmp/disk
    must "attach" amberfs attach "$zone:disk" /tmp/disk --size 32M
    must "mount of the attached disk" amberfs mount "$zone:disk" /mnt
    must "the disk takes a file" cp /bin/busybox /mnt/copy
    must "umount of the attached disk" amberfs umount /mnt
    must "fsck finds nothing on copies of both" amberfs fsck -n "$zone:disk"
    must "detach" amberfs detach "$zone:disk"
    ;;
modules) # proves the machine itself: used by `run.sh --machine`
    must "ndctl makes a $dax namespace" ndctl create-namespace -f -e namespace0.0 -m "$dax"
    if [ "$dax" = fsdax ]; then must "mkfs.ext4 on the NVDIMM" mkfs.ext4 -q -F -b 4096 /dev/pmem0; fi
    must "the zone's place is there" zone_path
    must "the kernel has FUSE" test -c /dev/fuse
    must "the log's port is there" test -c "$(log_port)"
    ;;
esac
echo "DONE"
finish
