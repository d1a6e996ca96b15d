#!/bin/bash
# RDMA Writes of 64 KiB on this machine, in Gbit/s: `ib_write_bw` between two daemons on a bridge, and UCX's put over
# kernel TCP on the same bridge, once with the kernel's offloads and once without. Run by turns; prints each median.
#
#   RUNS     runs of each (default 5)
#   WRITES   Writes of a run (default 4000)
#   REPORT   a file for the rows of `iwarp-bench programs`, with Reads and the time of a message, too
cd "$(dirname "$0")/.." || exit 1
source ./lib.sh

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
RUNS=${RUNS:-5}
WRITES=${WRITES:-4000}
lab_open ironwarp-rates
source dataplane/tests/programs/two.sh
for n in 0 1; do start "$n" || exit 1; done
for n in 0 1; do
    ip netns add "$NS-$n"
    ip -n "$NS" link add "u$n" type veth peer name eth0 netns "$NS-$n"
    ip -n "$NS" link set "u$n" master switch up
    ip -n "$NS-$n" addr add "10.78.0.2$n/24" dev eth0
    ip -n "$NS-$n" link set eth0 up
    ip -n "$NS-$n" link set lo up
done

ironwarp() { # PROGRAM SIZE COLUMN
    local options=(-R -d iwarp0 -F -s "$2" -n "$WRITES") server
    [[ $1 != *_bw ]] || options+=(--report_gbits)
    ip netns exec "$NS" timeout 60 "$RUN" --socket "$LAB/0.verbs" "$1" "${options[@]}" >/dev/null 2>&1 &
    server=$!
    sleep 1
    ip netns exec "$NS" timeout 60 "$RUN" --socket "$LAB/1.verbs" "$1" "${options[@]}" 10.78.0.10 2>&1 |
        awk -v size="$2" -v column="$3" '$1 == size { print $column }'
    wait "$server"
}
offloads() { # on|off, at both of the kernel's ends
    local n
    for n in 0 1; do ip netns exec "$NS-$n" ethtool -K eth0 tx "$1" tso "$1" gso "$1" gro "$1" >/dev/null 2>&1; done
}
ucx() { # on|off [TEST SIZE COLUMN]: a column of the last line, by default the rate in Gbit/s
    local test=${2:-ucp_put_bw} size=${3:-65536} server
    local options=(env UCX_TLS=tcp UCX_NET_DEVICES=eth0 ucx_perftest -t "$test" -s "$size" -n "$WRITES")
    offloads "$1"
    ip netns exec "$NS-0" timeout 60 "${options[@]}" >/dev/null 2>&1 &
    server=$!
    sleep 1
    # The seventh column of the last line is the rate of the whole run in MB/s, of 2^20 bytes.
    ip netns exec "$NS-1" timeout 60 "${options[@]}" 10.78.0.20 2>"$LAB/ucx.err" >"$LAB/ucx.out"
    awk -v column="${4:-}" '$1 == "Final:" {
        if (column) print $column; else printf "%.3f\n", $7 * 8 * 1048576 / 1e9 }' "$LAB/ucx.out"
    wait "$server"
}
more() {
    ironwarp ib_read_bw 65536 4 >>"$LAB/read"
    ironwarp ib_send_lat 64 5 >>"$LAB/send"
    ucx on ucp_put_lat 64 3 >>"$LAB/put"
}
for _ in $(seq "$RUNS"); do
    ironwarp ib_write_bw 65536 4 >>"$LAB/ironwarp.rates"
    ucx on >>"$LAB/on.rates"
    ucx off >>"$LAB/off.rates"
    [ -z "${REPORT:-}" ] || more
done
load=$(cut -d' ' -f1 /proc/loadavg)
echo "ib_write_bw, two daemons:            $(median_of "$LAB/ironwarp.rates") Gbit/s"
echo "ucx_perftest, kernel TCP, offloads:  $(median_of "$LAB/on.rates") Gbit/s"
echo "ucx_perftest, kernel TCP without:    $(median_of "$LAB/off.rates") Gbit/s"
echo "load $load on $(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
if [ -n "${REPORT:-}" ]; then
    daemons="two daemons, bridge" tcp="kernel TCP, bridge with offloads"
    reports ib_write_bw "$daemons" 65536 gbps "$LAB/ironwarp.rates"
    reports ib_read_bw "$daemons" 65536 gbps "$LAB/read"
    reports ib_send_lat "$daemons" 64 half_round_trip_us "$LAB/send"
    reports "UCX put" "$tcp" 65536 gbps "$LAB/on.rates"
    reports "UCX put" "kernel TCP, bridge without offloads" 65536 gbps "$LAB/off.rates"
    reports "UCX put" "$tcp" 64 half_round_trip_us "$LAB/put"
fi
