#!/bin/bash
# Installs what is missing of what the targets need: install-deps.sh GROUP...
#
#   build   to compile Amberfs           run    for `make run`
#   test    for `make test`              vm     for `make test-vm`
#   bench   for `make bench`, `make bench-ext` and `make bench-snapshots`
#   bench-fio          for `make bench-fio`
#   bench-journaling   for `make bench-journaling`
#   programs           for `make crash-programs`
#   tools   the programs that `amberfs bench --tool` runs
#
# Only missing packages are installed, and apt's lists are fetched once. Without root it says what to install.
set -euo pipefail
. "$(dirname "$0")/environment.sh"

packages=()
need() { # need PROGRAM-OR-FILE PACKAGE
    if [[ $1 == /* ]]; then [ -e "$1" ] && return; else command -v "$1" > /dev/null && return; fi
    packages+=("$2")
}

for group in "$@"; do
    case $group in
        build)
            need cc build-essential
            need pkg-config pkg-config
            need git git
            need curl curl
            need /etc/ssl/certs/ca-certificates.crt ca-certificates
            ;;
        run)
            need fusermount3 fuse3
            need git git
            need sqlite3 sqlite3
            need make build-essential
            ;;
        test)
            need fusermount3 fuse3
            need git git
            need sqlite3 sqlite3
            need fio fio
            need fs_mark fsmark
            need stress-ng stress-ng
            need /usr/include/sys/acl.h libacl1-dev
            need setfattr attr
            need setfacl acl
            need mkfs.ext4 e2fsprogs
            need mkfs.xfs xfsprogs
            need mkfs.btrfs btrfs-progs
            need fuse2fs fuse2fs
            need nbdkit nbdkit
            need qemu-nbd qemu-utils
            need bc bc
            need python3 python3
            need runuser util-linux
            need ps procps
            ;;
        bench)
            need mkfs.btrfs btrfs-progs
            need mkfs.xfs xfsprogs
            need mkfs.ext4 e2fsprogs
            need python3 python3
            need fusermount3 fuse3
            need fuse2fs fuse2fs
            need losetup mount
            ;;
        tools)
            need fio fio
            need postmark postmark
            need fs_mark fsmark
            need dbench dbench
            need sqlite3 sqlite3
            need pgbench postgresql
            need unshare util-linux
            ;;
        bench-fio)
            need fio fio
            need python3 python3
            ;;
        bench-journaling)
            need mke2fs e2fsprogs
            need python3 python3
            ;;
        programs)
            need git git
            need python3 python3
            need /usr/include/rocksdb/db.h librocksdb-dev
            ;;
        vm)
            need qemu-system-x86_64 qemu-system-x86
            need busybox busybox-static
            need cpio cpio
            need depmod kmod
            need ndctl ndctl
            need daxctl daxctl
            need mkfs.ext4 e2fsprogs
            need xz xz-utils
            ;;
        *) echo "install-deps: no group '$group' (build, run, test, bench, bench-fio, bench-journaling, tools, programs, vm)" >&2; exit 2 ;;
    esac
done

if [ ${#packages[@]} -gt 0 ]; then
    mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null; then
        echo "install-deps: missing: ${packages[*]}" >&2
        echo "install-deps: install them (on Debian: sudo apt-get install ${packages[*]}) and run this again" >&2
        exit 1
    fi
    echo "install-deps: installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # One at a time: of two that fetch lists at once, one fails. For dpkg's lock apt can wait itself.
    exec {lock}> /run/lock/amberfs-install-deps
    flock -w 900 "$lock" || { echo "install-deps: somebody else has been installing for 15 minutes" >&2; exit 1; }
    # A source that does not answer is an error, not a wait without end.
    apt=(timeout --kill-after=30 900 apt-get -qq -o Acquire::Retries=3 -o Acquire::http::Timeout=60 -o DPkg::Lock::Timeout=600)
    "${apt[@]}" update
    "${apt[@]}" install -y --no-install-recommends "${packages[@]}" > /dev/null
    exec {lock}>&-
fi

if ! command -v cargo > /dev/null && [ ! -x "$HOME/.cargo/bin/cargo" ]; then
    echo "install-deps: installing rustup, which fetches the toolchain that rust-toolchain.toml names"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y -q --default-toolchain none --profile minimal
fi
