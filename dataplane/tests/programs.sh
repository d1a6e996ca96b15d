#!/bin/bash
# Unmodified verbs programs of Debian on iwarpd, by iwarp-run: between two daemons that a switch connects, and both ends
# on one of them. `make programs-pairs`; `make programs-lossy` with loss.
#
#   ROUNDS   iterations of a measuring program
#   SUITES   the groups of rows to run (default: all of them)
#   LIMIT    seconds that a program may take (default 60; twice that with loss)
source "$(dirname "$0")/lib.sh"

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
ROUNDS=${ROUNDS:-100}
QUICK=${QUICK:-} # not empty: the first rows, in about a minute
LOSS=${LOSS:-}   # not empty: one frame in a hundred is lost between the daemons

LIMIT=${LIMIT:-$([ -n "$LOSS" ] && echo 120 || echo 60)}
SUITES=${SUITES:-basics basic_sockets by_number \
    $([ -n "$QUICK" ] || echo by_number_all as_roce measuring particular storage sockets agreeing datagrams messages)}

lab_open ironwarp-programs
# shellcheck disable=SC2034 # of two.sh
CORES_0="0, 1" # its programs are on both workers, in turn
source dataplane/tests/programs/two.sh

listens() { "$IWARPCTL" --socket "$LAB/0.control" -j app list | jq -e 'length > 0' >/dev/null; }
# pair SERVER… -- CLIENT…: a server on daemon 0, and a client on daemon $CLIENT. Both must succeed; with $ENDLESS, the
# server is stopped; $READY waits for what is not `listens`. Both run again if the client came before the server
# listened, and was refused: the programs of perftest do not listen between their first connection, which agrees on the
# test, and the others. They also run again if they stop, as ib_send_bw with events may do (docs/programs.md).
stops() { [ "$1" = 124 ] && [[ "${*:2} " == "ib_send_bw "*" -e "* ]]; } # STATUS COMMAND…
pair() {
    local server=() pid attempt status ended n again='rejected|refused|CM event bl blka 8|timed out'
    while [ "$1" != -- ]; do server+=("$1") && shift; done
    shift
    for attempt in 1 2 3; do
        status=0 ended=0
        # Not through `on`: the job must be the program itself, not a subshell around it.
        ip netns exec "$NS" timeout -k 5 "$LIMIT" "$RUN" --socket "$LAB/0.verbs" "${server[@]}" \
            >"$LAB/server.out" 2>&1 &
        pid=$!
        for _ in $(seq 100); do ${READY:-listens} && break; sleep 0.05; done
        sleep 0.3
        on "${CLIENT:-1}" "$@" >"$LAB/client.out" 2>&1 || status=$?
        if [ -n "${ENDLESS:-}" ]; then
            kill "$pid" 2>/dev/null
            wait "$pid"
        else
            [ "$status" = 0 ] || kill "$pid" 2>/dev/null
            wait "$pid" || ended=$?
        fi
        [ "$ended" = 0 ] || [ "$status" != 0 ] || status=1
        [ "$status" != 0 ] || break
        { stops "$status" "$@" || grep -qiE "$again" "$LAB/client.out"; } && sleep "$attempt" || break
    done
    # What went wrong is often at the beginning: standard output comes later, because it is a file.
    [ "$status" = 0 ] || {
        echo "exit status of the server $ended, then what both said:"
        head -n 40 "$LAB/client.out" "$LAB/server.out"
        for n in 0 1; do "$IWARPCTL" --socket "$LAB/$n.control" drops; done
    }
    return "$status"
}
row() { # NAME COMMAND…: a check, unless the program is not installed
    local name=$1 program=$3
    [[ $program != --* ]] || program=$4
    command -v "$program" >/dev/null || { echo "not installed: $name"; return; }
    check "$name" "${@:2}"
}

for n in 0 1; do check "daemon $n starts" start "$n"; done

# --- devices
devices() { on 0 ibv_devices | grep -q iwarp0; }
row "ibv_devices" devices ibv_devices
device() { on 0 ibv_devinfo >"$LAB/devinfo" && grep 'iWARP (1)' "$LAB/devinfo" && grep PORT_ACTIVE "$LAB/devinfo"; }
row "ibv_devinfo" device ibv_devinfo
without_daemon() {
    "$RUN" --daemon --socket "$LAB/none" ibv_devices 2>"$LAB/none.err"
    [ $? = 3 ] && cat "$LAB/none.err" && grep -q "$LAB/none" "$LAB/none.err"
}
check "iwarp-run reports that there is no daemon" without_daemon
checked() { # nothing that a program imports is missing
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || continue
        "$RUN" --json --check "$program" | jq -e 'all(.state != "missing")' >/dev/null || { echo "$program"; return 1; }
    done
}
check "iwarp-run --check" checked rping rdma_client rdma_server ucmatose cmtime ib_write_bw fio ibv_devinfo rstream \
    riostream rcopy qperf

# --- what programs rarely use, by a program of ours against the headers of libibverbs-dev
OBJECTS="$LAB/objects"
builds() { # PROGRAM: one of our C programs
    cc -O1 -Wall -Wextra -Werror -o "$LAB/$1" "dataplane/tests/programs/$1.c" -libverbs -lrdmacm
}
links() { # the port's state, and its events, follow the link
    local pid status=0
    ip netns exec "$NS" timeout -k 5 60 "$RUN" --socket "$LAB/0.verbs" "$OBJECTS" 10.78.0.10 link \
        >"$LAB/link.out" 2>&1 &
    pid=$!
    becomes active 20 cat "$LAB/link.out" || status=1
    ip -n "$NS" link set s0 down
    becomes "active down" 20 paste -sd ' ' "$LAB/link.out" || status=1
    ip -n "$NS" link set s0 up
    becomes "active down active" 20 paste -sd ' ' "$LAB/link.out" || status=1
    wait "$pid" || status=1
    return "$status"
}
IDS="$LAB/ids"
ids_build() { cc -O1 -Wall -Wextra -Werror -o "$IDS" dataplane/tests/programs/ids.c -libverbs -lrdmacm; }
classified() { # a SYN of daemon 1 has the class of its id, and no ECN bits that the program has set
    local pid
    command -v tcpdump >/dev/null || { echo "not installed: tcpdump"; return 0; }
    in_ns timeout 20 tcpdump -Uni s1 -c 1 'tcp dst port 7177 and ip[1] = 0x28' >"$LAB/class.out" 2>"$LAB/class.err" &
    pid=$!
    becomes 1 5 grep -c 'listening on' "$LAB/class.err" || return 1
    on 1 "$IDS" 10.78.0.10 class 0x29 || return 1
    wait "$pid" && [ "$(grep -c 7177 "$LAB/class.out")" = 1 ] || { cat "$LAB/class.err"; return 1; }
}
if [ -f /usr/include/infiniband/verbs.h ] && [ -f /usr/include/rdma/rdma_cma.h ]; then
    check "objects.c builds" builds objects
    check "numbered.c builds" builds numbered
    check "pairs.c builds" builds pairs
    check "table.c builds" builds table
    check "every symbol of libibverbs, and objects destroyed in many orders" \
        on 0 "$LAB/table" clients/drop-in/symbols.txt
    check "extended queues, memory windows, shared receive queues, asynchronous events" on 0 "$OBJECTS" 10.78.0.10
    check "the state of the port" links
    check "ids.c builds" ids_build
    check "every call of librdmacm, a table" on 0 "$IDS" 10.78.0.10 10.78.0.99 192.0.2.1
    check "the class of traffic reaches the wire" classified
else
    echo "not installed: libibverbs-dev librdmacm-dev"
fi

# --- the libraries by other names
named_for_the_linker() { # programs that load a library by the name that the linker uses, as NCCL does
    local library
    library=$(realpath "$(dirname "$RUN")/lib/ironwarp/libibverbs.so.1")
    on 0 python3 -c 'import ctypes; print([ctypes.CDLL(f"{name}.so") for name in ("libibverbs", "librdmacm")])
print(open("/proc/self/maps").read())' >"$LAB/maps" || return 1
    grep -q "$library" "$LAB/maps" && ! grep -E 'lib(ibverbs|rdmacm)' "$LAB/maps" | grep -vE "$library|CDLL"
}
check "libibverbs.so and librdmacm.so are there" named_for_the_linker
# bundle COPY: a program whose own library has a libibverbs, as wheels of Python have, by another name, or in a folder
# that comes before those of LD_LIBRARY_PATH
bundle() {
    local place="$LAB/$1"
    local flags=(-O1 -Wall -Wextra -Werror dataplane/tests/programs/bundled.c -L "$place")
    flags+=("-Wl,--disable-new-dtags,-rpath,\$ORIGIN")
    mkdir -p "$place"
    printf 'IBVERBS_1.1 { global: ibv_*; };\n' >"$place/versions"
    cc -shared -fPIC -DCOPY "${flags[@]}" -Wl,--version-script="$place/versions" -Wl,-soname,"$1" -o "$place/$1" &&
        cc -shared -fPIC -DTRANSPORT "${flags[@]}" -l:"$1" -o "$place/libtransport.so" &&
        cc "${flags[@]}" -l:libtransport.so -o "$place/program"
}
bundled() { # COPY
    local program="$LAB/$1/program"
    [ "$(on 0 "$program")" = "no device" ] && [ "$(on 0 --bundled "$program")" = iwarp0 ] || return 1
    [ "$(on 0 --bundled bash -c "'$program'")" = iwarp0 ] || return 1
    "$RUN" --check "$program" >"$LAB/bundled" && grep "/libtransport.so comes with $1, .* --bundled" "$LAB/bundled" &&
        "$RUN" --json --check "$program" | jq -e 'length == 3 and all(.bundled_by | endswith("/libtransport.so"))'
}
for copy in libibverbs-1234.so.1.14.0 libibverbs.so.1; do
    check "bundled.c builds with $copy" bundle "$copy"
    check "--bundled, for a program with a $copy of its own" bundled "$copy"
done
no_copies() { "$RUN" --check ibv_devices >"$LAB/bundled" && ! grep -e --bundled "$LAB/bundled"; }
row "--check of a program without copies" no_copies ibv_devices

# --- messages that have completed arrive, and memory is registered fast, by programs of ours
ENDINGS_COUNT=${ENDINGS_COUNT:-$([ -n "$QUICK" ] && echo 200 || echo 2000)}
endings() { # COUNT SIZE: connections whose client ends when its message has completed
    pair "$LAB/endings" server 10.78.0.10 "$@" -- "$LAB/endings" client 10.78.0.10 "$@"
}
# registration BYTES: at most LIMIT_MS_PER_GIB to register, access and deregister touched memory; the best of ten
# rounds.
registration() {
    local together
    on 0 "$LAB/registration" "$1" 10 | tee "$LAB/registration.out"
    together=$(grep -o 'together [0-9]*' "$LAB/registration.out" | cut -d ' ' -f 2)
    [ "$together" -le $((($1 * LIMIT_MS_PER_GIB >> 30) + 50)) ]
}
LIMIT_MS_PER_GIB=${LIMIT_MS_PER_GIB:-3000}
ours() {
    cc -O2 -Wall -Wextra -Werror -o "$LAB/endings" dataplane/tests/programs/endings.c -libverbs -lrdmacm -lpthread &&
        cc -O2 -Wall -Wextra -Werror -o "$LAB/registration" dataplane/tests/programs/registration.c -libverbs
}
if [ -f /usr/include/infiniband/verbs.h ] && [ -f /usr/include/rdma/rdma_cma.h ]; then
    check "endings.c and registration.c build" ours
    for bytes in 1000 65536 $([ -n "$QUICK" ] && echo 134217728 || echo 536870912); do
        check "registration of $bytes bytes" registration "$bytes"
    done
fi

# perftest PROGRAM OPTIONS…: both ends of a program of perftest, with the same options
perftest() {
    local program=$1
    shift
    row "$program $*, $of" pair "$program" -R -d iwarp0 "$@" -- "$program" -R -d iwarp0 "$@" 10.78.0.10
}
# rping_client N: a client of the persistent server. It tries again if its request got no answer: the server hands
# requests to threads through one variable, and loses one if the next comes before its answer and after the 200 ms that
# the library waits for the answer (ANSWER_WAIT in clients/drop-in/src/event_channel.rs). A rejection is an error.
rping_client() {
    local attempt
    for attempt in 1 2 3; do
        on "$CLIENT" rping -c -a 10.78.0.10 -V -C 20 >"$LAB/client.$1" 2>&1 && return
        grep -q UNREACHABLE "$LAB/client.$1" && echo "client $1: attempt $attempt got no answer" || break
    done
    return 1
}
# persistent rping LOAD: its server with a thread for each client, and a backlog of three, beside LOAD busy loops
persistent() {
    local server pid loads=() pids=() status=0
    for _ in $(seq "$2"); do
        timeout "$LIMIT" bash -c 'while :; do :; done' &
        loads+=($!)
    done
    ip netns exec "$NS" timeout -k 5 "$LIMIT" "$RUN" --socket "$LAB/0.verbs" rping -s -P >"$LAB/server.out" 2>&1 &
    server=$!
    for _ in $(seq 100); do listens && break; sleep 0.05; done
    sleep 0.3
    for pid in $(seq 20); do
        rping_client "$pid" &
        pids+=($!)
    done
    for pid in "${!pids[@]}"; do
        wait "${pids[pid]}" || { status=1 && echo "client $((pid + 1))" && cat "$LAB/client.$((pid + 1))"; }
    done
    kill "$server" "${loads[@]}" 2>/dev/null
    wait "$server" "${loads[@]}"
    [ "$status" = 0 ] || tail -n 15 "$LAB/server.out"
    return "$status"
}
portal() { # the target daemon of iSCSI listens over RDMA
    local server status
    ip netns exec "$NS" "$RUN" --socket "$LAB/0.verbs" tgtd -f -d 1 -C 7 >"$LAB/server.out" 2>&1 &
    server=$!
    becomes 1 10 grep -c 'listening for iser connections' "$LAB/server.out" || cat "$LAB/server.out"
    grep -q 'listening for iser connections' "$LAB/server.out"
    status=$?
    kill -KILL "$server" 2>/dev/null
    wait "$server"
    return "$status"
}
basics() { # the rows of programs-quick
    if [ -x "$LAB/endings" ]; then
        check "$ENDINGS_COUNT messages of 64 KiB, whatever ends their program, $of" endings "$ENDINGS_COUNT" 65536
        check "50 messages of 4 MiB, whatever ends their program, $of" endings 50 4194304
    fi
    for size in 64 4096 65535; do
        row "rping, $size bytes, $of" pair rping -s -V -C 50 -S "$size" -- rping -c -a 10.78.0.10 -V -C 50 -S "$size"
    done
    row "rping over IPv6, from a given address, $of" pair rping -s -a ::0 -V -C 50 -- \
        rping -c -a fd78::10 -I "fd78::1$CLIENT" -V -C 50
    row "rping -s -P serves twenty clients at once, $of" persistent rping 0
    [ -n "$QUICK" ] || row "the same on a busy machine, $of" persistent rping 8
    row "rdma_client, $of" pair rdma_server -- rdma_client -s 10.78.0.10
    row "rdma_xclient, $of" pair rdma_xserver -c r -- rdma_xclient -s 10.78.0.10 -c r
    row "ucmatose, $of" pair ucmatose -- ucmatose -s 10.78.0.10
    row "ucmatose, 10 connections, $of" \
        pair ucmatose -c 10 -C 20 -S 1000 -- ucmatose -s 10.78.0.10 -c 10 -C 20 -S 1000
    row "ucmatose, ids that migrate, $of" pair ucmatose -m -- ucmatose -m -s 10.78.0.10
    row "tgtd opens its iSER portal, $of" portal tgtd
    ENDLESS=1 row "cmtime, $of" pair cmtime -- cmtime -s 10.78.0.10 -c 50
    perftest ib_write_bw -n "$ROUNDS"
    perftest ib_send_bw -n 1000 -e
    # Its two queues have one channel, and each event must be for one completion.
    perftest ib_send_lat -n 2000 -e
}
source dataplane/tests/programs/datagrams.sh
# numbered PROGRAM OPTIONS…: both ends of a program that agrees by a socket of the kernel's, and connects its queue
# pairs by number
numbered() {
    local program=$1
    shift
    READY="hears 18515" \
        row "$program $*, by number, $of" pair "$program" "$@" -- "$program" "$@" 127.0.0.1
}
at_once() { # COUNT [one-by-one]
    pair "$LAB/pairs" 10.78.0.10 -- "$LAB/pairs" "10.78.0.1$CLIENT" 10.78.0.10 "$@"
}
by_number() { # the rows of programs-quick
    [ "$CLIENT" = 1 ] || check "queue pairs by number, a program of ours" on 0 "$LAB/numbered" 100
    READY="hears 18517" check "200 queue pairs that both ends connect at once, $of" at_once 200
    READY="hears 18517" check "connections by number and by rdma_cm, by turns, $of" at_once 10 one-by-one
    numbered ibv_rc_pingpong -g 0 -c
    numbered ibv_srq_pingpong -g 0 -q 16 -c
    numbered ib_write_bw -d iwarp0 -n "$ROUNDS"
    numbered ib_read_bw -d iwarp0 -n "$ROUNDS" -q 16
    roce ib_send_bw -d iwarp0 -n "$ROUNDS"
    row "--await-buffers ib_send_bw -R --use-srq -q 4, $of" pair --await-buffers ib_send_bw -R -d iwarp0 -n "$ROUNDS" \
        --use-srq -q 4 -- --await-buffers ib_send_bw -R -d iwarp0 -n "$ROUNDS" --use-srq -q 4 10.78.0.10
    transports am_lat -s 8
    unconnected ibv_ud_pingpong -g 0 -s 1024
    protocols tag_bw -s 100000
}
by_number_all() { # ib_send_bw waits for credits here, which an iWARP device needs: docs/programs.md
    local program test
    for test in -e "-s 1048576" "-s 1" "-n 1" "-e -s 65536 -n 200"; do
        # shellcheck disable=SC2086
        numbered ibv_rc_pingpong -g 0 -c $test
    done
    numbered ibv_srq_pingpong -g 0 -q 16 -c -e
    for program in ib_write_bw ib_read_bw ib_atomic_bw; do
        numbered "$program" -d iwarp0 -n "$ROUNDS"
        numbered "$program" -d iwarp0 -n "$ROUNDS" -q 16
        numbered "$program" -d iwarp0 -n "$ROUNDS" -b
    done
    for program in ib_write_bw ib_read_bw ib_write_lat ib_read_lat; do
        numbered "$program" -d iwarp0 -n 5 -a
    done
    numbered ib_read_bw -d iwarp0 -n "$ROUNDS" -e
    for program in ib_write_lat ib_read_lat ib_atomic_lat ib_send_lat; do
        numbered "$program" -d iwarp0 -n 20
    done
}
# roce PROGRAM OPTIONS…: a program that looks at the identity of the device, or that relies on waits for receive buffers
roce() {
    local program=$1
    shift
    READY="hears 18515" \
        row "--roce $program $*, by number, $of" pair --roce "$program" "$@" -- --roce "$program" "$@" 127.0.0.1
}
# transports_of TRANSPORT TEST OPTIONS…: UCX without its protocols
transports_of() {
    local transport=$1
    shift
    local args=(ucx_perftest -d iwarp0:1 -x "$transport" -n 1000 -t "$@")
    READY="hears 13337" \
        row "--roce ucx_perftest -x $transport -t $*, $of" pair --roce "${args[@]}" -- --roce "${args[@]}" 127.0.0.1
}
transports() {
    transports_of rc_verbs "$@"
}
# The files of a device, which a program sees that was started with the switch, and nobody else.
# shellcheck disable=SC2016
roce_files() { # [COMMAND…]: the first command runs iwarp-run
    local files='cd /sys/class/infiniband/iwarp0 && cat node_type ports/1/state ports/1/gids/0
        cat ports/1/gid_attrs/types/0 device/numa_node /sys/class/net/lo/mtu
        test -c /dev/infiniband/uverbs0 && test -d /dev/shm && echo >/dev/null'
    on 0 --roce bash -c "$files" >"$LAB/files" || return 1
    [ "$(paste -sd, "$LAB/files")" = \
        "1: CA,4: ACTIVE,0000:0000:0000:0000:0000:ffff:0a4e:000a,RoCE v2,-1,65536" ] || { cat "$LAB/files"; return 1; }
    [ ! -e /sys/class/infiniband ] && [ ! -e /dev/infiniband ]
}
# confined: makes a program that runs iwarp-run where no namespace may be made, by the limits of a user namespace.
CONFINED="$LAB/confined"
confined() {
    mkdir -p "$LAB/runtime"
    cat >"$CONFINED" <<SH
#!/bin/sh
export XDG_RUNTIME_DIR="$LAB/runtime"
exec unshare --user --map-root-user sh -c '
    for kind in user mnt; do echo 0 >/proc/sys/user/max_\${kind}_namespaces; done
    ! unshare --mount true 2>/dev/null && exec "\$@"' confined "$(realpath "$RUN")" "\$@"
SH
    chmod 755 "$CONFINED"
}
# The same files by the preload library: of programs that list, ask and resolve in different ways. Sockets stay the
# kernel's: an rsocket cannot be duplicated. What the runs before have left is gone.
# shellcheck disable=SC2016
led_files() {
    local OUTSIDE=$RUN RUN=$CONFINED wanted look='cd / && ls /sys/class/infiniband /dev/infiniband
        ls -lL /dev/infiniband/uverbs0 >&2
        readlink /sys/class/infiniband/iwarp0 && cat "$(realpath /sys/class/infiniband/iwarp0/device)/numa_node"
        find /sys/class/infiniband/iwarp0/ports/1/gids/ -name 0 -printf "%f\n"
        python3 -c "import os, socket; s = socket.socket()
print(os.listdir(\"/sys/class/infiniband\"), os.dup(s.fileno()))"'
    roce_files && on 0 --roce bash -c "$look" >"$LAB/led" 2>"$LAB/led.err" || { cat "$LAB/led.err"; return 1; }
    wanted="/dev/infiniband:,uverbs0,,/sys/class/infiniband:,iwarp0"
    wanted+=",../iwarp0dev/infiniband/iwarp0,-1,0,\['iwarp0'\] [0-9]*"
    paste -sd, "$LAB/led" | grep -qx "$wanted" &&
        grep -q '^crw-rw-rw-' "$LAB/led.err" || { cat "$LAB/led" "$LAB/led.err"; return 1; }
    [ "$(find "$LAB/runtime" -mindepth 1 -maxdepth 1 | wc -l)" = 1 ] || { ls -l "$LAB/runtime"; return 1; }
    # A program that is not found leaves nothing; one that runs keeps its files while another begins.
    ! on 0 --roce "$LAB/none" && [ -z "$(ls "$LAB/runtime")" ] || { ls -l "$LAB/runtime"; return 1; }
    on 0 --roce bash -c "'$OUTSIDE' --socket '$LAB/0.verbs' --roce true && cat /sys/class/infiniband/iwarp0/node_type"
}
ucx_device() { RUN=$CONFINED on 0 --roce ucx_info -d >"$LAB/ucx" && grep -q 'Device: iwarp0:1' "$LAB/ucx"; }
without_namespaces() { # the rows where no namespace may be made
    check "--roce without namespaces: a place to run" confined
    check "--roce without namespaces: files of the devices, $of" led_files
    row "--roce without namespaces: ucx_info -d, $of" ucx_device ucx_info
    for test in "am_lat -s 8" "put_bw -s 65536 -D zcopy"; do
        # shellcheck disable=SC2086
        RUN=$CONFINED of="without namespaces, $of" transports $test
    done
}
as_roce() {
    local options
    check "--roce: files of the devices" roce_files
    without_namespaces
    roce ibv_rc_pingpong -g 0 -c
    for options in "" -b "-q 16" "-e -n 100" "--use-srq -q 16"; do
        # shellcheck disable=SC2086
        roce ib_send_bw -d iwarp0 -n "$ROUNDS" $options
    done
    roce ib_send_bw -d iwarp0 -n 5 -a
    roce ib_send_lat -d iwarp0 -n 20
    # Without flow control of their own, by librdmacm.
    for options in "" "--use-srq -q 4"; do
        # shellcheck disable=SC2086
        row "--roce ib_send_bw -R $options, $of" pair --roce ib_send_bw -R -d iwarp0 -n "$ROUNDS" $options -- \
            --roce ib_send_bw -R -d iwarp0 -n "$ROUNDS" $options 10.78.0.10
    done
    for options in "am_lat -s 8" "am_bw -s 8000 -D bcopy" "put_lat -s 8" "put_bw -s 65536 -D zcopy" \
        "get -s 65536 -D zcopy" "fadd -s 8" "cswap -s 8"; do
        # shellcheck disable=SC2086
        transports $options
    done
    fio_job "verb=send\n" ""
    row "--roce fio, send, $of" pair --roce fio "$LAB/server.fio" -- --roce fio "$LAB/client.fio"
}
measuring() { # programs of perftest
    local program
    for program in ib_write ib_read ib_send; do
        perftest "${program}_bw" -n "$ROUNDS"
        perftest "${program}_bw" -n 5 -a
        perftest "${program}_bw" -n "$ROUNDS" -b
        perftest "${program}_bw" -n "$ROUNDS" -q 16
        perftest "${program}_lat" -n 20
        perftest "${program}_lat" -n 5 -a
    done
}
particular() { # what not every program of perftest has
    local program
    # RDMA Writes have no events: "Events feature not available on WRITE verb".
    perftest ib_read_bw -n "$ROUNDS" -e
    perftest ib_read_lat -n 20 -e
    perftest ib_send_bw -n 1000 -e -Q 1
    perftest ib_send_bw -n "$ROUNDS" -s 1000
    # One queue pair: docs/programs.md says why not two.
    perftest ib_send_bw -n "$ROUNDS" --use-srq
    for program in ib_atomic_bw ib_atomic_lat; do
        perftest $program -n "$ROUNDS"
        perftest $program -n 20 -e
    done
    perftest ib_atomic_bw -n "$ROUNDS" -q 16
    perftest ib_atomic_bw -n "$ROUNDS" -b
    perftest ib_send_lat -n 20 --use-srq
}
# fio_job ENGINE_OPTIONS SERVER_OPTIONS: job files. The client's job names the verb, and the server's only reads.
fio_job() {
    printf '[global]\nioengine=rdma\nport=17204\nbs=64k\nsize=10m\n[server]\nrw=read\n%b' "$2" >"$LAB/server.fio"
    printf '[global]\nioengine=rdma\nhostname=10.78.0.10\nport=17204\nbs=64k\nsize=10m\n%b[client]\nrw=write\n' "$1" \
        >"$LAB/client.fio"
}
storage() { # fio
    local verb
    for verb in write read; do
        fio_job "verb=$verb\n" ""
        row "fio, $verb, $of" pair fio "$LAB/server.fio" -- fio "$LAB/client.fio"
    done
    # A Send without a buffer ends an iWARP connection: the server has one for each of the 160 Sends.
    fio_job "verb=send\n" "iodepth=256\n"
    row "fio, send, $of" pair fio "$LAB/server.fio" -- fio "$LAB/client.fio"
}

copied() { # a file, through rcopy
    rm -f "$LAB/copy"
    ENDLESS=1 pair rcopy -- rcopy "$LAB/file" "10.78.0.10:$LAB/copy" && cmp "$LAB/file" "$LAB/copy"
}
preloaded() { # a file, through nc of plain sockets
    rm -f "$LAB/copy"
    pair --preload bash -c "exec nc -l -N 7000 >'$LAB/copy'" -- \
        --preload bash -c "exec nc -N 10.78.0.10 7000 <'$LAB/file'" && cmp "$LAB/file" "$LAB/copy"
}
basic_sockets() { # the rows of programs-quick
    row "rstream -T v, $of" pair rstream -T v -C 20 -- rstream -T v -C 20 -s 10.78.0.10
    row "rcopy, a file of 20 MB, $of" copied rcopy
    row "nc with --preload, a file of 20 MB, $of" preloaded nc
}
sockets() { # rsockets
    local program test
    for program in rstream riostream; do
        for test in b n a; do
            row "$program -T $test -T v, $of" \
                pair $program -T $test -T v -C 20 -- $program -T $test -T v -C 20 -s 10.78.0.10
        done
        row "$program, all sizes, $of" pair $program -S all -C 10 -- $program -S all -C 10 -s 10.78.0.10
    done
    for test in "" "-B 4096"; do
        # shellcheck disable=SC2086
        LIMIT=$((3 * LIMIT)) row "rstream -T n $test, 1 MiB 200 times, $of" \
            pair rstream -T n $test -S 1048576 -C 200 -- rstream -T n $test -S 1048576 -C 200 -s 10.78.0.10
    done
    row "rstream over IPv6, $of" pair rstream -b fd78::10 -C 20 -- rstream -C 20 -s fd78::10
    for test in "" -R; do
        iperf3 --version >/dev/null 2>&1 || { echo "not installed: iperf3"; break; }
        check "iperf3 $test with --preload, $of" \
            pair --preload iperf3 -s -1 -- --preload iperf3 -c 10.78.0.10 -n 10M $test
    done
}
# Programs that agree by the kernel's TCP, and then transfer by RDMA: at the addresses of the daemons, which the kernel
# has on an interface that leads nowhere.
kernel_addresses() {
    in_ns sysctl -qw net.ipv4.conf.all.arp_ignore=1
    ip -n "$NS" link add nowhere type veth peer name nobody
    for port in 0 1; do ip -n "$NS" addr add "10.78.0.1$port/32" dev nowhere; done
    ip -n "$NS" link set nowhere up
    ip -n "$NS" link set nobody up
}
fabric() { # TYPE PROVIDER OPTIONS…: fi_pingpong compares what it receives
    local args=(env FI_UNIVERSE_SIZE=16 fi_pingpong -c -p "$2" -e "$1" "${@:3}")
    READY="hears 47592" pair "${args[@]}" -- "${args[@]}" 10.78.0.10
}
provider() { on 0 fi_info -p verbs >"$LAB/provider" && grep FI_PROTO_IWARP "$LAB/provider"; }
agreeing() { # qperf and libfabric
    local test
    for test in lat rdma_read_lat rdma_read_bw rdma_write_lat rdma_write_poll_lat compare_swap_mr fetch_add_mr; do
        READY="hears 19765" ENDLESS=1 \
            row "qperf, rc_$test, $of" pair qperf -- qperf -t 1 -cm 1 10.78.0.10 "rc_$test"
    done
    for test in bw bi_bw rdma_write_bw; do
        READY="hears 19765" ENDLESS=1 row "--roce qperf, rc_$test, $of" \
            pair --roce qperf -- --roce qperf -t 1 -cm 1 10.78.0.10 "rc_$test"
    done
    row "fi_info -p verbs" provider fi_info
    command -v fi_pingpong >/dev/null || { echo "not installed: fi_pingpong"; return; }
    check "fi_pingpong -p verbs -e msg, 0 B to 6 MiB, $of" fabric msg verbs -I 5
    [ "$CLIENT" = 0 ] || check "fi_pingpong -p 'verbs;ofi_rxm' -e rdm, 4 MiB, $of" \
        fabric rdm 'verbs;ofi_rxm' -I 5 -S 4194304
}
head -c 20000001 /dev/urandom >"$LAB/file"

# With LOSS=1, one frame in a hundred is lost between the daemons, in either direction.
if [ -n "$LOSS" ]; then
    frame_by_frame v0 v1
    in_ns nft -f - <<'NFT'
table bridge lossy {
    counter lost { }
    chain forward {
        type filter hook forward priority 0;
        numgen random mod 100 == 0 counter name lost drop
    }
}
NFT
fi
[ -n "$QUICK" ] || kernel_addresses
places="1 0"
# What both ends of one daemon send does not pass the switch.
[ -z "$QUICK$LOSS" ] || places=1
for CLIENT in $places; do
    of=$([ "$CLIENT" = 1 ] && echo "two daemons" || echo "one daemon")
    for suite in $SUITES; do "$suite"; done
done
frames_lost() {
    in_ns nft -j list counter bridge lossy lost | jq -e '.nftables[1].counter.packets > 0'
}
[ -z "$LOSS" ] || check "frames were lost" frames_lost

# A daemon learns that a program has ended when the kernel closes the program's socket, which is after `wait` returns.
left() { "$IWARPCTL" --socket "$LAB/$1.control" -j app list | jq length; }
for n in 0 1; do check "nothing is left on daemon $n" becomes 0 5 left "$n"; done

score
