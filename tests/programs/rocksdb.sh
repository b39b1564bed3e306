#!/bin/bash
# Builds tests/programs/rocksdb.cc against the system's RocksDB when it is newer than the last build, and runs it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target"
program=$target/rocksdb-program
if [ "$here/rocksdb.cc" -nt "$program" ]; then
    ${CXX:-c++} -O1 -std=c++17 -o "$program.$$" "$here/rocksdb.cc" -lrocksdb
    mv "$program.$$" "$program"
fi
exec "$program" "$@"
