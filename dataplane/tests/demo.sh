#!/bin/bash
# Demonstration in one run: a peer writes 256 MiB into a region of iwarpd by RDMA and reads it back, and a local program
# that waits for the last byte finds the same bytes in its mapping of the region. `make demo`.
source "$(dirname "$0")/lib.sh"

MIB=256
BYTES=$((MIB << 20))

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

lab_open ironwarp-demo
.ci/hugepages.sh 512 || echo "   (the demonstration goes on with ordinary pages)"
sed "s#^socket *=.*#socket = \"$SOCKET\"#" configs/demo.toml >"$LAB/demo.toml"

say "iwarpd on a TAP: configs/demo.toml"
daemon_start "$LAB/demo.toml" || exit 1
kernel_side iw-demo
ctl status

say "a region of $MIB MiB"
set -e
ctl region register demo --size "${MIB}M" --access remote-read,remote-write
head -c $((BYTES - 1)) /dev/urandom >"$LAB/most"
printf x >"$LAB/last"
sent=$(cat "$LAB/most" "$LAB/last" | sha256sum | cut -d' ' -f1)

say "a local program maps it and waits for the last byte: clients/verbs/examples/wait.c"
cc -std=gnu11 -O2 -o "$LAB/wait" clients/verbs/examples/wait.c
: >"$LAB/waits"
in_ns env IWARPCTL_SOCKET="$SOCKET" timeout 60 "$LAB/wait" demo 0 "$BYTES" 2>"$LAB/waits" | sha256sum >"$LAB/seen" &
waiter=$!
prints '^mapped' "$LAB/waits"

say "RDMA Write: iwarpctl remote put"
remote put "$LAB/most" 10.77.0.2:7400/demo
remote put "$LAB/last" "10.77.0.2:7400/demo+$((BYTES - 1))"

say "RDMA Read: iwarpctl remote get"
remote get 10.77.0.2:7400/demo "$LAB/got" --length "$BYTES"
remote ping 10.77.0.2:7400/demo -c 200

say "digests"
got=$(digest "$LAB/got")
wait "$waiter"
mapped=$(cut -d' ' -f1 "$LAB/seen")
printf '%-34s %s\n' "the file that was put" "$sent" "what get brought back" "$got" "what a local program sees mapped" \
    "$mapped"

say "counters"
ctl region list
ctl stats --nonzero
ctl drops
set +e

say "stop"
daemon_stop
stopped=$?
echo "iwarpd ended with status $stopped"

if [ "$sent" = "$got" ] && [ "$sent" = "$mapped" ] && [ "$stopped" = 0 ]; then
    echo "demo: all $MIB MiB verified three times"
else
    echo "demo: FAILED" >&2
    exit 1
fi
