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

guest_kind=siw
source "$here/../guest/debian.sh"

# Modules the guest loads; their dependencies are found by modprobe.
guest_modules=(virtio_pci virtio_mmio virtio_net crc32c_generic crc32c_intel ib_uverbs rdma_ucm siw
    nfsv3 nfsv4 rpcrdma)

# Programs from the host's packages, copied with the libraries they are linked to; and the one library that
# glibc loads by itself when a thread ends.
guest_programs=(/usr/bin/rping /usr/bin/flock /lib/x86_64-linux-gnu/libgcc_s.so.1)

# open_peer_to_peer DIR: siw's peer-to-peer mode, and the RTR messages that it asks for then, are constants in its
# sources. Here they become module parameters, which the guest changes while siw runs. Nothing else of siw is changed.
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

# Fills $kernel_dir: vmlinux and the modules, with the order to load them in. Depends only on the kernel's
# version and on what this script does to it.
prepare_kernel() {
    kernel_dir=$cache/kernel-$kernel_version-$({
        echo "${guest_modules[@]}"
        declare -f open_peer_to_peer build_siw extract_vmlinux collect_modules prepare_kernel
    } | sha256sum | cut -c1-8)
    [ ! -e "$kernel_dir/order" ] || return 0
    need_root "unpacking Debian's kernel packages"
    local root=$work/kernel out=$work/kernel-out package
    local common=linux-headers-${kernel_release%-amd64}-common kbuild source_package
    [[ $kernel_release =~ ^([0-9]+\.[0-9]+) ]] || die "unexpected kernel release $kernel_release"
    source_package=linux-source-${BASH_REMATCH[1]}
    # Debian 12 names its kbuild package by the series, later releases by the whole version.
    kbuild=linux-kbuild-${kernel_release%-amd64}
    [ -n "$(apt-cache show --no-all-versions "$kbuild" 2>/dev/null)" ] || kbuild=linux-kbuild-${BASH_REMATCH[1]}
    # While Debian publishes an update, the tools may be newer than the signed image: those of the series build for it.
    ! apt-cache madison "$kbuild" | grep -qF "| $kernel_version |" || kbuild=$kbuild=$kernel_version
    mkdir -p "$root" "$out/modules" "$work/deb"
    fetch "$work/deb" "linux-image-$kernel_release=$kernel_version" \
        "linux-headers-$kernel_release=$kernel_version" "$common=$kernel_version" \
        "$kbuild" "$source_package=$kernel_version"
    for package in "$work"/deb/*.deb; do
        dpkg-deb -x "$package" "$root"
    done
    modules_in_lib "$root"
    build_siw "$root"
    mkdir -p "$root/lib/modules/$kernel_release/extra"
    strip --strip-debug -o "$root/lib/modules/$kernel_release/extra/siw.ko" "$root/build-siw/siw.ko"
    depmod -b "$root" "$kernel_release"
    collect_modules "$root" "$out" "${guest_modules[@]}"
    grep -q '^siw\.ko$' "$out/order" || die "siw.ko did not resolve"
    extract_vmlinux "$root/boot/vmlinuz-$kernel_release" "$out/vmlinux"
    rm -rf "$kernel_dir"
    mv "$out" "$kernel_dir"
    say "kernel $kernel_release ready: $(wc -l <"$kernel_dir/order") modules"
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
    install -m 755 "$here/../guest/serve.sh" "$root/serve"
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
        cd "$here" && sha256sum ../guest/{debian,serve}.sh prepare.sh guest-init.sh "${client_sources[@]}"
    } | sha256sum | cut -c1-16
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
