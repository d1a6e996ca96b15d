# Suite `turns`: ping-pong of Writes, Reads and the four Sends (turns.h) between iwpeer in the guest and `lab turns`, a
# program of our daemon, in both roles. Sourced by run.sh; OUR_VERBS and OUR_HOST are verbs socket and address of the
# daemon.

# they_connect PAIRS OPTIONS: iwpeer connects PAIRS queue pairs to ours.
they_connect() {
    local qps=$1 code
    shift
    peer_start "$LAB/turns.out" "$LAB_TOOL" turns --socket "$OUR_VERBS" --listen "$OUR_HOST:7500" --qps "$qps" \
        --ird 128 --ord 128 &&
        peer_says LISTENING || { peer_stop; cat "$LAB/peer.err"; return 1; }
    guest_run siw "timeout -s KILL 100 iwpeer --connect $OUR_HOST --port 7500 --qps $qps $*" 110
    code=$?
    peer_wait && [ $code = 0 ] && same_work "$LAB/turns.out" "$qps"
}

# we_connect PAIRS OPTIONS: ours connects PAIRS queue pairs to the guest's.
we_connect() {
    local qps=$1 code
    shift
    guest_run siw "iwpeer --listen 10.77.0.3 --port 7500 --qps $qps >/tmp/peer.out 2>&1 & peer=\$!; \
for i in \$(seq 50); do grep -q LISTENING /tmp/peer.out && break; sleep 0.1; done" &&
        in_ns timeout 100 "$LAB_TOOL" turns --socket "$OUR_VERBS" --connect 10.77.0.3:7500 --qps "$qps" "$@" \
            >"$LAB/turns.out" 2>"$LAB/peer.err"
    code=$?
    cat "$LAB/turns.out"
    [ $code = 0 ] || { cat "$LAB/peer.err"; guest_run siw 'kill $peer; wait $peer; cat /tmp/peer.out'; return 1; }
    guest_run siw 'wait $peer; code=$?; cat /tmp/peer.out; (exit $code)' && same_work "$LAB/turns.out" "$qps"
}

# same_work FILE PAIRS: every queue pair has finished, and has received Sends of each kind.
same_work() {
    tail -n 1 "$1" | jq -r '.connections[0] | to_entries | map("\(.key)=\(.value)") | "RESULT turns ok \(join(" "))"'
    tail -n 1 "$1" | jq -e --argjson pairs "$2" \
        '[.connections[] | select(.invalidated > 0 and .solicited > 0)] | length == $pairs'
}

# refused_there PAIRS OPTIONS: the guest's kernel receives a Terminate for an invalid STag: DDP, tagged, code 0. siw
# swaps the nibbles of the first byte.
refused_there() {
    guest_run siw 'dmesg -c >/dev/null'
    they_connect "$@" && guest_run siw 'dmesg' | grep -q 'got TERMINATE. layer 1, type 1, code 0'
}

turns_both() {
    try "iwpeer connects, $CRC_TITLE, $*" they_connect "$@"
    try "turns connects, $CRC_TITLE, $*" we_connect "$@"
}

turns_everywhere() { # CRC_TITLE
    local CRC_TITLE=$1
    turns_both 1 --turns 100
    turns_both 16 --slots 2 --turns 60 --bytes 16384 --seed 2
    try "iwpeer writes to what it invalidated, $CRC_TITLE" refused_there 1 --turns 20 --trespass
    try "turns writes to what it invalidated, $CRC_TITLE" we_connect 1 --turns 20 --trespass
}
suite_turns() {
    local pair CRC_TITLE="CRC on"
    turns_everywhere "CRC on"
    without_crc turns_everywhere "CRC off"
    for pair in "0 0" "0 1" "1 0" "1 1" "3 2" "16 128" "128 128"; do
        turns_both 1 --slots 32 --turns 12 --bytes 8192 --ird "${pair% *}" --ord "${pair#* }" --seed 3
    done
    turns_both 1 --slots 200 --turns 6 --bytes 4096 --ird 128 --ord 128 --seed 4
    # Without read depths in its startup, siw's connections have no Reads.
    try "MPA revision 1" we_connect 1 --turns 20 --revision 1 --ird 0 --ord 0 --seed 5
    try "turns has left nothing in the daemon" becomes 0 5 eval 'ctl -j app list | jq length'
    wire
}

# wire: captures the exchange in both roles and checks it with tshark. The source address distinguishes our frames from
# siw's; siw's Terminates have the wrong bit order, as siw sends them.
wire() {
    local seen=$LAB/turns.pcap opcode
    ip netns exec "$NS" tcpdump -i guest0 -w "$seen" -B 65536 -U tcp port 7500 >"$LAB/tcpdump.log" 2>&1 &
    local pid=$!
    for _ in $(seq 50); do grep -q listening "$LAB/tcpdump.log" && break; sleep 0.1; done
    try "for tshark: iwpeer connects" refused_there 1 --turns 20 --trespass --bytes 20000
    try "for tshark: turns connects" we_connect 1 --turns 20 --trespass --bytes 20000
    sleep 1
    kill -TERM $pid
    wait $pid
    for opcode in 'RDMA Write:0' 'Read Request:1' 'Read Response:2' 'Send:3' 'Send with Invalidate:4' 'Send with SE:5' \
        'Send with SE and Invalidate:6' 'Terminate:7'; do
        check "tshark: ${opcode%:*} of ours" at_least 1 "$seen" \
            "iwarp_rdma.opcode == ${opcode#*:} && ip.src == 10.77.0.2"
        check "tshark: ${opcode%:*} of siw's" at_least 1 "$seen" \
            "iwarp_rdma.opcode == ${opcode#*:} && ip.src == 10.77.0.3"
    done
    check "tshark: nothing malformed" none "$seen" '_ws.malformed'
    check "tshark: no error" none "$seen" '_ws.expert.severity == error'
    check "tshark: every CRC right" crcs_right 200 "$seen"
}
