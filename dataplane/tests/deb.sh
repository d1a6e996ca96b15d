#!/bin/bash
# deb.sh FOLDER: tests the Debian packages in FOLDER on a clean Debian of this machine's release. In a chroot: install
# with dependencies, start the service as its unit does, put and get, completions, upgrade, remove, purge; nothing is
# left behind. Then in a container that systemd boots: the unit with all its restrictions, and the watchdog.
# `make deb-test`.
#
#   IRONWARP_CACHE   where the chroot and the packages that it downloads are kept, default /var/cache/ironwarp
#
# Every run starts from the same chroot: what it changes is in memory, in a mount namespace of its own.
set -euo pipefail
export LC_ALL=C.UTF-8
debs=$(realpath "$1")
cd "$(dirname "$0")/../.."
source .ci/chroot.sh
source /etc/os-release
cache=${IRONWARP_CACHE:-/var/cache/ironwarp}/deb-$VERSION_CODENAME
# Tools of the test, shells whose completion is tested, systemd, and verbs programs: an operator's machine has them.
tools=iproute2,bash-completion,zsh,fish,systemd,systemd-sysv,dbus,python3-minimal,jq
tools+=,rdmacm-utils,ibverbs-utils,ibverbs-providers
root=$cache/root-$(cksum <<<"$tools" | cut -d ' ' -f 1)
# The most that any driver keeps: the container must have them.
CAPS=CAP_NET_ADMIN,CAP_NET_RAW,CAP_IPC_LOCK,CAP_SYS_RAWIO,CAP_BPF,CAP_PERFMON

# In the namespaces: mounts the chroot at $work/root, with a layer in memory above it that is new.
layer() {
    mount -t tmpfs tmpfs "$work"
    mkdir "$work"/{upper,layer,root}
    mount -t overlay overlay -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/layer" "$work/root"
    mount -t tmpfs tmpfs "$work/root/tmp"
    mkdir "$work/root/tmp/debs"
    cp "$debs"/ironwarp*.deb "$work/root/tmp/debs/"
    cp dataplane/tests/deb-inside.sh "$work/root/tmp/"
    mount --bind "$cache/archives" "$work/root/var/cache/apt/archives"
    cp -L /etc/resolv.conf "$work/root/etc/resolv.conf"
}

# Runs deb-inside.sh in a new layer.
in_chroot() {
    layer
    mount -t proc proc "$work/root/proc"
    mount --rbind /dev "$work/root/dev"
    mount -t tmpfs tmpfs "$work/root/run"
    chroot "$work/root" /bin/bash /tmp/deb-inside.sh "$@"
}

# In a mount namespace: boots a layer with the package in it, in a container with a network of its own.
boot() {
    (in_chroot --install)
    umount -R "$work/root/dev" "$work/root/run" "$work/root/proc" "$work/root/var/cache/apt/archives"
    cp dataplane/tests/service-inside.sh dataplane/tests/manager.py "$work/root/root/"
    cat >"$work/root/etc/systemd/system/service-test.service" <<UNIT
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /root/service-inside.sh
UNIT
    ln -s ../service-test.service "$work/root/etc/systemd/system/multi-user.target.wants/service-test.service"
    # The NFS server opens files by handle, which nspawn refuses otherwise.
    # DPDK looks for the module vfio in /sys/module, which nspawn does not show: the test mounts it.
    SYSTEMD_NSPAWN_API_VFS_WRITABLE=yes timeout --kill-after 10 180 systemd-nspawn --directory "$work/root" --boot \
        --private-network --register=no --keep-unit --machine ironwarp-service --bind=/dev/net/tun \
        --system-call-filter=open_by_handle_at --capability="$CAPS" >"$work/boot.log" 2>&1 || true
    if [ ! -f "$work/root/root/result" ]; then
        tail -n 30 "$work/boot.log"
        echo "FAIL  the container does not boot"
        exit 1
    fi
    cat "$work/root/root/result"
    [ "$(tail -n 1 "$work/root/root/result")" = passed ]
}

export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive
work=$cache/work
case "${2:-}" in
    --packages) in_chroot; exit ;;
    --boot) boot; exit ;;
esac
[ "$(id -u)" = 0 ] || { echo "deb.sh: needs root, for a chroot" >&2; exit 1; }
[ -c /dev/net/tun ] || { echo "deb.sh: /dev/net/tun is missing: modprobe tun" >&2; exit 1; }
mkdir -p "$work" "$cache/archives/partial"
exec 9>"$cache/lock"
flock 9
[ -d "$root" ] || make_root "$VERSION_CODENAME" "$root" "$tools"
unset TMPDIR
unshare --mount --propagation slave --pid --fork --kill-child -- dataplane/tests/deb.sh "$debs" --packages
unshare --mount --propagation slave -- dataplane/tests/deb.sh "$debs" --boot
