#!/usr/bin/env python3
"""forged.py INTERFACE DAEMON_MAC KIND: measures what an honest peer receives while an attacker claims its address.

KIND is reply or gratuitous (ARP, over IPv4), or solicited or unsolicited (neighbor advertisements, over IPv6): the
claim is false and repeated for a while. Or KIND is moves4 or moves6: the interface changes its link address and
announces it. Reads chargen at a steady 4 MB/s with a small buffer, so that a pause is visible on a busy machine. Prints
one line of JSON: bytes per second before the first claim, during the claims and after, and the longest silence.
"""
import fcntl
import json
import os
import socket
import struct
import sys
import threading
import time

interface, daemon, kind = sys.argv[1], bytes.fromhex(sys.argv[2].replace(":", "")), sys.argv[3]
FORGER = b"\x02\x00\x00\x00\x66\x66"
V4 = [socket.inet_pton(socket.AF_INET, text) for text in ("10.77.0.1", "10.77.0.2")]
V6 = [socket.inet_pton(socket.AF_INET6, text) for text in ("fd77::1", "fd77::2")]
ALL_NODES = socket.inet_pton(socket.AF_INET6, "ff02::1")
LENGTH = 1.5 if kind.startswith("moves") else 1.0  # length of each part, seconds
RATE = 4_000_000  # rate of reading, bytes per second
EVERY = 0.1  # seconds between two false claims


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def arp(mac, operation, dst, target):
    packet = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, operation, mac, V4[0], bytes(6), target)
    return struct.pack("!6s6sH", dst, mac, 0x0806) + packet


def advertisement(mac, flags, dst, dst_mac):
    body = struct.pack("!BBHB3x16sBB6s", 136, 0, 0, flags, V6[0], 2, 1, mac)
    pseudo = V6[0] + dst + struct.pack("!I3xB", len(body), 58)
    body = body[:2] + struct.pack("!H", checksum(pseudo + body)) + body[4:]
    ip = struct.pack("!IHBB16s16s", 6 << 28, len(body), 58, 255, V6[0], dst)
    return struct.pack("!6s6sH", dst_mac, mac, 0x86DD) + ip + body


def claim(mac):
    solicited, override = 0x40, 0x20
    return {
        "reply": lambda: arp(mac, 2, daemon, V4[1]),
        "gratuitous": lambda: arp(mac, 1, b"\xff" * 6, V4[0]),
        "solicited": lambda: advertisement(mac, solicited | override, V6[1], daemon),
        "unsolicited": lambda: advertisement(mac, override, ALL_NODES, b"\x33\x33\0\0\0\1"),
    }[{"moves4": "gratuitous", "moves6": "unsolicited"}.get(kind, kind)]()


def set_address(mac):
    with socket.socket() as any_socket:
        request = struct.pack("16sH6s8x", interface.encode(), 1, mac)
        fcntl.ioctl(any_socket, 0x8924, request)  # SIOCSIFHWADDR


ipv6 = kind in ("solicited", "unsolicited", "moves6")
peer = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET)
peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 << 10)
peer.settimeout(20)
peer.connect(("fd77::2" if ipv6 else "10.77.0.2", 19))
port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
port.bind((interface, 0))
arrivals = []


def read():
    buffer = bytearray(RATE // 100)
    due = time.monotonic()
    while count := peer.recv_into(buffer):
        now = time.monotonic()
        arrivals.append((now, count))
        # Makes up for at most 50 ms of a pause.
        due = max(due + count / RATE, now - 0.05)
        time.sleep(max(due - now, 0))


threading.Thread(target=read, daemon=True).start()
time.sleep(0.5)
marks = [time.monotonic()]
time.sleep(LENGTH)
marks.append(time.monotonic())
if kind.startswith("moves"):
    moved = bytes((2, 0, 0, 0, 0x77, 4 if kind == "moves4" else 6))
    set_address(moved)
    # RFC 5227 §1.1: two announcements, 2 s apart.
    port.send(claim(moved))
    time.sleep(LENGTH)
else:
    while time.monotonic() < marks[1] + LENGTH:
        port.send(claim(FORGER))
        time.sleep(EVERY)
marks.append(time.monotonic())
time.sleep(LENGTH)
marks.append(time.monotonic())
times = [at for at, _ in arrivals] + [marks[3]]
rates = []
for begin, end in zip(marks, marks[1:]):
    rates.append(round(sum(count for at, count in arrivals if begin <= at < end) / (end - begin)))
gap = max(after - before for before, after in zip([marks[1]] + [t for t in times if t > marks[1]],
                                                  [t for t in times if t > marks[1]] + [marks[3]]))
print(json.dumps(dict(zip(("before", "during", "after"), rates), kind=kind, silent_ms=round(gap * 1000))), flush=True)
os._exit(0)
