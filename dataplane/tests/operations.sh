#!/bin/bash
# Operations of a running daemon: metrics over HTTP and in DPDK's telemetry; live views; events in the log and in
# monitors; capture.
# `make operations`.
source "$(dirname "$0")/lib.sh"

lab_open ironwarp-ops
METRICS="$LAB/metrics.sock"
MONITORING=configs/monitoring
EXCHANGE=${EXCHANGE:-${WATCH%/*}/exchange}
VERBS="$LAB/verbs.sock"

config() { # METRICS-LINES
    cat >"$LAB/config.toml" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 8192
file_prefix = "$NS"
[control]
socket = "$SOCKET"
[workers]
cores = [0]
idle = "adaptive"
idle_sleep_us_max = 1000
[[port]]
name = "p0"
driver = "tap"
interface = "iw0"
addresses = ["10.77.0.2/24", "fd77::2/64"]
[[listener]]
port = 7400
service = "region"
[[region]]
name = "lab"
size = "4M"
access = ["remote-read", "remote-write"]
$1
TOML
}
serving() { config "${1-}" && daemon_start "$LAB/config.toml" && kernel_side iw0; }

# --- metrics
scrape() { curl -sS --max-time 10 --unix-socket "$METRICS" http://localhost/metrics; }
sum_of() { # METRIC: the sum of its samples in the last scrape
    awk -v name="$1" '{id = $1; sub(/\{.*/, "", id)} id == name {sum += $NF} END {printf "%d\n", sum}' "$LAB/metrics"
}
typed() { # a client that names OpenMetrics gets it, with the end that it prescribes; others the text format
    curl -sS -D "$LAB/head" --unix-socket "$METRICS" -o "$LAB/metrics" \
        -H 'Accept: application/openmetrics-text; version=1.0.0' http://localhost/metrics &&
        grep -i '^content-type: application/openmetrics-text; version=1.0.0' "$LAB/head" &&
        [ "$(tail -n 1 "$LAB/metrics")" = '# EOF' ] || return 1
    curl -sS -D "$LAB/head" --unix-socket "$METRICS" -o "$LAB/metrics" http://localhost/metrics &&
        grep -i '^content-type: text/plain; version=0.0.4' "$LAB/head" && ! grep -q '^# EOF' "$LAB/metrics"
}
every_counter_is_exported() { # with its help
    scrape >"$LAB/metrics" && ctl -j stats >"$LAB/stats" || return 1
    jq -r '.groups[] | .group as $g | .counters[] | "iwarp_\($g)_\(.name) \(.help)"' "$LAB/stats" |
        sed 's/\\/\\\\/g; s/^\([a-z0-9_]*\)_ns /\1_seconds /' | sort >"$LAB/wanted"
    sed -n 's/^# HELP //p' "$LAB/metrics" | sed 's/^\([a-z0-9_]*\)_total /\1 /' | sort >"$LAB/exported"
    [ "$(wc -l <"$LAB/wanted")" -gt 200 ] && [ -z "$(comm -23 "$LAB/wanted" "$LAB/exported")" ] && return
    comm -23 "$LAB/wanted" "$LAB/exported" | head
    return 1
}
examples_work() { # the examples in the help of `stats` name groups that exist
    "$IWARPCTL" stats --help | sed -n 's/^ *iwarpctl \(stats .*\)/\1/p' | grep -v -e --watch >"$LAB/examples"
    grep -q '^stats [a-z]' "$LAB/examples" || return 1
    local example
    while read -ra example; do ctl "${example[@]}" >/dev/null || return 1; done <"$LAB/examples"
}
values_move() {
    head -c 1000000 /dev/urandom >"$LAB/file"
    scrape >"$LAB/metrics"
    local before after
    before=$(sum_of iwarp_rdmap_payload_bytes_placed_total)
    remote put "$LAB/file" 10.77.0.2:7400/lab && sleep 0.3 && scrape >"$LAB/metrics" || return 1
    after=$(sum_of iwarp_rdmap_payload_bytes_placed_total)
    echo "$before $after"
    [ $((after - before)) = 1000000 ] && [ "$(sum_of iwarp_port_link_up)" = 1 ]
}
timed() { # every handshake is in the histogram, in one bucket
    local before
    scrape >"$LAB/metrics"
    before=$(sum_of iwarp_verbs_handshake_seconds_count)
    [ "$before" -gt 0 ] && [ "$before" = "$(sum_of iwarp_mpa_accepts_out_total)" ] || return 1
    remote put "$LAB/file" 10.77.0.2:7400/lab && remote ping '[fd77::2]:7400/lab' --count 1 || return 1
    becomes $((before + 2)) 5 handshakes && scrape >"$LAB/metrics" || return 1
    grep -o '^iwarp_verbs_handshake_seconds_bucket{le="+Inf".* [0-9]*$' "$LAB/metrics" | awk '{print $NF}' >"$LAB/all"
    [ "$(cat "$LAB/all")" = $((before + 2)) ] &&
        awk '/^iwarp_verbs_handshake_seconds_sum/ {sum += $NF} END {exit !(sum > 0 && sum < 60)}' "$LAB/metrics"
}
handshakes() { scrape | awk '/^iwarp_verbs_handshake_seconds_count/ {sum += $NF} END {print sum + 0}'; }
examples_name_what_exists() { # dashboard and alert rules use only metrics that the daemon exports
    scrape | sed -n 's/^\(iwarp_[a-z0-9_]*\).*/\1/p' | sort -u >"$LAB/exported"
    jq -e '.panels | length > 5' "$MONITORING/grafana.json" || return 1
    grep -ohE 'iwarp_[a-z0-9_]+[a-z0-9]' "$MONITORING"/* | grep -v '^iwarp_frame_drops$' | sort -u >"$LAB/used"
    comm -23 "$LAB/used" "$LAB/exported" >"$LAB/unknown"
    cat "$LAB/unknown"
    [ "$(wc -l <"$LAB/used")" -gt 20 ] && [ ! -s "$LAB/unknown" ]
}
rules_are_valid() { promtool check rules "$MONITORING/alerts.yml"; }
metrics_are_clean() { scrape | promtool check metrics; }
telemetry() { # COMMAND…: the replies of DPDK's telemetry, one on a line
    python3 - "/var/run/dpdk/$NS/dpdk_telemetry.v2" "$@" <<'PYTHON'
import socket, sys
it = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
it.connect(sys.argv[1])
it.recv(1024)
for command in sys.argv[2:]:
    it.send(command.encode())
    print(it.recv(16384).decode())
PYTHON
}
telemetry_agrees() { # within its age of one second
    scrape >"$LAB/metrics" && sleep 1.2
    telemetry /iwarp/groups /iwarp/stats,rdmap /iwarp/stats,no_such_group >"$LAB/telemetry"
    jq -s -e --argjson placed "$(sum_of iwarp_rdmap_payload_bytes_placed_total)" '
        (.[0]."/iwarp/groups" | index("tcp") and index("port")) and
        .[1]."/iwarp/stats".payload_bytes_placed == $placed and
        .[2]."/iwarp/stats" == null' "$LAB/telemetry"
}
mode_is() { [ "$(stat -c %a "$METRICS")" = "$1" ]; }

check "a daemon that serves metrics on a Unix socket" serving "[metrics]
listen = \"$METRICS\"
mode = \"0600\""
check "the socket has the configured mode" mode_is 600
check "a scrape has the format that its client names" typed
check "every counter of \`iwarpctl stats\` is exported with its help" every_counter_is_exported
check "the examples of \`iwarpctl stats --help\` work" examples_work
check "a put of 1,000,000 bytes is seen" values_move
check "handshakes are timed, each once" timed
check "the dashboard and the alert rules use what is exported" examples_name_what_exists
if command -v promtool >/dev/null; then
    check "promtool accepts the alert rules" rules_are_valid
    check "promtool has no remark on the metrics" metrics_are_clean
fi
check "DPDK's telemetry has the same numbers" telemetry_agrees
# --- live views
PING=
pinging() { # a connection with traffic, until `ping_stop`
    ip netns exec "$NS" "$IWARPCTL" remote ping 10.77.0.2:7400/lab --count 1000000000 >/dev/null 2>&1 &
    PING=$!
    becomes 1 20 open_conns
}
open_conns() { ctl -j conn list | jq '[.[] | select(.rdma.region == "lab")] | length'; }
ping_stop() {
    kill "$PING"
    wait "$PING" 2>/dev/null
    becomes 0 20 open_conns
}
selected() { # OPTIONS…: lines of `conn list` that meet them
    ctl conn list --oneline "$@" | wc -l
}
conditions() { # of `conn list`, each of which the connection meets or does not
    [ "$(selected --state established --peer 10.77.0.0/24 --region lab)" = 1 ] && [ "$(selected --app 1)" = 0 ] &&
        [ "$(selected --peer fd77::/64)" = 0 ] && [ "$(selected --region nothing)" = 0 ] &&
        [ "$(selected --state syn-sent,closing)" = 0 ] && ctl conn list --oneline | grep -q ' rdma.region lab '
}
rates() { # of `stats --watch --json`: every line has its time, and the rates agree with the values
    ctl -j stats rdmap --watch --interval 0.3 --count 5 >"$LAB/rates" && jq -s -e '
        def fetched: .groups[0].counters[] | select(.name == "payload_bytes_fetched");
        length == 5 and (.[0] | has("elapsed_ms") | not) and
        all(.[]; (.time | test("^20[0-9-]+T[0-9:.]+Z$")) and .time_ms > 1700000000000) and
        all(.[1:][]; .elapsed_ms > 0 and (fetched | has("per_second"))) and
        ([.[1:][] | fetched.per_second * .elapsed_ms / 1000] | add) as $sum |
        (.[4] | fetched.value) - (.[0] | fetched.value) | . > 0 and . < $sum * 1.02 and . > $sum * 0.98' \
        "$LAB/rates" && return
    jq -c '[.time, .time_ms, .elapsed_ms,
        (.groups[0].counters[] | select(.value > 0) | [.name, .value, .per_second])]' "$LAB/rates"
    return 1
}
piped_watch() { # tables one after the other, with a blank line between them
    ctl conn list --watch --interval 0.1 --count 3 >"$LAB/tables" &&
        [ "$(grep -c '^ID ' "$LAB/tables")" = 3 ] && [ "$(grep -c '^$' "$LAB/tables")" = 2 ] &&
        ! grep -q $'\x1b' "$LAB/tables"
}
watch_in_place() { # a terminal has one table, whose age counts up
    terminal_keys "clear; $IWARPCTL --socket $SOCKET worker list --watch --interval 0.1" Enter
    becomes yes 20 terminal_has '^WORKER +CORE .*BUSY' || return 1
    sleep 1
    [ "$(terminal_shows | grep -c '^WORKER ')" = 1 ]
    local status=$?
    terminal_keys C-c
    return "$status"
}
top_shows() { # the connection with its rate, in a screen of 80 by 24
    terminal_keys "clear; $IWARPCTL --socket $SOCKET top --interval 0.2; echo status \$?" Enter
    becomes yes 20 terminal_has '^[0-9]+ .*10\.77\.0\.1:.* lab .* [0-9.]+ [kM]?B/s' &&
        terminal_has '^iwarpd .* every 0.2 s' && terminal_has '^rx +[0-9.]+ [kMG]?b/s' &&
        terminal_has '^q quit' && [ "$(terminal_shows | wc -l)" = 24 ]
}
top_obeys() { # tables, filter, help
    terminal_keys 1 && becomes yes 20 terminal_has '^WORKER' &&
        terminal_keys 2 && becomes yes 20 terminal_has '^p0 +up ' &&
        terminal_keys 4 && becomes yes 20 terminal_has '^lab +4 MiB' &&
        terminal_keys / n o n e Enter && becomes yes 20 terminal_has '5 applications +0 of 1$' &&
        terminal_keys Escape && becomes yes 20 terminal_has '^lab +4 MiB' &&
        terminal_keys '?' && becomes yes 20 terminal_has 'any key closes this' &&
        terminal_keys x 3 && becomes yes 20 terminal_has '^[0-9]+ .*10\.77\.0\.1:'
}
top_resizes() { # more columns in a larger terminal
    terminal resize-window -t lab -x 180 -y 50 && becomes yes 20 terminal_has 'RETRANSMITS' &&
        terminal resize-window -t lab -x 20 -y 5 && becomes yes 20 terminal_has '^q quit' &&
        terminal resize-window -t lab -x 80 -y 24 && becomes yes 20 terminal_has '^busy '
}
top_outlives() { # the daemon: it says what is wrong, and goes on when the daemon is back
    daemon_stop && becomes yes 20 terminal_has '^! cannot reach iwarpd' || return 1
    serving && becomes yes 20 terminal_has '^iwarpd .* up [0-9.]+ s' && becomes gone 20 warned
}
warned() { terminal_has '^! cannot' || echo gone; }
top_ends() { # by SIGTERM; the terminal is as it was
    kill "$(pgrep -f -- "--socket $SOCKET top")" && becomes yes 20 terminal_has '^status 143$' || return 1
    terminal_keys 'clear; stty -a' Enter
    becomes yes 20 terminal_has '(^| )icanon' && terminal_has '(^| )echo '
}
if command -v tmux >/dev/null && terminal_open 80 24; then
    check "a connection with traffic" pinging
    check "\`conn list\` selects by state, peer, region and application" conditions
    check "\`stats --watch --json\` has times and rates" rates
    check "\`--watch\` writes tables to a pipe" piped_watch
    check "\`--watch\` redraws a terminal in place" watch_in_place
    check "\`top\` shows a connection and its rate in 80 columns and 24 rows" top_shows
    check "and its other tables, a filter and the keys" top_obeys
    check "in a terminal that changes its size" top_resizes
    check "the traffic ends" ping_stop
    check "\`top\` outlives the daemon" top_outlives
    check "SIGTERM ends \`top\`, and the terminal is as it was" top_ends
fi
check "SIGTERM ends it" daemon_stop
gone() { [ ! -e "$METRICS" ] && [ ! -e "$SOCKET" ]; }
check "no socket stays" gone

# --- events
watch() { # FILE: a monitor that writes events to a file until the daemon ends
    ctl -j monitor --recent >"$LAB/$1" 2>"$LAB/$1.err" &
    becomes yes 5 monitors "$1"
}
monitors() { [ -s "$LAB/$1" ] && echo yes; }
seen() { # EVENT JQ-CONDITION: both monitors have an event that meets it
    becomes true 5 all_saw "$1" "$2"
}
all_saw() {
    local file
    for file in first second; do
        jq -s --arg event "$1" "any(.[]; .event == \$event and ($2))" "$LAB/$file" | grep -qx true ||
            { echo false; return; }
    done
    echo true
}
journaled() { # two monitors see what the log says: the region of the configuration comes first
    : >"$LAB/iwarpd.log"
    serving "[[region]]
name = \"wal\"
size = \"2M\"
access = [\"remote-write\"]
token = \"open sesame\"
allow = [\"10.77.0.1\"]
[applications]
socket = \"$VERBS\"
[log]
format = \"json\"
drop_burst_per_s = 200
events_per_s_max = 5" && watch first && watch second && seen region_registered '.region == "lab" and .uid == null'
}
json_log() { # every line of the log is an object
    jq -s -e 'any(.[]; .event == "region_registered" and .region == "wal" and .level == "INFO")' "$LAB/iwarpd.log"
}
refused() { # PEER-HOST REGION REASON: a put is refused, and the event names peer and reason
    remote put "$LAB/small" "$1:7400/$2" && return 1
    seen grant_refused ".reason == \"$3\" and .region == \"$2\" and (.peer | contains(\"77\"))"
}
refusals() {
    echo content >"$LAB/small"
    refused 10.77.0.2 nothing 'no such region' && refused '[fd77::2]' wal 'address not allowed' &&
        refused 10.77.0.2 wal 'wrong token'
}
regions() { # registered and removed by this user
    ctl region register extra --size 2M --access remote-read && ctl region deregister extra || return 1
    seen region_registered '.region == "extra" and .uid == 0 and .pid > 0' &&
        seen region_removed '.region == "extra" and .uid == 0 and .grants_revoked == 0'
}
terminate() { # a Read beyond the region is answered with a Terminate
    in_ns python3 dataplane/tests/trespass.py 10.77.0.2 7400 lab &&
        seen terminate_sent '.code == "0/1/01" and .conn > 0'
}
terminated() { # by the peer, which reports a CRC error
    in_ns python3 dataplane/tests/trespass.py fd77::2 7400 lab terminate &&
        seen terminate_received '.code == "2/0/02" and .conn > 0 and (.peer | contains("fd77::1")) and
            (.meaning | contains("CRC"))'
}
closed() { # a connection that an operator closes
    in_ns python3 -u dataplane/tests/writer.py 10.77.0.2 7400 lab --idle >"$LAB/writer" 2>&1 &
    local writer=$!
    becomes 1 20 grep -c granted "$LAB/writer" && ctl conn close --peer 10.77.0.1 && seen conns_closed \
        '.count == 1 and .uid == 0 and .pid > 0'
    local status=$?
    kill "$writer" 2>/dev/null
    return "$status"
}
programs() { # a program opens a context, and is killed
    ip netns exec "$NS" "$EXCHANGE" --socket "$VERBS" --listen 10.77.0.2:7500 >"$LAB/exchange" 2>&1 &
    local program=$!
    seen app_connected ".pid == $program and .uid == 0 and .device != \"\" and (.command | contains(\"exchange\"))"
    local status=$?
    kill -KILL "$program"
    wait "$program" 2>/dev/null
    [ "$status" = 0 ] && seen app_left ".pid == $program and .app > 0"
}
burst() { # 2,000 malformed frames within a second or two
    in_ns python3 dataplane/tests/garbage.py iw0 2000 && seen drop_burst '.drops_per_s >= 200 and .reason != ""'
}
burst_ends() { # ten seconds without drops
    becomes true 20 all_saw drop_burst_ended '.drops >= 200 and .seconds >= 1'
}
limited() { # 40 refusals at once: few are reported, all are counted
    local before after
    before=$(refused_count)
    local puts=()
    for _ in $(seq 40); do
        remote put "$LAB/small" 10.77.0.2:7400/nothing >/dev/null 2>&1 &
        puts+=($!)
    done
    wait "${puts[@]}"
    after=$(refused_count)
    [ $((after - before)) = 40 ] && seen events_suppressed '.kind == "grant_refused" and .count > 0'
}
refused_count() {
    ctl -j stats region_service | jq '[.groups[].counters[] | select(.name == "no_such_region").value] | add'
}
link_events() {
    ip -n "$NS" link set iw0 down && sleep 1.5 && ip -n "$NS" link set iw0 up
    ip -n "$NS" link del iw0 && seen port_gone '.port == "p0" and .device == "iw0"' && seen degraded '.reason != ""' &&
        seen port_returned '.port == "p0"' && seen recovered '.reason != ""' && kernel_side iw0
}
unread() { # a monitor that is stopped delays neither the daemon nor the others
    "$IWARPCTL" --socket "$SOCKET" -j monitor >"$LAB/third" &
    local stopped=$!
    sleep 0.3
    kill -STOP "$stopped"
    ctl region register extra --size 2M --access remote-read && ctl region deregister extra && serves
    local status=$?
    kill -CONT "$stopped"; kill "$stopped"
    [ "$status" = 0 ]
}
levels() {
    [ "$(ctl -j log level | jq -r .level)" = info ] && ctl log level debug | grep -q 'level *debug' &&
        serves &&
        grep -q '"level":"DEBUG".*"method":"status"' "$LAB/iwarpd.log" && ctl log level info &&
        grep -q 'user 0, process [0-9]*: the log level is info' "$LAB/iwarpd.log"
}
text_lines() { # for people: time, severity, text
    ctl monitor --recent --event region_removed --count 1 | tee "$LAB/text" | \
        grep -qE '^20[0-9-]+T[0-9:.]+Z info  region removed .*region=extra'
}
monitors_end() { # with the daemon
    local job
    daemon_stop || return 1
    for job in $(jobs -p); do wait_at_most 20 "$job"; done
    grep -q 'connection_lost' "$LAB/first.err"
}

check "a daemon that logs JSON, and two monitors" journaled
check "every line of the log is JSON, with the fields of events" json_log
check "a refused grant is reported with reason and peer" refusals
check "a region that comes and goes is reported with user and process" regions
check "a Terminate is reported with its code" terminate
check "a peer's Terminate is reported, too" terminated
check "connections that an operator closes are reported" closed
check "a program that comes and is killed is reported" programs
check "a burst of dropped frames is reported" burst
check "40 refusals at once are counted, not all reported" limited
check "a lost interface and its return are reported, and the daemon's degradation with them" link_events
check "a monitor that does not read delays nobody" unread
check "\`iwarpctl log level\` shows and sets the level" levels
check "\`iwarpctl monitor\` writes lines for people" text_lines
check "the burst's end is reported" burst_ends

# --- capture
fields() { tshark -n -r "$LAB/$1" -T fields "${@:2}" 2>"$LAB/tshark.err"; } # FILE OPTIONS: one line for each frame
during() { # FILE CAPTURE-OPTIONS -- COMMAND…: captures while the command runs
    local file=$1 options=()
    shift
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    rm -f "$LAB/$file"
    "$IWARPCTL" --socket "$SOCKET" capture "${options[@]}" "$LAB/$file" >"$LAB/capture.out" 2>&1 &
    local capture=$! status
    becomes yes 5 begun "$file" || return 1
    "$@"
    status=$?
    sleep 0.3
    kill "$capture"
    wait "$capture" 2>/dev/null
    return "$status"
}
begun() { [ -s "$LAB/$1" ] && echo yes; }
both() { remote put "$LAB/file" 10.77.0.2:7400/lab && remote put "$LAB/file" '[fd77::2]:7400/lab'; }
both_ways() { # every byte of both puts, and what the daemon answered, in whole frames
    during all.pcapng -- both || return 1
    fields all.pcapng -Y tcp -e ip.src -e ipv6.src -e tcp.len >"$LAB/frames"
    local from
    for from in 10.77.0.1 fd77::1; do
        [ "$(grep -F "$from" "$LAB/frames" | awk '{sum += $NF} END {print sum + 0}')" -gt 1000000 ] || return 1
    done
    grep -q 10.77.0.2 "$LAB/frames" && grep -q fd77::2 "$LAB/frames" &&
        [ "$(fields all.pcapng -e frame.interface_name | sort -u)" = p0 ] &&
        [ "$(fields all.pcapng -Y 'frame.cap_len != frame.len' -e frame.number | wc -l)" = 0 ] &&
        [ "$(fields all.pcapng -Y 'ip.dst == 10.77.0.2 && frame.packet_flags_direction == 2' -e frame.len)" = '' ]
}
dissected() { # the RDMA protocol is there
    [ "$(tshark -n -r "$LAB/all.pcapng" -Y iwarp_mpa -T fields -e frame.number 2>/dev/null | wc -l)" -gt 10 ]
}
piped() { # `capture - | tshark -r -`
    in_ns ping -i 0.05 -c 60 -q 10.77.0.2 >/dev/null &
    ctl capture --count 20 --filter 'icmp' - | tshark -n -r - 2>"$LAB/tshark.err" >"$LAB/lines"
    [ "$(grep -c 'ICMP .*Echo (ping)' "$LAB/lines")" = 20 ]
}
filtered() { # each file has what its filter names, and nothing else
    during syn.pcapng --filter 'in and tcp flags syn dport 7400 ip6' -- both || return 1
    [ "$(fields syn.pcapng -e ipv6.src -e tcp.flags.syn -e tcp.dstport | sort -u | tr '\t' ' ')" = 'fd77::1 1 7400' ] ||
        return 1
    during out.pcapng --port p0 --snap 60 --filter 'out not ip6 host 10.77.0.1' -- both || return 1
    [ "$(fields out.pcapng -e ip.src | sort -u)" = 10.77.0.2 ] &&
        [ "$(fields out.pcapng -Y 'frame.cap_len > 60' -e frame.number | wc -l)" = 0 ]
}
one_connection() { # of two that run
    local pings=() id host status=1
    for host in 10.77.0.2 '[fd77::2]'; do
        ip netns exec "$NS" "$IWARPCTL" remote ping "$host:7400/lab" --count 1000000 >/dev/null 2>&1 &
        pings+=($!)
    done
    if becomes 2 5 open_conns; then
        id=$(ctl -j conn list | jq '.[] | select(.remote | startswith("[")) | .id')
        ctl capture --conn "$id" --count 10 --seconds 5 "$LAB/conn.pcapng"
        status=$?
    fi
    kill "${pings[@]}"
    wait "${pings[@]}" 2>/dev/null
    [ "$status" = 0 ] && [ "$(fields conn.pcapng -e ipv6.src | sort -u | tr '\n' ' ')" = 'fd77::1 fd77::2 ' ]
}
captured_drops() {
    ctl -j stats capture | jq '[.groups[].counters[] | select(.name == "drop_ring_full").value] | add'
}
bounded() { # a slow rate and a small buffer lose frames, which are counted, here and in the file
    local before
    before=$(captured_drops)
    during slow.pcapng --rate 64k --buffer 64k -- eval 'both && sleep 1.2' || return 1
    [ "$(($(captured_drops) - before))" -gt 100 ] &&
        capinfos -M "$LAB/slow.pcapng" >"$LAB/capinfos" && [ "$(fields slow.pcapng -e frame.number | wc -l)" -gt 0 ]
}
stopped() { # a client that does not read costs nobody anything
    "$IWARPCTL" --socket "$SOCKET" capture - >"$LAB/third" &
    local capture=$! status
    sleep 0.5
    kill -STOP "$capture"
    both
    status=$?
    ctl capture "$LAB/other.pcapng" --count 1 2>"$LAB/second.err"
    [ $? = 1 ] && grep -q 'another capture runs' "$LAB/second.err" || status=1
    kill -KILL "$capture"
    wait "$capture" 2>/dev/null
    return "$status"
}
mistaken() { # a wrong expression is a wrong command line
    ctl capture --filter 'tcp or udp' - 2>"$LAB/second.err"
    [ $? = 2 ] && grep -q '`or` is no test' "$LAB/second.err"
}
if command -v tshark >/dev/null; then
    check "tshark reads a capture of both directions, IPv4 and IPv6" both_ways
    check "and finds iWARP in it" dissected
    check "\`iwarpctl capture - | tshark -r -\`" piped
    check "filters, port and snap length select" filtered
    check "one connection is captured" one_connection
    check "a capture beyond its rate drops frames and counts them" bounded
fi
check "a client that does not read disturbs nobody; a second one is refused" stopped
check "a wrong filter is named" mistaken
check "monitors end with the daemon" monitors_end

score
