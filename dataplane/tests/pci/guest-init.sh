#!/bin/busybox sh
# shellcheck shell=dash First process of the guest: loads the modules, hands the cards to DPDK's kernel driver, then
# serves the control line, a port of a virtio console, which loses nothing.
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mkdir -p /dev/hugepages /dev/shm
mount -t hugetlbfs hugetlbfs /dev/hugepages
exec </dev/null >/dev/console 2>&1

while read -r module; do
    insmod "/modules/$module" 2>/tmp/insmod || echo "guest: $module: $(cat /tmp/insmod)"
done </modules/order

# argument NAME: the value of NAME=... on the kernel's command line.
argument() { tr ' ' '\n' </proc/cmdline | sed -n "s#^$1=##p"; }

# pci_bind ADDRESS DRIVER: hands a device to a kernel driver, as docs/installing.md says.
pci_bind() {
    echo "$2" >"/sys/bus/pci/devices/$1/driver_override"
    [ ! -e "/sys/bus/pci/devices/$1/driver" ] || echo "$1" >"/sys/bus/pci/devices/$1/driver/unbind"
    echo "$1" >/sys/bus/pci/drivers_probe
    [ "$(basename "$(readlink "/sys/bus/pci/devices/$1/driver")")" = "$2" ] || echo "guest: $1 is not bound to $2"
}

for card in $(argument guest.cards | tr , ' '); do
    pci_bind "$card" "$(argument guest.driver)"
done
ip link set lo up
ulimit -l unlimited
ulimit -c 0

for port in /sys/class/virtio-ports/*; do
    [ "$(cat "$port/name")" != control ] || control=/dev/$(basename "$port")
done
# Such a port can be opened once.
exec <>"$control" >&0 2>&1
. /serve
