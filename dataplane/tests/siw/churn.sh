# Suite `churn`: thousands of connections, and the resources that the daemon holds afterwards. Sourced by run.sh.

# counters NAME…: prints the values of the counters, in this order.
counters() {
    ctl -j stats | jq -r --arg names "$*" '[.groups[].counters[]] as $all | $names | split(" ")
        | map(. as $name | [$all[] | select(.name == $name) | .value] | add) | map(tostring) | join(" ")'
}

# resources: prints everything that connections make the daemon hold. A worker has up to a burst of 32 packet buffers in
# hand: up to 33 buffers count as equal.
resources() {
    report | jq -c '(.connections | [.established, .opening, .closing, .time_wait]) + [.regions],
        (.pools[] | [.name, ([.in_use, 33] | max)])'
    ctl -j region list | jq -c '.[] | [.name, .grants]'
}

# at_rest: the daemon holds what it held at the start.
at_rest() {
    local now
    for _ in $(seq 100); do
        now=$(resources)
        [ "$now" = "$AT_START" ] && return 0
        sleep 0.2
    done
    diff <(echo "$AT_START") <(echo "$now")
    return 1
}

# cycle COUNT OPTIONS: runs COUNT connections, an eighth of which ends in each of eight ways (cycle.c); the daemon's
# counters match once the last has ended.
cycle() {
    local count=$1 before
    local names=(passive_opens requests_in accepts_out rejects_out terminates_sent)
    shift
    before=$(counters "${names[@]}")
    client $CRC_ON --region lab --ops cycle --cycles "$count" "$@" || return 1
    local part=$((count / 8)) k was now is wanted
    wanted="$((7 * part)) $((7 * part)) $((5 * part)) $((2 * part)) $part"
    for _ in $(seq 25); do
        now=$(counters "${names[@]}")
        is=()
        for k in "${!names[@]}"; do
            was=$(cut -d' ' -f$((k + 1)) <<<"$before")
            is+=($(($(cut -d' ' -f$((k + 1)) <<<"$now") - was)))
        done
        [ "${is[*]}" = "$wanted" ] && break
        sleep 0.2
    done
    echo "${names[*]}: ${is[*]}; wanted: $wanted"
    [ "${is[*]}" = "$wanted" ]
}

resident_kib() { awk '$1 == "VmRSS:" {print $2}' "/proc/$DAEMON_PID/status"; }
# memory touched by the first connection of every kind stays allocated
grew_little() {
    local now
    now=$(resident_kib)
    echo "RESULT resident: $now KiB, $RESIDENT_KIB KiB before"
    [ $((now - RESIDENT_KIB)) -le 256 ]
}

suite_churn() {
    # Numbers of objects are used in turn: each must have been used once before the daemon can have all its memory.
    try "connections of every kind come and go" cycle 1600 --qps 8
    try "nothing is left of them" at_rest
    RESIDENT_KIB=$(resident_kib)
    try "one after the other" cycle 800
    try "eight at a time" cycle 1600 --qps 8
    try "nothing is left of them" at_rest
    try "nor has the daemon grown" grew_little
}
