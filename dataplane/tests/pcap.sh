#!/bin/bash
# Checks our frames with tshark: with capture files in and out (net_pcap), with a live peer over a veth pair, and for
# every operation and kind of connection of two engines. `make wire-proof`.
source "$(dirname "$0")/lib.sh"
source dataplane/tests/dissect.sh

CAPTURE=${CAPTURE:-${BUILT:-target/release}/examples/capture}
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

# --- files in, files out
python3 dataplane/tests/questions.py >"$LAB/questions.pcap"
config "driver = \"pcap\"
rx_file = \"$LAB/questions.pcap\"
tx_file = \"$LAB/answers.pcap\"" >"$LAB/files.toml"
check "iwarpd reads a capture file" daemon_start "$LAB/files.toml"
sleep 1
check "and ends" daemon_stop
check "ARP answered" at_least 1 "$LAB/answers.pcap" \
    'arp.opcode == 2 && arp.src.proto_ipv4 == 10.77.0.2 && arp.dst.proto_ipv4 == 10.77.0.9'
check "ping answered" at_least 1 "$LAB/answers.pcap" 'icmp.type == 0 && icmp.seq == 7 && icmp.checksum.status == 1'
check "neighbor solicitation answered" at_least 1 "$LAB/answers.pcap" \
    'icmpv6.type == 136 && icmpv6.nd.na.target_address == fd77::2'
check "ping over IPv6 answered" at_least 1 "$LAB/answers.pcap" 'icmpv6.type == 129 && icmpv6.checksum.status == 1'
check "SYN answered" at_least 1 "$LAB/answers.pcap" \
    'tcp.flags.syn == 1 && tcp.flags.ack == 1 && tcp.srcport == 7400 && tcp.ack_raw == 1001'
check "SYN to a closed port reset" at_least 1 "$LAB/answers.pcap" 'tcp.flags.reset == 1 && tcp.srcport == 4444'
check "nothing malformed" none "$LAB/answers.pcap" '_ws.malformed'
check "checksums verified" at_least 2 "$LAB/answers.pcap" 'ip.checksum.status == 1 && tcp.checksum.status == 1'
check "every checksum right" none "$LAB/answers.pcap" \
    'ip.checksum.status == 0 || tcp.checksum.status == 0 || icmpv6.checksum.status == 0'

# --- the same in a VLAN; frames outside of the VLAN stay unanswered
python3 dataplane/tests/questions.py 42 >"$LAB/questions.pcap"
config "driver = \"pcap\"
vlan = 42
rx_file = \"$LAB/questions.pcap\"
tx_file = \"$LAB/tagged.pcap\"" >"$LAB/tagged.toml"
check "iwarpd in VLAN 42" daemon_start "$LAB/tagged.toml"
sleep 1
check "and ends" daemon_stop
for answer in 'arp.opcode == 2' 'icmp.type == 0' 'icmpv6.type == 136' 'icmpv6.type == 129' \
    'tcp.flags.syn == 1 && tcp.flags.ack == 1'; do
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
spawn "$LAB/tcpdump.log" ip netns exec "$NS" tcpdump -i wire1 -w "$LAB/live.pcap" -B 65536 -U tcp port 7400
capture=$PID
check "tcpdump listens" prints listening "$LAB/tcpdump.log"
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
bounds='iwarp_rdma.term_layer == 0 && iwarp_rdma.term_etype_rdma == 1 && iwarp_rdma.term_errcode_rdma == 1'
check "a Terminate seen: remote protection, bounds" at_least 1 "$LAB/live.pcap" "iwarp_rdma.opcode == 7 && $bounds"
check "nothing malformed" none "$LAB/live.pcap" '_ws.malformed'
check "no error-level remark" none "$LAB/live.pcap" '_ws.expert.severity == error'
check "every CRC right" crcs_right 1000 "$LAB/live.pcap"
check "checksums verified" at_least 1000 "$LAB/live.pcap" 'ip.checksum.status == 1 && tcp.checksum.status == 1'
check "no wrong checksum" none "$LAB/live.pcap" 'ip.checksum.status == 0 || tcp.checksum.status == 0'
check "SIGTERM ends it cleanly" daemon_stop

# --- two engines with every feature of the protocols. tshark 4.0 shows an enhanced frame's IRD and ORD (RFC 6581) as
# private data, and of Immediate Data (RFC 7306) only the opcode and the DDP header.
all=$LAB/all.pcap
check "two engines do all there is to do" "$CAPTURE" "$all"
for operation in \
    'RDMA Write, opcode == 0' 'Read Request, opcode == 1' 'Read Response, opcode == 2' 'Send, opcode == 3' \
    'Send with Invalidate, opcode == 4' 'Send with SE, opcode == 5' 'Send with SE and Invalidate, opcode == 6' \
    'Terminate, opcode == 7' 'Immediate Data, opcode == 8' 'Immediate Data with SE, opcode == 9' \
    'FetchAdd, atomic.opcode == 0' 'CmpSwap, atomic.opcode == 2' 'Atomic Response, atomic.original_remote_data_value' \
    'Terminate of DDP about a Write, term_errcode_ddp_tagged == 1' \
    'Terminate of DDP about a Send, term_errcode_ddp_untagged == 2' \
    'Terminate of RDMAP about a Read, term_errcode_rdma == 1' \
    'Terminate of RDMAP about an invalidation, term_errcode_rdma == 9' \
    'Terminate of MPA about the startup, term_errcode_llp == 7'; do
    check "${operation%,*}" at_least 1 "$all" "iwarp_rdma.${operation#*, }"
done
for revision in 1 2; do
    for frame in 'req && iwarp_mpa.marker_flag == 0 && iwarp_mpa.crc_flag == 1' \
        'req && iwarp_mpa.marker_flag == 1' 'rep && iwarp_mpa.marker_flag == 1' 'req && iwarp_mpa.crc_flag == 0' \
        'rep && iwarp_mpa.pdlength > 31' 'rep && iwarp_mpa.rej_flag == 1'; do
        check "MPA revision $revision: $frame" at_least 1 "$all" "iwarp_mpa.rev == $revision && iwarp_mpa.$frame"
    done
done
check "markers" at_least 10 "$all" 'iwarp_mpa.markers'
check "nothing malformed" none "$all" '_ws.malformed'
check "no warning, no error" none "$all" '_ws.expert.severity == warning || _ws.expert.severity == error'
check "every CRC right" crcs_right 200 "$all"
check "no wrong checksum" none "$all" 'ip.checksum.status == 0 || tcp.checksum.status == 0'
score
