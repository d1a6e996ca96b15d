#!/usr/bin/env bash
# The whole proof of NFS over RDMA, by NFS 3 and 4.1 with Linux and soft-iWARP in QEMU guests: `make nfs`; needs root,
# and half an hour. Last line: `N passed, N failed`.
#
#   full.sh [PART…]     files large loss restart clients regions versionless suites wire (default: all)
#   NFS_VERSIONS        versions of NFS (default "3 4.1")
#   NFS_TREE            folder of the kernel headers that is copied (default include)
#   NFS_MANY            files in one directory (default 10000)
#   and what nfs/lab.sh and nfs/suites.sh name.
source "$(dirname "$0")/../../../dataplane/tests/lib.sh"
source dataplane/tests/siw/guest.sh
source dataplane/tests/siw/loss.sh
for part in lab files clients regions suites wire; do source "apps/tests/nfs/$part.sh"; done

VERSIONS=${NFS_VERSIONS:-3 4.1}
MANY=${NFS_MANY:-10000}
PARTS=${*:-files large loss restart clients regions versionless suites wire}
LEFT="big tree "

part_files() {
    mkdir "$LAB/data/headers"
    cp -r "$GUEST_IMAGE/headers/${NFS_TREE:-include}/." "$LAB/data/headers"
    LEFT="big headers tree "
    local version
    for version in $VERSIONS; do
        must_mount "$version"
        trees "NFS $version" headers 1500
        transfers "NFS $version"
        mappings "NFS $version"
        names "NFS $version"
        many "NFS $version" "$MANY"
        sparse "NFS $version"
        permissions "NFS $version"
        check "NFS $version: nothing is left" test "$(ls -A "$LAB/data" | sort | tr '\n' ' ')" = "$LEFT"
        check "NFS $version: umount" unmount
        squashed "$version"
    done
    rm -r "$LAB/data/headers"
    LEFT="big tree "
}

# The same without the tree of headers, and with 200 files in a directory, over a bridge that loses frames.
part_loss() {
    local version one_in name
    for version in $VERSIONS; do
        for one_in in 100 20; do
            name="NFS $version, $((100 / one_in)) % loss"
            must_mount "$version"
            loss_on $one_in
            trees "$name" tree 900
            transfers "$name"
            mappings "$name"
            names "$name"
            many "$name" 200
            sparse "$name"
            check "$name: umount" unmount
            check "$name: frames were lost" loss_happened
            sed -n 's/^RESULT /      /p' "$LAB/check.out"
            loss_off
        done
    done
}

part_restart() {
    local version
    for version in $VERSIONS; do
        must_mount "$version"
        check "NFS $version: a file is written and committed" guest 120 \
            'dd if=/mnt/big of=/mnt/committed bs=64k count=128 conv=fsync'
        check "NFS $version: the server is killed while the client writes" killed
        check "NFS $version: the committed data is intact" cmp -n $((8 << 20)) "$LAB/data/big" "$LAB/data/committed"
        check "NFS $version: the daemon is killed, and both start again" daemon_killed
        check "NFS $version: removed" guest 120 'rm /mnt/again /mnt/committed'
        check "NFS $version: umount" unmount
    done
}
# The daemon ends without a word to its peers, and iwarp-nfsd with it.
daemon_killed() {
    rm -f "$LAB/data/again"
    guest 30 'dd if=/mnt/big of=/mnt/again bs=64k conv=fsync 2>/tmp/dd & job=$!; sleep 1; kill -0 $job' || return 1
    kill -KILL "$DAEMON_PID" && wait "$DAEMON_PID" 2>/dev/null
    cmp -s "$LAB/data/big" "$LAB/data/again" && echo "the copy was faster than the kill" && return 1
    wait "$NFSD_PID" && echo "iwarp-nfsd ended well without a daemon" && return 1
    daemon_start "$LAB/iwarpd.toml" && bridge_daemon && nfsd_start || return 1
    guest 300 'wait $job; code=$?; cat /tmp/dd; (exit $code)' && cmp "$LAB/data/big" "$LAB/data/again"
}

part_clients() {
    must_mount 4.1
    boot_other || exit 1
    check "a second client mounts" mount_v4 other 10.77.0.6
    two_clients
    reset_client no
    reset_client yes
    check "umount of the second client" other 60 'umount /mnt'
    check "umount of the first client" unmount
    guest_stop other
}

# Debian's mount and mount.nfs, without a version.
part_versionless() {
    check "mount -o rdma without a version" guest 120 \
        'hostname nfs; mkdir -p /mnt; /opt/mount -t nfs -o rdma,port=20049 10.77.0.2:/data /mnt'
    check "it is NFS 4.1 over RDMA" guest 10 'grep " /mnt nfs4 .*vers=4.1.*proto=rdma" /proc/mounts'
    check "it works" same_tree tree
    check "umount" unmount
    local v3=vers=3,rdma,port=20049,nolock,mountproto=tcp,mountport=20050,mountaddr=10.77.0.1
    check "mount -o rdma,vers=3" guest 120 "/opt/mount -t nfs -o $v3 10.77.0.2:/data /mnt"
    check "it is NFS 3 over RDMA" guest 10 'grep " /mnt nfs .*vers=3.*proto=rdma" /proc/mounts'
    check "umount" unmount
    check "minor versions 4.2 and 4.0 are refused" refuses_other_minor_versions
}
refuses_other_minor_versions() {
    local options=proto=rdma,port=20049,addr=10.77.0.2,clientaddr=10.77.0.5,sec=sys version
    for version in 4.2 4.0; do
        guest 60 "mount -i -t nfs4 -o vers=$version,$options 10.77.0.2:/data /mnt" >"$LAB/refused" 2>&1 && return 1
        grep 'Protocol not supported' "$LAB/refused" || return 1
    done
}

# READ and WRITE of 1 MiB, which the configuration allows.
part_large() {
    sed -i 's/^lease_s.*/&\ntransfer = "1M"/' "$LAB/nfsd.toml"
    check "iwarp-nfsd starts with transfers of 1 MiB" nfsd_again
    local version
    for version in $VERSIONS; do
        must_mount "$version"
        check "NFS $version: Linux uses all of it" guest 10 \
            'grep " /mnt nfs.*,rsize=1048576,wsize=1048576," /proc/mounts'
        transfers "NFS $version, transfers of 1 MiB"
        check "NFS $version: umount" unmount
    done
    sed -i '/^transfer = "1M"$/d' "$LAB/nfsd.toml"
    check "iwarp-nfsd starts with the default" nfsd_again
}
nfsd_again() { nfsd_kill; nfsd_start; }

part_suites() {
    local version
    for version in $VERSIONS; do
        must_mount "$version"
        suite_fsx "$version"
        suite_pjdfstest "$version"
        check "NFS $version: umount" unmount
    done
}

GUEST_IMAGE=$(apps/tests/nfs/prepare.sh) || exit 1
sed 's/^/      /' "$GUEST_IMAGE/versions"
nfs_lab ironwarp-nfs-full
boot_guest || exit 1
for part in $PARTS; do "part_$part"; done
nfs_end
