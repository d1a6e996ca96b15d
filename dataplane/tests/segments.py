"""Checks that TCP segments hold whole FPDUs (RFC 5044 section 5.1) but for those that Linux cuts. Where the window of
the peer ends within a segment, Linux may send the part that fits; the segments behind follow that cut
(tcp_mss_split_point) up to the next end that the sender asked for (MSG_EOR). Reads lines of tshark with the fields
below, of both directions.

Arguments: the port of the receiver, the least number of segments to it."""

import sys
from collections import defaultdict

# Bytes that may follow a cut: a run of the sender's, and one packet of the kernel's that had begun.
FOLLOW_MAX = (248 + 64) << 10


def holds_whole_fpdus(payload):
    at = 0
    while at < len(payload):
        ulpdu = int.from_bytes(payload[at : at + 2], "big")
        # The headers of DDP and RDMAP have 14 bytes or more.
        if ulpdu < 14:
            return False
        # The length field, the ULPDU, the padding to four bytes, the CRC.
        at += (2 + ulpdu + 3) // 4 * 4 + 4
    return at == len(payload)


segments = defaultdict(dict)
edges = defaultdict(set)
for line in sys.stdin:
    stream, port, seq, ack, window, payload = line.rstrip("\n").split("\t")
    if port != sys.argv[1]:
        edges[stream].add(int(ack) + int(window))
    elif payload and int(seq) > 1:  # The first one is the Request Frame.
        segments[stream][int(seq)] = bytes.fromhex(payload)

count = cut = 0
faults = []
for stream, payloads in segments.items():
    first = None
    for seq, payload in sorted(payloads.items()):
        count += 1
        if holds_whole_fpdus(payload):
            first = None
            continue
        cut += 1
        if first is None:
            first = seq
            if seq + len(payload) not in edges[stream]:
                faults.append(f"stream {stream}, {seq}: ends within an FPDU, and not where a window does")
        if seq - first > FOLLOW_MAX:
            faults.append(f"stream {stream}, {seq}: still follows the cut at {first}")
print(f"{count} segments, of which {cut} end within an FPDU", *faults[:5], sep="\n")
sys.exit(bool(faults) or count < int(sys.argv[2]))
