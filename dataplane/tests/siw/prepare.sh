#!/usr/bin/env bash
# Prepare the soft-iWARP guest: a Debian kernel, siw.ko built from Debian's linux-source, and an
# initramfs with rdma-core and our librdmacm client and server. Everything comes from Debian packages.
#
# The result is cached outside the tree; the directory that holds `vmlinux` and `initramfs.gz` is the
# only line printed on standard output, everything else goes to standard error.
#
#   IRONWARP_CACHE    cache directory (default /var/cache/ironwarp)
set -euo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${IRONWARP_CACHE:-/var/cache/ironwarp}/siw-guest
client_sources=(region.h region.c conn.h conn.c bulk.h bulk.c violations.h violations.c cycle.h cycle.c client.c
    server.c turns.h turns.c peer.c)

# Packages needed on the host. The -dev packages depend on shared libraries, whose packages have other names in each
# release: those for the guest, and those that the kernel's build tools load.
host_packages=(qemu-system-x86 busybox-static cpio kmod gcc libc6-dev binutils make xz-utils zstd libelf-dev libssl-dev
    ibverbs-providers libibverbs-dev librdmacm-dev rdmacm-utils iproute2 nftables jq)

# Modules the guest loads; their dependencies are found by modprobe.
guest_modules=(virtio_pci virtio_mmio virtio_net crc32c_generic crc32c_intel ib_uverbs rdma_ucm siw)

# Programs from the host's packages, copied with the libraries they are linked to; and the one library that
# glibc loads by itself when a thread ends.
guest_programs=(/usr/bin/rping /lib/x86_64-linux-gnu/libgcc_s.so.1)

say() { printf 'siw guest: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

apt_updated=
apt_update() {
    [ -z "$apt_updated" ] || return 1
    apt_updated=yes
    say "apt-get update"
    apt-get -qq update >&2 || die "apt-get update failed: is the network reachable?"
}

need_root() { [ "$(id -u)" = 0 ] || die "$* needs root"; }

install_host_packages() {
    local installed missing=() package
    installed=" $(dpkg-query -W -f='${binary:Package} ${db:Status-Status} ' "${host_packages[@]}" 2>/dev/null || true)"
    for package in "${host_packages[@]}"; do
        [[ $installed =~ " $package"(:amd64)?" installed " ]] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    need_root "installing ${missing[*]}"
    say "apt-get install ${missing[*]}"
    apt-get -qq -y --no-install-recommends install "${missing[@]}" >&2 && return 0
    apt_update && apt-get -qq -y --no-install-recommends install "${missing[@]}" >&2 ||
        die "could not install: ${missing[*]}"
}

# Sets kernel_version (Debian's) and kernel_release (uname -r) of the kernel that apt would install.
find_kernel() {
    local record
    record=$(apt-cache show --no-all-versions linux-image-amd64 2>/dev/null) || true
    if [ -z "$record" ]; then
        apt_update
        record=$(apt-cache show --no-all-versions linux-image-amd64) ||
            die "apt knows no linux-image-amd64: this needs a Debian amd64 machine"
    fi
    kernel_version=$(sed -n 's/^Version: //p' <<<"$record")
    kernel_release=$(sed -n 's/^Depends: linux-image-\([^ ]*\) .*/\1/p' <<<"$record")
    [ -n "$kernel_version" ] && [ -n "$kernel_release" ] || die "linux-image-amd64 names no kernel package"
}

# fetch DIR PACKAGE=VERSION...: downloads the packages into DIR without installing them.
fetch() {
    local dir=$1
    shift
    say "downloading $*"
    (cd "$dir" && apt-get -qq -o APT::Sandbox::User=root download "$@" >&2) && return 0
    apt_update && (cd "$dir" && apt-get -qq -o APT::Sandbox::User=root download "$@" >&2) ||
        die "could not download $*"
}

# open_peer_to_peer DIR: turns siw's peer-to-peer mode, and the RTR messages that it then requests, from constants into
# module parameters, which the guest changes while siw runs. Nothing else of siw is changed.
open_peer_to_peer() {
    sed -i 's/^const bool peer_to_peer;/bool peer_to_peer;\nmodule_param(peer_to_peer, bool, 0644);/' "$1/siw_main.c"
    sed -i 's/^extern const bool peer_to_peer;/extern bool peer_to_peer;/' "$1/siw.h"
    sed -i -e 's/^#include "siw.h"/#include <linux\/module.h>\n&/' \
        -e 's/^static __be16 rtr_type = .*;/&\nmodule_param(rtr_type, ushort, 0644);/' "$1/siw_cm.c"
    grep -q '^module_param(peer_to_peer' "$1/siw_main.c" && grep -q '^module_param(rtr_type' "$1/siw_cm.c" &&
        ! grep -q 'const bool peer_to_peer' "$1/siw.h" || die "siw's sources have changed: no peer-to-peer mode found"
}

# build_siw ROOT: compiles siw from the extracted linux-source against the extracted linux-headers.
build_siw() {
    local root=$1 tarball headers build=$1/build-siw config
    headers=$root/usr/src/linux-headers-$kernel_release
    tarball=$(find "$root/usr/src" -maxdepth 1 -name 'linux-source-*.tar.xz' -print -quit)
    [ -n "$tarball" ] || die "the source package holds no archive"
    say "unpacking drivers/infiniband/sw/siw from $(basename "$tarball")"
    mkdir -p "$build"
    tar -C "$build" --use-compress-program='xz -dT0' --strip-components=5 --wildcards \
        -xf "$tarball" '*/drivers/infiniband/sw/siw/*' || die "no siw in $tarball"
    open_peer_to_peer "$build"
    # The headers' makefiles name /usr/src and /usr/lib: point them into the extracted tree.
    find "$root"/usr/src/linux-headers-* -maxdepth 1 -name Makefile -exec \
        sed -i "s#\([ =]\)/usr/src/linux-headers#\1$root/usr/src/linux-headers#g" {} +
    config=$headers/.config
    grep -q '^CONFIG_INFINIBAND=[my]' "$config" || die "kernel $kernel_release has no InfiniBand core"
    say "building siw.ko for $kernel_release"
    # Without type information for BPF, which only pahole could make and nothing in the guest reads.
    make -C "$headers" -j"$(nproc)" CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= M="$build" modules \
        >"$build/make.log" 2>&1 || {
        tail -n 40 "$build/make.log" >&2
        die "siw did not compile against linux-headers-$kernel_release"
    }
}

# extract_vmlinux BZIMAGE OUT: the ELF kernel, which QEMU starts through its PVH entry. Decompressing
# it here saves seconds of emulated decompression at every boot.
extract_vmlinux() {
    local decompress offset
    # The magic numbers of xz (Debian 12) and zstd (Debian 13). What follows the kernel in the image is no error.
    for decompress in $'\xfd7zXZ:xz -dc --single-stream' $'(\xb5/\xfd:zstd -dc'; do
        while IFS=: read -r offset _; do
            tail -c "+$((offset + 1))" "$1" | ${decompress#*:} >"$2" 2>/dev/null || true
            readelf -h "$2" >/dev/null 2>&1 && return 0
        done < <(LC_ALL=C grep -aboF "${decompress%%:*}" "$1")
    done
    die "no kernel compressed by xz or zstd in $1"
}

# Fills $kernel_dir: vmlinux and the modules, with the order to load them in. Depends only on the kernel's
# version and on what this script does to it.
prepare_kernel() {
    kernel_dir=$cache/kernel-$kernel_version-$({
        echo "${guest_modules[@]}"
        declare -f open_peer_to_peer build_siw extract_vmlinux prepare_kernel
    } | sha256sum | cut -c1-8)
    [ ! -e "$kernel_dir/order" ] || return 0
    need_root "unpacking Debian's kernel packages"
    local root=$work/kernel out=$work/kernel-out package module
    local common=linux-headers-${kernel_release%-amd64}-common kbuild source_package
    [[ $kernel_release =~ ^([0-9]+\.[0-9]+) ]] || die "unexpected kernel release $kernel_release"
    source_package=linux-source-${BASH_REMATCH[1]}
    # Debian 12 names its kbuild package by the series, later releases by the whole version.
    kbuild=linux-kbuild-${kernel_release%-amd64}
    [ -n "$(apt-cache show --no-all-versions "$kbuild" 2>/dev/null)" ] || kbuild=linux-kbuild-${BASH_REMATCH[1]}
    mkdir -p "$root" "$out/modules" "$work/deb"
    fetch "$work/deb" "linux-image-$kernel_release=$kernel_version" \
        "linux-headers-$kernel_release=$kernel_version" "$common=$kernel_version" \
        "$kbuild=$kernel_version" "$source_package=$kernel_version"
    for package in "$work"/deb/*.deb; do
        dpkg-deb -x "$package" "$root"
    done
    # Debian 13's packages have the modules below /usr, and compress them.
    [ -d "$root/lib/modules" ] || { mkdir -p "$root/lib" && ln -s ../usr/lib/modules "$root/lib/modules"; }
    build_siw "$root"
    mkdir -p "$root/lib/modules/$kernel_release/extra"
    strip --strip-debug -o "$root/lib/modules/$kernel_release/extra/siw.ko" "$root/build-siw/siw.ko"
    depmod -b "$root" "$kernel_release"
    for module in "${guest_modules[@]}"; do
        modprobe -d "$root" -S "$kernel_release" --show-depends "$module" |
            sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | awk '!seen[$0]++' >"$work/paths"
    grep -q '/siw\.ko$' "$work/paths" || die "siw.ko did not resolve"
    xargs cp -t "$out/modules" <"$work/paths"
    find "$out/modules" -name '*.xz' -exec xz -d {} +
    extract_vmlinux "$root/boot/vmlinuz-$kernel_release" "$out/vmlinux"
    sed 's#.*/##; s#\.xz$##' "$work/paths" >"$out/order"
    rm -rf "$kernel_dir"
    mv "$out" "$kernel_dir"
    say "kernel $kernel_release ready: $(wc -l <"$kernel_dir/order") modules"
}

# copy_with_libraries ROOT PROGRAM...: each file to the same path under ROOT, with what ldd names.
copy_with_libraries() {
    local root=$1 file
    shift
    for file in "$@"; do
        [ -e "$file" ] || die "$file is missing on the host"
        echo "$file"
        ldd "$file" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^[[:space:]]*\(\/[^ ]*\).*/\1/p'
    done | sort -u | while read -r file; do
        install -D -m 755 "$file" "$root$file"
    done
}

compile_programs() {
    local out=$1 flags=(-std=gnu11 -O2 -g -Wall -Wextra -Werror)
    gcc "${flags[@]}" -o "$out/iwclient" "$here"/{client,cycle,violations,bulk,conn,region}.c \
        -lrdmacm -libverbs -lpthread || die "the client did not compile"
    gcc "${flags[@]}" -o "$out/iwserver" "$here"/{server,region}.c \
        -lrdmacm -libverbs -lpthread || die "the server did not compile"
    gcc "${flags[@]}" -o "$out/iwpeer" "$here"/{peer,turns,conn,region}.c \
        -lrdmacm -libverbs -lpthread || die "the peer did not compile"
}

build_initramfs() {
    local root=$work/initramfs provider rdma_tool
    say "building the initramfs"
    mkdir -p "$root"/{bin,sbin,dev,proc,sys,run,tmp,etc,lib,usr/bin,modules}
    install -m 755 /bin/busybox "$root/bin/busybox"
    install -m 755 "$here/guest-init.sh" "$root/init"
    compile_programs "$root/usr/bin"
    rdma_tool=$(command -v rdma) || die "iproute2 has no rdma tool"
    provider=$(dpkg-query -L ibverbs-providers | grep '/libsiw-rdmav[0-9]*\.so$') ||
        die "ibverbs-providers has no siw provider"
    # ldd wants the real paths: /sbin and /lib may be links into /usr.
    copy_with_libraries "$root" "$rdma_tool" "$provider" "${guest_programs[@]}"
    ldd "$root"/usr/bin/iw{client,server,peer} |
        sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u | while read -r library; do
        install -D -m 755 "$library" "$root$library"
    done
    install -D -m 644 /etc/libibverbs.d/siw.driver "$root/etc/libibverbs.d/siw.driver"
    cp "$kernel_dir/modules/"* "$root/modules/"
    cp "$kernel_dir/order" "$root/modules/order"
    mkdir -p "$work/out"
    (cd "$root" && find . -print0 | cpio --null --quiet -o -H newc -R 0:0 | gzip -1) \
        >"$work/out/initramfs.gz"
    ln "$kernel_dir/vmlinux" "$work/out/vmlinux"
    printf 'kernel %s (%s)\n' "$kernel_release" "$kernel_version" >"$work/out/versions"
    dpkg-query -W busybox-static ibverbs-providers librdmacm-dev iproute2 >>"$work/out/versions"
}

# The image's key: kernel version, versions of what is copied from the host, our sources.
image_key() {
    {
        echo "$kernel_version"
        dpkg-query -W -f='${Package} ${Version}\n' busybox-static ibverbs-providers libibverbs-dev \
            librdmacm-dev rdmacm-utils iproute2 libc6
        cd "$here" && sha256sum prepare.sh guest-init.sh "${client_sources[@]}"
    } | sha256sum | cut -c1-16
}

# prune KIND N: removes all but the newest N-1 of a kind. Images hold links to their kernels.
prune() {
    find "$cache" -maxdepth 1 -name "$1-*" -printf '%T@ %p\n' | sort -rn | tail -n "+$2" |
        cut -d' ' -f2- | xargs -r rm -rf
}

main() {
    [ "$(uname -m)" = x86_64 ] || die "the guest is x86_64"
    command -v apt-get dpkg-query >/dev/null || die "this needs a Debian machine (apt, dpkg)"
    install_host_packages
    find_kernel
    mkdir -p "$cache" || die "cannot create $cache; set IRONWARP_CACHE"
    local image
    image=$cache/image-$(image_key)
    exec 9>"$cache/lock"
    flock 9
    if [ ! -e "$image/initramfs.gz" ]; then
        work=$(mktemp -d "$cache/work.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        prepare_kernel
        build_initramfs
        rm -rf "$image"
        mv "$work/out" "$image"
        say "image ready: $(du -sh "$image" | cut -f1) in $image"
        # Superseded images go; the newest few stay for other checkouts.
        prune image 5
        prune kernel 3
    fi
    echo "$image"
}

main "$@"
