#!/bin/bash
# embedded-hard.sh: the device inside the process under hard conditions: a thousand connections, limits of descriptors,
# a full disk, system calls that are refused, memory that changes or goes, ends by kill and exit, fork, threads, and
# peers that stall or stop. As a user without a privilege, on the loopback interface of a network namespace.
# `make embedded-hard`.
#
#   CONNECTIONS   connections at once (default 1000)
#   SECONDS_EACH  seconds of each check that runs for a time (default 3)
#   COUNT         streams of each seed that are ended (default 16)
#   SEEDS         seeds (default "1 2 3")
#   ONLY          pattern of the checks to run
#   LIMIT         seconds that a program may take (default 60)
source "$(dirname "$0")/lib.sh"

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
CONNECTIONS=${CONNECTIONS:-1000}
SECONDS_EACH=${SECONDS_EACH:-3}
COUNT=${COUNT:-16}
SEEDS=${SEEDS:-1 2 3}
LIMIT=${LIMIT:-60}
# Most memory of a process with these connections, KiB: 16 MiB, and 64 KiB for each.
RESIDENT_MAX=$((16384 + 64 * CONNECTIONS))

lab_open ironwarp-hard
chmod 755 "$LAB"
cp "$RUN" "$LAB/"
cp -r "$(dirname "$RUN")/lib" "$LAB/"
export HARD_LIMIT=$LIMIT
HARD=$LAB/hard
PORT=7200
AT=127.0.0.1

# Prefixes of commands: the user in the namespace, and the device inside a program. Both replace themselves by the
# command, so that $! is the program.
USER_RUNS=(ip netns exec "$NS" "${NOBODY[@]}")
EMBEDDED=("$LAB/iwarp-run" --embedded)

# detail LINE…: a line below the check that runs.
detail() { echo "$*" >>"$LAB/details"; }
shows() { # SENTENCE FUNCTION…: a check, and its details
    [[ $1 =~ ${ONLY:-.} ]] || return 0
    : >"$LAB/details"
    check "$@"
    sed 's/^/      /' "$LAB/details"
}
descriptors() { find "/proc/$1/fd" -mindepth 1 2>/dev/null | wc -l; }
resident() { awk '/^VmRSS:/ {print $2; found = 1} END {if (!found) print 0}' "/proc/$1/status" 2>/dev/null || echo 0; }
# ticks PID: time of the processor, in hundredths of a second
ticks() { awk '{print $14 + $15}' "/proc/$1/stat"; }
# starts FILE [PREFIX…] -- ARGUMENTS…: a server of programs/hard in the background, in $PID, once it listens.
starts() {
    local file=$1 prefix=()
    shift
    while [ "$1" != -- ]; do prefix+=("$1") && shift; done
    shift
    spawn "$file" "${USER_RUNS[@]}" "${prefix[@]}" "${EMBEDDED[@]}" "$HARD" "$@"
    prints listens "$file"
}
# runs FILE ARGUMENTS…: a client of programs/hard.
runs() {
    timeout -k 5 "$LIMIT" "${USER_RUNS[@]}" "${EMBEDDED[@]}" "$HARD" "${@:2}" >"$1" 2>&1 || {
        echo "${*:2}: exit status $?"
        tail -n 15 "$1"
        return 1
    }
}
# ends PID FILE: ends a server, which must not have found anything wrong.
ends() {
    kill "$1"
    wait_at_most 5 "$1" && return
    echo "the server has failed"
    tail -n 15 "$2"
    return 1
}
# both SERVER… -- CLIENT…: two commands of programs/hard. Both must end well.
both() {
    local server=() status=0 pid
    while [ "$1" != -- ]; do server+=("$1") && shift; done
    shift
    starts "$LAB/server.out" -- "${server[@]}" || return 1
    pid=$PID
    runs "$LAB/client.out" "$@" || status=1
    wait_at_most 10 "$pid" || status=1
    [ "$status" = 0 ] || tail -n 15 "$LAB/server.out"
    return "$status"
}
# rping_with PREFIX…: a pair of rping, each end run by the prefix.
rping_with() {
    local pid status=0
    spawn "$LAB/server.out" "${USER_RUNS[@]}" "$@" "${EMBEDDED[@]}" rping -s -a "$AT" -C 30 -V
    pid=$PID
    awaits "$pid" "$LAB/server.out" hears 7174
    timeout -k 5 "$LIMIT" "${USER_RUNS[@]}" "$@" "${EMBEDDED[@]}" rping -c -a "$AT" -C 30 -V >"$LAB/client.out" 2>&1 ||
        status=$?
    [ "$status" = 0 ] || kill "$pid" 2>/dev/null
    wait_at_most 10 "$pid" || [ "$status" != 0 ] || status=1
    [ "$status" = 0 ] || tail -n 15 "$LAB/client.out" "$LAB/server.out"
    return "$status"
}

builds() { cc -O2 -Wall -Wextra -Werror -o "$HARD" dataplane/tests/programs/hard/*.c -libverbs -lrdmacm -lpthread; }
check "programs/hard builds" builds
[ "$FAILED" = 0 ] || { score; exit 1; }

# --- a thousand connections, with the limit of descriptors that most systems have
descriptors_are() { [ "$(descriptors "$1")" -le "$2" ] && echo yes; }
crowd() { # [stopped]: the server is stopped while they come
    local server client before resident_before at_most status=0
    starts "$LAB/server.out" prlimit --nofile=$((CONNECTIONS + 24)) -- \
        echo "$AT" "$PORT" 256 $((CONNECTIONS + 100)) || return 1
    server=$PID
    runs "$LAB/client.out" ping "$AT" "$PORT" 256 0 || status=1
    before=$(descriptors "$server")
    resident_before=$(resident "$server")
    [ "$1" != stopped ] || kill -STOP "$server"
    spawn "$LAB/client.out" "${USER_RUNS[@]}" prlimit --nofile=$((CONNECTIONS + 24)) "${EMBEDDED[@]}" "$HARD" \
        crowd "$AT" "$PORT" 256 "$CONNECTIONS"
    client=$PID
    [ "$1" != stopped ] || { sleep 1; kill -CONT "$server"; }
    while kill -0 "$client" 2>/dev/null && ! grep -q '^open' "$LAB/client.out"; do sleep 0.05; done
    at_most=$(resident "$server")
    detail "server: $(descriptors "$server") descriptors ($before without), $at_most KiB ($resident_before)"
    detail "client: $(descriptors "$client") descriptors, $(resident "$client") KiB"
    [ "$at_most" -lt "$RESIDENT_MAX" ] && [ "$(resident "$client")" -lt "$RESIDENT_MAX" ] ||
        { echo "more than $RESIDENT_MAX KiB"; status=1; }
    wait_at_most "$LIMIT" "$client" || { tail -n 15 "$LAB/client.out"; status=1; }
    becomes yes 5 descriptors_are "$server" "$before" || status=1
    detail "$(grep -E 'after' "$LAB/client.out" | paste -sd';')"
    detail "server, all closed: $(descriptors "$server") descriptors, $(resident "$server") KiB"
    ends "$server" "$LAB/server.out" || status=1
    grep -q "at most $CONNECTIONS connections, 0 wrong" "$LAB/server.out" || { cat "$LAB/server.out"; status=1; }
    return "$status"
}
shows "$CONNECTIONS connections at once, with compared bytes, and bounded memory" crowd running
shows "$CONNECTIONS connections that come while the server is stopped for a second" crowd stopped

# --- 64 descriptors
few() { rping_with prlimit --nofile=64:64; }
shows "rping, both ends with 64 descriptors" few
full_server() {
    local server client used status=0
    starts "$LAB/server.out" prlimit --nofile=64:64 -- echo "$AT" "$PORT" 256 200 || return 1
    server=$PID
    spawn "$LAB/client.out" "${USER_RUNS[@]}" "${EMBEDDED[@]}" "$HARD" fill "$AT" "$PORT" 256 3
    client=$PID
    prints '^full' "$LAB/client.out" || status=1
    # Peers that come now, and are refused.
    for _ in 1 2 3; do in_ns timeout 1 bash -c "exec 3<>/dev/tcp/$AT/$PORT; cat <&3" >/dev/null 2>&1; done
    used=$(ticks "$server")
    sleep 2
    used=$(($(ticks "$server") - used))
    detail "$used hundredths of a second of the processor in 2 s at the limit, $(descriptors "$server") descriptors"
    [ "$used" -lt 10 ] || { echo "the listener uses the processor: $used hundredths of a second in 2 s"; status=1; }
    wait_at_most "$LIMIT" "$client" || { tail -n 15 "$LAB/client.out"; status=1; }
    detail "$(grep -vE '^full' "$LAB/client.out" | paste -sd';')"
    ends "$server" "$LAB/server.out" || status=1
    return "$status"
}
shows "a server at its limit refuses, idles, serves, and takes others when some have closed" full_server
full_client() {
    local server status=0
    starts "$LAB/server.out" -- echo "$AT" "$PORT" 256 200 || return 1
    server=$PID
    timeout -k 5 "$LIMIT" "${USER_RUNS[@]}" prlimit --nofile=64:64 "${EMBEDDED[@]}" "$HARD" fill "$AT" "$PORT" 256 1 \
        >"$LAB/client.out" 2>&1 || { status=1; tail -n 15 "$LAB/client.out"; }
    detail "$(grep -vE '^full' "$LAB/client.out" | paste -sd';')"
    ends "$server" "$LAB/server.out" || status=1
    return "$status"
}
shows "a client at its limit gets an error, and connects again when it has closed some" full_client

# --- a full disk
full_disk() {
    mkdir -p "$LAB/full"
    ip netns exec "$NS" unshare -m bash -c '
        run=$1 limit=$2 full=$3
        mount -t tmpfs -o size=4k,mode=1777 none "$full" && mount -t tmpfs -o size=4k,mode=1777 none /dev/shm || exit 1
        head -c 4096 /dev/zero >"$full/page" && head -c 4096 /dev/zero >/dev/shm/page || exit 1
        cd "$full" && ! { echo more >more; } 2>/dev/null || exit 1
        export TMPDIR=$full HOME=/nonexistent
        shift 3
        "$@" timeout -k 5 "$limit" "$run" --embedded rping -s -a 127.0.0.1 -C 30 -V & server=$!
        for _ in $(seq 100); do ss -Hltn "sport = :7174" | grep -q . && break; sleep 0.05; done
        "$@" timeout -k 5 "$limit" "$run" --embedded rping -c -a 127.0.0.1 -C 30 -V && wait "$server"
    ' full "$LAB/iwarp-run" "$LIMIT" "$LAB/full" "${NOBODY[@]}"
}
shows "rping with a full disk, a full /dev/shm, and no home" full_disk

# --- system calls that containers refuse
container_calls() { rping_with "$HARD" filtered --; }
shows "rping without the system calls that container profiles refuse" container_calls
fewer_calls() { rping_with "$HARD" filtered mlock membarrier rseq sched_setaffinity --; }
shows "rping without mlock, membarrier, rseq and affinities" fewer_calls
# refused_with TEXT PREFIX…: a program that cannot open its device ends with this error.
refused_with() {
    local text=$1 server status=0
    shift
    starts "$LAB/server.out" -- echo "$AT" "$PORT" 256 20 || return 1
    server=$PID
    timeout -k 5 10 "$@" "${EMBEDDED[@]}" "$HARD" ping "$AT" "$PORT" 256 1 >"$LAB/client.out" 2>&1 ||
        status=$?
    detail "exit status $status: $(tail -n 1 "$LAB/client.out")"
    ends "$server" "$LAB/server.out" || return 1
    [ "$status" = 1 ] && grep -q "$text" "$LAB/client.out" && return
    tail -n 15 "$LAB/client.out"
    return 1
}
no_memfd() { refused_with 'Cannot allocate memory' "${USER_RUNS[@]}" "$HARD" filtered memfd_create --; }
shows "without memfd_create a program gets ENOMEM" no_memfd
no_threads() { refused_with 'temporarily unavailable' "${USER_RUNS[@]}" "$HARD" filtered threads --; }
shows "without threads a program gets EAGAIN" no_threads
no_processes() { # a user who has this one process
    refused_with 'temporarily unavailable' ip netns exec "$NS" setpriv --reuid 64987 --regid 65534 --clear-groups \
        --bounding-set=-all -- prlimit --nproc=1:1
}
shows "a user who may have one process gets EAGAIN" no_processes

# --- memory that changes, and memory that goes
rewritten() {
    both rewritten-server "$AT" "$PORT" "$SECONDS_EACH" -- rewritten "$AT" "$PORT" "$SECONDS_EACH" || return 1
    detail "$(grep -h " Reads, " "$LAB/server.out" "$LAB/client.out" | paste -sd';')"
}
shows "RDMA Reads of regions that their programs rewrite: bytes that were written, words whole to 128 bytes" rewritten
for how in unmap protect truncate; do
    vanishes() {
        local what
        for what in write read send receive fetch; do
            both vanish-server "$AT" "$PORT" "$how" -- vanish "$AT" "$PORT" "$what" || return 1
            detail "$(tail -qn 1 "$LAB/server.out" "$LAB/client.out" | paste -sd';')"
        done
    }
    shows "memory that goes ($how) while it is registered ends its connection alone" vanishes
done
faults() { # the handler that the library installs is not for faults of the program
    local status=0
    "${USER_RUNS[@]}" "${EMBEDDED[@]}" "$HARD" fault "$AT" >"$LAB/client.out" 2>&1 || status=$?
    [ "$status" = 139 ] || { cat "$LAB/client.out"; echo "exit status $status"; return 1; }
}
shows "a fault of the program itself ends it by SIGSEGV" faults

# --- ends of processes amid a stream
streams() { # [paused]: the server stops for moments, so that much is on its way
    local seed server client status=0 lost=0
    for seed in $SEEDS; do
        starts "$LAB/server.out" -- stream-server "$AT" "$PORT" "$COUNT" || return 1
        server=$PID
        runs "$LAB/client.out" stream "$AT" "$PORT" "$COUNT" "$seed" &
        client=$!
        while [ "$1" = paused ] && kill -0 "$client" 2>/dev/null; do
            kill -STOP "$server"
            sleep 0.05
            kill -CONT "$server"
            sleep 0.02
        done
        wait "$client" || status=1
        wait_at_most 10 "$server" || status=1
        [ "$status" = 0 ] || { tail -n 15 "$LAB/server.out"; return 1; }
        # Number, blocks and bytes that arrived, ending, blocks and bytes whose Sends had completed, seconds.
        grep -v listens "$LAB/server.out" | sort | join - <(sort "$LAB/client.out") >"$LAB/joined"
        [ "$(wc -l <"$LAB/joined")" = "$COUNT" ] || { cat "$LAB/joined"; return 1; }
        detail "$(awk -v seed="$seed" '{arrived += $2; if ($4 == "kill" && $6 - $3 > lost) lost = $6 - $3}
            END {print "seed " seed ": " arrived " blocks; after kill, " lost + 0 " completed bytes missing at most"}' \
            "$LAB/joined")"
        # A program that exits leaves a receiver that does nothing for long to itself.
        awk -v paused="$1" '/exit/ && $2 < $5 {print "lost, although it had completed: " $0; bad = paused != "paused"}
            END {exit bad}' "$LAB/joined" || lost=1
    done
    return "$lost"
}
shows "streams whose ends are killed or exit: what arrives is right, and the peer learns of the end" streams running
shows "the same while the receiver pauses" streams paused

# --- fork and threads
forks() {
    local how server status
    for how in exit kill; do
        starts "$LAB/server.out" -- stream-server "$AT" "$PORT" 1 || return 1
        server=$PID status=0
        timeout -k 5 "$LIMIT" "${USER_RUNS[@]}" "${EMBEDDED[@]}" "$HARD" fork "$AT" "$PORT" $((8 * COUNT)) "$how" \
            >"$LAB/client.out" 2>&1 || status=$?
        [ "$status" = 0 ] || [ "$how$status" = kill137 ] || { tail -n 15 "$LAB/client.out"; kill "$server"; return 1; }
        local begin=${EPOCHREALTIME/./} child
        child=$(awk '/^child [0-9]/ {print $2 + 0}' "$LAB/client.out")
        wait_at_most 3 "$server" || { tail -n 5 "$LAB/server.out"; status=failed; }
        detail "$how: the peer's end after $(((${EPOCHREALTIME/./} - begin) / 1000)) ms;" \
            "$(grep -h blocks "$LAB/client.out")"
        kill -0 "$child" || { echo "the child has ended"; status=failed; }
        kill -KILL "$child"
        [ "$status" != failed ] || return 1
        detail "$(grep -h '^child:' "$LAB/client.out" | sort | uniq -c | paste -sd';')"
    done
}
shows "children beside a stream harm nothing, and the peer sees the parent's end although a child lives" forks
threads() {
    local server status=0
    starts "$LAB/server.out" -- echo "$AT" "$PORT" 1000 200 || return 1
    server=$PID
    runs "$LAB/client.out" threads "$AT" "$PORT" 1000 $((SECONDS_EACH * 500)) || status=1
    detail "$(paste -sd';' "$LAB/client.out")"
    ends "$server" "$LAB/server.out" || status=1
    return "$status"
}
shows "four threads on queue pairs of their own, then on one that they share" threads

canceled() {
    runs "$LAB/client.out" canceled "$AT" "$PORT" $((SECONDS_EACH * 3)) || return 1
    detail "$(cat "$LAB/client.out")"
}
shows "a thread that is canceled ends while a call waits, and harms nothing" canceled
canceled_sockets() {
    local EMBEDDED=("${EMBEDDED[@]}" --preload --peers "$AT/32")
    runs "$LAB/client.out" canceled-sockets "$AT" "$PORT" $((SECONDS_EACH * 3)) || return 1
    detail "$(cat "$LAB/client.out")"
}
shows "the same in a program of plain sockets, of which some become rsockets" canceled_sockets

destroyed() {
    runs "$LAB/client.out" destroyed "$AT" "$PORT" $((SECONDS_EACH * 8000)) || return 1
    detail "$(cat "$LAB/client.out")"
}
shows "objects that are destroyed while their events come: nobody hears of them afterwards" destroyed

strangers() {
    runs "$LAB/client.out" strangers "$AT" "$PORT" $((SECONDS_EACH * 60)) || return 1
    detail "$(cat "$LAB/client.out")"
}
shows "a listening rsocket rejects peers that are none, and keeps nothing of them" strangers
no_answers() {
    runs "$LAB/client.out" no-answers "$AT" "$PORT" || return 1
    detail "$(cat "$LAB/client.out")"
}
shows "servers of TCP that are no iWARP peers: the events of the kernel's CM, each with its status" no_answers
few_descriptors() {
    runs "$LAB/client.out" few-descriptors "$AT" "$PORT" || return 1
    detail "$(cat "$LAB/client.out")"
}
shows "a process with hardly a descriptor left: listeners are refused, or they accept" few_descriptors

# --- peers that stall, stop, reset or half-close
HOWS="bytes stall stall-close silent stop-early stop-late reset-early reset-late half-early half-late half-clean-late"
strange() {
    local server how pids=() names=() round before=() status=0
    starts "$LAB/server.out" -- echo "$AT" "$PORT" 60000 256 || return 1
    server=$PID
    for round in 1 2 3; do
        pids=() names=()
        for how in $HOWS; do
            in_ns timeout -k 5 30 "$HARD" raw "$AT" "$PORT" 60000 "$how" >"$LAB/raw.$how" 2>&1 &
            pids+=($!) names+=("$how")
        done
        runs "$LAB/client.out" ping "$AT" "$PORT" 60000 3 || status=1
        detail "$(cat "$LAB/client.out")"
        awk '$NF == "ms" && $(NF - 1) > 1000 {exit 1}' "$LAB/client.out" || { cat "$LAB/client.out"; status=1; }
        for how in "${!pids[@]}"; do
            wait "${pids[how]}" || { echo "${names[how]}: $(cat "$LAB/raw.${names[how]}")"; status=1; }
        done
        [ "$round" != 1 ] || sleep 0.5
        [ "$round" != 1 ] || before=("$(descriptors "$server")" "$(resident "$server")")
    done
    becomes yes 12 descriptors_are "$server" "${before[0]}" || status=1
    detail "after one round ${before[0]} descriptors, ${before[1]} KiB;" \
        "after three $(descriptors "$server"), $(resident "$server")"
    [ "$(resident "$server")" -lt $((before[1] + 4096)) ] || { echo "its memory grows"; status=1; }
    ends "$server" "$LAB/server.out" || status=1
    return "$status"
}
shows "peers that are slow, stall, stop, reset or half-close hold up nobody, and leave nothing" strange
score
