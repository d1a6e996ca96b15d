#!/bin/bash
# Incast: 64 connections send to one receiver through a port with a queue of 256 KiB, with ECN marks and without. The
# senders are iwarpd's chargen, or Linux's TCP; the receiver is Linux's TCP on both lanes. Prints a table: goodput as a
# share of the link, timeouts, retransmitted segments, and the slowest connection's goodput over the fastest one's.
# `make incast`.
#
# The path is that of tcp-stack/tests/netsim/incast.rs, slower: a bandwidth-delay product of 25 kB, marks from 100 kB.
# RATE_MBIT must be one that the relay keeps; SECONDS_EACH and CONTROLS are for development.
source "$(dirname "$0")/lib.sh"
source "$(dirname "$0")/lanes.sh"

RATE_MBIT=${RATE_MBIT:-200}
SECONDS_EACH=${SECONDS_EACH:-4}
CONTROLS=${CONTROLS:-dctcp cubic newreno bbr}
RESULTS_KEPT=${RESULTS_KEPT:-}
SENDERS=64
QUEUE_BYTES=262144
MARK_BYTES=100000
# Least goodput that is no collapse, as a share of the link, without marks.
COLLAPSE=0.8

lab_open ironwarp-incast
ahead_of_others
.ci/hugepages.sh 128 || true
RESULTS="$LAB/results.jsonl"
: >"$RESULTS"

configure() { # CONGESTION: of iwarpd
    cat >"$LAB/incast.toml" <<TOML
[memory]
hugepages = "prefer"
hugepage_limit = "128M"
packet_buffers = 16384
[workers]
cores = [0]
idle = "adaptive"
idle_sleep_us_max = 50
[tcp]
connections_max = 256
congestion = "$1"
[control]
socket = "$SOCKET"
[[port]]
name = "incast"
driver = "tap"
offloads = false
interface = "iw0"
addresses = ["10.80.0.2/24", "fd80::2/64"]
[[listener]]
port = 19
service = "chargen"
backlog = 128
TOML
}

# counters SIDE: prints the timeouts and the retransmitted segments of the senders since their start.
counters() {
    case $1 in
    ironwarp)
        sleep 0.1
        ctl -j stats tcp | jq -r '[.groups[].counters[]] | map(select(.name == "timeouts").value) as $timeouts
            | map(select(.name == "retransmits").value) as $again | "\($timeouts | add) \($again | add)"'
        ;;
    linux)
        ip netns exec "$NS-server0" nstat -asz TcpExtTCPTimeouts TcpRetransSegs |
            awk '$1 == "TcpExtTCPTimeouts" {timeouts = $2} $1 == "TcpRetransSegs" {again = $2}
                END {print timeouts, again}'
        ;;
    esac
}

# measure SIDE CONGESTION MARKS: measures one cell, and adds its line to the results. Marked cells run over IPv6.
measure() {
    local side=$1 congestion=$2 marks=$3 server=iw0 wire=w0 there="$NS-far0" host=10.80.0.2 payload=1448 options=()
    local relay before client status after
    [ "$side" = ironwarp ] || { server=s0 wire=c0 there="$NS-client0"; }
    if [ "$marks" = on ]; then
        host=fd80::2 payload=1428 options=(--mark-bytes "$MARK_BYTES")
    fi
    # The client asks for ECN, and both servers accept it.
    ip netns exec "$there" sysctl -qw net.ipv4.tcp_ecn="$([ "$marks" = on ] && echo 1 || echo 0)"
    ip netns exec "$there" ip tcp_metrics flush >/dev/null 2>&1
    : >"$LAB/relay"
    ip netns exec "$NS" "$LAB_TOOL" relay "$server" "$wire" --shared --rate-mbit "$RATE_MBIT" \
        --delay-ms "$(jq -n "100 / $RATE_MBIT")" --queue-bytes "$QUEUE_BYTES" "${options[@]}" >"$LAB/relay" &
    relay=$!
    prints ready "$LAB/relay" || return 1
    before=$(counters "$side")
    client=$(timeout $((SECONDS_EACH + 20)) ip netns exec "$there" "$LAB_TOOL" transfer "$host" --direction receive \
        --connections "$SENDERS" --seconds "$SECONDS_EACH")
    status=$?
    after=$(counters "$side")
    kill "$relay" && wait "$relay"
    [ "$status" = 0 ] || return 1
    jq -nc --arg side "$side" --arg congestion "$congestion" --arg marks "$marks" --arg before "$before" \
        --arg after "$after" --argjson client "$client" --argjson relay "$(tail -n 1 "$LAB/relay")" \
        --argjson full "$RATE_MBIT" --argjson payload "$payload" '
        ($before | split(" ") | map(tonumber)) as [$timeouts, $again]
        | ($after | split(" ") | map(tonumber)) as [$timeouts_after, $again_after]
        | ($client.each_mbit_s | sort) as $each
        | {side: $side, congestion: $congestion, marks: $marks, share: ($client.mbit_s / ($full * $payload / 1514)),
            timeouts: ($timeouts_after - $timeouts), retransmits: ($again_after - $again),
            fairness: ($each[0] / $each[-1]), dropped: $relay.a_to_b.dropped, marked: $relay.a_to_b.marked,
            late_ms_max: $relay.a_to_b.late_ms_max, missed: $relay.a_to_b.missed, refused: $relay.a_to_b.refused}' \
        >>"$RESULTS"
}
ironwarp() { # CONGESTION: with marks and without
    configure "$1"
    daemon_start "$LAB/incast.toml" || return 1
    relayed iw0
    measure ironwarp "$1" on && measure ironwarp "$1" off
    local status=$?
    daemon_stop && [ "$status" = 0 ]
}
linux() { # CONGESTION
    spawn "$LAB/serve" ip netns exec "$NS-server0" "$LAB_TOOL" serve --congestion "$1"
    local server=$PID status
    prints ready "$LAB/serve" && measure linux "$1" on && measure linux "$1" off
    status=$?
    kill "$server" && wait "$server"
    return "$status"
}

host far0 w0 80 9 1500
host client0 c0 80 9 1500
host server0 s0 80 2 1500
for control in $CONTROLS; do
    check "measured: $control" ironwarp "$control"
    kernel=${control/newreno/reno}
    if in_ns sysctl -n net.ipv4.tcp_available_congestion_control | grep -qw "$kernel" || modprobe -q "tcp_$kernel"; then
        check "measured: Linux, $kernel" linux "$kernel"
    else
        echo "skip  this kernel has no tcp_$kernel"
    fi
done

[ -z "$RESULTS_KEPT" ] || cp "$RESULTS" "$RESULTS_KEPT"
echo "$RATE_MBIT Mbit/s, $SENDERS senders, $SECONDS_EACH s each; load $(cut -d' ' -f1-3 /proc/loadavg)"
jq -r '"\(.side) \(.congestion) \(.marks) \(.share) \(.timeouts) \(.retransmits) \(.fairness) \(.dropped)
    \(.marked) \(.late_ms_max)" | gsub("\\s+"; " ")' "$RESULTS" | awk '
    BEGIN {print "senders  control marks share timeouts retransmits min/max dropped marked late-ms"}
    {printf "%-8s %-7s %-5s %5.3f %8d %11d %7.2f %7d %6d %7.1f\n", $1, $2, $3, $4, $5, $6, $7, $8, $9, $10}'
# holds CONTROL MARKS CONDITION: the condition is true of our cell, which was measured.
holds() {
    jq -se --arg congestion "$1" --arg marks "$2" "map(select(.side == \"ironwarp\" and .congestion == \$congestion
        and .marks == \$marks)) | length > 0 and all(.[]; $3)" "$RESULTS"
}
# A relay that delivers later than a full queue would is a slower link: such a cell decides nothing.
kept() {
    ! jq -c --argjson late "$(jq -n "$QUEUE_BYTES * 8 / 1e3 / $RATE_MBIT")" \
        'select(.missed + .refused > 0 or .late_ms_max > $late)' "$RESULTS" | grep .
}
check "the relay kept the rate: no frame lost but by its queue, none later than a full queue's time" kept
for control in $CONTROLS; do
    case $control in
    dctcp) check "DCTCP with marks: no timeouts, at least 90 % of the link" \
        holds dctcp on '.timeouts == 0 and .share >= 0.9' ;;
    cubic) for marks in on off; do
        check "CUBIC, marks $marks: no collapse, at least $COLLAPSE of the link" \
            holds cubic "$marks" ".share >= $COLLAPSE"
    done ;;
    esac
done
score
