#!/bin/bash
# The system suite of the ring driver. A ring port has no peer outside its daemon: one daemon has two, wired to each
# other, and programs on one of them exchange data with programs and regions on the other. Each frame crosses a ring.
# `make drivers`.
source "$(dirname "$0")/lib.sh"

EXCHANGE=${EXCHANGE:-${WATCH%/*}/exchange}
lab_open ironwarp-rings
echo "--- ring"

# configure MTU CORES: writes the configuration of the daemon.
configure() {
    local n
    cat >"$LAB/rings.toml" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 32768
[workers]
cores = [$2]
idle = "adaptive"
[tcp]
connections_max = 2048
[[listener]]
port = 7400
service = "region"
[[region]]
name = "shared"
size = "4M"
access = ["remote-read", "remote-write"]
[[region]]
name = "read-only"
size = "4M"
access = ["remote-read"]
[control]
socket = "$SOCKET"
[applications]
socket = "$LAB/verbs"
mode = "0666"
queue_pairs_max = 1024
memory_regions_max = 1024
user_queue_pairs_max = 1024
user_share = 100
user_memory = "2G"
TOML
    for n in 0 1; do
        cat >>"$LAB/rings.toml" <<TOML
[[port]]
name = "ring$n"
driver = "ring"
mtu = $1
addresses = ["10.79.0.1$n/24", "fd79::1$n/64"]
TOML
    done
}

# program PORT OPTIONS…: runs a program on the port ring0 or ring1.
program() {
    local port=$1
    shift
    in_ns timeout 60 "$EXCHANGE" --socket "$LAB/verbs" --device "ring$port" "$@"
}
# exchange OPTIONS…: a server on ring0 and a client on ring1, at ADDRESS.
exchange() {
    local server status
    spawn "$LAB/server.out" program 0 --listen "$ADDRESS" "$@"
    server=$PID
    prints '^listening' "$LAB/server.out" || return
    program 1 --connect "$ADDRESS" "$@"
    status=$?
    [ "$status" = 0 ] || kill "$server" 2>/dev/null
    wait "$server" || status=$?
    cat "$LAB/server.out"
    return "$status"
}
with_region() { program 1 --connect "${ADDRESS%:*}:7400" --region shared "$@"; }
refused() { ! program 1 --connect "${ADDRESS%:*}:7400" --region "$1" --size 1000; }
links_up() { ctl -j port list | jq -c '[.[] | [.driver, .link]]'; }
# crossed FRAMES: each end has received what the other has sent, at least so many frames.
crossed() {
    ctl -j port stats | jq --argjson least "$1" '[.[].counters | [.rx_good_packets, .tx_good_packets]] |
        .[0] == (.[1] | reverse) and .[0][0] >= $least and .[0][1] >= $least'
}
starts() { daemon_start "$LAB/rings.toml" && becomes '[["ring","up"],["ring","up"]]' 5 links_up; }

for round in "1500 0" "1280 0, 1" "9000 0"; do
    mtu=${round%% *} cores=${round#* }
    configure "$mtu" "$cores"
    check "a daemon with two rings, MTU $mtu, workers on $cores" starts
    for ADDRESS in 10.79.0.10:7500 '[fd79::10]:7500'; do
        for size in 16 1000 65537 4194304; do
            check "one connection, $size bytes, $ADDRESS, MTU $mtu" exchange --size "$size"
        done
        check "memory of the programs, $ADDRESS, MTU $mtu" exchange --own --size 1000000
        check "put and get of a region, $ADDRESS, MTU $mtu" with_region --size 4194304
        check "no such region: refused, $ADDRESS, MTU $mtu" refused nowhere
        check "read-only region: refused, $ADDRESS, MTU $mtu" refused read-only
    done
    ADDRESS=10.79.0.10:7500
    check "100 connections, MTU $mtu" exchange --connections 100 --size 20000
    check "no connection is left, MTU $mtu" becomes 0 10 eval "ctl -j conn list | jq length"
    check "every frame crossed a ring, MTU $mtu" becomes true 5 crossed 1000
    check "SIGTERM ends it cleanly" daemon_stop
done
score
