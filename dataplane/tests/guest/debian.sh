# shellcheck shell=bash
# Library of bash functions that make guests for QEMU of Debian's packages. Source it.
#
#   guest_kind       the name of the guest in messages; set it before the first call
#   host_packages    the packages that install_host_packages installs
#   cache, work      the folder of what is kept, and that of one run

say() { printf '%s guest: %s\n' "$guest_kind" "$*" >&2; }
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

# modules_in_lib ROOT: Debian 13's kernel packages have the modules below /usr: links them to where depmod looks.
modules_in_lib() { [ -d "$1/lib/modules" ] || { mkdir -p "$1/lib" && ln -s ../usr/lib/modules "$1/lib/modules"; }; }

# collect_modules ROOT OUT MODULE…: copies the modules and those they depend on to OUT/modules, uncompressed; OUT/order
# lists them in the order in which they load.
collect_modules() {
    local root=$1 out=$2 module
    shift 2
    for module in "$@"; do
        modprobe -d "$root" -S "$kernel_release" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | awk '!seen[$0]++' >"$work/paths"
    xargs cp -t "$out/modules" <"$work/paths"
    find "$out/modules" -name '*.xz' -exec xz -d {} +
    sed 's#.*/##; s#\.xz$##' "$work/paths" >"$out/order"
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

# prune KIND N: removes all but the newest N-1 of a kind. Images hold links to their kernels.
prune() {
    find "$cache" -maxdepth 1 -name "$1-*" -printf '%T@ %p\n' | sort -rn | tail -n "+$2" |
        cut -d' ' -f2- | xargs -r rm -rf
}

# note_sums DIR: notes what every file in it holds. holds_its_sums DIR: true while that is so.
note_sums() { (cd "$1" && find . -type f ! -name sums -print0 | sort -z | xargs -0 sha256sum >sums); }
holds_its_sums() { [ -s "$1/sums" ] && (cd "$1" && sha256sum --check --quiet --strict sums >/dev/null 2>&1); }
