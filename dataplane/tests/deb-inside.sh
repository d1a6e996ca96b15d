#!/bin/bash
# deb-inside.sh: the test of the Debian packages, in the chroot that deb.sh has made, without systemd. The packages are
# in /root/debs, and are installed when it ends.
set -euo pipefail
UNITS=/lib/systemd/system
begin=$SECONDS

step() { echo "ok    $* ($((SECONDS - begin)) s)"; begin=$SECONDS; }
fail() { echo "FAIL  $*"; exit 1; }
is() { [ "$2" = "$3" ] || fail "$1: $2, not $3"; }
quietly() { "$@" >/tmp/out 2>&1 || { tail -n 30 /tmp/out; fail "$*"; }; }
apt=(apt-get -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends)

# Lists every file with its kind; leaves out what apt and dpkg keep about themselves, and the copies of /etc/group and
# the like.
files() {
    find / -xdev \( -path /tmp -o -path /root -o -path /run -o -path /proc -o -path /sys -o -path /dev \
        -o -path /var/cache -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/log -o -path '/etc/*-' \) \
        -prune -o -printf '%y %p\n' | sort
}

files >/tmp/before
# The client alone: whatever it needs beside the C library would be missing.
quietly dpkg --install /root/debs/ironwarp-client_*.deb
needs=$(dpkg-query -W -f '${Depends}' ironwarp-client | tr ',' '\n' | sed 's/^ *//; s/ .*//' | grep -v '^libgcc-s1$')
is "packages that iwarpctl and iwarp-run need" "$needs" libc6
iwarpctl config check /dev/null 2>/dev/null && fail "an empty configuration is taken" || is "exit code" $? 1
traced=$(iwarp-run sh -c 'LD_TRACE_LOADED_OBJECTS=1 "$(command -v ibv_devices)"')
grep -q '=> /usr/lib/ironwarp/libibverbs.so.1' <<<"$traced" || fail "iwarp-run has no libraries: $traced"
# Some programs load the libraries by the names that the linker uses.
for library in libibverbs librdmacm; do
    is "$library.so" "$(realpath /usr/lib/ironwarp/$library.so)" /usr/lib/ironwarp/libibverbs.so.1
done
step "iwarpctl and iwarp-run need the C library alone"

quietly "${apt[@]}" install /root/debs/*.deb
for program in iwarpd iwarpctl iwarp-nfsd iwarp-run iwarp-bench; do
    is "$program" "$("$program" --version | cut -d' ' -f1)" "$program"
done
for file in /etc/iwarpd/iwarpd.toml /etc/iwarpd/nfsd.toml $UNITS/iwarpd.service $UNITS/iwarp-nfsd.service \
    /usr/share/doc/ironwarp/copyright /usr/share/doc/ironwarp{,-client,-bench}/THIRD-PARTY-LICENSES.gz; do
    grep -q . "$file" || fail "$file is not there"
done
for service in iwarpd iwarp-nfsd; do
    [ ! -e /etc/systemd/system/multi-user.target.wants/$service.service ] || fail "$service is enabled"
done
! dpkg -L ironwarp | grep sysctl || fail "the package has settings of the kernel"
for file in /etc/iwarpd/iwarpd.toml /usr/share/doc/ironwarp/examples/{tap,pci,af_packet,reference}.toml; do
    quietly iwarpctl config check "$file"
done
step "install; programs, units, configurations and licenses"
quietly python3 /root/installed-names.py ironwarp ironwarp-client ironwarp-dev ironwarp-bench
step "manual pages, documents and units name files that are installed"

quietly "${apt[@]}" remove ironwarp ironwarp-client ironwarp-dev ironwarp-bench
[ ! -e /usr/bin/iwarpd ] && [ -f /etc/iwarpd/iwarpd.toml ] || fail "remove takes programs, and leaves the configuration"
# ironwarp-dev has no configuration, and apt does not know it any more.
quietly "${apt[@]}" purge ironwarp ironwarp-client ironwarp-bench
files >/tmp/after
diff /tmp/before /tmp/after >/tmp/left || { head -n 30 /tmp/left; fail "the purge has left something behind"; }
step "remove, and purge: nothing is left"
quietly "${apt[@]}" install /root/debs/*.deb

# Packages of the next version, with the same content.
mkdir /root/next
for deb in /root/debs/*.deb; do
    version=$(dpkg-deb -f "$deb" Version)
    dpkg-deb --raw-extract "$deb" /tmp/raw
    sed -i "s/^Version: .*/&+next/; s/(= $version)/(= $version+next)/" /tmp/raw/DEBIAN/control
    dpkg-deb --build -Znone /tmp/raw /root/next >/dev/null
    rm -r /tmp/raw
done
