#!/bin/bash
# embedded.sh: unmodified verbs programs without a daemon, by iwarp-run, as a user without a privilege: on the loopback
# interface of a network namespace, between two namespaces, and in a user namespace. `make embedded`.
#
#   LIMIT    seconds that a program may take (default 60)
source "$(dirname "$0")/lib.sh"

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
LIMIT=${LIMIT:-60}

lab_open ironwarp-embedded
far_open

# A user who owns nothing, and may read the programs.
chmod 755 "$LAB"
cp "$RUN" "$LAB/"
cp -r "$(dirname "$RUN")/lib" "$LAB/"
# alone NAMESPACE COMMAND…: runs a program as this user, without a daemon.
alone() { ip netns exec "$1" "${NOBODY[@]}" timeout -k 5 "$LIMIT" "$LAB/iwarp-run" --embedded "${@:2}"; }
heard() { awaits $$ /dev/null hears "$1"; } # PORT: waits until a program listens there

# pair PORT SERVER… -- CLIENT…: a server, which listens on this port, and a client in $CLIENT. Both must succeed.
# They run again if the client came while the server did not listen: the programs of perftest close their first
# listener.
pair() {
    local port=$1 server=() pid status attempt
    shift
    while [ "$1" != -- ]; do server+=("$1") && shift; done
    shift
    for attempt in 1 2 3; do
        status=0
        ip netns exec "$NS" "${NOBODY[@]}" timeout -k 5 "$LIMIT" "$LAB/iwarp-run" --embedded "${server[@]}" \
            >"$LAB/server.out" 2>&1 &
        pid=$!
        heard "$port"
        alone "${CLIENT:-$NS}" "$@" >"$LAB/client.out" 2>&1 || status=$?
        [ "$status" = 0 ] || kill "$pid" 2>/dev/null
        wait "$pid" || [ "$status" != 0 ] || status=1
        [ "$status" = 0 ] || ! grep -qiE 'rejected|refused|timed out' "$LAB/client.out" && break
        sleep "$attempt"
    done
    [ "$status" = 0 ] || tail -n 15 "$LAB/client.out" "$LAB/server.out"
    return "$status"
}
row() { # NAME COMMAND…: a check, unless the program is not installed
    command -v "$3" >/dev/null || { echo "not installed: $1"; return; }
    check "$1" "${@:2}"
}

# --- the device
device() {
    alone "$NS" ibv_devinfo -v >"$LAB/devinfo" || return 1
    grep -q 'iWARP (1)' "$LAB/devinfo" && grep -q PORT_ACTIVE "$LAB/devinfo"
}
row "ibv_devinfo shows the device" device ibv_devinfo
interfaces() { # each interface with an address, and the loopback interface last
    local gids
    alone "$NS-far" ibv_devinfo -v >"$LAB/devinfo" || return 1
    [ "$(grep -c 'hca_id' "$LAB/devinfo")" = 2 ] || { cat "$LAB/devinfo"; return 1; }
    gids=$(awk '/hca_id/ { device = $2 } /GID\[/ { sub(/,.*/, "", $3); print device, $3 }' "$LAB/devinfo")
    grep -qx 'iwarp0 ::ffff:10.79.0.2' <<<"$gids" && [ "$(tail -n 1 <<<"$gids")" = "iwarp1 ::1" ] ||
        { echo "$gids"; return 1; }
}
row "each interface is a device with its addresses, the loopback interface the last" interfaces ibv_devinfo
unasked() { # no daemon, and nothing asked for
    ip netns exec "$NS" "${NOBODY[@]}" "$LAB/iwarp-run" --socket "$LAB/none" ibv_devices >"$LAB/out" 2>"$LAB/err"
    grep -q iwarp0 "$LAB/out" && [ "$(grep -c 'inside the program' "$LAB/err")" = 1 ]
}
row "without a daemon it is the default, and iwarp-run says so once" unasked ibv_devices
without_iwarp_run() { # [VARIABLE…]: runs a program that has the libraries by itself
    ip netns exec "$NS" "${NOBODY[@]}" env LD_LIBRARY_PATH="$LAB/lib/ironwarp" "$@" ibv_devices >"$LAB/out" 2>"$LAB/err"
}
by_themselves() {
    if [ ! -e /run/iwarpd/verbs.sock ]; then
        without_iwarp_run && grep -q iwarp0 "$LAB/out" && [ ! -s "$LAB/err" ] || return 1
    fi
    without_iwarp_run IWARP_EMBEDDED=1 && grep -q iwarp0 "$LAB/out" || return 1
    without_iwarp_run IWARP_VERBS_SOCKET="$LAB/none"
    ! grep -q iwarp0 "$LAB/out" || return 1
    without_iwarp_run LD_PRELOAD="$LAB/lib/ironwarp/librspreload.so"
    ! grep -q iwarp0 "$LAB/out"
}
row "libraries without iwarp-run find no daemon and have the device; a named socket must be there" \
    by_themselves ibv_devices

# --- rping: messages with compared bytes, the RDMA Writes and Reads of both sides
for address in 127.0.0.1 ::1; do
    rping_here() { pair 7174 rping -s -a "$2" -C 100 -V -- rping -c -a "$2" -C 100 -V; }
    row "rping on the loopback interface, $address" rping_here rping "$address"
done
loopback_alone() { # a server at a loopback address is not reached from elsewhere
    ip netns exec "$NS" "${NOBODY[@]}" timeout "$LIMIT" "$LAB/iwarp-run" --embedded rping -s -a 127.0.0.1 \
        >"$LAB/server.out" 2>&1 &
    local server=$! status
    heard 7174
    ip netns exec "$NS" ss -Hltn 'sport = :7174' | grep -q '127.0.0.1:7174'
    status=$?
    alone "$NS-far" rping -c -a 10.79.0.1 -C 1 >"$LAB/client.out" 2>&1 && status=1
    kill "$server"
    wait "$server"
    grep -q REJECTED "$LAB/client.out" && return "$status"
    cat "$LAB/client.out"
    return 1
}
row "a server at a loopback address listens there alone" loopback_alone rping
for address in 10.79.0.1 fd79::1; do
    between() { CLIENT=$NS-far pair 7174 rping -s -a "$2" -C 100 -V -S 60000 -- rping -c -a "$2" -C 100 -V -S 60000; }
    row "rping between two namespaces, $address" between rping "$address"
done
any() { CLIENT=$NS-far pair 7174 rping -s -C 10 -V -- rping -c -a 10.79.0.1 -C 10 -V; }
row "rping, a listener at any address" any rping
persistent() {
    local k pids=() failed=0
    # Not through `alone`: the job must be the program itself.
    ip netns exec "$NS" "${NOBODY[@]}" timeout -k 5 "$LIMIT" "$LAB/iwarp-run" --embedded rping -s -P -a 127.0.0.1 \
        >"$LAB/server.out" 2>&1 &
    local server=$!
    heard 7174
    for k in $(seq 10); do
        alone "$NS" rping -c -a 127.0.0.1 -C 20 -V >"$LAB/client.$k" 2>&1 & pids+=($!)
    done
    for k in "${pids[@]}"; do wait "$k" || failed=$((failed + 1)); done
    kill "$server"
    wait "$server"
    [ "$failed" = 0 ] || { echo "$failed of 10 clients failed"; tail -n 3 "$LAB"/client.*; return 1; }
}
row "rping -s -P serves ten clients at once" persistent rping

# --- perftest: rates and times, polled and by events
for test in ib_write_bw ib_read_bw ib_send_bw ib_write_lat ib_read_lat ib_send_lat; do
    measures() { pair 18515 "$1" -R -n 200 -F -- "$1" -R -n 200 -F 127.0.0.1; }
    row "$test -R" measures "$test"
done
sizes() { CLIENT=$NS-far pair 18515 ib_write_bw -R -a -n 50 -F -- ib_write_bw -R -a -n 50 -F 10.79.0.1; }
row "ib_write_bw -R -a between two namespaces" sizes ib_write_bw
# Frames as they are on a wire: without the kernel's segmentation below TCP.
segments() {
    local seen=$LAB/segments.pcap pid size status=0
    ip netns exec "$NS-far" ethtool -K far tso off gso off >/dev/null 2>&1 || return 1
    ip netns exec "$NS" tcpdump -Uni near -B 65536 -w "$seen" 'tcp port 18514' 2>"$LAB/tcpdump.log" &
    pid=$!
    becomes 1 5 grep -c 'listening on' "$LAB/tcpdump.log" || status=1
    for size in 65536 4093; do
        CLIENT=$NS-far pair 18514 ib_write_bw -p 18514 -R -n 200 -s "$size" -F -- \
            ib_write_bw -p 18514 -R -n 200 -s "$size" -F 10.79.0.1 || status=1
    done
    kill "$pid"
    wait "$pid"
    ip netns exec "$NS-far" ethtool -K far tso on gso on >/dev/null 2>&1
    tshark -n -r "$seen" -T fields -e tcp.stream -e tcp.dstport -e tcp.seq -e tcp.ack -e tcp.window_size \
        -e tcp.payload 2>"$LAB/tshark.err" | python3 dataplane/tests/segments.py 18514 9000 || status=1
    return "$status"
}
row "TCP segments hold whole FPDUs" segments ib_write_bw
events() { pair 18515 ib_send_lat -R -e -n 200 -F -- ib_send_lat -R -e -n 200 -F 127.0.0.1; }
row "ib_send_lat -R -e" events ib_send_lat

# --- queue pairs that are connected by number: each process has a worker number of its own
numbered_builds() { cc -O1 -Wall -Wextra -Werror -o "$LAB/numbered" dataplane/tests/programs/numbered.c -libverbs; }
check "numbered.c builds" numbered_builds
check "queue pairs by number, a program of ours" alone "$NS" "$LAB/numbered" 100
for test in "ibv_rc_pingpong -g 0 -c" "ibv_srq_pingpong -g 0 -q 16 -c" "ib_write_bw -d iwarp0 -n 200 -F" \
    "ibv_ud_pingpong -g 0 -s 1024"; do
    # shellcheck disable=SC2086
    by_number() { pair 18515 $2 -- $2 127.0.0.1; }
    row "$test, by number" by_number "${test%% *}" "$test"
done
# shellcheck disable=SC2016
files() { # those of a device of RoCE, for a user without a privilege, who stays who he is
    local files='id -u; cd /sys/class/infiniband/iwarp0 && cat node_type ports/1/gids/0 ports/1/gid_attrs/ndevs/0
        test -c /dev/infiniband/uverbs0 && echo >/dev/null && ibv_devinfo'
    alone "$NS-far" --roce bash -c "$files" >"$LAB/files" || { cat "$LAB/files"; return 1; }
    [ "$(sed 4q "$LAB/files" | paste -sd,)" = \
        "$("${NOBODY[@]}" id -u),1: CA,0000:0000:0000:0000:0000:ffff:0a4f:0002,far" ] &&
        grep -q 'InfiniBand (0)' "$LAB/files" || { cat "$LAB/files"; return 1; }
}
row "--roce shows files of the devices" files ibv_devinfo
without_namespaces() { # where the user may have none
    # shellcheck disable=SC2016
    ip netns exec "$NS-far" "${NOBODY[@]}" unshare -r bash -c \
        'echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all -- "$@"' alone \
        "$LAB/iwarp-run" --embedded --roce bash -c 'cat /sys/class/infiniband/iwarp0/node_type && ibv_devinfo' \
        >"$LAB/out" 2>"$LAB/err" && grep -q '^1: CA' "$LAB/out" && grep -q 'InfiniBand (0)' "$LAB/out" ||
        { cat "$LAB/out" "$LAB/err"; return 1; }
}
row "--roce shows files of the devices without namespaces" without_namespaces ibv_devinfo
places() { # more programs than there are numbers: those without say so, and connect as before
    local k pids=() refused=0
    for k in $(seq 66); do
        alone "$NS" "$LAB/numbered" place >"$LAB/place.$k" 2>&1 & pids+=($!)
    done
    for k in $(seq 66); do wait "${pids[k - 1]}" || refused=$((refused + 1)); done
    [ "$refused" = 2 ] && [ "$(cat "$LAB"/place.* | grep -c "no TCP port from 4791 on is left")" = 2 ] && return
    echo "$refused of 66 were refused"
    tail -n 1 "$LAB"/place.*
    return 1
}
check "64 programs have numbers, further ones are refused" places

# --- rsockets, connections by the dozen
# 100,000 round trips of threads that sleep: a minute while other suites use the cores.
rsocket() { LIMIT=240 pair 7471 rstream -b 127.0.0.1 -- rstream -s 127.0.0.1; }
row "rstream" rsocket rstream
many() { pair 7471 ucmatose -c 20 -- ucmatose -c 20 -s 127.0.0.1; }
row "ucmatose, 20 connections" many ucmatose

# --- plain sockets, of which those to and of the peers that were named become rsockets
PEERS=("$LAB/iwarp-run" --preload --embedded --peers 10.79.0.0/24)
transfer() { # ADDRESS NAMESPACE SERVER… -- CLIENT…: both are commands before nc; a file goes to the server, compared
    local address=$1 from=$2 server=() pid status
    shift 2
    while [ "$1" != -- ]; do server+=("$1") && shift; done
    shift
    rm -f "$LAB/copy"
    ip netns exec "$NS" "${NOBODY[@]}" timeout "$LIMIT" "${server[@]}" nc -l -N "$address" 7000 >"$LAB/copy" &
    pid=$!
    heard 7000
    ip netns exec "$from" "${NOBODY[@]}" timeout "$LIMIT" "$@" nc -N "${address/0.0.0.0/10.79.0.1}" 7000 <"$LAB/file"
    status=$?
    [ "$status" = 0 ] || kill "$pid" 2>/dev/null
    wait "$pid" && [ "$status" = 0 ] && cmp "$LAB/file" "$LAB/copy"
}
head -c 20000000 /dev/urandom >"$LAB/file" && chmod 644 "$LAB/file"
preloaded() { transfer 10.79.0.1 "$NS-far" "${PEERS[@]}" -- "${PEERS[@]}"; }
row "nc with --preload --embedded, a peer that was named" preloaded nc
others() { transfer 127.0.0.1 "$NS" "${PEERS[@]}" -- && transfer 127.0.0.1 "$NS" -- "${PEERS[@]}"; }
row "another peer is spoken to over TCP, in both roles" others nc
anybody() { transfer 0.0.0.0 "$NS-far" "${PEERS[@]}" --; }
row "a socket that listens at any address accepts peers over TCP" anybody nc
refuses_tcp() { # the listener at the named peers' address speaks MPA
    ! LIMIT=5 transfer 10.79.0.1 "$NS-far" "${PEERS[@]}" -- 2>/dev/null && [ ! -s "$LAB/copy" ]
}
row "a socket that listens at a named address accepts nobody over TCP" refuses_tcp nc
exits() { # with an open rsocket: its peer receives what was sent, and an end of file
    local pid
    ip netns exec "$NS" "${NOBODY[@]}" timeout "$LIMIT" "${PEERS[@]}" nc -l 10.79.0.1 7000 >"$LAB/copy" 2>"$LAB/err" \
        </dev/null &
    pid=$!
    heard 7000
    ip netns exec "$NS-far" "${NOBODY[@]}" timeout "$LIMIT" "${PEERS[@]}" \
        python3 -c 'import socket
s = socket.create_connection(("10.79.0.1", 7000))
s.sendall(b"sent")
s.detach()' || kill "$pid"
    wait "$pid" && [ "$(<"$LAB/copy")" = sent ]
}
row "a program that exits closes its rsockets" exits python3
taken() { # a port of the kernel's
    local pid status=0
    ip netns exec "$NS" "${NOBODY[@]}" timeout "$LIMIT" python3 -m http.server 7001 >"$LAB/server.out" 2>&1 &
    pid=$!
    heard 7001
    ip netns exec "$NS" "${NOBODY[@]}" timeout 5 "${PEERS[@]}" python3 -c 'import socket
s = socket.socket()
s.bind(("", 7001))
s.listen()' 2>"$LAB/err" || status=$?
    kill "$pid"
    wait "$pid"
    [ "$status" = 1 ] && grep -q "already in use" "$LAB/err" && return
    echo "exit status $status"
    cat "$LAB/err"
    return 1
}
row "a port that is taken is refused to a socket that leaves RDMA" taken python3
unnamed() { # without peers, nothing would be captured
    "$LAB/iwarp-run" --preload --embedded true 2>"$LAB/err"
    [ $? = 2 ] && grep -q -- --peers "$LAB/err"
}
check "--preload --embedded asks for the peers" unnamed

# --- a user namespace, as in a container: no capability, and the loopback interface alone
unshared() {
    ip netns exec "$NS" "${NOBODY[@]}" unshare -Urn sh -c "ip link set lo up || exit 1
        '$LAB/iwarp-run' --embedded rping -s -a 127.0.0.1 -C 10 & sleep 1
        timeout $LIMIT '$LAB/iwarp-run' --embedded rping -c -a 127.0.0.1 -C 10 -V && wait"
}
row "rping in a user namespace" unshared rping
privileged_port() { # the kernel's rule
    ! alone "$NS" rping -s -a 127.0.0.1 -p 80 -C 1 >"$LAB/out" 2>&1 || return 1
    grep -q "Permission denied" "$LAB/out" || { cat "$LAB/out"; return 1; }
}
row "port 80 is refused as the kernel refuses it" privileged_port rping

# --- iwarpd as the peer, in both roles: our own TCP on one side, the kernel's on the other
source dataplane/tests/programs/two.sh
ip -n "$NS" addr add 10.78.0.1/24 dev switch
check "a daemon starts" start 0
listens() { "$IWARPCTL" --socket "$LAB/0.control" -j app list | jq -e 'length > 0' >/dev/null; }
daemon_serves() { # PROGRAM OPTIONS… -- CLIENT OPTIONS…: the server is a program of the daemon
    local server=() pid status=0
    while [ "$1" != -- ]; do server+=("$1") && shift; done
    shift
    ip netns exec "$NS" timeout -k 5 "$LIMIT" "$RUN" --socket "$LAB/0.verbs" "${server[@]}" >"$LAB/server.out" 2>&1 &
    pid=$!
    for _ in $(seq 100); do listens && break; sleep 0.05; done
    sleep 0.3
    alone "$NS" "$@" >"$LAB/client.out" 2>&1 || status=$?
    [ "$status" = 0 ] || kill "$pid" 2>/dev/null
    wait "$pid" || [ "$status" != 0 ] || status=1
    [ "$status" = 0 ] || head -n 20 "$LAB/client.out" "$LAB/server.out"
    return "$status"
}
daemon_asks() { # PORT PROGRAM OPTIONS… -- CLIENT OPTIONS…: the client is a program of the daemon
    local port=$1 server=() pid status=0
    shift
    while [ "$1" != -- ]; do server+=("$1") && shift; done
    shift
    ip netns exec "$NS" "${NOBODY[@]}" timeout -k 5 "$LIMIT" "$LAB/iwarp-run" --embedded "${server[@]}" \
        >"$LAB/server.out" 2>&1 &
    pid=$!
    heard "$port"
    on 0 "$@" >"$LAB/client.out" 2>&1 || status=$?
    [ "$status" = 0 ] || kill "$pid" 2>/dev/null
    wait "$pid" || [ "$status" != 0 ] || status=1
    [ "$status" = 0 ] || head -n 20 "$LAB/client.out" "$LAB/server.out"
    return "$status"
}
served_rping() { daemon_serves rping -s -C 100 -V -S 30000 -- rping -c -a 10.78.0.10 -C 100 -V -S 30000; }
row "rping, a server of the daemon" served_rping rping
asked_rping() { daemon_asks 7174 rping -s -a 10.78.0.1 -C 100 -V -S 30000 -- rping -c -a 10.78.0.1 -C 100 -V -S 30000; }
row "rping, a client of the daemon" asked_rping rping
asked_reads() { daemon_asks 18515 ib_read_bw -R -n 200 -F -- ib_read_bw -R -n 200 -F 10.78.0.1; }
row "ib_read_bw -R, a client of the daemon" asked_reads ib_read_bw
served_stream() { daemon_serves rstream -b 10.78.0.10 -S 4096 -C 200 -- rstream -s 10.78.0.10 -S 4096 -C 200; }
row "rstream, a server of the daemon" served_stream rstream
score
