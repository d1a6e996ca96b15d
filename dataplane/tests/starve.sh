#!/bin/bash
# Measures an honest peer's verified rate before, during and after attacks on the packet buffers: one-byte segments
# behind gaps, and FPDUs that never end, over IPv4 and IPv6, on every port, before and after the MPA handshake. The
# attacker runs at low priority: it would be another machine. `make starve`.
source "$(dirname "$0")/lib.sh"

ahead_of_others
lab_open ironwarp-starve
.ci/hugepages.sh 320 || true
sed -e "s#^socket *=.*#socket = \"$SOCKET\"#" -e 's#^hugepages *=.*#hugepages = "prefer"#' configs/tap.toml \
    >"$LAB/starve.toml"
daemon_start "$LAB/starve.toml" || exit 1
kernel_side iw0
in_ns sysctl -qw net.ipv4.tcp_timestamps=0
BYTES=$((4 << 20))
head -c "$BYTES" /dev/urandom >"$LAB/sent"

# rate MS: prints the honest peer's rate in megabytes per second, from puts and gets during MS milliseconds, each
# compared.
rate() {
    local begin now=0 moved=0
    begin=$(date +%s%3N)
    while [ $((now - begin)) -lt "$1" ]; do
        timeout 10 "$IWARPCTL" remote put "$LAB/sent" 10.77.0.2:7400/lab >/dev/null || { echo 0; return; }
        timeout 10 "$IWARPCTL" remote get 10.77.0.2:7400/lab "$LAB/got" --length "$BYTES" >/dev/null ||
            { echo 0; return; }
        cmp -s "$LAB/sent" "$LAB/got" || { echo 0; return; }
        moved=$((moved + 2 * BYTES))
        now=$(date +%s%3N)
    done
    echo $((moved / 1000 / (now - begin)))
}
export -f rate
rate_in_ns() { in_ns env IWARPCTL="$IWARPCTL" LAB="$LAB" BYTES="$BYTES" bash -c "rate $1"; }
# median_rate: the median of three samples of half a second, since one may meet a busy moment of the machine.
median_rate() { for _ in 1 2 3; do rate_in_ns 500; done | sort -n | sed -n 2p; }
# recovered_rate RATE: takes samples of half a second until one reaches three quarters of RATE, at most six, and prints
# the best. A busy machine only lowers a sample, whereas buffers that are not freed lower all of them.
recovered_rate() {
    local best=0 sample
    for _ in 1 2 3 4 5 6; do
        sample=$(rate_in_ns 500)
        [ "$sample" -le "$best" ] || best=$sample
        [ $((best * 4)) -lt $(($1 * 3)) ] || break
    done
    echo "$best"
}
value() { ctl -j stats | jq --arg group "$1" --arg name "$2" \
    '[.groups[] | select(.group == $group) | .counters[] | select(.name == $name) | .value] | add'; }

# refuses: true if status is degraded because received data is not kept.
refuses() {
    ctl -j status >"$LAB/status"
    jq '.state == "degraded" and any(.degraded[]; contains("received data is not kept"))' "$LAB/status"
}

# starved ARGUMENT…: runs the attack of starve.py with these arguments. During its first three seconds the honest peer
# keeps half of its rate and never stalls; a second later it has all of it, measured as three quarters on a busy
# machine. While segments behind gaps are refused, status is degraded and says why. FPDUs in small pieces are copied
# aside: none is refused.
starved() {
    local before during=() after once sum=0 attacker told=0 retained limit
    before=$(median_rate)
    # Not through `in_ns`: the job must be the attacker itself, not a subshell around it.
    spawn "$LAB/attack" nice -n 39 ip netns exec "$NS" python3 dataplane/tests/starve.py "$@"
    attacker=$PID
    # Other tests measure the cost of opening them.
    becomes 1 120 grep -c 'all are open' "$LAB/attack" || return 1
    for once in 1 2 3; do during+=("$(rate_in_ns 1000)"); done
    [ "$1" != gaps ] || becomes true 30 refuses || told=1
    retained=$(value now retained_buffers)
    limit=$(value now retained_limit)
    kill "$attacker" 2>/dev/null
    wait "$attacker" 2>/dev/null
    sleep 1
    after=$(recovered_rate "$before")
    cat "$LAB/attack"
    echo "$before MB/s before, ${during[*]} during, $after after; $retained of $limit buffers retained"
    echo "$*: $before MB/s before, ${during[*]} during, $after after" >>"$LAB/rates"
    for once in "${during[@]}"; do
        [ "$once" -gt 0 ] || return 1
        sum=$((sum + once))
    done
    [ "$before" -gt 0 ] && [ $((sum * 2)) -ge $((before * 3)) ] && [ $((after * 4)) -ge $((before * 3)) ] &&
        [ "$retained" -le "$limit" ] && [ "$told" = 0 ]
}
# steadily COMMAND…: takes a measurement that fails again, up to twice: the rate of a shared machine changes by a factor
# of two within seconds, also without an attack. A peer that starves fails every time.
steadily() { "$@" || { echo "once more:" && "$@"; } || { echo "a third time:" && "$@"; }; }
for host in 10.77.0.2 fd77::2; do
    check "bytes behind gaps, echo, $host" steadily starved gaps "$host" 7 70 900
    check "bytes behind gaps, discard, $host" steadily starved gaps "$host" 9 70 900
    check "bytes behind gaps, region before the handshake, $host" steadily starved gaps "$host" 7400 70 900
    check "bytes behind gaps, region granted, $host" steadily starved gaps "$host" 7400 110 750 --request lab
    check "FPDUs that never end, $host" steadily starved fpdus "$host" 7400 1600 50 --request lab
done
cat "$LAB/rates"
# The events of the last attacks are among the latest 256.
pressed() { ctl -j monitor --recent --seconds 1 --event memory_pressure | jq -s -e 'any(.[]; .refused > 0)'; }
check "memory pressure was reported as an event" pressed
check "SIGTERM ends it cleanly" daemon_stop
score
