#!/usr/bin/env bash
# Tests iwarpd against Linux soft-iWARP: a QEMU guest with siw reads and writes the daemon's regions over a bridge in a
# namespace of its own. `make interop`; needs root. Last line: `N passed, N failed`.
#
#   IWARPD, IWARPCTL   the programs (default: those in BUILT, target/release)
#   SIW_BYTES          how much of the region the bulk cases cover (default: all 64 MiB)
#   SIW_SUITES         the suites to run (default: all of them)
#   SIW_DEVICE_…       the extent of the suite `device`: device.sh
source "$(dirname "$0")/../lib.sh"
source dataplane/tests/dissect.sh
source dataplane/tests/siw/guest.sh
source dataplane/tests/siw/loss.sh
source dataplane/tests/siw/responder.sh
source dataplane/tests/siw/churn.sh
source dataplane/tests/siw/initiator.sh
source dataplane/tests/siw/rping.sh
source dataplane/tests/siw/turns.sh
source dataplane/tests/siw/rtr.sh
source dataplane/tests/siw/device.sh
source dataplane/tests/programs/guest.sh

BYTES=${SIW_BYTES:-67108864}
CRC_ON=7400 CRC_OFF=7401
begin=$SECONDS

write_config() {
    cat >"$LAB/iwarpd.toml" <<TOML
[memory]
hugepages = "prefer"
file_prefix = "$NS"

[[port]]
name = "lab"
driver = "tap"
interface = "iw0"
addresses = ["10.77.0.2/24", "fd77::2/64"]

[workers]
cores = [$(($(nproc) - 1))]
idle = "adaptive"

[tcp]
connections_max = 64
time_wait_ms = 1000

[limits]
neighbors_max = 64
grants_max = 256

[[listener]]
port = $CRC_ON
service = "region"
crc = "on"

[[listener]]
port = $CRC_OFF
service = "region"
crc = "off"

[[region]]
name = "lab"
size = "64M"
access = ["remote-read", "remote-write"]

[[region]]
name = "lab-ro"
size = "1M"
access = ["remote-read"]

[[region]]
name = "lab-wo"
size = "1M"
access = ["remote-write"]

[[region]]
name = "scratch"
size = "1M"
access = ["remote-read", "remote-write", "remote-atomic"]

[[region]]
name = "secret"
size = "1M"
access = ["remote-read", "remote-write"]
token = "open-sesame"

[[region]]
name = "elsewhere"
size = "1M"
access = ["remote-read", "remote-write"]
allow = ["192.0.2.0/24"]

[control]
socket = "$SOCKET"

[applications]
socket = "$LAB/verbs.sock"
queue_pairs_max = 64
user_share = 100
user_memory = "4G"
memory_regions_max = 256
TOML
}

# Connects the daemon's TAP and the guest's by a bridge. The kernel's side of a net_tap port has the port's own address:
# it gets another one, or the bridge would take the daemon's frames for its own.
build_bridge() {
    ip -n "$NS" link add br0 type bridge mcast_snooping 0
    in_ns ip tuntap add guest0 mode tap
    ip -n "$NS" link set guest0 master br0 up
    ip -n "$NS" link set iw0 address 02:00:00:77:00:01
    in_ns sh -c 'for i in iw0 br0; do echo 1 >/proc/sys/net/ipv6/conf/$i/disable_ipv6; done'
    ip -n "$NS" link set iw0 master br0 up
    ip -n "$NS" addr add 10.77.0.1/24 dev br0
    ip -n "$NS" link set br0 up
    # Nothing completes the checksums of what the kernel sends to a veth.
    in_ns ethtool -K br0 tx off >/dev/null 2>&1
}
stop() { # N: a daemon that `start` of daemons.sh has started
    kill -TERM "${DAEMONS[$1]}" && wait "${DAEMONS[$1]}"
    local status=$?
    unset "DAEMONS[$1]"
    return "$status"
}

# A daemon without CRC has a port of its own on the bridge: one end of a veth pair.
build_peer_port() {
    local interface
    in_ns ip link add peer0 type veth peer name peer1
    for interface in peer0 peer1; do
        in_ns ethtool -K $interface tso off gso off gro off tx off rx off >/dev/null 2>&1
        in_ns sh -c "echo 1 >/proc/sys/net/ipv6/conf/$interface/disable_ipv6"
        ip -n "$NS" link set $interface up
    done
    ip -n "$NS" link set peer0 master br0
    write_peer_config
}

write_peer_config() {
    cat >"$LAB/off.toml" <<TOML
[memory]
hugepages = "prefer"
file_prefix = "$NS-off"
packet_buffers = 16384

[[port]]
name = "peer"
driver = "af_packet"
interface = "peer1"
addresses = ["10.77.0.4/24", "fd77::4/64"]

[workers]
cores = [0]
idle = "adaptive"

[tcp]
connections_max = 64
time_wait_ms = 1000

[mpa]
crc = "off"

[limits]
regions_max = 64

[control]
socket = "$LAB/off.control"

[applications]
socket = "$LAB/off.verbs"
queue_pairs_max = 64
user_share = 100
user_memory = "4G"
memory_regions_max = 256
TOML
}

# without_crc COMMAND…: runs it with the daemon without CRC in place of the other, for programs of ours.
without_crc() {
    local SOCKET=$LAB/off.control OUR_VERBS=$LAB/off.verbs OUR_HOST=10.77.0.4
    check "a daemon without CRC" start off
    "$@"
    check "the daemon without CRC ends well" stop off
}

# peer_start OUT COMMAND…: starts a program of ours in the background, with output in OUT and peer.err.
peer_start() {
    local out=$1
    shift
    ip netns exec "$NS" timeout --foreground 200 "$@" >"$out" 2>"$LAB/peer.err" &
    PEER_PID=$! PEER_OUT=$out
}
# peer_says TEXT: waits until its output contains TEXT.
peer_says() {
    for _ in $(seq 300); do
        grep -q "$1" "$PEER_OUT" "$LAB/peer.err" && return 0
        kill -0 "$PEER_PID" 2>/dev/null || break
        sleep 0.1
    done
    cat "$PEER_OUT" "$LAB/peer.err"
    return 1
}
peer_wait() { wait "$PEER_PID"; local code=$?; cat "$PEER_OUT"; [ $code = 0 ] || cat "$LAB/peer.err"; return $code; }
peer_stop() { kill -TERM "$PEER_PID" 2>/dev/null; wait "$PEER_PID"; }

# try NAME COMMAND…: runs a check and prints the first lines of the programs' output after it.
try() {
    local failed=$FAILED
    check "$@"
    [ "$FAILED" != "$failed" ] || sed -n 's/^RESULT /        /p' "$LAB/check.out" | head -n 3
}

# The suites, in the order in which they run.
SUITES=${SIW_SUITES:-responder churn initiator rping turns rtr loss device}

# lossy PERCENT BYTES SEED ROUNDS: runs all kinds of work while frames are lost.
lossy() {
    local title="$1 % loss" BYTES=$2 SIZES="64:$4 16384:10" CRC_TITLE="$1 % loss, CRC on"
    loss_on $((100 / $1))
    bulk $CRC_ON "$3" "$title, CRC on"
    bulk $CRC_OFF $(($3 + 100)) "$title, CRC off"
    turns_both 4 --turns 40 --seed "$3"
    rping_clients "$title"
    rping_server "$title"
    try "$title happened" loss_happened
    loss_off
}
suite_loss() {
    lossy 1 $((BYTES / 4)) 400 100
    lossy 5 $((BYTES / 32)) 600 40
}

main() {
    GUEST_IMAGE=$(dataplane/tests/siw/prepare.sh) || exit 1
    lab_open ironwarp-siw
    # The guest's programs have limits of time, and `make test` runs another suite meanwhile.
    ahead_of_others
    source dataplane/tests/daemons.sh
    GUEST_NETNS=$NS GUEST_LOGS=$LAB
    # The daemon of our programs, and of the regions.
    OUR_VERBS=$LAB/verbs.sock OUR_HOST=10.77.0.2 OUR_HOST6=fd77::2
    if [[ " $SUITES " == *" device "* ]]; then
        GUEST_INITRD=$LAB/guest.cpio
        guest_with_programs "$GUEST_INITRD" "${DEVICE_PROGRAMS[@]}" || exit 1
    fi
    .ci/hugepages.sh 192 || true
    write_config
    "$IWARPCTL" config check "$LAB/iwarpd.toml" >/dev/null || exit 1
    daemon_start "$LAB/iwarpd.toml" || exit 1
    build_bridge
    build_peer_port
    AT_START=$(resources)
    guest_boot siw guest0 52:54:00:77:00:03 10.77.0.3/24 fd77::3/64 || exit 1
    echo "guest with $(head -n 1 "$GUEST_IMAGE/versions") up after $((SECONDS - begin)) s"

    try "IPv4 neighbor" guest_run siw 'ping -c 3 -w 10 10.77.0.2'
    # Every further case would time out.
    [ "$FAILED" = 0 ] || { score; exit 1; }
    try "IPv6 neighbor" guest_run siw 'ping -6 -c 3 -w 10 fd77::2'
    # shellcheck disable=SC2086 # a list
    for suite in $SUITES; do "suite_$suite"; done
    try "still serving" client $CRC_ON --region lab --size 4194304 --ops write,read --seed 900
    try "nothing left behind" at_rest
    try "the daemon ends well" daemon_stop

    [ "$FAILED" = 0 ] || { echo "--- the guest's console" >&2; tail -n 20 "$LAB/siw.console" >&2; }
    echo "whole run $((SECONDS - begin)) s"
    score
}

main
