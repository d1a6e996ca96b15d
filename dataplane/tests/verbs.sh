#!/bin/bash
# Applications: programs that open queue pairs of iwarpd over its verbs socket, on two daemons that a switch connects.
# `make verbs`.
source "$(dirname "$0")/lib.sh"
source dataplane/tests/dissect.sh

EXCHANGE=${EXCHANGE:-${WATCH%/*}/exchange}
REGISTER=${REGISTER:-${WATCH%/*}/register}
NOTIFY=${NOTIFY:-${WATCH%/*}/notify}

lab_open ironwarp-verbs

# A switch with two ports, v0 and v1, each for one daemon.
ip -n "$NS" link add switch type bridge
kernel_side switch 78
for port in 0 1; do
    ip -n "$NS" link add "v$port" type veth peer name "s$port"
    ip -n "$NS" link set "s$port" master switch up
    ip -n "$NS" link set "v$port" up
done

# configure N MTU CORES: writes the configuration of daemon N.
configure() {
    local n=$1 mtu=$2 cores=$3
    cat >"$LAB/$n.toml" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 16384
file_prefix = "$NS-$n"
[[port]]
name = "port$n"
driver = "af_packet"
interface = "v$n"
mtu = $mtu
addresses = ["10.78.0.1$n/24", "fd78::1$n/64"]
[workers]
cores = [$cores]
idle = "adaptive"
[tcp]
connections_max = 2048
[[listener]]
port = 7400
service = "region"
[[region]]
name = "shared"
size = "1M"
access = ["remote-read", "remote-write"]
[control]
socket = "$LAB/$n.control"
[metrics]
listen = "$LAB/$n.metrics"
[applications]
socket = "$LAB/$n.verbs"
mode = "0666"
queue_pairs_max = 2048
memory_regions_max = 2048
watch_entries = 4
user_queue_pairs_max = 2048
user_share = 100
user_memory = "4G"
TOML
}
source "$(dirname "$0")/daemons.sh"
stop() { # N
    kill -TERM "${DAEMONS[$1]}" && wait_at_most 30 "${DAEMONS[$1]}"
    local status=$?
    unset "DAEMONS[$1]"
    return "$status"
}

# alone: waits until daemon 0 has no programs but the $HELD that the check itself has started. While an earlier one is
# not gone, a new one has its home on another worker, and cannot listen on the port of the earlier one's connections
# (docs/applications.md, Limits): a daemon learns that a program has ended when the kernel closes the program's socket.
alone() { becomes "${HELD:-0}" 20 programs_on 0; }
programs_on() { "$IWARPCTL" --socket "$LAB/$1.control" -j app list | jq length; } # N

# exchange OPTIONS…: a server on daemon 0 and a client on daemon 1, or CLIENT, at ADDRESS.
exchange() {
    local server status
    alone || return
    spawn "$LAB/server.out" ip netns exec "$NS" timeout 90 "$EXCHANGE" --socket "$LAB/0.verbs" --listen "$ADDRESS" "$@"
    server=$PID
    prints '^listening' "$LAB/server.out" || return
    in_ns timeout 60 "$EXCHANGE" --socket "$LAB/${CLIENT:-1}.verbs" --connect "$ADDRESS" "$@"
    status=$?
    [ "$status" = 0 ] || kill "$server" 2>/dev/null
    wait "$server" || status=$?
    cat "$LAB/server.out"
    [ "$status" = 0 ] || for n in 0 1; do "$IWARPCTL" --socket "$LAB/$n.control" drops 2>/dev/null; done
    return "$status"
}

in_ns nft -f - <<'NFT'
table bridge wire {
    counter segments { }
    chain prerouting {
        type filter hook prerouting priority 0;
        ip saddr 10.78.0.10 ip daddr 10.78.0.10 meta l4proto tcp counter name segments
        ip6 saddr fd78::10 ip6 daddr fd78::10 meta l4proto tcp counter name segments
    }
}
NFT
# unseen COMMAND…: runs it, and fails if a TCP segment from daemon 0 to itself reaches the switch meanwhile. Others may
# still end earlier connections.
unseen() {
    local seen
    in_ns nft reset counter bridge wire segments >/dev/null && "$@" || return 1
    seen=$(in_ns nft -j list counter bridge wire segments | jq '.nftables[1].counter.packets')
    [ "$seen" = 0 ] || { echo "$seen segments on the wire"; return 1; }
}
looped() { CLIENT=0 exchange "$@"; } # both programs on daemon 0
itself() { alone && in_ns timeout 60 "$EXCHANGE" --socket "$LAB/0.verbs" --listen "$ADDRESS" --itself "$@"; }
on_wire() { # the region service of daemon 0, from a program of daemon 1
    in_ns timeout 60 "$EXCHANGE" --socket "$LAB/1.verbs" --connect "${ADDRESS%:*}:7400" --region shared "$@"
}
with_region() { # the region service of daemon 0, from a program of the same
    in_ns timeout 60 "$EXCHANGE" --socket "$LAB/0.verbs" --connect "${ADDRESS%:*}:7400" --region shared "$@"
}
unlinked() { # while the port has no link
    local status=0
    ip -n "$NS" link set v0 down
    "$@" || status=1
    ip -n "$NS" link set v0 up
    return "$status"
}

for mtu in 1500 1280; do
    for port in 0 1; do ip -n "$NS" link set "v$port" mtu "$mtu" && ip -n "$NS" link set "s$port" mtu "$mtu"; done
    for n in 0 1; do
        # With the smaller MTU, daemon 0 has two workers, and its programs are at home on either.
        configure "$n" "$mtu" "$([ "$n$mtu" = 01280 ] && echo 0, 1 || echo "$n")"
        check "daemon $n starts, MTU $mtu" start "$n"
    done
    for ADDRESS in 10.78.0.10:7500 '[fd78::10]:7500'; do
        for size in 16 1000 65537 1048576; do
            check "one connection, $size bytes, $ADDRESS, MTU $mtu" exchange --size "$size"
        done
    done
    for size in 16 1000 65537 1048576; do
        check "memory of the programs, $size bytes, MTU $mtu" exchange --own --size "$size"
    done
    check "256 connections" exchange --connections 256 --size 4000
    for ADDRESS in 10.78.0.10:7500 '[fd78::10]:7500'; do
        for size in 16 65537 1048576; do
            check "two programs of one daemon, $size bytes, $ADDRESS, MTU $mtu" unseen looped --size "$size"
        done
        check "a program connects to itself, $ADDRESS, MTU $mtu" unseen itself
        check "a program connects to the region service of its daemon, $ADDRESS, MTU $mtu" \
            unseen with_region --size 1000000
        check "8 connections without a link, $ADDRESS, MTU $mtu" unlinked looped --connections 8
    done
    ADDRESS=10.78.0.10:7500
    check "256 connections of two programs of one daemon, MTU $mtu" \
        unseen looped --connections 256 --size 4000
    [ "$mtu" = 1280 ] || for n in 0 1; do check "daemon $n stops" stop "$n"; done
done

frame_by_frame v0 v1
in_ns nft -f - <<'NFT'
table bridge lossy {
    chain forward {
        type filter hook forward priority 0;
        numgen random mod 100 == 0 counter drop
    }
}
NFT
for ADDRESS in 10.78.0.10:7500 '[fd78::10]:7500'; do
    check "1 % loss: 8 connections of 1 MiB, $ADDRESS" exchange --connections 8
    check "1 % loss: 100 connections of 20,000 bytes, $ADDRESS" exchange --connections 100 --size 20000
    check "1 % loss: memory of the programs, $ADDRESS" exchange --own --connections 8 --size 100000
done
check "stop losing" in_ns nft delete table bridge lossy

# A link that loses and reorders in place of the switch.
bad_link() { # OPTIONS of impair.py
    local port
    for port in 0 1; do
        ip -n "$NS" link set "s$port" nomaster
        frame_by_frame "s$port"
    done
    spawn "$LAB/impair.json" ip netns exec "$NS" python3 dataplane/tests/impair.py s0 s1 "$@"
    IMPAIR=$PID
    prints ready "$LAB/impair.json"
}
good_link() { # fails unless frames were lost and reordered
    local port
    kill -TERM "$IMPAIR" && wait "$IMPAIR"
    for port in 0 1; do ip -n "$NS" link set "s$port" master switch; done
    tail -n 1 "$LAB/impair.json"
    tail -n 1 "$LAB/impair.json" | jq -e '.lost > 100 and .reordered > 500'
}
check "a link that loses 1 % and reorders 5 %" bad_link --loss 0.01 --reorder 0.05 --reorder-ms 2
for ADDRESS in 10.78.0.10:7500 '[fd78::10]:7500'; do
    check "loss and reordering: 8 connections of 1 MiB, $ADDRESS" exchange --connections 8
    check "loss and reordering: 100 connections of 20,000 bytes, $ADDRESS" exchange --connections 100 --size 20000
    check "loss and reordering: memory of the programs, $ADDRESS" exchange --own --connections 8 --size 100000
done
check "frames were lost and reordered" good_link

# --- what MPA negotiates, on the wire
restarts() { # CRC MARKERS: both daemons start again with these keys
    local n
    for n in 0 1; do
        stop "$n" && cp "$LAB/$n.toml" "$LAB/$n.plain" || return 1
        printf '[mpa]\ncrc = "%s"\nmarkers = "%s"\n' "$@" >>"$LAB/$n.toml"
        start "$n" || return 1
        mv "$LAB/$n.plain" "$LAB/$n.toml"
    done
}
agreed() { # REVISION CRC MARKERS OPTIONS…: an exchange, whose MPA Request and Reply have this revision and these flags
    local seen="$LAB/mpa.pcap" pid frame status=0
    ip netns exec "$NS" tcpdump -Uni s1 -B 65536 -w "$seen" 'tcp port 7500' >/dev/null 2>"$LAB/tcpdump.log" &
    pid=$!
    becomes 1 5 grep -c 'listening on' "$LAB/tcpdump.log" && exchange --mpa-revision "$1" "${@:4}" || status=1
    sleep 0.5
    kill -TERM "$pid"
    wait "$pid"
    for frame in req rep; do
        at_least 1 "$seen" "iwarp_mpa.$frame && iwarp_mpa.rev == $1 && iwarp_mpa.crc_flag == $2 &&
            iwarp_mpa.marker_flag == $3" || status=1
    done
    [ "$3" = 0 ] || at_least 10 "$seen" iwarp_mpa.markers || status=1
    return "$status"
}
for ADDRESS in 10.78.0.10:7500 '[fd78::10]:7500'; do
    check "MPA revision 1, $ADDRESS" agreed 1 1 0 --size 100000
    check "MPA revision 2, $ADDRESS" agreed 2 1 0 --size 100000
done
check "daemons without CRC" restarts off off
for ADDRESS in 10.78.0.10:7500 '[fd78::10]:7500'; do check "no CRC, $ADDRESS" agreed 2 0 0 --size 100000; done
check "daemons that ask for markers" restarts on receive
for ADDRESS in 10.78.0.10:7500 '[fd78::10]:7500'; do
    check "markers, $ADDRESS" agreed 2 1 1 --size 100000
    check "markers, MPA revision 1, $ADDRESS" agreed 1 1 1 --size 100000
done
check "daemons with neither" restarts on off

# --- streams without an MPA Request, opened by the kernel
silent() { # COUNT: as many more, three times, each time with an honest client; and one when they are gone
    local holders=() round server served=0
    spawn "$LAB/server.out" in_ns "$EXCHANGE" --socket "$LAB/0.verbs" --listen "$ADDRESS" --connections 4 --size 1000
    server=$PID
    prints '^listening' "$LAB/server.out" || return 1
    for round in 1 2 3; do
        spawn "$LAB/silent.$round" ip netns exec "$NS" \
            python3 dataplane/tests/hold.py "$(tr -d '[]' <<<"${ADDRESS%:*}")" 7500 - "$1" --silent
        holders+=("$PID")
        prints "^$1 connections are open" "$LAB/silent.$round" && honest || break
        served=$round
    done
    kill "${holders[@]}"
    wait "${holders[@]}" 2>/dev/null
    [ "$served" = 3 ] && honest && wait "$server" && return
    kill "$server" 2>/dev/null
    cat "$LAB/server.out"
    return 1
}
honest() { in_ns timeout 30 "$EXCHANGE" --socket "$LAB/1.verbs" --connect "$ADDRESS" --size 1000; }
for ADDRESS in 10.78.0.10:7500 '[fd78::10]:7500'; do
    for count in 64 65 200; do
        check "$count silent connections, three times, keep no client out, $ADDRESS" silent $count
    done
done

# --- a region service, from our TCP to our TCP
for ADDRESS in 10.78.0.10:7500 '[fd78::10]:7500'; do
    check "a program writes a region of the other daemon and reads it back, $ADDRESS" on_wire --size 1000000
done

# --- the histogram of completions
scrape() { curl -sS --max-time 10 --unix-socket "$LAB/$1.metrics" http://localhost/metrics; } # N
completions() { # N: successful send requests that daemon N has timed
    scrape "$1" | awk '/^iwarp_verbs_completion_seconds_count/ {sum += $NF} END {print sum + 0}'
}
timed() { # those of both programs
    local before=() n
    for n in 0 1; do before[n]=$(completions "$n"); done
    exchange --size 1000 || return 1
    for n in 0 1; do
        becomes more 5 compared "$n" "${before[n]}" || return 1
        [ "$(scrape "$n" | grep -c '^iwarp_verbs_completion_seconds_bucket{')" -ge 25 ] || return 1
    done
}
compared() { [ "$(completions "$1")" -gt "$2" ] && echo more; } # N BEFORE
check "completions are timed" timed

# --- programs that watch a region of daemon 0
watching() { # COUNT OPTIONS…: starts a program that receives COUNT messages, as $WATCHER
    spawn "$LAB/notify.out" "$NOTIFY" --socket "$LAB/0.verbs" --count "$@" shared
    WATCHER=$PID
    prints ^watching "$LAB/notify.out"
}
taken() { # the program has ended with 0, and has printed lines with each PATTERN
    local pattern
    wait_at_most 10 "$WATCHER"
    local status=$?
    cat "$LAB/notify.out"
    [ "$status" = 0 ] || return 1
    for pattern in "$@"; do grep -q "$pattern" "$LAB/notify.out" || { echo "no $pattern"; return 1; }; done
}
head -c 300001 /dev/urandom >"$LAB/file"
BEGINS="begins \\[$(od -An -tx1 -N8 "$LAB/file" | sed 's/^ //; s/ /, /g')\\]"
send() { remote put --immediate 0xfeed "$LAB/file" "${ADDRESS%:*}:7400/shared"; }
told_by_put() { watching 1 && send && taken "^shared immediate 0xfeed, 300001 bytes written; $BEGINS"; }
told_by_programs() { # of a Write with Immediate Data: over the wire, and of this daemon
    watching 2 && with_region --immediate 1 --size 70000 && on_wire --immediate 2 --size 16 &&
        taken '^shared immediate 0x1, 70000 bytes' '^shared immediate 0x2, 16 bytes'
}
for ADDRESS in 10.78.0.10:7500 '[fd78::10]:7500'; do
    check "a program learns of a put with Immediate Data, $ADDRESS" told_by_put
    check "a program learns of Writes with Immediate Data, $ADDRESS" told_by_programs
done
ADDRESS=10.78.0.10:7500
untold() { # without a watcher there is no buffer: the put fails, and says why
    ! send >"$LAB/untold" 2>&1 && cat "$LAB/untold" && grep -q 'needs a program there that watches' "$LAB/untold"
}
check "without a watcher, Immediate Data ends the connection" untold
app_watches() { "$IWARPCTL" --socket "$LAB/0.control" -j app show "$1" | jq -c "$2"; }
overrun() { # a stopped program loses messages, and delays nobody; both rings of the watch have 4 entries
    local app delivered
    watching 1 || return 1
    kill -STOP "$WATCHER"
    app=$("$IWARPCTL" --socket "$LAB/0.control" -j app list | jq '.[0].app')
    for _ in $(seq 12); do on_wire --immediate 3 --size 16 || return 1; done
    "$IWARPCTL" --socket "$LAB/0.control" app show "$app"
    [ "$(app_watches "$app" '[.watches[] | .region, .notifications + .lost]')" = '["shared",12]' ] || return 1
    delivered=$(app_watches "$app" '.watches[0].notifications')
    echo "$delivered delivered"
    [ "$delivered" -ge 4 ] && [ "$delivered" -le 8 ] && kill -CONT "$WATCHER" &&
        taken "^$((12 - delivered)) messages lost"
}
check "a watcher that does not poll loses messages" overrun
watcher_killed() {
    watching 1 && kill -KILL "$WATCHER" && ! wait "$WATCHER"
    becomes 0 5 eval '"$IWARPCTL" --socket "$LAB/0.control" -j app list | jq length' && untold
}
check "a watcher that is killed leaves nothing" watcher_killed
verbs_on_0() { python3 dataplane/tests/verbs.py "$1" "$LAB/0.verbs" "${@:2}"; }
chmod 755 "$LAB"
check "wrong requests for watches, and their limits" verbs_on_0 watches
region_gone() {
    "$IWARPCTL" --socket "$LAB/0.control" region register temporary --size 4096 --access remote-write || return 1
    spawn "$LAB/notify.out" "$NOTIFY" --socket "$LAB/0.verbs" temporary
    WATCHER=$PID
    prints ^watching "$LAB/notify.out" && "$IWARPCTL" --socket "$LAB/0.control" region deregister temporary || return 1
    ! wait_at_most 10 "$WATCHER" && cat "$LAB/notify.out" &&
        grep -q 'region temporary is deregistered' "$LAB/notify.out"
}
check "a watcher learns that its region is gone" region_gone

# On daemon 1, which has one worker.
verbs() { python3 dataplane/tests/verbs.py "$1" "$LAB/${ON:-1}.verbs" "${@:2}"; }
check "wrong requests, and objects of others" verbs requests
check "memory that is registered is closed to its program" verbs memory
check "parts of a program's own memory" verbs parts
# --- memory of programs
register() { "$REGISTER" --socket "$LAB/1.verbs" "$@"; }
# 60 ms and less on a quiet machine. The limit leaves room for one that is not.
LIMIT_MS=${VERBS_REGISTER_MS:-300}
check "64 MiB are registered in $LIMIT_MS ms while a thread writes elsewhere" \
    at_best register --elsewhere --limit-ms "$LIMIT_MS"
check "64 MiB are registered while threads write it" register
check "small memory is registered while threads write" register --size 12345
as_user() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
without_right() { # a program that may not stop system calls has its memory reached through the kernel
    cp "$REGISTER" "$LAB/register" && chmod 755 "$LAB" "$LAB/register" &&
        as_user "$LAB/register" --socket "$LAB/1.verbs" "$@"
}
check "a program without a right to userfaultfd registers memory" without_right --size 10000000
kinds() { # `mr list` shows how the daemon reaches memory: all kinds, and what it costs
    local program status=0
    spawn "$LAB/register.out" "$@" --stay --size 10000 --rounds 1
    program=$PID
    prints here "$LAB/register.out" || return
    "$IWARPCTL" --socket "$LAB/1.control" mr list
    "$IWARPCTL" --socket "$LAB/1.control" -j mr list |
        jq -e 'map([.bytes, .kind]) | sort == [[512, "kernel"], [10000, "shared_and_kernel"]]' || status=1
    kill -KILL "$program"
    wait "$program" 2>/dev/null
    return "$status"
}
check "iwarpctl lists the kinds of memory" kinds "$REGISTER" --socket "$LAB/1.verbs"
check "a program with one thread exchanges its pages without that right" kinds \
    setpriv --reuid 65534 --regid 65534 --clear-groups "$LAB/register" --socket "$LAB/1.verbs" --alone
check "1,000 queue pairs in under a second" at_best verbs many
PROGRAMS=${VERBS_PROGRAMS:-1000}
check "$PROGRAMS programs killed at random points leave nothing" in_ns \
    python3 dataplane/tests/verbs.py killed "$LAB/1.verbs" "$PROGRAMS" "$IWARPCTL" "$LAB/1.control" 10.78.0.11

# --- failures
control() { "$IWARPCTL" --socket "$LAB/0.control" -j "$@"; }
holds() { # starts a program that holds objects of daemon 0, as $HOLDER
    spawn "$LAB/stay.out" python3 dataplane/tests/verbs.py stay "$LAB/0.verbs"
    HOLDER=$PID
    prints here "$LAB/stay.out"
}
stopped() { # a stopped program keeps nobody from working
    holds && kill -STOP "$HOLDER" && HELD=1 exchange --connections 4 && kill -KILL "$HOLDER" &&
        becomes 0 5 eval 'control app list | jq length'
}
ADDRESS=10.78.0.10:7500
check "a stopped program delays nobody" stopped
listed() { # what a program holds is listed while it lives
    local app
    holds || return 1
    app=$(control app list | jq '.[0].app')
    control app show "$app" && control qp list && control cq list && control mr list
    control app show "$app" | jq -e ".pid == $HOLDER and .command == \"python3\" and .queue_pairs == 5" &&
        [ "$(control qp list | jq length)" = 5 ] && [ "$(control cq list | jq length)" = 1 ] &&
        [ "$(control mr list | jq -c '[.[] | [.bytes, .app]]')" = "[[1048576,$app]]" ] || return 1
    kill -KILL "$HOLDER"
    becomes 0 5 eval 'control app list | jq length' && [ "$(control mr list | jq length)" = 0 ]
}
check "iwarpctl lists programs and their objects" listed
long_server() { # starts a server of a long transfer on daemon 0, as $SERVER
    alone || return
    spawn "$LAB/server.out" ip netns exec "$NS" "$EXCHANGE" --socket "$LAB/0.verbs" --listen "$ADDRESS" \
        --size 60000000
    SERVER=$PID
    prints '^listening' "$LAB/server.out"
}
served() { # the connections of a program name it
    local server client app
    long_server || return 1
    server=$SERVER
    ip netns exec "$NS" "$EXCHANGE" --socket "$LAB/1.verbs" --connect "$ADDRESS" --size 60000000 >/dev/null 2>&1 &
    client=$!
    app=$(control app list | jq '.[0].app')
    becomes "[$app]" 5 eval 'control conn list | jq -c "[.[].app | numbers]"' || return 1
    kill -KILL "$server" "$client" 2>/dev/null
    wait "$server" "$client" 2>/dev/null
    return 0
}
check "a connection names its program" served
client_killed() { # the server's side ends with an error, at once
    local server client
    long_server || return 1
    server=$SERVER
    ip netns exec "$NS" "$EXCHANGE" --socket "$LAB/1.verbs" --connect "$ADDRESS" --size 60000000 &
    client=$!
    becomes 1 5 eval 'control conn list | jq "[.[].app | numbers] | length"' || return 1
    kill -KILL "$client"
    wait "$client" 2>/dev/null
    timeout 5 tail --pid="$server" -f /dev/null || return 1
    ! wait "$server" && cat "$LAB/server.out" && grep 'the peer has closed\|Disconnected\|Terminated' "$LAB/server.out"
}
check "kill -9 of a program: its peer learns it" client_killed
daemon_killed() { # all work of its programs completes within 100 ms, and the next daemon serves
    local server client begin ms
    long_server || return 1
    server=$SERVER
    ip netns exec "$NS" "$EXCHANGE" --socket "$LAB/1.verbs" --connect "$ADDRESS" --size 60000000 \
        >"$LAB/client.out" 2>&1 &
    client=$!
    becomes 1 5 eval 'control conn list | jq "[.[].app | numbers] | length"' || return 1
    kill -KILL "${DAEMONS[1]}"
    wait "${DAEMONS[1]}" 2>/dev/null
    begin=$(date +%s%N)
    timeout 5 tail -s 0.01 --pid="$client" -f /dev/null || return 1
    ms=$((($(date +%s%N) - begin) / 1000000))
    echo "ended after $ms ms: $(cat "$LAB/client.out")"
    kill -KILL "$server"
    wait "$server" 2>/dev/null
    ! wait "$client" && start 1 && exchange &&
        grep 'iwarpd has ended: [1-9][0-9]* requests' "$LAB/client.out" && [ "$ms" -le 100 ]
}
check "kill -9 of the daemon: all work of its programs completes, and the next one serves" at_best daemon_killed

daemon_ended() {
    watching 1 && stop 0 || return 1
    ! wait_at_most 10 "$WATCHER" && cat "$LAB/notify.out" && grep -q 'iwarpd has ended' "$LAB/notify.out"
}
check "daemon 0 stops, and a watcher learns it" daemon_ended
# The worker always polls: no program has to wake it.
sed -i 's/^idle = .*/idle = "spin"/' "$LAB/1.toml"
check "daemon 1 starts again, without sleep" eval 'stop 1 && start 1'
calls_of() { # ROUNDS: system calls of a program that posts and polls so often, but for those that give the CPU away
    in_ns strace -f -c -U calls,name -o "$LAB/strace" "$EXCHANGE" --socket "$LAB/1.verbs" \
        --listen 10.78.0.11:7500 --itself --rounds "$1" --size 64 >&2 || return 1
    awk '$2 == "sched_yield" { yields = $1 } $2 == "total" { print $1 - yields }' "$LAB/strace"
}
no_calls() { # 20,000 requests more are posted and polled by no system call more, but for a thread that starts later
    local few many
    few=$(calls_of 1) || return 1
    # A few calls more, of the start and the end, come and go with the load of the machine.
    for _ in 1 2 3; do
        many=$(calls_of 10001) && echo "$few calls, then $many" && [ "$many" -le $((few + 20)) ] && return
    done
    return 1
}
check "posting and polling make no system calls, except to give the CPU away" no_calls
sed -i '/^user_/d' "$LAB/0.toml"
cat >>"$LAB/0.toml" <<TOML
user_contexts_max = 3
user_queue_pairs_max = 40
user_queue_entries_max = 2000
user_memory = "12M"
TOML
check "daemon 0 starts with limits for a user" start 0
ON=0
check "a user's limits" verbs limits
for n in 0 1; do check "daemon $n stops" stop "$n"; done

score
