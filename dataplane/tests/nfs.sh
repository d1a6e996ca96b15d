#!/usr/bin/env bash
# NFS over RDMA: Linux with soft-iWARP, in a QEMU guest, mounts a directory that iwarp-nfsd exports through iwarpd, by
# NFS 3 and by NFS 4.1. It copies a tree, compares digests and prints rates; two guests lock and open the same
# files. `make nfs-demo`; needs root. Last line: `N passed, N failed`.
#
#   IWARPD, IWARPCTL, NFSD   the programs (default: target/release)
#   NFS_MIB                  size of the file that measures the rates (default 32)
source "$(dirname "$0")/lib.sh"
source dataplane/tests/siw/guest.sh

NFSD=${NFSD:-${IWARPD%/*}/iwarp-nfsd}
MIB=${NFS_MIB:-32}
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
[[listener]]
port = 7400
service = "region"
[control]
socket = "$SOCKET"
[applications]
socket = "$LAB/verbs.sock"
TOML
}

# Connects the daemon's TAP and those of the guests by a bridge. The kernel's side of a net_tap port has the port's own
# address: it gets another one, or the bridge would take the daemon's frames for its own.
build_bridge() {
    ip -n "$NS" link add br0 type bridge mcast_snooping 0
    local tap
    for tap in guest0 guest1; do
        in_ns ip tuntap add $tap mode tap
        ip -n "$NS" link set $tap master br0 up
    done
    ip -n "$NS" link set iw0 address 02:00:00:77:00:01
    ip -n "$NS" link set iw0 master br0 up
    ip -n "$NS" addr add 10.77.0.1/24 dev br0
    ip -n "$NS" link set br0 up
}

write_nfsd_config() {
    mkdir -p "$LAB/state"
    cat >"$LAB/nfsd.toml" <<TOML
[rdma]
listen = "10.77.0.2:20049"
socket = "$LAB/verbs.sock"
[tcp]
listen = "10.77.0.1:20050"
[nfs]
lease_s = 15
[state]
directory = "$LAB/state"
[control]
socket = "$LAB/nfsd.sock"
[[export]]
path = "/data"
directory = "$LAB/data"
[[export.client]]
prefix = "10.77.0.0/24"
access = "rw"
squash = "none"
TOML
}

nfsd_start() {
    ip netns exec "$NS" "$NFSD" --config "$LAB/nfsd.toml" >"$LAB/nfsd.log" 2>&1 &
    NFSD_PID=$!
    for _ in $(seq 100); do
        grep -q 'serving at' "$LAB/nfsd.log" && return
        kill -0 "$NFSD_PID" 2>/dev/null || break
        sleep 0.1
    done
    cat "$LAB/nfsd.log"
    return 1
}

guest() { guest_run nfs "$2" "$1"; }   # SECONDS COMMAND: a command in the guest
other() { guest_run other "$2" "$1"; } # SECONDS COMMAND: a command in the second guest
rate() { # NAME COMMAND: a command that moves the file, and the rate, with the control line's time
    local begin=${EPOCHREALTIME/./} us
    check "$1" guest 300 "$2"
    us=$((${EPOCHREALTIME/./} - begin))
    echo "      $((MIB * 1048576 / us)).$((MIB * 10485760 / us % 10)) MB/s"
}
same_tree() { # the tree that the guest sees has the digests of the one on this side
    (cd "$LAB/data/$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$LAB/here"
    guest 120 "cd /mnt/$1 && find . -type f | sort | xargs sha256sum" >"$LAB/there"
    echo "$(wc -l <"$LAB/here") files" && diff <(sort "$LAB/here") <(sort "$LAB/there")
}

nfsd_kill() { kill -KILL "$NFSD_PID" && wait "$NFSD_PID" 2>/dev/null; }

killed() { # kill -9 in the middle of a copy, and a new server: the client goes on, and no byte is wrong
    guest 30 'dd if=/mnt/big of=/mnt/again bs=64k conv=fsync 2>/tmp/dd & job=$!; sleep 1; kill -0 $job' || return 1
    nfsd_kill
    cmp -s "$LAB/data/big" "$LAB/data/again" && echo "the copy was faster than the kill" && return 1
    nfsd_start && guest 200 'wait $job; code=$?; cat /tmp/dd; (exit $code)' && cmp "$LAB/data/big" "$LAB/data/again"
}

# files VERSION: what a client does with files, in whatever version it has mounted the export.
files() {
    check "$1: the tree is seen as it is" same_tree tree
    check "$1: cp -r of the tree" guest 300 'cp -r /mnt/tree /mnt/copy'
    check "$1: the copy is the tree" same_tree copy
    rate "$1: dd reads $MIB MiB" 'dd if=/mnt/big of=/dev/null bs=1M'
    rate "$1: dd writes $MIB MiB" 'dd if=/mnt/big of=/mnt/written bs=1M conv=fsync'
    check "$1: the bytes are the same" cmp "$LAB/data/big" "$LAB/data/written"
    check "$1: O_DIRECT" guest 300 "dd if=/mnt/big of=/mnt/direct bs=256k count=16 iflag=direct oflag=direct 2>&1"
    check "$1: the bytes are the same" cmp -n $((4 << 20)) "$LAB/data/big" "$LAB/data/direct"
    check "$1: a program runs from it, mapped into memory" guest 60 \
        'cp /bin/busybox /mnt/busybox && echo 3 >/proc/sys/vm/drop_caches && /mnt/busybox true && rm /mnt/busybox'
    check "$1: names: rename, links, removal" guest 60 \
        'cd /mnt && mv written moved && ln moved second && ln -s moved soft && cmp soft second && rm moved second soft'
    local many='for i in $(seq 500); do : >file$i; done; [ $(ls | wc -l) = 500 ]'
    check "$1: 500 files in a directory" guest 120 "mkdir /mnt/many && cd /mnt/many && $many && cd / && rm -r /mnt/many"
    check "$1: an open file that is removed" guest 60 \
        'cd /mnt && echo kept >open && exec 7<open && rm open && read -r line <&7 && exec 7<&- && [ "$line" = kept ]'
    check "$1: the server is killed while the client writes" killed
    check "$1: everything is removed again" guest 120 'cd / && rm -r /mnt/copy /mnt/again /mnt/direct'
    check "$1: nothing else is left" test "$(ls -A "$LAB/data" | sort | tr '\n' ' ')" = "big tree "
}

mount_v4() { # GUEST ADDRESS: mounts by NFS 4.1; the name of the host is a part of the client's identity
    local options=proto=rdma,port=20049,addr=10.77.0.2,clientaddr=$2,sec=sys
    guest_run "$1" "hostname $1; mkdir -p /mnt; mount -i -t nfs4 -o vers=4.1,$options 10.77.0.2:/data /mnt" 90 &&
        guest_run "$1" "grep ' /mnt nfs4 .*vers=4.1.*proto=rdma' /proc/mounts"
}
refuses_other_minor_versions() {
    local options=proto=rdma,port=20049,addr=10.77.0.2,clientaddr=10.77.0.5,sec=sys version
    for version in 4.2 4.0; do
        guest 60 "mount -i -t nfs4 -o vers=$version,$options 10.77.0.2:/data /mnt" >"$LAB/refused" 2>&1 && return 1
        grep 'Protocol not supported' "$LAB/refused" || return 1
    done
}
not() { ! "$@"; }

# Locks and opens of two clients, and a server that is killed while one of them holds a lock.
two_clients() {
    guest_boot other guest1 52:54:00:77:00:06 10.77.0.6/24 fd77::6/64 || exit 1
    check "a second client mounts" mount_v4 other 10.77.0.6
    check "one sees what the other has written" guest 30 'echo one >/mnt/word'
    check "one sees what the other has written" other 30 '[ "$(cat /mnt/word)" = one ] && echo two >/mnt/word'
    check "one sees what the other has written" guest 30 '[ "$(cat /mnt/word)" = two ]'
    check "a client locks a file" guest 30 'exec 8>>/mnt/word && flock -n -x 8'
    check "the other one does not get the lock" not other 30 'flock -n -x /mnt/word true'
    nfsd_kill
    check "the server restarts" nfsd_start
    check "both clients go on" guest 90 'echo three >>/mnt/word && sync'
    check "both clients go on" other 90 'ls /mnt >/dev/null'
    check "the lock was reclaimed" not other 60 'flock -n -x /mnt/word true'
    check "the lock is freed" guest 30 'flock -u 8 && exec 8>&-'
    check "the other one gets the lock" other 60 'flock -w 30 -x /mnt/word true'
    check "a client opens a file" guest 30 'echo kept >/mnt/open && exec 7</mnt/open'
    check "the other one removes it" other 30 'rm /mnt/open'
    check "the file is still there for the first one" guest 30 \
        'echo 3 >/proc/sys/vm/drop_caches; read -r line <&7 && exec 7<&- && [ "$line" = kept ]'
    check "umount of the second client" other 60 'rm /mnt/word && umount /mnt'
}

main() {
    GUEST_IMAGE=$(dataplane/tests/siw/prepare.sh) || exit 1
    lab_open ironwarp-nfs
    GUEST_NETNS=$NS GUEST_LOGS=$LAB
    write_config
    daemon_start "$LAB/iwarpd.toml" || exit 1
    build_bridge
    mkdir -p "$LAB/data/tree"
    cp -r docs configs rdma/src "$LAB/data/tree"
    head -c $((MIB << 20)) /dev/urandom >"$LAB/data/big"
    write_nfsd_config
    check "iwarp-nfsd starts" nfsd_start
    guest_boot nfs guest0 52:54:00:77:00:05 10.77.0.5/24 fd77::5/64 || exit 1
    local options=vers=3,proto=rdma,port=20049,addr=10.77.0.2,mountaddr=10.77.0.1,mountproto=tcp,mountport=20050,nolock
    check "Linux mounts it by NFS 3" guest 60 "mkdir -p /mnt && mount -i -t nfs -o $options 10.77.0.2:/data /mnt"
    if [ "$FAILED" != 0 ]; then
        guest 10 dmesg | tail -n 20
        cat "$LAB/nfsd.log"
        score
        exit
    fi
    check "it is mounted over RDMA" guest 10 'grep " /mnt nfs .*proto=rdma" /proc/mounts'
    files "NFS 3"
    check "umount" guest 60 'cd / && umount /mnt'
    check "minor versions 4.2 and 4.0 are refused" refuses_other_minor_versions
    check "Linux mounts it by NFS 4.1 over RDMA" mount_v4 nfs 10.77.0.5
    files "NFS 4.1"
    two_clients
    check "umount" guest 60 'cd / && umount /mnt'
    kill "$NFSD_PID" 2>/dev/null
    wait "$NFSD_PID" 2>/dev/null
    check "the daemon ends well" daemon_stop
    guest_stop_all
    score
}

main
