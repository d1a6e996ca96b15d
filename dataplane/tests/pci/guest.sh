# shellcheck shell=bash
# Library of bash functions that run iwarpd on an emulated card in a guest. Source it behind ../lib.sh.
#
#   pci_boot NAME KERNEL_DRIVER CARD[,OPTION…]…   boots a guest with these cards, card k on the host's interface NAME-k,
#                                                 and hands them to the driver: vfio-pci or uio_pci_generic;
#                                                 PCI_EXTRA has more arguments for QEMU
#   pci_config NAME [KEY=VALUE…]                  gives it a configuration, see there
#   pci_start NAME, pci_stop NAME                 the daemon; both fail when it does
#   pci_ctl NAME ARGUMENTS                        iwarpctl in the guest
#   monitor NAME COMMAND                          a command of QEMU's monitor
#   CARD_DEVICES[k]                               what `device_add` plugs card k in with
#
# A card is one of e1000e, igb, virtio, vmxnet3; what follows its comma are QEMU's properties of it. The option
# `queues=N` gives it a TAP with so many queues, and the option `hub` no TAP but a hub inside QEMU, number k. The host's
# end of card k is 10.7k.0.1 and fd7k::1, the daemon's ends in 2.

source dataplane/tests/guest/guest.sh
declare -gA CARD_DEVICES

# The cards lie behind a port each, so that they can be unplugged: 0000:01:00.0, 0000:02:00.0.
card_address() { echo "0000:0$(($1 + 1)):00.0"; }
card_mac() { echo "52:54:00:77:0$1:02"; }

EXCHANGE=${EXCHANGE:-${WATCH%/*}/exchange}

# The program image: iwarpd, iwarpctl and an application without what debuggers want, behind the base.
pci_initramfs() {
    local root=$LAB/programs
    [ ! -e "$LAB/initramfs" ] || return 0
    mkdir -p "$root/usr/bin"
    strip -o "$root/usr/bin/iwarpd" "$IWARPD" && strip -o "$root/usr/bin/iwarpctl" "$IWARPCTL" &&
        strip -o "$root/usr/bin/exchange" "$EXCHANGE" || return 1
    (cd "$root" && find . -print0 | cpio --null --quiet -o -H newc -R 0:0) >"$LAB/programs.cpio" &&
        cat "$PCI_IMAGE/base.cpio" "$LAB/programs.cpio" >"$LAB/initramfs"
}

# card_qemu KERNEL_DRIVER CARD…: the QEMU that has the cards. Debian 12's own has no igb; and with UIO, which masks and
# unmasks an interrupt by one byte of the card's command register, it leaves the interrupt's line asserted.
card_qemu() {
    local newer
    newer=$(cat "$PCI_IMAGE/qemu")
    QEMU=(qemu-system-x86_64)
    [[ " $* " == *" igb"* || $1 != vfio-pci ]] || return 0
    [ -n "$newer" ] || { echo "$* needs QEMU 8 or newer: $(cat "$PCI_IMAGE/no-igb")" >&2; return 1; }
    [ "$newer" = / ] || QEMU=("$newer/usr/bin/qemu-system-x86_64" -L "$newer/usr/share/qemu" -L /usr/share/seabios)
}

# card_device K CARD[,OPTION…]: QEMU's arguments for a card, in ARGS.
card_device() {
    local k=$1 model=${2%%,*} options=${2#"${2%%,*}"} queues=1 netdev
    if [[ $options =~ ,queues=([0-9]+) ]]; then
        queues=${BASH_REMATCH[1]}
        options=${options/,queues=$queues/}
    fi
    case $model in
        e1000e | igb | vmxnet3) ;;
        virtio) model=virtio-net-pci options+=,disable-legacy=on,iommu_platform=on ;;
        *) echo "no card $model" >&2; return 1 ;;
    esac
    netdev="tap,id=net$k,ifname=$PCI_NAME-$k,script=no,downscript=no,vhost=off"
    [ "$queues" = 1 ] || netdev+=",queues=$queues" options+=,mq=on,vectors=$((2 * queues + 2)),rss=on,hash=on
    [[ $options != *,hub* ]] || netdev="hubport,id=net$k,hubid=$k" options=${options/,hub/}
    CARD_DEVICES[$k]="$model,id=card$k,netdev=net$k,bus=slot$k,mac=$(card_mac "$k"),romfile=$options"
    ARGS+=(-device "pcie-root-port,id=slot$k,bus=pcie.0,addr=$((4 + k)),chassis=$((k + 1))"
        -netdev "$netdev" -device "${CARD_DEVICES[$k]}")
}

# The host's end of card K: a TAP.
host_side() {
    local interface=$1-$2 queues=$3
    if [ "$queues" = 1 ]; then
        in_ns ip tuntap add "$interface" mode tap
    else
        in_ns ip tuntap add "$interface" mode tap multi_queue
    fi
    kernel_side "$interface" "$((70 + $2 * 10 + 7))"
}

pci_qemu() {
    local driver=$1 cards=$2 control=$3 iommu=() kernel="console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0"
    kernel+=" no_timer_check hugepages=160"
    # uio_pci_generic knows no IOMMU: the card gets physical addresses.
    [ "$driver" != vfio-pci ] || { iommu=(-device intel-iommu,intremap=on,aw-bits=48) && kernel+=" intel_iommu=on"; }
    exec ip netns exec "$NS" "${QEMU[@]}" -name "pci-$PCI_NAME" -accel tcg,thread=multi -machine q35 \
        -cpu max -smp 2 -m 1024 -nodefaults -no-user-config -no-reboot -display none \
        -monitor "unix:$LAB/$PCI_NAME.monitor,server=on,wait=off" "${iommu[@]}" \
        -kernel "$PCI_IMAGE/vmlinux" -initrd "$LAB/initramfs" \
        -append "$kernel guest.driver=$driver guest.cards=$cards" -serial "file:$LAB/$PCI_NAME.console" \
        -device virtio-serial-pci -chardev "pipe,id=control,path=$control" \
        -device virtserialport,chardev=control,name=control -device virtio-rng-pci "${ARGS[@]}" \
        </dev/null >"$LAB/$PCI_NAME.qemu" 2>&1
}

pci_boot() {
    local PCI_NAME=$1 driver=$2 ARGS=() QEMU=() cards='' card k=0 queues
    shift 2
    pci_initramfs && card_qemu "$driver" "$@" || return 1
    for card in "$@"; do
        card_device $k "$card" || return 1
        queues=$(sed -n 's/.*,queues=\([0-9]*\).*/\1/p' <<<"$card")
        [[ $card == *,hub* ]] || host_side "$PCI_NAME" $k "${queues:-1}"
        cards+=,$(card_address $k)
        k=$((k + 1))
    done
    ARGS+=("${PCI_EXTRA[@]}")
    guest_launch "$PCI_NAME" pci_qemu "$driver" "${cards#,}"
}

monitor() { echo "$2" | nc -U -q 1 "$LAB/$1.monitor" >/dev/null; }

# pci_config NAME [KEY=VALUE…]: cards=1 mtu=1500 offloads=true cores=0 idle=adaptive vlan= descriptors=1024 buffers=8192
#                               applications=
pci_config() {
    local name=$1 setting k text
    local cards=1 mtu=1500 offloads=true cores=0 idle=adaptive vlan='' descriptors=1024 buffers=8192 applications=''
    shift
    for setting in "$@"; do local "${setting?}"; done
    text="[memory]
hugepages = \"require\"
packet_buffers = $buffers
[workers]
cores = [$cores]
idle = \"$idle\"
[tcp]
connections_max = 64
time_wait_ms = 1000
[limits]
neighbors_max = 64
grants_max = 256
[[listener]]
port = 7
service = \"echo\"
[[listener]]
port = 7400
service = \"region\"
[[region]]
name = \"lab\"
size = \"32M\"
access = [\"remote-read\", \"remote-write\"]
[control]
socket = \"/run/iwarpd.sock\"
${applications:+[applications]
socket = \"/run/verbs.sock\"
}"
    for k in $(seq 0 $((cards - 1))); do
        text+="[[port]]
name = \"card$k\"
driver = \"pci\"
address = \"$(card_address "$k")\"
mtu = $mtu
offloads = $offloads
rx_descriptors = $descriptors
tx_descriptors = $descriptors
addresses = [\"10.$((77 + k * 10)).0.2/24\", \"fd$((77 + k * 10))::2/64\"]
${vlan:+vlan = $vlan}
"
    done
    guest_run "$name" "echo $(base64 -w 0 <<<"$text") | base64 -d >/root/iwarpd.toml"
}

pci_ctl() {
    local name=$1
    shift
    guest_run "$name" "iwarpctl --socket /run/iwarpd.sock $*"
}

pci_start() {
    local ready
    ready='for i in $(seq 150); do iwarpctl --socket /run/iwarpd.sock status >/dev/null 2>&1; code=$?; '
    ready+='[ $code = 0 ] || [ $code = 6 ] && break; [ -d /proc/$daemon ] || break; sleep 0.2; done; '
    ready+='[ $code = 0 ] || [ $code = 6 ] || { cat /root/log; false; }'
    guest_run "$1" ': >/root/log; RUST_BACKTRACE=1 iwarpd --config /root/iwarpd.toml >/root/log 2>&1 & daemon=$!' &&
        guest_run "$1" "$ready"
}

pci_stop() {
    guest_run "$1" 'kill -TERM $daemon; wait $daemon; code=$?; [ $code = 0 ] || tail -n 20 /root/log; (exit $code)'
}
pci_log() { guest_run "$1" 'cat /root/log'; }
