#!/bin/bash
# debian13.sh COMMAND…: runs a command in this folder on Debian 13, as root: in a chroot with Debian's packages and this
# machine's Rust. The first run makes the chroot, in two to three minutes; to make it anew, remove its folder.
#
#   IRONWARP_CACHE   where the chroot (2 GB) and what is built in it are kept, default /var/cache/ironwarp
#   DEBIAN_MIRROR    where the packages come from, by default where this machine's own do
#
# All mounts are in a mount namespace of their own, and all processes in a process namespace: with the command they are
# gone.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
cache=${IRONWARP_CACHE:-/var/cache/ironwarp}/debian13
root=$cache/root

die() { echo "debian13: $*" >&2; exit 1; }

source .ci/chroot.sh

# bind FILE-OR-FOLDER [FROM]: shows it at the same place in the chroot.
bind() {
    local from=${2:-$1}
    if [ -d "$from" ]; then
        mkdir -p "$root$1"
    else
        mkdir -p "$(dirname "$root$1")"
        : >>"$root$1"
    fi
    mount --rbind "$from" "$root$1"
}

# In the namespaces: mounts what the command needs, and runs it.
enter() {
    local sysroot=$1 nextest=$2 built
    shift 2
    # What one checkout has built is stale in another.
    built=$cache/target/$(pwd | sha256sum | cut -c1-16)
    mkdir -p "$built" target
    touch "$built"
    find "$cache/target" -mindepth 1 -maxdepth 1 -printf '%T@ %p\n' | sort -rn | tail -n +4 | cut -d' ' -f2- |
        xargs -r rm -rf
    mount --rbind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/run"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    bind "$CARGO_HOME"
    bind "$sysroot"
    [ -z "$nextest" ] || bind /usr/local/bin/cargo-nextest "$nextest"
    bind "$PWD"
    bind "$PWD/target" "$built"
    # Crates are there already; what the chroot compiles for itself stays in it.
    export CARGO_NET_OFFLINE=true CARGO_INSTALL_ROOT=/usr/local DEBIAN_FRONTEND=noninteractive
    export PATH=$sysroot/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    unset TMPDIR CARGO_TARGET_DIR
    # The shell stays the first process of its namespace: another one there would not heed Ctrl-C.
    # shellcheck disable=SC2016 # expanded in the chroot
    exec chroot "$root" /bin/bash -c 'trap "exit 130" INT TERM; cd "$1" && shift && .ci/deps.sh && "$@"' \
        debian13 "$PWD" "$@"
}

if [ "${1:-}" = --enter ]; then
    shift
    enter "$@"
fi
[ $# -gt 0 ] || die "no command"
[ "$(id -u)" = 0 ] || die "needs root, for a chroot"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"
sysroot=$(rustc --print sysroot)
[ "$sysroot" != /usr ] || die "needs a Rust of its own folder, as rustup installs it"
export CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} IRONWARP_CACHE=${cache%/*}
mkdir -p "$cache" "$CARGO_HOME"
# One command at a time: two would install packages into the same chroot.
exec 9>"$cache/lock"
flock 9
[ -d "$root" ] || make_root trixie "$root" || die "no chroot"
cargo fetch --locked --quiet
nextest=$(command -v cargo-nextest || true)
exec unshare --mount --propagation slave --pid --fork --kill-child -- .ci/debian13.sh --enter "$sysroot" "$nextest" "$@"
