# shellcheck shell=bash
# The wire as tshark sees it, whose dissectors of iWARP, RPC over RDMA and NFS are another implementation. Source it
# behind lab.sh.
#
#   WIRE_KEEP   folder that the captures are copied to (default: none)

# captured FILE COMMAND…: captures the connections to the server while a command runs.
captured() {
    local file=$LAB/$1 pid status
    shift
    "$IWARPCTL" --socket "$SOCKET" capture --filter 'tcp port 20049' "$file" >"$LAB/capture.out" 2>&1 &
    pid=$!
    becomes yes 20 begun "$file" || return 1
    "$@"
    status=$?
    sleep 1
    kill "$pid"
    wait "$pid" 2>/dev/null
    cat "$LAB/capture.out"
    return "$status"
}
begun() { [ -s "$1" ] && echo yes; }

# Every kind of message: short and long calls and replies, data in chunks and inline, errors of NFS.
traffic() { # VERSION
    mount_version "$1" && guest 300 "cd /mnt && dd if=big of=/dev/null bs=256k count=8 iflag=direct &&
        dd if=big of=w bs=256k count=8 oflag=direct && echo short >s && cat s && ln -s \$(seq -s / 900) l &&
        readlink l && mkdir d && (cd d && for i in \$(seq 300); do : >a_file_with_a_rather_long_name_\$i; done) &&
        $drop && [ \$(ls -l d | grep -c rather) = 300 ] && ! cat none && rm -r d w s l" && unmount
}

part_wire() {
    local version
    for version in $VERSIONS; do
        check "NFS $version: traffic is captured" captured "wire-$version.pcapng" traffic "$version"
        [ -z "${WIRE_KEEP:-}" ] || cp "$LAB/wire-$version.pcapng" "$WIRE_KEEP"
        check "NFS $version: tshark finds no violation, and every kind of message" \
            python3 apps/tests/nfs/wire.py "$LAB/wire-$version.pcapng" 16
        sed 's/^/      /' "$LAB/check.out"
    done
}
