# Functions for the test scripts, which source this file: a test network in one namespace, one iwarpd in it, and a
# score.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

IWARPD=${IWARPD:-${BUILT:-target/release}/iwarpd}
IWARPCTL=${IWARPCTL:-${BUILT:-target/release}/iwarpctl}
WATCH=${WATCH:-${BUILT:-target/release}/examples/watch}
LAB_TOOL=${LAB_TOOL:-${BUILT:-target/release}/lab}
PASSED=0
FAILED=0

lab_need_root() {
    [ "$(id -u)" = 0 ] || { echo "$0: needs root, for a network namespace and a TAP" >&2; exit 1; }
    [ -c /dev/net/tun ] || { mkdir -p /dev/net && mknod /dev/net/tun c 10 200; } 2>/dev/null
    [ -c /dev/net/tun ] || { echo "$0: /dev/net/tun is missing: modprobe tun" >&2; exit 1; }
}

# lab_open NAME: creates a namespace and a scratch directory. Both are removed when the script ends, together with
# everything derived from them: namespaces such as `$NS-far`, and DPDK's runtime directory `$NS`. A script adds what
# else must happen then, commands without arguments, to AT_END: a trap of its own would lose the exit status.
AT_END=()
lab_open() {
    lab_need_root
    NS="$1-$$"
    LAB=$(mktemp -d "${TMPDIR:-/tmp}/$1.XXXXXX")
    SOCKET="$LAB/control.sock"
    DAEMON_PID=
    trap lab_close EXIT
    trap 'exit 130' INT TERM HUP
    ip netns add "$NS" && in_ns ip link set lo up && return
    echo "$0: no network namespace to be had; a container must be privileged for that" >&2
    exit 1
}

lab_close() {
    local status=$? name
    trap - EXIT
    trap '' INT TERM HUP
    set +e
    for name in "${AT_END[@]}"; do "$name"; done
    [ -z "$DAEMON_PID" ] || daemon_stop || true
    for name in $(ip netns list | awk -v ns="$NS" '$1 == ns || index($1, ns "-") == 1 {print $1}'); do
        ip netns pids "$name" 2>/dev/null | xargs -r kill 2>/dev/null
        ip netns del "$name" 2>/dev/null
    done
    if [ "$status" != 0 ] && [ "$status" != 130 ] && [ -f "$LAB/iwarpd.log" ]; then
        echo "--- the end of iwarpd's log" >&2
        tail -n 40 "$LAB/iwarpd.log" >&2
    fi
    rm -rf "$LAB" "/var/run/dpdk/$NS"
    exit "$status"
}

# ahead_of_others: raises the priority of this shell, for measurements of time or rate; GIVE_WAY=1 keeps it as it is.
ahead_of_others() { [ "${GIVE_WAY:-0}" = 1 ] || renice -n -15 -p $$ >/dev/null 2>&1 || true; }

in_ns() { ip netns exec "$NS" "$@"; }
ctl() { "$IWARPCTL" --socket "$SOCKET" "$@"; }
remote() { in_ns "$IWARPCTL" remote "$@"; }
# report: prints the status of the daemon as JSON, also if it is degraded, by too few hugepages for instance.
report() { ctl -j status || [ $? = 6 ]; }
# serves: succeeds if the daemon does, degraded or not.
serves() { report >/dev/null; }

# daemon_start CONFIG: starts iwarpd in the namespace and waits until it is ready.
daemon_start() {
    # Not through `in_ns`: the job must be iwarpd itself, not a subshell around it.
    ip netns exec "$NS" "$IWARPD" --config "$1" >>"$LAB/iwarpd.log" 2>&1 &
    DAEMON_PID=$!
    local tries
    for tries in $(seq 200); do
        if ctl status >/dev/null 2>&1 || [ $? = 6 ]; then
            return 0
        fi
        kill -0 "$DAEMON_PID" 2>/dev/null || break
        sleep 0.1
    done
    echo "iwarpd did not come up (after $tries tries):" >&2
    tail -n 20 "$LAB/iwarpd.log" >&2
    DAEMON_PID=
    return 1
}

# daemon_stop: sends SIGTERM and returns the daemon's exit status; kills a daemon that hangs.
daemon_stop() {
    local pid=$DAEMON_PID tries
    DAEMON_PID=
    kill -TERM "$pid" 2>/dev/null
    for tries in $(seq 400); do
        kill -0 "$pid" 2>/dev/null || break
        [ "$tries" -lt 400 ] || { echo "iwarpd goes on after SIGTERM: killed" >&2; kill -KILL "$pid"; }
        sleep 0.05
    done
    wait "$pid"
}

# frame_by_frame INTERFACE…: each frame there is one packet, with its checksum: for programs that read or lose frames.
frame_by_frame() {
    local interface
    for interface; do in_ns ethtool -K "$interface" tso off gso off gro off tx off rx off >/dev/null 2>&1; done
}
# veth [MTU]: creates a pair of kernel interfaces, wire0 for iwarpd and wire1 for the kernel's stack. Without $AS_FOUND
# each frame is one packet.
veth() {
    local interface
    in_ns ip link del wire0 2>/dev/null
    in_ns ip link add wire0 type veth peer name wire1
    [ -n "${AS_FOUND:-}" ] || frame_by_frame wire0 wire1
    for interface in wire0 wire1; do in_ns ip link set "$interface" mtu "${1:-1500}" up; done
}

# terminal_open COLUMNS ROWS: starts a terminal of that size, in the namespace, so that lab_close ends it. It runs a
# shell without a prompt.
terminal_open() {
    in_ns env -u TMUX LC_ALL=C.UTF-8 tmux -S "$LAB/tmux" -f /dev/null new-session -d -s lab -x "$1" -y "$2" \
        'env PS1= ENV= sh'
}
terminal() { tmux -S "$LAB/tmux" "$@"; }
terminal_keys() { terminal send-keys -t lab "$@"; }
terminal_shows() { terminal capture-pane -p -t lab; }
# terminal_has PATTERN: prints yes if a line of the terminal matches; for `becomes`.
terminal_has() { terminal_shows | grep -qE -- "$1" && echo yes; }

# kernel_side IFACE [NET]: configures the kernel's end of the TAP, 10.NET.0.1 and fdNET::1.
kernel_side() {
    local net=${2:-77}
    ip -n "$NS" addr add "10.$net.0.1/24" dev "$1"
    ip -n "$NS" -6 addr add "fd$net::1/64" dev "$1" nodad
    ip -n "$NS" link set "$1" up
}

# check NAME COMMAND…: runs a command and prints one line of the score.
check() {
    local name=$1 begin=$SECONDS
    shift
    if "$@" >"$LAB/check.out" 2>&1; then
        PASSED=$((PASSED + 1))
        echo "ok    $name ($((SECONDS - begin)) s)"
    else
        FAILED=$((FAILED + 1))
        echo "FAIL  $name"
        sed 's/^/      /' "$LAB/check.out" | tail -n 80
    fi
}

# at_best COMMAND…: runs what is limited in time, up to three times: other suites, and compilers, share the machine.
at_best() {
    local attempt
    for attempt in 1 2 3; do
        "$@" && return
        echo "attempt $attempt failed"
    done
    return 1
}

# becomes WANTED SECONDS COMMAND…: waits until the command prints WANTED. Workers publish their counters every 20 ms.
becomes() {
    local wanted=$1 tries=$(($2 * 5)) got
    shift 2
    for _ in $(seq "$tries"); do
        got=$("$@") && [ "$got" = "$wanted" ] && return 0
        sleep 0.2
    done
    echo "$*: $got, not $wanted"
    return 1
}

# spawn FILE COMMAND…: starts a command in the background with its output in the file, and its process number in $PID.
# The child opens the file; emptied before, it does not show `prints` what an earlier command has written.
spawn() {
    local file=$1
    shift
    : >"$file"
    "$@" >"$file" 2>&1 &
    PID=$!
}

# prints PATTERN FILE: waits until a line of the file matches; after 10 s, prints the file and fails.
prints() { awaits $$ "$2" grep -q "$1" "$2"; }

# awaits PID FILE COMMAND…: waits until the command succeeds; prints the file and fails once the process has ended, or
# after 10 s.
awaits() {
    local pid=$1 file=$2
    shift 2
    for _ in $(seq 200); do
        "$@" && return
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    cat "$file"
    return 1
}
# hears PORT [NAMESPACE]: true if a program listens there with the kernel's TCP
hears() { ip netns exec "${2:-$NS}" ss -Hltn "sport = :$1" | grep -q .; }

# wait_at_most SECONDS PID: waits for a child and returns its exit status. It kills a child that does not end in time.
wait_at_most() {
    timeout "$1" tail -s 0.05 --pid="$2" -f /dev/null || {
        echo "process $2 goes on after $1 s: killed"
        kill -KILL "$2" 2>/dev/null
    }
    wait "$2"
}

# score: prints the closing line; fails if a check failed.
score() {
    echo "$PASSED passed, $FAILED failed"
    [ "$FAILED" = 0 ] && [ "$PASSED" -gt 0 ]
}

digest() { sha256sum "$1" | cut -d' ' -f1; }

# A user without a privilege: what runs a command as this user.
NOBODY=(setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --)

# median_of FILE: the median of numbers, one per line, and their range
median_of() {
    sort -n "$1" | awk '{ rate[NR] = $1 } END { print rate[int((NR + 1) / 2)] " (" rate[1] " to " rate[NR] ")" }'
}

# reports PROGRAM OVER SIZE QUANTITY FILE: adds a row to $REPORT, if that is set: the values of a quantity, one a line,
# of a program over an interface and a stack, with messages of SIZE bytes. `iwarp-bench programs` reads them.
reports() {
    [ -z "${REPORT:-}" ] || jq -sc --arg program "$1" --arg over "$2" --argjson size "$3" --arg quantity "$4" \
        '{program: $program, over: $over, size: $size, quantity: $quantity, runs: .}' "$5" >>"$REPORT"
}

# far_open: a second namespace, $NS-far, and a pair of interfaces between both: 10.79.0.1 and fd79::1 in $NS, 2 there.
far_open() {
    local end namespace interface number
    ip netns add "$NS-far"
    ip -n "$NS" link add near type veth peer name far netns "$NS-far"
    for end in "$NS near 1" "$NS-far far 2"; do
        read -r namespace interface number <<<"$end"
        ip -n "$namespace" addr add "10.79.0.$number/24" dev "$interface"
        ip -n "$namespace" addr add "fd79::$number/64" dev "$interface" nodad
        ip -n "$namespace" link set "$interface" up
        ip -n "$namespace" link set lo up
    done
}
