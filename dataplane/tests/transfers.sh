#!/bin/bash
# `iwarpctl remote` against a daemon: several files, pipes, connections that break midway, measurements.
# `make operations`.
source "$(dirname "$0")/lib.sh"

lab_open ironwarp-transfers
cat >"$LAB/config.toml" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 8192
file_prefix = "$NS"
[control]
socket = "$SOCKET"
[workers]
cores = [0]
idle = "adaptive"
[[port]]
name = "p0"
driver = "tap"
interface = "iw0"
addresses = ["10.77.0.2/24", "fd77::2/64"]
[[listener]]
port = 7400
service = "region"
[[region]]
name = "lab"
size = "208M"
access = ["remote-read", "remote-write"]
[[region]]
name = "small"
size = "1M"
access = ["remote-read", "remote-write"]
[[region]]
name = "vault"
size = "4k"
access = ["remote-read", "remote-write"]
token = "open sesame"
TOML
serving() { daemon_start "$LAB/config.toml" && kernel_side iw0; }
check "a daemon with regions" serving

# Long enough for a reset in its midst.
head -c 200000000 /dev/urandom >"$LAB/large"
head -c 1234567 /dev/urandom >"$LAB/a"
head -c 100 /dev/urandom >"$LAB/b"
: >"$LAB/empty"
exits_with() { # CODE COMMAND…
    local wanted=$1 status
    shift
    "$@"
    status=$?
    [ "$status" = "$wanted" ] || { echo "exit $status, not $wanted"; return 1; }
}

# --- files and pipes
several() { # HOST: files one behind the other, and back
    remote put "$LAB/a" "$LAB/empty" "$LAB/b" "$1:7400/lab+3" --verify &&
        remote get "$1:7400/lab+3" "$LAB/a2" "$LAB/b2" --length 1234567,100 &&
        cmp "$LAB/a" "$LAB/a2" && cmp "$LAB/b" "$LAB/b2"
}
piped() { # HOST: a pipe of unknown length, to a pipe
    cat "$LAB/a" "$LAB/b" | remote put - "$1:7400/lab+7" &&
        remote get "$1:7400/lab+7" - --length 1234667 | cmp - <(cat "$LAB/a" "$LAB/b")
}
overflowing() { # a pipe that is longer than the region: an error that says how much was written
    exits_with 1 remote put - 10.77.0.2:7400/small <"$LAB/a" >"$LAB/said" 2>&1 || return 1
    grep -q 'longer than the 1048576 bytes' "$LAB/said" || return 1
    exits_with 0 remote get 10.77.0.2:7400/small - | cmp - <(head -c 1048576 "$LAB/a")
}
nothing() { remote put "$LAB/empty" "$1:7400/lab" && remote put - "$1:7400/lab" </dev/null; } # HOST

# --- connections that break
moving() { # FIELD: waits until a connection to the region has more than a megabyte in this counter
    local tries
    for tries in $(seq 1000); do
        [ "$(ctl -j conn list | jq "any(.[]; .rdma.region == \"lab\" and .$1 > 1000000)")" = true ] && return
        sleep 0.01
    done
    echo "no connection after $tries tries"
    return 1
}
resets() { moving "$1" && ctl conn close --listener 7400; } # FIELD
survives_reset() { # HOST: a put and its comparison, with a reset in between
    remote put -j "$LAB/large" "$1:7400/lab" --resume --verify >"$LAB/report" &
    local put=$! status=0
    resets bytes_in || status=1
    wait_at_most 120 "$put" || status=1
    jq -e '.resumed >= 1 and .verified' "$LAB/report" && [ "$status" = 0 ]
}
get_survives_reset() { # HOST
    remote get -j "$1:7400/lab" "$LAB/got" --length 200000000 --resume >"$LAB/report" &
    local get=$! status=0
    resets bytes_out || status=1
    wait_at_most 120 "$get" || status=1
    jq -e '.resumed >= 1' "$LAB/report" && cmp "$LAB/large" "$LAB/got" && [ "$status" = 0 ]
}
silence() { # nothing passes for a while
    in_ns nft -f - <<'NFT'
table inet wire {
    chain output {
        type filter hook output priority 0;
        tcp dport 7400 counter drop
    }
}
NFT
    sleep 2
    in_ns nft delete table inet wire
}
through_silence() { # HOST
    remote put -j "$LAB/large" "$1:7400/lab" --resume --verify --timeout 0.5 --retries 100 >"$LAB/report" &
    local put=$! status=0
    moving bytes_in && silence || status=1
    wait_at_most 120 "$put" || status=1
    jq -e '.resumed >= 1 and .verified' "$LAB/report" && [ "$status" = 0 ]
}
without_resume() { # the same reset ends a put
    remote put "$LAB/large" 10.77.0.2:7400/lab --verify 2>"$LAB/said" &
    local put=$!
    resets bytes_in
    wait_at_most 120 "$put"
    [ $? = 1 ] && grep -q 'the connection to 10.77.0.2:7400 was lost' "$LAB/said"
}

# --- measurements
placed() {
    ctl -j stats rdmap | jq '[.groups[].counters[] | select(.name == "payload_bytes_placed").value] | add'
}
measured() { # HOST
    local before what
    before=$(placed)
    remote bench write -j "$1:7400/lab" --size 64k,1M -n 50 --connections 2 >"$LAB/report" || return 1
    jq -e '[.rows[] | .iterations] == [100, 100] and ([.rows[] | .bytes_per_second] | min > 0)' "$LAB/report" &&
        becomes $((before + 100 * (65536 + 1048576))) 5 placed || return 1
    for what in read latency; do
        remote bench "$what" -j "$1:7400/lab" --size 8,4k --duration 0.3 >"$LAB/report" &&
            jq -e '[.rows[] | .iterations > 0 and .duration_ns >= 3e8] | all' "$LAB/report" || return 1
    done
}
table() { # of all sizes, for people: a row for each power of two from 2 to 1M
    remote bench read 10.77.0.2:7400/small --all -n 5 | tee "$LAB/table"
    [ "$(awk 'NR > 2 {print $1}' "$LAB/table")" = "$(for k in $(seq 20); do echo $((1 << k)); done)" ]
}

for HOST in 10.77.0.2 '[fd77::2]'; do
    check "several files, $HOST" several "$HOST"
    check "pipes, $HOST" piped "$HOST"
    check "empty files and pipes, $HOST" nothing "$HOST"
    check "a put that resumes after a reset, $HOST" survives_reset "$HOST"
    check "a get that resumes after a reset, $HOST" get_survives_reset "$HOST"
    check "a measurement of bandwidth and latency, $HOST" measured "$HOST"
done
check "a put that resumes after silence" through_silence 10.77.0.2
check "a put without --resume ends with the connection" without_resume
check "a pipe beyond the region's end" overflowing
check "a measurement of all sizes" table
check "no such region: exit 4" exits_with 4 remote bench write 10.77.0.2:7400/nowhere
check "no token: exit 5" exits_with 5 remote put "$LAB/a" "$LAB/b" 10.77.0.2:7400/vault --resume
check "beyond the end: exit 1" exits_with 1 remote put "$LAB/a" "$LAB/b" 10.77.0.2:7400/small
check "a message beyond the end: exit 1" exits_with 1 remote bench read 10.77.0.2:7400/small+1 --size 1M
check "SIGTERM ends it" daemon_stop

score
