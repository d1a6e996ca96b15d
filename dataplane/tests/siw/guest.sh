# shellcheck shell=bash
# Library of bash functions that run soft-iWARP guests under QEMU's software emulation. Source it.
#
#   guest_boot NAME TAP MAC IPV4/LEN IPV6/LEN   boots a guest on an existing TAP interface
#   guest_client NAME SECONDS OPTIONS           runs iwclient in it, killed when the time is up
#   guest_hold NAME OPTIONS                     starts an iwclient that holds its connection, waits until it does
#   guest_release NAME                          lets it go on: prints what it says, returns its code
# and what ../guest/guest.sh has.
#
# GUEST_NETNS   network namespace of the TAP; empty: the caller's
# GUEST_IMAGE   directory made by prepare.sh; set by guest_boot when empty
# GUEST_INITRD  the guest's files, if they are not the image's; GUEST_MIB, the guest's memory

_guest_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$_guest_here/../guest/guest.sh"

_guest_qemu() {
    local name=$1 tap=$2 mac=$3 ip4=$4 ip6=$5 control=$6
    local prefix=()
    [ -z "${GUEST_NETNS:-}" ] || prefix=(ip netns exec "$GUEST_NETNS")
    # A machine that could have a second CPU: for one that could not, QEMU leaves out the guest's memory
    # barriers, although its I/O thread shares the virtqueues, and a lost notification stops the NIC.
    # No offloads: every frame on the bridge is one that fits the MTU, checksums complete.
    local offloads=csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off
    offloads+=,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,mrg_rxbuf=off
    # No check of the timer: the kernel would give up if the host's other work keeps QEMU from running meanwhile.
    exec "${prefix[@]}" qemu-system-x86_64 -name "siw-$name" -accel tcg -machine q35 -smp 1,maxcpus=2 -cpu max \
        -m "${GUEST_MIB:-512}" \
        -nodefaults -no-user-config -no-reboot -display none -monitor none \
        -kernel "$GUEST_IMAGE/vmlinux" -initrd "${GUEST_INITRD:-$GUEST_IMAGE/initramfs.gz}" \
        -append "console=ttyS0 quiet oops=panic panic=-1 mitigations=off no_timer_check net.ifnames=0 \
guest.ip4=$ip4 guest.ip6=$ip6" \
        -serial "file:$GUEST_LOGS/$name.console" \
        -chardev "pipe,id=control,path=$control" -serial chardev:control \
        -netdev "tap,id=net,ifname=$tap,script=no,downscript=no,vhost=off" \
        -device "virtio-net-pci,netdev=net,mac=$mac,romfile=,$offloads" \
        -device virtio-rng-pci \
        </dev/null >"$GUEST_LOGS/$name.qemu" 2>&1
}

guest_boot() {
    [ -n "${GUEST_IMAGE:-}" ] || GUEST_IMAGE=$("$_guest_here/prepare.sh") || return 1
    guest_launch "$1" _guest_qemu "$@"
}

guest_client() {
    local name=$1 seconds=$2 code
    shift 2
    guest_run "$name" "timeout -s KILL $seconds iwclient $*" $((seconds + 10))
    code=$?
    [ $code = 0 ] || echo "iwclient's exit code: $code"
    return $code
}

guest_hold() {
    local name=$1 holding
    shift
    holding='for i in $(seq 100); do grep -qE "HOLDING|RESULT" /tmp/held && break; sleep 0.1; done; '
    holding+='grep -q HOLDING /tmp/held || { cat /tmp/held; false; }'
    # The pipe is opened for reading and writing: neither the client nor `echo` waits for the other.
    guest_run "$name" "rm -f /tmp/go; mkfifo /tmp/go; : >/tmp/held; iwclient $* <>/tmp/go >/tmp/held 2>&1 & held=\$!" &&
        guest_run "$name" "$holding"
}

guest_release() { guest_run "$1" 'echo go >/tmp/go; wait $held; code=$?; cat /tmp/held; (exit $code)'; }
