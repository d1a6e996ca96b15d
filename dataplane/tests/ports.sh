#!/bin/bash
# Start of the daemon: refused configurations and their messages, ordinary pages, a peer behind a gateway, jumbo frames.
# `make ports`. The tests of each kind of port are in system.sh.
source "$(dirname "$0")/lib.sh"

lab_open ironwarp-ports
.ci/hugepages.sh 320 || true
head -c 10000000 /dev/urandom >"$LAB/file"

# config DRIVER-LINES [REGION-SIZE [MEMORY-LINES [WORKER-LINES]]]
config() {
    cat >"$LAB/config.toml" <<TOML
[memory]
${3:-hugepages = \"prefer\"}
[control]
socket = "$SOCKET"
[workers]
${4:-cores = [0]
idle = \"adaptive\"}
[[port]]
name = "p0"
addresses = ["10.77.0.2/24", "fd77::2/64"]
gateway = "10.77.0.1"
gateway6 = "fd77::1"
$1
[[listener]]
port = 7400
service = "region"
[[region]]
name = "lab"
size = "${2:-16M}"
access = ["remote-read", "remote-write"]
TOML
}
starts() { config "$@" && daemon_start "$LAB/config.toml"; }

put_get() { # HOST, run in the namespace $NS or in $2
    local there=${2:-$NS}
    rm -f "$LAB/got"
    ip netns exec "$there" "$IWARPCTL" remote put "$LAB/file" "$1:7400/lab+1" &&
        ip netns exec "$there" "$IWARPCTL" remote get "$1:7400/lab+1" "$LAB/got" --length 10000000 &&
            cmp "$LAB/file" "$LAB/got"
}
both() { put_get 10.77.0.2 "${1:-}" && put_get '[fd77::2]' "${1:-}"; }

# refuses STATUS PATTERN COMMAND…: the command exits with STATUS and a message that matches PATTERN.
refuses() {
    local want=$1 pattern=$2 got
    shift 2
    timeout 20 "$@" >"$LAB/refused" 2>&1
    got=$?
    cat "$LAB/refused"
    [ "$got" = "$want" ] && grep -qE "$pattern" "$LAB/refused"
}
iwarpd_refuses() { refuses "$1" "$2" ip netns exec "$NS" "$IWARPD" --config "$LAB/config.toml"; }

# --- mistakes
mistaken() {
    config 'driver = "tap"
interface = "iw0"
mtu = 99'
    echo 'flavour = "vanilla"' >>"$LAB/config.toml"
    iwarpd_refuses 2 'mtu' && grep -q 576 "$LAB/refused" && grep -q flavour "$LAB/refused"
}
no_hugepages() { # far more than any machine has reserved
    config 'driver = "tap"
interface = "iw0"' 512G 'hugepages = "require"'
    iwarpd_refuses 1 'hugepages.*are free'
}
no_such_core() {
    config 'driver = "tap"
interface = "iw0"' 16M '' 'cores = [999]'
    iwarpd_refuses 1 'CPU 999'
}
check "two mistakes, both told with their allowed range: exit 2" mistaken
check "no such file: exit 2" refuses 2 'nowhere' "$IWARPD" --config /nowhere.toml
check "too few hugepages: refused, says how many" no_hugepages
check "a core that does not exist: refused" no_such_core
check "--check: says what a configuration takes" "$IWARPD" --config configs/tap.toml --check

# --- ordinary pages, if the configuration allows them
tap='driver = "tap"
interface = "iw0"'
on_ordinary_pages() { # more than the hugepages that are free, with room to spare in ordinary memory
    local free
    free=$(awk '/HugePages_Free/ {print $2 * 2}' /proc/meminfo)
    starts "$tap" "$((free + 64))M" && kernel_side iw0
}
says_degraded() {
    ctl -j status >"$LAB/status"
    [ $? = 6 ] && jq -e '.state == "degraded" and (.degraded | length > 0)' "$LAB/status"
}
check "too few hugepages and \"prefer\": starts" on_ordinary_pages
check "and says degraded: exit 6" says_degraded
check "put and get on ordinary pages" both
check "a second daemon is refused" iwarpd_refuses 1 'in use by process'
check "SIGTERM ends it" daemon_stop

# --- hugepages for a part: packet buffers and each region use the available hugepages, one by one
OBJECT=2368 # bytes from one packet buffer to the next
free_pages() { awk '/HugePages_Free/ {free = $2} /HugePages_Rsvd/ {print free - $2}' /proc/meminfo; }
# on_pages BUFFERS REGION-PAGES: writes configs/tap.toml with this many packet buffers and a region of this many
# hugepages.
on_pages() {
    sed -e "s#^socket *=.*#socket = \"$SOCKET\"#" -e "s/^packet_buffers *=.*/packet_buffers = $1/" \
        -e '/^hugepage_limit/d' -e "0,/^size *=.*/s//size = \"$(($2 * 2))M\"/" configs/tap.toml >"$LAB/config.toml"
    daemon_start "$LAB/config.toml" && kernel_side iw0
}
# lacks [PATTERN]: every message of `status` matches PATTERN, or there is none.
lacks() {
    report | jq -c '{state, degraded}' | tee "$LAB/status"
    if [ $# = 0 ]; then jq -e '.degraded == []' "$LAB/status"; else
        jq -e --arg pattern "$1" '.state == "degraded" and all(.degraded[]; test($pattern)) and .degraded != []' \
            "$LAB/status"
    fi
}
pages_case() { # NAME BUFFERS REGION-PAGES [PATTERN]
    check "$1: starts" on_pages "$2" "$3"
    check "status says so" lacks "${@:4}"
    check "put and get" both
    check "SIGTERM ends it" daemon_stop
}
.ci/hugepages.sh 320 || true
free=$(free_pages)
buffers_of() { echo $(($1 * 2097152 / OBJECT)); } # packet buffers that fill $1 hugepages
pages_case "hugepages for neither buffers nor region" "$(buffers_of $((free + 1)))" $((free + 1)) \
    '^(ordinary pages: packet buffers|region lab: ordinary)'
pages_case "buffers one page short" "$(($(buffers_of "$free") + 1))" 8 '^ordinary pages: packet buffers of port lab'
pages_case "hugepages for the buffers alone" "$(buffers_of $((free - 2)))" 64 \
    '^region (lab|lab-ro|scratch): ordinary pages'
pages_case "the last region one page short" "$(buffers_of 20)" $((free - 20 - 1)) '^region scratch: ordinary pages'
pages_case "just enough" "$(buffers_of 20)" $((free - 20 - 2))

# --- spinning
spinning() { starts "$tap" 16M '' 'cores = [1]
idle = "spin"' && kernel_side iw0; }
never_slept() { sleep 1; ctl -j stats | jq -e '.workers[0] | .sleeps == 0 and .iterations > 100000'; }
check "a spinning worker" spinning
check "put and get" both
check "it never slept" never_slept
check "SIGTERM ends it" daemon_stop

# --- a peer behind the gateway
routed() {
    starts "$tap" && kernel_side iw0 || return 1
    ip netns add "$NS-far"
    in_ns ip link add road type veth peer name road netns "$NS-far"
    local host=1 there
    for there in "$NS" "$NS-far"; do
        ip -n "$there" addr add "10.88.0.$host/24" dev road
        ip -n "$there" addr add "fd88::$host/64" dev road nodad
        ip -n "$there" link set road up
        host=2
    done
    ip -n "$NS-far" route add default via 10.88.0.1
    ip -n "$NS-far" route add default via fd88::1
    in_ns sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
}
check "a peer behind the gateway" routed
check "put and get through it" both "$NS-far"
ip netns del "$NS-far"
check "SIGTERM ends it" daemon_stop

# --- a gateway outside of every subnet, as cloud providers have them
host_address() { # GATEWAY6: the kernel is a gateway with addresses of its own
    config "$tap"
    sed -i -e 's#^addresses.*#addresses = ["10.0.0.5/32", "2001:db8::5/128"]#' \
        -e 's/^gateway = .*/gateway = "172.31.1.1"/' -e "s/^gateway6 = .*/gateway6 = \"$1\"/" "$LAB/config.toml"
    daemon_start "$LAB/config.toml" || return 1
    local address
    for address in 172.31.1.1/32 192.0.2.9/32 2001:db8:ffff::1/128 2001:db8:9::9/128; do
        in_ns ip addr add "$address" dev iw0 nodad 2>/dev/null || in_ns ip addr add "$address" dev iw0 || return 1
    done
    in_ns ip link set iw0 addrgenmode none
    in_ns ip link set iw0 up && in_ns ip -6 addr add fe80::1/64 dev iw0 nodad &&
        in_ns ip route add 10.0.0.5 dev iw0 src 192.0.2.9 && in_ns ip route add 2001:db8::5 dev iw0 src 2001:db8:9::9
}
far_ends() { put_get 10.0.0.5 && put_get '[2001:db8::5]'; }
from_gateway() {
    in_ns ping -c 2 -i 0.2 -I 172.31.1.1 10.0.0.5 && in_ns ping -c 2 -i 0.2 -I 2001:db8:ffff::1 2001:db8::5
}
for gateway6 in 2001:db8:ffff::1 fe80::1; do
    check "10.0.0.5/32 via 172.31.1.1, 2001:db8::5/128 via $gateway6: starts" host_address "$gateway6"
    check "put and get by hosts behind it" far_ends
    check "and pings of the gateway itself" from_gateway
    check "SIGTERM ends it" daemon_stop
done

# Jumbo frames, if the driver supports them; otherwise a refusal that states the range.
mean_length() { ctl -j port list | jq '.[0].rx_bytes / .[0].rx_packets'; }
segments_were_jumbo() { mean_length; [ "$(mean_length | cut -d. -f1)" -gt 4000 ]; }
jumbo_or_refused() { # PORT-LINES, INTERFACE of the kernel's end or nothing
    local max served=0
    if ! starts "$1
mtu = 9000"; then
        iwarpd_refuses 1 'MTU 9000 is out of range: [a-z_]+ does [0-9]+ to [0-9]+' || return 1
        max=$(sed -n 's/.*MTU 9000 is out of range: .* to \([0-9]*\).*/\1/p' "$LAB/refused" | head -n 1)
        echo "the driver ends at MTU $max"
        [ "$max" -ge 1500 ] && [ "$max" -lt 9000 ]
        return
    fi
    [ -z "$2" ] || { kernel_side "$2"; both && segments_were_jumbo; } || served=1
    daemon_stop && return "$served"
}
in_ns ip link del wire0
check "a TAP with MTU 9000: jumbo segments, or refused with its range" jumbo_or_refused "$tap" iw0
veth 9000
check "af_packet with MTU 9000: likewise" jumbo_or_refused 'driver = "af_packet"
interface = "wire0"
mac = "02:49:57:00:00:02"' wire1
check "memif with MTU 9000: starts, or refused with its range" jumbo_or_refused "driver = \"memif\"
id = 0
role = \"server\"
socket = \"$LAB/memif.sock\"" ''
jumbo() { veth 9000 && kernel_side wire1 && starts 'driver = "pcap"
interface = "wire0"
mac = "02:49:57:00:00:02"
mtu = 9000'; }
check "net_pcap on a veth, MTU 9000" jumbo
check "put and get in jumbo frames" both
check "segments were jumbo" segments_were_jumbo
check "SIGTERM ends it" daemon_stop
check "ring" starts 'driver = "ring"'
check "SIGTERM ends it" daemon_stop
check "memif" starts "driver = \"memif\"
id = 0
role = \"server\"
socket = \"$LAB/memif.sock\""
check "its link is down, and status says so: exit 6" says_degraded
check "SIGTERM ends it" daemon_stop
score
