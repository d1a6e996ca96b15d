#!/usr/bin/env bash
# Measures READ of iwarp-nfsd (RFC 5532 §4): rate, and CPU time of the server and of the client per GiB, over RDMA with
# direct placement, over RDMA with a copy by the client, and over the kernel's TCP. `make nfs-figures`; needs root. The
# server's processes run on one core, the client's on the other; the file is in the server's page cache.
#
#   READER             the client (default: examples/reader in BUILT, target/release)
#   FIGURES_REPEAT     measurements of each row, whose medians count (default 5)
#   FIGURES_SECONDS    seconds of each (default 3)
#   REPORT             a file for the rows of `iwarp-bench programs`
#   FIGURES_SIZES      bytes of a READ (default 65536 262144 1048576)
#
# It prints a table in Markdown. CPU time is that of proc(5), which charges softirq work to whoever runs.
source "$(dirname "$0")/../../../dataplane/tests/lib.sh"

NFSD=${NFSD:-${IWARPD%/*}/iwarp-nfsd}
READER=${READER:-${BUILT:-target/release}/examples/reader}
REPEAT=${FIGURES_REPEAT:-5}
LENGTH_S=${FIGURES_SECONDS:-3}
SIZES=${FIGURES_SIZES:-65536 262144 1048576}
NFSD_PID=

lab_open ironwarp-nf
source dataplane/tests/daemons.sh
nfsd_end() { [ -z "$NFSD_PID" ] || kill "$NFSD_PID" 2>/dev/null; }
AT_END+=(nfsd_end)

daemon_config() { # NAME CORE PORT-KEYS…
    local name=$1 core=$2
    shift 2
    cat >"$LAB/$name.toml" <<TOML
[memory]
hugepages = "prefer"
file_prefix = "$NS-$name"
[[port]]
name = "wire"
$(printf '%s\n' "$@")
[workers]
cores = [$core]
idle = "adaptive"
[control]
socket = "$LAB/$name.control"
[applications]
socket = "$LAB/$name.verbs"
TOML
}

# wire KIND: starts both daemons with a wire between them.
wire() {
    local server=('addresses = ["10.78.0.2/24"]') client=('addresses = ["10.78.0.1/24"]')
    case $1 in
        veth)
            server+=('driver = "af_packet"' 'interface = "wire0"')
            client+=('driver = "af_packet"' 'interface = "wire1"')
            ;;
        memif)
            local memif=('driver = "memif"' 'id = 0' "socket = \"$LAB/memif\"")
            server+=("${memif[@]}" 'role = "server"' 'mac = "02:00:00:78:00:02"')
            client+=("${memif[@]}" 'role = "client"' 'mac = "02:00:00:78:00:01"')
            ;;
    esac
    daemon_config server 0 "${server[@]}" && daemon_config client 1 "${client[@]}"
    start server && start client && nfsd_start
}
unwire() {
    kill "$NFSD_PID" && wait "$NFSD_PID" 2>/dev/null
    NFSD_PID=
    local name
    for name in server client; do
        kill "${DAEMONS[$name]}" && wait "${DAEMONS[$name]}" 2>/dev/null
        unset "DAEMONS[$name]"
    done
}

# The kernel's TCP has a veth of its own, between the namespaces.
tcp_wire() {
    ip netns add "$NS-far"
    in_ns ip link add tcp0 type veth peer name tcp1 netns "$NS-far"
    in_ns ip addr add 10.79.0.2/24 dev tcp0 && in_ns ip link set tcp0 up
    ip -n "$NS-far" addr add 10.79.0.1/24 dev tcp1 && ip -n "$NS-far" link set tcp1 up
}
offloads() { # on|off
    in_ns ethtool -K tcp0 tso "$1" gso "$1" gro "$1" tx "$1" rx "$1" >/dev/null 2>&1
    ip netns exec "$NS-far" ethtool -K tcp1 tso "$1" gso "$1" gro "$1" tx "$1" rx "$1" >/dev/null 2>&1
}

nfsd_start() {
    mkdir -p "$LAB/state" "$LAB/data"
    cat >"$LAB/nfsd.toml" <<TOML
[rdma]
listen = "10.78.0.2:20049"
socket = "$LAB/server.verbs"
[tcp]
listen = "10.79.0.2:20050"
[nfs]
transfer = "1M"
[state]
directory = "$LAB/state"
[control]
socket = "$LAB/nfsd.sock"
[[export]]
path = "/data"
directory = "$LAB/data"
insecure = true
[[export.client]]
prefix = "10.0.0.0/8"
TOML
    : >"$LAB/nfsd.log"
    # The job is iwarp-nfsd itself: both programs before it become the next one.
    ip netns exec "$NS" taskset -c 0 "$NFSD" --config "$LAB/nfsd.toml" >"$LAB/nfsd.log" 2>&1 &
    NFSD_PID=$!
    prints 'serving at' "$LAB/nfsd.log"
}

reader() { # BY SIZE: one measurement, as JSON
    local processes=(--server "$NFSD_PID")
    # Over TCP, the daemons are no part of it.
    [ "$1" = tcp ] || processes+=(--server "${DAEMONS[server]}" --client "${DAEMONS[client]}")
    ip netns exec "$NS-far" taskset -c 1 "$READER" --tcp 10.79.0.2:20050 --rdma 10.78.0.2:20049 \
        --socket "$LAB/client.verbs" --path /data --file big --same-as "$LAB/data/big" --by "$1" --size "$2" \
        --seconds "$LENGTH_S" "${processes[@]}"
}

median() { jq -s "map(.$1) | sort | .[length / 2 | floor] * 100 | round / 100"; } # KEY
row() { # NAME BY SIZE
    local n
    : >"$LAB/runs"
    for n in $(seq "$REPEAT"); do
        reader "$2" "$3" >>"$LAB/runs" || { echo "figures.sh: $1: no measurement" >&2; exit 1; }
    done
    printf '| %s | %d KiB | %s | %s | %s |\n' "$1" $(($3 / 1024)) "$(median mb_per_s <"$LAB/runs")" \
        "$(median server_cpu_s_per_gib <"$LAB/runs")" "$(median client_cpu_s_per_gib <"$LAB/runs")"
    for n in mb_per_s server_cpu_s_per_gib client_cpu_s_per_gib; do
        jq ".$n" "$LAB/runs" >"$LAB/values" && reports "NFS READ" "$1" "$3" "$n" "$LAB/values"
    done
}

main() {
    local size
    tcp_wire
    veth
    mkdir -p "$LAB/data"
    head -c $((64 << 20)) /dev/urandom >"$LAB/data/big"
    echo "load: $(cut -d' ' -f1-3 /proc/loadavg); $REPEAT measurements of $LENGTH_S s each"
    echo "| | READ | MB/s | server, s/GiB | client, s/GiB |"
    echo "|---|---|---|---|---|"
    wire veth || exit 1
    for size in $SIZES; do
        row "RDMA, direct placement; veth" write-chunk $size
        row "RDMA, copied by the client; veth" reply-chunk $size
        offloads off
        row "kernel TCP; veth without offloads" tcp $size
        offloads on
        row "kernel TCP; veth with all offloads" tcp $size
    done
    unwire
    wire memif || exit 1
    for size in $SIZES; do
        row "RDMA, direct placement; memif" write-chunk $size
        row "RDMA, copied by the client; memif" reply-chunk $size
    done
    unwire
    echo "load: $(cut -d' ' -f1-3 /proc/loadavg)"
}

main
