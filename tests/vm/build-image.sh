#!/bin/bash
# Builds what the emulated machine boots: Debian's kernel and an initramfs of busybox, the few kernel modules the
# tests need, ndctl, mkfs.ext4, and the programs under test with their libraries.
#
#   build-image.sh WORK-DIR PROGRAM...
#
# Leaves WORK-DIR/vmlinuz and WORK-DIR/initramfs.gz. The kernel package is downloaded once and kept there.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
work=$1
shift
mkdir -p "$work"
work=$(cd "$work" && pwd)

# Modules by purpose: NVDIMMs (fsdax and devdax), ext4 with its checksum, FUSE, and the port that carries the
# log of acknowledged writes to the host.
modules="nfit libnvdimm nd_pmem dax_pmem device_dax crc32c_generic crc32_generic ext4 fuse virtio_pci virtio_console"

fetch_kernel() {
    local package
    package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/ { print $2; exit }')
    [ -n "$package" ] || { echo "build-image: apt knows no linux-image-amd64; run 'apt-get update' first" >&2; exit 1; }
    if [ "$(cat "$work/kernel/package" 2>/dev/null || true)" = "$package" ]; then return; fi
    echo "build-image: unpacking $package"
    rm -rf "$work/kernel" "$work/download"
    mkdir -p "$work/kernel" "$work/download"
    (cd "$work/download" && apt-get download -qq "$package" 2> apt.err) || { cat "$work/download/apt.err" >&2; exit 1; }
    dpkg -x "$work"/download/*.deb "$work/kernel"
    rm -rf "$work/download"
    # From trixie on, modules are unpacked to usr/lib.
    if [ ! -d "$work/kernel/lib/modules" ]; then ln -s usr/lib "$work/kernel/lib"; fi
    depmod -b "$work/kernel" "$(ls "$work/kernel/lib/modules")"
    echo "$package" > "$work/kernel/package"
}

# Copies a program to the image, at the same path or at the one given, with the shared libraries it needs.
add_program() {
    local program=$1 target=${2:-$1} library
    [ -x "$program" ] || { echo "build-image: no program $program" >&2; exit 1; }
    mkdir -p "$root$(dirname "$target")"
    cp -L "$program" "$root$target"
    for library in $(ldd "$program" 2>/dev/null | grep -o '/[^ ]*' | sort -u); do
        mkdir -p "$root$(dirname "$library")"
        [ -e "$root$library" ] || cp -L "$library" "$root$library"
    done
}

fetch_kernel
release=$(ls "$work/kernel/lib/modules")
root=$work/root
rm -rf "$root"
mkdir -p "$root"/{bin,sbin,etc,usr/bin,usr/sbin,dev,proc,sys,tmp,run,mnt,dax,modules}

cp "$(command -v busybox)" "$root/bin/busybox"
# Not by `modprobe --show-depends`: that leaves out what the running kernel happens to have. In modules.dep a line is
# "module: needed...", what must be loaded first standing last. What is no module is built in.
for module in $modules; do
    awk -F '[: ]+' -v name="/$module.ko" '
        { file = $1; sub(/\.(xz|zst|gz)$/, "", file) }
        substr(file, length(file) - length(name) + 1) == name { for (i = NF; i >= 1; i--) if ($i != "") print $i }
    ' "$work/kernel/lib/modules/$release/modules.dep"
done | awk '!seen[$0]++' | while read -r file; do
    name=$(basename "$file")
    case $name in
        *.xz) name=${name%.xz}; xz -dc "$work/kernel/lib/modules/$release/$file" > "$root/modules/$name" ;;
        *) cp "$work/kernel/lib/modules/$release/$file" "$root/modules/$name" ;;
    esac
    echo "$name" >> "$root/modules/order"
done

add_program "$(command -v ndctl)" /usr/bin/ndctl
add_program "$(command -v mkfs.ext4 || echo /sbin/mkfs.ext4)" /sbin/mkfs.ext4
for program in "$@"; do add_program "$program" "/usr/bin/$(basename "$program")"; done
cp /etc/mke2fs.conf "$root/etc/"
cp "$here/guest-init.sh" "$root/init"
chmod 755 "$root/init"

cp "$work"/kernel/boot/vmlinuz-* "$work/vmlinuz"
(cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 > "$work/initramfs.gz"
echo "build-image: kernel $release, initramfs $(du -h "$work/initramfs.gz" | cut -f1)"
