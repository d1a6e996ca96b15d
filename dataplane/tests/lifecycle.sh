#!/bin/bash
# Lifecycle of the daemon under faults: a log that cannot be written, signals, a second daemon, interfaces that vanish
# and return. `make lifecycle`.
source "$(dirname "$0")/lib.sh"

lab_open ironwarp-life
source dataplane/tests/daemons.sh
head -c 1000000 /dev/urandom >"$LAB/file"

# config PORT-LINES [SOCKET]: writes a configuration with sleeping workers on $CORES, one port, one region.
CORES=0
config() {
    cat >"$LAB/config.toml" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 8192
file_prefix = "$NS"
[control]
socket = "${2:-$SOCKET}"
[workers]
cores = [$CORES]
idle = "adaptive"
idle_sleep_us_max = 1000
[[port]]
name = "p0"
addresses = ["10.77.0.2/24", "fd77::2/64"]
$1
[[listener]]
port = 7400
service = "region"
[[region]]
name = "lab"
size = "4M"
access = ["remote-read", "remote-write"]
TOML
}
tap='driver = "tap"
interface = "iw0"'

put_get() {
    local host
    for host in 10.77.0.2 '[fd77::2]'; do
        rm -f "$LAB/got"
        remote put "$LAB/file" "$host:7400/lab" &&
            remote get "$host:7400/lab" "$LAB/got" --length 1000000 && cmp "$LAB/file" "$LAB/got" || return 1
    done
}
# started_with REDIRECTION: starts the daemon as daemon_start does, with stderr redirected by the given script.
started_with() {
    config "$tap"
    ip netns exec "$NS" bash -c "exec $IWARPD --config $LAB/config.toml $1" &
    DAEMON_PID=$!
    becomes yes 20 answers && kernel_side iw0
}
answers() { ctl status >/dev/null 2>&1; case $? in 0 | 6) echo yes ;; *) echo no ;; esac; }
lost_lines() { ctl -j stats log | jq '.groups[0].counters[] | select(.name == "lines_lost").value'; }
loses_lines() {
    [ "$(lost_lines)" -gt 0 ] || return 1
    ctl -j status >"$LAB/status" # exits with 6
    grep 'stderr takes no lines' "$LAB/status"
}
alive() { kill -0 "$DAEMON_PID" && [ "$(answers)" = yes ]; }
ends() { daemon_stop && [ ! -e "$SOCKET" ]; }

named() { [ "$("$IWARPD" --version)" = "iwarpd $("$IWARPCTL" -j version | jq -r .version)" ]; }
check "--version names the program" named

# --- a log that cannot be written
for sink in '2>/dev/full' '2> >(:)'; do
    check "stderr is $sink: the daemon starts" started_with "$sink"
    check "put and get" put_get
    check "stats and status tell of lost lines" loses_lines
    check "SIGTERM ends it with status 0" ends
done
# A reader that never reads: the pipe is full after 64 KiB.
stalled() {
    mkfifo "$LAB/pipe"
    exec 7<>"$LAB/pipe"
    head -c 65536 /dev/zero >&7
    started_with "2>$LAB/pipe"
}
check "stderr is a pipe that is full and that nobody reads: the daemon starts" stalled
check "put and get" put_get
check "stats and status tell of lost lines" loses_lines
check "SIGTERM ends it with status 0" ends
exec 7>&-

# --- the journal
# A start whose stderr is the journal, as JOURNAL_STREAM says: a file here.
journaled() {
    config "$tap"
    : >"$LAB/journal"
    ip netns exec "$NS" env JOURNAL_STREAM="$(stat -c %d:%i "$LAB/journal")" "$IWARPD" --config "$LAB/config.toml" \
        2>"$LAB/journal" &
    DAEMON_PID=$!
    local status=0
    ctl status --wait 20 >/dev/null || status=$?
    [ "$status" = 0 ] || [ "$status" = 6 ] || return 1
    kernel_side iw0
    ! remote get 10.77.0.2:7400/nothing "$LAB/nothing" --length 1 || return 1
    becomes yes 5 journal_has '^<4> *WARN .*no such region' || return 1
    cat "$LAB/journal"
    journal_has '^<6> *INFO .*ready' && ! grep -vqE '^<[3-7]> *[A-Z]' "$LAB/journal"
}
journal_has() { grep -qE "$1" "$LAB/journal" && echo yes; }
mistaken() { # a wrong configuration: exit status 2, and each line of the report is an error
    local status=0
    config 'driver = "ring"
bogus = 1'
    JOURNAL_STREAM="$(stat -c %d:%i "$LAB/journal")" "$IWARPD" --config "$LAB/config.toml" 2>"$LAB/journal" || status=$?
    cat "$LAB/journal"
    [ "$status" = 2 ] && grep -q bogus "$LAB/journal" && ! grep -vq '^<3>' "$LAB/journal"
}
check "status --wait returns when the daemon serves; lines to the journal have priorities and no time" journaled
check "SIGTERM ends it with status 0" ends
check "a wrong configuration ends it with status 2, and is an error in the journal" mistaken

# --- signals
serving() { config "$tap" && daemon_start "$LAB/config.toml" && kernel_side iw0; }
log_has() { becomes yes 5 grepped "$1"; }
grepped() { grep -qE "$1" "$LAB/iwarpd.log" && echo yes; }
hup() { kill -HUP "$DAEMON_PID" && log_has 'configuration reloaded: 0 changes' && alive; }
harmless() { kill -PIPE "$DAEMON_PID" && kill -IO "$DAEMON_PID" && kill -XFSZ "$DAEMON_PID" && sleep 0.3 && alive; }
levels() {
    kill -USR1 "$DAEMON_PID" && log_has 'SIGUSR1: the log level is debug' || return 1
    alive && log_has 'DEBUG.*request' || return 1
    kill -USR2 "$DAEMON_PID" && log_has 'SIGUSR2: the log level is info' || return 1
    kill -USR2 "$DAEMON_PID" && log_has 'SIGUSR2: the log level is warn' && alive
}
check "a daemon" serving
check "SIGHUP with the same file changes nothing" hup
check "SIGPIPE, SIGIO and SIGXFSZ change nothing" harmless
check "SIGUSR1 and SIGUSR2 raise and lower the log level" levels
check "put and get after all of them" put_get
echo_replies() { ctl -j stats ip | jq '[.groups[].counters[] | select(.name == "tx_echo_replies").value] | add'; }
counts_at_once() { # the statistics count a ping that was answered just before they are read, 20 times
    local ping before after
    before=$(echo_replies)
    for ping in $(seq 20); do
        in_ns ping -c 1 -W 2 -q 10.77.0.2 >/dev/null || return 1
        after=$(echo_replies)
        [ "$after" = $((before + 1)) ] || { echo "ping $ping: $before replies before, $after after"; return 1; }
        before=$after
    done
}
check "statistics count all that came before they are read" counts_at_once
ended_by() { # SIGNAL: exit status 0, and no socket left
    kill "-$1" "$DAEMON_PID" || return 1
    local pid=$DAEMON_PID
    DAEMON_PID=
    wait_at_most 60 "$pid" && [ ! -e "$SOCKET" ]
}
check "SIGINT ends it, and no socket stays" ended_by INT
for name in QUIT ALRM RTMIN+3; do
    check "SIG$name: a daemon" serving
    check "SIG$name ends it, and no socket stays" ended_by "$name"
done

# --- the service manager, and what the daemon gives up
notified() { grep -c "^$1" "$LAB/notified"; }
managed() { # a daemon whose service manager is a socket that records what it receives
    rm -f "$LAB/notified" "$LAB/notify"
    python3 dataplane/tests/manager.py listen "$LAB/notify" "$LAB/notified" &
    MANAGER=$!
    becomes yes 5 bound || return 1
    NOTIFY_SOCKET=$LAB/notify WATCHDOG_USEC=1000000 serving || return 1
    becomes 1 5 notified READY=1 && [ "$(head -n 1 "$LAB/notified")" = EXTEND_TIMEOUT_USEC=30000000 ]
}
extended() { # the start takes a second and more for each GiB of ordinary pages, and asks for the time until it serves
    rm -f "$LAB/notified" "$LAB/notify"
    python3 dataplane/tests/manager.py listen "$LAB/notify" "$LAB/notified" &
    MANAGER=$!
    becomes yes 5 bound || return 1
    config "$tap"
    sed -i 's/^size = .*/size = "2G"/' "$LAB/config.toml"
    NOTIFY_SOCKET=$LAB/notify daemon_start "$LAB/config.toml" && becomes 1 5 notified READY=1 || return 1
    cat "$LAB/notified"
    [ "$(sed '/^READY=1/,$d' "$LAB/notified" | grep -c ^EXTEND_TIMEOUT_USEC=30000000)" -ge 2 ] &&
        [ "$(sed '1,/^READY=1/d' "$LAB/notified" | grep -c ^EXTEND)" = 0 ]
}
asks_for_a_drain() { # drain.timeout_ms and ten seconds
    ends && grep -qx EXTEND_TIMEOUT_USEC=12000000 "$LAB/notified" && kill "$MANAGER"
}
bound() { [ -S "$LAB/notify" ] && echo yes; }
fed() { # the watchdog is fed at least twice a second
    local before
    before=$(notified WATCHDOG=1)
    sleep 2
    echo "$(($(notified WATCHDOG=1) - before)) in 2 s"
    [ $(($(notified WATCHDOG=1) - before)) -ge 3 ]
}
thread_of() { grep -lx "$1" "/proc/$DAEMON_PID"/task/*/comm | cut -d / -f 5; }
starved() { # a worker that is stopped is reported, and nobody feeds the watchdog until it polls again
    local before stopper
    python3 dataplane/tests/manager.py stop "$(thread_of worker-0)" 8 &
    stopper=$!
    # How soon the worker is stopped depends on the load of the machine; it is reported in its fourth second at most.
    log_has 'the worker does not poll.*in state t on CPU' || return 1
    before=$(notified WATCHDOG=1)
    sleep 2.5
    echo "$(($(notified WATCHDOG=1) - before)) while the worker stands still"
    [ "$(notified WATCHDOG=1)" = "$before" ] || return 1
    wait "$stopper" && log_has 'the worker does not poll' && log_has 'the worker polls again' && fed
}
# field THREAD NAME: a line of the thread's status
field() { awk -v name="$2:" '$1 == name { print $2 }' "/proc/$DAEMON_PID/task/$1/status"; }
unprivileged() { # NET_ADMIN (12) and IPC_LOCK (14) are left, worker and waker have none, and all filter system calls
    local thread left
    for thread in "/proc/$DAEMON_PID"/task/*; do
        thread=${thread##*/}
        echo "$(cat "/proc/$DAEMON_PID/task/$thread/comm"): $(field "$thread" CapEff) $(field "$thread" CapBnd)" \
            "$(field "$thread" Seccomp) $(field "$thread" NoNewPrivs)"
        case $(cat "/proc/$DAEMON_PID/task/$thread/comm") in
            worker-0 | waker) left=0000000000000000 ;;
            *) left=0000000000005000 ;;
        esac
        [ "$(field "$thread" CapEff)" = "$left" ] || return 1
        [ "$(field "$thread" CapBnd) $(field "$thread" Seccomp) $(field "$thread" NoNewPrivs)" = \
            "0000000000005000 2 1" ] || return 1
    done
    [ -n "$(thread_of worker-0)" ] && [ -n "$(thread_of waker)" ]
}
unmanaged() { ends && [ "$(notified STOPPING=1)" = 1 ] && kill "$MANAGER"; }
check "the daemon notifies its service manager when it serves" managed
check "its watchdog is fed" fed
check "a worker that stands still starves the watchdog" starved
check "put and get" put_get
check "every thread gave up what it does not need" unprivileged
check "the daemon notifies its service manager before it stops" unmanaged
check "a long start asks for more time while it goes on" extended
check "SIGTERM asks for the time of the drain, and ends it with status 0" asks_for_a_drain
hardened() { systemd-analyze security --offline=true --threshold=40 configs/iwarpd.service; }
check "systemd-analyze rates the unit's exposure at most 4" hardened

# second_is_refused PATTERN PORT-LINES [SOCKET]: a second daemon exits with status 1 and the reason, and does not touch
# the first one.
second_is_refused() {
    local status
    config "$2" "${3:-$LAB/second.sock}"
    timeout 20 ip netns exec "$NS" "$IWARPD" --config "$LAB/config.toml" >"$LAB/second" 2>&1
    status=$?
    cat "$LAB/second"
    # The report is wrapped and has a frame.
    tr -d '\n│' <"$LAB/second" | tr -s ' ' >"$LAB/flat"
    [ "$status" = 1 ] && grep -qE "$1" "$LAB/flat" && [ ! -e "$LAB/second.sock" ] && put_get
}
veth() {
    ip -n "$NS" link add wire0 type veth peer name wire1
    ip -n "$NS" link set wire0 up && kernel_side wire1 && in_ns ethtool -K wire1 tx off >/dev/null
}
packet='driver = "af_packet"
interface = "wire0"
mac = "02:49:57:00:00:02"'
check "a daemon on a TAP" serving
check "a second one on the TAP is refused, and told by whom" \
    second_is_refused "in use by process $DAEMON_PID " "$tap"
check "a second one on the socket is refused" \
    second_is_refused "another program serves" 'driver = "ring"' "$SOCKET"
check "SIGTERM ends it with status 0" ends
wire_serving() { veth && config "$packet" && daemon_start "$LAB/config.toml"; }
check "a daemon on a veth" wire_serving
for driver in af_packet pcap; do
    check "$driver with the same address is refused" \
        second_is_refused "10.77.0.2 on wire0 is in use by process $DAEMON_PID" "driver = \"$driver\"
interface = \"wire0\""
done
check "SIGTERM ends it with status 0" ends

# --- links that come and go
link() { ctl -j port list | jq -r '.[0].link'; }
says() { # REASON: status is degraded by it
    ctl -j status >"$LAB/status"
    [ $? = 6 ] && jq -e --arg why "$1" '.degraded | any(contains($why))' "$LAB/status"
}
link_down() { ip -n "$NS" link set wire1 down && becomes down 5 link && log_has 'link is down' && says 'no link'; }
link_up() {
    ip -n "$NS" link set wire1 up && ip -n "$NS" -6 addr replace fd77::1/64 dev wire1 nodad
    becomes up 5 link && log_has 'link is up' && put_get
}
fresh_log() { : >"$LAB/iwarpd.log"; }
rewired() { ip -n "$NS" link del wire0 2>/dev/null; veth; }
on_wire() { fresh_log && rewired && config "$1" && daemon_start "$LAB/config.toml" && put_get; }
check "a daemon on a veth" on_wire "$packet"
check "its peer goes down: logged, and status says so" link_down
check "its peer comes up: logged, and put and get" link_up
check "SIGTERM ends it with status 0" ends

# --- interfaces that vanish and return
ticks() { awk '{print $14 + $15}' "/proc/$DAEMON_PID/stat"; }
idles() { # less than a fifth of a CPU over a second; adaptive workers sleep
    local before
    before=$(ticks)
    sleep 1
    echo "$(($(ticks) - before)) ticks of $(getconf CLK_TCK)"
    [ $(($(ticks) - before)) -lt $(($(getconf CLK_TCK) / 5)) ]
}
vanishes() {
    ip -n "$NS" link del wire0 && becomes gone 5 link && log_has 'the interface is gone' &&
        says 'its interface is gone' && idles && alive
}
returns() {
    veth && becomes up 10 link && log_has 'the interface has returned' && put_get &&
        [ "$(ctl -j port list | jq '.[0].rx_packets')" -gt 2500 ] && ctl status
}
for driver in af_packet af_xdp pcap; do
    check "$driver: a daemon on a veth" on_wire "${packet/af_packet/$driver}"
    check "$driver: the veth is deleted: told, and the worker sleeps" vanishes
    check "$driver: the veth returns: put and get" returns
    check "$driver: the veth is deleted again" vanishes
    check "$driver: SIGTERM ends it meanwhile" ends
done
tap_again() {
    fresh_log
    ip -n "$NS" link del iw0 && log_has 'the interface is gone' && log_has 'the interface has returned' &&
        kernel_side iw0 && becomes up 5 link && put_get && ctl status && idles
}
for CORES in 0 '0, 1'; do
    check "a daemon on a TAP, workers on cores $CORES" serving
    check "put and get" put_get
    check "the TAP is deleted: made again, put and get" tap_again
    check "and again" tap_again
    check "SIGTERM ends it with status 0" ends
done
CORES=0
moved_is() { ctl -j port list | jq -c '.[0].interface'; }
goes_on() { # INTERFACE in $NS, which has lost its addresses
    kernel_side "$1" && becomes up 5 link && put_get
}
renamed() {
    fresh_log
    ip -n "$NS" link set iw0 down && ip -n "$NS" link set iw0 name lan0 && becomes '{"name":"lan0"}' 5 moved_is &&
        becomes down 5 link && goes_on lan0 &&
        says 'port p0: its interface is now lan0' && log_has 'its interface iw0 is now lan0' && alive
}
moved() { # the kernel's end is another namespace's now
    local number
    ip netns add "$NS-far" && ip -n "$NS-far" link set lo up || return 1
    number=$(ip netns exec "$NS-far" readlink /proc/self/ns/net)
    ip -n "$NS" link set lan0 netns "$NS-far" &&
        becomes "{\"name\":\"lan0\",\"namespace\":\"$number\"}" 5 moved_is && becomes down 5 link &&
        says 'no link' && says "lan0 in the network namespace $number" || return 1
    sleep 2 # more than two checks
    ip -n "$NS-far" link show lan0 && ! ip -n "$NS" link show iw0 2>/dev/null &&
        NS="$NS-far" goes_on lan0 && says "lan0 in the network namespace $number" &&
        ctl -j port show p0 | jq -e --arg number "$number" '.port.interface.namespace == $number' && alive
}
moved_back() {
    ip -n "$NS-far" link set lan0 netns "$NS" && ip -n "$NS" link set lan0 name iw0 &&
        becomes null 5 moved_is && goes_on iw0 && ctl status && log_has 'its interface is iw0 again'
}
deleted_elsewhere() {
    fresh_log
    ip -n "$NS" link set iw0 netns "$NS-far" && sleep 2 && ip -n "$NS-far" link del iw0 &&
        log_has 'the interface has returned' && goes_on iw0 && ctl status
}
check "a daemon on a TAP" serving
check "the TAP is renamed: put and get, and status says so" renamed
check "it is moved to another namespace: stays there, put and get, and status says so" moved
check "it is moved back: status is ok" moved_back
check "it is moved and deleted there: made again, put and get" deleted_elsewhere
check "SIGTERM ends it with status 0" ends
ip netns del "$NS-far"
exits() {
    fresh_log
    config "$tap
on_loss = \"exit\"" && daemon_start "$LAB/config.toml" && kernel_side iw0 && ip -n "$NS" link del iw0 || return 1
    local pid=$DAEMON_PID status
    DAEMON_PID=
    wait_at_most 60 "$pid"
    status=$?
    cat "$LAB/iwarpd.log"
    [ "$status" = 1 ] && [ ! -e "$SOCKET" ] &&
        grep -q 'the interface iw0 is gone, and on_loss = "exit"' "$LAB/iwarpd.log"
}
check 'on_loss = "exit": ends with 1 and says why' exits

# --- a memif whose server comes late, is killed, and ends
memif_end() { # ROLE NUMBER
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
cores = [0, 1]
idle = "adaptive"
[[port]]
name = "p0"
driver = "memif"
role = "$1"
socket = "$LAB/memif.sock"
mac = "02:69:77:00:00:0$2"
addresses = ["10.80.0.$2/24"]
[[listener]]
port = 7400
service = "region"
[[region]]
name = "lab"
size = "4M"
access = ["remote-read", "remote-write"]
TOML
}
EXCHANGE=${EXCHANGE:-${WATCH%/*}/exchange}
client_link() { "$IWARPCTL" -j --socket "$LAB/client.control" port list | jq -r '.[0].link'; }
client_waits() { # no link, and idle
    becomes down 5 client_link || return 1
    "$IWARPCTL" -j --socket "$LAB/client.control" status >"$LAB/status"
    [ $? = 6 ] && jq -e '.degraded | any(contains("port p0: no link"))' "$LAB/status"
}
through() { # a program of the client's daemon talks to one of the server's
    spawn "$LAB/exchange.out" "$EXCHANGE" --socket "$LAB/server.verbs" --listen 10.80.0.1:7500 --timeout 30
    prints '^listening on' "$LAB/exchange.out" &&
        "$EXCHANGE" --socket "$LAB/client.verbs" --connect 10.80.0.1:7500 --timeout 30 &&
        wait_at_most 30 "$PID"
}
follows() { start server && becomes up 5 client_link && through; }
lone_client() { memif_end server 1 && memif_end client 2 && start client && client_waits; }
server_ends() { # SIGNAL: the socket stays only if the server is killed
    kill "-$1" "${DAEMONS[server]}"
    wait_at_most 30 "${DAEMONS[server]}" 2>/dev/null
    [ "$1" = TERM ] || [ -S "$LAB/memif.sock" ] && client_waits
}
check "memif: a client without a server starts, and has no link" lone_client
check "memif: it finds the server" follows
for signal in KILL TERM; do
    check "memif: the server ends by SIG$signal: no link" server_ends "$signal"
    check "memif: the next server starts, and the client finds it" follows
done
served_twice() { # the server's socket stays
    sed -e "s#^role = .*#role = \"server\"\nid = 5#" -e "s#server.control#second.control#" \
        -e "s#server.verbs#second.verbs#" -e "s#-server#-second#" "$LAB/server.toml" >"$LAB/second.toml"
    timeout 20 ip netns exec "$NS" "$IWARPD" --config "$LAB/second.toml" >"$LAB/second" 2>&1
    [ $? = 1 ] || return 1
    cat "$LAB/second"
    tr -d '\n│' <"$LAB/second" | tr -s ' ' | grep -q "process ${DAEMONS[server]} serves the socket" &&
        through
}
check "memif: a second server on the socket is refused, and told by whom" served_twice
both_end() {
    kill "${DAEMONS[client]}" "${DAEMONS[server]}" && wait_at_most 30 "${DAEMONS[client]}" &&
        wait_at_most 30 "${DAEMONS[server]}"
}
check "memif: SIGTERM ends both with status 0" both_end

# --- what the machine lacks
lacking() {
    config 'driver = "af_packet"
interface = "wire7"' /nowhere/iwarpd/s
    sed -i -e 's/^cores = .*/cores = [900]\ncontrol_core = 977/' \
        -e 's/^socket = .*/&\ngroup = "nobody-here"/' "$LAB/config.toml"
}
# tells STATUS COMMAND…: one report lists every missing resource, one line each.
tells() {
    local want=$1 status
    shift
    lacking
    in_ns "$@" >"$LAB/told" 2>&1
    status=$?
    cat "$LAB/told"
    [ "$status" = "$want" ] && [ "$(wc -l <"$LAB/told")" = 5 ] && grep -q 'CPU 900' "$LAB/told" &&
        grep -q 'CPU 977' "$LAB/told" && grep -q 'no interface wire7' "$LAB/told" &&
        grep -q 'no group `nobody-here`' "$LAB/told" && grep -q 'no folder /nowhere' "$LAB/told"
}
agree() {
    in_ns "$IWARPD" --check --machine --format short --config "$LAB/config.toml" 2>"$LAB/one"
    in_ns "$IWARPCTL" config check --machine --format short "$LAB/config.toml" 2>"$LAB/other"
    [ -s "$LAB/one" ] && cmp "$LAB/one" "$LAB/other"
}
without_machine() { "$IWARPD" --check --config "$LAB/config.toml" && "$IWARPCTL" config check "$LAB/config.toml"; }
check "iwarpd --check --machine tells all that the machine lacks" \
    tells 1 "$IWARPD" --check --machine --format short --config "$LAB/config.toml"
check "a start tells the same" tells 1 "$IWARPD" --format short --config "$LAB/config.toml"
check "iwarpctl config check --machine tells the same" \
    tells 1 "$IWARPCTL" config check --machine --format short "$LAB/config.toml"
check "iwarpd and iwarpctl agree to the letter" agree
check "without --machine the file is right" without_machine

# Start, check and doctor name what a TAP takes. names PATTERN COMMAND…: run in a machine without it.
names() {
    local pattern=$1 status file="$LAB/config.toml"
    shift
    config "$tap"
    for program in "$IWARPD --format short --config $file" \
        "$IWARPCTL config check --machine --format short $file" "$IWARPCTL --socket $SOCKET doctor $file"; do
        status=0
        # shellcheck disable=SC2086 # words
        in_ns "$@" timeout 20 $program >"$LAB/told" 2>&1 || status=$?
        cat "$LAB/told"
        [ "$status" = 1 ] && grep -qE "$pattern" "$LAB/told" || return 1
    done
}
without_device() { unshare --mount sh -c 'mount -t tmpfs tmpfs /dev/net && exec "$@"' sh "$@"; }
export -f without_device
lent() { # a user namespace grants its root every capability, except over network namespaces made outside of it
    config "$1"
    in_ns unshare --user --map-root-user timeout 20 "$IWARPD" --config "$LAB/config.toml" >"$LAB/told" 2>&1
    cat "$LAB/told"
    grep -qE "$2" "$LAB/told"
}
check "without CAP_NET_ADMIN: start, check and doctor name it" \
    names 'takes CAP_NET_ADMIN, which this process lacks' setpriv --inh-caps=-all --bounding-set=-net_admin
check "without /dev/net/tun: start, check and doctor name it" \
    names '/dev/net/tun, by which the daemon makes a TAP, cannot be opened: No such file' \
    bash -c 'without_device "$@"' bash
check "an interface that the kernel refuses: its own words are in the message" \
    lent "$tap" '^iwarpd: port p0: interface iw0: cannot make the TAP: Operation not permitted'
check "the same of DPDK's driver: DPDK's own words" lent "${tap/driver = \"tap\"/driver = \"dpdk-tap\"}" \
    '^iwarpd: .*net_tap.*; DPDK: .*TUNSETIFF for iw0: Operation not permitted'
score
