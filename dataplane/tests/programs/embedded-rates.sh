#!/bin/bash
# Rates on the loopback interface without a daemon: perftest by `iwarp-run --embedded`, and UCX's put and sockperf over
# the kernel's TCP. Run by turns; prints the median and the range of each. On a quiet machine.
#
#   RUNS     runs of each (default 5)
#   WRITES   Writes of a run of 64 KiB (default 4000); ten times as many of 64 bytes
cd "$(dirname "$0")/.." || exit 1
source ./lib.sh

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
RUNS=${RUNS:-5}
WRITES=${WRITES:-4000}
lab_open ironwarp-embedded-rates
ahead_of_others

# both SERVER… -- CLIENT…: runs a server and a client in the namespace, and prints what the client says.
both() {
    local server=() pid
    while [ "$1" != -- ]; do server+=("$1") && shift; done
    shift
    ip netns exec "$NS" timeout 60 "${server[@]}" >/dev/null 2>&1 &
    pid=$!
    sleep 1
    in_ns timeout 60 "$@" 2>&1
    wait "$pid"
}
ironwarp() { # PROGRAM SIZE COUNT COLUMN [OPTION…]
    local command=("$RUN" --embedded "$1" -R -F -s "$2" -n "$3" "${@:5}")
    [[ $1 == *_bw ]] && command+=(--report_gbits)
    both "${command[@]}" -- "${command[@]}" 127.0.0.1 | awk -v size="$2" -v column="$4" '$1 == size { print $column }'
}
ucx() { # TEST SIZE COUNT COLUMN
    local command=(env UCX_TLS=tcp UCX_NET_DEVICES=lo ucx_perftest -t "$1" -s "$2" -n "$3")
    both "${command[@]}" -- "${command[@]}" 127.0.0.1 | awk -v column="$4" '$1 == "Final:" { print $column }'
}
tcp() { # half a round trip of a program that sleeps in `recv`
    local server
    ip netns exec "$NS" sockperf server --tcp -i 127.0.0.1 >/dev/null 2>&1 &
    server=$!
    sleep 0.5
    in_ns sockperf ping-pong --tcp -i 127.0.0.1 -m 64 -t 1 2>&1 | awk '/percentile 50.000/ { print $NF }'
    kill "$server"
    wait "$server" 2>/dev/null
}
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
    tcp >>"$LAB/tcp.sleep"
done
median() { # FILE: the median of the rates, and their range
    sort -n "$1" | awk '{ rate[NR] = $1 } END { print rate[int((NR + 1) / 2)] " (" rate[1] " to " rate[NR] ")" }'
}
echo "64 KiB: ib_write_bw $(median "$LAB/bulk"), ucx put $(median "$LAB/ucx.bulk") Gbit/s"
echo "64 B:   ib_write_bw $(median "$LAB/small"), ucx put $(median "$LAB/ucx.small") million/s"
echo "64 B, asleep: ib_send_lat -e $(median "$LAB/sleep"), sockperf $(median "$LAB/tcp.sleep") µs"
echo "64 B:   ib_write_lat $(median "$LAB/lat"), ib_send_lat $(median "$LAB/send"), ucx put $(median "$LAB/ucx.lat") µs"
