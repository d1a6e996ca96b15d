#!/bin/bash
# Queue pairs that are connected by number, beside those of rdma_cm, between two daemons: rates of perftest, the set-up
# of a connection, and many at once. Run by turns; prints the median and the range of each. On a quiet machine.
#
#   RUNS     runs of each (default 5)
#   WRITES   Writes and Reads of a run of 64 KiB (default 4000); ten times as many of 64 bytes
#   REPORT   a file for the rows of `iwarp-bench programs`
#   PAIRS    queue pairs that connect at once (default 1000)
cd "$(dirname "$0")/.." || exit 1
source ./lib.sh

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
RUNS=${RUNS:-5}
WRITES=${WRITES:-4000}
PAIRS=${PAIRS:-1000}
LIMIT=90
lab_open ironwarp-numbers
cc -O2 -Wall -Wextra -Werror -o "$LAB/pairs" dataplane/tests/programs/pairs.c -libverbs -lrdmacm || exit 1
source dataplane/tests/programs/two.sh
# Both ends of a queue pair may open a connection at once. By default a user may have 768 queue pairs.
for n in 0 1; do
    sed -i -e "s/^connections_max = .*/connections_max = $((2 * PAIRS + 1024))/" \
        -e "/^\[applications\]/a queue_pairs_max = $((2 * PAIRS + 1024))" "$LAB/$n.toml"
    start "$n" || exit 1
done

perftest() { # -R|by-number PROGRAM SIZE COUNT COLUMN: the rate
    local options=(-F -d iwarp0 -s "$3" -n "$4" --report_gbits) peer=127.0.0.1 server
    [ "$1" = by-number ] || { options+=(-R) && peer=10.78.0.10; }
    on 0 "$2" "${options[@]}" >"$LAB/server.out" 2>&1 &
    server=$!
    sleep 1
    on 1 "$2" "${options[@]}" "$peer" 2>&1 | awk -v size="$3" -v column="$5" '$1 == size { print $column }'
    wait "$server"
}
pairs() { # COUNT [one-by-one]
    local server
    on 0 "$LAB/pairs" 10.78.0.10 >"$LAB/server.out" 2>&1 &
    server=$!
    sleep 0.5
    on 1 "$LAB/pairs" 10.78.0.11 10.78.0.10 "$@" || cat "$LAB/server.out" >&2
    wait "$server"
}
for _ in $(seq "$RUNS"); do
    for how in -R by-number; do
        perftest "$how" ib_write_bw 65536 "$WRITES" 4 >>"$LAB/write.$how"
        perftest "$how" ib_read_bw 65536 "$WRITES" 4 >>"$LAB/read.$how"
        perftest "$how" ib_write_bw 64 $((10 * WRITES)) 5 >>"$LAB/small.$how"
    done
    pairs 20 one-by-one >"$LAB/times"
    awk '{ print $3 + 0 }' "$LAB/times" >>"$LAB/setup.by-number"
    awk '{ print $6 }' "$LAB/times" >>"$LAB/setup.-R"
    pairs "$PAIRS" | awk '{ print $5 }' >>"$LAB/at-once"
done
beside() { echo "by number $(median_of "$LAB/$1.by-number"), by rdma_cm $(median_of "$LAB/$1.-R")"; }
echo "ib_write_bw, 64 KiB: $(beside write) Gbit/s"
echo "ib_read_bw, 64 KiB:  $(beside read) Gbit/s"
echo "ib_write_bw, 64 B:   $(beside small) million/s"
echo "set-up:              $(beside setup) µs"
echo "$PAIRS queue pairs at once, connected from both ends: $(median_of "$LAB/at-once") s"
for how in -R by-number; do
    over="two daemons, bridge, $([ "$how" = -R ] && echo "by rdma_cm" || echo "by number")"
    reports ib_write_bw "$over" 65536 gbps "$LAB/write.$how"
    reports ib_read_bw "$over" 65536 gbps "$LAB/read.$how"
    reports ib_write_bw "$over" 64 million_per_s "$LAB/small.$how"
    reports connection "$over" 0 set_up_us "$LAB/setup.$how"
done
for file in write read small setup; do
    [ "$(grep -c . "$LAB/$file.by-number")" = "$RUNS" ] && [ "$(grep -c . "$LAB/$file.-R")" = "$RUNS" ] || exit 1
done
[ "$(grep -c . "$LAB/at-once")" = "$RUNS" ]
