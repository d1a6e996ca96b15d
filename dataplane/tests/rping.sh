#!/bin/bash
# rping and region commands between programs that run their own dataplane or are applications of iwarpd; the kernel's
# TCP is on neither side. They run over a bridge in a namespace, a TAP, and shared memory. `make rping`.
source "$(dirname "$0")/lib.sh"

RPING=${RPING:-${BUILT:-target/release}/iwarp-rping}

lab_open ironwarp-rping

# Creates a switch with three ports, v0 to v2, each for one program.
ip -n "$NS" link add switch type bridge
ip -n "$NS" link set switch up
for port in 0 1 2; do
    ip -n "$NS" link add "v$port" type veth peer name "s$port"
    ip -n "$NS" link set "s$port" master switch up
    ip -n "$NS" link set "v$port" up
done

# port N: prints the options of a program on that port of the switch; odd ports use the second core.
port() {
    local core=$(($1 % 2 < $(nproc) ? $1 % 2 : 0))
    PORT=(--driver af_packet --interface "v$1" --address "10.79.0.1$1/24" --address "fd79::1$1/64" --core "$core")
}
port 0 && ON0=("${PORT[@]}")
port 1 && ON1=("${PORT[@]}")
port 2 && ON2=("${PORT[@]}")

# run NAME COMMAND…: starts a program with its output in $LAB/NAME.out and .err, and its process number in $PID.
run() {
    local name=$1
    shift
    : >"$LAB/$name.out"
    : >"$LAB/$name.err"
    ip netns exec "$NS" "$@" >"$LAB/$name.out" 2>"$LAB/$name.err" &
    PID=$!
}
says() { # NAME PATTERN: within ten seconds
    for _ in $(seq 500); do
        grep -qE "$2" "$LAB/$1.err" "$LAB/$1.out" && return
        sleep 0.02
    done
    echo "$1 has not said '$2':"
    cat "$LAB/$1.err"
    return 1
}
ends() { # NAME PID STATUS
    local status
    # A hanging program is killed.
    timeout 20 tail --pid="$2" -f /dev/null || kill -KILL "$2"
    wait "$2"
    status=$?
    [ "$status" = "$3" ] && return
    echo "$1 has ended with $status:"
    cat "$LAB/$1.err"
    return 1
}
server() { # OPTIONS…: on port 0
    run server "$RPING" -s "$@" "${ON0[@]}"
    SERVER=$PID
    says server '^listening on'
}
client() { # OPTIONS…: on port 1, with its statistics in client.out
    timeout 30 ip netns exec "$NS" "$RPING" -c -j "$@" "${ON1[@]}" >"$LAB/client.out" 2>"$LAB/client.err"
    local status=$?
    cat "$LAB/client.out" "$LAB/client.err"
    return "$status"
}
rounds() { jq -e ".rounds == $1 and .failed == 0 and .error == null" "$LAB/client.out"; }

# --- texts
texts() { # SIZE ROUNDS OPTIONS…
    local size=$1 count=$2
    shift 2
    local options=("$@")
    [ "${1-}" != --rtr ] || options=()
    server -V "${options[@]}" && client -V -a 10.79.0.10 -S "$size" -C "$count" "$@" && rounds "$count" &&
        ends server "$SERVER" 0 && grep -q "^server: $count rounds" "$LAB/server.err"
}
for size in 16 64 1000 4k 65535 64k; do
    check "300 rounds of $size, compared" texts "$size" 300
done
check "20 rounds of 1M, compared" texts 1M 20
check "MPA revision 1" texts 4k 100 --mpa-revision 1
check "without CRC" texts 4k 100 --crc off
check "with markers" texts 64k 100 --markers
for rtr in write read send write,read,send; do
    check "beginning with a ready-to-receive message: $rtr" texts 4k 100 --rtr $rtr
done
over_ipv6() {
    server -V -a ::0 && client -V -a fd79::10 -I fd79::11 -S 4k -C 100 && rounds 100 && ends server "$SERVER" 0
}
check "over IPv6, from a given address" over_ipv6
shown() { # the lines are those of rdma-core's rping
    server -v && timeout 30 ip netns exec "$NS" "$RPING" -c -v -a 10.79.0.10 -C 2 -S 32 "${ON1[@]}" \
        >"$LAB/client.out" &&
        ends server "$SERVER" 0 && diff - "$LAB/client.out" <<'TEXT' && diff - "$LAB/server.out" <<'TEXT'
ping data: rdma-ping-0: ABCDEFGHIJKLMNOPQR
ping data: rdma-ping-1: BCDEFGHIJKLMNOPQRS
TEXT
server ping data: rdma-ping-0: ABCDEFGHIJKLMNOPQR
server ping data: rdma-ping-1: BCDEFGHIJKLMNOPQRS
TEXT
}
check "-v shows the texts of both sides" shown

# --- other ports
over_taps() { # a TAP joins the switch after its program has created it
    run server "$RPING" -s -V --driver tap --interface t0 --address 10.79.0.20/24
    SERVER=$PID
    says server '^listening on' && ip -n "$NS" link set t0 master switch up || return
    (
        for _ in $(seq 500); do
            ip -n "$NS" link set t1 master switch up 2>/dev/null && break
            sleep 0.02
        done
    ) &
    timeout 30 ip netns exec "$NS" "$RPING" -c -j -V -a 10.79.0.20 -C 300 -S 4k --driver tap --interface t1 \
        --address 10.79.0.21/24 >"$LAB/client.out" && rounds 300 && ends server "$SERVER" 0
}
check "over a TAP on each side" over_taps
memif() { # ROLE NUMBER
    cat >"$LAB/memif-$1.toml" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 8192
file_prefix = "$NS"
[workers]
cores = [0]
idle = "adaptive"
[tcp]
connections_max = 64
[[port]]
driver = "memif"
role = "$1"
id = 0
socket = "$LAB/memif.sock"
mac = "02:69:77:00:00:0$2"
addresses = ["10.80.0.$2/24"]
TOML
}
over_memif() {
    memif server 1 && memif client 2 || return
    run server "$RPING" -s -V --config "$LAB/memif-server.toml"
    SERVER=$PID
    says server '^listening on' || return
    timeout 30 "$RPING" -c -j -V -a 10.80.0.1 -C 300 -S 64k --config "$LAB/memif-client.toml" >"$LAB/client.out" &&
        rounds 300 && ends server "$SERVER" 0
}
check "over shared memory (memif)" over_memif

# --- persistent servers, several clients
several() { # one after the other, and two at a time
    local other
    server -P -V || return
    for _ in 1 2 3; do
        client -V -a 10.79.0.10 -C 50 -S 4k && rounds 50 || return
    done
    run other "$RPING" -c -V -a 10.79.0.10 -S 64k "${ON2[@]}"
    other=$PID
    says other '^connected' && client -V -a 10.79.0.10 -C 100 -S 4k && rounds 100 &&
        kill -INT "$other" && ends other "$other" 0 && kill -INT "$SERVER" && ends server "$SERVER" 0 &&
        grep -qE '^server: .* 5 connections' "$LAB/server.err"
}
check "-P: clients one after the other and at the same time; SIGINT ends client and server well" several
interrupted() { # an interrupt before all rounds is a failure, but an orderly one
    local other
    server -V || return
    run other "$RPING" -c -V -a 10.79.0.10 -C 100000000 "${ON2[@]}"
    other=$PID
    says other '^connected' && kill -TERM "$other" && ends other "$other" 1 && says other 'interrupted after' &&
        ends server "$SERVER" 0
}
check "a client that is stopped says how far it came" interrupted
client_vanishes() {
    local other
    server -P -V --timeout 1 || return
    run other "$RPING" -c -V -a 10.79.0.10 -S 64k "${ON2[@]}"
    other=$PID
    says other '^connected' && kill -KILL "$other" && says server 'silent for 1 s' &&
        client -V -a 10.79.0.10 -C 50 -S 4k && rounds 50 && kill -INT "$SERVER" && ends server "$SERVER" 0
}
check "a client that disappears: told, and the next is served" client_vanishes
server_vanishes() {
    local other
    server -V || return
    run other "$RPING" -c -V -a 10.79.0.10 --timeout 1 "${ON2[@]}"
    other=$PID
    says other '^connected' && kill -KILL "$SERVER" && ends other "$other" 1 && says other 'silent for 1 s'
}
check "a server that disappears: exit 1" server_vanishes

# --- silent connections: opened by the kernel, through the switch. Checksums must be complete, because no hardware of
# the port completes them.
in_ns ethtool -K switch tx off >/dev/null 2>&1
ip -n "$NS" addr add 10.79.0.1/24 dev switch
ip -n "$NS" addr add fd79::1/64 dev switch nodad
silent() { # COUNT SERVER-ADDRESS: opens COUNT more, three times, each followed by an honest client
    local holders=() round served=0
    server -P -V -a "$2" || return
    for round in 1 2 3; do
        run "silent$round" python3 dataplane/tests/hold.py "$2" 7174 - "$1" --silent
        holders+=("$PID")
        says "silent$round" "$1 connections are open" && client -V -a "$2" -C 20 && rounds 20 || break
        served=$round
    done
    kill "${holders[@]}"
    wait "${holders[@]}" 2>/dev/null
    [ "$served" = 3 ] && client -V -a "$2" -C 20 && rounds 20 && kill -INT "$SERVER" && ends server "$SERVER" 0 &&
        grep -qE '^server: .* 4 connections' "$LAB/server.err"
}
for count in 64 65 200; do
    check "$count silent connections, three times, keep no client out" silent $count 10.79.0.10
    check "the same over IPv6" silent $count fd79::10
done

# --- refusals
refuses() { # STATUS PATTERN COMMAND…
    local want=$1 pattern=$2 got
    shift 2
    timeout 20 ip netns exec "$NS" "$@" >"$LAB/refused" 2>&1
    got=$?
    cat "$LAB/refused"
    [ "$got" = "$want" ] && grep -qE "$pattern" "$LAB/refused"
}
too_long() {
    server -S 1k && refuses 1 'ended in the middle' "$RPING" -c -a 10.79.0.10 -S 2k -C 1 "${ON1[@]}" &&
        ends server "$SERVER" 1 && says server '2048 bytes.*room for 1024'
}
check "a text that has no room: both say so, exit 1" too_long
nobody_listens() {
    server -p 7175 && refuses 1 'nobody' "$RPING" -c -a 10.79.0.10 -C 1 "${ON1[@]}" && kill -INT "$SERVER" &&
        ends server "$SERVER" 0
}
check "nobody listens there: exit 1" nobody_listens
check "nobody is there: exit 1" refuses 1 'nobody|silent' "$RPING" -c -a 10.79.0.99 -C 1 --timeout 2 "${ON1[@]}"
check "an address that is not the port's: exit 1" refuses 1 "not one of this port's" "$RPING" -s -a 10.79.0.77 \
    "${ON1[@]}"
check "no port: exit 2" refuses 2 'config' "$RPING" -s
check "no such file: exit 2" refuses 2 'nowhere' "$RPING" -s --config /nowhere.toml

# --- regions
head -c 10000000 /dev/urandom >"$LAB/file"
printf 'open sesame' >"$LAB/token"
printf 'open barley' >"$LAB/wrong"
cat >"$LAB/iwarpd.toml" <<TOML
[memory]
hugepages = "prefer"
file_prefix = "$NS"
[control]
socket = "$SOCKET"
[workers]
cores = [0]
idle = "adaptive"
[[port]]
name = "p0"
driver = "af_packet"
interface = "v0"
addresses = ["10.79.0.10/24", "fd79::10/64"]
[[listener]]
port = 7400
service = "region"
[[region]]
name = "lab"
size = "16M"
access = ["remote-read", "remote-write"]
[[region]]
name = "secret"
size = "1M"
access = ["remote-read", "remote-write"]
token_file = "$LAB/token"
[[region]]
name = "lab-ro"
size = "1M"
access = ["remote-read"]
TOML
region() { # COMMAND…: on port 1
    timeout 30 ip netns exec "$NS" "$RPING" "$@" "${ON1[@]}"
}
put_get() { # HOST OPTIONS…
    local host=$1
    shift
    rm -f "$LAB/got"
    region put "$LAB/file" "$host:7400/lab+1" --verify "$@" &&
        region get "$host:7400/lab+1" "$LAB/got" --length 10000000 "$@" &&
        [ "$(digest "$LAB/file")" = "$(digest "$LAB/got")" ]
}
pings() { region ping 10.79.0.10:7400/lab -c 500 -s 64 -j | tee "$LAB/ping" &&
    jq -e '.count == 500 and .min_ns > 0' "$LAB/ping"; }
with_token() {
    region put "$LAB/token" 10.79.0.10:7400/secret --token-file "$LAB/token" &&
        region get 10.79.0.10:7400/secret "$LAB/got" --length 11 --token-file "$LAB/token" &&
            cmp "$LAB/token" "$LAB/got"
}
refused() { refuses "$1" "$2" "$RPING" "${@:3}" "${ON1[@]}"; }
no_connection_left() { ctl -j conn list | jq -e 'length == 0'; }

check "iwarpd comes up on a port of the switch" daemon_start "$LAB/iwarpd.toml"
check "put and get, 10 MB, the same digest" put_get 10.79.0.10
check "the same over IPv6" put_get '[fd79::10]'
check "the same with MPA revision 1" put_get 10.79.0.10 --mpa-revision 1
check "ping: 500 reads" pings
check "a region that wants a token" with_token
check "the wrong token: exit 5" refused 5 'does not permit' get 10.79.0.10:7400/secret - --token-file "$LAB/wrong"
check "no token: exit 5" refused 5 'does not permit' get 10.79.0.10:7400/secret -
check "a write to what is for reading: exit 5" refused 5 'does not permit' put "$LAB/token" 10.79.0.10:7400/lab-ro
check "no such region: exit 4" refused 4 'has no region' ping 10.79.0.10:7400/nothing
check "beyond the region: exit 1" refused 1 'do not fit' put "$LAB/file" 10.79.0.10:7400/lab+10M
check "nobody listens on that port: exit 3" refused 3 'cannot reach' ping 10.79.0.10:7401/lab
check "every connection has closed in good order" no_connection_left
check "the daemon ends" daemon_stop

# --- applications: one daemon on port 0, one on port 1
daemon_on() { # PORT: the daemon's sockets are $LAB/PORT.control and $LAB/PORT.verbs
    cat >"$LAB/$1.toml" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 8192
file_prefix = "$NS-$1"
[control]
socket = "$LAB/$1.control"
[applications]
socket = "$LAB/$1.verbs"
[workers]
cores = [$(($1 % $(nproc)))]
idle = "adaptive"
[[port]]
name = "p$1"
driver = "af_packet"
interface = "v$1"
addresses = ["10.79.0.1$1/24", "fd79::1$1/64"]
TOML
    SOCKET="$LAB/$1.control" daemon_start "$LAB/$1.toml"
}
# application_server OPTIONS…, application_client OPTIONS…: as server and client, of the daemons on port 0 and on port 1
application_server() {
    local ON0=(--daemon "$LAB/0.verbs")
    server "$@"
}
application_client() {
    local ON1=(--daemon "$LAB/1.verbs")
    client "$@"
}
pair() { # SERVER CLIENT HOST SIZE ROUNDS: runs texts between a server and a client
    "$1" -V -a "$3" && "$2" -V -a "$3" -S "$4" -C "$5" && rounds "$5" && ends server "$SERVER" 0 &&
        grep -q "^server: $5 rounds" "$LAB/server.err"
}
pairs() { # TITLE SERVER CLIENT
    local case
    for case in 16:100 64:100 1000:100 65535:100 1M:10; do
        check "$1: ${case#*:} rounds of ${case%:*}" pair "$2" "$3" 10.79.0.10 "${case%:*}" "${case#*:}"
        check "$1: ${case#*:} rounds of ${case%:*} over IPv6" pair "$2" "$3" fd79::10 "${case%:*}" "${case#*:}"
    done
}
applications_left() { # PORT: prints how many applications and objects the daemon has
    local list
    for list in app qp cq mr; do
        "$IWARPCTL" --socket "$LAB/$1.control" -j "$list" list
    done | jq -s 'map(length) | add'
}
revision_1() {
    application_server -V && application_client -V -a 10.79.0.10 -C 50 --mpa-revision 1 && rounds 50 &&
        ends server "$SERVER" 0
}
many_clients() { # one after the other, and two at a time
    local other
    application_server -P -V || return
    for _ in 1 2 3; do
        application_client -V -a 10.79.0.10 -C 50 -S 4k && rounds 50 || return
    done
    run other "$RPING" -c -V -a fd79::10 -S 64k --daemon "$LAB/1.verbs"
    other=$PID
    says other '^connected' && application_client -V -a 10.79.0.10 -C 100 -S 4k && rounds 100 &&
        kill -INT "$other" && ends other "$other" 0 && kill -INT "$SERVER" && ends server "$SERVER" 0 &&
        grep -qE '^server: .* 5 connections' "$LAB/server.err"
}
application_vanishes() {
    local other
    application_server -P -V || return
    run other "$RPING" -c -V -a 10.79.0.10 -S 64k --daemon "$LAB/1.verbs"
    other=$PID
    says other '^connected' && kill -KILL "$other" && says server 'has ended|has disconnected|terminated' &&
        application_client -V -a 10.79.0.10 -C 50 -S 4k && rounds 50 && kill -INT "$SERVER" && ends server "$SERVER" 0
}
daemon_vanishes() {
    application_server -V || return
    kill -KILL "${DAEMONS[0]}"
    says server 'iwarpd has ended' && ends server "$SERVER" 1
}
declare -A DAEMONS
end_daemons() {
    local pid
    kill "${DAEMONS[@]}" 2>/dev/null
    for pid in "${DAEMONS[@]}"; do wait_at_most 20 "$pid" 2>/dev/null; done
}
AT_END+=(end_daemons)
start_on() { daemon_on "$1" && DAEMONS[$1]=$DAEMON_PID && DAEMON_PID=; }
check "a daemon on port 1" start_on 1
pairs "its client, a server with its own dataplane" server application_client
check "a daemon on port 0" start_on 0
pairs "server and client of daemons" application_server application_client
check "MPA revision 1" revision_1
check "-P: clients of a daemon, one after the other and at the same time" many_clients
check "a client that is killed: its server learns it, and the next is served" application_vanishes
check "nothing is left in the server's daemon" becomes 0 5 applications_left 0
check "nothing is left in the client's daemon" becomes 0 5 applications_left 1
stop_on() { kill -TERM "${DAEMONS[$1]}" && wait_at_most 30 "${DAEMONS[$1]}" && unset "DAEMONS[$1]"; }
check "the daemon on port 1 ends" stop_on 1
pairs "a client with its own dataplane, the daemon's server" application_server client
check "nobody is there: exit 1" refuses 1 'nobody|silent' "$RPING" -c -a 10.79.0.99 -C 1 --timeout 2 \
    --daemon "$LAB/0.verbs"
check "an address that is not the daemon's: exit 1" refuses 1 "not one of this port's" "$RPING" -s -a 10.79.0.77 \
    --daemon "$LAB/0.verbs"
check "no daemon there: exit 1" refuses 1 'iwarpd|nowhere' "$RPING" -s --daemon /nowhere
check "the daemon is killed: its server learns it, exit 1" daemon_vanishes

score
