#!/usr/bin/env bash
# NFS over RDMA: Linux with soft-iWARP, in a QEMU guest, mounts a directory that iwarp-nfsd exports through iwarpd, by
# NFS 3 and by NFS 4.1. It copies a tree, compares digests, prints rates, and goes on when the server is killed and
# restarted. `make nfs-demo`; needs root. Last line: `N passed, N failed`. nfs/full.sh has all the rest.
source "$(dirname "$0")/../../dataplane/tests/lib.sh"
source dataplane/tests/siw/guest.sh
source apps/tests/nfs/lab.sh

demo() { # VERSION
    must_mount "$1"
    check "NFS $1: the tree is seen as it is" same_tree tree
    check "NFS $1: cp -r of the tree" guest 300 'cp -r /mnt/tree /mnt/copy'
    check "NFS $1: the copy is the tree" same_tree copy
    rate "NFS $1: dd reads $MIB MiB" 'dd if=/mnt/big of=/dev/null bs=1M'
    rate "NFS $1: dd writes $MIB MiB" 'dd if=/mnt/big of=/mnt/written bs=1M conv=fsync'
    check "NFS $1: the bytes are the same" cmp "$LAB/data/big" "$LAB/data/written"
    check "NFS $1: a program runs from it, mapped into memory" guest 60 \
        'cp /bin/busybox /mnt/busybox && echo 3 >/proc/sys/vm/drop_caches && /mnt/busybox true && rm /mnt/busybox'
    check "NFS $1: the server is killed while the client writes" killed
    check "NFS $1: everything is removed again" guest 120 'rm -r /mnt/copy /mnt/again /mnt/written'
    check "NFS $1: nothing else is left" test "$(ls -A "$LAB/data" | sort | tr '\n' ' ')" = "big tree "
    check "NFS $1: umount" unmount
}

GUEST_IMAGE=$(dataplane/tests/siw/prepare.sh) || exit 1
nfs_lab ironwarp-nfs
boot_guest || exit 1
demo 3
demo 4.1
nfs_end
