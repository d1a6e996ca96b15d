#!/usr/bin/env bash
# Prepare the guest with an emulated card: a Debian kernel with vfio-pci and uio_pci_generic, an initramfs with busybox
# and DPDK's libraries and drivers of this machine, and a QEMU that has igb. Everything comes from Debian packages.
#
# The result is cached outside the tree; the directory that holds `vmlinux`, `base.cpio`, `cpio` and `qemu` is the only
# line printed on standard output, everything else goes to standard error. `qemu` holds the path of a QEMU of release 8
# or newer; it is empty where there is none, and then `no-igb` says why.
#
#   IRONWARP_CACHE    cache directory (default /var/cache/ironwarp)
set -euo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${IRONWARP_CACHE:-/var/cache/ironwarp}/pci-guest

host_packages=(qemu-system-x86 busybox-static cpio kmod binutils xz-utils zstd libdpdk-dev iproute2 jq python3)

guest_kind=pci
source "$here/../guest/debian.sh"

# What the guest's kernel drives: the control line, the interface beside the card (with VLANs), and the two ways to hand
# a card to DPDK. No driver of the cards themselves.
guest_modules=(virtio_pci virtio_console virtio_net 8021q vfio_iommu_type1 vfio-pci uio_pci_generic)

# DPDK's drivers that the guest gets: the cards', and what every program of DPDK needs.
drivers=(net_e1000 net_virtio net_vmxnet3 mempool_ring bus_pci bus_vdev)

# The release from which on QEMU has igb.
igb_since=8

# Fills $kernel_dir: vmlinux and the modules, with the order to load them in.
prepare_kernel() {
    kernel_dir=$cache/kernel-$kernel_version-$({
        echo "${guest_modules[@]}"
        declare -f extract_vmlinux collect_modules prepare_kernel
    } | sha256sum | cut -c1-8)
    ! holds_its_sums "$kernel_dir" || return 0
    need_root "unpacking Debian's kernel package"
    local root=$work/kernel out=$work/kernel-out
    mkdir -p "$root" "$out/modules" "$work/deb"
    fetch "$work/deb" "linux-image-$kernel_release=$kernel_version"
    dpkg-deb -x "$work"/deb/linux-image-*.deb "$root"
    modules_in_lib "$root"
    depmod -b "$root" "$kernel_release"
    collect_modules "$root" "$out" "${guest_modules[@]}"
    extract_vmlinux "$root/boot/vmlinuz-$kernel_release" "$out/vmlinux"
    note_sums "$out"
    rm -rf "$kernel_dir"
    mv "$out" "$kernel_dir"
    say "kernel $kernel_release ready: $(wc -l <"$kernel_dir/order") modules"
}

major() { "$1" --version | sed -n 's/.*version \([0-9]*\).*/\1/p;q'; }

# apt_backports COMMAND…: apt-get with the backports of this release alone, beside the machine's own sources.
apt_backports() {
    apt-get -qq -o Dir::Etc::SourceList="$work/backports.list" -o Dir::Etc::SourceParts=- \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/apt" -o APT::Sandbox::User=root "$@" >&2
}

# Fetches QEMU from the backports into $cache/qemu-VERSION and sets $qemu; answers 1, and says why, if it cannot.
fetch_qemu() {
    local archive codename package
    archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 'Component: main' |
        head -n 1)
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mkdir -p "$work"/lists/partial "$work"/apt/archives/partial "$work/qemu-deb" "$work/qemu"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $codename-backports main" \
        >"$work/backports.list"
    say "downloading QEMU from $codename-backports"
    apt_backports update || { no_igb="apt-get update of $codename-backports failed"; return 1; }
    (cd "$work/qemu-deb" && apt_backports download qemu-system-x86 qemu-system-common qemu-system-data seabios) ||
        { no_igb="$codename-backports has no QEMU that could be downloaded"; return 1; }
    for package in "$work"/qemu-deb/*.deb; do
        dpkg-deb -x "$package" "$work/qemu"
    done
    qemu=$cache/qemu-$(dpkg-deb -f "$work"/qemu-deb/qemu-system-x86_*.deb Version | tr ':~+' '---')
    ldd "$work/qemu/usr/bin/qemu-system-x86_64" | grep -q 'not found' &&
        { no_igb="QEMU of $codename-backports lacks libraries here"; return 1; }
    [ "$(major "$work/qemu/usr/bin/qemu-system-x86_64")" -ge $igb_since ] ||
        { no_igb="QEMU of $codename-backports is older than $igb_since"; return 1; }
    note_sums "$work/qemu"
    rm -rf "$qemu"
    mv "$work/qemu" "$qemu"
}

# Sets $qemu to a folder with usr/bin and usr/share/qemu of a QEMU that has igb; or $no_igb to why there is none.
find_qemu() {
    no_igb=
    if [ "$(major qemu-system-x86_64)" -ge $igb_since ]; then
        qemu=/
        return
    fi
    for qemu in $(find "$cache" -maxdepth 1 -name 'qemu-*' | sort -rV); do
        ! holds_its_sums "$qemu" || return 0
    done
    fetch_qemu || { say "no igb: $no_igb"; qemu=; }
}

# One folder for all libraries, and one for DPDK's drivers, which EAL looks into: a driver that lay in both would be
# loaded twice. Both have the links that EAL and the dynamic linker follow, librte_X.so.23 beside librte_X.so.23.0.
build_base() {
    local root=$work/initramfs libraries_of dpdk driver library libraries=()
    say "building the initramfs"
    libraries_of=$(pkg-config --variable=libdir libdpdk)
    dpdk=$(echo "$libraries_of"/dpdk/pmds-*)
    mkdir -p "$root"/{dev/hugepages,proc,sys,run,tmp,etc,usr/{bin,lib,lib64,sbin},modules,root}
    ln -s usr/bin usr/lib usr/lib64 usr/sbin "$root"
    mkdir "$root/var" && ln -s ../run "$root/var/run"
    install -m 755 /bin/busybox "$root/bin/busybox"
    install -m 755 "$here/guest-init.sh" "$root/init"
    install -m 755 "$here/../guest/serve.sh" "$root/serve"
    cp "$kernel_dir/modules/"* "$kernel_dir/order" "$root/modules/"
    for driver in "${drivers[@]}"; do
        libraries+=("$dpdk/librte_$driver".so.*.*)
    done
    libraries+=("$libraries_of"/librte_{ethdev,mbuf,mempool,ring,eal,net_ring}.so.*.*)
    libraries+=(/lib/x86_64-linux-gnu/libgcc_s.so.1)
    copy_with_libraries "$root" "${libraries[@]}"
    for library in "$root$libraries_of"/librte_*.so.*.*; do
        ln -sf "$(basename "$library")" "${library%.*}"
    done
    for library in "$root$dpdk"/*.so.*.*; do
        driver=$(basename "$library")
        ln -sf "$driver" "${library%.*}"
        ln -sf "dpdk/$(basename "$dpdk")/$driver" "$root$libraries_of/$driver"
        ln -sf "$driver" "$root$libraries_of/${driver%.*}"
    done
    (cd "$root" && find . -print0 | cpio --null --quiet -o -H newc -R 0:0) >"$work/out/base.cpio"
}

# The image's key: kernel version, versions of what is copied from the host, our sources.
image_key() {
    {
        echo "$kernel_version"
        dpkg-query -W -f='${Package} ${Version}\n' busybox-static libdpdk-dev libc6 qemu-system-x86 'librte-*' \
            2>/dev/null
        cd "$here" && sha256sum ../guest/{debian,serve}.sh prepare.sh guest-init.sh
    } | sha256sum | cut -c1-16
}

build_image() {
    local image=$1
    work=$(mktemp -d "$cache/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/out"
    prepare_kernel
    find_qemu
    build_base
    ln "$kernel_dir/vmlinux" "$work/out/vmlinux"
    echo "$qemu" >"$work/out/qemu"
    echo "$no_igb" >"$work/out/no-igb"
    printf 'kernel %s (%s), DPDK %s\n' "$kernel_release" "$kernel_version" "$(pkg-config --modversion libdpdk)" \
        >"$work/out/versions"
    note_sums "$work/out"
    rm -rf "$image"
    # Without a QEMU for igb the next run is to look again.
    if [ -z "$qemu" ]; then
        image=$image-without-igb
        rm -rf "$image"
    fi
    mv "$work/out" "$image"
    say "image ready: $(du -sh "$image" | cut -f1) in $image"
    prune image 5
    prune kernel 3
    prune qemu 2
    echo "$image"
}

# complete IMAGE: nothing of it, or of the QEMU that it names, is missing or changed.
complete() {
    local qemu
    holds_its_sums "$1" && qemu=$(cat "$1/qemu") && { [ "$qemu" = / ] || holds_its_sums "$qemu"; }
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
    if complete "$image"; then echo "$image"; else build_image "$image"; fi
}

main "$@"
