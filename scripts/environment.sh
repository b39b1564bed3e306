# Sourced by the scripts: where programs are and what is built goes, and how scripts are summed up. A CI runner or cron job may have no HOME.
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ -n "${HOME:-}" ] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
export HOME=${HOME:-/}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$top/target}
export PATH=$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin

# What stands behind the last empty line of an output.
closing_lines() { tac | sed '/^$/q' | tac | sed '/^$/d'; }
