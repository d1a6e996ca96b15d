# shellcheck shell=bash
# Cases of a client that has mounted regions of the daemon, in whatever version. Source it behind lab.sh, files.sh,
# clients.sh and dataplane/tests/siw/loss.sh. The first argument of most functions is the prefix of their checks.
#
#   NFS_REGION_MIB   size of a region in MiB, not a multiple of 3 (default 8)

REGION_BYTES=$((${NFS_REGION_MIB:-8} << 20))

register() { # NAME RIGHTS
    ctl region register "$1" --size $REGION_BYTES --access "$2" >/dev/null || exit 1; }
put_region() { remote put "$2" "10.77.0.2:7400/$1"; } # NAME FILE: a peer writes a region
# in_region NAME FILE [GUEST]: the region has the bytes of a file of the guest.
in_region() {
    local there here
    there=$(guest_run "${3:-nfs}" "sha256sum <$2" $((60 * PATIENCE))) &&
        remote get "10.77.0.2:7400/$1" "$LAB/region" --length $REGION_BYTES >/dev/null || return 1
    here=$(sha256sum <"$LAB/region")
    echo "the region: $here" && echo "the guest: $there" && [ "$here" = "$there" ]
}
random_region() { # NAME: a peer fills a region with other bytes
    head -c $REGION_BYTES /dev/urandom >"$LAB/random" && put_region "$1" "$LAB/random"
}

# The counters of payload, in bytes: read and written without a copy, then those with.
payload() {
    nfsctl stats --json | jq -r '[.groups[] | select(.group == "payload").counters[] | {(.name): .value}] | add |
        "\(.read_direct) \(.write_direct) \(.read_copied) \(.write_copied)"'
}
# moves READ WRITTEN COMMAND…: the command makes the server move these bytes, and none of them through a buffer.
moves() {
    local read=$1 written=$2 was
    read -r -a was < <(payload)
    shift 2
    "$@" && becomes "$((was[0] + read)) $((was[1] + written)) ${was[2]} ${was[3]}" 5 payload
}
# caches READ WRITTEN COMMAND…: the same for a command that uses the page cache, which may move bytes again.
caches() {
    local read=$1 written=$2 was now
    read -r -a was < <(payload)
    shift 2
    "$@" || return 1
    read -r -a now < <(payload)
    echo "before: ${was[*]}; after: ${now[*]}"
    [ "$((was[0] + read))" -le "${now[0]}" ] && [ "$((was[1] + written))" -le "${now[1]}" ] &&
        [ "${was[*]:2}" = "${now[*]:2}" ]
}

region_transfers() { # NAME
    check "$1: a payload is made in the guest" guest 60 "head -c $REGION_BYTES /dev/urandom >/tmp/payload"
    check "$1: dd with O_DIRECT writes the region, without a copy" moves 0 $REGION_BYTES guest 300 \
        'dd if=/tmp/payload of=/mnt/lab bs=1M oflag=direct conv=notrunc'
    check "$1: a peer reads these bytes" in_region lab /tmp/payload
    check "$1: dd with O_DIRECT reads the region, without a copy" moves $REGION_BYTES 0 guest 300 \
        'dd if=/mnt/lab of=/tmp/read bs=1M iflag=direct'
    check "$1: the bytes are the same" guest 60 'cmp /tmp/payload /tmp/read'
    check "$1: a peer writes other bytes" random_region lab
    check "$1: cp reads them from the region, without a copy" caches $REGION_BYTES 0 guest 300 \
        "$drop; cp /mnt/lab /tmp/read"
    check "$1: the bytes are the same" in_region lab /tmp/read
    check "$1: dd through the page cache writes the region, without a copy" caches 0 $REGION_BYTES guest 300 \
        'dd if=/tmp/payload of=/mnt/lab bs=1M conv=notrunc,fsync'
    check "$1: a peer reads these bytes" in_region lab /tmp/payload
}

# A client that opens a file sees what others have written before (close-to-open consistency), and the reverse.
region_caches() {
    check "$1: the client has the region in its cache" guest 60 'cat /mnt/lab /mnt/lab >/dev/null'
    check "$1: a peer writes other bytes" random_region lab
    check "$1: who opens the file again reads them" in_region lab /mnt/lab
    check "$1: the region is read in a mapping" guest 60 'files map-copy /mnt/lab /tmp/mapped'
    check "$1: the bytes are the same" in_region lab /tmp/mapped
    check "$1: bytes are changed in a shared mapping" guest 60 \
        'files map-flip /mnt/lab 4099 && files map-flip /tmp/mapped 4099'
    check "$1: a peer sees these changes, and no others" in_region lab /tmp/mapped
    check "$1: a word is written amid the region" guest 60 \
        'for file in /mnt/lab /tmp/mapped; do echo word | dd of=$file bs=5 seek=1000 conv=notrunc || break; done'
    check "$1: a peer sees it, and nothing else" in_region lab /tmp/mapped
}

refuses() { # ERROR COMMAND: the guest's command fails, and says so
    guest 60 "($2) 2>&1" >"$LAB/refused" && { cat "$LAB/refused" && echo "it succeeds" && return 1; }
    cat "$LAB/refused"
    grep -q "$1" "$LAB/refused"
}
region_refusals() {
    local denied='Permission denied' not_permitted='Operation not permitted' full='No space left on device'
    local blocks=$((REGION_BYTES / 4096))
    check "$1: sizes and rights are those of the regions" test "$(guest 30 \
        'cd /mnt && stat -c "%n %s %a %u" *')" = "fixed $REGION_BYTES 444 0
held $REGION_BYTES 666 0
lab $REGION_BYTES 666 0
secret $REGION_BYTES 222 0"
    check "$1: ls -l shows them" guest 30 "[ \$(ls -l /mnt | grep -c '^-.* $REGION_BYTES ') = 4 ]"
    check "$1: df: they take all of the space" guest 30 \
        "[ \"\$(stat -f -c '%S %b %f' /mnt | awk '{print \$1 * \$2, \$3}')\" = '$((4 * REGION_BYTES)) 0' ]"
    check "$1: a region without remote-write is not written" refuses "$denied" \
        'dd if=/tmp/payload of=/mnt/fixed bs=4096 count=1 conv=notrunc'
    check "$1: a region without remote-read is not read" refuses "$denied" 'cat /mnt/secret'
    check "$1: nothing is created" refuses "$denied" ': >/mnt/new'
    check "$1: no directory either" refuses "$denied" 'mkdir /mnt/new'
    check "$1: no link either" refuses "$denied" 'ln -s lab /mnt/new'
    check "$1: of neither kind" refuses "$denied" 'ln /mnt/lab /mnt/new'
    check "$1: nothing is removed" refuses "$denied" 'rm -f /mnt/lab'
    check "$1: nothing is renamed" refuses "$denied" 'mv /mnt/lab /mnt/new'
    check "$1: nothing is truncated by an open" refuses "$not_permitted" ': >/mnt/lab'
    check "$1: nor by its path" refuses "$not_permitted" 'truncate -s 100 /mnt/lab'
    check "$1: nothing grows" refuses "$full" "truncate -s $((REGION_BYTES + 1)) /mnt/lab"
    check "$1: rights stay" refuses "$not_permitted" 'chmod 600 /mnt/lab'
    check "$1: so does the owner" refuses "$not_permitted" 'chown alice /mnt/lab'
    check "$1: cp onto a region truncates it first, and fails" refuses "$not_permitted" 'cp /tmp/payload /mnt/lab'
    check "$1: no space behind the end, with O_DIRECT" refuses "$full" \
        "dd if=/tmp/payload of=/mnt/lab bs=4096 count=1 seek=$blocks oflag=direct conv=notrunc"
    check "$1: nor through the page cache" refuses "$full" \
        "dd if=/tmp/payload of=/mnt/lab bs=4096 count=1 seek=$blocks conv=notrunc,fsync"
    local across="bs=12288 count=1 seek=$((REGION_BYTES / 12288)) conv=notrunc"
    check "$1: a write across the end is cut there" refuses "$full" \
        "dd if=/tmp/payload of=/mnt/lab $across oflag=direct"
    check "$1: what lies before the end is written" guest 30 \
        "dd if=/tmp/payload of=/tmp/mapped $across && truncate -s $REGION_BYTES /tmp/mapped"
    check "$1: and nothing else" in_region lab /tmp/mapped
    check "$1: a read behind the end is empty" guest 30 \
        "[ \$(dd if=/mnt/lab bs=4096 skip=$blocks iflag=direct | wc -c) = 0 ]"
    check "$1: the size is what it was" guest 30 "[ \$(stat -c %s /mnt/lab) = $REGION_BYTES ]"
}

content() { nfsctl exports --json | jq -r '.[] | select(.path == "/regions").content'; }
# A region goes while a file of it is open, and another one of its name comes.
region_stale() {
    register passing remote-read,remote-write
    check "$1: another region comes" becomes 'regions * (5 there)' 10 content
    check "$1: it is opened and read" guest 30 \
        'exec 7</mnt/passing && stat -c %i /mnt/passing >/tmp/inode && head -c 4096 <&7 | wc -c'
    check "$1: it is removed" ctl region deregister passing
    check "$1: the server knows" becomes 'regions * (4 there)' 10 content
    check "$1: the open file is stale" refuses 'Stale file handle' "$drop; cat <&7"
    check "$1: it is closed" guest 30 'exec 7<&-'
    check "$1: the name is gone" refuses 'No such file\|Stale file' 'cat /mnt/passing'
    register passing remote-read,remote-write
    check "$1: another region gets the name" becomes 'regions * (5 there)' 10 content
    check "$1: a peer fills it" random_region passing
    check "$1: the client reads the new one" in_region passing /mnt/passing
    check "$1: it is another file" guest 30 '[ $(stat -c %i /mnt/passing) != $(cat /tmp/inode) ]'
    check "$1: it goes, too" ctl region deregister passing
    check "$1: the server knows" becomes 'regions * (4 there)' 10 content
}

# The server is killed while the client writes over and over, with another file open: the next server has the same
# handles, and what a peer has written meanwhile is written again.
region_restart() {
    local write='dd if=/tmp/payload of=/mnt/lab bs=64k oflag=direct conv=notrunc'
    check "$1: a client writes, and has a file open" guest 60 \
        "ls -i /mnt >/tmp/inodes; exec 7</mnt/held; rm -f /tmp/stop;
            (until [ -e /tmp/stop ]; do $write || exit 1; done; $write) 2>/tmp/dd & job=\$!; sleep 1; kill -0 \$job"
    nfsd_kill
    head -c $REGION_BYTES /dev/zero >"$LAB/zeros"
    check "$1: the server is killed, and a peer fills the region with zeros" put_region lab "$LAB/zeros"
    check "$1: the server starts again" nfsd_start
    check "$1: the client goes on, without an error" guest 300 \
        ': >/tmp/stop; wait $job; code=$?; tail -n 3 /tmp/dd; (exit $code)'
    check "$1: all of its bytes are there" in_region lab /tmp/payload
    check "$1: files have the same numbers" guest 60 "$drop; ls -i /mnt | diff /tmp/inodes -"
    check "$1: the open file is still open" guest 60 "$drop; cat <&7 >/tmp/held && exec 7<&-"
    check "$1: its bytes are right" in_region held /tmp/held
}

# Two clients by NFS 4.1.
region_clients() {
    boot_other || exit 1
    check "a second client mounts the regions" mount_v4 other 10.77.0.6 /regions
    check "one sees what the other has written" guest 60 'cat /mnt/lab >/dev/null'
    check "one sees what the other has written" other 60 \
        "head -c $REGION_BYTES /dev/urandom >/tmp/other && dd if=/tmp/other of=/mnt/lab bs=1M conv=notrunc,fsync"
    check "one sees what the other has written" in_region lab /mnt/lab
    check "it is that of the other" in_region lab /tmp/other other
    ranges lab
    check "umount of the second client" other 60 'umount /mnt'
    guest_stop other
}

part_regions() {
    local version
    cat >>"$LAB/nfsd.toml" <<TOML
[[export]]
path = "/regions"
regions = "*"
[[export.client]]
prefix = "10.77.0.0/24"
access = "rw"
[[export]]
path = "/readonly"
regions = ["lab"]
[[export.client]]
prefix = "10.77.0.0/24"
TOML
    register lab remote-read,remote-write
    register fixed remote-read
    register held remote-read,remote-write
    random_region held >/dev/null || exit 1
    register secret remote-write
    check "the exports of regions are loaded" nfsctl reload
    check "the server has them" becomes 'regions * (4 there)' 10 content
    for version in $VERSIONS; do
        must_mount "$version" /regions
        region_transfers "NFS $version"
        region_caches "NFS $version"
        region_refusals "NFS $version"
        region_stale "NFS $version"
        region_restart "NFS $version"
        [ "$version" != 4.1 ] || region_clients
        loss_on 100
        region_transfers "NFS $version, 1 % loss"
        check "NFS $version: frames were lost" loss_happened
        sed -n 's/^RESULT /      /p' "$LAB/check.out"
        loss_off
        check "NFS $version: umount" unmount
        check "NFS $version: the export without the right to write is mounted" mount_version "$version" /readonly
        check "NFS $version: it has the region" in_region lab /mnt/lab
        check "NFS $version: which is not written" refuses 'Permission denied\|Read-only' \
            'dd if=/tmp/payload of=/mnt/lab bs=4096 count=1 conv=notrunc'
        check "NFS $version: umount" unmount
    done
    write_nfsd_config
    check "the exports of regions are removed" nfsctl reload
    local name
    for name in lab fixed held secret; do check "region $name is removed" ctl region deregister $name; done
}
