#!/usr/bin/env python3
"""questions.py [VLAN]: writes a capture of frames that 10.77.0.2 / fd77::2 must answer to stdout."""
import struct
import sys
from ipaddress import ip_address

US, PEER = bytes.fromhex("024957000002"), bytes.fromhex("024957000009")
US4, PEER4 = ip_address("10.77.0.2").packed, ip_address("10.77.0.9").packed
US6, PEER6 = ip_address("fd77::2").packed, ip_address("fd77::9").packed


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


def put(data, at, two):
    return data[:at] + two + data[at + 2:]


TAG = struct.pack("!HH", 0x8100, int(sys.argv[1])) if len(sys.argv) > 1 else b""


def ethernet(kind, payload, target=US):
    return target + PEER + TAG + struct.pack("!H", kind) + payload


def ipv4(protocol, payload):
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0x4000, 64, protocol, 0) + PEER4 + US4
    return ethernet(0x0800, put(header, 10, checksum(header)) + payload)


def ipv6(payload, target=US6, mac=US):
    pseudo = PEER6 + target + struct.pack("!II", len(payload), 58)
    payload = put(payload, 2, checksum(pseudo + payload))
    return ethernet(0x86DD, struct.pack("!IHBB", 6 << 28, len(payload), 58, 255) + PEER6 + target + payload, mac)


def syn(port):
    segment = struct.pack("!HHIIBBHHH", 40000 + port % 100, port, 1000, 0, 0x60, 0x02, 64240, 0, 0)
    segment += b"\x02\x04\x05\xb4"
    return ipv4(6, put(segment, 16, checksum(PEER4 + US4 + struct.pack("!HH", 6, len(segment)) + segment)))


def frames():
    yield ethernet(0x0806, struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + PEER + PEER4 + bytes(6) + US4, b"\xff" * 6)
    echo = struct.pack("!BBHHH", 8, 0, 0, 1, 7) + bytes(range(56))
    yield ipv4(1, put(echo, 2, checksum(echo)))
    solicited = bytes.fromhex("ff0200000000000000000001ff") + US6[13:]
    yield ipv6(struct.pack("!BBHI", 135, 0, 0, 0) + US6 + b"\x01\x01" + PEER, solicited, b"\x33\x33\xff" + US6[13:])
    yield ipv6(struct.pack("!BBHHH", 128, 0, 0, 1, 7) + bytes(range(56)))
    yield syn(7400)
    yield syn(4444)


out = sys.stdout.buffer
out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
for number, frame in enumerate(frames()):
    frame = frame.ljust(60, b"\0")
    out.write(struct.pack("<IIII", 1, number, len(frame), len(frame)) + frame)
