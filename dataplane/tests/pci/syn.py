#!/usr/bin/env python3
"""syn.py INTERFACE DAEMON_MAC FAMILY KIND: what answers a SYN to port 7 that lies in the frame as it is given.

FAMILY is 4 or 6. KIND is good; tcp, with a wrong TCP checksum; or ip, with a wrong checksum of the IPv4 header. Prints
`answered` when a SYN-ACK comes within two seconds, else `silent`. The frame leaves by a raw socket: no kernel touches
its checksums.
"""
import os
import select
import socket
import struct
import sys
import time

interface, daemon, family, kind = sys.argv[1], bytes.fromhex(sys.argv[2].replace(":", "")), sys.argv[3], sys.argv[4]
net = int(os.environ.get("NET", "77"))
mine = bytes.fromhex(open(f"/sys/class/net/{interface}/address").read().strip().replace(":", ""))
# An address of its own, so that the kernel resets nothing.
if family == "4":
    source, target = (socket.inet_pton(socket.AF_INET, f"10.{net}.0.{host}") for host in (9, 2))
else:
    source, target = (socket.inet_pton(socket.AF_INET6, f"fd{net}::{host}") for host in (9, 2))
port = 1024 + os.getpid() % 60000


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame():
    syn = struct.pack("!HHIIBBHHH", port, 7, 1000, 0, 5 << 4, 2, 65535, 0, 0)
    tcp = checksum(source + target + struct.pack("!IxxxB", len(syn), 6) + syn) ^ (0x5555 if kind == "tcp" else 0)
    syn = syn[:16] + struct.pack("!H", tcp) + syn[18:]
    if family == "6":
        return struct.pack("!6s6sHIHBB16s16s", daemon, mine, 0x86DD, 6 << 28, len(syn), 6, 64, source, target) + syn
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(syn), 0, 0x4000, 64, 6, 0, source, target)
    ip = ip[:10] + struct.pack("!H", checksum(ip) ^ (0x5555 if kind == "ip" else 0)) + ip[12:]
    return struct.pack("!6s6sH", daemon, mine, 0x0800) + ip + syn


def advertise(wire):
    """Answers for the address of ours: an ARP reply or a neighbor advertisement, unasked."""
    if family == "4":
        arp = (1, 0x0800, 6, 4, 2, mine, source, daemon, target)
        wire.send(struct.pack("!6s6sHHHBBH6s4s6s4s", daemon, mine, 0x0806, *arp))
        return
    body = struct.pack("!BBHB3x16sBB6s", 136, 0, 0, 0x60, source, 2, 1, mine)
    pseudo = source + target + struct.pack("!IxxxB", len(body), 58)
    body = body[:2] + struct.pack("!H", checksum(pseudo + body)) + body[4:]
    wire.send(struct.pack("!6s6sHIHBB16s16s", daemon, mine, 0x86DD, 6 << 28, len(body), 58, 255, source, target) + body)


def is_answer(data):
    at = 14 + (20 if family == "4" else 40)
    if len(data) < at + 20 or data[:6] != mine:
        return False
    return struct.unpack("!HH", data[at : at + 4]) == (7, port) and data[at + 13] & 0x12 == 0x12


wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind((interface, 0))
end, sent = time.monotonic() + 2, 0
while time.monotonic() < end:
    # The daemon asks for our link address before it answers: it is told again and again.
    if time.monotonic() - sent > 0.2:
        sent = time.monotonic()
        wire.send(frame())
        advertise(wire)
    if select.select([wire], [], [], 0.05)[0] and is_answer(wire.recv(2048)):
        print("answered")
        sys.exit(0)
print("silent")
