#!/bin/bash
# What we put on the wire, judged by tshark: once with capture files in and out (net_pcap), once with a
# live peer over a veth pair. `make wire-proof`.
source "$(dirname "$0")/lib.sh"

lab_open ironwarp-pcap
.ci/hugepages.sh 320 || true

config() { # PORT LINES…: the rest of a configuration around a [[port]] entry's driver lines
    cat <<TOML
[memory]
hugepages = "prefer"
file_prefix = "$NS"
[control]
socket = "$SOCKET"
[workers]
cores = [0]
idle = "adaptive"
[[port]]
name = "p0"
mac = "02:49:57:00:00:02"
addresses = ["10.77.0.2/24", "fd77::2/64"]
$1
[[listener]]
port = 7400
service = "region"
[[region]]
name = "lab"
size = "16M"
access = ["remote-read", "remote-write"]
TOML
}

# A filter that tshark does not understand is an error, not a capture without such frames.
dissect() { tshark -n -o ip.check_checksum:TRUE -o tcp.check_checksum:TRUE -r "$1" "${@:2}" 2>"$LAB/tshark.err" || { cat "$LAB/tshark.err" >&2; return 1; }; }
count() { local lines; lines=$(dissect "$1" -Y "$2") || exit 1; printf '%s' "$lines" | grep -c .; }
at_least() { # N FILE FILTER
    local seen
    seen=$(count "$2" "$3") || [ -n "$seen" ] || return 1
    echo "$seen frames match $3"
    [ "$seen" -ge "$1" ]
}
none() { # FILE FILTER
    local seen
    seen=$(count "$1" "$2") || [ -n "$seen" ] || return 1
    [ "$seen" -eq 0 ] || { echo "$seen frames match $2"; dissect "$1" -Y "$2" | head -5; return 1; }
}

crcs_right() { # tshark computes each FPDU's CRC32c itself
    local verdicts good all
    verdicts=$(dissect "$1" -Y iwarp_mpa.fpdu -V | grep -o 'CRC check: .*') || return 1
    all=$(grep -c . <<<"$verdicts")
    good=$(grep -c '(Good CRC32)$' <<<"$verdicts")
    echo "$good of $all CRCs are right"
    [ "$all" -gt 1000 ] && [ "$good" = "$all" ]
}

# --- files in, files out
python3 dataplane/tests/questions.py >"$LAB/questions.pcap"
config "driver = \"pcap\"
rx_file = \"$LAB/questions.pcap\"
tx_file = \"$LAB/answers.pcap\"" >"$LAB/files.toml"
check "iwarpd reads a capture file" daemon_start "$LAB/files.toml"
sleep 1
check "and ends" daemon_stop
check "ARP answered" at_least 1 "$LAB/answers.pcap" 'arp.opcode == 2 && arp.src.proto_ipv4 == 10.77.0.2 && arp.dst.proto_ipv4 == 10.77.0.9'
check "ping answered" at_least 1 "$LAB/answers.pcap" 'icmp.type == 0 && icmp.seq == 7 && icmp.checksum.status == 1'
check "neighbour solicitation answered" at_least 1 "$LAB/answers.pcap" 'icmpv6.type == 136 && icmpv6.nd.na.target_address == fd77::2'
check "ping over IPv6 answered" at_least 1 "$LAB/answers.pcap" 'icmpv6.type == 129 && icmpv6.checksum.status == 1'
check "SYN answered" at_least 1 "$LAB/answers.pcap" 'tcp.flags.syn == 1 && tcp.flags.ack == 1 && tcp.srcport == 7400 && tcp.ack_raw == 1001'
check "SYN to a closed port reset" at_least 1 "$LAB/answers.pcap" 'tcp.flags.reset == 1 && tcp.srcport == 4444'
check "nothing malformed" none "$LAB/answers.pcap" '_ws.malformed'
check "checksums verified" at_least 2 "$LAB/answers.pcap" 'ip.checksum.status == 1 && tcp.checksum.status == 1'
check "every checksum right" none "$LAB/answers.pcap" 'ip.checksum.status == 0 || tcp.checksum.status == 0 || icmpv6.checksum.status == 0'

# --- the same in a VLAN, and what is not in it stays unanswered
python3 dataplane/tests/questions.py 42 >"$LAB/questions.pcap"
config "driver = \"pcap\"
vlan = 42
rx_file = \"$LAB/questions.pcap\"
tx_file = \"$LAB/tagged.pcap\"" >"$LAB/tagged.toml"
check "iwarpd in VLAN 42" daemon_start "$LAB/tagged.toml"
sleep 1
check "and ends" daemon_stop
for answer in 'arp.opcode == 2' 'icmp.type == 0' 'icmpv6.type == 136' 'icmpv6.type == 129' 'tcp.flags.syn == 1 && tcp.flags.ack == 1'; do
    check "tagged: $answer" at_least 1 "$LAB/tagged.pcap" "vlan.id == 42 && $answer"
done
check "everything is tagged" none "$LAB/tagged.pcap" 'not vlan'
check "nothing malformed" none "$LAB/tagged.pcap" '_ws.malformed'
python3 dataplane/tests/questions.py 43 >"$LAB/questions.pcap"
foreign() { [ "$(ctl -j drops | jq '[.[] | select(.reason == "ethernet_vlan") | .count] | add')" -ge 6 ]; }
check "iwarpd in VLAN 42, frames of VLAN 43" daemon_start "$LAB/tagged.toml"
sleep 1
check "each is dropped, and counted" foreign
check "and ends" daemon_stop
check "none is answered" none "$LAB/tagged.pcap" 'arp.opcode == 2 || icmp || icmpv6.type == 129 || tcp'

# --- a live peer
in_ns ip link add wire0 type veth peer name wire1
for interface in wire0 wire1; do
    in_ns ethtool -K "$interface" tso off gso off gro off tx off rx off >/dev/null 2>&1
    in_ns ip link set "$interface" up
done
kernel_side wire1
config 'driver = "pcap"
interface = "wire0"' >"$LAB/live.toml"
check "iwarpd on a live interface (net_pcap)" daemon_start "$LAB/live.toml"
ip netns exec "$NS" tcpdump -i wire1 -w "$LAB/live.pcap" -B 65536 -U tcp port 7400 >"$LAB/tcpdump.log" 2>&1 &
capture=$!
for _ in $(seq 50); do grep -q listening "$LAB/tcpdump.log" && break; sleep 0.1; done
head -c 3000001 /dev/urandom >"$LAB/file"
check "put" remote put "$LAB/file" 10.77.0.2:7400/lab+3
check "get" remote get 10.77.0.2:7400/lab+3 "$LAB/got" --length 3000001
check "the same bytes" cmp "$LAB/file" "$LAB/got"
check "a region that does not exist is refused" eval '! remote get 10.77.0.2:7400/none "$LAB/none" --length 1'
check "a read beyond the end is terminated" in_ns python3 dataplane/tests/trespass.py 10.77.0.2 7400 lab
sleep 1
kill -INT "$capture"; wait "$capture"
check "MPA requests and replies seen" at_least 4 "$LAB/live.pcap" 'iwarp_mpa.req || iwarp_mpa.rep'
check "RDMA Writes seen" at_least 1000 "$LAB/live.pcap" 'iwarp_rdma.opcode == 0'
check "RDMA Reads seen" at_least 1 "$LAB/live.pcap" 'iwarp_rdma.opcode == 1'
check "Read Responses seen" at_least 1000 "$LAB/live.pcap" 'iwarp_rdma.opcode == 2'
check "a Terminate seen: remote protection, bounds" at_least 1 "$LAB/live.pcap" 'iwarp_rdma.opcode == 7 && iwarp_rdma.term_layer == 0 && iwarp_rdma.term_etype_rdma == 1 && iwarp_rdma.term_errcode_rdma == 1'
check "nothing malformed" none "$LAB/live.pcap" '_ws.malformed'
check "no error-level remark" none "$LAB/live.pcap" '_ws.expert.severity == error'
check "every CRC right" crcs_right "$LAB/live.pcap"
check "checksums verified" at_least 1000 "$LAB/live.pcap" 'ip.checksum.status == 1 && tcp.checksum.status == 1'
check "no wrong checksum" none "$LAB/live.pcap" 'ip.checksum.status == 0 || tcp.checksum.status == 0'
check "SIGTERM ends it cleanly" daemon_stop
score
