# shellcheck shell=bash
# Cases of one client and its files, in whatever version it has mounted the export. Source it behind lab.sh. The first
# argument of each function is the prefix of its checks.

trees() { # NAME FOLDER SECONDS: a tree is read, copied and compared
    check "$1: the digests of $2 are right" same_tree "$2" "$3"
    check "$1: cp -r of $2" guest "$3" "cp -r /mnt/$2 /mnt/copy"
    check "$1: the copy has the same names and kinds" same_names "$2" copy
    check "$1: the client sees the copy's digests" same_tree copy "$3"
    check "$1: the server sees the copy's digests" diff <(digests "$LAB/data/$2") <(digests "$LAB/data/copy")
    check "$1: rm -r of the copy" guest "$3" 'rm -r /mnt/copy'
}
kinds() { (cd "$1" && find . -printf '%P %y %m %s %l\n' | sed 's/\( d [0-9]*\) .*/\1/' | sort); }
same_names() {
    kinds "$LAB/data/$1" >"$LAB/names"
    echo "$(wc -l <"$LAB/names") names" && diff "$LAB/names" <(kinds "$LAB/data/$2")
}

# The client's cache is dropped before it reads what it has written.
drop='echo 3 >/proc/sys/vm/drop_caches'

transfers() {
    rate "$1: dd reads $MIB MiB" "$drop; dd if=/mnt/big of=/dev/null bs=1M"
    rate "$1: dd writes $MIB MiB" 'dd if=/mnt/big of=/mnt/written bs=1M conv=fsync'
    check "$1: the bytes are the same" cmp "$LAB/data/big" "$LAB/data/written"
    rate "$1: dd with O_DIRECT, both ways" 'dd if=/mnt/big of=/mnt/direct bs=1M iflag=direct oflag=direct'
    check "$1: the bytes are the same" cmp "$LAB/data/big" "$LAB/data/direct"
    check "$1: O_DIRECT of odd lengths at odd places" odd_direct
    check "$1: removed" guest 60 'rm /mnt/written /mnt/direct'
}
# Blocks of 3001 bytes, whose first and last words are shared with their neighbors.
odd_direct() {
    local dd='dd if=/mnt/big of=/mnt/odd bs=3001 iflag=direct oflag=direct'
    guest 120 "$dd count=100 && $dd skip=200 seek=200 count=50 conv=notrunc && rm -f /tmp/none" || return 1
    cmp -n 300100 "$LAB/data/big" "$LAB/data/odd" &&
        cmp -i 600200 -n 150050 "$LAB/data/big" "$LAB/data/odd" &&
        cmp -i 300100:0 -n 300100 "$LAB/data/odd" /dev/zero && rm "$LAB/data/odd"
}

# Shared mappings: the server must see what the client has stored in memory, and the client what the server has.
mappings() {
    check "$1: a file is copied by shared mappings" guest 300 'files map-copy /mnt/big /mnt/mapped'
    check "$1: the bytes are the same" cmp "$LAB/data/big" "$LAB/data/mapped"
    check "$1: bytes are changed in a shared mapping" guest 300 'files map-flip /mnt/mapped 4099'
    check "$1: the server sees these changes, and no others" flipped 4099
    check "$1: a program runs from it, mapped into memory" guest 60 \
        "cp /bin/busybox /mnt/busybox && $drop && /mnt/busybox true && rm /mnt/busybox"
    check "$1: removed" guest 60 'rm /mnt/mapped'
}
flipped() {
    { cmp -l "$LAB/data/big" "$LAB/data/mapped" || [ $? = 1 ]; } |
        awk -v step="$1" -v bytes=$((MIB << 20)) '
            # cmp prints positions from 1 and the bytes in octal; the inverse of a byte is 255 less it.
            function value(octal) { return substr(octal, length(octal)) + 8 * substr(octal, length(octal) - 1, 1) \
                + 64 * substr(octal, length(octal) - 2, 1) }
            { octal = "000" $2; other = "000" $3 }
            ($1 - 1) % step != 0 || value(octal) + value(other) != 255 { wrong++ }
            END { print NR " changed, " wrong + 0 " wrong"; exit !(wrong == 0 && NR == int((bytes - 1) / step) + 1) }'
}

names() {
    check "$1: rename, hard and symbolic links, removal" guest 60 \
        'cd /mnt && echo x >a && mv a b && ln b c && ln -s b d && [ $(stat -c %h c) = 2 ] && [ $(readlink d) = b ] &&
            cmp d c && rm b c && ! cat d && rm d'
    check "$1: symbolic links: long, dangling, to a folder, relative" symlinks
    check "$1: rename onto a file, and of a folder with content" guest 60 \
        'cd /mnt && mkdir -p f/g && echo 1 >f/g/x && echo 2 >y && mv y f/g/x && mv f h && [ $(cat h/g/x) = 2 ] &&
            ! rmdir h && rm -r h'
    check "$1: an open file that is renamed" guest 60 \
        'cd /mnt && exec 7>>a && echo 1 >&7 && mv a b && echo 2 >&7 && exec 7>&- &&
            [ "$(cat b)" = "$(seq 2)" ] && rm b'
    check "$1: an open file that another one replaces" guest 60 \
        'cd /mnt && echo old >a && exec 7<a && echo new >b && mv b a && read -r line <&7 && exec 7<&- &&
            [ "$line" = old ] && [ "$(cat a)" = new ] && rm a'
    check "$1: an open file that is removed, and written on" guest 60 \
        'cd /mnt && echo kept >a && exec 7<>a && rm a && read -r line <&7 && echo more >&7 && exec 7<&- &&
            [ "$line" = kept ]'
    check "$1: nothing is left of these" test "$(ls -A "$LAB/data" | sort | tr '\n' ' ')" = "$LEFT"
}
symlinks() {
    guest 60 'mkdir /mnt/l && cd /mnt/l && long=$(seq -s / 1 700) && ln -s $long long &&
        [ "$(readlink long)" = $long ] && mkdir real && echo 1 >real/x && ln -s real way &&
        [ $(cat way/x) = 1 ] && ln -s ../l/real/x up && [ $(cat up) = 1 ] &&
        ln -s nowhere none && ! cat none' || return 1
    [ "$(readlink "$LAB/data/l/long")" = "$(seq -s / 1 700)" ] && [ "$(cat "$LAB/data/l/up")" = 1 ] &&
        guest 60 'rm -r /mnt/l'
}

# many NAME COUNT: files in one directory, seen by both sides, then removed.
many() {
    check "$1: $2 files in a directory are made" guest 600 \
        "mkdir /mnt/many && cd /mnt/many && for i in \$(seq $2); do echo \$i >file\$i || break; done"
    check "$1: the server has them all" many_there "$2"
    check "$1: the client lists each of them once" guest 300 \
        "$drop; cd /mnt/many && ls >/tmp/list && [ \$(wc -l </tmp/list) = $2 ] &&
            [ \$(sort -u /tmp/list | wc -l) = $2 ]"
    check "$1: and with attributes" guest 300 "$drop; cd /mnt/many && [ \$(ls -l | grep -c '^-.* file[0-9]') = $2 ]"
    check "$1: they are removed" guest 600 'cd / && rm -r /mnt/many && ! ls /mnt/many'
}
many_there() {
    [ "$(find "$LAB/data/many" -type f | wc -l)" = "$1" ] &&
        [ "$(cat "$LAB/data/many/"* | sort -n | sha256sum)" = "$(seq "$1" | sha256sum)" ]
}

sparse() {
    check "$1: a sparse file of 1 TiB" sparse_big
    check "$1: a sparse file's holes read as zeros" guest 120 \
        "cd /mnt && truncate -s 16M a && echo x | dd of=a bs=1 seek=8388608 conv=notrunc && $drop &&
            [ \$(tr -d '\\0' <a) = x ] && truncate -s 8388609 a && [ \$(tr -d '\\0' <a) = x ] &&
            [ \$(wc -c <a) = 8388609 ]"
    check "$1: the server's file is as sparse" test "$(du -k "$LAB/data/a" | cut -f1)" -lt 100
    check "$1: removed" guest 60 'rm /mnt/a'
}
sparse_big() {
    guest 60 'cd /mnt && truncate -s 1099511627776 huge && echo end | dd of=huge bs=4 seek=274877906943 conv=notrunc' ||
        return 1
    [ "$(stat -c %s "$LAB/data/huge")" = $((1 << 40)) ] && [ "$(tail -c 4 "$LAB/data/huge")" = end ] &&
        [ "$(du -k "$LAB/data/huge" | cut -f1)" -lt 100 ] &&
        guest 60 '[ "$(tail -c 4 /mnt/huge)" = end ] && rm /mnt/huge'
}

# Two users of the guest, who share a group. The server runs as root: each refusal is its own decision.
permissions() {
    local as_alice='su alice -c' as_bob='su bob -c'
    check "$1: alice has a folder and a private file" guest 60 \
        "mkdir /mnt/p && chown alice:shared /mnt/p && chmod 755 /mnt/p &&
            $as_alice 'cd /mnt/p && umask 077 && echo a >a'"
    check "$1: the server knows its owner and mode" test "$(stat -c '%u:%g:%a' "$LAB/data/p/a")" = 1001:1001:600
    check "$1: alice reads it" guest 60 "$as_alice 'cat /mnt/p/a'"
    check "$1: bob neither reads, writes, removes nor changes it" guest 60 \
        "$as_bob 'cd /mnt/p && ! cat a && ! echo b >>a && ! rm -f a && ! mv a b && ! chmod 666 a && ! touch b'"
    check "$1: nor does alice give it away" guest 60 "$as_alice '! chown bob /mnt/p/a'"
    check "$1: a file of the group: bob reads it, and does not write it" guest 60 \
        "$as_alice 'cd /mnt/p && chgrp shared a && chmod 640 a' &&
            $as_bob 'cd /mnt/p && [ \$(cat a) = a ] && ! echo >>a'"
    check "$1: a folder of the group, sticky: bob writes his own files only" guest 60 \
        "chmod 1775 /mnt/p && $as_bob 'cd /mnt/p && echo b >b && ! rm -f a && ! mv a c && rm b'"
    check "$1: a folder without the right to search" guest 60 \
        "$as_alice 'chmod 600 /mnt/p' && $as_bob '! cat /mnt/p/a && ! ls /mnt/p' && cat /mnt/p/a"
    check "$1: a set-user-ID bit goes when the file is written" guest 60 \
        "chmod 777 /mnt/p && $as_alice 'chmod 4777 /mnt/p/a' && $as_bob 'echo b >>/mnt/p/a' && [ ! -u /mnt/p/a ]"
    check "$1: removed" guest 60 'rm -r /mnt/p'
}

squashed_owners() { stat -c '%u:%g' "$LAB/squashed/x" "$LAB/squashed/d" | uniq; }
# squashed VERSION: root is nobody in the other export. Mounts it, so that nothing else may be mounted.
squashed() {
    check "NFS $1: the export with root squash is mounted" mount_version "$1" /squashed
    check "NFS $1: root is nobody there" guest 60 'echo x >/mnt/x && mkdir /mnt/d && ! chown root /mnt/x'
    check "NFS $1: on the server, too" becomes 65534:65534 2 squashed_owners
    echo secret >"$LAB/squashed/own" && chmod 600 "$LAB/squashed/own"
    check "NFS $1: and reads nothing of root's" guest 60 '! cat /mnt/own'
    check "NFS $1: alice is alice" guest 60 "su alice -c 'echo a >/mnt/a && rm /mnt/a'"
    check "NFS $1: umount" guest 60 'rm -r /mnt/x /mnt/d && umount /mnt'
}
