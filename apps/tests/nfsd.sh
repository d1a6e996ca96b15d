#!/usr/bin/env bash
# iwarp-nfsd as a service: its configuration file and mistakes in it, iwarpctl nfs, reload of the exports, signals, and
# its end with the daemon; who is refused, and crowds that say nothing. libnfs is a client of another implementation;
# `make nfs-demo` mounts. `make nfsd`; needs root.
# Last line: `N passed, N failed`.
#
#   IWARPD, IWARPCTL, NFSD, REGION_CLIENT, SLOW_CLIENT   the programs (default: those in BUILT, target/release)
source "$(dirname "$0")/../../dataplane/tests/lib.sh"

NFSD=${NFSD:-${IWARPD%/*}/iwarp-nfsd}
REGION_CLIENT=${REGION_CLIENT:-${IWARPD%/*}/examples/region}
SLOW_CLIENT=${SLOW_CLIENT:-${IWARPD%/*}/examples/slow}
NFSD_PID=

write_config() {
    cat >"$LAB/iwarpd.toml" <<TOML
[memory]
hugepages = "prefer"
file_prefix = "$NS"
[[port]]
name = "lab"
driver = "tap"
interface = "iw0"
addresses = ["10.77.0.2/24"]
[workers]
cores = [0]
idle = "adaptive"
[tcp]
connections_max = 64
[control]
socket = "$SOCKET"
[applications]
socket = "$LAB/verbs.sock"
TOML
}

write_nfsd_config() { # EXPORT…: exports of directories of these names
    cat >"$LAB/nfsd.toml" <<TOML
[rdma]
listen = "10.77.0.2:20049"
socket = "$LAB/verbs.sock"
control = "$SOCKET"
[tcp]
listen = "127.0.0.1:20050"
[state]
directory = "$LAB/state"
[control]
socket = "$LAB/nfsd.sock"
TOML
    local name
    for name; do
        cat >>"$LAB/nfsd.toml" <<TOML
[[export]]
path = "/$name"
directory = "$LAB/$name"
insecure = true
[[export.client]]
prefix = "127.0.0.0/8"
access = "rw"
[[export.client]]
prefix = "10.77.0.0/24"
access = "rw"
[[export.client]]
prefix = "10.77.0.2/32"
access = "rw"
TOML
    done
}

add_regions() { # REGIONS: an export of these regions
    cat >>"$LAB/nfsd.toml" <<TOML
[[export]]
path = "/regions"
regions = $1
insecure = true
[[export.client]]
prefix = "0.0.0.0/0"
access = "rw"
[[export.client]]
prefix = "10.77.0.2/32"
access = "rw"
TOML
}

nfs() { "$IWARPCTL" nfs --server "$LAB/nfsd.sock" "$@"; }
field() { nfs -j "$1" | python3 -c 'import json, sys; print(eval(sys.argv[1], {}, {"r": json.load(sys.stdin)}))' "$2"; }

nfsd_start() {
    ip netns exec "$NS" "$NFSD" --config "$LAB/nfsd.toml" >"$LAB/nfsd.log" 2>&1 &
    NFSD_PID=$!
    for _ in $(seq 300); do
        nfs status >/dev/null 2>&1 && return
        kill -0 "$NFSD_PID" 2>/dev/null || break
        sleep 0.1
    done
    cat "$LAB/nfsd.log"
    return 1
}

ended() { # CODE: the server ends with this code
    for _ in $(seq 300); do kill -0 "$NFSD_PID" 2>/dev/null || break; sleep 0.1; done
    ! kill -0 "$NFSD_PID" 2>/dev/null || { echo "it goes on"; return 1; }
    wait "$NFSD_PID"
    local code=$?
    cat "$LAB/nfsd.log"
    [ "$code" = "$1" ] || { echo "exit code $code, not $1"; return 1; }
}

exits() { # CODE COMMAND…
    local code=0 wanted=$1
    shift
    "$@" || code=$?
    [ "$code" = "$wanted" ] || { echo "exit code $code, not $wanted"; return 1; }
}

# rpc PROGRAM PROCEDURE [PATH]: a call over TCP; prints the reply's words from the status of its acceptance on.
rpc() {
    ip netns exec "$NS" python3 - "$@" <<'PYTHON'
import socket, struct, sys
program, procedure, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
arguments = b"".join(struct.pack(">I", len(it)) + it.encode() + bytes(-len(it) % 4) for it in path)
call = struct.pack(">10I", 7, 0, 2, program, 3, procedure, 0, 0, 0, 0) + arguments
with socket.create_connection(("127.0.0.1", 20050), 10) as tcp:
    tcp.sendall(struct.pack(">I", len(call) | 1 << 31) + call)
    reply = tcp.recv(4096)
print(*struct.unpack_from(">2I", reply + bytes(8), 24))
PYTHON
}

mistakes() {
    sed 's/^listen = "10.*/listen = "nowhere"/; s/^access.*/acces = "rw"/' "$LAB/nfsd.toml" >"$LAB/bad.toml"
    exits 2 "$NFSD" --check --format short --config "$LAB/bad.toml" 2>"$LAB/mistakes" || return 1
    cat "$LAB/mistakes"
    grep -q 'bad.toml:2:10: rdma.listen: ' "$LAB/mistakes" && grep -q 'did you mean `access`?' "$LAB/mistakes"
}
lacks() {
    sed "s|$LAB/data|$LAB/none|" "$LAB/nfsd.toml" >"$LAB/lacks.toml"
    exits 0 "$NFSD" --check --config "$LAB/lacks.toml" && exits 1 "$NFSD" --check --machine --config "$LAB/lacks.toml"
}
both_contents() {
    sed 's|^regions = .*|&\ndirectory = "/srv"|' "$LAB/nfsd.toml" >"$LAB/both.toml"
    exits 2 "$NFSD" --check --format short --config "$LAB/both.toml" 2>"$LAB/mistakes" || return 1
    grep 'export\[1\].regions: the export has `directory`, too' "$LAB/mistakes"
}
content() { field exports '[it["content"] for it in r if it["path"] == "/regions"][0]'; }
counter() { # GROUP NAME: its value
    nfs -j stats | python3 -c 'import json, sys
groups = {it["group"]: it["counters"] for it in json.load(sys.stdin)["groups"]}
print(next(it["value"] for it in groups[sys.argv[1]] if it["name"] == sys.argv[2]))' "$@"
}
payload() { counter payload "$1"; }
# region_moved NAME [CROWD]: a client of this region moves 200,000 bytes in each direction, beside silent connections.
region_moved() {
    in_ns "$REGION_CLIENT" "$LAB/verbs.sock" "$SOCKET" 10.77.0.2:20049 127.0.0.1:20050 /regions "$1" 200000 "${2:-0}"
}
not_moved() { ! region_moved "$1"; }
direct() { echo "$(payload read_direct) $(payload write_direct)"; }
copied() { echo "$(payload read_copied) $(payload write_copied)"; }
without_copy() {
    local before copied
    before="$(direct)"
    copied="$(copied)"
    region_moved lab || return 1
    echo "direct: $before, then $(direct); copied: $copied, then $(copied)"
    [ "$before|$(direct)" = "0 0|200000 200000" ] && [ "$(copied)" = "$copied" ]
}
regions() {
    ctl region register lab --size 2M --access remote-read,remote-write || exit 1
    write_nfsd_config data
    add_regions '"*"'
    check "a directory and regions in one export: refused" both_contents
    check "reload with an export of regions" nfs reload
    check "it has the region" becomes "regions * (1 there)" 10 content
    check "READ and WRITE over RDMA move the bytes without a copy" without_copy
    ctl region register later --size 2M --access remote-read,remote-write || exit 1
    check "another region comes" becomes "regions * (2 there)" 10 content
    check "it can be used" region_moved later
    (umask 077 && echo token >"$LAB/token")
    ctl region register secret --size 2M --access remote-read,remote-write --token-file "$LAB/token" || exit 1
    check "one with a token is not public" not_moved secret
    ctl region deregister later || exit 1
    check "it goes" becomes "regions * (1 there)" 10 content
    check "and cannot be used" not_moved later
    check "a crowd of silent connections keeps nobody out" region_moved lab 24
    check "idle ones were closed for others" test "$(counter rdma closed_idlest)" -ge 9
    sed -i 's|^prefix = "10.77.0.2/32"|prefix = "10.77.0.3/32"|' "$LAB/nfsd.toml"
    check "reload without the daemon's own address" nfs reload
    check "a program of this machine is refused" not_moved lab
    check "when it connects" test "$(counter rdma rejected_address)" -ge 1
    write_nfsd_config data
    add_regions '["secret"]'
    check "reload with the name of a region" nfs reload
    check "it can be used" region_moved secret
    check "others cannot" not_moved lab
}
# A file system of its own, which fsfreeze stops: nothing is written to it until it is thawed.
slow_disk() {
    mkdir -p "$LAB"/{slow,fast}
    truncate -s 64M "$LAB/slow.img"
    mkfs.ext4 -q "$LAB/slow.img" && mount -o loop "$LAB/slow.img" "$LAB/slow" || return 1
    AT_END+=(slow_disk_end)
    touch "$LAB/slow/file" "$LAB/fast/"{0..127}
    chmod 666 "$LAB/slow/file" "$LAB/fast/"*
}
slow_disk_end() {
    fsfreeze -u "$LAB/slow" 2>/dev/null
    umount "$LAB/slow"
}
slow_files() {
    in_ns "$SLOW_CLIENT" "$LAB/verbs.sock" 10.77.0.2:20049 127.0.0.1:20050 "$LAB/slow" /slow /fast
}
slow() {
    write_nfsd_config data slow fast
    check "reload with exports of both" nfs reload
    check "a file that is slow delays no other one" slow_files
    check "all transfers are done" becomes "0 0 True" 10 field status \
        '"{in_flight} {waiting} ".format(**r["files"]) + str(r["files"]["done"] + r["files"]["cached"] > 256)'
    local access=io_uring
    [ "$(cat /proc/sys/kernel/io_uring_disabled 2>/dev/null)" != 2 ] || access=threads
    check "$access: its way of reading" test "$(field status 'r["files"]["access"]')" = "$access"
}
# libnfs mounts the directory of a file, and not the export.
cat_file() { # COMMAND…: by way of which nfs-cat is run
    in_ns "$@" nfs-cat 'nfs://127.0.0.1/data/dir/inner/file?version=3&nfsport=20050&mountport=20050'
}
reads() { [ "$(cat_file "$@")" = "below the export" ]; }
lists() {
    in_ns nfs-ls 'nfs://127.0.0.1/data/dir?version=3&nfsport=20050&mountport=20050' | tee /dev/stderr | grep -q inner
}
ANY_USER=(setpriv --reuid 65534 --regid 65534 --clear-groups)
refused_to_any_user() { ! cat_file "${ANY_USER[@]}"; }
libnfs() {
    mkdir -p "$LAB/data/dir/inner"
    echo "below the export" >"$LAB/data/dir/inner/file"
    check "nfs-cat of a file below the export" reads
    check "nfs-ls of a directory below it" lists
    check "nfs-cat of any user, whose port is not below 1024" reads "${ANY_USER[@]}"
    sed -i '/^insecure = true$/d' "$LAB/nfsd.toml"
    check "reload without insecure = true" nfs reload
    check "nfs-cat of root" reads
    check "any user is refused" refused_to_any_user
    check "which is counted" test "$(counter tcp refused_port)" -ge 1
}
silent_tcp() { # as many connections as there may be, and more; then a mount
    ip netns exec "$NS" python3 - <<'PYTHON' || return 1
import socket, struct
silent = [socket.create_connection(("127.0.0.1", 20050), 10) for _ in range(100)]
call = struct.pack(">11I", 7, 0, 2, 100005, 3, 1, 0, 0, 0, 0, 5) + b"/data\0\0\0"
with socket.create_connection(("127.0.0.1", 20050), 10) as tcp:
    tcp.settimeout(10)
    tcp.sendall(struct.pack(">I", len(call) | 1 << 31) + call)
    raise SystemExit(tcp.recv(4096)[24:32] != bytes(8))
PYTHON
    [ "$(counter tcp closed_idlest)" -ge 37 ]
}
paths() { field exports '" ".join(it["path"] for it in r)'; }
refused_reload() {
    exits 1 nfs reload || return 1
    nfs status | grep 'nfsd.toml:' && [ "$(paths)" = "/data /more" ]
}

main() {
    lab_open ironwarp-nfsd
    write_config
    mkdir "$LAB"/{state,data,more}
    write_nfsd_config data
    # Before the server starts: it sees the mounts of that time.
    check "a file system that can be frozen" slow_disk
    check "mistakes are reported at once, with their places" mistakes
    check "a valid file, and a machine that lacks a directory" lacks
    check "no server: iwarpctl nfs says so" exits 3 nfs status
    check "no daemon: the server does not start" not_without_daemon
    daemon_start "$LAB/iwarpd.toml" || exit 1
    check "the server starts" nfsd_start
    check "its key is its own" test "$(stat -c %a "$LAB/state/key")" = 600
    check "a second one on the same socket is refused" second_refused
    check "NFS answers" test "$(rpc 100003 0)" = "0 0"
    check "a client mounts an export" test "$(rpc 100005 1 /data | cut -d' ' -f2)" = 0
    check "and none that is not there" test "$(rpc 100005 1 /more | cut -d' ' -f2)" = 2
    check "the exports have the client" becomes "['127.0.0.1']" 10 field exports 'r[0]["mounts"]'
    check "calls are counted" becomes 2 10 field stats \
        'sum(it["calls"] for it in r["procedures"] if (it["program"], it["procedure"]) == ("mount", "MNT"))'
    check "errors are counted by reason" becomes "[('mount', 2, 1)]" 10 field stats \
        '[(it["program"], it["status"], it["count"]) for it in r["errors"]]'
    check "status, exports, clients and stats as text" texts
    check "a crowd of silent TCP connections keeps nobody out" silent_tcp
    libnfs
    write_nfsd_config data more
    kill -HUP "$NFSD_PID"
    check "SIGHUP loads the exports" becomes "/data /more" 20 paths
    check "a client mounts the new one" test "$(rpc 100005 1 /more | cut -d' ' -f2)" = 0
    write_nfsd_config data more gone
    check "a directory that is missing: nothing changes" refused_reload
    write_nfsd_config more
    check "iwarpctl nfs reload" nfs reload
    check "the exports are those of the file" becomes "/more" 10 paths
    check "no mistake is left" becomes None 10 field status 'r.get("reload_error")'
    regions
    slow
    kill -TERM "$NFSD_PID"
    check "SIGTERM ends it" ended 0
    check "its socket is removed" test ! -e "$LAB/nfsd.sock"
    check "it starts again" nfsd_start
    check "the daemon ends" daemon_stop
    check "the server ends with it" ended 1
    score
}

not_without_daemon() {
    exits 1 timeout 60 ip netns exec "$NS" "$NFSD" --config "$LAB/nfsd.toml"
}
second_refused() {
    sed 's/:20049/:20051/; s/:20050/:20052/' "$LAB/nfsd.toml" >"$LAB/second.toml"
    exits 1 timeout 60 ip netns exec "$NS" "$NFSD" --config "$LAB/second.toml" 2>"$LAB/second"
    cat "$LAB/second"
    grep -q 'control.socket' "$LAB/second"
}
texts() {
    nfs status | grep '10.77.0.2:20049' && nfs exports | grep '/data .*127.0.0.0/8' && nfs clients | grep TRANSPORT &&
        nfs stats | grep 'mount .*MNT'
}

main
