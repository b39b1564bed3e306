#!/bin/bash
# Fails if anything Amberfs is built from has a licence that is not on the list below (the list of deny.toml).
#
# Evaluates each package's SPDX expression: every side of AND has to be allowed, one side of OR is enough.
set -euo pipefail
. "$(dirname "$0")/environment.sh"
cd "$top"

allowed="MIT MIT-0 Apache-2.0 BSD-1-Clause BSD-2-Clause BSD-3-Clause ISC Zlib Unicode-3.0 Unicode-DFS-2016 Unlicense
CC0-1.0 0BSD BSL-1.0 Apache-2.0_WITH_LLVM-exception"

acceptable() { # acceptable SPDX-EXPRESSION
    local expression=$1 word formula=
    [ -n "$expression" ] || return 1
    expression=${expression// WITH /_WITH_}
    expression=${expression//\// OR } # the old way to write OR
    expression=${expression//(/ ( }
    expression=${expression//)/ ) }
    for word in $expression; do
        case $word in
            AND) formula+=' && ' ;;
            OR) formula+=' || ' ;;
            '(' | ')') formula+=" $word " ;;
            *) if grep -qwF -- "$word" <<< "${allowed//$'\n'/ }"; then formula+=1; else formula+=0; fi ;;
        esac
    done
    ((formula))
}

count=0
bad=0
while IFS=$'\t' read -r package licence; do
    count=$((count + 1))
    if ! acceptable "$licence"; then
        echo "licences: ${package}: '${licence:-none stated}' is not on the list" >&2
        bad=$((bad + 1))
    fi
done < <(cargo tree --workspace --all-features --target all -e normal,build,dev --prefix none -f $'{p}\t{l}' | sed 's/ (\*)$//; /^$/d' | sort -u)

[ "$count" -gt 0 ] || { echo "licences: cargo tree listed no package" >&2; exit 1; }
echo "licences: $count packages, $bad not allowed"
[ "$bad" -eq 0 ]
