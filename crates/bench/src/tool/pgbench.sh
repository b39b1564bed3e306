# pgbench (TPC-B) for $1 seconds, on a cluster of its own in the working directory. The server cannot be root, and the
# directory may be where only root gets to: then it is shown to it in a mount namespace of its own (whoever starts this has
# made one). It stops itself where what is to be measured begins, and where that ends: who started it takes the account
# then, and has it go on. It ends by SIGTERM as it does by itself: a server that is killed leaves its shared memory behind.
set -eu
PATH=$(pg_config --bindir 2> /dev/null || ls -d /usr/lib/postgresql/*/bin | tail -n 1):$PATH
command -v initdb postgres pgbench > /dev/null || { echo "PostgreSQL is not installed (Debian: apt-get install postgresql)"; exit 1; }
if [ "$(id -u)" = 0 ]; then
    as() { setpriv --reuid=postgres --regid=postgres --init-groups -- "$@"; }
    mount -t tmpfs -o mode=755 tmpfs /mnt
    mkdir /mnt/home /mnt/socket
    mount --bind . /mnt/home
    chown postgres /mnt/home /mnt/socket
    home=/mnt/home socket=/mnt/socket
    cd /
else
    as() { "$@"; }
    home=$PWD socket=$PWD
fi
server=
end() {
    trap '' TERM INT
    [ -n "$server" ] || return 0
    # One that has not written its number yet is not found by pg_ctl.
    as pg_ctl -D "$home/data" -m fast -s stop 2> /dev/null || kill -INT "$server" 2> /dev/null || true
    wait "$server" || true
}
trap end EXIT
trap 'exit 143' TERM INT
# In a session of its own, which a signal to this one's does not reach: what initdb runs would leave its shared memory.
as setsid initdb -D "$home/data" -A trust -E UTF8 --no-locale > /dev/null
as postgres -D "$home/data" -c listen_addresses= -c unix_socket_directories="$socket" -c log_min_messages=error &
server=$!
until as pg_isready -q -h "$socket"; do
    kill -0 $server || exit 1
    sleep 0.05
done
as createdb -h "$socket" bench
as pgbench -h "$socket" -i -q -s 5 bench > /dev/null 2>&1
as psql -h "$socket" -q -c checkpoint bench
kill -STOP $$
as pgbench -h "$socket" -c 4 -j 2 -T "$1" bench
kill -STOP $$
