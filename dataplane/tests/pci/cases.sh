# shellcheck shell=bash
# Checks of one daemon on one card. card.sh sources it; $G is the guest, $PUT_BYTES the length of each transfer.

HOSTS4=10.77.0.2 HOSTS6=fd77::2

# counter GROUP NAME: of the daemon in the guest.
counter() {
    pci_ctl "$G" -j stats |
        jq "[.groups[] | select(.group == \"$1\") | .counters[] | select(.name == \"$2\") | .value] | add // -1"
}
port() { pci_ctl "$G" -j port list | jq -r ".[${2:-0}].$1"; }

# quiet_log PATTERN…: since the last start the daemon has reported no error and no warning but those that match.
quiet_log() {
    local patterns=(-e '^$') pattern loud
    for pattern in "$@"; do patterns+=(-e "$pattern"); done
    loud=$(pci_log "$G" | grep -E ' (WARN|ERROR) ' | grep -Ev "${patterns[@]}")
    echo "$loud"
    [ -z "$loud" ]
}
logged() { pci_log "$G" | grep -E "$1" || { pci_log "$G"; false; }; }

link_is() { becomes "$1" 6 port link; }
restart() { pci_stop "$G" && reconfigured "$@"; }
reconfigured() { pci_config "$G" "$@" && pci_start "$G" && link_is up; }

# bracketed HOST: as it stands in a target.
bracketed() { [[ $1 == *:* ]] && echo "[$1]" || echo "$1"; }
put() { remote --timeout 30 put --verify "$LAB/file" "$(bracketed "$1"):7400/lab${2:-}"; }
get() {
    remote --timeout 30 get "$(bracketed "$1"):7400/lab" "$LAB/got" --length "$PUT_BYTES" && cmp "$LAB/file" "$LAB/got"
}
echoes() {
    head -c 4194304 /dev/urandom >"$LAB/4M"
    in_ns timeout 60 nc -N "$1" 7 <"$LAB/4M" >"$LAB/echoed" && cmp "$LAB/4M" "$LAB/echoed"
}
new_file() { head -c "$PUT_BYTES" /dev/urandom >"$LAB/file"; }

# transfers MTU: both families, with packets as large as the MTU lets them be.
transfers() {
    local host headers
    for host in 10.77.0.2 fd77::2; do
        new_file
        headers=$([ $host = fd77::2 ] && echo 48 || echo 28)
        check "$TITLE: ping $host" in_ns ping -c 3 -i 0.2 -W 3 $host
        check "$TITLE: ping $host, $1 bytes" in_ns ping -c 2 -i 0.2 -W 3 -M "do" -s $(($1 - headers)) $host
        check "$TITLE: put --verify, $host" put $host
        check "$TITLE: get, $host" get $host
        check "$TITLE: echo of 4 MiB, $host" echoes $host
    done
}

syn() { in_ns python3 dataplane/tests/pci/syn.py "$G-0" "$(card_mac 0)" "$1" "$2"; }
answers() { [ "$(syn "$1" "$2")" = answered ]; }
ignores() {
    local before after
    before=$(counter frame_drops "drop_$2_checksum")
    [ "$(syn "$1" "$2")" = silent ] || { echo "answered"; return 1; }
    after=$(counter frame_drops "drop_$2_checksum")
    echo "drop_$2_checksum: $before, then $after"
    [ "$after" -gt "$before" ]
}
# checksums: the right ones are taken, the wrong ones dropped, whoever verifies them.
checksums() {
    local family
    for family in 4 6; do
        check "$TITLE: a right SYN is answered, IPv$family" answers $family good
        check "$TITLE: a wrong TCP checksum is dropped, IPv$family" ignores $family tcp
    done
    check "$TITLE: a wrong IPv4 header checksum is dropped" ignores 4 ip
}

# verified BY: who verified the checksums of what was received since: `port`, or `software`.
verified() {
    local before after segments
    before=$(counter ip rx_software_checksums) segments=$(counter ip rx_tcp_segments)
    put 10.77.0.2 && put fd77::2 || return 1
    after=$(counter ip rx_software_checksums) segments=$(($(counter ip rx_tcp_segments) - segments))
    echo "$segments segments, $((after - before)) of them verified in software"
    [ "$segments" -gt 100 ] || return 1
    case $1 in
        port) [ $((after - before)) -le $((segments / 20)) ] ;;
        software) [ $((after - before)) -ge $((segments * 19 / 20)) ] ;;
    esac
}

has_offloads() {
    echo "granted: $(port 'offloads | sort | join(" ")')"
    [ "$(port 'offloads | sort | join(" ")')" = "$1" ]
}

# used: the guest's time and the CPU time of the daemon so far, both in 1/100 s, read at one moment.
used() {
    guest_run "$G" 'read -r up _ </proc/uptime; awk "{print ${up%.*}${up#*.}, \$14 + \$15}" /proc/$daemon/stat'
}
asleep() { counter worker slept_ns; }

# share_of BEFORE AFTER: percent of a CPU that the daemon used between two answers of `used`.
share_of() {
    local before=($1) after=($2)
    echo $(((after[1] - before[1]) * 100 / (after[0] - before[0])))
}

# rests SHARE_MAX: while nothing comes in, the worker sleeps more than half of the time, and the daemon uses at most
# SHARE_MAX percent of a CPU.
rests() {
    local before slept after idle _
    # The host may be busy, which slows the guest down.
    for _ in 1 2 3; do
        sleep 1
        before=$(used) slept=$(asleep)
        sleep 2
        slept=$((($(asleep) - slept) / 1000000)) after=$(used)
        IDLE_SHARE=$(share_of "$before" "$after") idle=$(((${after% *} - ${before% *}) * 10))
        echo "CPU share $IDLE_SHARE %, asleep $slept of $idle ms"
        [ $((slept * 2)) -lt $idle ] || [ "$IDLE_SHARE" -gt "$1" ] || return 0
    done
    return 1
}
# works: while data comes in without a pause, the daemon's CPU share is 40 % at least and above that of `rests`.
works() {
    local before after busy
    head -c $((24 << 20)) /dev/urandom >"$LAB/busy"
    before=$(used)
    remote --timeout 30 put "$LAB/busy" 10.77.0.2:7400/lab || return 1
    after=$(used) busy=$(share_of "$before" "$after")
    echo "CPU share $busy % during a put of $(((${after% *} - ${before% *}) * 10)) ms, $IDLE_SHARE % before"
    [ "$busy" -ge 40 ] && [ "$busy" -gt "$IDLE_SHARE" ]
}
# An interrupt that nobody acknowledges is disabled by the guest's kernel for good.
interrupts_live() { ! guest_run "$G" 'dmesg | grep -iE "nobody cared|Disabling IRQ"'; }

# wakes: what arrives ends the sleep.
wakes() {
    local line
    line=$(in_ns ping -c 20 -i 0.1 -q 10.77.0.2 | tail -n 1)
    echo "$line"
    [[ $line =~ =\ [0-9.]+/([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -le 20 ]
}

# flap: the link goes for three seconds in the middle of a put, which then comes to its end.
flap() {
    local status
    head -c $((24 << 20)) /dev/urandom >"$LAB/flapped"
    { head -c $((4 << 20)) "$LAB/flapped"; sleep 5; tail -c +$(((4 << 20) + 1)) "$LAB/flapped"; } |
        remote --timeout 30 put - 10.77.0.2:7400/lab >"$LAB/flap.out" 2>&1 &
    local pid=$!
    sleep 1
    monitor "$G" "set_link net0 off"
    link_is down || { wait $pid; return 1; }
    sleep 1
    monitor "$G" "set_link net0 on"
    link_is up
    status=$?
    wait $pid || status=1
    cat "$LAB/flap.out"
    remote --timeout 30 get 10.77.0.2:7400/lab "$LAB/got" --length $((24 << 20)) && cmp "$LAB/flapped" "$LAB/got" &&
        return $status
}

killed() {
    guest_run "$G" 'kill -9 $daemon; wait $daemon; true' && pci_start "$G" && link_is up && put 10.77.0.2 && put fd77::2
}

# absent K: the guest's kernel has removed card K.
absent() { [ "$(guest_run "$G" "ls /sys/bus/pci/devices | grep -c $(card_address "$1")")" = 0 ] && echo yes; }
unplugs() {
    monitor "$G" "device_del card$1"
    becomes gone 15 port link "$1" && becomes yes 15 absent "$1" && logged "the card is gone.*card$1"
}
replugs() {
    local address
    address=$(card_address "$1")
    monitor "$G" "device_add ${CARD_DEVICES[$1]}"
    guest_run "$G" "for i in \$(seq 50); do [ -e /sys/bus/pci/devices/$address ] && break; sleep 0.1; done; \
pci_bind $address $KERNEL_DRIVER" &&
        becomes up 40 port link "$1" && logged "the card has returned.*card$1"
}

# many N: N echo connections of 100 KB at once, each with bytes of its own, half of them over IPv6.
many() {
    local pids=() k host
    for k in $(seq "$1"); do
        host=$([ $((k % 2)) = 0 ] && echo 10.77.0.2 || echo fd77::2)
        (head -c 100000 /dev/urandom >"$LAB/in.$k" && in_ns timeout 60 nc -N $host 7 <"$LAB/in.$k" >"$LAB/out.$k" &&
            cmp "$LAB/in.$k" "$LAB/out.$k") &
        pids+=($!)
    done
    for k in "${pids[@]}"; do wait "$k" || return 1; done
}

# steered PERCENT: frames passed on to another worker, of those received, while 32 connections come and go; both workers
# have connections of their own then.
spread() {
    local want=$1 steered frames before after share
    steered=$(counter steering steered) frames=$(counter rx_queue frames)
    before=$(segments_by_worker)
    many 32 || return 1
    after=$(segments_by_worker)
    steered=$(($(counter steering steered) - steered)) frames=$(($(counter rx_queue frames) - frames))
    echo "$frames frames received, $steered passed on to another worker;" \
        "frames sent by each worker: $before, then $after"
    share=$((steered * 100 / frames))
    case $want in
        port) [ $share -le 2 ] && both_sent "$before" "$after" ;;
        software) [ $share -ge 25 ] ;;
    esac
}
segments_by_worker() { pci_ctl "$G" -j stats | jq -c '[.workers[].rx_packets]'; }
both_sent() {
    jq -ne --argjson a "$1" --argjson b "$2" '[$a, $b] | transpose | map(.[1] - .[0]) | min > 200' >/dev/null
}
