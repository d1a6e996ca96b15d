#!/bin/sh
# deps.sh [PACKAGE…]: installs the Debian packages that building and testing need, and these packages, unless installed.
# deps.sh --build [PACKAGE…]: those that building needs, and these.
# deps.sh --client [PACKAGE…]: those that building iwarp-run and its libraries needs, and these.
set -eu

installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q '^install ok installed'; }

# bindgen needs the library libclang and the compiler's own headers. libclang-dev adds 250 MiB of C++ headers to them.
clang=libclang-dev
if ! installed $clang; then
    version=$(apt-cache depends $clang 2>/dev/null | sed -n 's/.*Depends: libclang-\([0-9]*\)-dev$/\1/p')
    [ -z "$version" ] || clang="libclang1-$version libclang-common-$version-dev"
fi
building="libdpdk-dev $clang pkg-config gcc libc6-dev make"
if [ "${1:-}" = --build ]; then
    shift
    packages="$building $*"
elif [ "${1:-}" = --client ]; then
    shift
    packages="gcc libc6-dev make $*"
else
    packages="$building iproute2 nftables ethtool iputils-ping netcat-openbsd
 procps curl jq strace tmux tshark tcpdump qemu-system-x86 binutils cpio xz-utils busybox-static python3 librdmacm-dev
 libnfs-utils libibverbs-dev ibverbs-providers rdmacm-utils kmod valgrind debootstrap man-db $*"
fi

missing=""
for package in $packages; do
    installed "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "deps: these Debian packages (or their like) are missing:$missing" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "deps: run as root, or first: apt-get install -y$missing" >&2
    exit 1
fi
echo "deps: installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # a list of words is meant
apt-get install -y -qq --no-install-recommends $missing >/dev/null
