#!/bin/bash
# container.sh: unmodified programs without a daemon in containers of rootless podman, by the Containerfile and the
# commands of docs/programs.md. `make container`.
#
#   IRONWARP_CACHE   where the base image is kept (80 MB), default /var/cache/ironwarp
#
# Podman runs as a user who exists for this test only, without a capability, in namespaces of mounts, processes and
# network: with the test, containers, user and images are gone. The base image is this machine's release of Debian, with
# the packages that the Containerfile installs: the test needs no network once it is made.
source "$(dirname "$0")/lib.sh"
source .ci/chroot.sh
source /etc/os-release

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
cache=${IRONWARP_CACHE:-/var/cache/ironwarp}/container-$VERSION_CODENAME
packages=$(sed -n 's/^RUN apt-get update .* install -y --no-install-recommends //p' docs/programs.md | tr ' ' ,)
export BASE
BASE=$cache/base-$(cksum <<<"$packages" | cut -d ' ' -f 1).tar

# Makes the base image: a tar without what no program needs.
make_base() {
    rm -rf "$cache"/base-*.tar "$cache/root"
    make_root "$VERSION_CODENAME" "$cache/root" "$packages" || return 1
    tar --create --file "$BASE.new" --directory "$cache/root" --numeric-owner --exclude './dev/*' \
        --exclude './etc/apt/apt.conf.d/proxy' --exclude './var/cache/apt/*' --exclude './var/lib/apt/lists/*' \
        --exclude './usr/share/doc/*' --exclude './usr/share/locale/*' --exclude './usr/share/man/*' . || return 1
    rm -rf "$cache/root"
    mv "$BASE.new" "$BASE"
}

for program in podman crun newuidmap slirp4netns catatonit debootstrap; do
    command -v "$program" >/dev/null || { echo "$0: $program is missing: make container installs it" >&2; exit 1; }
done
lab_open ironwarp-container
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
[ -f "$BASE" ] || make_base || exit 1
exec 9>&-

export LAB HOMELAND="$LAB/home"
mkdir -p "$HOMELAND/ironwarp"
chmod 755 "$LAB"
cp -r "$RUN" "$(dirname "$RUN")/lib" "$HOMELAND/ironwarp/" || exit 1
in_ns unshare --mount --pid --fork --kill-child --mount-proc -- dataplane/tests/container-inside.sh
