#!/usr/bin/env bash
# Prepares the guest of the NFS tests: the soft-iWARP guest with two users, Debian's mount and mount.nfs, files.c, and
# two test suites of file systems from crates.io, fsx and pjdfstest; and a tree of Linux's headers beside it.
#
# The result is cached outside the tree; the directory that holds `vmlinux`, `initramfs.gz`, `headers` and `versions`
# is the only line printed on standard output, everything else goes to standard error.
#
#   IRONWARP_CACHE    cache directory (default /var/cache/ironwarp)
set -euo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${IRONWARP_CACHE:-/var/cache/ironwarp}/nfs-guest
fsx=0.3.2
pjdfstest=0.2.2

# libacl1-dev is for pjdfstest; libtirpc-dev depends on the library of mount.nfs, whose package has another name in each
# release.
host_packages=(mount libacl1-dev libtirpc-dev libtirpc-common libkeyutils1 gcc libc6-dev cpio)
guest_kind=nfs
source "$here/../../../dataplane/tests/guest/debian.sh"

# Fills $suites: fsx and pjdfstest, built with the lock files that their authors publish.
prepare_suites() {
    suites=$cache/suites-fsx-$fsx-pjdfstest-$pjdfstest
    [ ! -x "$suites/bin/pjdfstest" ] || [ ! -x "$suites/bin/fsx" ] || return 0
    say "building fsx $fsx and pjdfstest $pjdfstest"
    # Outside the tree, so that its configuration of cargo does not count.
    (cd "$work" && env -u CARGO_TARGET_DIR cargo install --quiet --locked --root "$work/suites" \
        --target-dir "$work/target" "fsx@$fsx" "pjdfstest@$pjdfstest" >&2) || die "the suites did not build"
    rm -rf "$suites"
    mv "$work/suites" "$suites"
}

# Fills $headers: the headers of the guest's kernel that all architectures share, as Debian's package has them.
prepare_headers() {
    local common=linux-headers-${kernel_release%-amd64}-common
    headers=$cache/$common-$kernel_version
    [ ! -d "$headers" ] || return 0
    mkdir -p "$work/headers"
    fetch "$work/headers" "$common=$kernel_version"
    dpkg-deb -x "$work/headers/"*.deb "$work/headers/root"
    mv "$work/headers/root/usr/src/$common" "$headers"
}

users() { # ROOT: alice and bob share a group; pjdfstest wants nobody and tests
    cat >"$1/etc/passwd" <<'USERS'
root:x:0:0:root:/:/bin/sh
alice:x:1001:1001::/tmp:/bin/sh
bob:x:1002:1002::/tmp:/bin/sh
tests:x:1003:1003::/tmp:/bin/sh
nobody:x:65534:65534::/tmp:/bin/sh
USERS
    cat >"$1/etc/group" <<'GROUPS'
root:x:0:
alice:x:1001:
bob:x:1002:
tests:x:1003:
shared:x:2000:alice,bob
nogroup:x:65534:
GROUPS
}

build_overlay() { # BASE OUT
    local root=$work/overlay
    say "building the initramfs"
    mkdir -p "$root"/{etc,usr/bin,usr/sbin,opt}
    gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -o "$root/usr/bin/files" "$here/files.c"
    install -m 755 "$suites"/bin/{fsx,pjdfstest} "$root/usr/bin/"
    fetch "$work" nfs-common
    dpkg-deb -x "$work"/nfs-common_*.deb "$work/nfs-common"
    install -m 755 "$(find "$work/nfs-common" -name mount.nfs -type f)" "$root/usr/sbin/mount.nfs"
    # Not below /usr/bin, where it would replace busybox's mount for the other tests.
    install -m 755 "$(command -v mount)" "$root/opt/mount"
    local file
    for file in "$root"/usr/bin/* "$root/usr/sbin/mount.nfs" "$root/opt/mount"; do
        ! ldd "$file" | grep 'not found' >&2 || die "a library of $(basename "$file") is missing"
        ldd "$file" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p'
    done | sort -u | while read -r file; do
        install -D -m 755 "$file" "$root$file"
    done
    mkdir -p "$root/sbin"
    ln -s /usr/sbin/mount.nfs "$root/sbin/mount.nfs"
    ln -s /proc/self/mounts "$root/etc/mtab"
    cp /etc/netconfig "$root/etc/"
    printf '%s\n' 'tcp 6 TCP' 'udp 17 UDP' >"$root/etc/protocols"
    users "$root"
    (cd "$root" && find . -print0 | cpio --null --quiet -o -H newc -R 0:0 | gzip -1) >"$work/overlay.gz"
    cat "$1/initramfs.gz" "$work/overlay.gz" >"$2/initramfs.gz"
    cp "$1/vmlinux" "$2/vmlinux"
    ln -s "$headers" "$2/headers"
    {
        cat "$1/versions"
        basename "$headers"
        dpkg-deb -W "$work"/nfs-common_*.deb
        echo "fsx $fsx, pjdfstest $pjdfstest"
    } >"$2/versions"
}

main() {
    command -v apt-get dpkg-query >/dev/null || die "this needs a Debian machine (apt, dpkg)"
    local base image
    base=$("$here/../../../dataplane/tests/siw/prepare.sh") || die "no soft-iWARP guest"
    install_host_packages
    find_kernel
    mkdir -p "$cache" || die "cannot create $cache; set IRONWARP_CACHE"
    image=$cache/image-$({
        basename "$base"
        dpkg-query -W -f='${Package} ${Version}\n' "${host_packages[@]}" libc6
        cd "$here" && sha256sum prepare.sh files.c ../../../dataplane/tests/guest/debian.sh
    } | sha256sum | cut -c1-16)
    exec 9>"$cache/lock"
    flock 9
    if [ ! -e "$image/initramfs.gz" ]; then
        work=$(mktemp -d "$cache/work.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        mkdir "$work/out"
        prepare_suites
        prepare_headers
        build_overlay "$base" "$work/out"
        mv "$work/out" "$image"
        say "image ready in $image"
        prune image 3
    fi
    echo "$image"
}

main "$@"
