#!/bin/bash
# A port with the kernel's addresses (`addresses = "kernel"`): the only interface of a pod or of a small machine. Both
# stacks serve the same addresses, each its ports. `make shared`.
source "$(dirname "$0")/lib.sh"

lab_open ironwarp-shared
far_open
FAR="$NS-far"
head -c 20000000 /dev/urandom >"$LAB/file"

in_far() { ip netns exec "$FAR" "$@"; }

# config INTERFACE CORES [PORT-LINES [SOCKET]]
config() {
    cat <<TOML
[memory]
hugepages = "prefer"
file_prefix = "shared-$1"
[control]
socket = "${4:-$SOCKET}"
[workers]
cores = [$2]
idle = "adaptive"
[[port]]
driver = "af_packet"
interface = "$1"
addresses = "kernel"
${3:-}
[applications]
socket = "${4:-$SOCKET}.verbs"
[[listener]]
port = 7400
service = "region"
[[region]]
name = "lab"
size = "32M"
access = ["remote-read", "remote-write"]
TOML
}
near() { config near "$@" >"$LAB/near.toml" && daemon_start "$LAB/near.toml"; }

put_get() { # HOST [OFFSET]
    rm -f "$LAB/got"
    in_far "$IWARPCTL" remote put "$LAB/file" "$1:7400/lab+${2:-0}" &&
        in_far "$IWARPCTL" remote get "$1:7400/lab+${2:-0}" "$LAB/got" --length 20000000 &&
        cmp "$LAB/file" "$LAB/got"
}
resets() { ip netns exec "$1" nstat -asz TcpOutRsts | awk '/TcpOutRsts/ { print $2 }'; }
frames() { ctl -j port list | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["rx_packets"])'; }
# binds PORT: a program of the same host gets the port
binds() {
    in_ns python3 -c '
import socket, sys
for family, any in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
    one = socket.socket(family)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    one.bind((any, int(sys.argv[1])))
    one.listen()
' "$1" 2>"$LAB/binds"
}
# listens PID FILE PORT: a program of ours gets the port. Nobody binds it before that: whoever tries has it meanwhile.
listens() { awaits "$1" "$2" hears "$3" && is_taken "$3"; }
is_taken() { ! binds "$1" && grep "Address already in use" "$LAB/binds"; }

# --- both stacks at work
both_addresses() {
    put_get 10.79.0.1 && put_get '[fd79::1]' 1
}
link_local() {
    local address
    becomes "" 5 ip -n "$NS" -6 -o addr show dev near tentative || return
    address=$(ip -n "$NS" -6 -o addr show dev near scope link | awk '{ sub("/.*", "", $4); print $4 }')
    put_get "[$address%far]" 3
}
# The kernel neither resets our connections nor stops to answer for its own.
kernel_lives() {
    local before after
    before=$(resets "$NS")
    put_get 10.79.0.1 && put_get '[fd79::1]' || return
    after=$(resets "$NS")
    [ "$before" = "$after" ] || { echo "the kernel has sent $((after - before)) resets"; return 1; }
    in_far ping -c 2 -W 2 10.79.0.1 | tee "$LAB/ping" && in_far ping -6 -c 2 -W 2 fd79::1 || return
    ! grep DUP "$LAB/ping" || return
    # A port of nobody: the kernel answers, once, as it would without us.
    in_far python3 -c '
import socket
try:
    socket.create_connection(("10.79.0.1", 9), 3)
except ConnectionRefusedError:
    raise SystemExit(0)
raise SystemExit("not refused")' && [ "$(resets "$NS")" = $((after + 1)) ]
}
# A transfer of the kernel's TCP beside ours: both whole, and its frames never reach a worker.
kernel_transfers() {
    local frames
    frames=$(frames)
    spawn "$LAB/sink" in_ns python3 -c '
import hashlib, socket
server = socket.create_server(("10.79.0.1", 5000))
peer, total, sums = server.accept()[0], 0, hashlib.sha256()
while data := peer.recv(1 << 20):
    total += len(data)
    sums.update(data)
print(total, sums.hexdigest())'
    local sink=$PID
    awaits "$sink" "$LAB/sink" hears 5000 || return
    for _ in 1 2 3 4 5; do cat "$LAB/file"; done >"$LAB/all"
    in_far python3 -c '
import socket, sys
peer = socket.create_connection(("10.79.0.1", 5000))
with open(sys.argv[1], "rb") as file:
    peer.sendfile(file)' "$LAB/all" || return
    wait_at_most 20 "$sink" || return
    [ "$(cat "$LAB/sink")" = "100000000 $(digest "$LAB/all")" ] || { cat "$LAB/sink"; return 1; }
    frames=$(($(frames) - frames))
    echo "$frames frames"
    [ "$frames" -lt 100 ] || return
    spawn "$LAB/sink" in_far ping -q -i 0.002 -c 500 10.79.0.1
    sink=$PID
    put_get 10.79.0.1 && wait_at_most 20 "$sink" && cat "$LAB/sink" && grep " 0% packet loss" "$LAB/sink"
}
ours_are_taken() { is_taken 7400 && is_taken 65472 && is_taken 65535 && binds 7401; }
shows() {
    ctl port show p0 | tee "$LAB/show" && grep -E "addresses .*10.79.0.1/24" "$LAB/show" &&
        grep -E "sharing .*kernel.*6[0-9] ports reserved" "$LAB/show"
}

# --- what the daemon says about its interface
found() { # CHECK PATTERN: doctor warns
    ctl -j doctor "$LAB/near.toml" >"$LAB/found"
    jq -re --arg check "$1" '.findings[] | select(.check == $check and .level == "warning")
        | .message + ": " + .remedy' "$LAB/found" | grep "$2"
}
tells_offloads() {
    ctl port show p0 | grep "kernel_side .*tso on.*segments of the interface; receive buffer" || return
    ! found offloads near || return
    in_ns ethtool -K near tso off
    found offloads "ethtool -K near tso on" && ctl port show p0 | grep "kernel_side .*tso off.*segments of the kernel"
    local status=$?
    in_ns ethtool -K near tso on
    return "$status"
}
# BIG TCP: the peer sends frames that no packet socket takes whole. It sends shorter ones again.
tells_long_frames() {
    in_far ip link set far gso_max_size 185000 && in_far ip link set far gso_ipv4_max_size 185000
    put_get '[fd79::1]'
    local status=$?
    in_far ip link set far gso_max_size 65536 && in_far ip link set far gso_ipv4_max_size 65536
    ctl -j port show p0 | jq -c .super_frames
    found frame-length "BIG TCP.*gso_max_size 65536" && [ "$status" = 0 ]
}

# --- programs
RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
by_daemon() { in_ns "$RUN" --daemon --socket "$SOCKET.verbs" "$@"; }
programs() {
    binds 7174 || return
    spawn "$LAB/rping" by_daemon rping -s -p 7174 -C 10 -V
    local server=$PID
    listens "$server" "$LAB/rping" 7174 || return
    in_far "$RUN" --embedded rping -c -a 10.79.0.1 -p 7174 -C 10 -V &&
        wait_at_most 10 "$server" || { cat "$LAB/rping"; return 1; }
    becomes yes 5 eval 'binds 7174 && echo yes'
}
# A program of the kernel has the port: the other gets EADDRINUSE, and nothing of it stays.
taken_by_the_kernel() {
    spawn "$LAB/holder" in_ns python3 -c '
import socket, time
held = socket.create_server(("0.0.0.0", 7175))
time.sleep(30)'
    local holder=$PID
    awaits "$holder" "$LAB/holder" hears 7175 || return
    by_daemon timeout 10 rping -s -p 7175 -C 1 >"$LAB/rping" 2>&1
    local status=$?
    kill "$holder"
    cat "$LAB/rping"
    [ "$status" != 0 ] && [ "$status" != 124 ] && grep -i "in use" "$LAB/rping"
}
# Several ports at once.
many_ports() {
    local port pids=()
    for port in $(seq 7200 7211); do
        spawn "$LAB/rping-$port" by_daemon rping -s -p "$port" -C 1
        pids+=("$PID")
    done
    for port in $(seq 7200 7211); do
        listens "${pids[port - 7200]}" "$LAB/rping-$port" "$port" || return
    done
    for port in $(seq 7200 7211); do
        in_far "$RUN" --embedded rping -c -a 10.79.0.1 -p "$port" -C 1 || return
    done
    wait "${pids[@]}"
}

# --- endings
frees_at_stop() { daemon_stop && binds 7400 && binds 65500; }
frees_at_kill() {
    near "0, 1" || return
    is_taken 7400 || return
    kill -KILL "$DAEMON_PID"
    wait "$DAEMON_PID" 2>/dev/null
    DAEMON_PID=
    binds 7400 && binds 65500
}
refuses_a_taken_port() {
    spawn "$LAB/holder" in_ns python3 -c '
import socket, time
held = socket.create_server(("10.79.0.1", 7400))
time.sleep(30)'
    local holder=$PID status
    awaits "$holder" "$LAB/holder" hears 7400 || return
    config near 0 >"$LAB/near.toml"
    ip netns exec "$NS" timeout 20 "$IWARPD" --config "$LAB/near.toml" >"$LAB/refused" 2>&1
    status=$?
    kill "$holder"
    cat "$LAB/refused"
    [ "$status" = 1 ] && grep "listener 7400" "$LAB/refused" && grep "belongs to another program" "$LAB/refused"
}
refuses_without_addresses() {
    in_ns ip link add bare type veth peer name bare1
    config bare 0 >"$LAB/bare.toml"
    ip netns exec "$NS" timeout 20 "$IWARPD" --config "$LAB/bare.toml" >"$LAB/refused" 2>&1
    local status=$?
    in_ns ip link del bare
    cat "$LAB/refused"
    [ "$status" = 1 ] && grep "no addresses of the kernel on bare" "$LAB/refused"
}
mistakes() {
    config near 0 'mac = "02:00:00:00:00:01"
vlan = 7
gateway = "10.79.0.9"
source_ports = "1000-9000"' >"$LAB/wrong.toml"
    ip netns exec "$NS" "$IWARPD" --config "$LAB/wrong.toml" --check >"$LAB/refused" 2>&1 && return 1
    cat "$LAB/refused"
    for key in mac vlan gateway; do grep -q "has no \`$key\` of its own" "$LAB/refused" || return; done
    grep "too many to reserve" "$LAB/refused" || return
    sed -e 's/driver = "af_packet"/driver = "tap"/' -e 's/interface = "near"/interface = "iw0"/' \
        "$LAB/near.toml" >"$LAB/tap.toml"
    ip netns exec "$NS" "$IWARPD" --config "$LAB/tap.toml" --check >"$LAB/refused" 2>&1 && return 1
    cat "$LAB/refused"
    grep "the driver tap cannot share the kernel's addresses" "$LAB/refused"
}

# --- a pod: its address is a whole prefix, and the router is outside of it
pod() {
    in_ns ip addr flush dev near
    in_ns ip addr add 10.80.0.7/32 dev near
    in_ns ip link set near mtu 1450
    in_ns ip route add 169.254.1.1 dev near scope link
    in_ns ip route add default via 169.254.1.1 dev near
    in_far ip addr add 169.254.1.1/32 dev far
    in_far ip route add 10.80.0.7 dev far
    config near 0 'source_ports = "40000-40015"' | sed 's/^name = "lab"/name = "pod"/' >"$LAB/pod.toml"
    daemon_start "$LAB/pod.toml" || return
    rm -f "$LAB/got"
    in_far "$IWARPCTL" remote put "$LAB/file" 10.80.0.7:7400/pod &&
        in_far "$IWARPCTL" remote get 10.80.0.7:7400/pod "$LAB/got" --length 20000000 && cmp "$LAB/file" "$LAB/got" &&
        ctl -j port show p0 | grep '"mtu": *1450' && is_taken 40000 && is_taken 40015 && binds 40016 && daemon_stop
}
# Two such ports on one wire: our ends on both sides, beside two kernels.
two_daemons() {
    config far 1 "" "$LAB/far.sock" >"$LAB/far.toml"
    ip netns exec "$FAR" "$IWARPD" --config "$LAB/far.toml" >"$LAB/far.log" 2>&1 &
    local other=$! before
    awaits "$other" "$LAB/far.log" grep -q "ready socket" "$LAB/far.log" || return
    before="$(resets "$NS") $(resets "$FAR")"
    spawn "$LAB/rping" by_daemon rping -s -p 7174 -C 1000 -S 4096 -V
    local server=$PID
    listens "$server" "$LAB/rping" 7174 || return
    in_far "$RUN" --daemon --socket "$LAB/far.sock.verbs" \
        rping -c -a 10.79.0.1 -p 7174 -C 1000 -S 4096 -V && wait_at_most 20 "$server"
    local status=$?
    kill "$other"
    wait "$other" 2>/dev/null
    [ "$status" = 0 ] && [ "$before" = "$(resets "$NS") $(resets "$FAR")" ]
}

# The interface returns as another one: the reserved ports are at the former.
returns_as_another() {
    daemon_start "$LAB/pod.toml" || return
    in_ns ip link del near
    becomes gone 5 eval "ctl -j port list | jq -r '.[0].link'" || return
    in_ns ip link add near type veth peer name other
    in_ns ip addr add 10.80.0.7/32 dev near
    in_ns ip link set near mtu 1450 up
    awaits "$DAEMON_PID" "$LAB/iwarpd.log" grep "that it had at the start: restart iwarpd" "$LAB/iwarpd.log" &&
        daemon_stop && daemon_start "$LAB/pod.toml" && daemon_stop
}

near 0 || exit 1
check "a region at both addresses of the kernel" both_addresses
check "at the link-local address" link_local
check "the kernel sends no resets for us, and answers for itself" kernel_lives
check "the kernel's TCP is whole beside ours, and costs no frame of ours" kernel_transfers
check "no other program gets a port of ours" ours_are_taken
check "port show names the sharing" shows
check "port show and doctor name offloads that are off" tells_offloads
check "doctor names frames longer than 64 KiB" tells_long_frames
check "a program's port is reserved while it listens" programs
check "a port that another program has is refused" taken_by_the_kernel
check "twelve programs at once" many_ports
check "the ports are free after the end" frees_at_stop
near "0, 1" && check "two workers: a region at both addresses" both_addresses
check "two workers: two daemons with the kernel's addresses" two_daemons
daemon_stop
check "the ports are free after kill -9" frees_at_kill
check "a listener's port that another program has" refuses_a_taken_port
check "an interface without addresses" refuses_without_addresses
check "mistakes in the configuration" mistakes
check "a pod: /32, a router outside, MTU 1450" pod
check "an interface that returns as another takes a restart" returns_as_another
score
