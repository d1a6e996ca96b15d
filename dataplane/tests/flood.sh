#!/bin/bash
# A SYN flood from random sources, IPv4 and IPv6, while honest clients open, have bytes echoed, and close. The clients
# must be served, the exporter of metrics must answer, and neither memory nor log of the daemon must grow. `make flood`.
source "$(dirname "$0")/lib.sh"

RATE=${RATE:-200000}     # SYNs per second
LENGTH=${LENGTH:-10}     # seconds
CLIENTS=${CLIENTS:-200}  # honest clients started per second
# Time limit of a client: a lost SYN is retransmitted after 1, 3 and 7 seconds. The TAP's queue also loses frames of
# the clients, the more the less time a machine gives the daemon.
LIMIT_MS=${LIMIT_MS:-8000}
SCRAPE_S=${SCRAPE_S:-5}    # time limit of the exporter, which has what CPU time the flood and the workers leave
lab_open ironwarp-flood
METRICS="$LAB/metrics.sock"
ahead_of_others
.ci/hugepages.sh 320 || true
sed -e "s#^socket *=.*#socket = \"$SOCKET\"#" -e 's#^hugepages *=.*#hugepages = "prefer"#' configs/tap.toml \
    >"$LAB/flood.toml"
cat >>"$LAB/flood.toml" <<TOML
[metrics]
listen = "$METRICS"
[log]
level = "info"
format = "json"
TOML
daemon_start "$LAB/flood.toml" || exit 1
kernel_side iw0
# A long queue for frames while the daemon waits for a CPU: the flood must reach the daemon.
in_ns ip link set iw0 txqueuelen 20000

mac() { report | jq -r '.ports[0].mac'; }
flood() { # SECONDS
    in_ns "$LAB_TOOL" flood iw0 --mac "$(mac)" --to 10.77.0.2 --to fd77::2 --ports 7,9,19,7400 --rate "$RATE" \
        --seconds "$1"
}
honest() { # SECONDS
    timeout $(($1 + LIMIT_MS / 1000 + 10)) ip netns exec "$NS" "$LAB_TOOL" honest 10.77.0.2 fd77::2 --rate "$CLIENTS" \
        --seconds "$1" --limit-ms "$LIMIT_MS"
}
# Prints what the daemon holds: KiB resident and in hugepages, packet buffers, connections.
held() {
    local status
    status=$(ctl -j status)
    jq -c --argjson huge "$(awk '$1 == "HugetlbPages:" {print $2}' "/proc/$DAEMON_PID/status")" \
        '{rss: (.rss_bytes / 1024 | floor), huge: $huge, buffers: ([.pools[].in_use] | add),
          connections: (.connections | del(.max))}' <<<"$status"
}
dropped() { in_ns cat /sys/class/net/iw0/statistics/tx_dropped; }
received() { report | jq '.ports[0].rx_packets'; }

# Asks the exporter once. Prints its time in seconds and the frames that it says were received.
scrape() {
    local seconds
    seconds=$(curl -sS --max-time "$SCRAPE_S" --unix-socket "$METRICS" -o "$LAB/metrics" -w '%{time_total}' \
        -H 'Accept: application/openmetrics-text; version=1.0.0' \
        http://localhost/metrics) && [ "$(tail -n 1 "$LAB/metrics")" = '# EOF' ] || { echo failed; return; }
    awk -v seconds="$seconds" '/^iwarp_rx_queue_frames_total/ { frames += $NF }
        END { printf "%s %d\n", seconds, frames }' "$LAB/metrics"
}
ctl monitor >"$LAB/monitor" &
warm_up() { # runs everything once, so that later measurements show growth only
    flood 2 && honest 2 >"$LAB/calm" && cat "$LAB/calm" && jq -e '.succeeded == .clients' "$LAB/calm"
}
flooded() {
    local flooder before_dropped before_received
    held >"$LAB/held"
    log_size >"$LAB/log"
    wc -l <"$LAB/iwarpd.log" >"$LAB/lines"
    scrape >"$LAB/scrapes"
    before_dropped=$(dropped) before_received=$(received)
    flood "$LENGTH" >"$LAB/flood.json" &
    flooder=$!
    honest "$LENGTH" >"$LAB/honest.json" &
    local clients=$!
    while kill -0 "$flooder" 2>/dev/null; do
        sleep 0.5
        held >>"$LAB/held"
        scrape >>"$LAB/scrapes"
    done
    wait "$flooder" || return 1
    wait "$clients" || return 1
    echo $(($(dropped) - before_dropped)) >"$LAB/dropped"
    echo $(($(received) - before_received)) >"$LAB/received"
    log_size >>"$LAB/log"
    wc -l <"$LAB/iwarpd.log" >>"$LAB/lines"
}
# The exporter answered each time, and the numbers were those of the flood.
scraped() {
    cat "$LAB/scrapes"
    awk '$1 == "failed" { failed++ } { if ($1 > slowest) slowest = $1; if (NR > 1 && $2 < last) back++; last = $2 }
        NR == 1 { first = $2 }
        END { print NR " answers, the slowest in " slowest " s"; exit !(NR > 3 && !failed && !back && last > first) }' \
        "$LAB/scrapes"
}
# Lines written, events reported, events lost by the monitor that reads all the time.
log_size() {
    ctl -j stats log events | jq -c '[.groups[] | .group as $g | .counters[] | {("\($g).\(.name)"): .value}] | add
        | {lines: ."log.lines", lost: ."log.lines_lost", reported: ."events.reported",
           monitor: ."events.drop_monitor_slow"}'
}
# Of millions of frames, the log has the bursts of drops by reason: a few dozen lines of JSON, none of them lost.
log_bounded() {
    cat "$LAB/log"
    jq -s -e '.[1].lines - .[0].lines <= 100 and .[1].reported - .[0].reported <= 100 and .[1].lost == 0
        and .[1].monitor == 0' "$LAB/log" >/dev/null || return 1
    local before after
    { read -r before && read -r after; } <"$LAB/lines"
    sed -n "$((before + 1)),${after}p" "$LAB/iwarpd.log" >"$LAB/written"
    echo "$(wc -lc <"$LAB/written") lines and bytes in the file"
    [ "$(wc -l <"$LAB/written")" -le 100 ] && [ "$(wc -c <"$LAB/written")" -le 65536 ] &&
        jq -e '.level != "debug"' "$LAB/written" >/dev/null
}
# Floods at the configured rate. The TAP's queue drops and counts the frames that a busy daemon does not read in time;
# most frames must get through, or the test would measure the queue.
flood_was_one() {
    local offered received
    received=$(cat "$LAB/received")
    offered=$(jq '.sent + .refused' "$LAB/flood.json")
    cat "$LAB/flood.json"
    echo "of $offered SYNs and what the clients sent, iw0 dropped $(cat "$LAB/dropped")," \
        "the daemon received $received"
    [ "$offered" -ge $((RATE * LENGTH * 95 / 100)) ] && [ "$received" -ge $((offered / 2)) ]
}
served() { # 99.9 %
    cat "$LAB/honest.json"
    jq -e '.succeeded >= .clients * 0.999' "$LAB/honest.json"
}
# The flood alone: resident memory grows by no more than the buffers for control replies.
flat() {
    local flooder
    held >"$LAB/alone"
    flood 5 >/dev/null &
    flooder=$!
    while kill -0 "$flooder" 2>/dev/null; do
        sleep 0.5
        held >>"$LAB/alone"
    done
    jq -sc '{at_first: .[0], at_most: {rss: map(.rss) | max, huge: map(.huge) | max}}' "$LAB/alone"
    wait "$flooder" && jq -se '.[0] as $before | all(.[]; .rss <= $before.rss + 256 and .huge == $before.huge)' \
        "$LAB/alone" >/dev/null
}
# With clients: their connections use heap memory within the configured limit, and no more hugepages.
within_plan() {
    local heap
    heap=$("$IWARPCTL" -j config check "$LAB/flood.toml" | jq '.heap_bytes / 1024 | floor')
    jq -sc --argjson heap "$heap" '{heap_planned: $heap, rss: map(.rss) | max, huge: map(.huge) | unique}' "$LAB/held"
    jq -se --argjson heap "$heap" '.[0] as $before | all(.[]; .rss <= $heap and .huge == $before.huge)' "$LAB/held" \
        >/dev/null
}
buffers_bounded() { # the bursts between port and stack, what honest clients have in flight: never a tenth of the pool
    local pool
    pool=$(report | jq '[.pools[].buffers] | add')
    echo "of $pool packet buffers in use: $(jq -s 'map(.buffers) | max' "$LAB/held")"
    [ "$(jq -s 'map(.buffers) | max' "$LAB/held")" -le $((pool / 10)) ]
}
settled() { # no connection is left, and the packet buffers are back
    local start tries now
    start=$(head -n 1 "$LAB/held" | jq .buffers)
    for tries in $(seq 50); do
        now=$(held)
        jq -e --argjson start "$start" '.connections.established == 0 and .connections.closing == 0
            and .buffers <= $start + 64' <<<"$now" >/dev/null && return 0
        sleep 0.2
    done
    echo "after $tries tries: $now"
    return 1
}
check "a little of both, to begin with" warm_up
check "a flood alone: neither resident memory nor hugepages grow" flat
check "$RATE SYNs a second for $LENGTH s, and $CLIENTS honest clients a second" flooded
check "the flood was one, and reached the daemon" flood_was_one
check "at least 99.9 % of the honest clients were served within $LIMIT_MS ms" served
check "memory stayed within what the configuration said" within_plan
check "packet buffers in use stayed few" buffers_bounded
check "the log and a monitor got a few dozen lines of it" log_bounded
check "the exporter of metrics answered all the time, within $SCRAPE_S s" scraped
check "afterwards nothing is left of it" settled
check "and every client is served at once" eval \
    'honest 2 >"$LAB/calm"; cat "$LAB/calm"; jq -e ".succeeded == .clients and .connect_ms.max < 900" "$LAB/calm"'
jq -c '{clients, succeeded, failures, connect_ms}' "$LAB/honest.json"
flood_was_one
ctl drops | head -n 12
check "SIGTERM ends it cleanly" daemon_stop
score
