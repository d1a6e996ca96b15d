#!/bin/busybox sh
# First process of the guest: loads the modules, brings up eth0 and siw0, then serves the control line (ttyS1), which
# sometimes loses characters.
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
. /serve
