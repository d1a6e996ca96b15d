#!/bin/bash
# Opens 1,000 concurrent connections to each of the listeners echo, discard and chargen of configs/tap.toml, over IPv4
# and IPv6. All 6,000 are open before any moves data, all move data at the same time, all data is verified, all close in
# order, and nothing is left. `make load`.
source "$(dirname "$0")/lib.sh"

EACH=${EACH:-1000}
BYTES=${BYTES:-65536}
lab_open ironwarp-load
.ci/hugepages.sh 320 || true
# Backlog for all connections that open at once. A connection that opens by a SYN cookie leaves no state: if its last
# acknowledgment is lost, a client that waits for chargen waits forever (docs/limits.md); tests/flood.sh covers cookies.
sed -e "s#^socket *=.*#socket = \"$SOCKET\"#" -e 's#^hugepages *=.*#hugepages = "prefer"#' \
    -e "/^service = \"\(echo\|discard\|chargen\)\"/a backlog = $((EACH * 2))" configs/tap.toml >"$LAB/load.toml"
daemon_start "$LAB/load.toml" || exit 1
kernel_side iw0
# The TAP's queue has room for the first windows of all connections: 4,000 of them send ten frames each. A queue of
# 16384 frames drops a sixth of the kernel's frames, and the connections wait for their timeouts most of a minute.
ip -n "$NS" link set iw0 txqueuelen 65536
in_ns sysctl -qw net.ipv4.ip_local_port_range="10000 65000"

# Prints the sums of the relevant counters, by name.
counters() {
    ctl -j stats | jq -c '[.groups[] | .group as $group | .counters[] | {key: "\($group).\(.name)", value: .value}]
        | group_by(.key) | map({key: .[0].key, value: (map(.value) | add)}) | from_entries'
}
buffers() { report | jq '[.pools[].in_use] | add'; }
load() {
    ip netns exec "$NS" timeout 60 "$LAB_TOOL" load 10.77.0.2 fd77::2 --each "$EACH" --bytes "$BYTES" --limit-s 55 \
        >"$LAB/load.json"
}
most_at_once() { # while $1 runs: the most connections that were established
    local most=0 now
    while kill -0 "$1" 2>/dev/null; do
        now=$(report | jq .connections.established)
        [ "${now:-0}" -le "$most" ] || most=$now
        sleep 0.1
    done
    echo "$most" >"$LAB/most"
}
loaded() {
    local client
    counters >"$LAB/before"
    buffers >"$LAB/buffers"
    load &
    client=$!
    most_at_once "$client"
    wait "$client" && cat "$LAB/load.json"
}
all_at_once() {
    echo "$(cat "$LAB/most") established at once"
    [ "$(cat "$LAB/most")" = $((EACH * 6)) ]
}
# All connections were opened and closed in order, shared equally by the services, and all bytes sent to discard
# arrived. The clients detect every reset of a connection; a reset that we send may also answer a late duplicate of a
# connection that both ends have closed.
counted() {
    counters >"$LAB/after"
    jq -n --slurpfile before "$LAB/before" --slurpfile after "$LAB/after" --argjson each "$EACH" --argjson bytes \
        "$BYTES" '
        ($after[0] | with_entries(.value -= $before[0][.key])) as $moved
        | $moved | {"tcp.passive_opens", "tcp.established", "tcp.closed", "tcp.resets_received", "tcp.resets_out",
            "tcp.aborted", "tcp.timed_out", "tcp.timeouts", "tcp.retransmits", "tcp.syn_cookies_out",
            "services.echo_connections", "services.discard_connections", "services.chargen_connections",
            "services.discard_bytes", "services.echo_copied_aside"},
          ($moved["tcp.closed"] == 6 * $each
            and $moved["tcp.resets_received"] + $moved["tcp.aborted"] + $moved["tcp.timed_out"] == 0
            and $moved["tcp.syn_cookies_out"] == 0
            and $moved["services.echo_connections"] == 2 * $each and $moved["services.discard_connections"] == 2 * $each
            and $moved["services.chargen_connections"] == 2 * $each
            and $moved["services.discard_bytes"] == 2 * $each * $bytes)' >"$LAB/counted"
    cat "$LAB/counted"
    [ "$(tail -n 1 "$LAB/counted")" = true ]
}
nothing_left() { # no connection, no data held, packet buffers as at the start
    local tries now start
    start=$(cat "$LAB/buffers")
    for tries in $(seq 50); do
        now="$(counters | jq -c '{connections: .["now.connections"], send: .["now.send_buffers"],
            receive: .["now.receive_buffers"]}') $(buffers)"
        [ "${now%% *}" = '{"connections":0,"send":0,"receive":0}' ] && [ "${now##* }" -le $((start + 64)) ] && return 0
        sleep 0.2
    done
    echo "after $tries tries: $now packet buffers, $start at the start"
    return 1
}
check "$((EACH * 6)) connections: all open, then all move and verify data, then all close" loaded
check "they were open at the same time" all_at_once
check "none failed: no reset, nothing missing" counted
check "nothing is left behind" nothing_left
check "and once more, over what the first left" loaded
check "none failed: no reset, nothing missing" counted
check "nothing is left behind" nothing_left
jq -c . "$LAB/load.json"
check "SIGTERM ends it cleanly" daemon_stop
score
