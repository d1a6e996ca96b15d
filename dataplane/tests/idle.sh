#!/bin/bash
# Idle connections: their memory stays within the configuration, those with a vanished peer are dropped, and regions are
# registered and deregistered beside working connections. `make idle`.
source "$(dirname "$0")/lib.sh"

CONNECTIONS=${CONNECTIONS:-4000}
lab_open ironwarp-idle
.ci/hugepages.sh 320 || true
sed -e "s#^socket *=.*#socket = \"$SOCKET\"#" -e 's#^hugepages *=.*#hugepages = "prefer"#' \
    -e 's#^\[tcp\]#&\nkeepalive_s = 2#' \
    -e 's#^idle_sleep_us_max *=.*#idle_sleep_us_max = 100#' configs/tap.toml >"$LAB/idle.toml"
printf '[applications]\nsocket = "%s"\n' "$SOCKET.verbs" >>"$LAB/idle.toml"
daemon_start "$LAB/idle.toml" || exit 1
kernel_side iw0
head -c 4000000 /dev/urandom >"$LAB/file"

connections() { ctl -j conn list | jq length; }
grants() { ctl -j region show "$1" | jq .grants; }

# --- an idle daemon: frames, doorbells and commands wake its worker, so that it does not sleep by the clock
# cpu_percent SECONDS: prints the CPU time of the daemon during SECONDS, in percent of one CPU.
cpu_percent() {
    local before after ticks
    ticks() { awk '{print $14 + $15}' "/proc/$DAEMON_PID/stat"; }
    before=$(ticks)
    sleep "$1"
    after=$(ticks)
    echo $(((after - before) * 100 / ($(getconf CLK_TCK) * $1)))
}
is_idle() {
    local percent
    for _ in 1 2 3; do
        percent=$(cpu_percent 3)
        echo "$percent % of a CPU"
        [ "$percent" -ge 2 ] || return 0
    done
    return 1
}
# A worker that slept through commands, for 10 ms each time, would answer 100 requests in half a second.
answers_at_once() {
    python3 - "$SOCKET" <<'PYTHON'
import json
import socket
import sys
import time

control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
control.connect(sys.argv[1])
lines = control.makefile("rw")


def ask(method, **params):
    lines.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + "\n")
    lines.flush()
    reply = json.loads(lines.readline())
    assert "result" in reply, reply


ask("hello")
times = []
for _ in range(100):
    time.sleep(0.02)
    begin = time.monotonic()
    ask("status")
    times.append((time.monotonic() - begin) * 1000)
median = sorted(times)[50]
print(f"{median:.2f} ms in the median")
sys.exit(median > 3)
PYTHON
}
# --- a program that polls without pause on the worker's CPU
# latency OPTION…: prints the typical half of a round trip of 64 bytes, µs, between a program of the daemon, on the
# worker's CPU, and one of the kernel's TCP on another. Both meet over a socket of the kernel's.
RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
latency() {
    local options=(ib_send_lat -F -d iwarp0 -s 64 -n 1000 "$@")
    spawn "$LAB/server" ip netns exec "$NS" taskset -c 0 timeout 30 "$RUN" --roce \
        --socket "$SOCKET.verbs" "${options[@]}"
    awaits "$PID" "$LAB/server" hears 18515 || return
    in_ns taskset -c 1 timeout 30 "$RUN" --roce --embedded "${options[@]}" 10.77.0.1 >"$LAB/client" 2>&1
    wait_at_most 10 "$PID" >/dev/null
    awk '$1 == 64 && NF > 5 { print int($5) }' "$LAB/client" | grep . && return
    cat "$LAB/client" "$LAB/server"
    return 1
}
polls_beside_the_worker() {
    local polling sleeping
    polling=$(latency) && sleeping=$(latency -e) || { echo "$polling $sleeping"; return 1; }
    echo "$polling µs with a program that polls, $sleeping with one that sleeps"
    [ "$polling" -le $((2 * sleeping)) ]
}
check "a program that polls on the worker's CPU does not keep it from its work" at_best polls_beside_the_worker
check "an idle daemon takes less than 2 % of a CPU" is_idle
check "a request that the sleeping worker must answer is answered within 3 ms" answers_at_once

# --- many connections
fill() { # they stay open until $HOLDER ends
    ip netns exec "$NS" python3 dataplane/tests/hold.py 10.77.0.2 7400 lab "$1" &
    HOLDER=$!
    becomes "$1" 60 grants lab
}
empty() { kill "$HOLDER" 2>/dev/null; becomes 0 20 connections && becomes 0 5 grants lab; }
planned() { "$IWARPCTL" -j config check "$LAB/idle.toml" | jq ".${1}_bytes / 1024 | floor"; }
taken() { awk -v name="$1:" '$1 == name {print $2}' "/proc/$DAEMON_PID/status"; }
within_plan() {
    echo "resident $(taken VmRSS) of $(planned heap) KiB, hugepages $(taken HugetlbPages) of $(planned hugepage) KiB"
    [ "$(taken VmRSS)" -le "$(planned heap)" ] && [ "$(taken HugetlbPages)" -le "$(planned hugepage)" ]
}
check "$CONNECTIONS connections, each granted its region" fill "$CONNECTIONS"
check "the daemon takes no more than its configuration said" within_plan
check "they are asked for a sign of life, and stay" eval 'sleep 6; becomes '"$CONNECTIONS"' 1 connections'
check "closed: no connection and no STag is left" empty

# --- a peer that vanishes
vanish() {
    fill 20 && in_ns nft -f - <<'NFT'
table inet vanish {
    chain out {
        type filter hook output priority 0
        ip daddr 10.77.0.2 drop
    }
}
NFT
}
check "20 peers vanish" vanish
check "their connections go, and their STags" eval 'becomes 0 30 connections && becomes 0 1 grants lab'
in_ns nft delete table inet vanish
kill "$HOLDER" 2>/dev/null

# --- regions are registered and deregistered beside connections that write and read
churn() {
    local k peers
    for k in put get; do
        while [ ! -e "$LAB/enough" ]; do
            case $k in
            put) remote put "$LAB/file" 10.77.0.2:7400/churn ;;
            get) remote get 10.77.0.2:7400/churn "$LAB/got" --length 4000000 ;;
            esac >/dev/null 2>&1
        done &
        peers+=" $!"
    done
    for k in $(seq 60); do
        ctl region register churn --size 4M --access remote-read,remote-write >/dev/null || return 1
        sleep "0.0$((k % 9))"
        ctl region deregister churn --force >/dev/null || return 1
    done
    touch "$LAB/enough"
    # shellcheck disable=SC2086 # a list; how its last transfer ended does not matter
    wait $peers || true
}
put_get() {
    remote put "$LAB/file" 10.77.0.2:7400/lab && remote get 10.77.0.2:7400/lab "$LAB/got" --length 4000000 &&
        cmp "$LAB/file" "$LAB/got"
}
# --- peers that ask for 64 MiB and do not read them
stall() {
    ip netns exec "$NS" python3 dataplane/tests/hold.py 10.77.0.2 7400 lab 100 --read &
    HOLDER=$!
    becomes 100 30 grants lab
}
served() { sleep 2 && time timeout 5 bash \
    -c "$(declare -f in_ns remote put_get); $(declare -p NS LAB IWARPCTL); put_get"; }
check "100 peers ask for a whole region and do not read it" stall
check "a peer that reads is served at once" served
check "and the daemon is rid of the others when they go" empty

before=$(report | jq -c .regions)
check "a region is registered and taken away 60 times under load" churn
check "it leaves no connection behind" becomes 0 20 connections
check "and no region" becomes "$before" 1 eval 'report | jq -c .regions'
check "the daemon still serves" put_get
check "the daemon takes no more than its configuration said" within_plan
check "SIGTERM ends it cleanly" daemon_stop

# --- two workers: one wakes the other for the frames that it passes on
two_workers() {
    sed -e 's#^cores *=.*#cores = [0, 1]#' -e 's#^idle_sleep_us_max *=.*#idle_sleep_us_max = 10000#' "$LAB/idle.toml" \
        >"$LAB/two.toml"
    daemon_start "$LAB/two.toml" && kernel_side iw0
}
# Half of the flows belong to the worker that does not receive their first frame. It would sleep for 10 ms.
connects_at_once() {
    in_ns python3 -c '
import socket, sys, time
times = []
for _ in range(100):
    time.sleep(0.02)
    begin = time.monotonic()
    socket.create_connection(("10.77.0.2", 7)).close()
    times.append((time.monotonic() - begin) * 1000)
times.sort()
print(f"{times[50]:.2f} ms in the median, {times[89]:.2f} ms in the slowest tenth")
sys.exit(times[89] > 3)' &&
        ctl -j stats steering | jq -e '[.. | select(.name? == "steered").value] | add | debug | . > 20'
}
check "two workers" two_workers
check "two idle workers take less than 2 % of a CPU" is_idle
check "frames that one worker passes to the other wake it" at_best connects_at_once
check "SIGTERM ends them cleanly" daemon_stop
score
