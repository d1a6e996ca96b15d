#!/bin/bash
# Functions for scripts that run in a chroot of a Debian release: source this file.

# mirror: prints the address of the Debian archive that apt uses here.
mirror() {
    # shellcheck disable=SC2016 # apt expands it
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' 'Component: main' | head -n 1
}

# make_root SUITE FOLDER [PACKAGE,…]: installs a Debian release in FOLDER, with the proxy of this machine's apt; the
# log is FOLDER.log. DEBIAN_MIRROR overrides the archive.
make_root() {
    local suite=$1 root=$2 mirror proxy=
    mirror=${DEBIAN_MIRROR:-$(mirror)}
    if [ -z "$mirror" ]; then
        echo "apt knows no Debian archive here: set DEBIAN_MIRROR to the address of one" >&2
        return 1
    fi
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    [ -z "$proxy" ] || export http_proxy=$proxy
    echo "installing Debian $suite in $root" >&2
    rm -rf "$root.new"
    debootstrap --variant=minbase ${3:+--include="$3"} "$suite" "$root.new" "$mirror" >"$root.log" 2>&1 ||
        { tail -n 20 "$root.log" >&2; echo "debootstrap failed: $root.log" >&2; return 1; }
    [ -z "$proxy" ] || echo "Acquire::http::Proxy \"$proxy\";" >"$root.new/etc/apt/apt.conf.d/proxy"
    echo 'APT::Keep-Downloaded-Packages "false";' >"$root.new/etc/apt/apt.conf.d/keep-nothing"
    mv "$root.new" "$root"
}
