#!/usr/bin/env bash
# One job of run.sh: one guest and the cases that it is for. Last line: `N passed, N failed`.
#
#   card.sh one CARD KERNEL_DRIVER [quick]   one card: everything that a card alone can show, or the most important
#   card.sh two CARD CARD KERNEL_DRIVER      two cards at once, one of which is unplugged and plugged in again
#   card.sh vlan CARD                        VLAN tags, between the guest's kernel and the guest's daemon
#   card.sh workers CARD[,queues=2] HOW      two workers; HOW frames get to theirs: by `port` or by `software`
#   card.sh unready                          cards that DPDK cannot use, and what is said of them
#   card.sh siw CARD                         Linux soft-iWARP in a second guest, with and without loss
source "$(dirname "$0")/../lib.sh"
source dataplane/tests/pci/guest.sh
source dataplane/tests/pci/cases.sh
source dataplane/tests/siw/guest.sh
source dataplane/tests/siw/loss.sh

PCI_IMAGE=${PCI_IMAGE:-$(dataplane/tests/pci/prepare.sh)} || exit 1
PCI_EXTRA=()
PUT_BYTES=3000001
KERNEL_DRIVER=vfio-pci
G=g

# boots KERNEL_DRIVER CARD…: or the job ends here.
boots() {
    KERNEL_DRIVER=$1
    check "$TITLE: the guest boots" pci_boot "$G" "$@"
    [ "$FAILED" = 0 ] || { tail -n 20 "$LAB/$G.console" "$LAB/$G.qemu"; score; exit 1; }
}

# begins SETTING…: the first start. Without it every other case would run into its timeout.
begins() {
    local failed=$FAILED
    check "$TITLE: the daemon starts" reconfigured "$@"
    [ "$FAILED" = "$failed" ] || { score; exit 1; }
}

# The offloads that each card has, as `port show` names them.
granted() {
    case $1 in
        e1000e) echo "rx-ip-checksum rx-tcp-checksum tx-ip-checksum tx-tcp-checksum" ;;
        igb) echo "rx-ip-checksum rx-tcp-checksum tx-ip-checksum tx-segmentation tx-tcp-checksum" ;;
        virtio | vmxnet3) echo "rx-tcp-checksum tx-segmentation tx-tcp-checksum" ;;
    esac
}

# Who verifies checksums where offloads are on: DPDK's driver of e1000e tells of wrong ones only.
verifier() { [ "$1" = e1000e ] && echo software || echo port; }

# Cards that have an interrupt per receive queue with this kernel driver.
has_interrupts() { [ "$2" = vfio-pci ] || [ "$1" = e1000e ] || [ "$1" = igb ]; }

job_one() {
    local card=$1 driver=$2 quick=${3:-}
    TITLE="$card on $driver"
    boots "$driver" "$card"
    begins
    check "$TITLE: the offloads that it has" has_offloads "$(granted "$card")"
    check "$TITLE: port show" port_in_detail "$card" "$driver"
    transfers 1500
    checksums
    check "$TITLE: the $(verifier "$card") verifies" verified "$(verifier "$card")"
    [ "$card" = e1000e ] || check "$TITLE: the card cuts" segments_cut
    check "$TITLE: a capture of received and sent frames" captured
    check "$TITLE: an idle daemon rests" rests 60
    check "$TITLE: a busy one works" works
    check "$TITLE: a frame wakes it" wakes
    check "$TITLE: interrupts are alive" interrupts_live
    [ -n "$quick" ] || flaps
    check "$TITLE: stops" pci_stop "$G"
    check "$TITLE: nothing to complain of" quiet_log 'link is down' 'no link'

    [ -n "$quick" ] && [ "$card" != igb ] || without_offloads "$card" "$driver"

    TITLE="$card on $driver, MTU 9000"
    ip -n "$NS" link set "$G-0" mtu 9000
    begins mtu=9000 idle=spin
    transfers 9000
    check "$TITLE: kill -9 and a new start" killed
    [ -n "$quick" ] || flaps
    check "$TITLE: stops" pci_stop "$G"
}

without_offloads() {
    TITLE="$1 on $2, offloads = false"
    begins offloads=false
    check "$TITLE: no offloads" has_offloads ""
    checksums
    check "$TITLE: software verifies" verified software
    check "$TITLE: stops" pci_stop "$G"
}

# flaps: also of a worker that spins, whose card has no interrupts on.
flaps() {
    check "$TITLE: link down and up during a put" flap
    check "$TITLE: the log tells of the link" logged 'link is up.*card0'
    check "$TITLE: so does its history" history 0 '.[-2:] == ["down", "up"]'
}

# port_in_detail CARD KERNEL_DRIVER: what `port show` tells of it.
port_in_detail() {
    local details interrupts
    # The history is written once a second.
    becomes '"up"' 5 port_show 0 '.link_history | last.link' || return 1
    details=$(pci_ctl "$G" -j port show card0) && echo "$details"
    interrupts=$(has_interrupts "$1" "$2" && echo per_queue || echo none)
    jq -e --arg address "$(card_address 0)" --arg driver "$2" --arg interrupts "$interrupts" \
        --arg granted "$(granted "$1")" '
        .bus_address == $address and .kernel_driver == $driver and .interrupts == $interrupts and .queues_max >= 1
        and (.offloads_requested | length) == 5 and (.offloads_granted | sort | join(" ")) == $granted
        and .rss_functions == [] and (.link_history | last.link) == "up"' <<<"$details"
}

# captured: tshark finds echo requests and replies in what `iwarpctl capture` writes in the guest.
captured() {
    local ping status=0
    ip netns exec "$NS" ping -i 0.2 -c 300 10.77.0.2 >/dev/null &
    ping=$!
    pci_ctl "$G" 'capture --port card0 --filter icmp --count 6 --seconds 30 - 2>/dev/null | base64' \
        >"$LAB/capture.base64" || status=1
    kill "$ping"
    base64 -d "$LAB/capture.base64" | tshark -n -r - -T fields -e ip.src -e icmp.type >"$LAB/captured" 2>/dev/null
    cat "$LAB/captured"
    [ "$(wc -l <"$LAB/captured")" = 6 ] && grep -q '^10.77.0.1.8$' "$LAB/captured" &&
        grep -q '^10.77.0.2.0$' "$LAB/captured" && return "$status"
}

# segments_cut: what the daemon sends leaves it in frames of several segments.
segments_cut() {
    local before after
    before=$(counter tcp runs_out)
    get 10.77.0.2 || return 1
    after=$(counter tcp runs_out)
    echo "$((after - before)) frames of several segments"
    [ "$((after - before))" -gt 10 ]
}

# Two ports on two cards at once; the one that stays serves while the other is away.
job_two() {
    local first=$1 second=$2 driver=$3
    TITLE="$first and $second on $driver"
    boots "$driver" "$first" "$second"
    begins cards=2
    check "$TITLE: put --verify on the first" put 10.77.0.2
    check "$TITLE: put --verify on the second" put 10.87.0.2
    check "$TITLE: both at once" both_at_once
    check "$TITLE: the first is unplugged" unplugs 0
    check "$TITLE: the second serves on, IPv4" put 10.87.0.2
    check "$TITLE: the second serves on, IPv6" put fd87::2
    check "$TITLE: the first is plugged in again" replugs 0
    check "$TITLE: put --verify on the first, IPv4" put 10.77.0.2
    check "$TITLE: put --verify on the first, IPv6" put fd77::2
    check "$TITLE: its history" history 0 '.[-2:] == ["gone", "up"] or .[-3:] == ["gone", "down", "up"]'
    check "$TITLE: the second is unplugged" unplugs 1
    check "$TITLE: the first serves on" put 10.77.0.2
    check "$TITLE: stops" pci_stop "$G"
    check "$TITLE: nothing to complain of" quiet_log 'link is down' 'no link' 'the card is gone'
}
history() {
    port_show "$1" '[.link_history[].link]'
    pci_ctl "$G" -j port show "card$1" | jq -e "[.link_history[].link] | $2"
}
port_show() { pci_ctl "$G" -j port show "card$1" | jq -c "$2"; }
both_at_once() {
    put 10.77.0.2 +16M >"$LAB/first.out" 2>&1 &
    local pid=$! status
    put fd87::2 +16M
    status=$?
    wait $pid && [ $status = 0 ]
}

# The kernel of this machine may have no 802.1Q module: tags are put on and taken off by the guest's.
job_vlan() {
    local card=$1 mtu lan dropped
    PCI_EXTRA=(-netdev hubport,id=lan,hubid=0 -device virtio-net-pci,netdev=lan,mac=52:54:00:77:00:01,addr=8,romfile=)
    TITLE="$card, VLAN 7"
    boots vfio-pci "$card,hub"
    # shellcheck disable=SC2016 # expanded in the guest
    lan='lan=$(basename $(dirname $(grep -l 52:54:00:77:00:01 /sys/class/net/*/address))) && ip link set $lan up && '
    lan+='ip link add link $lan name tagged type vlan id 7 && echo 0 >/proc/sys/net/ipv6/conf/tagged/accept_dad && '
    lan+='ip link set tagged up && ip addr add 10.77.0.1/24 dev tagged && ip -6 addr add fd77::1/64 dev tagged && '
    lan+='head -c 2000001 /dev/urandom >/root/file'
    # shellcheck disable=SC2016
    dropped='ip addr add 10.77.0.9/32 dev $lan && ! ping -c 1 -w 2 -I $lan 10.77.0.2; code=$?; '
    dropped+='ip addr del 10.77.0.9/32 dev $lan; (exit $code)'
    check "$TITLE: an interface of the guest's kernel" guest_run "$G" "$lan"
    for mtu in 1500 9000; do
        TITLE="$card, VLAN 7, MTU $mtu"
        # shellcheck disable=SC2016
        check "$TITLE: the kernel's side" guest_run "$G" "ip link set \$lan mtu $mtu && ip link set tagged mtu $mtu"
        begins vlan=7 mtu=$mtu cores=0
        check "$TITLE: ping" guest_run "$G" 'ping -c 2 -w 10 10.77.0.2 && ping -6 -c 2 -w 10 fd77::2'
        check "$TITLE: put --verify, IPv4" guest_run "$G" 'iwarpctl remote put --verify /root/file 10.77.0.2:7400/lab'
        check "$TITLE: get, IPv6" guest_run "$G" \
            'iwarpctl remote get "[fd77::2]:7400/lab" /root/got --length 2000001 && cmp /root/file /root/got'
        check "$TITLE: untagged frames are dropped" guest_run "$G" "$dropped"
        check "$TITLE: stops" pci_stop "$G"
    done
}

job_workers() {
    local card=$1 how=$2
    TITLE="${card%%,*}, two workers"
    boots vfio-pci "$card"
    begins cores=0,1 descriptors=4096 buffers=32768
    check "$TITLE: ping" in_ns ping -c 2 -i 0.2 -W 3 fd77::2
    check "$TITLE: put --verify, IPv4" put 10.77.0.2
    check "$TITLE: put --verify, IPv6" put fd77::2
    check "$TITLE: connections are spread by the $how" spread "$how"
    [ "$how" != port ] || check "$TITLE: what the port hashes" hashes
    check "$TITLE: a daemon beside the card" daemon_beside
    # The peer's af_packet does not see checksums that a card is to compute.
    check "$TITLE: with applications" \
        restart cores=0,1 offloads=false descriptors=4096 buffers=32768 applications=true
    check "$TITLE: programs of both workers connect, IPv4" connect_out 10.77.0.9:7400
    # QEMU's igb does not hash TCP over IPv6.
    [[ $card == igb* ]] ||
        check "$TITLE: programs of both workers connect, IPv6" connect_out '[fd77::9]:7400'
    daemon_stop
    check "$TITLE: stops" pci_stop "$G"
    check "$TITLE: nothing to complain of" quiet_log 'link is down' 'no link'
}
# A second daemon on this side of the card, with a region service.
daemon_beside() {
    cat >"$LAB/beside.toml" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 4096
file_prefix = "$NS"
[workers]
cores = [0]
idle = "adaptive"
[[port]]
name = "beside"
driver = "af_packet"
interface = "$G-0"
addresses = ["10.77.0.9/24", "fd77::9/64"]
rx_descriptors = 256
tx_descriptors = 256
[tcp]
connections_max = 64
[[listener]]
port = 7400
service = "region"
[[region]]
name = "there"
size = "1M"
access = ["remote-read", "remote-write"]
[control]
socket = "$SOCKET"
TOML
    in_ns ethtool -K "$G-0" tx off tso off gso off gro off >/dev/null 2>&1
    daemon_start "$LAB/beside.toml"
}
# connect_out ADDRESS: programs, two at a time, each on a worker of its own, connect to a region there.
connect_out() {
    local one opened before after
    before=$(segments_by_worker) opened=$(counter tcp active_opens)
    one="exchange --socket /run/verbs.sock --connect $1 --region there --size 100000 --timeout 20"
    # shellcheck disable=SC2016 # expanded in the guest
    guest_run "$G" 'failed=0; for i in $(seq 8); do '"$one & a=\$!; $one & b=\$!"'; wait $a || failed=1; '\
'wait $b || failed=1; [ $failed = 0 ] || break; done; (exit $failed)' || return 1
    after=$(segments_by_worker) opened=$(($(counter tcp active_opens) - opened))
    echo "$opened connections; frames sent by each worker: $before, then $after"
    [ "$opened" = 16 ] && both_sent "$before" "$after"
}

hashes() {
    port_show 0 '[.port.rx_queues, .rss_functions]'
    pci_ctl "$G" -j port show card0 |
        jq -e '.port.rx_queues == 2 and (.rss_functions | contains(["ipv4-tcp", "ipv6-tcp"]))'
}

# refuses PATTERN…: the daemon ends with 1, and says all that.
refuses() {
    local pattern
    guest_run "$G" 'iwarpd --config /root/iwarpd.toml >/root/log 2>&1; [ $? = 1 ]' || { pci_log "$G"; return 1; }
    pci_log "$G" >"$LAB/refusal"
    cat "$LAB/refusal"
    for pattern in "$@"; do
        tr -s ' \n' ' ' <"$LAB/refusal" | grep -qF -e "$pattern" || { echo "says nothing of: $pattern"; return 1; }
    done
}
# does_as_told: the commands that the refusal names, as they stand there.
does_as_told() {
    local commands
    commands=$(sed -n '/bind it to vfio-pci/,/drivers_probe/p' "$LAB/refusal" | sed '1d; s/^ *//')
    echo "$commands"
    # The guest has vfio-pci already, and no modprobe that would find it.
    [ -n "$commands" ] && guest_run "$G" "modprobe() { :; }; $(tr '\n' ';' <<<"$commands") true" && pci_start "$G"
}
job_unready() {
    local address
    address=$(card_address 0)
    TITLE="a card that is not ready"
    boots vfio-pci virtio
    pci_config "$G"
    guest_run "$G" "echo $address >/sys/bus/pci/devices/$address/driver/unbind"
    check "$TITLE: no driver" refuses "no kernel driver is bound to the PCI device $address" "drivers_probe"
    check "$TITLE: the commands that the message names bind it" does_as_told
    check "$TITLE: put --verify" put 10.77.0.2
    check "$TITLE: stops" pci_stop "$G"
    guest_run "$G" "pci_bind $address virtio-pci"
    check "$TITLE: the kernel's own driver" refuses "the kernel driver virtio-pci owns the PCI device $address" \
        "driver_override"
    check "$TITLE: the commands that the message names bind it" does_as_told
    check "$TITLE: a second daemon is refused" refuses_second
    check "$TITLE: stops" pci_stop "$G"
    guest_run "$G" "sed -i s/01:00.0/09:00.0/ /root/iwarpd.toml"
    check "$TITLE: a wrong address" refuses "there is no PCI device 0000:09:00.0" "$address (vfio-pci)"
}
# The kernel gives a card to one process.
refuses_second() {
    local second
    second='sed s,/run/iwarpd.sock,/run/second.sock, /root/iwarpd.toml >/root/second.toml; '
    # shellcheck disable=SC2016 # expanded in the guest
    second+='iwarpd --config /root/second.toml >/root/second.log 2>&1; code=$?; cat /root/second.log; [ $code = 1 ]'
    guest_run "$G" "$second" | tee "$LAB/second"
    grep -q "does not take the PCI device $(card_address 0)" "$LAB/second" && grep -q 'vfio-pci' "$LAB/second" &&
        put 10.77.0.2
}

siw_client() {
    guest_client siw 150 --timeout 60 --host "${2:-10.77.0.2}" --port 7400 --region lab --size "$1" \
        --ops write,read "${@:3}"
}
job_siw() {
    local card=$1
    GUEST_NETNS=$NS
    TITLE="soft-iWARP and $card"
    boots vfio-pci "$card"
    in_ns ip addr flush dev "$G-0"
    ip -n "$NS" link add br0 type bridge mcast_snooping 0
    in_ns ip tuntap add guest0 mode tap
    in_ns sh -c "for i in $G-0 guest0 br0; do echo 1 >/proc/sys/net/ipv6/conf/\$i/disable_ipv6; done"
    ip -n "$NS" link set "$G-0" master br0
    ip -n "$NS" link set guest0 master br0 up
    ip -n "$NS" link set br0 up
    begins cores=0
    check "$TITLE: the second guest boots" guest_boot siw guest0 52:54:00:77:00:03 10.77.0.3/24 fd77::3/64
    check "$TITLE: ping" guest_run siw 'ping -c 3 -w 10 10.77.0.2 && ping -6 -c 3 -w 10 fd77::2'
    check "$TITLE: Writes and Reads, IPv4" siw_client 8388608 10.77.0.2 --seed 1
    check "$TITLE: Writes and Reads, IPv6" siw_client 8388608 fd77::2 --seed 2
    check "$TITLE: four queue pairs" siw_client 2097152 10.77.0.2 --qps 4 --seed 3
    loss_on 100
    check "$TITLE, 1 % loss: Writes and Reads, IPv4" siw_client 8388608 10.77.0.2 --seed 4
    check "$TITLE, 1 % loss: Writes and Reads, IPv6" siw_client 8388608 fd77::2 --seed 5
    check "$TITLE, 1 % loss: four queue pairs" siw_client 2097152 10.77.0.2 --qps 4 --seed 6
    check "$TITLE, 1 % loss: happened" loss_happened
    loss_off
    check "$TITLE: still serving" siw_client 1048576 10.77.0.2 --seed 7
    check "$TITLE: stops" pci_stop "$G"
}

lab_open ironwarp-pci
GUEST_LOGS=$LAB
AT_END+=(guest_stop_all)
job=$1
shift
new_file
"job_$job" "$@"
echo "job $((SECONDS)) s"
score
