#!/usr/bin/env bash
# iwarpd against Linux soft-iWARP: a QEMU guest with siw reads and writes the daemon's regions over a bridge
# of a namespace of its own. `make interop`; needs root. Last line: `N passed, N failed`.
#
#   IWARPD, IWARPCTL   the programs (default: target/release)
#   SIW_BYTES          how much of the region the bulk cases cover (default: all 64 MiB)
source "$(dirname "$0")/../lib.sh"
source dataplane/tests/siw/guest.sh

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

[limits]
neighbors_max = 64

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
TOML
}

# The daemon's TAP and the guest's on one bridge. The kernel's side of a net_tap port has the port's own
# address: it gets another, or the bridge would take the daemon's frames for its own.
build_bridge() {
    ip -n "$NS" link add br0 type bridge mcast_snooping 0
    in_ns ip tuntap add guest0 mode tap
    ip -n "$NS" link set guest0 master br0 up
    ip -n "$NS" link set iw0 address 02:00:00:77:00:01
    in_ns sh -c 'for i in iw0 br0; do echo 1 >/proc/sys/net/ipv6/conf/$i/disable_ipv6; done'
    ip -n "$NS" link set iw0 master br0 up
    ip -n "$NS" addr add 10.77.0.1/24 dev br0
    ip -n "$NS" link set br0 up
}

# Every hundredth frame that crosses the bridge is lost, either way, whatever it is.
loss_on() {
    in_ns nft -f - <<'NFT'
table bridge loss {
    counter seen { }
    counter lost { }
    chain forward {
        type filter hook forward priority 0; policy accept;
        counter name seen
        numgen random mod 100 == 0 counter name lost drop
    }
}
NFT
}
loss_off() { in_ns nft delete table bridge loss; }
frames() { in_ns nft list counter bridge loss "$1" | sed -n 's/.*packets \([0-9]*\).*/\1/p'; }
loss_happened() {
    local seen lost
    seen=$(frames seen) lost=$(frames lost)
    echo "RESULT $lost of $seen frames lost"
    [ "$lost" -ge 100 ] && [ $((lost * 50)) -lt "$seen" ] && [ $((lost * 200)) -gt "$seen" ]
}

# try NAME COMMAND…: a check, and the client's own lines behind it.
try() {
    local failed=$FAILED
    check "$@"
    [ "$FAILED" != "$failed" ] || sed -n 's/^RESULT /        /p' "$LAB/check.out"
}

# client PORT OPTIONS
client() {
    local port=$1
    shift
    guest_client siw 150 --timeout 60 --host 10.77.0.2 --port "$port" "$@"
}
reject() {
    local status=$1
    shift
    client $CRC_ON --expect-reject "$status" "$@"
}
not_client() { ! client "$@"; }

# bulk PORT SEED: the whole region on one connection, then four at once, then Writes and Reads mixed.
bulk() {
    local port=$1 seed=$2 title=$3
    try "$title: 1 B to 1 MiB over the region" client "$port" --region lab --size "$BYTES" --ops write,read --seed "$seed"
    try "$title: four queue pairs" \
        client "$port" --region lab --qps 4 --size $((BYTES / 4)) --ops write,read,mix --seed $((seed + 1))
    try "$title: the rest of the region kept its bytes" \
        client "$port" --region lab --access r --start $((BYTES / 4)) --size $((BYTES / 4)) --ops read --seed "$seed"
}

# terminated LAYER/TYPE/CODE… -- PORT OPTIONS: the client is refused, and the guest's kernel has seen one of
# these Terminates for it, and no other. siw takes the nibbles of the first byte the other way round.
terminated() {
    local wanted=() seen code
    while [ "$1" != -- ]; do
        wanted+=("$1")
        shift
    done
    shift
    guest_run siw 'dmesg -c >/dev/null'
    client "$@"
    code=$?
    seen=$(guest_run siw dmesg | sed -n 's/.*got TERMINATE\. layer \([0-9]*\), type \([0-9]*\), code \([0-9]*\).*/\2\/\1\/\3/p')
    echo "Terminate: ${seen:-none}; wanted: ${wanted[*]}"
    [ "$code" = 0 ] && [ -n "$seen" ] && [[ " ${wanted[*]} " == *" $seen "* ]]
}

# crc_is true|false: what the daemon says of its only established connection.
crc_is() {
    local agreed
    agreed=$(ctl -j conn list | jq -c '[.[] | select(.state == "ESTABLISHED" and .rdma) | .rdma.crc]')
    echo "CRC of established connections: $agreed"
    [ "$agreed" = "[$1]" ]
}

# revoke OPERATION PORT CRC TERMINATE: a region is taken away under a connection that holds it.
revoke() {
    local seen
    ctl region register victim --size 1M --access remote-read,remote-write &&
        guest_hold siw --host 10.77.0.2 --port "$2" --region victim --ops "$1" --seed 3 &&
        crc_is "$3" && guest_run siw 'dmesg -c >/dev/null' &&
        ctl region deregister victim --force && guest_release siw || return 1
    seen=$(guest_run siw dmesg | sed -n 's/.*got TERMINATE\. layer \([0-9]*\), type \([0-9]*\), code \([0-9]*\).*/\2\/\1\/\3/p')
    echo "Terminate: ${seen:-none}; wanted: $4"
    [ "$seen" = "$4" ]
}

refusals() {
    local kind
    try "wrong name" reject 1 --region nowhere
    try "wrong token" reject 2 --region secret --token open-sesamE
    try "no token" reject 2 --region secret
    try "right that the region has not" reject 2 --region lab-ro --access rw
    try "another right that the region has not" reject 2 --region lab --access rwa
    try "source that is not admitted" reject 2 --region elsewhere
    for kind in magic short truncated empty-name long-name long-token; do
        try "malformed request: $kind" reject 4 --region lab --malformed "$kind"
    done
    try "a grant is no reject" not_client $CRC_ON --region lab --expect-reject 2
}

violations() {
    local secret=("$CRC_ON" --region secret --token open-sesame) name
    try "fill" client "${secret[@]}" --ops write,read --seed 77
    # RFC 5041 §7.1 and RFC 5040 §4.8: layer, error type, error code.
    for name in past-end at-end far; do
        try "write-$name" terminated 1/1/1 -- "${secret[@]}" --ops "write-$name"
        try "read-$name" terminated 0/1/1 -- "${secret[@]}" --ops "read-$name"
    done
    # A tagged offset below a base of zero wraps.
    try "write-before" terminated 1/1/1 1/1/3 -- "${secret[@]}" --ops write-before
    try "read-before" terminated 0/1/1 0/1/4 -- "${secret[@]}" --ops read-before
    try "write-wrap" terminated 1/1/3 -- "${secret[@]}" --ops write-wrap
    try "read-wrap" terminated 0/1/4 -- "${secret[@]}" --ops read-wrap
    for name in bad-stag bad-key closed-stream; do
        try "$name-write" terminated 1/1/0 -- "${secret[@]}" --ops "$name-write"
        try "$name-read" terminated 0/1/0 -- "${secret[@]}" --ops "$name-read"
    done
    try "other-stream-write" terminated 1/1/2 -- "${secret[@]}" --ops other-stream-write
    try "other-stream-read" terminated 0/1/3 -- "${secret[@]}" --ops other-stream-read
    # DDP has no code for a missing right: it is an invalid STag.
    try "write on a read-only grant" terminated 1/1/0 -- $CRC_ON --region lab-ro --access r --ops forbidden-write
    try "write on a read grant of a writable region" \
        terminated 1/1/0 -- "${secret[@]}" --access r --ops forbidden-write
    try "read on a write-only grant" terminated 0/1/2 -- $CRC_ON --region lab-wo --access w --ops forbidden-read
    try "region unchanged" client "${secret[@]}" --access r --ops read --seed 77
    try "read-only region unchanged" client $CRC_ON --region lab-ro --access r --ops read --seed 0
    try "a wrong byte would be noticed" not_client "${secret[@]}" --access r --ops read --seed 78
    try "an allowed access is no violation" not_client "${secret[@]}" --ops forbidden-read
}

revocations() {
    try "write after deregistration, CRC on" revoke hold-write $CRC_ON true 1/1/0
    try "read after deregistration, CRC off" revoke hold-read $CRC_OFF false 0/1/0
    try "the region's name is gone" reject 1 --region victim
}

# `iwarpctl remote`, over the kernel's TCP, against a region that the guest's siw serves.
initiator() {
    local size=3000001
    guest_run siw "mkfifo /tmp/in; iwserver --listen 10.77.0.3 --port 7400 --region theirs:4194304:rw <>/tmp/in >/tmp/out 2>&1 &"
    try "siw serves" guest_run siw 'for i in $(seq 50); do grep -q LISTENING /tmp/out && break; sleep 0.1; done; cat /tmp/out; grep -q LISTENING /tmp/out'
    head -c $size /dev/urandom >"$LAB/file"
    try "iwarpctl puts" remote put "$LAB/file" 10.77.0.3:7400/theirs+5
    try "iwarpctl gets" remote get 10.77.0.3:7400/theirs+5 "$LAB/got" --length $size
    try "the same bytes" cmp "$LAB/file" "$LAB/got"
}

no_connection_left() {
    local left
    for _ in $(seq 50); do
        left=$(ctl -j status | jq .connections.established)
        [ "$left" = 0 ] && return 0
        sleep 0.2
    done
    echo "still established: $left"
    return 1
}

main() {
    GUEST_IMAGE=$(dataplane/tests/siw/prepare.sh) || exit 1
    lab_open ironwarp-siw
    GUEST_NETNS=$NS GUEST_LOGS=$LAB
    .ci/hugepages.sh 192 || true
    write_config
    "$IWARPCTL" config check "$LAB/iwarpd.toml" >/dev/null || exit 1
    daemon_start "$LAB/iwarpd.toml" || exit 1
    build_bridge
    guest_boot siw guest0 52:54:00:77:00:03 10.77.0.3/24 fd77::3/64 || exit 1
    echo "guest with $(head -n 1 "$GUEST_IMAGE/versions") up after $((SECONDS - begin)) s"

    try "IPv4 neighbour" guest_run siw 'ping -c 3 -w 10 10.77.0.2'
    # Every other case would run into its timeout.
    [ "$FAILED" = 0 ] || { score; exit 1; }
    try "IPv6 neighbour" guest_run siw 'ping -6 -c 3 -w 10 fd77::2'
    bulk $CRC_ON 100 "CRC on"
    bulk $CRC_OFF 200 "CRC off"
    try "IPv6" client $CRC_ON --host fd77::2 --region scratch --access rwa --ops write,read,mix --seed 300
    try "write-only grant" client $CRC_ON --region lab-wo --access w --ops write --seed 301
    refusals
    violations
    revocations
    initiator
    loss_on
    bulk $CRC_ON 400 "1 % loss, CRC on"
    bulk $CRC_OFF 500 "1 % loss, CRC off"
    try "the loss happened" loss_happened
    loss_off
    try "still serving" client $CRC_ON --region lab --size 4194304 --ops write,read --seed 600
    try "no connection left behind" no_connection_left
    try "the daemon ends well" daemon_stop

    [ "$FAILED" = 0 ] || { echo "--- the guest's console" >&2; tail -n 20 "$LAB/siw.console" >&2; }
    echo "whole run $((SECONDS - begin)) s"
    score
}

main
