# Suite `rtr`: the ready-to-receive messages of the peer-to-peer model (RFC 6581 §9.2), in both roles. Sourced by run.sh
# after churn.sh, rping.sh and turns.sh. siw supports two of the three: a Write and a Read of no bytes.

# they_ask on|off [KIND…]: sets whether siw requests the peer-to-peer model as the initiator, and with which messages.
# The numbers are the bytes of RFC 6581 §9 in the guest's order.
they_ask() {
    local model=0 kinds=0 kind at=/sys/module/siw/parameters
    [ "$1" = on ] && model=1
    for kind in "${@:2}"; do
        case $kind in
            write) kinds=$((kinds | 0x80)) ;;
            read) kinds=$((kinds | 0x40)) ;;
        esac
    done
    guest_run siw "echo $model >$at/peer_to_peer; echo $kinds >$at/rtr_type; cat $at/peer_to_peer"
}

# taken: prints the number of streams that the daemon's peers have started with a ready-to-receive message.
taken() { counters in_rtrs; }

# they_begin N PORT OPTIONS: iwclient succeeds on N streams that siw has started with the negotiated message.
they_begin() {
    local streams=$1 before
    shift
    before=$(taken)
    client "$@" || return 1
    echo "$(($(taken) - before)) of $streams streams began with it"
    [ $(($(taken) - before)) = "$streams" ]
}

# we_begin OPCODE ADDRESS COMMAND…: our end, at ADDRESS, starts its stream with a message of this opcode. Otherwise the
# command begins with another.
we_begin() {
    local seen=$LAB/rtr.pcap code pid first
    ip netns exec "$NS" tcpdump -i guest0 -w "$seen" -B 65536 -U tcp >"$LAB/tcpdump.log" 2>&1 &
    pid=$!
    for _ in $(seq 50); do grep -q listening "$LAB/tcpdump.log" && break; sleep 0.1; done
    "${@:3}"
    code=$?
    sleep 1
    kill -TERM $pid
    wait $pid
    first=$(dissect "$seen" -Y "iwarp_rdma && ip.src == $2" -T fields -e frame.number | head -n 1)
    [ $code = 0 ] && [ -n "$first" ] && at_least 1 "$seen" "frame.number == $first && iwarp_rdma.opcode == $1" &&
        none "$seen" '_ws.malformed'
}

rtr_stream() { in_ns "$LAB_TOOL" rtr 10.77.0.3:7401/theirs --kinds "$1"; } # KINDS

suite_rtr() {
    local kinds port
    for kinds in write read "write read"; do
        # shellcheck disable=SC2086 # a list
        try "siw asks for: $kinds" they_ask on $kinds
        for port in $CRC_ON $CRC_OFF; do
            try "iwarpd takes $kinds, port $port" they_begin 1 "$port" --region lab --size 1048576 \
                --ops write,read,mix --seed 40
            try "iwarpd takes $kinds, port $port, 4 at once" they_begin 4 "$port" --region lab --qps 4 --size 65536 \
                --ops write,read --seed 41
        done
        SIZES="64:100 4096:50" ROUNDS_AT_ONCE=5 rping_clients "our rping takes $kinds"
        CRC_TITLE="siw begins with $kinds" try "iwpeer begins with $kinds" they_connect 4 --turns 20 --seed 6
    done
    try "siw asks for nothing" they_ask off write read
    try "iwarpd without" they_begin 0 $CRC_ON --region lab --size 65536 --ops write,read --seed 42
    try "the guest's rping serves" guest_run siw \
        'rping -s -P -S 65535 -a 10.77.0.3 >/tmp/rping.out 2>&1 & rping=$!; sleep 0.5; kill -0 $rping'
    try "siw takes the Write of our rping" we_begin 0 10.77.0.2 our_client 64 50
    guest_run siw 'kill $rping; wait $rping' >/dev/null
    try "siw serves a region" guest_run siw "mkfifo /tmp/rtr.in; \
iwserver --listen 10.77.0.3 --port 7401 --region theirs:65536:rw <>/tmp/rtr.in >/tmp/rtr.out 2>&1 & server=\$!; \
for i in \$(seq 50); do grep -q LISTENING /tmp/rtr.out && break; sleep 0.1; done; grep LISTENING /tmp/rtr.out"
    for kinds in write read; do
        try "siw takes our ${kinds^}" we_begin $([ $kinds = read ] && echo 1 || echo 0) 10.77.0.1 rtr_stream $kinds
    done
    try "siw chooses the Write" we_begin 0 10.77.0.1 rtr_stream send,write,read
    guest_run siw 'kill $server; wait $server' >/dev/null
}
