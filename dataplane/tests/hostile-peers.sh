#!/bin/bash
# hostile-peers.sh: peers that break the rules, one kind after the other, against the device of a process: `iwarpctl
# serve`, and `rping -s -P` by `iwarp-run --embedded`, each a user without a privilege. Meanwhile an honest peer is
# served, no gap above 2 s. The server's memory and descriptors stay bounded and return, and it does not spin: neither
# while hostile peers stay, nor behind them. `make hostile-peers`, a part of it by CASES="garbage reads".
#
#   SECONDS_EACH   of each kind, at least (default 0.3)
#   IDLE_MS        time over which the server's CPU time is measured, 100 to 999 (default 200)
source "$(dirname "$0")/lib.sh"

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
CASES=${CASES:-garbage requests violations trickle reads endings silent burst held endless unread again programs
    numbers}
SECONDS_EACH=${SECONDS_EACH:-0.3}
IDLE_MS=${IDLE_MS:-200}
GAP_MS=2000
# A connection may hold this much: 256 KiB that wait to be sent, and 64 KiB of an FPDU that has begun.
HELD_KIB=320
# A server may be this much larger at its most whatever comes: tables are memory from their first use on.
MOST_KIB=8192
# When hostile peers have gone, the server's allocator may have given out this much more: tables that have grown.
KEPT_KIB=512
# Descriptors of a server: what a login shell has.
DESCRIPTORS=1024

lab_open ironwarp-hostile-peers
far_open
# A user who owns nothing but a folder, and may run the programs.
chmod 755 "$LAB"
cp "$IWARPCTL" "$RUN" dataplane/tests/{hostile_peers,garbage,starve,crowd,hold}.py "$LAB/"
cp -r "$(dirname "$RUN")/lib" "$LAB/"
mkdir "$LAB/own"
truncate -s 2G "$LAB/own/big"
for file in 0 1; do head -c 1048576 /dev/urandom >"$LAB/file.$file"; done
chmod 644 "$LAB"/file.*
chown -R 65534:65534 "$LAB/own"
export LAB
HEAP=$LAB/own/heap
cc -O2 -Wall -Wextra -Werror -shared -fPIC -o "$LAB/heap.so" dataplane/tests/programs/heap.c

now_us() { echo "${EPOCHREALTIME/[.,]/}"; }
# alone NAMESPACE COMMAND…: becomes a program of this user there. For the background: the job is the program itself.
alone() { ulimit -S -n "$DESCRIPTORS"; exec ip netns exec "$1" "${NOBODY[@]}" "${@:2}"; }

# --- what the server holds
descriptors() { find "/proc/$SERVER/fd" -type l 2>/dev/null | wc -l; }
memory() { awk -v name="$1:" '$1 == name {print $2}' "/proc/$SERVER/status"; } # VmRSS or VmHWM, in KiB
# heap: prints how much the server's allocator has given out, in KiB.
heap() {
    rm -f "$HEAP"
    kill -USR2 "$SERVER"
    for _ in {1..100}; do
        [ ! -e "$HEAP" ] || { echo $(($(cat "$HEAP") / 1024)); return; }
        sleep 0.01
    done
    return 1
}
cpu_us() { cat /proc/"$SERVER"/task/*/schedstat 2>/dev/null | awk '{sum += $1} END {printf "%d\n", sum / 1000}'; }
# idle WHEN: the server, to which nobody speaks, uses less than 2 % of a CPU, in one of three samples: it may be about
# to end what its last peer has left, and one that does not rest is found by all of them.
idle() {
    local begin used
    for _ in 1 2 3; do
        begin=$EPOCHREALTIME used=$(cpu_us)
        sleep "0.$IDLE_MS"
        used=$(($(cpu_us) - used))
        begin=$(($(now_us) - ${begin/[.,]/}))
        echo "CPU time $1: $used of $begin us"
        told+=", $1 $((used * 1000 / begin / 10)).$((used * 1000 / begin % 10)) % of a CPU"
        [ $((used * 50)) -ge "$begin" ] || return 0
    done
    return 1
}

# --- an honest peer: puts one of two files, gets it and compares, until there is $LAB/enough; a line for each attempt
put_and_get() {
    local n=0 target="$1:7400/lab"
    while [ ! -e "$LAB/enough" ]; do
        n=$((n + 1))
        if "$LAB/iwarpctl" --timeout 2 remote put "$LAB/file.$((n % 2))" "$target" >/dev/null &&
            "$LAB/iwarpctl" --timeout 2 remote get "$target" "$LAB/own/got" --length 1048576 >/dev/null &&
            cmp "$LAB/file.$((n % 2))" "$LAB/own/got"; then
            echo "ok ${EPOCHREALTIME/[.,]/}"
        else
            echo "failed ${EPOCHREALTIME/[.,]/}"
        fi
        rm -f "$LAB/own/got"
    done
}
# rping's client may crash or hang behind its last round, because it frees what its threads still use: what it has read
# tells that it was served.
pings() {
    local said
    while [ ! -e "$LAB/enough" ]; do
        said=$(timeout 5 "$LAB/iwarp-run" --embedded stdbuf -oL rping -c -a "$1" -C 5 -V -v 2>&1)
        if [ "$(grep -c '^ping data: rdma-ping-' <<<"$said")" = 5 ]; then echo "ok ${EPOCHREALTIME/[.,]/}"; else
            echo "failed ${EPOCHREALTIME/[.,]/} $said"; fi
    done
}
export -f put_and_get pings
# honest: starts it, and waits until it has been served.
honest() {
    rm -f "$LAB/enough"
    spawn "$LAB/honest" alone "$NS-far" bash -c "$HONEST 10.79.0.1"
    HONEST_PID=$PID
    becomes 1 10 grep -c -m 1 ^ok "$LAB/honest" >/dev/null || { tail -n 5 "$LAB/honest"; return 1; }
    BEGIN=$(now_us)
}
# once: it is served once, so that the server has what it makes for its first peer.
once() {
    honest
    touch "$LAB/enough"
    wait_at_most 5 "$HONEST_PID"
}
# served: ends the honest peer; fails if an attempt has failed, or there was a gap.
served() {
    local END gap failed
    END=$(now_us)
    touch "$LAB/enough"
    wait_at_most 5 "$HONEST_PID"
    gap=$(awk -v last="$BEGIN" -v end="$END" '
        $1 == "ok" && $2 > last { if ($2 - last > gap) gap = $2 - last; last = $2 }
        END { if (end - last > gap) gap = end - last; printf "%d\n", gap / 1000 }' "$LAB/honest")
    failed=$(grep -c ^failed "$LAB/honest")
    told+=", honest $(grep -c ^ok "$LAB/honest") times, longest gap $gap ms"
    [ "$failed" = 0 ] && [ "$gap" -le "$GAP_MS" ] && return
    echo "the honest peer: $failed failures, longest gap $gap ms"
    grep -v '^ok' "$LAB/honest" | head -n 20
    return 1
}

# attack COMMAND…: starts a hostile peer, as $HOSTILE; it would be another machine, so it gives way.
attack() {
    spawn "$LAB/attack" alone "$NS-far" nice -n 10 python3 "$@"
    HOSTILE=$PID
}
# settled PATTERN: waits until the hostile peer has printed a line of this pattern; fails if it ends instead.
settled() { awaits "$HOSTILE" "$LAB/attack" grep -q "$1" "$LAB/attack"; }
ended() {
    kill -KILL "$HOSTILE" 2>/dev/null
    wait "$HOSTILE" 2>/dev/null
}
lives() {
    ! kill -0 "$SERVER" || return 0
    wait "$SERVER"
    echo "the server has ended with $?"
    tail -n 5 "$LAB/server"
    return 1
}
# restored CONNECTIONS: the server lives and is idle, descriptors are those of before, and so is what its allocator has
# given out. Memory has not exceeded what as many connections may hold.
restored() {
    local failed=0 most kept may=$((MOST_KIB + $1 * HELD_KIB))
    becomes "$DESCRIPTORS_BEFORE" 5 descriptors || { ls -l "/proc/$SERVER/fd"; tail -n 5 "$LAB/server"; failed=1; }
    idle behind || failed=1
    most=$(memory VmHWM) kept=$(heap)
    told+=", memory $MEMORY_BEFORE KiB, at most $most, heap $HEAP_BEFORE KiB, then $kept"
    [ $((most - MEMORY_BEFORE)) -le $may ] || { echo "at most $may KiB more are allowed"; failed=1; }
    [ $((kept - HEAP_BEFORE)) -le "$KEPT_KIB" ] || { echo "heap: $HEAP_BEFORE KiB, then $kept"; failed=1; }
    lives || failed=1
    echo "RESULT ${told#, }"
    return "$failed"
}
before() {
    told=
    # The peak begins anew.
    echo 5 >"/proc/$SERVER/clear_refs"
    DESCRIPTORS_BEFORE=$(descriptors) MEMORY_BEFORE=$(memory VmRSS) HEAP_BEFORE=$(heap)
    honest
}

# withstands COMMAND…: a hostile peer that ends by itself, and judges the answers.
withstands() {
    local failed=0
    before || return 1
    attack "$@"
    wait_at_most 60 "$HOSTILE" || { cat "$LAB/attack"; failed=1; }
    told+=", $(tail -n 1 "$LAB/attack")"
    served || failed=1
    restored 10 && return "$failed"
}
# outlasts CONNECTIONS PATTERN COMMAND…: a hostile peer that stays once it has printed a line of this pattern; with
# $ACTIVE it does not rest.
outlasts() {
    local failed=0
    before || return 1
    attack "${@:3}"
    settled "$2" && sleep "$SECONDS_EACH" && kill -0 "$HOSTILE" || failed=1
    told+=", $(tail -n 1 "$LAB/attack")"
    told+=", $(descriptors) descriptors"
    served || failed=1
    [ -n "${ACTIVE:-}" ] || idle beside || failed=1
    ended
    restored "$1" && return "$failed"
}
# try NAME COMMAND…: a check, and what was measured.
try() {
    check "$@"
    sed -n 's/^RESULT /        /p' "$LAB/check.out"
}

region() { withstands "$LAB/hostile_peers.py" "$1" 10.79.0.1 7400 open "$SECONDS_EACH"; }
case_garbage() {
    try "garbage in place of MPA" withstands "$LAB/garbage.py" --streams 10.79.0.1:7400 1000
    try "the same over IPv6" withstands "$LAB/garbage.py" --streams '[fd79::1]:7400' 500 2
}
case_requests() { try "MPA Requests with every flag, revision and length" region requests; }
case_violations() { try "wrong FPDUs, each answered by its Terminate" region violations; }
case_trickle() { try "FPDUs one byte at a time are served" region trickle; }
case_reads() { try "floods of small Reads" region reads; }
case_endings() { try "resets, closes and half-closes at each stage" region endings; }
case_silent() {
    try "100 connections that say nothing" outlasts 100 open "$LAB/crowd.py" 10.79.0.1 7400 100 10.79.0.2
    # More than a device keeps: it resets the oldest ones, and they come again.
    ACTIVE=1 try "600 of them, each of which comes again" \
        outlasts 600 open "$LAB/crowd.py" 10.79.0.1 7400 600 10.79.0.2 1
}
case_held() {
    try "600 granted connections that say no more${AGAIN:+, again}" \
        outlasts 600 granted "$LAB/hold.py" 10.79.0.1 7400 open 600
}
# A process that others have kept from the CPU finds many peers at once: it reads the requests that have arrived before
# it takes peers for silent ones.
all_granted() { # COUNT
    local before
    before=$(descriptors)
    kill -STOP "$SERVER"
    attack "$LAB/hold.py" 10.79.0.1 7400 open "$1"
    sleep 0.5
    kill -CONT "$SERVER"
    settled "^$1 of $1 granted"
    local status=$?
    ended
    becomes "$before" 5 descriptors || status=1
    return $status
}
case_burst() { check "300 peers that have asked while the server was stopped are all granted" all_granted 300; }
case_endless() {
    try "200 FPDUs that never end, in small pieces" \
        outlasts 200 ' s$' "$LAB/starve.py" fpdus 10.79.0.1 7400 200 40 --request open
}
case_unread() {
    try "100 peers that ask for 200 GiB each, and never read${AGAIN:+, again}" \
        outlasts 100 'nobody reads' "$LAB/hostile_peers.py" unread 10.79.0.1 7400 big 0 100
}
case_again() {
    local AGAIN=1 SECONDS_EACH=0
    case_held
    case_unread
}
case_programs() {
    local HONEST=pings
    ends || check "the server of regions ends with 0" false
    check "rping -s -P listens" rping_serves
    try "rping: garbage in place of MPA" withstands "$LAB/garbage.py" --streams 10.79.0.1:7174 500
    try "rping: connections that end before their request" \
        withstands "$LAB/hostile_peers.py" early 10.79.0.1 7174 none "$SECONDS_EACH"
    ACTIVE=1 try "rping: 300 connections that say nothing" \
        outlasts 300 open "$LAB/crowd.py" 10.79.0.1 7174 300 10.79.0.2 1
    kill "$SERVER" 2>/dev/null
    wait "$SERVER"
}

# A program with a queue pair that waits for its peer, and with the port at which these connect: it has connected
# another one before. The peer comes behind the attack.
waits_for_peer() {
    local number before peer status=0
    export CONTROL=10.79.0.1
    serves "$LAB/iwarp-run" --embedded "$LAB/pairs" 10.79.0.1
    awaits "$SERVER" "$LAB/server" hears 18517 || return 1
    spawn "$LAB/peer" alone "$NS-far" "$LAB/iwarp-run" --embedded "$LAB/pairs" 10.79.0.2 10.79.0.1 1 paused
    peer=$PID
    awaits "$peer" "$LAB/peer" grep -q ^0x "$LAB/peer" || return 1
    number=$(grep ^0x "$LAB/peer")
    before=$(descriptors)
    attack "$LAB/hostile_peers.py" numbers 10.79.0.1 4791 "$number" 0
    wait_at_most 60 "$HOSTILE" || { cat "$LAB/attack"; status=1; }
    told="$(tail -n 1 "$LAB/attack")"
    becomes "$before" 5 descriptors || { ls -l "/proc/$SERVER/fd"; status=1; }
    kill -USR1 "$peer"
    wait_at_most 5 "$peer" && wait_at_most 5 "$SERVER" || { cat "$LAB/peer" "$LAB/server"; status=1; }
    echo "RESULT $told, then $(tail -n 1 "$LAB/peer")"
    return "$status"
}
case_numbers() {
    kill "$SERVER" 2>/dev/null
    wait "$SERVER" 2>/dev/null
    cc -O2 -Wall -Wextra -Werror -o "$LAB/pairs" dataplane/tests/programs/pairs.c -libverbs -lrdmacm
    try "requests for queue pairs that are connected by number" waits_for_peer
}

serves() { # COMMAND…: starts the server
    spawn "$LAB/server" alone "$NS" env LD_PRELOAD="$LAB/heap.so" HEAP="$HEAP" "$@"
    SERVER=$PID
}
serves_regions() {
    serves "$LAB/iwarpctl" -j serve -r lab=2M -r open=8M -r "big=$LAB/own/big" \
        -a remote-read,remote-write -l 10.79.0.1 -l fd79::1
    awaits "$SERVER" "$LAB/server" hears 7400 && once
}
rping_serves() {
    serves "$LAB/iwarp-run" --embedded rping -s -P -a 10.79.0.1
    awaits "$SERVER" "$LAB/server" hears 7174 && once
}
ends() { # ends the server, and fails if it does not end with 0 at once
    kill "$SERVER"
    wait_at_most 2 "$SERVER"
}

HONEST=put_and_get
begin=$SECONDS
check "iwarpctl serve starts" serves_regions
for case in $CASES; do "case_$case"; done
[[ $CASES =~ programs|numbers ]] || check "the server ends with 0" ends
echo "whole run $((SECONDS - begin)) s"
score
