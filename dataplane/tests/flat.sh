#!/bin/bash
# Moves 10 GiB through one daemon. Its memory and buffer pools must be the same afterwards, and its memory must match
# the configuration. `make flat`.
source "$(dirname "$0")/lib.sh"

GIB=${GIB:-10}
lab_open ironwarp-flat
.ci/hugepages.sh 512 || true
sed "s#^socket *=.*#socket = \"$SOCKET\"#" configs/demo.toml >"$LAB/demo.toml"
daemon_start "$LAB/demo.toml" || exit 1
kernel_side iw-demo

ctl region register flat --size 256M --access remote-read,remote-write || exit 1
head -c 268435456 /dev/urandom >"$LAB/file"
want=$(digest "$LAB/file")

rss() { report | jq .rss_bytes; }
in_use() { report | jq '[.pools[].in_use] | add'; }
measure() { printf '%-28s rss %s KiB, packet buffers in use %s\n' "$1" "$(($(rss) / 1024))" "$(in_use)"; }

round() { # one put and one get, verified
    rm -f "$LAB/got"
    remote put "$LAB/file" 10.77.0.2:7400/flat >/dev/null &&
        remote get 10.77.0.2:7400/flat "$LAB/got" --length 268435456 >/dev/null && [ "$(digest "$LAB/got")" = "$want" ]
}
rounds() { for _ in $(seq "$1"); do round || return 1; done; }
settled() { # the pools are back at the start, plus or minus the bursts that a poll holds
    local now k
    for k in $(seq 30); do
        now=$(in_use)
        [ "$now" -le $((pool_before + 64)) ] && return 0
        sleep 0.2
    done
    echo "in use before $pool_before, after $now ($k tries)"
    return 1
}
not_grown() { [ "$1" -le $(($2 + 1048576)) ] || { echo "resident before $2, after $1 bytes"; return 1; }; }

check "warm-up" round
sleep 1
rss_before=$(rss)
pool_before=$(in_use)
measure "before"
check "$GIB GiB put and got, every digest right" rounds $((GIB * 2))
sleep 1
measure "after $GIB GiB"
check "resident memory has not grown by a MiB" not_grown "$(rss)" "$rss_before"
check "no packet buffer is missing" settled
check "SIGTERM ends it cleanly" daemon_stop
score
