# shellcheck shell=bash
# Debian's rping in the guest against iwarp-rping, on a port of its own and as an application of the daemon, in both
# roles. Sourced by run.sh.

RPING=${RPING:-${BUILT:-target/release}/iwarp-rping}
# Text sizes with rounds: rdma-core's shortest and longest, and some between. The emulated machine checks long texts
# slowly.
RPING_SIZES="23:600 64:2000 1000:400 1449:400 4096:200 16384:100 65535:50"
# ours_serves OPTIONS: starts iwarp-rping as a server of many clients, until ours_served.
ours_serves() {
    peer_start "$LAB/rping.json" "$RPING" -s -P -V --json --timeout 60 "${RPING_DEVICE[@]}" "$@" &&
        peer_says 'listening' || { peer_stop; return 1; }
}

# ours_served CLIENTS ROUNDS: stops the server; it exits with 0 and has served this many.
ours_served() {
    local seen
    peer_stop || { cat "$LAB/peer.err"; return 1; }
    seen=$(jq -r '"\(.connections) clients, \(.rounds) rounds, \(.failed) failed"' "$LAB/rping.json")
    echo "RESULT $seen"
    [ "$seen" = "$1 clients, $2 rounds, 0 failed" ]
}

# their_clients N SIZE ROUNDS: runs N clients at once. A client may print nothing but its disconnect, which it requests
# after its last round; it would print a wrong text. ours_served counts the rounds and connections. The exit status of a
# client is printed and not judged: Debian's rping destroys its event channel and frees its memory while its threads
# still use them, and may exit with an error before or after its output, crash, or hang.
their_clients() {
    guest_run siw "rm -f /tmp/rping.*; for i in \$(seq $1); do \
timeout -s KILL 60 rping -c -a $RPING_HOST -V -S $2 -C $3 >/tmp/rping.\$i 2>&1 & p=\"\$p \$!\"; done; \
for i in \$p; do wait \$i 2>/dev/null || echo \"RESULT a client ended with exit code \$?\"; done; p=; \
! grep -vE '^(client DISCONNECT EVENT\.\.\.|rdma_get_cm_event: Bad file descriptor)$' /tmp/rping.*" 110
}

# rping_clients TITLE OPTIONS: runs the guest's clients against our server.
rping_clients() {
    local title=$1 size clients=0 rounds=0
    shift
    check "$title: iwarp-rping listens" ours_serves "$@"
    for size in ${SIZES:-$RPING_SIZES}; do
        try "$title: ${size#*:} texts of ${size%:*} bytes" their_clients 1 "${size%:*}" "${size#*:}"
        clients=$((clients + 1)) rounds=$((rounds + ${size#*:}))
    done
    try "$title: 16 clients at once" their_clients 16 512 "${ROUNDS_AT_ONCE:-20}"
    try "$title: all were served well" ours_served $((clients + 16)) $((rounds + 16 * ${ROUNDS_AT_ONCE:-20}))
}

# our_client SIZE ROUNDS OPTIONS
our_client() {
    local size=$1 rounds=$2 seen
    shift 2
    in_ns timeout 100 "$RPING" -c -a 10.77.0.3 -V --json -S "$size" -C "$rounds" "${RPING_DEVICE[@]}" "$@" \
        >"$LAB/rping.json" || return 1
    seen=$(jq -r '"\(.rounds) rounds, \(.failed) failed, a round took \(.round_ns.median / 1000 | floor) µs"' \
        "$LAB/rping.json")
    echo "RESULT $seen"
    [[ $seen = "$rounds rounds, 0 failed, "* ]]
}

# rping_server TITLE OPTIONS: runs our client against the guest's server.
rping_server() {
    local title=$1 size
    shift
    try "$title: the guest's rping serves" guest_run siw \
        'rping -s -P -S 65535 -a 10.77.0.3 >/tmp/rping.out 2>&1 & rping=$!; sleep 0.5; kill -0 $rping'
    for size in ${SIZES:-$RPING_SIZES}; do
        try "$title: ${size#*:} texts of ${size%:*} bytes" our_client "${size%:*}" "${size#*:}" "$@"
    done
    guest_run siw 'kill $rping; wait $rping' >/dev/null
}

suite_rping() {
    rping_clients "rping's client, CRC on"
    SIZES="64:400 4096:200 65535:50" rping_clients "rping's client, CRC off" --crc off
    rping_server "rping's server, CRC on"
    SIZES="64:400 4096:200 65535:50" rping_server "rping's server, CRC off" --crc off
}

# The same as applications of the daemon that the other suites test.
suite_application() {
    local RPING_DEVICE=(--daemon "$LAB/verbs.sock") RPING_HOST=10.77.0.2 SIZES="64:400 4096:200 65535:30"
    rping_clients "a program of the daemon, rping's client"
    rping_server "a program of the daemon, rping's server"
    try "the program has left nothing in the daemon" becomes 0 5 eval 'ctl -j app list | jq length'
}
