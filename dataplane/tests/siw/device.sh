# shellcheck shell=bash
# Suite `device`: the device of a process, over the kernel's TCP, in place of the daemon, in both roles: without loss,
# and while one frame in a hundred is lost. Sourced by run.sh after loss.sh, responder.sh and rping.sh. The device has a
# namespace of its own, and a port of the bridge, so that its frames pass where loss.sh drops some.
#
#   SIW_DEVICE_BYTES     how much of the region the bulk cases cover (default: 2 MiB)
#   SIW_DEVICE_SIZES     the sizes of rping's texts (default "64 65535")
#   SIW_DEVICE_ROUNDS    its rounds of each size (default 20)
#   SIW_DEVICE_PERFTEST  programs of perftest (default: ib_write_bw without loss, ib_read_bw with it)

DEVICE_HOST=10.77.0.5 DEVICE_HOST6=fd77::5
DEVICE_SERVERS=()
DEVICE_SIZES=${SIW_DEVICE_SIZES:-64 65535}
# The programs of perftest that the guest has for this suite: run.sh.
# shellcheck disable=SC2206 # a list
DEVICE_PROGRAMS=(${SIW_DEVICE_PERFTEST:-ib_write_bw ib_read_bw})

in_device() { ip netns exec "$NS-device" "$@"; }
device_open() {
    ip netns add "$NS-device"
    ip -n "$NS" link add device0 type veth peer name device1 netns "$NS-device"
    # A frame is a segment, with a checksum.
    in_ns ethtool -K device0 tso off gso off gro off tx off rx off >/dev/null 2>&1
    in_device ethtool -K device1 tso off gso off gro off tx off rx off >/dev/null 2>&1
    in_ns sh -c 'echo 1 >/proc/sys/net/ipv6/conf/device0/disable_ipv6'
    ip -n "$NS" link set device0 master br0 up
    ip -n "$NS-device" addr add $DEVICE_HOST/24 dev device1
    ip -n "$NS-device" addr add $DEVICE_HOST6/64 dev device1 nodad
    ip -n "$NS-device" link set device1 up
    ip -n "$NS-device" link set lo up
}

# device_hears PORT FILE: waits until a program of the device listens; prints the file otherwise.
device_hears() { awaits $$ "$2" hears "$1" "$NS-device"; }

# device_serve PORT RIGHTS OPTIONS…: starts a server of regions with these rights.
device_serve() {
    ip netns exec "$NS-device" "$IWARPCTL" serve -a "$2" -l "$DEVICE_HOST:$1" -l "[$DEVICE_HOST6]:$1" "${@:3}" \
        >"$LAB/serve.$1" 2>&1 &
    DEVICE_SERVERS+=($!)
    device_hears "$1" "$LAB/serve.$1"
}
# The regions of the daemon's configuration. A server gives the same rights to all of its regions.
device_serve_all() {
    echo open-sesame >"$LAB/device.token"
    device_serve 7400 remote-read,remote-write -r lab=64M &&
        device_serve 7410 remote-read -r lab-ro=1M &&
        device_serve 7411 remote-write -r lab-wo=1M &&
        device_serve 7412 remote-read,remote-write,remote-atomic -r scratch=1M &&
        device_serve 7413 remote-read,remote-write -r secret=1M --token-file "$LAB/device.token" &&
        device_serve 7414 remote-read,remote-write -r elsewhere=1M --allow 192.0.2.0/24
}
device_end_all() { # each ends with 0
    local pid failed=0
    kill "${DEVICE_SERVERS[@]}"
    for pid in "${DEVICE_SERVERS[@]}"; do wait_at_most 3 "$pid" || failed=1; done
    DEVICE_SERVERS=()
    [ $failed = 0 ] || { tail -n 3 "$LAB"/serve.*; return 1; }
}

# deep IRD ORD SEED: siw sends more Reads than the device takes at a time, at depths that both agree on. The start of
# the region has the pattern of SEED.
deep() {
    guest_hold siw --host "$OUR_HOST" --port 7400 --region lab --ird "$1" --ord "$2" --ops depth --seed "$3" &&
        guest_release siw
}

# --- rping, in both roles
# device_rping_serves SIZE ROUNDS: a server of ours, of one client; it has printed each text that it has read.
device_rping_serves() {
    local pid texts
    ip netns exec "$NS-device" timeout -k 5 60 "$RUN" --embedded rping -s -a "$OUR_HOST" -S "$1" -V -v \
        >"$LAB/rping.device" 2>&1 &
    pid=$!
    device_hears 7174 "$LAB/rping.device" && their_clients 7174 1 "$1" "$2" || { kill $pid; wait $pid; return 1; }
    wait_at_most 10 $pid || { cut -c1-200 "$LAB/rping.device" | tail -n 10; return 1; }
    texts=$(grep -c 'server ping data' "$LAB/rping.device")
    echo "RESULT the server has read $texts texts"
    [ "$texts" = "$2" ]
}
device_rping_asks() { # SIZE ROUNDS: a client of ours checks what the guest's server has read and written
    in_device timeout -k 5 60 "$RUN" --embedded rping -c -a 10.77.0.3 -V -S "$1" -C "$2"
}
device_rping() { # TITLE
    local size rounds=${SIW_DEVICE_ROUNDS:-20}
    for size in $DEVICE_SIZES; do
        try "$1: siw's rping reads and writes, $size bytes" device_rping_serves $size "$rounds"
    done
    try "$1: the guest's rping serves" guest_run siw \
        'rping -s -P -S 65535 -a 10.77.0.3 >/tmp/rping.out 2>&1 & rping=$!; sleep 0.5; kill -0 $rping'
    for size in $DEVICE_SIZES; do
        try "$1: our rping, $size bytes" device_rping_asks $size "$rounds"
    done
    guest_run siw 'kill $rping; wait $rping' >/dev/null
}

# --- perftest: its clients on siw. Its servers there do not listen between their first connection and the others, and a
# client on the device comes before the emulated guest listens again: rping and iwarpctl have that role.
# siw_closed_early FILE: true if a program on soft-iWARP has failed with its last Send only, which has arrived:
# docs/programs.md says why.
siw_closed_early() {
    grep -q 'Bad wc status 2' "$1" && grep -q 'Failed to close connection between server and client' "$1"
}
device_perftest_once() { # PROGRAM OPTIONS…
    local pid status=0 ended=0
    ip netns exec "$NS-device" timeout -k 5 40 "$RUN" --embedded "$1" -R -F "${@:2}" >"$LAB/ours.out" 2>&1 &
    pid=$!
    device_hears 18515 "$LAB/ours.out"
    guest_run siw "timeout -s KILL 40 $1 -R -F -d siw0 ${*:2} $OUR_HOST" 50 >"$LAB/theirs.out" 2>&1 || status=$?
    ! siw_closed_early "$LAB/theirs.out" || status=0
    [ $status = 0 ] || kill $pid 2>/dev/null
    wait $pid || ended=$?
    [ $status = 0 ] && [ $ended = 0 ] || { echo "siw: $status, ours: $ended"; return 1; }
}
# device_perftest PROGRAM OPTIONS…: runs it again if it gives up because the guest's clock varies, or because it came
# between the server's connections, as in programs-siw.sh.
device_perftest() {
    local attempt again='Correlation coefficient|REJECTED|CM event|Connection refused'
    again+='|rdma_connect failed|Failed to connect through RDMA CM'
    for attempt in {1..6}; do
        device_perftest_once "$@" && break
        grep -qE "$again" "$LAB/theirs.out" "$LAB/ours.out" && [ "$attempt" -lt 6 ] && continue
        tail -n 20 "$LAB/theirs.out" "$LAB/ours.out"
        return 1
    done
    echo "RESULT attempt $attempt, size, iterations, MB/s:" \
        "$(grep -hE '^ *[0-9]+ +[0-9]+ +[0-9.]+ ' "$LAB/ours.out" "$LAB/theirs.out" | tail -n 1)"
}
device_perftests() { # TITLE PROGRAM: this one, unless SIW_DEVICE_PERFTEST has others
    local program
    for program in ${SIW_DEVICE_PERFTEST:-$2}; do
        command -v "$program" >/dev/null || { echo "not installed: $program"; continue; }
        try "$1: $program, a client on siw" device_perftest "$program" -n 20 -s 16384
    done
}

# --- iwarpctl remote
device_remote() { # TITLE CRC…: a region that siw serves, of which initiator.sh has a case without loss
    local size=3000001 crc
    head -c $size /dev/urandom >"$LAB/device.file"
    for crc in "${@:2}"; do
        try "$1: iwarpctl puts, CRC $crc" in_device "$IWARPCTL" remote put "$LAB/device.file" \
            10.77.0.3:7402/theirs+5 --crc $crc
        rm -f "$LAB/device.got"
        try "$1: iwarpctl gets, CRC $crc" in_device "$IWARPCTL" remote get 10.77.0.3:7402/theirs+5 \
            "$LAB/device.got" --length $size --crc $crc
        try "$1: the same bytes" cmp "$LAB/device.file" "$LAB/device.got"
    done
}

device_everything() { # TITLE SEED PROGRAM CRC…
    local BYTES=${SIW_DEVICE_BYTES:-2097152}
    bulk 7400 "$2" "$1"
    device_rping "$1"
    device_perftests "$1" "$3"
    device_remote "$1" "${@:4}"
}
suite_device() {
    local OUR_HOST=$DEVICE_HOST OUR_HOST6=$DEVICE_HOST6 CRC_ON=7400 pair before=$SECONDS
    local -A PORT_OF=([lab-ro]=7410 [lab-wo]=7411 [scratch]=7412 [secret]=7413 [elsewhere]=7414)
    device_open
    # The first connection to an address that the guest's kernel has not resolved waits for many seconds.
    try "the guest reaches the device" guest_run siw \
        "ping -c 1 -w 10 $DEVICE_HOST && ping -6 -c 1 -w 10 $DEVICE_HOST6"
    try "iwarpctl serve" device_serve_all
    try "siw serves a region" guest_run siw "mkfifo /tmp/device.in; \
iwserver --listen 10.77.0.3 --port 7402 --region theirs:4194304:rw <>/tmp/device.in >/tmp/device.out 2>&1 & \
device_server=\$!; for i in \$(seq 50); do grep -q LISTENING /tmp/device.out && break; sleep 0.1; done; \
grep LISTENING /tmp/device.out"
    device_everything "device" 910 ib_write_bw on off
    regions
    for pair in "0 1" "16 16" "128 128"; do
        # shellcheck disable=SC2086 # two numbers
        try "device: IRD and ORD ${pair/ / and }" deep $pair 911
    done
    loss_on 100
    device_everything "device, 1 % loss" 920 ib_read_bw on
    try "device: 1 % loss happened" loss_happened
    loss_off
    guest_run siw 'kill $device_server; wait $device_server' >/dev/null
    try "device: still serving" client 7400 --region lab --size 1048576 --ops write,read --seed 930
    try "the servers end well" device_end_all
    echo "suite device: $((SECONDS - before)) s"
}
