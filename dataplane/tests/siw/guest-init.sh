#!/bin/busybox sh
# First process of the guest: loads the modules, brings up eth0 and siw0, then serves the control line (ttyS1). Each
# line is `ID LENGTH COMMAND`; the reply is `<SOH>GOT ID`, the command's output and `<SOH>EXIT ID CODE`. The emulated
# line sometimes loses characters: a command of the wrong length is answered by `<SOH>AGAIN`, and a repeated command is
# not run twice. Commands run in one shell, so that a later one can `wait` for a background job of an earlier one.
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
exec </dev/null >/dev/console 2>&1

while read -r module; do
    insmod "/modules/$module" 2>/tmp/insmod || echo "guest: $module: $(cat /tmp/insmod)"
done </modules/order

# argument NAME: prints the value of NAME=... on the kernel's command line.
argument() { tr ' ' '\n' </proc/cmdline | sed -n "s#^$1=##p"; }

echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
ip link set lo up
ip link set eth0 up
ip -4 addr add "$(argument guest.ip4)" dev eth0
ip -6 addr add "$(argument guest.ip6)" dev eth0
rdma link add siw0 type siw netdev eth0 || echo "guest: no siw0"
ulimit -l unlimited

stty -F /dev/ttyS1 raw -echo
exec </dev/ttyS1 >/dev/ttyS1 2>&1
printf '\001READY\n'
last=none code=0
while IFS=' ' read -r id length command; do
    if [ "${#command}" != "$length" ]; then
        printf '\001AGAIN\n'
        continue
    fi
    if [ "$id" != "$last" ]; then
        printf '\001GOT %s\n' "$id"
        eval "$command" </dev/null
        code=$? last=$id
    fi
    printf '\001EXIT %s %s\n' "$last" "$code"
done
