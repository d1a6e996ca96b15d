#!/bin/bash
# Unmodified verbs programs of Debian on iwarpd, by iwarp-run: between two daemons that a switch connects, and both ends
# on one of them. `make programs`. ROUNDS is the number of iterations of a measuring program.
source "$(dirname "$0")/lib.sh"

RUN=${RUN:-target/release/iwarp-run}
ROUNDS=${ROUNDS:-100}
QUICK=${QUICK:-} # not empty: the first rows, in under a minute

lab_open ironwarp-programs

ip -n "$NS" link add switch type bridge
ip -n "$NS" link set switch up
for port in 0 1; do
    ip -n "$NS" link add "v$port" type veth peer name "s$port"
    ip -n "$NS" link set "s$port" master switch up
    ip -n "$NS" link set "v$port" up
    in_ns ethtool -K "v$port" tx off >/dev/null 2>&1
    cat >"$LAB/$port.toml" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 16384
file_prefix = "$NS-$port"
[[port]]
name = "port$port"
driver = "af_packet"
interface = "v$port"
mtu = 1500
addresses = ["10.78.0.1$port/24", "fd78::1$port/64"]
[workers]
cores = [$((port % $(nproc)))]
idle = "adaptive"
[tcp]
connections_max = 1024
[control]
socket = "$LAB/$port.control"
[applications]
socket = "$LAB/$port.verbs"
mode = "0666"
user_memory = "2G"
TOML
done
source "$(dirname "$0")/daemons.sh"

on() { # N COMMAND…: runs a program on daemon N
    local n=$1
    shift
    ip netns exec "$NS" timeout -k 5 60 "$RUN" --socket "$LAB/$n.verbs" "$@"
}
listens() { "$IWARPCTL" --socket "$LAB/0.control" -j app list | jq -e 'length > 0' >/dev/null; }
# pair SERVER… -- CLIENT…: a server on daemon 0, and a client on daemon $CLIENT. Both must succeed; with $ENDLESS, the
# server is stopped.
pair() {
    local server=() pid status=0
    while [ "$1" != -- ]; do server+=("$1") && shift; done
    shift
    # Not through `on`: the job must be the program itself, not a subshell around it.
    ip netns exec "$NS" timeout -k 5 60 "$RUN" --socket "$LAB/0.verbs" "${server[@]}" >"$LAB/server.out" 2>&1 &
    pid=$!
    for _ in $(seq 100); do listens && break; sleep 0.05; done
    sleep 0.3
    on "${CLIENT:-1}" "$@" >"$LAB/client.out" 2>&1 || status=$?
    if [ -n "${ENDLESS:-}" ]; then
        kill "$pid" 2>/dev/null
        wait "$pid"
    else
        [ "$status" = 0 ] || kill "$pid" 2>/dev/null
        wait "$pid" || status=1
    fi
    [ "$status" = 0 ] || tail -n 15 "$LAB/client.out" "$LAB/server.out"
    return "$status"
}
row() { # NAME COMMAND…: a check, unless the program is not installed
    local name=$1 program=$3
    command -v "$program" >/dev/null || { echo "not installed: $name"; return; }
    check "$name" "${@:2}"
}

for n in 0 1; do check "daemon $n starts" start "$n"; done

# --- devices
devices() { on 0 ibv_devices | grep -q iwarp0; }
row "ibv_devices" devices ibv_devices
device() { on 0 ibv_devinfo >"$LAB/devinfo" && grep 'iWARP (1)' "$LAB/devinfo" && grep PORT_ACTIVE "$LAB/devinfo"; }
row "ibv_devinfo" device ibv_devinfo
without_daemon() {
    "$RUN" --socket "$LAB/none" ibv_devices 2>"$LAB/none.err"
    [ $? = 3 ] && cat "$LAB/none.err" && grep -q "$LAB/none" "$LAB/none.err"
}
check "iwarp-run reports that there is no daemon" without_daemon
checked() { # nothing that a program imports is missing
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || continue
        "$RUN" --json --check "$program" | jq -e 'all(.state != "missing")' >/dev/null || { echo "$program"; return 1; }
    done
}
check "iwarp-run --check" checked rping rdma_client rdma_server ucmatose cmtime ib_write_bw fio ibv_devinfo

for where in 1 0; do
    CLIENT=$where
    of=$([ "$where" = 1 ] && echo "two daemons" || echo "one daemon")
    for size in 64 4096 65535; do
        row "rping, $size bytes, $of" pair rping -s -V -C 50 -S "$size" -- rping -c -a 10.78.0.10 -V -C 50 -S "$size"
    done
    row "rping over IPv6, $of" pair rping -s -a ::0 -V -C 50 -- rping -c -a fd78::10 -V -C 50
    row "rdma_client, $of" pair rdma_server -- rdma_client -s 10.78.0.10
    row "rdma_xclient, $of" pair rdma_xserver -c r -- rdma_xclient -s 10.78.0.10 -c r
    row "ucmatose, $of" pair ucmatose -- ucmatose -s 10.78.0.10
    row "ucmatose, 10 connections, $of" \
        pair ucmatose -c 10 -C 20 -S 1000 -- ucmatose -s 10.78.0.10 -c 10 -C 20 -S 1000
    row "ucmatose, ids that migrate, $of" pair ucmatose -m -- ucmatose -m -s 10.78.0.10
    ENDLESS=1 row "cmtime, $of" pair cmtime -- cmtime -s 10.78.0.10 -c 50
    row "ib_write_bw, $of" \
        pair ib_write_bw -R -d iwarp0 -n "$ROUNDS" -- ib_write_bw -R -d iwarp0 -n "$ROUNDS" 10.78.0.10
    [ -z "$QUICK" ] || break
    for program in ib_read_bw ib_send_bw; do
        row "$program, $of" pair $program -R -d iwarp0 -n "$ROUNDS" -- $program -R -d iwarp0 -n "$ROUNDS" 10.78.0.10
    done
    for program in ib_write_lat ib_read_lat ib_send_lat; do
        row "$program, $of" pair $program -R -d iwarp0 -n 20 -- $program -R -d iwarp0 -n 20 10.78.0.10
    done
    for options in "-q 4" "-s 1000" "-b"; do
        # shellcheck disable=SC2086 # options are words
        row "ib_send_bw $options, $of" pair ib_send_bw -R -d iwarp0 -n "$ROUNDS" $options -- \
            ib_send_bw -R -d iwarp0 -n "$ROUNDS" $options 10.78.0.10
    done
    for verb in write read; do
        # With either verb, the client's job names the verb, and the server's only reads.
        printf '[global]\nioengine=rdma\nport=17204\nbs=64k\nsize=10m\n[server]\nrw=read\n' >"$LAB/server.fio"
        printf '[global]\nioengine=rdma\nhostname=10.78.0.10\nport=17204\nverb=%s\nbs=64k\nsize=10m\n' "$verb" \
            >"$LAB/client.fio"
        printf '[client]\nrw=write\n' >>"$LAB/client.fio"
        row "fio, $verb, $of" pair fio "$LAB/server.fio" -- fio "$LAB/client.fio"
    done
done

# A daemon learns that a program has ended when the kernel closes the program's socket, which is after `wait` returns.
left() { "$IWARPCTL" --socket "$LAB/$1.control" -j app list | jq length; }
for n in 0 1; do check "nothing is left on daemon $n" becomes 0 5 left "$n"; done

score
