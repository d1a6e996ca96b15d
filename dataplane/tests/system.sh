#!/bin/bash
# system.sh [DRIVER…]: tests iwarpd against the kernel's TCP, over ports of these drivers (tap if none is named), each
# in a namespace of its own: the test services, RDMA by `iwarpctl remote`, paths that lose or reorder, hostile input,
# other MTUs, two workers. `make tap` and `make drivers`.
#
#   tap                     iwarpd ── iw0, the kernel's end of the TAP
#   af_packet af_xdp pcap   iwarpd ── wire0 ═ veth ═ wire1, the kernel's end
#   memif                   iwarpd ── shared memory ── bridge ── iw0, the kernel's end of the bridge's TAP
#
# rings.sh is the suite of the driver ring, whose ports have no peer outside their daemon.
if [ $# -gt 1 ]; then
    failed=""
    for driver in "$@"; do "$0" "$driver" || failed="$failed $driver"; done
    [ -z "$failed" ] || echo "failed on:$failed" >&2
    [ -z "$failed" ]
    exit
fi
DRIVER=${1:-tap}
source "$(dirname "$0")/lib.sh"

case $DRIVER in
    tap) KERNEL=iw0 PORT='interface = "iw0"' BIG=256 MTUS="1280" ;;
    af_packet) AS_FOUND=1 KERNEL=wire1 PORT='interface = "wire0"' BIG=64 MTUS="1280 9000" ;;
    af_xdp) KERNEL=wire1 PORT='interface = "wire0"' BIG=64 MTUS="1280 3400" ;;
    pcap) KERNEL=wire1 PORT='interface = "wire0"' BIG=64 MTUS="1280 9000" ;;
    memif) KERNEL=iw0 PORT='' BIG=64 MTUS="" ;;
    *) echo "$0: no suite for the driver $DRIVER: tap, af_packet, af_xdp, pcap or memif" >&2; exit 2 ;;
esac
BRIDGE=${BRIDGE:-${BUILT:-target/release}/examples/bridge}
# Differs from the address of the kernel's interface, whose stack must not accept our frames.
[ "$KERNEL" = iw0 ] || PORT="$PORT\\nmac = \"02:49:57:00:00:02\""

lab_open "ironwarp-$DRIVER"
[ "$DRIVER" != memif ] || PORT="id = 0\\nrole = \"server\"\\nsocket = \"$LAB/memif.sock\""
.ci/hugepages.sh 320 || true
sed -e "s#^socket *=.*#socket = \"$SOCKET\"#" -e 's#^hugepages *=.*#hugepages = "prefer"#' \
    -e "s#^driver *=.*#driver = \"$DRIVER\"#" -e "s#^interface *=.*#$PORT#" configs/tap.toml >"$LAB/lab.toml"

# start CONFIG [MTU]: starts the daemon and, behind its port, the kernel with its addresses.
start() {
    [ "$KERNEL" != wire1 ] || veth "${2:-1500}" || return 1
    daemon_start "$1" || return 1
    if [ "$DRIVER" = memif ]; then
        spawn "$LAB/bridge.out" ip netns exec "$NS" "$BRIDGE" "$LAB/memif.sock" "$KERNEL"
        BRIDGE_PID=$PID
        prints ready "$LAB/bridge.out" || return 1
    fi
    kernel_side "$KERNEL"
    becomes up 5 eval "ctl -j port list | jq -r '.[0].link'"
}
stop() {
    local status=0
    daemon_stop || status=$?
    [ "$DRIVER" != memif ] || { kill "$BRIDGE_PID"; wait "$BRIDGE_PID" 2>/dev/null; }
    return "$status"
}
start "$LAB/lab.toml" || exit 1
echo "--- $DRIVER"

head -c 10000000 /dev/urandom >"$LAB/10M"
head -c 67108864 /dev/urandom >"$LAB/64M"

counter() {
    ctl -j stats | jq "[.groups[] | select(.group == \"$1\") | .counters[] | select(.name == \"$2\") | .value] | add"
}
resets() {
    ctl -j stats | jq -e '[.groups[] | select(.group == "tcp") | .counters[]
        | select(.name == "resets_out" or .name == "resets_received") | .value]
        | if length == 2 then add else error("no such counters") end'
}

echo_round_trip() { # HOST
    in_ns timeout 60 nc -N "$1" 7 <"$LAB/10M" >"$LAB/echoed" && cmp "$LAB/10M" "$LAB/echoed"
}

chargen_pattern() { # HOST: RFC 864's rotating lines
    in_ns timeout 20 nc -d "$1" 19 2>/dev/null | head -c 7030000 >"$LAB/chars"
    python3 - "$LAB/chars" <<'PYTHON'
import sys
text = open(sys.argv[1], "rb").read()
ring = bytes(range(32, 127)) * 2
want = b"".join(ring[k % 95:k % 95 + 72] + b"\r\n" for k in range(len(text) // 74 + 1))
sys.exit(0 if len(text) == 7030000 and text == want[:len(text)] else 1)
PYTHON
}

discard_all() { # HOST
    local before after
    before=$(counter services discard_bytes)
    in_ns timeout 60 nc -N "$1" 9 <"$LAB/64M" || return 1
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        after=$(counter services discard_bytes)
        [ $((after - before)) = 67108864 ] && return 0
        sleep 0.2
    done
    echo "discarded $((after - before)) bytes"
    return 1
}

# The daemon sends one line with the time of day in the format of RFC 867, within two seconds of ours. It closes first:
# the client has nothing to wait for, and the daemon keeps the TIME-WAIT state.
daytime_line() { # HOST
    local line before after
    before=$(report | jq .connections.time_wait)
    line=$(in_ns timeout 5 nc -d "$1" 13) || return 1
    echo "$line"
    [[ "$line" =~ ^[A-Z][a-z]+day,\ [A-Z][a-z]+\ [0-9]+,\ [0-9]{4}\ [0-9:]{8}-UTC$'\r'$ ]] || return 1
    after=$(($(date +%s) - $(date -u -d "$(tr -d '\r' <<<"${line%-UTC*} UTC")" +%s)))
    [ "${after#-}" -le 2 ] || { echo "$after s off"; return 1; }
    becomes $((before + 1)) 2 eval "report | jq .connections.time_wait"
}

# Closes one of six idle connections to two services, then those of one service; the others stay.
conn_close() { # HOST
    local pids=() port ids closed
    for port in 7 7 7 9 9 9; do
        in_ns timeout 60 nc -d "$1" "$port" >/dev/null & pids+=($!)
    done
    becomes 6 2 eval "ctl -j conn list | jq length" || return 1
    ids=$(ctl -j conn list | jq '[.[] | select(.service == "echo") | .id] | first')
    closed=$(ctl -j conn close "$ids" | jq -c '[.count, .closed[0].id, .closed[0].service]')
    [ "$closed" = "[1,$ids,\"echo\"]" ] || { echo "$closed"; return 1; }
    exits_with 4 ctl conn close "$ids" || return 1
    [ "$(ctl -j conn close --listener 9 | jq .count)" = 3 ] && exits_with 4 ctl conn close --listener 9 || return 1
    [ "$(ctl -j conn list | jq -c '[.[].service]')" = '["echo","echo"]' ] || return 1
    exits_with 4 ctl conn close --peer 192.0.2.0/24 && exits_with 4 ctl conn close --peer 2001:db8::/64 || return 1
    closed=$(ctl -j conn close --peer 10.77.0.0/24 | jq .count || true)
    closed+=$(ctl -j conn close --peer fd77::/64 | jq .count || true)
    [ "$closed" = 2 ] || return 1
    wait "${pids[@]}"
    becomes 0 2 eval "ctl -j conn list | jq length"
}

refused() { # HOST: the connection to a closed port is refused at once
    ! in_ns nc -z -w 2 "$1" 4444
}

put_get() { # HOST FILE REGION [options]
    local host=$1 file=$2 region=$3 size
    shift 3
    size=$(stat -c %s "$file")
    rm -f "$LAB/got"
    remote put "$file" "$host:7400/$region" "$@" && remote get "$host:7400/$region" "$LAB/got" --length "$size" "$@" &&
        cmp "$file" "$LAB/got"
}

mapped_is() { # REGION FILE: the local mapping holds the file's bytes
    [ "$("$WATCH" --socket "$SOCKET" --digest "$1" --length "$(stat -c %s "$2")")" = "$(digest "$2")" ]
}

# The examples in C and in Python map a region, wait for a write of a peer, and print what it wrote.
wait_for_write() { # HOST: 12345 bytes at an odd offset
    local programs=("$LAB/wait" clients/verbs/examples/wait.py) pids=() k status=0
    cc -std=gnu11 -O2 -Wall -Wextra -Werror -o "$LAB/wait" clients/verbs/examples/wait.c || return 1
    # The last byte of what is there now is another one.
    head -c 12345 "$LAB/64M" >"$LAB/new"
    head -c 12344 /dev/zero >"$LAB/old"
    tail -c 1 "$LAB/new" | python3 -c \
        'import sys; sys.stdout.buffer.write(bytes([sys.stdin.buffer.read()[0] ^ 255]))' >>"$LAB/old"
    remote put "$LAB/old" "$1:7400/lab+4097" || return 1
    for k in 0 1; do
        # The child opens the file. The line of an earlier program would let the put come before this one has mapped the
        # region: it would take the new bytes for the old ones, and wait for ever.
        : >"$LAB/wait.$k.log"
        IWARPCTL_SOCKET=$SOCKET timeout 60 "${programs[k]}" lab 4097 12345 >"$LAB/wait.$k" 2>"$LAB/wait.$k.log" &
        pids+=($!)
        becomes 1 20 grep -c mapped "$LAB/wait.$k.log" || status=1
    done
    remote put "$LAB/new" "$1:7400/lab+4097" || status=1
    for k in 0 1; do
        wait "${pids[k]}" || { echo "${programs[k]}: exit status $?"; status=1; }
        cmp "$LAB/new" "$LAB/wait.$k" || status=1
    done
    [ "$status" = 0 ] || { cat "$LAB"/wait.?.log; ctl status; ctl drops; ctl conn list; }
    return "$status"
}

exits_with() { # STATUS COMMAND…
    local want=$1 got
    shift
    "$@"
    got=$?
    [ "$got" = "$want" ] || { echo "exit status $got, not $want"; return 1; }
}

many_at_once() { # PORT N: N connections, each echoing its own bytes
    local pids=() k
    for k in $(seq "$2"); do
        (head -c 20000 "$LAB/64M" | tail -c $((10000 + k)) >"$LAB/in.$k" &&
            in_ns timeout 60 nc -N 10.77.0.2 "$1" <"$LAB/in.$k" >"$LAB/out.$k" && cmp "$LAB/in.$k" "$LAB/out.$k") &
        pids+=($!)
    done
    for k in "${pids[@]}"; do wait "$k" || return 1; done
}

for host in 10.77.0.2 fd77::2; do
    check "ping $host" in_ns ping -c 3 -i 0.2 -W 2 "$host"
    full=$([ "$host" = fd77::2 ] && echo 1452 || echo 1472)
    check "ping $host, full size" in_ns ping -c 3 -i 0.2 -W 2 -M "do" -s "$full" "$host"
    check "echo, 10 MB, $host" echo_round_trip "$host"
    check "discard, 64 MiB, $host" discard_all "$host"
    check "chargen, 7 MB, $host" chargen_pattern "$host"
    check "daytime, $host" daytime_line "$host"
    check "conn close, $host" conn_close "$host"
    check "no listener: refused, $host" refused "$host"
done
check "20 echo connections at once" many_at_once 7 20
check "put and get 64 MiB, IPv4" put_get 10.77.0.2 "$LAB/64M" lab
# bulk: 64 MiB each way pass in frames of many segments. The kernel copies each byte once, in the call that moves its
# frame, and we copy each received one once.
bulk() {
    case $DRIVER in tap | af_packet) ;; *) return 0 ;; esac
    local counters='.super_frames as $of | [$of.rx_frames, $of.rx_segments, $of.tx_frames, $of.tx_segments,
        .port.rx_bytes + .port.tx_bytes] | join(" ")'
    local before copied
    before=$(ctl -j port show lab | jq -r "$counters") copied=$(counter mpa bytes_copied)
    put_get 10.77.0.2 "$LAB/64M" lab && sleep 0.1 || return
    echo "$before" "$(ctl -j port show lab | jq -r "$counters")" $(($(counter mpa bytes_copied) - copied)) |
        awk '{ rx = ($7 - $2) / ($6 - $1); tx = ($9 - $4) / ($8 - $3); calls = ($10 - $5) / 2 ^ 27; ours = $11 / 2 ^ 26
            printf "segments per super-frame: %.1f in, %.1f out; ", rx, tx
            printf "bytes in system calls %.3f, copied by us %.3f\n", calls, ours
            exit !(rx > 20 && tx > 20 && calls > 1 && calls < 1.08 && ours > 0.99 && ours < 1.01) }'
}
check "bulk in frames of many segments, copied once by the kernel and once by us" bulk
check "a local program sees the bytes" mapped_is lab "$LAB/64M"
check "programs in C and Python wait for a write, IPv4" wait_for_write 10.77.0.2
check "programs in C and Python wait for a write, IPv6" wait_for_write '[fd77::2]'
check "put and get 10 MB, IPv6" put_get '[fd77::2]' "$LAB/10M" lab
check "put and get at an odd offset" put_get 10.77.0.2 "$LAB/10M" lab+4097
check "put and get, CRC off asked, MPA 1" put_get 10.77.0.2 "$LAB/10M" lab --crc off --mpa-revision 1
check "no such region: exit 4" exits_with 4 remote put "$LAB/10M" 10.77.0.2:7400/nowhere
check "read-only region: exit 5" exits_with 5 remote put "$LAB/10M" 10.77.0.2:7400/lab-ro
check "beyond the end: exit 1" exits_with 1 remote get 10.77.0.2:7400/lab+67108800 "$LAB/got" --length 128
check "remote ping" remote ping 10.77.0.2:7400/lab -c 100

# --- a region of its own: token, prefix, deregistration
printf 'open sesame' >"$LAB/token"
printf 'wrong' >"$LAB/wrong"
check "register with a token" ctl region register vault --size 1M --access remote-read,remote-write \
    --token-file "$LAB/token"
check "registered twice: exit 1" exits_with 1 ctl region register vault --size 1M --access remote-read
check "no token: exit 5" exits_with 5 remote get 10.77.0.2:7400/vault "$LAB/got" --length 16
check "wrong token: exit 5" exits_with 5 remote get 10.77.0.2:7400/vault "$LAB/got" --length 16 \
    --token-file "$LAB/wrong"
check "right token" remote get 10.77.0.2:7400/vault "$LAB/got" --length 16 --token-file "$LAB/token"
check "register for one prefix" ctl region register far --size 1M --access remote-read --allow 192.0.2.0/24
check "from elsewhere: exit 5" exits_with 5 remote get 10.77.0.2:7400/far "$LAB/got" --length 16
check "deregister" ctl region deregister vault
check "deregistered: exit 4" exits_with 4 remote get 10.77.0.2:7400/vault "$LAB/got" --length 16 \
    --token-file "$LAB/token"
check "deregister twice: exit 4" exits_with 4 ctl region deregister vault

# --- hostile input: refused, counted, and the next honest peer is served
refusals() { ctl -j drops | jq '[.[].count] | add'; }
hostile_mpa() {
    local before k
    before=$(refusals)
    for k in 1 2 3 4 5 6 7 8; do
        head -c $((k * 97)) /dev/urandom | in_ns timeout 5 nc -N -w 2 10.77.0.2 7400 >/dev/null
    done
    becomes true 2 eval "[ \$(refusals) -ge $((before + 8)) ] && echo true" ||
        { echo "refusals counted: $before, then $(refusals)"; return 1; }
}
hostile_control() {
    head -c 200000 /dev/zero | tr '\0' 'x' | timeout 5 nc -NU -w 2 "$SOCKET" >/dev/null
    printf '{"jsonrpc":"2.0","id":1,"method":"status","params":17}\n{{{\n\377\376\n' | timeout 5 nc -NU -w 2 "$SOCKET"
    serves
}
check "garbage instead of an MPA request" hostile_mpa
check "garbage on the control socket" hostile_control
check "garbage frames" in_ns python3 dataplane/tests/garbage.py "$KERNEL" 20000
check "served after all that" put_get 10.77.0.2 "$LAB/10M" lab

# --- 1 % of the packets lost in each direction, by nftables on the TAP
lossy_on() {
    [ -z "${AS_FOUND:-}" ] || frame_by_frame wire0 wire1
    in_ns nft -f - <<NFT
table netdev lossy {
    counter from_daemon { }
    counter to_daemon { }
    chain in {
        type filter hook ingress device "$KERNEL" priority 0
        numgen random mod 100 == 0 counter name from_daemon drop
    }
    chain out {
        type filter hook egress device "$KERNEL" priority 0
        numgen random mod 100 == 0 counter name to_daemon drop
    }
}
NFT
}
lost() { in_ns nft -j list counters table netdev lossy |
    jq '[.nftables[].counter? | select(. != null) | .packets] | add'; }
put_get_lossy() {
    local before
    before=$(resets) || return 1
    put_get 10.77.0.2 "$LAB/BIG" big || return 1
    echo "$(lost) packets lost; resets before and after: $before $(resets)"
    [ "$(lost)" -gt 100 ] && [ "$(resets)" = "$before" ]
}
head -c $((BIG << 20)) /dev/urandom >"$LAB/BIG"
check "a region of $BIG MiB" ctl region register big --size "${BIG}M" --access remote-read,remote-write
check "put and get $BIG MiB" put_get 10.77.0.2 "$LAB/BIG" big
check "lose 1 % in each direction" lossy_on
check "put and get $BIG MiB with 1 % loss, no reset" put_get_lossy
check "echo with 1 % loss" echo_round_trip 10.77.0.2
check "stop losing" in_ns nft delete table netdev lossy

# --- reordering: a relay between the kernel's end and a second host behind a veth
bad_wire() { # options of impair.py; the host `far` (10.77.0.9) is behind it
    ip netns add "$NS-far"
    in_ns ip link add wire type veth peer name far0 netns "$NS-far"
    in_ns ip addr flush dev "$KERNEL"
    frame_by_frame "$KERNEL" wire
    for interface in "$KERNEL" wire; do
        in_ns sysctl -qw "net.ipv6.conf.$interface.disable_ipv6=1"
        in_ns ip link set "$interface" up promisc on
    done
    ip netns exec "$NS-far" ethtool -K far0 tso off gso off gro off tx off >/dev/null 2>&1
    ip -n "$NS-far" addr add 10.77.0.9/24 dev far0
    ip -n "$NS-far" link set far0 up
    spawn "$LAB/impair.json" ip netns exec "$NS" python3 dataplane/tests/impair.py "$KERNEL" wire "$@"
    IMPAIR_PID=$PID
    prints ready "$LAB/impair.json"
}
bad_wire_off() {
    kill "$IMPAIR_PID" && wait "$IMPAIR_PID"
    ip netns del "$NS-far"
    in_ns ip link del wire 2>/dev/null
    tail -n 1 "$LAB/impair.json"
    tail -n 1 "$LAB/impair.json" | jq -e "$1"
}
# Connections that end early. A segment that arrives after the end of its connection (a duplicate or a reordered one) is
# answered by a reset (RFC 9293 §3.10.7.1), so the resets sent are not counted on these links.
cut_short() { echo $(($(counter tcp aborted) + $(counter tcp resets_received) + $(counter tcp timed_out))); }
put_get_far() { # FILE REGION
    local before
    before=$(cut_short) || return 1
    rm -f "$LAB/got"
    ip netns exec "$NS-far" "$IWARPCTL" remote put "$1" "10.77.0.2:7400/$2" &&
        ip netns exec "$NS-far" "$IWARPCTL" remote get "10.77.0.2:7400/$2" "$LAB/got" --length "$(stat -c %s "$1")" &&
        cmp "$1" "$LAB/got" || return 1
    echo "cut short before and after: $before $(cut_short)"
    [ "$(cut_short)" = "$before" ]
}
# The relay reads frames of one packet each, with checksums; so far0 and, on other drivers, the interface are set.
frames_are_packets() {
    [ "$DRIVER" = tap ] || return 0
    sed 's/^driver = .*/&\noffloads = false/' "$LAB/lab.toml" >"$LAB/packets.toml"
    stop && start "$LAB/packets.toml" || return 1
    ctl region register big --size "${BIG}M" --access remote-read,remote-write
}
check "frames are packets" frames_are_packets
check "a wire that reorders 2 %" bad_wire --reorder 0.02 --reorder-ms 2 --delay-ms 0.2
check "put and get $BIG MiB with reordering, no connection cut short" put_get_far "$LAB/BIG" big
check "frames were reordered" bad_wire_off '.reordered > 1000'
check "a wire that loses, reorders, duplicates and damages" bad_wire --loss 0.005 --reorder 0.01 --duplicate 0.01 \
    --corrupt 0.002 --delay-ms 0.5 --seed 7
check "put and get 64 MiB over it, no connection cut short" put_get_far "$LAB/64M" big
check "all of it happened" bad_wire_off '.lost > 50 and .reordered > 50 and .duplicated > 50 and .corrupted > 20'

# --- no buffer was lost unnoticed: a buffer that the kernel refuses once is refused always
nothing_refused() {
    [ "$DRIVER" = af_xdp ] || return 0
    ctl -j port stats | jq -ce '.[0].counters | [.xdp_tx_invalid_descs, .xdp_rx_invalid_descs] | ., . == [0, 0]'
}
check "the port refused no frame" nothing_refused
check "SIGTERM ends it cleanly" stop

# --- other MTUs
for mtu in $MTUS; do
    sed -e "s/^driver *=.*/&\\nmtu = $mtu/" -e 's/^packet_buffers *=.*/packet_buffers = 16384/' "$LAB/lab.toml" \
        >"$LAB/mtu.toml"
    check "MTU $mtu" start "$LAB/mtu.toml" "$mtu"
    for host in 10.77.0.2 fd77::2; do
        headers=$([ "$host" = fd77::2 ] && echo 48 || echo 28)
        check "ping $host, full size" in_ns ping -c 3 -i 0.2 -W 2 -M "do" -s $((mtu - headers)) "$host"
    done
    check "put and get 10 MB, IPv4" put_get 10.77.0.2 "$LAB/10M" lab
    check "put and get 10 MB, IPv6" put_get '[fd77::2]' "$LAB/10M" lab
    check "the port refused no frame" nothing_refused
    check "SIGTERM ends it cleanly" stop
done

# --- two workers on one port: the kernel spreads its queues as it likes, the mesh puts every flow right
two_workers() {
    sed 's/^cores *=.*/cores = [0, 1]/' "$LAB/lab.toml" >"$LAB/two.toml"
    start "$LAB/two.toml"
}
# Each worker served connections: each of the 20 sends three packets at least. If the port has one queue, all packets
# leave through the first worker, and frames for the second are steered to it.
both_serve() {
    local sent steered queues
    sent=$(report | jq -c '[.workers[].tx_packets]')
    steered=$(counter steering steered)
    queues=$(ctl -j port list | jq '.[0].rx_queues')
    echo "packets sent by worker: $sent; steered: $steered; queues: $queues"
    if [ "$queues" = 1 ]; then [ "$steered" -ge 12 ]; else jq -e 'length == 2 and min >= 12' <<<"$sent"; fi
}
check "two workers" two_workers
check "20 echo connections at once, two workers" many_at_once 7 20
check "put and get 64 MiB, two workers" put_get 10.77.0.2 "$LAB/64M" lab
check "put and get 10 MB, IPv6, two workers" put_get '[fd77::2]' "$LAB/10M" lab
check "both workers served" both_serve
check "SIGTERM ends them cleanly" stop
score
