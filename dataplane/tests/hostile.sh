#!/bin/bash
# Hostile local programs, one after the other, each a user without rights beside an honest program and an honest peer:
# both are served throughout, no gap above 2 s; the daemon answers, stops when told to, and nothing of the hostile
# program is left. `make hostile`, a part of it by CASES="close create".
#
# RATES=1, `make hostile-rates`: the rates of the honest ones are at least 70 % of those beside a program that only uses
# up a core, medians of PAIRS interleaved pairs; on a quiet machine.
source "$(dirname "$0")/lib.sh"

CASES=${CASES:-close create resize modify doorbells eventfd events seals descriptors ids memory fuse userfault fork}
GAP_MS=2000
SECONDS_EACH=${SECONDS_EACH:-2} # of each attack
RATES=${RATES:-0}
PAIRS=${PAIRS:-5}
HONEST_RATE=${HONEST_RATE:-70} # percent

lab_open ironwarp-hostile
[ "$RATES" = 0 ] || ahead_of_others
# The hostile program's user opens neither the build folder nor, without this, the scratch directory.
chmod 755 "$LAB" && cp "$LAB_TOOL" "$LAB/lab" && chmod 755 "$LAB/lab"
cat >"$LAB/hostile.toml" <<TOML
[memory]
hugepages = "prefer"
hugepage_limit = "128M"
packet_buffers = 16384
file_prefix = "$NS"
[[port]]
name = "lab"
driver = "tap"
interface = "iw0"
addresses = ["10.77.0.2/24"]
[workers]
cores = [0]
idle = "adaptive"
[tcp]
connections_max = 2048
[[listener]]
port = 7400
service = "region"
[[region]]
name = "lab"
size = "1M"
access = ["remote-read"]
[control]
socket = "$SOCKET"
[applications]
socket = "$LAB/verbs"
mode = "0666"
queue_pairs_max = 2048
user_queue_pairs_max = 2048
user_share = 75
user_queue_entries_max = 1048576
user_memory = "4G"
TOML

hostile() { # CASE OPTIONS…: starts the hostile program, as $HOSTILE
    spawn "$LAB/attack.out" setpriv --reuid 65534 --regid 65534 --clear-groups "$LAB/lab" hostile "$@" "$LAB/verbs"
    HOSTILE=$PID
}
honest() { # OPTIONS…: starts the honest ones, as $HONEST
    rm -f "$LAB/enough"
    spawn "$LAB/honest.out" ip netns exec "$NS" "$LAB/lab" hostile honest "$@" --until "$LAB/enough" \
        "$LAB/verbs" 10.77.0.2:7500 10.77.0.2:7400/lab
    HONEST=$PID
}
# opened CASE, ended CASE: what root prepares for a case, and takes away; ARGUMENTS are those of the case.
opened() {
    ARGUMENTS=()
    case $1 in
    fork) ARGUMENTS=(--local 10.77.0.2:7600) ;;
    userfault)
        ARGUMENTS=(--local 10.77.0.2:7600)
        sysctl -qw vm.unprivileged_userfaultfd=1
        ;;
    fuse)
        ARGUMENTS=(--local 10.77.0.2:7600 --file "$LAB/fuse/file")
        mkdir -p "$LAB/fuse"
        exec 8<>/dev/fuse
        mount -i -t fuse -o fd=8,rootmode=40000,user_id=0,group_id=0,allow_other lab "$LAB/fuse" || return 1
        "$LAB/lab" hostile fuse-server <&8 >"$LAB/fuse.out" 2>&1 &
        FUSE_SERVER=$!
        exec 8>&-
        ;;
    esac
}
ended() {
    if [ "$1" = fuse ]; then
        kill -KILL "$FUSE_SERVER" 2>/dev/null
        wait "$FUSE_SERVER" 2>/dev/null
        umount -l "$LAB/fuse"
    fi
    as_before
}
# as_before: sets the right to handle faults as it was.
USERFAULTS=$(sysctl -n vm.unprivileged_userfaultfd)
as_before() { sysctl -qw vm.unprivileged_userfaultfd="$USERFAULTS"; }
AT_END+=(as_before)
# attacked: waits for the report of the hostile program, and prints it; fails if there is none.
attacked() {
    for _ in $(seq 600); do
        grep '^{' "$LAB/attack.out" && return
        kill -0 "$HOSTILE" 2>/dev/null || break
        sleep 0.1
    done
    cat "$LAB/attack.out"
    return 1
}
served() { # waits for the report of the honest ones, and prints it
    touch "$LAB/enough"
    wait_at_most 60 "$HONEST" || { cat "$LAB/honest.out"; return 1; }
    cat "$LAB/honest.out"
}
killed() {
    kill -KILL "$HOSTILE" 2>/dev/null
    wait "$HOSTILE" 2>/dev/null
    return 0
}
answers() { timeout 2 "$IWARPCTL" --socket "$SOCKET" -j status >/dev/null || [ $? = 6 ]; }
# left: descriptors of the daemon, without the set that it makes with the first program, and all that programs have.
left() {
    # shellcheck disable=SC2046
    echo $(find "/proc/$DAEMON_PID/fd" -type l ! -lname '*eventpoll*' | wc -l) \
        $(for list in app qp cq mr; do ctl -j "$list" list | jq length; done)
}

withstands() { # CASE
    local before failed=0 gaps
    before=$(left)
    honest || return 1
    sleep 0.3
    opened "$1" || return 1
    hostile "$1" "${ARGUMENTS[@]}" --seconds "$SECONDS_EACH"
    answers || { echo "iwarpctl status is not answered within 2 s"; failed=1; }
    attacked || failed=1
    answers || { echo "iwarpctl status is not answered within 2 s after the attack"; failed=1; }
    killed
    sleep 0.3
    served || { ended "$1"; return 1; }
    ended "$1"
    for gaps in program peer; do
        jq -e ".$gaps.longest_gap_ms <= $GAP_MS and .$gaps.count > 100" "$LAB/honest.out" >/dev/null ||
            { echo "the honest $gaps was not served"; failed=1; }
    done
    becomes "$before" 5 left || failed=1
    return "$failed"
}

# rate CASE: prints the rates of the honest program and peer during the case.
rate() {
    opened "$1" || return 1
    hostile "$1" "${ARGUMENTS[@]}" --seconds $((SECONDS_EACH + 3))
    sleep 1
    honest --pause-us 0 || return 1
    sleep "$SECONDS_EACH"
    served >/dev/null || return 1
    attacked >/dev/null || return 1
    killed
    ended "$1"
    jq -r '"\(.program.per_s) \(.peer.per_s)"' "$LAB/honest.out"
}
median() { sort -n | sed -n "$(((PAIRS + 1) / 2))p"; }
# keeps_rate CASE: compares with the control, in turn.
keeps_rate() {
    local pair program peer share failed=0
    : >"$LAB/shares"
    for pair in $(seq "$PAIRS"); do
        read -r program peer <<<"$(rate burn)"
        echo "$pair: beside a program that uses up a core: $program by the program, $peer by the peer"
        echo "$program $peer $(rate "$1")" | tee -a "$LAB/shares"
    done
    for who in 1 2; do
        share=$(awk -v who="$who" 'NF == 4 { print int(100 * $(who + 2) / $who) }' "$LAB/shares" | median)
        echo "$1: the rate of the $([ "$who" = 1 ] && echo program || echo peer) is $share % of the control" >&3
        [ "${share:-0}" -ge "$HONEST_RATE" ] || failed=1
    done
    return "$failed"
}

exec 3>&1
for case in $CASES; do
    daemon_start "$LAB/hostile.toml" || exit 1
    kernel_side iw0
    if [ "$RATES" = 0 ]; then
        check "$case: honest programs are served" withstands "$case"
    else
        check "$case: honest programs keep $HONEST_RATE % of their rate" keeps_rate "$case"
    fi
    check "$case: the daemon stops" daemon_stop
done
score
