#!/bin/bash
# Compares Ironwarp with Linux, and Linux (CUBIC) with Linux, over the same impaired path in both directions, each with
# default settings except for large buffers. Prints the table; compare.py applies the pass rule. `make against-linux`.
#
# A lane is a server, a client and the relay between them. Ironwarp's lane and Linux's run at the same time, so that
# other load on the machine affects both alike. RUNS, SECONDS_EACH and GROUPS_WANTED (numbers) are for development.
source "$(dirname "$0")/lib.sh"
source "$(dirname "$0")/lanes.sh"

RUNS=${RUNS:-4}
SECONDS_EACH=${SECONDS_EACH:-8}
GROUPS_WANTED=${GROUPS_WANTED:-1 2 3 4}
RESULTS_KEPT=${RESULTS_KEPT:-}

lab_open ironwarp-linux
ahead_of_others
.ci/hugepages.sh 320 || true
RESULTS="$LAB/results.jsonl"

# The cells: name, connections, MTU, options of the relay. The cells of one group run at the same time, each in its own
# lanes. The round-trip time is 20 ms, but for slow-start, which compares the frames that the queue drops when slow
# start ends (HyStart++).
cells() { # GROUP
    case $1 in
    1) cat <<'CELLS'
loss-0.1%|6|1500|--loss 0.001 --rate-mbit 40 --queue-bytes 200000
loss-1%|8|1500|--loss 0.01 --rate-mbit 40 --queue-bytes 200000
loss-3%|8|1500|--loss 0.03 --rate-mbit 40 --queue-bytes 200000
CELLS
        ;;
    2) cat <<'CELLS'
reorder-2%|4|1500|--reorder 0.02 --reorder-ms 5,10 --rate-mbit 20 --queue-bytes 200000
shallow-25pkt|4|1500|--rate-mbit 30 --queue-bytes 37850
CELLS
        ;;
    3) cat <<'CELLS'
mtu-9000|4|9000|--rate-mbit 50 --queue-bytes 250000 --loss 0.0001 --frame-max 9014
CELLS
        ;;
    4) cat <<'CELLS'
slow-start|1|1500|--delay-ms 50 --rate-mbit 50 --queue-bytes 250000
CELLS
        ;;
    esac
}

port() { # NUMBER MTU: Ironwarp's end of a lane, in the configuration. net_pcap at other MTUs.
    local net=$((80 + $1)) kind
    if [ "$2" = 1500 ]; then
        # The relay reads frames of one packet each, with checksums.
        kind=$'driver = "tap"\noffloads = false'
    else
        in_ns ip link add "dp$1" mtu "$2" type veth peer name "iw$1" mtu "$2"
        in_ns ethtool -K "dp$1" tso off gso off gro off tx off >/dev/null 2>&1
        relayed "dp$1"
        kind="driver = \"pcap\""
    fi
    cat <<TOML
[[port]]
name = "lane$1"
$kind
interface = "$([ "$2" = 1500 ] && echo "iw$1" || echo "dp$1")"
mtu = $2
addresses = ["10.$net.0.2/24", "fd$net::2/64"]
TOML
}

setup() { # GROUP: the lanes of its cells, and the daemon
    local lane=0 mtu
    cat >"$LAB/lanes.toml" <<TOML
[memory]
hugepages = "prefer"
hugepage_limit = "320M"
packet_buffers = 16384
[workers]
cores = [0]
idle = "adaptive"
idle_sleep_us_max = 50
[tcp]
connections_max = 256
send_buffer_bytes = "4M"
[control]
socket = "$SOCKET"
[[listener]]
port = 9
service = "discard"
[[listener]]
port = 19
service = "chargen"
TOML
    while IFS='|' read -r _ _ mtu _; do
        port "$lane" "$mtu" >>"$LAB/lanes.toml"
        host "far$lane" "w$lane" $((80 + lane)) 9 "$mtu"
        host "client$lane" "c$lane" $((80 + lane)) 9 "$mtu"
        host "server$lane" "s$lane" $((80 + lane)) 2 "$mtu"
        ip netns exec "$NS-server$lane" "$LAB_TOOL" serve --congestion cubic >/dev/null &
        lane=$((lane + 1))
    done < <(cells "$1")
    daemon_start "$LAB/lanes.toml" || return 1
    for lane in $(seq 0 $((lane - 1))); do relayed "iw$lane"; done
}
teardown() { # GROUP
    local lane=0 name
    daemon_stop || return 1
    while read -r _; do
        for name in far client server; do
            ip netns pids "$NS-$name$lane" | xargs -r kill
            ip netns del "$NS-$name$lane"
        done
        in_ns ip link del "dp$lane" 2>/dev/null
        lane=$((lane + 1))
    done < <(cells "$1")
}

# measure CELL SIDE LANE CONNECTIONS DIRECTION RUN RELAY-OPTIONS…: measures one transfer and prints one result line.
measure() {
    local cell=$1 side=$2 lane=$3 connections=$4 direction=$5 run=$6 client server there relay wire host out tries
    shift 6
    case $* in *--delay-ms*) ;; *) set -- --delay-ms 10 "$@" ;; esac
    case $side in
    linux) server="s$lane" wire="c$lane" there="$NS-client$lane" ;;
    *) server="iw$lane" wire="w$lane" there="$NS-far$lane" ;;
    esac
    host=$([ $((run % 2)) = 1 ] && echo "10.$((80 + lane)).0.2" || echo "fd$((80 + lane))::2")
    out="$LAB/$side.$lane.relay"
    : >"$out"
    ip netns exec "$NS" "$LAB_TOOL" relay "$server" "$wire" --seed "$run" "$@" >"$out" &
    relay=$!
    for tries in $(seq 100); do grep -q ready "$out" && break; sleep 0.02; done
    ip netns exec "$there" ip tcp_metrics flush >/dev/null 2>&1
    client=$(timeout $((SECONDS_EACH + 20)) ip netns exec "$there" "$LAB_TOOL" transfer "$host" \
        --congestion cubic --direction "$direction" --connections "$connections" \
        --first-port $((40000 + run * 100)) --seconds "$SECONDS_EACH")
    local status=$?
    sleep 0.2
    kill "$relay" && wait "$relay"
    [ "$status" = 0 ] ||
        { echo "$cell, $side, $direction, run $run: the transfer failed (after $tries tries)"; return 1; }
    jq -c --arg cell "$cell" --arg direction "$direction" --arg side "$side" --argjson run "$run" \
        --argjson client "$client" \
        '{cell: $cell, direction: $direction, side: $side, run: $run, each_mbit_s: $client.each_mbit_s, relay: .}' \
        < <(tail -n 1 "$out") >>"$RESULTS"
}

group() { # GROUP: all its cells, both directions, all runs
    local run direction lane cell connections options side jobs job status=0
    setup "$1" || return 1
    for run in $(seq "$RUNS"); do
        for direction in receive send; do
            lane=0 jobs=()
            while IFS='|' read -r cell connections _ options; do
                for side in ironwarp linux; do
                    # shellcheck disable=SC2086 # options are words
                    measure "$cell" "$side" "$lane" "$connections" "$direction" "$run" $options &
                    jobs+=($!)
                done
                lane=$((lane + 1))
            done < <(cells "$1")
            for job in "${jobs[@]}"; do wait "$job" || status=1; done
        done
    done
    ctl -j stats >"$LAB/stats.$1.json"
    teardown "$1" && [ "$status" = 0 ]
}

for number in $GROUPS_WANTED; do
    check "measured: $(cells "$number" | cut -d'|' -f1 | paste -sd' ')" group "$number"
done
[ -z "$RESULTS_KEPT" ] || { mkdir -p "$RESULTS_KEPT" && cp "$RESULTS" "$LAB"/stats.*.json "$RESULTS_KEPT"; }
table() { python3 dataplane/tests/compare.py "$RESULTS" >"$LAB/table"; }
table || true
cat "$LAB/table"
check "Ironwarp delivers at least what Linux does, in every cell" table
score
