# shellcheck shell=bash
# Functions of the NFS tests: a daemon and iwarp-nfsd in a namespace, soft-iWARP guests on a bridge. Source it behind
# dataplane/tests/lib.sh and siw/guest.sh.
#
#   IWARPD, IWARPCTL, NFSD   the programs (default: those in BUILT, target/release)
#   NFS_MIB                  size of the file `big` in MiB (default 32)
#   NFS_PATIENCE             factor of all time limits (default 1)
#   NFS_LEASE_S              lease of NFS 4.1 in seconds (default 15)

NFSD=${NFSD:-${IWARPD%/*}/iwarp-nfsd}
MIB=${NFS_MIB:-32}
LEASE_S=${NFS_LEASE_S:-15}
PATIENCE=${NFS_PATIENCE:-1}
GUEST_BOOT_SECONDS=$((120 * PATIENCE))
NFSD_PID=${NFSD_PID:-}

write_daemon_config() {
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
    bridge_daemon
    ip -n "$NS" addr add 10.77.0.1/24 dev br0
    ip -n "$NS" link set br0 up
}

bridge_daemon() {
    ip -n "$NS" link set iw0 address 02:00:00:77:00:01
    ip -n "$NS" link set iw0 master br0 up
}

write_nfsd_config() {
    mkdir -p "$LAB/state"
    cat >"$LAB/nfsd.toml" <<TOML
[rdma]
listen = "10.77.0.2:20049"
socket = "$LAB/verbs.sock"
control = "$SOCKET"
[tcp]
listen = "10.77.0.1:20050"
[nfs]
lease_s = $LEASE_S
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
[[export]]
path = "/squashed"
directory = "$LAB/squashed"
[[export.client]]
prefix = "10.77.0.0/24"
access = "rw"
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
nfsd_kill() { kill -KILL "$NFSD_PID" && wait "$NFSD_PID" 2>/dev/null; }
nfsd_stop() { kill "$NFSD_PID" 2>/dev/null; wait "$NFSD_PID"; }
nfsctl() { "$IWARPCTL" nfs "$@" --server "$LAB/nfsd.sock"; }

# nfs_lab NAME: the namespace, the daemon, the bridge, the exported directory with `tree` and `big`, and the server.
nfs_lab() {
    lab_open "$1"
    GUEST_NETNS=$NS GUEST_LOGS=$LAB
    write_daemon_config
    daemon_start "$LAB/iwarpd.toml" || exit 1
    build_bridge
    mkdir -p "$LAB/data/tree" "$LAB/squashed"
    chmod 755 "$LAB" && chmod 777 "$LAB/squashed"
    cp -r docs configs rdma/src "$LAB/data/tree"
    head -c $((MIB << 20)) /dev/urandom >"$LAB/data/big"
    write_nfsd_config
    check "iwarp-nfsd starts" nfsd_start
}

# SECONDS COMMAND: a command in the guest, or in the second one. Its lines become one.
guest() { guest_run nfs "${2//$'\n'/ }" $(($1 * PATIENCE)); }
other() { guest_run other "${2//$'\n'/ }" $(($1 * PATIENCE)); }
boot_guest() { boot nfs guest0 52:54:00:77:00:05 10.77.0.5/24 fd77::5/64; }
boot_other() { boot other guest1 52:54:00:77:00:06 10.77.0.6/24 fd77::6/64; }
boot() { guest_boot "$@" || { tail -n 20 "$LAB/$1.console" "$LAB/$1.qemu" && return 1; }; }
not() { ! "$@"; }

mount_v3() {
    local options=vers=3,proto=rdma,port=20049,addr=10.77.0.2,nolock
    options+=,mountaddr=10.77.0.1,mountproto=tcp,mountport=20050
    guest 60 "mkdir -p /mnt && mount -i -t nfs -o $options 10.77.0.2:${1:-/data} /mnt" &&
        guest 10 'grep " /mnt nfs .*proto=rdma" /proc/mounts'
}
mount_v4() { # GUEST ADDRESS [EXPORT]: mounts by NFS 4.1; the name of the host is a part of the client's identity
    local options=proto=rdma,port=20049,addr=10.77.0.2,clientaddr=$2,sec=sys
    local command="hostname $1; mkdir -p /mnt; mount -i -t nfs4 -o vers=4.1,$options 10.77.0.2:${3:-/data} /mnt"
    guest_run "$1" "$command" $((90 * PATIENCE)) &&
        guest_run "$1" "grep ' /mnt nfs4 .*vers=4.1.*proto=rdma' /proc/mounts" $((60 * PATIENCE))
}
mount_version() { # VERSION [EXPORT]
    case $1 in
        3) mount_v3 "${2:-/data}" ;;
        4.1) mount_v4 nfs 10.77.0.5 "${2:-/data}" ;;
    esac
}
unmount() { guest 90 'cd / && umount /mnt'; }

# must_mount VERSION [EXPORT]: mounts, and ends the script with what guest and server say if that fails.
must_mount() {
    local failed=$FAILED
    check "NFS $1: Linux mounts ${2:-/data} over RDMA" mount_version "$@"
    [ "$FAILED" != "$failed" ] || return 0
    guest 10 dmesg | tail -n 20
    cat "$LAB/nfsd.log"
    score
    exit 1
}

rate() { # NAME COMMAND: a command that moves the file, and the rate, with the control line's time
    local begin=${EPOCHREALTIME/./} us
    check "$1" guest 600 "$2"
    us=$((${EPOCHREALTIME/./} - begin))
    echo "      $((MIB * 1048576 / us)).$((MIB * 10485760 / us % 10)) MB/s"
}

digests() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum); } # FOLDER, on this side
same_tree() { # FOLDER [SECONDS]: the files that the guest sees there have the digests of those on this side
    digests "$LAB/data/$1" >"$LAB/here"
    guest "${2:-120}" "cd /mnt/$1 && find . -type f -print0 | sort -z | xargs -0 sha256sum" >"$LAB/there" || return 1
    echo "$(wc -l <"$LAB/here") files" && [ -s "$LAB/here" ] && diff <(sort "$LAB/here") <(sort "$LAB/there")
}

# killed: kill -9 in the middle of a copy, and a new server: the client goes on, and no byte is wrong.
killed() {
    guest 30 'dd if=/mnt/big of=/mnt/again bs=64k conv=fsync 2>/tmp/dd & job=$!; sleep 1; kill -0 $job' || return 1
    nfsd_kill
    cmp -s "$LAB/data/big" "$LAB/data/again" && echo "the copy was faster than the kill" && return 1
    nfsd_start && guest 300 'wait $job; code=$?; cat /tmp/dd; (exit $code)' && cmp "$LAB/data/big" "$LAB/data/again"
}

nfs_end() {
    check "iwarp-nfsd ends well" nfsd_stop
    check "the daemon ends well" daemon_stop
    guest_stop_all
    score
}
