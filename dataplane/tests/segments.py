"""Checks that 99 of 100 TCP segments hold whole FPDUs (RFC 5044 section 5.1). Where the peer's window ends within a
segment, Linux sends the part of it that fits, and the segments of that packet of the kernel's follow the cut
(tcp_mss_split_point). Reads payloads in hexadecimal, one segment per line, without the Request or Reply Frame;
argument: the least number of segments."""

import sys


def holds_whole_fpdus(payload):
    at = 0
    while at < len(payload):
        ulpdu = int.from_bytes(payload[at : at + 2], "big")
        # The length field, the ULPDU, the padding to four bytes, the CRC.
        at += (2 + ulpdu + 3) // 4 * 4 + 4
    return at == len(payload)


segments = [bytes.fromhex(line) for line in sys.stdin if line.strip()]
cut = [number for number, payload in enumerate(segments) if not holds_whole_fpdus(payload)]
print(f"{len(segments)} segments, of which {len(cut)} end within an FPDU (first ones: {cut[:5]})")
sys.exit(len(cut) * 100 > len(segments) or len(segments) < int(sys.argv[1]))
