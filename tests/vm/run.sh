#!/bin/bash
# The power-cut test: boots an emulated machine with an NVDIMM, lets a mounted native volume work on it, kills the
# emulator in mid-work, boots again on the same NVDIMM and verifies every write that had been acknowledged.
# Once with the zone as a file on ext4 -o dax (MAP_SYNC), once on a devdax character device.
#
#   run.sh              the test (needs `make build` done: `make test-vm` does both)
#   run.sh --machine    only the machine: namespace, ext4, FUSE, without Amberfs
#
# The emulator does not model CPU caches: what an unfenced line may lose is the crash explorer's subject.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$top/target}
work=$target/vm
work_seconds=${WORK_SECONDS:-12}
boot_limit_seconds=${BOOT_LIMIT_SECONDS:-300}
passed=0
failed=0
emulator=

cleanup() { if [ -n "$emulator" ]; then kill -9 "$emulator" 2>/dev/null || true; fi; }
trap cleanup EXIT
trap 'exit 130' INT TERM

# Emulation works everywhere and boots in seconds; ACCELERATOR=kvm is faster where nested virtualisation works.
accelerator=${ACCELERATOR:-tcg}

# Starts the machine in the background: boot NVDIMM-FILE INITRAMFS CONSOLE-LOG ACKNOWLEDGED-LOG KERNEL-WORDS...
boot() {
    local nvdimm=$1 initramfs=$2 console=$3 log=$4
    shift 4
    : > "$console"
    qemu-system-x86_64 -machine pc,nvdimm=on -accel "$accelerator" -cpu max -smp 2 \
        -m 768M,slots=2,maxmem=2G \
        -object "memory-backend-file,id=m1,share=on,mem-path=$nvdimm,size=258M,align=2M" \
        -device nvdimm,memdev=m1,id=nv1,label-size=2M \
        -device virtio-serial-pci -chardev "file,id=log,path=$log,append=on" \
        -device virtserialport,chardev=log,name=acknowledged \
        -kernel "$work/vmlinuz" -initrd "$initramfs" \
        -append "console=ttyS0 quiet panic=-1 $*" \
        -display none -monitor none -serial "file:$console" -no-reboot < /dev/null 2> "$console.emulator" &
    emulator=$!
}

# Waits until the console shows a line, the machine ends, or time runs out.
await() { # await CONSOLE-LOG TEXT
    local deadline=$((SECONDS + boot_limit_seconds))
    while ! grep -q "$2" "$1"; do
        if ! kill -0 "$emulator" 2>/dev/null; then return 1; fi
        if [ $SECONDS -ge $deadline ]; then echo "FAILED: no '$2' within $boot_limit_seconds s"; return 1; fi
        sleep 0.2
    done
}

power_off() {
    kill -9 "$emulator" 2>/dev/null || true
    wait "$emulator" 2>/dev/null || true
    emulator=
}

# Shows and counts the "ok" and "FAILED" lines of a phase; what came between them if there was a failure.
count() { # count CONSOLE-LOG
    local text ok bad
    text=$(tr -d '\r' < "$1")
    ok=$(grep -c '^ok ' <<< "$text" || true)
    bad=$(grep -c '^FAILED ' <<< "$text" || true)
    if [ "$bad" -gt 0 ]; then sed 's/^/    /' <<< "$text"; else grep '^ok ' <<< "$text" | sed 's/^/    /' || true; fi
    passed=$((passed + ok))
    failed=$((failed + bad))
}

note() { # note ok|FAILED WHAT
    echo "    $1 $2"
    if [ "$1" = ok ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

machine() { # machine fsdax|devdax
    local nvdimm=$work/nvdimm.$1
    rm -f "$nvdimm" && truncate -s 258M "$nvdimm"
    echo "machine with $1"
    boot "$nvdimm" "$work/initramfs.gz" "$work/console.$1.machine" /dev/null phase=modules "dax=$1"
    await "$work/console.$1.machine" '^DONE' || note FAILED "$1: the machine did not get through"
    power_off
    count "$work/console.$1.machine"
    rm -f "$nvdimm"
}

power_cut() { # power_cut fsdax|devdax
    local dax=$1 nvdimm=$work/nvdimm.$1 log=$work/acknowledged.$1.log started=$SECONDS
    rm -f "$nvdimm" "$log" && truncate -s 258M "$nvdimm" && : > "$log"

    echo "$dax: work until the power goes"
    boot "$nvdimm" "$work/initramfs.gz" "$work/console.$dax.work" "$log" phase=work "dax=$dax"
    if ! await "$work/console.$dax.work" '^WORKING'; then
        power_off
        count "$work/console.$dax.work"
        note FAILED "$dax: the volume never came to work"
        return
    fi
    sleep "$work_seconds"
    # A slow machine gets the time it needs for enough to lose.
    local deadline=$((SECONDS + boot_limit_seconds))
    while [ "$(wc -l < "$log")" -lt 50 ] && [ $SECONDS -lt $deadline ] && kill -0 "$emulator" 2> /dev/null; do sleep 1; done
    power_off
    count "$work/console.$dax.work"
    local acknowledged
    acknowledged=$(wc -l < "$log")
    if [ "$acknowledged" -lt 50 ]; then note FAILED "$dax: only $acknowledged writes were acknowledged"; return; fi
    note ok "$dax: power cut after $acknowledged acknowledged operations"

    echo "$dax: boot again on the same NVDIMM"
    mkdir -p "$work/extra"
    cp "$log" "$work/extra/acknowledged.log"
    { cat "$work/initramfs.gz"; (cd "$work/extra" && echo acknowledged.log | cpio -o -H newc --quiet | gzip -1); } > "$work/initramfs.recover.gz"
    boot "$nvdimm" "$work/initramfs.recover.gz" "$work/console.$dax.recover" /dev/null phase=recover "dax=$dax"
    await "$work/console.$dax.recover" '^DONE' || note FAILED "$dax: recovery did not get through"
    power_off
    count "$work/console.$dax.recover"
    rm -f "$nvdimm" "$work/initramfs.recover.gz"
    echo "$dax: $((SECONDS - started)) s"
}

if [ "${1:-}" = --machine ]; then
    "$here/build-image.sh" "$work"
    machine fsdax
    machine devdax
else
    "$here/build-image.sh" "$work" "$target/release/amberfs" "$target/release/examples/acknowledged"
    power_cut fsdax
    power_cut devdax
fi
echo "vm: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
