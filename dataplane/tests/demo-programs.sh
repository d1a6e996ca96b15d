#!/bin/bash
# demo-programs.sh: RDMA inside unmodified programs, without a daemon or a privilege: the commands of README.md, and
# then Debian's rping and ib_write_bw, over loopback and between two network namespaces, whose ends belong to two users.
# A user who is not root sees the half over loopback. `make demo-programs`.
#
#   LIMIT    seconds that a program may take (default 30)
source "$(dirname "$0")/lib.sh"

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
LIMIT=${LIMIT:-30}
WRITES=2000
MESSAGE=65536

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
# fail REASON: shows what the programs have printed, says why, and ends the demonstration.
fail() {
    exec >&2
    for output in server client; do
        [ ! -s "$LAB/$output.out" ] || sed "s/^/   $output: /" "$LAB/$output.out" | tail -n 15
    done
    echo "demo: FAILED: $1"
    [ -n "${NS:-}" ] || rm -rf "$LAB"
    exit 1
}

# Two users who own nothing, and may read the programs: nobody, and one without a name.
NEAR='' FAR=''
if [ "$(id -u)" = 0 ]; then
    lab_open ironwarp-programs
    NEAR=$NS FAR=$NS-far
    SERVER_USER=65534 CLIENT_USER=65533
else
    LAB=$(mktemp -d)
    trap 'rm -rf "$LAB"; exit 130' INT TERM HUP
fi
chmod 755 "$LAB"
HERE=$LAB/ironwarp
mkdir -p "$HERE/target/release"
cp -r "$RUN" "$(dirname "$RUN")/lib" "$HERE/target/release/" || fail "iwarp-run is not built: make iwarp-run"
for program in rping ib_write_bw; do
    command -v "$program" >/dev/null || fail "$program is missing: apt-get install rdmacm-utils perftest"
done
export PATH="$HERE/target/release:$PATH"
# No daemon listens here.
export IWARP_VERBS_SOCKET="$LAB/no-daemon"

# Prefixes of the commands of the two ends.
as_server=() as_client=() at_near=()
# ends NAMESPACE NAMESPACE: places server and client.
ends() {
    [ -n "$NEAR" ] || return 0
    local drop=(--clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs --)
    at_near=(ip netns exec "$1")
    as_server=("${at_near[@]}" setpriv --reuid "$SERVER_USER" --regid "$SERVER_USER" "${drop[@]}")
    as_client=(ip netns exec "$2" setpriv --reuid "$CLIENT_USER" --regid "$CLIENT_USER" "${drop[@]}")
}

# hears PORT PID: waits until the server listens there, or has ended.
hears() {
    local port
    port=$(printf ':%04X' "$1")
    for _ in $(seq 200); do
        # shellcheck disable=SC2016 # fields of awk
        "${at_near[@]}" awk -v port="$port\$" '$2 ~ port && $4 == "0A" { found = 1 } END { exit !found }' \
            /proc/net/tcp /proc/net/tcp6 2>/dev/null && return
        kill -0 "$2" 2>/dev/null || return
        sleep 0.05
    done
}

# pair PORT SERVER CLIENT: runs two command lines, of a server that listens on the port and of its client. Both must
# succeed. They run again if the client came while the server did not listen: ib_write_bw closes its first listener.
pair() {
    local pid status ended attempt
    printf 'server$ %s\nclient$ %s\n' "$2" "$3"
    for attempt in 1 2 3; do
        status=0
        # Words are meant: no argument has a space.
        # shellcheck disable=SC2086
        (cd "$HERE" && exec "${as_server[@]}" timeout -k 5 "$LIMIT" $2) >"$LAB/server.out" 2>&1 &
        pid=$!
        hears "$1" "$pid"
        # shellcheck disable=SC2086
        (cd "$HERE" && exec "${as_client[@]}" timeout -k 5 "$LIMIT" $3) >"$LAB/client.out" 2>&1 || status=$?
        [ "$status" = 0 ] || kill "$pid" 2>/dev/null
        wait "$pid" || { ended=$? && [ "$status" != 0 ]; } || status="$ended of the server"
        [ "$status" != 0 ] || return 0
        grep -qiE 'rejected|refused|timed out' "$LAB/client.out" || break
        sleep "$attempt"
    done
    fail "$3: exit code $status"
}

# pinged COUNT: shows the messages that the client of rping has received, and fails unless there are COUNT of them.
pinged() {
    grep -a '^ping data' "$LAB/client.out" >"$LAB/pings"
    [ "$(wc -l <"$LAB/pings")" = "$1" ] || fail "rping: $(wc -l <"$LAB/pings") messages of $1"
    sed -n -e 1p -e "\$p" "$LAB/pings"
}
# written: shows the result of ib_write_bw, and fails unless its device speaks iWARP and it has made all its Writes.
written() {
    grep -q 'Transport type : IW' "$LAB/client.out" || fail "ib_write_bw: the device is not of iWARP"
    grep -A1 '#bytes' "$LAB/client.out"
    awk -v size="$MESSAGE" -v count="$WRITES" '$1 == size && $2 == count && $4 > 0 { found = 1 }
        END { exit !found }' "$LAB/client.out" || fail "ib_write_bw shows no rate"
}
rping_over() { # ADDRESS
    pair 7174 "iwarp-run rping -s -a $1 -C 10 -V" "iwarp-run rping -c -a $1 -C 10 -V -v"
    pinged 10
}
write_bw_over() { # ADDRESS
    local options="-R -F -s $MESSAGE -n $WRITES"
    pair 18515 "iwarp-run ib_write_bw $options" "iwarp-run ib_write_bw $options $1"
    written
}

ends "$NEAR" "$NEAR"
say "RDMA inside unmodified programs: two users, no daemon, no privilege"
# shellcheck disable=SC2046 # on one line
{
    echo "server:" $("${as_server[@]}" grep -E '^(Uid|CapEff|CapBnd)' /proc/self/status | cut -f 1,2)
    echo "client:" $("${as_client[@]}" grep -E '^(Uid|CapEff|CapBnd)' /proc/self/status | cut -f 1,2)
} >"$LAB/users"
cat "$LAB/users"
if [ -n "$NEAR" ]; then
    [ "$(grep -c 'CapEff: 0* CapBnd: 0*$' "$LAB/users")" = 2 ] || fail "a program would have capabilities"
fi

say "the commands of README.md: ten messages over loopback"
mapfile -t shown < <(sed -n 's/^\(target\/release\/iwarp-run .*[^ &]\)\( &\)\?$/\1/p' README.md | awk '!seen[$0]++')
[ "${#shown[@]}" = 2 ] || fail "README.md shows other commands than one of a server and one of a client"
pair 7174 "${shown[@]}"
pinged 10

say "rping over loopback: RDMA Reads and Writes of both sides; -V compares every byte"
rping_over 127.0.0.1

say "ib_write_bw over loopback: the rate of RDMA Writes of $((MESSAGE >> 10)) KiB"
write_bw_over 127.0.0.1

if [ -z "$NEAR" ]; then
    rm -rf "$LAB"
    echo
    echo "demo: RDMA over loopback works; the other half, between two network namespaces, needs root and was left out"
    exit
fi

{
    ip netns add "$FAR" && ip -n "$NEAR" link add near type veth peer name far netns "$FAR" &&
        ip -n "$NEAR" addr add 10.79.0.1/24 dev near && ip -n "$NEAR" link set near up &&
        ip -n "$FAR" addr add 10.79.0.2/24 dev far && ip -n "$FAR" link set far up
} || fail "no pair of network namespaces to be had"
ends "$NEAR" "$FAR"
received() { in_ns cat /sys/class/net/near/statistics/rx_bytes; }

say "rping between two network namespaces, over a veth pair"
rping_over 10.79.0.1

say "ib_write_bw between the two"
before=$(received)
write_bw_over 10.79.0.1
crossed=$(($(received) - before))
echo "the server's interface has received $((crossed >> 20)) MiB"
[ "$crossed" -ge $((WRITES * MESSAGE)) ] || fail "what was written did not cross the veth pair"

echo
echo "demo: RDMA works inside programs of two users, over loopback and between two network namespaces"
