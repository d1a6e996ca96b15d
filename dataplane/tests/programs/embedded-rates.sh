#!/bin/bash
# Rates without a daemon, on the loopback interface and between two namespaces: perftest and pingpong.c by `iwarp-run
# --embedded`, and UCX's put and sockperf over the kernel's TCP. Run by turns; prints the median and the range of each.
# On a quiet machine.
#
#   RUNS     runs of each (default 5)
#   WRITES   Writes of a run of 64 KiB (default 4000); ten times as many of 64 bytes
#   GIB      GiB of a run that measures CPU time (default 4)
#   IDLE_S   seconds of the server without a client (default 10)
#   REPORT   a file for the rows of `iwarp-bench programs`
cd "$(dirname "$0")/.." || exit 1
source ./lib.sh

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
RUNS=${RUNS:-5}
WRITES=${WRITES:-4000}
GIB=${GIB:-4}
IDLE_S=${IDLE_S:-10}
lab_open ironwarp-embedded-rates
far_open
ahead_of_others
cc -O2 -Wall -Wextra -Werror -o "$LAB/pingpong" dataplane/tests/programs/pingpong.c -libverbs -lrdmacm || exit 1

# On the loopback interface; after `apart`, between the namespaces.
PEER=127.0.0.1 CLIENT=$NS UCX_SERVER=lo UCX_CLIENT=lo
apart() { PEER=10.79.0.1 CLIENT=$NS-far UCX_SERVER=near UCX_CLIENT=far; }

# both SERVER… -- CLIENT…: runs a server and a client, and prints what the client says. Their CPU times, in seconds, are
# in $LAB/cpu.
both() {
    local server=() pid TIMEFORMAT='%U %S'
    while [ "$1" != -- ]; do server+=("$1") && shift; done
    shift
    { time ip netns exec "$NS" timeout 60 "${server[@]}" >/dev/null 2>&1; } 2>"$LAB/cpu.server" &
    pid=$!
    sleep 1
    { time ip netns exec "$CLIENT" timeout 60 "$@" 2>&1; } 2>"$LAB/cpu.client"
    wait "$pid"
    cat "$LAB/cpu.server" "$LAB/cpu.client" >"$LAB/cpu"
}
ironwarp() { # PROGRAM SIZE COUNT COLUMN [OPTION…]
    local command=("$RUN" --embedded "$1" -R -F -s "$2" -n "$3" "${@:5}")
    [[ $1 == *_bw ]] && command+=(--report_gbits)
    both "${command[@]}" -- "${command[@]}" "$PEER" | awk -v size="$2" -v column="$4" '$1 == size { print $column }'
}
ucx() { # TEST SIZE COUNT COLUMN
    local command=(ucx_perftest -t "$1" -s "$2" -n "$3")
    both env UCX_TLS=tcp "UCX_NET_DEVICES=$UCX_SERVER" "${command[@]}" -- \
        env UCX_TLS=tcp "UCX_NET_DEVICES=$UCX_CLIENT" "${command[@]}" "$PEER" |
        awk -v column="$4" '$1 == "Final:" { print $column }'
}
pingpong() { # HOW
    both "$RUN" --embedded "$LAB/pingpong" "$1" -- "$RUN" --embedded "$LAB/pingpong" "$1" "$PEER"
}
# cpu COMMAND ARGUMENT…: CPU seconds of both ends for each GiB: of many Writes of 64 KiB without those of a few, which
# are for the start. The command gets their number as $COUNT.
cpu() {
    local count total=0
    for count in 100 "$(awk -v gib="$GIB" 'BEGIN { print int(gib * 16384) + 100 }')"; do
        COUNT=$count "$@" >/dev/null
        total=$(awk -v less="$total" '{ sum += $1 + $2 } END { print sum - less }' "$LAB/cpu")
    done
    awk -v seconds="$total" -v gib="$GIB" 'BEGIN { printf "%.2f\n", seconds / gib }'
}
bulk() { ironwarp ib_write_bw 65536 "$COUNT" 4; }
ucx_bulk() { ucx ucp_put_bw 65536 "$COUNT" 7; }
tcp() { # half a round trip of a program that sleeps in `recv`
    local server
    ip netns exec "$NS" sockperf server --tcp -i 127.0.0.1 >/dev/null 2>&1 &
    server=$!
    sleep 0.5
    in_ns sockperf ping-pong --tcp -i 127.0.0.1 -m 64 -t 1 2>&1 | awk '/percentile 50.000/ { print $NF }'
    kill "$server"
    wait "$server" 2>/dev/null
}
# Milliseconds of a client of rping, from its start to its end, with 64 bytes there and back; and hundredths of a second
# of CPU, and KiB of memory, of its server in IDLE_S seconds without a client.
measure_start_and_idle() {
    local server begin before
    ip netns exec "$NS" "$RUN" --embedded rping -s -P -a 127.0.0.1 -p 7199 >/dev/null 2>&1 &
    server=$!
    sleep 1
    for _ in $(seq "$RUNS"); do
        begin=$(date +%s%N)
        in_ns "$RUN" --embedded rping -c -a 127.0.0.1 -p 7199 -C 1 -S 64 >/dev/null 2>&1 || return 1
        awk -v ns=$(($(date +%s%N) - begin)) 'BEGIN { printf "%.1f\n", ns / 1e6 }' >>"$LAB/start"
    done
    before=$(awk '{ print $14 + $15 }' "/proc/$server/stat")
    sleep "$IDLE_S"
    awk -v before="$before" '{ print $14 + $15 - before }' "/proc/$server/stat" >>"$LAB/idle"
    awk '/^VmRSS:/ { print $2 }' "/proc/$server/status" >>"$LAB/memory"
    kill "$server"
    wait "$server" 2>/dev/null
}
measure_start_and_idle
for _ in $(seq "$RUNS"); do
    ironwarp ib_write_bw 65536 "$WRITES" 4 >>"$LAB/bulk"
    # MB/s, of 2^20 bytes.
    ucx ucp_put_bw 65536 "$WRITES" 7 | awk '{ printf "%.3f\n", $1 * 8 * 1048576 / 1e9 }' >>"$LAB/ucx.bulk"
    ironwarp ib_write_bw 64 $((10 * WRITES)) 5 >>"$LAB/small"
    ucx ucp_put_bw 64 $((10 * WRITES)) 9 | awk '{ printf "%.4f\n", $1 / 1e6 }' >>"$LAB/ucx.small"
    ironwarp ib_write_lat 64 "$WRITES" 5 >>"$LAB/lat"
    ironwarp ib_send_lat 64 "$WRITES" 5 >>"$LAB/send"
    ucx ucp_put_lat 64 "$WRITES" 3 >>"$LAB/ucx.lat"
    ironwarp ib_send_lat 64 "$WRITES" 5 -e >>"$LAB/sleep"
    pingpong block >>"$LAB/block"
    pingpong epoll >>"$LAB/epoll"
    tcp >>"$LAB/tcp.sleep"
    cpu bulk >>"$LAB/cpu.bulk"
    cpu ucx_bulk >>"$LAB/cpu.ucx"
done
apart
for _ in $(seq "$RUNS"); do
    ironwarp ib_write_bw 65536 "$WRITES" 4 >>"$LAB/apart"
    ucx ucp_put_bw 65536 "$WRITES" 7 | awk '{ printf "%.3f\n", $1 * 8 * 1048576 / 1e9 }' >>"$LAB/ucx.apart"
done
echo "rping's client, from its start to its end: $(median_of "$LAB/start") ms; its server without a client: \
$(awk -v seconds="$IDLE_S" '{ print $1 / seconds }' "$LAB/idle") % of a CPU, $(<"$LAB/memory") KiB"
echo "64 KiB: ib_write_bw $(median_of "$LAB/bulk"), ucx put $(median_of "$LAB/ucx.bulk") Gbit/s"
echo "64 KiB, CPU s/GiB: ib_write_bw $(median_of "$LAB/cpu.bulk"), ucx put $(median_of "$LAB/cpu.ucx")"
echo "64 KiB between namespaces: ib_write_bw $(median_of "$LAB/apart"), ucx put $(median_of "$LAB/ucx.apart") Gbit/s"
echo "64 B:   ib_write_bw $(median_of "$LAB/small"), ucx put $(median_of "$LAB/ucx.small") million/s"
echo "64 B, asleep: blocking call $(median_of "$LAB/block"), own epoll $(median_of "$LAB/epoll"), ib_send_lat -e \
$(median_of "$LAB/sleep"), sockperf $(median_of "$LAB/tcp.sleep") µs"
echo "64 B:   ib_write_lat $(median_of "$LAB/lat"), ib_send_lat $(median_of "$LAB/send"), \
ucx put $(median_of "$LAB/ucx.lat") µs"
us=half_round_trip_us
for over in "embedded:" "kernel TCP:ucx."; do
    program=ib_write_bw file=${over#*:} over=${over%:*}
    [ -z "$file" ] || program="UCX put"
    reports "$program" "$over, loopback" 65536 gbps "$LAB/${file}bulk"
    reports "$program" "$over, loopback" 65536 cpu_s_per_gib "$LAB/cpu.$([ -z "$file" ] && echo bulk || echo ucx)"
    reports "$program" "$over, veth with offloads" 65536 gbps "$LAB/${file}apart"
    reports "$program" "$over, loopback" 64 million_per_s "$LAB/${file}small"
done
reports ib_write_lat "embedded, loopback" 64 "$us" "$LAB/lat"
reports ib_send_lat "embedded, loopback" 64 "$us" "$LAB/send"
reports "UCX put" "kernel TCP, loopback" 64 "$us" "$LAB/ucx.lat"
reports "blocking call" "embedded, loopback, asleep" 64 "$us" "$LAB/block"
reports "own epoll" "embedded, loopback, asleep" 64 "$us" "$LAB/epoll"
reports sockperf "kernel TCP, loopback, asleep" 64 "$us" "$LAB/tcp.sleep"
reports rping "embedded, loopback" 64 start_to_end_ms "$LAB/start"
