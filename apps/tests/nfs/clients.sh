# shellcheck shell=bash
# Cases of two clients by NFS 4.1, `nfs` and `other`, which both have mounted the export. Source it behind lab.sh.

# Locks and opens of two clients, and a server that is killed while one of them holds a lock.
two_clients() {
    check "one sees what the other has written" guest 30 'echo one >/mnt/word'
    check "one sees what the other has written" other 30 '[ "$(cat /mnt/word)" = one ] && echo two >/mnt/word'
    check "one sees what the other has written" guest 30 '[ "$(cat /mnt/word)" = two ]'
    ranges word
    check "a client locks a file" guest 30 'exec 8>>/mnt/word && flock -n -x 8'
    check "the other one does not get the lock" not other 30 'flock -n -x /mnt/word true'
    nfsd_kill
    check "the server restarts" nfsd_start
    check "both clients go on" guest 90 'echo three >>/mnt/word && sync'
    check "both clients go on" other 90 'ls /mnt >/dev/null'
    check "the lock was reclaimed" not other 60 'flock -n -x /mnt/word true'
    check "the lock is freed" guest 30 'flock -u 8 && exec 8>&-'
    check "the other one gets the lock" other 60 'flock -w 30 -x /mnt/word true'
    check "a client opens a file" guest 30 'echo kept >/mnt/open && exec 7</mnt/open'
    check "the other one removes it" other 30 'rm /mnt/open'
    check "the file is still there for the first one" guest 30 \
        'echo 3 >/proc/sys/vm/drop_caches; read -r line <&7 && exec 7<&- && [ "$line" = kept ]'
    check "the file goes" other 30 'rm /mnt/word'
}

tries() { # CODE FILE RANGE…: the other client tries a record lock
    local wanted=$1 code
    shift
    other 30 "files try /mnt/$*"
    code=$?
    [ $code = "$wanted" ] || { echo "$*: exit code $code, not $wanted"; return 1; }
}
ranges() { # FILE
    local hold="files lock /mnt/$1 100 50 w"' >/tmp/lock & lock=$!; for i in $(seq 50); do'
    hold+=' grep -q LOCKED /tmp/lock && break; sleep 0.1; done; grep LOCKED /tmp/lock'
    check "a client locks bytes 100 to 149 for writing" guest 30 "$hold"
    check "the other one may lock what lies before" tries 0 "$1" 0 100 w
    check "and what lies behind" tries 0 "$1" 150 0 w
    check "but not the first of these bytes" tries 3 "$1" 0 101 w
    check "nor the last one" tries 3 "$1" 149 1 r
    check "nor all to the end" tries 3 "$1" 120 0 r
    check "the lock goes with its process" guest 30 'kill $lock; wait $lock; true'
    check "the other one gets it" tries 0 "$1" 100 50 w
    check "a client locks them for reading" guest 30 "${hold/ 50 w/ 50 r}"
    check "the other one may read" tries 0 "$1" 100 50 r
    check "but not write" tries 3 "$1" 100 50 w
    check "the lock goes with its process" guest 30 'kill $lock; wait $lock; true'
}

clients() { nfsctl clients --json | jq -r "$1"; } # FILTER
named() { clients "[.. | objects | select((.owner? // .name? // \"\") | tostring | test(\"$1\"))] | length"; } # NAME

written_at_all() { [ -s "$LAB/data/cut" ] && echo yes; }

# A client that is reset while it writes, with an open file and a lock: the other one and the server go on, and the
# dead client's state goes after its lease, or when it comes back.
reset_client() { # SECOND: yes if the client comes back before its lease has ended
    check "a client writes, and holds a lock" guest 60 \
        'echo >/mnt/held; exec 8>>/mnt/held && flock -n -x 8 &&
            { dd if=/dev/zero of=/mnt/cut bs=64k count=65536 oflag=direct & }'
    check "the server has some of it" becomes yes $((60 * PATIENCE)) written_at_all
    check "the other one reads and writes on" other 60 'dd if=/mnt/big of=/tmp/before bs=64k count=16'
    guest_stop nfs
    local died=$SECONDS
    check "the client is reset while it writes" test "$(stat -c %s "$LAB/data/cut")" -lt $((65536 * 65536))
    check "the other one goes on" other 60 'dd if=/mnt/big of=/mnt/during bs=64k count=64 conv=fsync && ls -l /mnt'
    check "and its bytes are right" cmp -n $((64 * 65536)) "$LAB/data/big" "$LAB/data/during"
    if [ "$1" = yes ]; then
        boot_guest || exit 1
        check "the client mounts again" mount_v4 nfs 10.77.0.5
        check "its lock went when it came back" guest 60 'flock -n -x /mnt/held true'
    else
        check "the dead client's lock is still held" not other 5 'flock -n -x /mnt/held true'
        check "it is freed after the lease" other $((LEASE_S + 60)) 'flock -w '$((LEASE_S + 45))' -x /mnt/held true'
        echo "      $((SECONDS - died)) s after the reset, with a lease of $LEASE_S s"
        boot_guest || exit 1
        check "the client mounts again" mount_v4 nfs 10.77.0.5
    fi
    check "and reads and writes" guest 60 'dd if=/mnt/big of=/mnt/after bs=64k count=64 conv=fsync'
    check "its bytes are right" cmp -n $((64 * 65536)) "$LAB/data/big" "$LAB/data/after"
    check "removed" other 60 'rm /mnt/held /mnt/cut /mnt/during /mnt/after'
}
