# shellcheck shell=bash
# Debian's rping in the guest, on soft-iWARP, against the same program on a daemon, by iwarp-run, in both roles. Sourced
# by run.sh after churn.sh; run.sh sets OUR_VERBS and OUR_HOST, verbs socket and address of the daemon. $SOCKET is
# its control socket.

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
# Text sizes with rounds: rdma-core's shortest and longest, and some between. The emulated machine checks long texts
# slowly.
RPING_SIZES="23:600 64:2000 1000:400 1449:400 4096:200 16384:100 65535:50"
SIZES_OFF="64:400 4096:200 65535:50"

# ours_serves PORT SIZE [-P]: starts a server on the daemon, waits until it listens, and adds it to SERVERS.
ours_serves() {
    ip netns exec "$NS" timeout -k 5 300 "$RUN" --socket "$OUR_VERBS" rping -s -p "$1" -S "$2" "${@:3}" \
        >"$LAB/rping.$1" 2>&1 &
    SERVERS+=($!)
    for _ in $(seq 100); do in_ns nc -z -w 1 "$OUR_HOST" "$1" && return; sleep 0.1; done
    cat "$LAB/rping.$1"
    return 1
}
sixteen_serve() {
    local port
    for port in $(seq 7180 7195); do ours_serves "$port" 512 || return 1; done
}
stop_serving() { # a server of many clients runs until it is stopped
    kill "${SERVERS[@]}" 2>/dev/null
    wait "${SERVERS[@]}"
    SERVERS=()
}
all_end_well() { # servers of one client end with it
    local k status=0
    for k in "${!SERVERS[@]}"; do
        wait "${SERVERS[k]}" && continue
        echo "port $((7180 + k)): exit status $?"
        cat "$LAB/rping.$((7180 + k))"
        status=1
    done
    SERVERS=()
    return "$status"
}

# accepted: prints how many connections the daemon has accepted, and how many RDMA Reads it has sent: a server reads
# each text.
accepted() { counters accepts_out out_rdma_reads; }
# all_served BEFORE CLIENTS ROUNDS: the daemon has accepted as many connections since, and read as many texts.
all_served() {
    local connections rounds
    read -r connections rounds <<<"$1"
    echo "RESULT $2 clients, $3 rounds"
    becomes "$((connections + $2)) $((rounds + $3))" 5 accepted
}

# their_clients PORT N SIZE ROUNDS: runs N clients at once, each to a port of its own. A client may print nothing but
# its disconnect, which it requests after its last round; it would print a wrong text. all_served counts the rounds and
# connections. The exit status of a client is printed and not judged: Debian's rping destroys its event channel and
# frees its memory while its threads still use them, and may exit with an error before or after its output, crash, or
# hang.
their_clients() {
    guest_run siw "rm -f /tmp/rping.*; for i in \$(seq $1 $(($1 + $2 - 1))); do \
timeout -s KILL 60 rping -c -a $OUR_HOST -p \$i -V -S $3 -C $4 >/tmp/rping.\$i 2>&1 & p=\"\$p \$!\"; done; \
for i in \$p; do wait \$i 2>/dev/null || echo \"RESULT a client ended with exit code \$?\"; done; p=; \
! grep -vE '^(client DISCONNECT EVENT\.\.\.|rdma_get_cm_event: Bad file descriptor)$' /tmp/rping.*" 110
}

# rping_clients TITLE: runs the guest's clients against servers of ours: one after the other against a server of many
# clients, and 16 at once against 16 servers.
rping_clients() {
    local title=$1 size clients=0 rounds=0 at_once=${ROUNDS_AT_ONCE:-20} before SERVERS=()
    before=$(accepted)
    check "$title: our rping listens" ours_serves 7174 65535 -P
    for size in ${SIZES:-$RPING_SIZES}; do
        try "$title: ${size#*:} texts of ${size%:*} bytes" their_clients 7174 1 "${size%:*}" "${size#*:}"
        clients=$((clients + 1)) rounds=$((rounds + ${size#*:}))
    done
    try "$title: all were served well" all_served "$before" $clients $rounds
    stop_serving
    before=$(accepted)
    check "$title: 16 of ours listen" sixteen_serve
    try "$title: 16 clients at once" their_clients 7180 16 512 "$at_once"
    try "$title: all 16 were served well" all_served "$before" 16 $((16 * at_once))
    check "$title: our 16 servers end well" all_end_well
}

# our_client SIZE ROUNDS: a client of ours; the guest has read as many texts.
our_client() {
    local before
    before=$(counters in_rdma_reads)
    in_ns timeout -k 5 100 "$RUN" --socket "$OUR_VERBS" rping -c -a 10.77.0.3 -V -S "$1" -C "$2" &&
        becomes $((before + $2)) 5 counters in_rdma_reads
}

# rping_server TITLE: runs our client against the guest's server.
rping_server() {
    local title=$1 size
    try "$title: the guest's rping serves" guest_run siw \
        'rping -s -P -S 65535 -a 10.77.0.3 >/tmp/rping.out 2>&1 & rping=$!; sleep 0.5; kill -0 $rping'
    for size in ${SIZES:-$RPING_SIZES}; do
        try "$title: ${size#*:} texts of ${size%:*} bytes" our_client "${size%:*}" "${size#*:}"
    done
    guest_run siw 'kill $rping; wait $rping' >/dev/null
}

rping_off() { # without CRC
    local SIZES=$SIZES_OFF
    rping_clients "rping's client, CRC off"
    rping_server "rping's server, CRC off"
    try "our rping has left nothing without CRC" becomes 0 5 eval 'ctl -j app list | jq length'
}
suite_rping() {
    rping_clients "rping's client, CRC on"
    rping_server "rping's server, CRC on"
    try "our rping has left nothing in the daemon" becomes 0 5 eval 'ctl -j app list | jq length'
    without_crc rping_off
}
