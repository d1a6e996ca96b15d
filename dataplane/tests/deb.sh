#!/bin/bash
# deb.sh FOLDER: tests the Debian packages in FOLDER. On this machine: a program in C is built with their pkg-config
# files and libraries, and has a device as an ordinary user. On a clean Debian of this machine's release, in a chroot:
# install, the names of files in pages, purge, after which nothing is left. Then in a container that systemd boots: the
# units as they are installed, with all their restrictions; upgrade and removal under a daemon that runs.
# `make deb-test`.
#
#   IRONWARP_CACHE   where the chroot is kept, default /var/cache/ironwarp
#
# Every run starts from the same chroot, which has what the packages depend on: what a run changes is in memory, in a
# mount namespace of its own. The container cannot change settings of the kernel, and has a pool of hugepages of its
# own, made of files.
set -euo pipefail
export LC_ALL=C.UTF-8
debs=$(realpath "$1")
cd "$(dirname "$0")/../.."
source .ci/chroot.sh
source /etc/os-release
cache=${IRONWARP_CACHE:-/var/cache/ironwarp}/deb-$VERSION_CODENAME
# Tools of the test, shells whose completion is tested, systemd, and verbs programs: an operator's machine has them.
tools=iproute2,bash-completion,zsh,fish,systemd,systemd-sysv,dbus,python3,jq
tools+=,rdmacm-utils,ibverbs-utils,ibverbs-providers
# Dependencies of the packages, other than each other.
needs=$(for deb in "$debs"/ironwarp*.deb; do dpkg-deb -f "$deb" Depends; done | tr ',' '\n' | sed 's/^ *//' |
    grep -v '^ironwarp' | sort -u | paste -sd ,)
root=$cache/root-$(cksum <<<"$tools $needs" | cut -d ' ' -f 1)
# The most that any driver keeps: the container must have them.
CAPS=CAP_NET_ADMIN,CAP_NET_RAW,CAP_IPC_LOCK,CAP_SYS_RAWIO,CAP_BPF,CAP_PERFMON

# Installs the packages' dependencies in the chroot, and DPDK's program for its telemetry, of a package that has more.
complete_root() {
    make_root "$VERSION_CODENAME" "$root" "$tools"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    mount -t proc proc "$root/proc"
    chroot "$root" /bin/bash -ec '
        apt-get -qq update
        apt-get -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends satisfy "$1"
        cd /tmp
        apt-get -qq download dpdk-dev
        dpkg-deb --extract dpdk-dev_*.deb dpdk
        install dpdk/usr/bin/dpdk-telemetry.py /usr/local/bin/
        rm -r dpdk*
        apt-get clean' complete "$needs" >>"$root.log" 2>&1 ||
        { tail -n 20 "$root.log" >&2; echo "deb.sh: the packages' dependencies cannot be installed" >&2; return 1; }
    umount "$root/proc"
    touch "$root.complete"
}

# In the namespaces: mounts the chroot at $work/root, with a layer in memory above it that is new.
layer() {
    mount -t tmpfs tmpfs "$work"
    mkdir "$work"/{upper,layer,root}
    mount -t overlay overlay -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/layer" "$work/root"
    mkdir "$work/root/root/debs"
    cp "$debs"/ironwarp*.deb "$work/root/root/debs/"
    cp dataplane/tests/{deb-inside.sh,installed-names.py,service-inside.sh,manager.py} "$work/root/root/"
}

# Runs deb-inside.sh in the layer, and leaves the packages installed.
in_chroot() {
    mount -t proc proc "$work/root/proc"
    mount --rbind /dev "$work/root/dev"
    unshare --pid --fork --kill-child chroot "$work/root" /bin/bash /root/deb-inside.sh
    umount -R "$work/root/dev" "$work/root/proc"
}

# Boots the layer, in a container with a network of its own.
boot() {
    cat >"$work/root/etc/systemd/system/service-test.service" <<UNIT
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /root/service-inside.sh
UNIT
    ln -s ../service-test.service "$work/root/etc/systemd/system/multi-user.target.wants/service-test.service"
    # The NFS server opens files by handle, which nspawn refuses otherwise. DPDK looks for the module vfio in
    # /sys/module, which nspawn does not show.
    timeout --kill-after 10 180 systemd-nspawn --directory "$work/root" --boot --private-network --register=no \
        --keep-unit --machine ironwarp-service --bind=/dev/net/tun --bind-ro=/sys/module \
        --system-call-filter=open_by_handle_at --capability="$CAPS" >"$work/boot.log" 2>&1 || true
    if [ ! -f "$work/root/root/result" ]; then
        tail -n 30 "$work/boot.log"
        echo "FAIL  the container does not boot"
        exit 1
    fi
    cat "$work/root/root/result"
    [ "$(tail -n 1 "$work/root/root/result")" = passed ]
}

# Builds a program with the files of the packages, beside the headers of this machine, and runs it.
link() {
    local place
    place=$(mktemp -d)
    for deb in "$debs"/ironwarp-{client,dev}_*.deb; do dpkg-deb --extract "$deb" "$place"; done
    cat >"$place/device.c" <<'PROGRAM'
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
int main(void) {
    int count;
    struct ibv_device **devices = ibv_get_device_list(&count);
    struct ibv_context *context = count > 0 ? ibv_open_device(devices[0]) : NULL;
    struct rdma_event_channel *channel = rdma_create_event_channel();
    if (!context || !ibv_alloc_pd(context) || !channel) return 1;
    puts(ibv_get_device_name(devices[0]));
    return 0;
}
PROGRAM
    local flags
    flags=$(PKG_CONFIG_PATH=$place/usr/share/pkgconfig \
        pkg-config --define-variable=prefix="$place/usr" --cflags --libs ironwarp-rdmacm)
    chmod -R a+rX "$place"
    # shellcheck disable=SC2086 # flags are words
    cc "$place/device.c" -o "$place/device" $flags
    local said
    said=$(setpriv --reuid 65534 --regid 65534 --clear-groups "$place/device") || true
    rm -r "$place"
    [ "$said" = iwarp0 ] || { echo "FAIL  a program that is linked with the libraries has no device: $said"; exit 1; }
    echo "ok    a program in C that is built with ironwarp-dev has a device as an ordinary user"
}

export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive
work=$cache/work
case "${2:-}" in
    --complete) complete_root; exit ;;
    --run) layer; in_chroot; boot; exit ;;
esac
[ "$(id -u)" = 0 ] || { echo "deb.sh: needs root, for a chroot" >&2; exit 1; }
[ -c /dev/net/tun ] || { echo "deb.sh: /dev/net/tun is missing: modprobe tun" >&2; exit 1; }
mkdir -p "$work"
exec 9>"$cache/lock"
flock 9
unset TMPDIR
link
[ -f "$root.complete" ] || unshare --mount --propagation slave -- dataplane/tests/deb.sh "$debs" --complete
unshare --mount --propagation slave -- dataplane/tests/deb.sh "$debs" --run
