#!/bin/bash
# Reload and drain: what a new configuration changes, what refuses it, that all or nothing is applied, grants that are
# revoked; connections that end before the daemon does. `make reload`.
source "$(dirname "$0")/lib.sh"

lab_open ironwarp-reload
# Users of other groups reach the sockets.
chmod 711 "$LAB"
head -c 200000 /dev/urandom >"$LAB/file"
printf 'open sesame' >"$LAB/token"
printf 'close sesame' >"$LAB/token2"
RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
CONFIG="$LAB/config.toml"
VERBS="$LAB/verbs.sock"

# config: writes the configuration from variables, which each check changes.
DEVICE='driver = "tap"
interface = "iw0"' MTU=1500 KERNEL_SIDE=iw0 CORES='0, 1'
LEVEL=info MEMORY= MEMORY_REGIONS=8 REGIONS= LISTENERS= LIMITS= CONTROL= APPLICATIONS= OTHER=
LAB_REGION='access = ["remote-read", "remote-write"]'
config() {
    cat >"$CONFIG" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 16384
file_prefix = "$NS"
$MEMORY
[workers]
cores = [$CORES]
idle = "adaptive"
idle_sleep_us_max = 1000
[[port]]
name = "p0"
$DEVICE
mtu = $MTU
addresses = ["10.77.0.2/24", "fd77::2/64"]
[limits]
regions_max = 4
$LIMITS
[[listener]]
port = 7400
service = "region"
[[listener]]
port = 7
service = "echo"
$LISTENERS
[[region]]
name = "lab"
size = "4M"
$LAB_REGION
$REGIONS
[control]
socket = "$SOCKET"
$CONTROL
[applications]
socket = "$VERBS"
memory_regions_max = $MEMORY_REGIONS
$APPLICATIONS
[log]
level = "$LEVEL"
$OTHER
TOML
}
serving() { config && daemon_start "$CONFIG" && kernel_side "$KERNEL_SIDE"; }
put() { remote put "$LAB/file" "10.77.0.2:${2:-7400}/$1" "${@:3}"; }
# reload LINE…: the reload is applied, and prints these lines.
reload() {
    local line
    config && ctl reload >"$LAB/reloaded" || return 1
    cat "$LAB/reloaded"
    for line in "$@"; do grep -qxF "$line" "$LAB/reloaded" || { echo "no line: $line"; return 1; }; done
}
# refused KIND TEXT: the reload is refused with the reason.
refused() {
    config
    ctl -j reload >"$LAB/reloaded" 2>"$LAB/refusal" && { cat "$LAB/reloaded"; return 1; }
    cat "$LAB/refusal"
    jq -e --arg kind "$1" --arg text "$2" '.error.kind == $kind and (.error.message | contains($text))' "$LAB/refusal"
}
log_has() { becomes yes 10 grepped "$1"; }
grepped() { grep -qE "$1" "$LAB/iwarpd.log" && echo yes; }
region() { ctl -j region show "$1" 2>/dev/null | jq -r "$2"; }
regions() { ctl -j region list | jq -r '[.[].name] | join(" ")'; }
level() { ctl -j log level | jq -r .level; }
notified() { grep -c "^$1" "$LAB/notified"; }

# --- a manager, and a reload without a change
managed() {
    python3 dataplane/tests/manager.py listen "$LAB/notify" "$LAB/notified" &
    MANAGER=$!
    becomes yes 10 bound && NOTIFY_SOCKET=$LAB/notify serving && becomes 1 10 notified READY=1
}
bound() { [ -S "$LAB/notify" ] && echo yes; }
nothing() { reload && grep -q 'nothing has changed' "$LAB/reloaded" && put lab; }
hup() { # SIGHUP reads the file, too; the service manager learns when it begins and when it is done
    local ready
    ready=$(notified READY=1)
    config && kill -HUP "$DAEMON_PID" && becomes "$((ready + 1))" 10 notified READY=1 || return 1
    [ "$(notified RELOADING=1)" = "$ready" ] && [ "$(notified 'MONOTONIC_USEC=[1-9]')" = "$ready" ] &&
        log_has 'SIGHUP: reading the configuration again' && log_has 'configuration reloaded: 0 changes'
}
check "a daemon with a service manager" managed
check "the same file changes nothing" nothing
check "SIGHUP reloads, and the service manager is notified" hup

# --- what changes
levels() {
    LEVEL=debug
    reload 'log.level: info -> debug' && [ "$(level)" = debug ] || return 1
    LEVEL=info
    config && kill -HUP "$DAEMON_PID" && becomes info 10 level
}
added() {
    REGIONS='[[region]]
name = "wal"
size = "2M"
access = ["remote-write"]'
    reload 'region wal: added, 2097152 bytes, remote-write' && put wal
}
# writer NAME REGION OPTIONS…: a peer, of HOST, whose output is in the file NAME; it has been granted the region.
writer() {
    local name=$1
    shift
    # Not through `in_ns`: the job must be the peer itself.
    spawn "$LAB/$name" ip netns exec "$NS" python3 dataplane/tests/writer.py "${HOST:-10.77.0.2}" 7400 "$@"
    WRITER=$PID
    becomes granted 20 cat "$LAB/$name"
}
ends_with() { becomes "$2" 20 tail -n 1 "$LAB/$1"; } # NAME LINE
INVALID_STAG='terminate 1/1/00'
rights() { # a peer that writes loses its grant; one may still read
    writer rights lab && LAB_REGION='access = ["remote-read"]' &&
        reload 'region lab.access: remote-read,remote-write -> remote-read' 'grants revoked: 1' &&
        ends_with rights "$INVALID_STAG" && ! put lab || return 1
    remote get 10.77.0.2:7400/lab "$LAB/got" --length 100
}
rights_return() {
    LAB_REGION='access = ["remote-read", "remote-write", "remote-atomic"]'
    reload && put lab && writer wider lab || return 1
    LAB_REGION='access = ["remote-read", "remote-write"]'
    # The grant has no right that has gone.
    reload && ! grep -q revoked "$LAB/reloaded" && [ "$(region lab .grants)" = 1 ] && kill -USR1 "$WRITER" &&
        ends_with wider done
}
tokens() { # a first token, and another one: grants by the old one are revoked
    writer before lab && LAB_REGION='access = ["remote-write"]
token = "open sesame"' && reload 'region lab.token: required now' 'grants revoked: 1' &&
        ends_with before "$INVALID_STAG" && ! put lab && put lab 7400 --token-file "$LAB/token" &&
        writer other lab --token 'open sesame' || return 1
    LAB_REGION='access = ["remote-write"]
token = "close sesame"'
    reload 'region lab.token: another one' 'grants revoked: 1' && ends_with other "$INVALID_STAG" &&
        ! grep -q sesame "$LAB/reloaded" && ! put lab 7400 --token-file "$LAB/token" &&
        put lab 7400 --token-file "$LAB/token2" && writer stays lab --token 'close sesame' || return 1
    LAB_REGION='access = ["remote-write"]'
    reload 'region lab.token: no longer required' && ! grep -q revoked "$LAB/reloaded" && put lab &&
        kill -USR1 "$WRITER" && ends_with stays done
}
prefixes() {
    writer v4 lab && LAB_REGION='access = ["remote-write"]
allow = ["fd77::/64"]' && reload 'region lab.allow: every source -> fd77::/64' 'grants revoked: 1' &&
        ends_with v4 "$INVALID_STAG" && ! put lab && remote put "$LAB/file" '[fd77::2]:7400/lab' || return 1
    LAB_REGION='access = ["remote-read", "remote-write"]'
    reload && put lab
}
removed() { # with a grant in use
    writer gone wal && REGIONS= && reload 'region wal: removed' 'grants revoked: 1' &&
        ends_with gone "$INVALID_STAG" && [ "$(regions)" = lab ] && ! put wal
}
check "the log level" levels
check "a region is added" added
check "fewer rights: the grant of a peer that writes is revoked, and it gets a Terminate" rights
check "more rights; a grant that is permitted stays" rights_return
check "tokens come, change and go" tokens
check "prefixes" prefixes
check "a region is removed, and its grants with it" removed

echo_opens() { # a connection to the echo service, which stays open as descriptor 3 of a process in the namespace
    coproc ECHO { ip netns exec "$NS" python3 -c '
import socket, sys
with socket.create_connection(("10.77.0.2", 7), timeout=10) as it:
    for line in sys.stdin:
        it.sendall(line.encode())
        print(it.recv(100).decode(), end="", flush=True)'; }
    echoes
}
echoes() {
    local line
    echo hello >&"${ECHO[1]}" && read -r -t 20 line <&"${ECHO[0]}" && [ "$line" = hello ]
}
connects() { # PORT
    in_ns timeout 10 python3 -c '
import socket, sys
socket.create_connection(("10.77.0.2", int(sys.argv[1])), timeout=9)' "$1"
}
listeners() {
    LISTENERS='[[listener]]
port = 7500
service = "region"
[[listener]]
port = 9
service = "discard"'
    reload 'listener 7500: added, service region' 'listener 9: added, service discard' && put lab 7500 &&
        connects 9 && put lab || return 1
    LISTENERS='[[listener]]
port = 7500
service = "echo"
[[listener]]
port = 9
service = "discard"
backlog = 7
connections_max = 9'
    reload 'listener 7500.service: region -> echo' 'listener 9.backlog: 128 -> 7' && ! put lab 7500 && connects 9
}
stays_open() { # connections outlive their listener
    echo_opens && sed -i 's/^port = 7$/port = 8/' "$CONFIG" && ctl reload && echoes && ! connects 7 && connects 8 ||
        return 1
    LISTENERS=
    reload 'listener 8: removed; its connections stay' 'listener 7: added, service echo' && echoes && connects 7 &&
        ! connects 9 && ! connects 7500
    local opened=$?
    eval "exec ${ECHO[1]}>&-"
    return "$opened"
}
limits() {
    LIMITS='grants_max = 1' MEMORY='[tcp]
connections_per_source_max = 100'
    reload 'limits.grants_max: 8192 -> 1' && grep -q '^tcp.connections_per_source_max: .* -> 100$' "$LAB/reloaded" ||
        return 1
    sed -i 's/^regions_max = 4$/regions_max = 1/' "$CONFIG" && ctl reload &&
        ! ctl region register more -s 2M -a remote-read || return 1
    # A region, and the room that it needs, come and go together.
    sed -i 's/^regions_max = 1$/regions_max = 2/' "$CONFIG" && cat >>"$CONFIG" <<<'[[region]]
name = "more"
size = "2M"
access = ["remote-read"]' && ctl reload && [ "$(regions)" = "lab more" ] || return 1
    # Each of two workers has an STag for a grant, and two for each memory region that applications may have.
    holder 40 && [ "$(granted)" -le 34 ] || return 1
    LIMITS= MEMORY=
    reload 'limits.regions_max: 2 -> 4' 'region more: removed' 'limits.grants_max: 1 -> 8192' && holder 3 &&
        [ "$(granted)" = 3 ] && ctl region register more -s 2M -a remote-read && ctl region deregister more
}
# holder COUNT: so many peers ask for a region, and end when all have their answer.
holder() {
    spawn "$LAB/held" ip netns exec "$NS" python3 dataplane/tests/hold.py 10.77.0.2 7400 lab "$1"
    local held=$PID
    becomes 1 20 grep -c "of $1 " "$LAB/held"
    local answered=$?
    kill "$held"
    wait "$held" 2>/dev/null
    cat "$LAB/held"
    return "$answered"
}
granted() { cut -d ' ' -f 1 "$LAB/held"; }
check "listeners are added and changed" listeners
check "a listener is removed, and its connections stay" stays_open
check "limits" limits

# as USER GROUP COMMAND…: runs a command as somebody else.
as() { setpriv --reuid "$1" --regid "$2" --clear-groups "${@:3}"; }
asks() { as 65534 "$1" "$IWARPCTL_COPY" --socket "$SOCKET" status >/dev/null 2>"$LAB/asked" || [ $? = 6 ]; }
# Of another user, who does not reach the folder of this source.
IWARPCTL_COPY="$LAB/iwarpctl"
cp "$IWARPCTL" "$IWARPCTL_COPY" && chmod 755 "$IWARPCTL_COPY"
groups_change() { # without CAP_CHOWN, which the daemon has dropped
    ! asks 4242 && CONTROL='group = "4242"' && reload 'control.group: default -> 4242' && asks 4242 &&
        ! asks 4243 || return 1
    CONTROL='group = "4243"'
    reload && asks 4243 && ! asks 4242 || return 1
    CONTROL='mode = "0600"'
    reload 'control.mode: 0660 -> 0600' && ! asks 4243 && ! asks 4242 && ctl region list || return 1
    CONTROL=
    reload && ! asks 4243
}
clients() {
    CONTROL='idle_timeout_ms = 1000
clients_max = 2'
    reload 'control.clients_max: 64 -> 2' 'control.idle_timeout_ms: 30000 -> 1000' || return 1
    CONTROL=
    reload
}
users() { # per-user limits of applications, seen by a program
    APPLICATIONS='user_watches_max = 0
mode = "0600"'
    reload 'applications.user_watches_max: 32 -> 0' 'applications.mode: 0660 -> 0600' &&
        [ "$(stat -c %a "$VERBS")" = 600 ] || return 1
    APPLICATIONS=
    reload && [ "$(stat -c %a "$VERBS")" = 660 ]
}
check "group and mode of the control socket" groups_change
check "its limits" clients
check "users of the verbs socket" users

# --- what is refused
mistake() {
    echo 'levle = "info"' >>"$CONFIG"
    ctl -j reload 2>"$LAB/refusal" && return 1
    cat "$LAB/refusal"
    jq -e '.error.kind == "invalid_config" and (.error.message | contains("levle"))' "$LAB/refusal" && put lab
}
needs_restart() { # with a change that could be applied, which is not
    LEVEL=debug REGIONS='[[region]]
name = "half"
size = "2M"
access = ["remote-read"]'
    MEMORY='[mpa]
markers = "receive"'
    refused needs_restart 'mpa.markers: takes effect at a restart only' &&
        [ "$(level) $(regions)" = "info lab" ] || return 1
    MEMORY=
    config && sed -i 's/size = "4M"/size = "8M"/; s/10.77.0.2/10.77.0.9/' "$CONFIG"
    ctl reload >"$LAB/reloaded" 2>&1 && return 1
    cat "$LAB/reloaded"
    tr -s ' \n' ' ' <"$LAB/reloaded" >"$LAB/flat"
    grep -q 'port p0' "$LAB/flat" && grep -q 'region lab.size' "$LAB/flat" && [ "$(level) $(regions)" = "info lab" ]
}
nothing_half() { # a step fails when others are done: they are taken back
    LISTENERS='[[listener]]
port = 7600
service = "echo"'
    ctl region register taken -s 2M -a remote-read &&
        REGIONS+='
[[region]]
name = "taken"
size = "2M"
access = ["remote-write"]' && refused exists taken && [ "$(regions)" = "lab taken" ] && ! connects 7600 || return 1
    REGIONS=${REGIONS//taken/free}
    CONTROL='group = "nosuchgroup"'
    refused not_permitted 'nosuchgroup' && [ "$(level) $(regions)" = "info lab taken" ] &&
        ! connects 7600 && put lab || return 1
    CONTROL= LISTENERS= REGIONS= LEVEL=info
    reload && ctl region deregister taken
}
events() { # a monitor sees both
    ctl -j monitor --recent --seconds 1 >"$LAB/events"
    jq -s -e 'any(.[]; .event == "config_reloaded" and .changes == 2 and .uid == 0) and
              any(.[]; .event == "config_reloaded" and .pid == null) and
              any(.[]; .event == "config_refused" and (.reason | contains("mpa.markers")))' "$LAB/events"
}
check "a file with a mistake is refused" mistake
check "what needs a restart is refused, and nothing else applied" needs_restart
check "what fails is taken back" nothing_half
check "events say what was reloaded and refused" events

# --- a hundred peers that put, again and again, while the configuration changes
# put_slot N: writes its part of $LAB/all to its place in the region until $LAB/enough is there, at least once.
put_slot() {
    local number=$((10#$1)) address=10.77.0.2 puts=0
    [ $((number % 2)) = 0 ] || address='[fd77::2]'
    until [ -e "$LAB/enough" ] && [ "$puts" -gt 0 ]; do
        remote put --timeout 60 "$LAB/slot.$1" "$address:7400/lab+$((number * 40000))" >"$LAB/put.$1" 2>&1 ||
            { echo "put $1: $(cat "$LAB/put.$1")" >>"$LAB/lost"; return; }
        puts=$((puts + 1))
    done
    echo "$puts" >>"$LAB/puts"
}
applied() { grep -c 'configuration reloaded: [1-9]' "$LAB/iwarpd.log"; }
puts_survive() {
    local number peers=() before rights='access = ["remote-read", "remote-write"]'
    : >"$LAB/lost"
    head -c 4000000 /dev/urandom >"$LAB/all" && split -b 40000 -a 2 -d "$LAB/all" "$LAB/slot." || return 1
    for number in $(seq -w 0 99); do
        put_slot "$number" &
        peers+=("$!")
    done
    for number in $(seq 8); do
        LEVEL=info REGIONS= LISTENERS= LAB_REGION=$rights
        case $((number % 4)) in
        1) LEVEL=debug ;;
        2) REGIONS='[[region]]
name = "wal"
size = "2M"
access = ["remote-write"]' LISTENERS='[[listener]]
port = 7700
service = "region"' ;;
        3) LAB_REGION='access = ["remote-read", "remote-write", "remote-atomic"]' ;;
        esac
        before=$(applied)
        config && kill -HUP "$DAEMON_PID" && becomes "$((before + 1))" 30 applied || break
    done
    touch "$LAB/enough"
    wait "${peers[@]}"
    awk '{ puts += $1 } END { print NR " peers, " puts " puts" }' "$LAB/puts"
    echo "$number reloads, $(wc -l <"$LAB/lost") lost"
    head "$LAB/lost"
    [ "$number" = 8 ] && [ ! -s "$LAB/lost" ] && [ "$(wc -l <"$LAB/puts")" = 100 ] && [ "$(regions)" = lab ] &&
        remote get 10.77.0.2:7400/lab "$LAB/got" --length 4000000 && cmp "$LAB/all" "$LAB/got"
}
check "a hundred peers put while SIGHUP changes the configuration: none is lost" puts_survive

# --- drain
state() { report 2>/dev/null | jq -r 'if .draining then "draining" else .state end'; }
# exits STATUS SECONDS: the daemon ends with this status.
exits() {
    local pid=$DAEMON_PID
    becomes gone "$2" eval "kill -0 $pid 2>/dev/null || echo gone" || return 1
    DAEMON_PID=
    wait "$pid"
    local status=$?
    echo "status $status"
    [ "$status" = "$1" ] && [ ! -e "$SOCKET" ]
}
drained() { # nobody is connected
    ctl drain --timeout 60 >"$LAB/drained" && cat "$LAB/drained" &&
        grep -q 'all connections have ended' "$LAB/drained" && exits 0 20
}
serving_again() { # what a failed check has left running is stopped first
    [ -z "$DAEMON_PID" ] || daemon_stop
    : >"$LAB/iwarpd.log" && serving
}
deaf_peer() { # a peer that never closes, but is silent
    writer deaf lab --idle --deaf || return 1
    ctl -j drain --timeout 100 >"$LAB/drained" && jq -e '.cut_off == 0' "$LAB/drained" && exits 0 20 &&
        kill "$WRITER" && ends_with deaf closed
}
queue_pairs() { # programs on queue pairs of the daemon, over each family; they work until one ends the connection
    local server client
    HOST=fd77::2 writer v6 lab || return 1
    run_rping server -s -P -S 4096 && server=$PID && becomes "" 20 in_ns nc -z -w 1 10.77.0.2 7174 &&
        run_rping client -c -V -S 4096 -a 10.77.0.2 && client=$PID && becomes 2 20 queue_pairs_in_use ||
        { tail -n 5 "$LAB/client" "$LAB/server" && return 1; }
    ctl -j drain --timeout 100 >"$LAB/drained" &
    local drain=$!
    becomes draining 20 state && late_client && kill -USR1 "$WRITER" &&
        ends_with v6 done && alive && [ "$(queue_pairs_in_use)" = 2 ] && kill "$client" && wait "$drain" &&
        jq -e '.cut_off == 0' "$LAB/drained" && exits 0 20
    local drained=$?
    kill "$client" "$server" 2>/dev/null
    wait_at_most 10 "$client"
    wait_at_most 10 "$server"
    tail -n 3 "$LAB/client" "$LAB/server" "$LAB/drained"
    return "$drained"
}
run_rping() { # NAME OPTIONS…: Debian's rping on the daemon, with its output in $LAB/NAME and its process in $PID
    spawn "$LAB/$1" ip netns exec "$NS" "$RUN" --socket "$VERBS" rping "${@:2}"
}
late_client() { # it is refused at once
    in_ns timeout 20 "$RUN" --socket "$VERBS" rping -c -C 1 -a 10.77.0.2
    local status=$?
    echo "status $status"
    [ "$status" != 0 ] && [ "$status" != 124 ]
}
queue_pairs_in_use() { ctl -j qp list | jq '[.[] | select(.state == "rts")] | length'; }
alive() { kill -0 "$DAEMON_PID"; }
idle_peers() { # an idle peer gets a FIN; one that writes goes on until it is done
    writer idle lab --idle && writer busy lab || return 1
    ctl -j drain --timeout 100 >"$LAB/drained" &
    local drain=$!
    becomes draining 20 state && ends_with idle closed && ! connects 7400 && ! put lab &&
        [ "$(tail -n 1 "$LAB/busy")" = granted ] && refused in_use drains && kill -USR1 "$WRITER" &&
        ends_with busy done && wait "$drain" && jq -e '.cut_off == 0' "$LAB/drained" && exits 0 20
}
cut_off() { # a peer that goes on for ever
    writer endless lab || return 1
    ctl -j drain --timeout 1 >"$LAB/drained"
    local status=$?
    cat "$LAB/drained"
    [ "$status" = 1 ] && jq -e '.cut_off == 1' "$LAB/drained" && exits 3 20 && ends_with endless reset
}
check "drain without connections" drained
# The rest in jumbo frames, over the kernel's own pair of interfaces, which outlives the daemon.
DEVICE='driver = "pcap"
interface = "wire0"
mac = "02:49:57:00:00:02"' MTU=9000 KERNEL_SIDE=wire1
veth 9000
check "drain: a daemon" serving_again
check "drain closes idle peers, waits for busy ones, and accepts none" idle_peers
check "drain: a daemon" serving_again
check "drain does not wait for a silent peer that never closes" deaf_peer
MEMORY_REGIONS=16
check "drain: a daemon" serving_again
check "drain waits for queue pairs in use, of two workers" queue_pairs
CORES=0
check "drain: a daemon with one worker" serving_again
check "drain waits for queue pairs in use, whose data does not pass through TCP" queue_pairs
CORES='0, 1'
check "drain: a daemon" serving_again
check "drain cuts off what does not end in time: status 3" cut_off

terminated() { # by SIGTERM: an idle connection of each kind does not delay the end, whether or not its peer closes
    writer idle lab --idle && echo_opens && kill -TERM "$DAEMON_PID" && exits 0 20 && ends_with idle closed
}
waits() { # the configured time for a peer in use
    OTHER='[drain]
timeout_ms = 1500'
    serving_again && writer endless lab || return 1
    local begin=$EPOCHREALTIME
    kill -TERM "$DAEMON_PID" && exits 0 20 && ends_with endless reset &&
        [ $(((${EPOCHREALTIME/./} - ${begin/./}) / 1000)) -ge 1500 ] &&
        log_has 'draining: connections end within 1500 ms' && log_has 'drained: 1 connections are cut off'
}
twice() { # a second SIGTERM stops at once; the time comes from a reload
    OTHER='[drain]
timeout_ms = 1500'
    serving_again && OTHER='[drain]
timeout_ms = 3600000' && reload 'drain.timeout_ms: 1500 -> 3600000' && writer endless lab &&
        kill -TERM "$DAEMON_PID" && becomes draining 20 state && kill -TERM "$DAEMON_PID" && exits 0 20 &&
        ends_with endless reset
}
shortened() { # the drain of a client, by SIGTERM
    OTHER='[drain]
timeout_ms = 500'
    serving_again && writer endless lab || return 1
    ctl -j drain --timeout 3600 >"$LAB/drained" &
    local drain=$!
    becomes draining 20 state && kill -TERM "$DAEMON_PID" && exits 0 20 && ends_with endless reset
    local ended=$?
    wait_at_most 20 "$drain"
    [ $? = 1 ] && jq -e '.cut_off == 1' "$LAB/drained" && return "$ended"
}
at_once() { # no time at all
    OTHER='[drain]
timeout_ms = 0'
    serving_again && writer endless lab && kill -TERM "$DAEMON_PID" && exits 0 20 && ends_with endless reset
}
check "SIGTERM: a daemon" serving_again
check "SIGTERM does not wait for idle connections" terminated
check "SIGTERM waits for connections in use, as long as configured" waits
check "a second SIGTERM stops at once" twice
check "SIGTERM shortens the drain of a client" shortened
# The peer belongs to one of two workers, by its source port; one of them transmits through the other.
for round in 1 2 3 4 5; do check "with drain.timeout_ms = 0 SIGTERM stops at once, round $round" at_once; done
[ -z "${MANAGER:-}" ] || kill "$MANAGER"
score
