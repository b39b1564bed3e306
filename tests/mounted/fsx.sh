#!/bin/bash
# Random file operations, checked against a copy in memory: fsx (https://github.com/asomers/fsx-rs).
# usage: fsx.sh MOUNT_POINT [SEEDS [OPERATIONS]]
. "$(dirname "$0")/suite.sh"
begin fsx "$@"
seeds=${2:-8} operations=${3:-5000}
need_tool fsx '~0.3'

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
# NAME FILE_LENGTH LARGEST ALIGNMENT: bytewise, whole pages, large, tiny (within a block or two).
variants='bytes 262144 65536 1
pages 1048576 131072 4096
sectors 262144 65536 512
large 16777216 2097152 1
tiny 8192 3000 1'

first=${FSX_SEED:-$RANDOM}
echo "seeds $first to $((first + seeds - 1)), $operations operations each (FSX_SEED=$first repeats this)"
while read -r name length largest alignment; do
    weights=$everything
    [ "$alignment" = 1 ] || weights=${weights/posix_fallocate = 3/posix_fallocate = 0}
    printf 'flen = %s\n[opsize]\nmin = 1\nmax = %s\nalign = %s\n[weights]\n%s\n' "$length" "$largest" "$alignment" "$weights" \
        >"$LOGS/$name.toml"
    for ((seed = first; seed < first + seeds; seed++)); do
        check "fsx $name seed $seed" timeout 1800 "$TOOLS/bin/fsx" -f "$LOGS/$name.toml" -N "$operations" -S "$seed" \
            -P "$LOGS" "$WORK/$name"
    done
done <<<"$variants"
finish
