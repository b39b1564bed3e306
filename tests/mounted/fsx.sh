#!/bin/bash
# Random file operations, checked against a copy in memory: fsx (https://github.com/asomers/fsx-rs).
# usage: fsx.sh MOUNT_POINT [SEEDS [OPERATIONS]]    as many of each variant, 4 and 5000 (FSX_SEEDS, FSX_OPERATIONS) unless said; with FSX_LONG=yes 15 and 20000 of the first
. "$(dirname "$0")/suite.sh"
begin fsx "$@"
need_tool fsx '~0.3'
# What fsx itself has no way to ask for: every file that it opens is opened with O_DIRECT, and $DIRECT_LOG says so.
need cc gcc
cc -O -shared -fPIC -o "$LOGS/direct.so" "$HERE/direct.c" -ldl || cannot "direct.c does not compile"

everything='close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 3
punch_hole = 5
sendfile = 3
posix_fadvise = 3
copy_file_range = 5'
# An aligned posix_fallocate of fsx may have no bytes, which is EINVAL everywhere: so not with alignment, and `min = 1`.
# NAME FILE_LENGTH LARGEST ALIGNMENT: bytewise, whole pages, sectors, large, tiny (within a block or two); past the caches.
variants='bytes 262144 65536 1
pages 1048576 131072 4096
sectors 262144 65536 512
large 16777216 2097152 1
tiny 8192 3000 1
direct 262144 65536 512'

first=${FSX_SEED:-$RANDOM}
echo "seeds from $first on (FSX_SEED=$first repeats this)"
while read -r name length largest alignment; do
    seeds=${2:-${FSX_SEEDS:-4}} operations=${3:-${FSX_OPERATIONS:-5000}}
    if [ "$name${FSX_LONG:-}" = bytesyes ]; then seeds=${2:-15} operations=${3:-20000}; fi
    preload=
    [ "$name" != direct ] || preload=$LOGS/direct.so
    weights=$everything
    [ "$alignment" = 1 ] || weights=${weights/posix_fallocate = 3/posix_fallocate = 0}
    printf 'flen = %s\n[opsize]\nmin = 1\nmax = %s\nalign = %s\n[weights]\n%s\n' "$length" "$largest" "$alignment" "$weights" \
        >"$LOGS/$name.toml"
    for ((seed = first; seed < first + seeds; seed++)); do
        check "fsx $name seed $seed, $operations operations" env ${preload:+"LD_PRELOAD=$preload" "DIRECT_LOG=$LOGS/opened"} timeout 1800 "$TOOLS/bin/fsx" -f "$LOGS/$name.toml" -N "$operations" -S "$seed" \
            -P "$LOGS" "$WORK/$name"
    done
done <<<"$variants"
[ -s "$LOGS/opened" ] || failed "no file was opened with O_DIRECT"
finish
