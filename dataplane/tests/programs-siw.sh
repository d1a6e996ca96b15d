#!/bin/bash
# Unmodified verbs programs of Debian on iwarpd, by iwarp-run, against the same programs on Linux soft-iWARP in a QEMU
# guest, in both roles, CRC on; and again while one frame in a hundred is lost. `make programs-siw`; needs root. Last
# line: `N passed, N failed`.
#
#   SIW_SUITES   the suites to run (default: all of them)
#   SIW_ROLES    the places of the server: ours, theirs (default: both)
#   SIW_LOSS     "off on": without loss, and with it (default: both)
#   SIW_LIMIT    seconds that a program may take (default 60; twice that with loss)
source "$(dirname "$0")/lib.sh"
source dataplane/tests/siw/guest.sh
source dataplane/tests/siw/loss.sh
source dataplane/tests/programs/guest.sh

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
SUITES=${SIW_SUITES:-basic writes reads sends sizes storage sockets agreeing}
OURS=10.78.0.10 THEIRS=10.78.0.20
# rdma-core's own preload library, in the guest.
PRELOAD=/usr/lib/$(uname -m)-linux-gnu/rsocket/librspreload.so
PROGRAMS=(rping rdma_client rdma_server rdma_xclient rdma_xserver ucmatose cmtime ib_write_bw ib_write_lat ib_read_bw
    ib_read_lat ib_send_bw ib_send_lat fio rstream riostream rcopy qperf fi_info fi_pingpong iperf3 "$PRELOAD")
begin=$SECONDS

write_config() {
    cat >"$LAB/iwarpd.toml" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 16384
file_prefix = "$NS"
[[port]]
name = "port0"
driver = "af_packet"
interface = "v0"
mtu = 1500
addresses = ["$OURS/24", "fd78::10/64"]
[workers]
cores = [$(($(nproc) - 1))]
idle = "adaptive"
[tcp]
connections_max = 1024
[mpa]
crc = "on"
[control]
socket = "$SOCKET"
[applications]
socket = "$LAB/verbs.sock"
user_memory = "2G"
TOML
}

# The daemon's port and the guest's on a bridge.
build_bridge() {
    ip -n "$NS" link add br0 type bridge mcast_snooping 0
    ip -n "$NS" link add v0 type veth peer name s0
    in_ns ethtool -K v0 tx off >/dev/null 2>&1
    ip -n "$NS" link set s0 master br0 up
    ip -n "$NS" link set v0 up
    in_ns ip tuntap add guest0 mode tap
    ip -n "$NS" link set guest0 master br0 up
    in_ns sh -c 'for i in v0 br0; do echo 1 >/proc/sys/net/ipv6/conf/$i/disable_ipv6; done'
    ip -n "$NS" addr add 10.78.0.1/24 dev br0
    ip -n "$NS" link set br0 up
    ip netns add "$NS-asks"
    ip -n "$NS" link add asks0 type veth peer name asks1 netns "$NS-asks"
    ip -n "$NS" link set asks0 master br0 up
    ip -n "$NS-asks" addr add 10.78.0.30/24 dev asks1
    ip -n "$NS-asks" link set asks1 up
    ip netns exec "$NS-asks" ethtool -K asks1 tx off >/dev/null 2>&1
}

# qperf and fi_pingpong first agree by the kernel's TCP, at the daemon's address and two ports. So the kernel has that
# address on an interface that leads nowhere, and the bridge passes it the frames of these ports; the kernel does not
# answer the frames that the daemon receives.
kernel_address() {
    in_ns sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.rp_filter=0
    ip -n "$NS" link add nowhere type veth peer name nobody
    ip -n "$NS" addr add "$OURS/32" dev nowhere
    ip -n "$NS" link set nowhere up
    local bridge
    bridge=$(in_ns cat /sys/class/net/br0/address)
    in_ns nft -f - <<NFT
table bridge agree {
    chain prerouting {
        type filter hook prerouting priority -300;
        iifname != "s0" ip daddr $OURS tcp dport { 19765, 47592 } ether daddr set $bridge meta pkttype set host
    }
}
table netdev daemon {
    chain ingress {
        type filter hook ingress device v0 priority 0; policy drop;
    }
}
NFT
}

ours() { # SECONDS COMMAND…: a program on the daemon
    local seconds=$1
    shift
    ip netns exec "$NS" timeout -k 5 "$seconds" "$RUN" --socket "$LAB/verbs.sock" "$@"
}
theirs() { # SECONDS COMMAND…: a program on soft-iWARP
    local seconds=$1
    shift
    guest_run siw "timeout -s KILL $seconds $*" $((seconds + 10))
}
# port_of PROGRAM: its port, as long as no argument changes it.
port_of() {
    case $1 in
        rping) echo 7174 ;;
        ib_*) echo 18515 ;;
        fio) echo 17204 ;;
        rcopy) echo 7427 ;;
        --preload) echo 5201 ;;
        qperf) echo 19765 ;;
        fi_pingpong) echo 47592 ;;
        *) echo 7471 ;;
    esac
}
# listens PORT: true once the server does. For the daemon's ports, a connection that says nothing tells; what listens
# with the kernel's TCP, or soft-iWARP, would take it for a client.
listens() {
    if [ "$ROLE" = theirs ]; then
        guest_run siw "grep -qi ':$(printf %04x "$1") .* 0A ' /proc/net/tcp /proc/net/tcp6" 10
    elif [ "$1" = 19765 ] || [ "$1" = 47592 ]; then
        in_ns ss -Hltn "sport = :$1" | grep .
    else
        ip netns exec "$NS-asks" nc -z -w 1 "$OURS" "$1"
    fi
}

serve() { # COMMAND…: starts a server where $ROLE says, and waits until it listens
    if [ "$ROLE" = ours ]; then
        ip netns exec "$NS" timeout -k 5 "$LIMIT" "$RUN" --socket "$LAB/verbs.sock" "$@" >"$LAB/server.out" 2>&1 &
        PID=$!
    else
        guest_run siw "timeout -s KILL $LIMIT $* >/tmp/server 2>&1 & server=\$!" 10
    fi
    for _ in $(seq 100); do listens "$(port_of "$1")" >/dev/null 2>&1 && return; sleep 0.1; done
    echo "the server does not listen"
}
stop() { # [kill]: ends a server, or waits for its end; returns its exit status
    if [ "$ROLE" = ours ]; then
        [ -z "$1" ] || kill "$PID" 2>/dev/null
        wait "$PID"
    else
        guest_run siw "${1:+kill \$server; }wait \$server; code=\$?; cat /tmp/server; (exit \$code)" $((LIMIT + 10)) \
            >"$LAB/server.out"
    fi
}
use() { # COMMAND…: the client, at the other side
    if [ "$ROLE" = ours ]; then theirs "$LIMIT" "$@"; else ours "$LIMIT" "$@"; fi
}

# closed_early PLACE FILE: true if PLACE is soft-iWARP, and its program of perftest has failed with its last Send only,
# which arrived: docs/programs.md says why.
closed_early() {
    [ "$1" = siw ] && grep -qE 'Bad wc status 2' "$2" &&
        grep -q 'Failed to close connection between server and client' "$2"
}

# stops STATUS COMMAND…: true if ib_send_bw has stopped, as it may do with events, and with many queue pairs of
# soft-iWARP: docs/programs.md.
stops() {
    local options="-e"
    [ "$ROLE" = theirs ] || options+="|-q"
    [[ $1 =~ ^(124|137)$ && "${*:2} " =~ ^ib_send_bw\ .*\ ($options)\  ]]
}

# pair SERVER… -- CLIENT…: both must succeed; with $ENDLESS, the server is stopped. Programs of perftest run again if
# they give up because their clock varies, up to twelve times; or because the server does not listen between their first
# connection, which agrees on the test, and the others, up to three times.
pair() {
    local server=() status ended attempt refused=0 places=(siw ours)
    local again='REJECTED|CM event bl blka 8|Connection refused'
    # The kernel's rdma_connect on soft-iWARP fails itself, instead of an event.
    again+='|rdma_connect failed|Failed to connect through RDMA CM'
    while [ "$1" != -- ]; do server+=("$1") && shift; done
    shift
    [ "$ROLE" = ours ] || places=(ours siw)
    for attempt in {1..12}; do
        status=0 ended=0
        serve "${server[@]}"
        use "$@" >"$LAB/client.out" 2>&1 || status=$?
        ! closed_early "${places[0]}" "$LAB/client.out" || status=0
        stop "${ENDLESS:-${status#0}}" || ended=$?
        ! closed_early "${places[1]}" "$LAB/server.out" || ended=0
        [ "$ended" = 0 ] || [ -n "${ENDLESS:-}" ] || [ "$status" != 0 ] || status=1
        [ "$status" != 0 ] || break
        ! grep -q 'Correlation coefficient' "$LAB/client.out" "$LAB/server.out" || continue
        stops "$status" "$@" || grep -qE "$again" "$LAB/client.out" "$LAB/server.out" || break
        [ $((++refused)) -lt 3 ] || break
    done
    [ "$status" = 0 ] || tail -n 40 "$LAB/client.out" "$LAB/server.out"
    return "$status"
}
row() { # NAME COMMAND…: a check, unless the program is not installed
    local name=$1 program=$3
    command -v "$program" >/dev/null || { echo "not installed: $name"; return; }
    check "$name" "${@:2}"
}
perftest() { # PROGRAM OPTIONS…: both ends of a program of perftest, with the same options
    local program=$1 ours=(-d iwarp0) theirs=(-d siw0) server client
    shift
    if [ "$ROLE" = ours ]; then server=("${ours[@]}") client=("${theirs[@]}"); else
        server=("${theirs[@]}") client=("${ours[@]}"); fi
    row "$program $*, $of" pair "$program" -R "${server[@]}" "$@" -- "$program" -R "${client[@]}" "$@" "$SERVER"
}

# A program whose server sends first, which a responder may not do unless the initiator asks for the peer-to-peer model.
peer_to_peer() { # COMMAND…
    guest_run siw 'echo 1 >/sys/module/siw/parameters/peer_to_peer' 10
    "$@"
    guest_run siw 'echo 0 >/sys/module/siw/parameters/peer_to_peer' 10
}

suite_basic() {
    local size
    for size in 64 4096 65535; do
        row "rping, $size bytes, $of" pair rping -s -V -C 20 -S "$size" -- rping -c -a "$SERVER" -V -C 20 -S "$size"
    done
    row "rping over IPv6, $of" pair rping -s -a ::0 -V -C 20 -- rping -c -a "$SERVER6" -V -C 20
    row "rdma_client, $of" pair rdma_server -- rdma_client -s "$SERVER"
    row "rdma_xclient -c r, $of" pair rdma_xserver -c r -- rdma_xclient -c r -s "$SERVER"
    peer_to_peer row "ucmatose, $of" pair ucmatose -- ucmatose -s "$SERVER"
    peer_to_peer row "ucmatose, 10 connections, $of" \
        pair ucmatose -c 10 -C 20 -S 1000 -- ucmatose -s "$SERVER" -c 10 -C 20 -S 1000
    ENDLESS=1 row "cmtime, $of" pair cmtime -- cmtime -s "$SERVER" -c 10
}
suite_writes() {
    perftest ib_write_bw -n 50
    perftest ib_write_bw -n 20 -b
    perftest ib_write_bw -n 20 -s 4096 -q 16
    peer_to_peer perftest ib_write_lat -n 20
}
suite_reads() {
    perftest ib_read_bw -n 50
    perftest ib_read_bw -n 20 -b
    perftest ib_read_bw -n 20 -s 4096 -q 16
    perftest ib_read_bw -n 50 -e
    perftest ib_read_lat -n 20
    perftest ib_read_lat -n 20 -e
}
suite_sends() {
    perftest ib_send_bw -n 50
    perftest ib_send_bw -n 20 -b
    perftest ib_send_bw -n 20 -s 4096 -q 16
    perftest ib_send_bw -n 50 -s 4096 --use-srq
    perftest ib_send_bw -n 1000 -s 4096 -e
    perftest ib_send_lat -n 20
    perftest ib_send_lat -n 20 -e
}
suite_sizes() { # 2 B to 8 MiB
    local program LIMIT=$((3 * LIMIT))
    for program in ib_write ib_read ib_send; do
        perftest ${program}_bw -n 5 -a
        peer_to_peer perftest ${program}_lat -n 5 -a
    done
}

# in_guest FILE: copies a small file to /tmp of the guest.
in_guest() { guest_run siw "echo $(base64 -w0 "$1") | base64 -d >/tmp/${1##*/}" 20; }
job() { # SERVER_OPTIONS CLIENT_OPTIONS: fio on both sides
    printf '[global]\nioengine=rdma\nport=17204\nbs=64k\nsize=2m\n[server]\nrw=read\n%b' "$1" >"$LAB/server.fio"
    printf '[global]\nioengine=rdma\nhostname=%s\nport=17204\nbs=64k\nsize=2m\n%b[client]\nrw=write\n' "$SERVER" "$2" \
        >"$LAB/client.fio"
    if [ "$ROLE" = ours ]; then
        in_guest "$LAB/client.fio" && pair fio "$LAB/server.fio" -- fio /tmp/client.fio
    else
        in_guest "$LAB/server.fio" && pair fio /tmp/server.fio -- fio "$LAB/client.fio"
    fi
}
suite_storage() {
    command -v fio >/dev/null || { echo "not installed: fio"; return; }
    check "fio, write, $of" job "" "verb=write\n"
    check "fio, read, $of" job "" "verb=read\n"
    # A Send without a buffer ends an iWARP connection: the server has one for each of the 32 Sends.
    check "fio, send, $of" job "iodepth=64\n" "verb=send\n"
}

copied() { # a file of 2 MB, through rcopy; the digests of both sides are compared
    local there
    if [ "$ROLE" = ours ]; then
        rm -f "$LAB/copy"
        there=$(guest_run siw 'head -c 2000001 /dev/urandom >/tmp/file; sha256sum </tmp/file' 30)
        ENDLESS=1 pair rcopy -- rcopy /tmp/file "$SERVER:$LAB/copy" && [ "$(sha256sum <"$LAB/copy")" = "$there" ]
    else
        ENDLESS=1 pair rcopy -- rcopy "$LAB/file" "$SERVER:/tmp/copy" &&
            there=$(guest_run siw 'sha256sum </tmp/copy; rm /tmp/copy' 30) && [ "$(sha256sum <"$LAB/file")" = "$there" ]
    fi
}
preloaded() { # PROGRAM: iperf3 of plain sockets, with rdma-core's preload library in the guest
    pair --preload "$1" -4 -s -1 -- env "LD_PRELOAD=$PRELOAD" "$1" -c "$SERVER" -n 2M
}
suite_sockets() {
    local program test
    for program in rstream riostream; do
        for test in b n a; do
            # docs/programs.md says why not.
            [ "$program $test $ROLE" != "rstream a ours" ] || continue
            row "$program -T $test -T v, $of" \
                pair $program -T $test -T v -C 10 -- $program -T $test -T v -C 10 -s "$SERVER"
        done
        row "$program, all sizes, $of" pair $program -S all -C 2 -- $program -S all -C 2 -s "$SERVER"
    done
    row "rcopy, a file of 2 MB, $of" copied rcopy
    # docs/programs.md says why not as a server in the guest.
    [ "$ROLE" = theirs ] || row "iperf3 with --preload, $of" preloaded iperf3
}

suite_agreeing() { # qperf and libfabric
    local args=(fi_pingpong -c -p verbs -e msg -I 3)
    # The other tests need what soft-iWARP does not have: docs/programs.md.
    ENDLESS=1 row "qperf, rc_lat, $of" pair qperf -- qperf -t 1 -cm 1 "$SERVER" rc_lat
    row "fi_pingpong, 0 B to 6 MiB, $of" pair "${args[@]}" -- "${args[@]}" "$SERVER"
}

resources() { ctl -j app list | jq length; }

main() {
    GUEST_IMAGE=$(dataplane/tests/siw/prepare.sh) || exit 1
    lab_open ironwarp-programs-siw
    AT_END+=(guest_stop_all)
    GUEST_NETNS=$NS GUEST_LOGS=$LAB GUEST_INITRD=$LAB/guest.cpio GUEST_MIB=1024
    guest_with_programs "$GUEST_INITRD" "${PROGRAMS[@]}" || exit 1
    write_config
    build_bridge
    kernel_address
    daemon_start "$LAB/iwarpd.toml" || exit 1
    guest_boot siw guest0 52:54:00:78:00:20 $THEIRS/24 fd78::20/64 || exit 1
    echo "guest with $(head -n 1 "$GUEST_IMAGE/versions") up after $((SECONDS - begin)) s"
    head -c 2000001 /dev/urandom >"$LAB/file"
    check "the guest reaches the daemon" guest_run siw "ping -c 3 -w 10 $OURS && ping -6 -c 3 -w 10 fd78::10"
    [ "$FAILED" = 0 ] || { score; exit 1; }
    local loss suite
    for loss in ${SIW_LOSS:-off on}; do
        LIMIT=${SIW_LIMIT:-60}
        [ "$loss" = off ] || { loss_on 100; LIMIT=$((2 * LIMIT)); }
        for ROLE in ${SIW_ROLES:-ours theirs}; do
            case $ROLE in
                ours) SERVER=$OURS SERVER6=fd78::10 of="siw's client" ;;
                theirs) SERVER=$THEIRS SERVER6=fd78::20 of="siw's server" ;;
            esac
            [ "$loss" = off ] || of+=", 1 % loss"
            for suite in $SUITES; do "suite_$suite"; done
        done
        [ "$loss" = off ] || { check "frames were lost" loss_happened; loss_off; }
    done
    check "nothing is left on the daemon" becomes 0 5 resources
    check "the daemon ends well" daemon_stop
    guest_stop_all
    echo "whole run $((SECONDS - begin)) s"
    score
}

main
