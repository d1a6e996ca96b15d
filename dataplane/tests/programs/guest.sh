# shellcheck shell=bash
# Files of a soft-iWARP guest with the programs of programs-siw.sh: the image that ../siw/prepare.sh makes, and behind
# it an archive of the programs that are installed here, with their libraries. Source it behind ../siw/guest.sh.

guest_kind=programs
source dataplane/tests/guest/debian.sh

# guest_with_programs OUT PROGRAM…: writes the archive to OUT. A program may be the path of a library. The kernel
# unpacks archives that follow each other.
guest_with_programs() {
    local out=$1 program paths=() root
    shift
    for program in "$@"; do
        # A library is not executable.
        if [[ $program == /* ]] || program=$(command -v "$program"); then paths+=("$program"); fi
    done
    root=$(mktemp -d "$out.XXXXXX") || return 1
    copy_with_libraries "$root" "${paths[@]}" || return 1
    # libfabric resolves it, if a server names no address.
    mkdir -p "$root/etc" && echo '127.0.0.1 localhost' >"$root/etc/hosts"
    cp "$GUEST_IMAGE/initramfs.gz" "$out"
    # An archive that is not compressed begins at a multiple of four bytes.
    truncate -s %4 "$out"
    (cd "$root" && find . -print0 | cpio --null --quiet -o -H newc -R 0:0) >>"$out"
    rm -rf "$root"
}
