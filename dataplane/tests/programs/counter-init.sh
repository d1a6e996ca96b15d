#!/bin/busybox sh
# First process of a guest that is migrated: counts on the serial line, and says every tenth time whether the bytes that
# it wrote to its memory at the start still have the same digest.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
exec </dev/null >/dev/ttyS0 2>&1
head -c 16777216 /dev/urandom >/tmp/bytes
digest=$(md5sum </tmp/bytes)
count=0
while :; do
    count=$((count + 1))
    echo "COUNT $count"
    if [ $((count % 10)) = 0 ]; then
        if [ "$(md5sum </tmp/bytes)" = "$digest" ]; then echo "BYTES SAME"; else echo "BYTES CHANGED"; fi
    fi
    sleep 0.2
done
