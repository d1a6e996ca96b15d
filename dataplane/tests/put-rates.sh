#!/bin/bash
# Compares the rate of `iwarpctl remote put` and `get` over a TAP for both families, with and without timestamps. Each
# changes the MSS, and none may change the rate by much. The rates are medians of interleaved runs, compared within one
# run of the script. RATIO is the least rate of the slowest relative to the fastest of its MTU, percent. `make
# put-rates`. net_tap has MTU 9000 from DPDK 24.11 on: after `make debian13`,
# `.ci/debian13.sh env MTUS=9000 dataplane/tests/put-rates.sh`.
source "$(dirname "$0")/lib.sh"

MTUS=${MTUS:-1280 1500 9000}
ROUNDS=${ROUNDS:-15}
MIB=${MIB:-64}
RATIO=${RATIO:-80}

lab_open ironwarp-rates
ahead_of_others
.ci/hugepages.sh 256 >/dev/null || true
head -c $((MIB << 20)) /dev/urandom >"$LAB/file"

# config MTU
config() {
    cat >"$LAB/config.toml" <<TOML
[memory]
hugepages = "prefer"
[control]
socket = "$SOCKET"
[workers]
cores = [0]
idle = "adaptive"
[[port]]
driver = "tap"
interface = "iw0"
mtu = $1
addresses = ["10.77.0.2/24", "fd77::2/64"]
[[listener]]
port = 7400
service = "region"
[[region]]
name = "lab"
size = "${MIB}M"
access = ["remote-read", "remote-write"]
TOML
}

# transfer put|get HOST: prints the rate in megabytes per second.
transfer() {
    local operation=$1 place=$2:7400/lab
    case $operation in
        put) remote put -j "$LAB/file" "$place" | jq '.bytes_per_second / 1e6 | floor' ;;
        get)
            rm -f "$LAB/got"
            remote get -j "$place" "$LAB/got" | jq '.bytes_per_second / 1e6 | floor'
            ;;
    esac
}

# measure MTU: prints a line "operation family timestamps rate" for each transfer.
measure() {
    local operation timestamps host
    for _ in $(seq "$ROUNDS"); do
        for timestamps in 1 0; do
            in_ns sysctl -qw "net.ipv4.tcp_timestamps=$timestamps"
            for host in 10.77.0.2 '[fd77::2]'; do
                for operation in put get; do
                    echo "$operation $host $timestamps $(transfer "$operation" "$host")"
                done
            done
        done
    done
}

# judged MTU: prints the medians of the measured rates; fails if those of an operation differ by too much.
judged() {
    sort -k1,3 -k4n | awk -v mtu="$1" -v ratio="$RATIO" -v rounds="$ROUNDS" '
        NF == 4 { key = $1 " " $2 " " $3; if (key != last) { n = 0; last = key }
            if (++n == int((rounds + 1) / 2)) {
                printf "%5d  %-4s  %-10s  timestamps %s  %5d MB/s\n", mtu, $1, $2, $3 ? "on " : "off", $4
                if (!($1 in low) || $4 < low[$1]) low[$1] = $4
                if ($4 > high[$1]) high[$1] = $4
                seen++
            } }
        END { for (operation in low) {
                share = high[operation] ? 100 * low[operation] / high[operation] : 0
                printf "%5d  %-4s  the slowest has %d %% of the fastest\n", mtu, operation, share
                if (share < ratio) failed = 1 }
            exit failed || seen != 8 }'
}

for mtu in $MTUS; do
    config "$mtu"
    if ! daemon_start "$LAB/config.toml" 2>"$LAB/refused"; then
        grep -qi 'mtu' "$LAB/refused" || { cat "$LAB/refused" >&2; exit 1; }
        echo "$mtu: this release of the driver does not take it"
        continue
    fi
    kernel_side iw0
    ip -n "$NS" link set iw0 mtu "$mtu"
    measure >"$LAB/measured"
    judged "$mtu" <"$LAB/measured" && PASSED=$((PASSED + 1)) || FAILED=$((FAILED + 1))
    daemon_stop
done
score
