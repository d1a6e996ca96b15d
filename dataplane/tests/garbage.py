#!/usr/bin/env python3
"""garbage.py INTERFACE COUNT [SEED]: sends malformed frames to the host behind an interface.
garbage.py --streams HOST:PORT COUNT [SEED]: opens connections to a listener, and sends garbage in place of MPA.

The frames are random bytes, truncated headers, and TCP segments to open ports with wrong lengths, options and
checksums. The streams are random bytes, and MPA Requests with some of them; each ends its half, and the exit code is 0
if the listener ends each of them within two seconds. A seed makes a run repeatable.
"""
import random
import socket
import struct
import sys

streams = sys.argv[1] == "--streams"
interface, count, *seed = sys.argv[2 if streams else 1:]
count = int(count)
rng = random.Random(int(seed[0]) if seed else 1)


def stream():
    """Builds what a peer sends in place of an MPA Request: from wrong bytes to wrong private data."""
    request = bytearray(b"MPA ID Req Frame" + struct.pack(">BBH", 0x40, 1, 12) + b"IWR1\3\4\0\0none")
    if rng.random() < 0.3:
        return rng.randbytes(rng.choice((1, 19, 20, 21, 600, 70000)))
    for _ in range(rng.randrange(1, 4)):
        request[rng.randrange(len(request))] = rng.randrange(256)
    return bytes(request[:rng.randrange(len(request) + 1)] + rng.randbytes(rng.choice((0, 0, 1, 500))))


def send_streams():
    host, _, at = interface.rpartition(":")
    for number in range(count):
        sock = socket.create_connection((host.strip("[]"), int(at)), timeout=2)
        try:
            sock.sendall(stream())
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except TimeoutError:
            sys.exit(f"stream {number} has not ended 2 s later")
        except OSError:
            # A reset.
            pass
        sock.close()
    print(f"{count} streams sent")


if streams:
    send_streams()
    sys.exit()
port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
port.bind((interface, 0))
with open(f"/sys/class/net/{interface}/address", encoding="ascii") as file:
    mac = bytes.fromhex(file.read().strip().replace(":", ""))


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def tcp():
    """Builds a segment to one of our listeners with wrong header fields."""
    options = rng.randbytes(rng.choice((0, 4, 8, 20, 40)))
    payload = rng.randbytes(rng.choice((0, 1, 20, 400)))
    offset = rng.choice((len(options) // 4 + 5, rng.randrange(16)))
    header = struct.pack("!HHIIBBHHH", rng.randrange(65536), rng.choice((7, 9, 19, 7400, rng.randrange(65536))),
                         rng.getrandbits(32), rng.getrandbits(32), offset << 4, rng.randrange(256),
                         rng.randrange(65536), 0, rng.randrange(65536))
    segment = bytearray(header + options + payload)
    source, target = bytes((10, 77, 0, rng.randrange(1, 255))), bytes((10, 77, 0, 2))
    pseudo = source + target + struct.pack("!BBH", 0, 6, len(segment))
    if rng.random() < 0.8:
        segment[16:18] = struct.pack("!H", checksum(pseudo + bytes(segment)))
    length = 20 + len(segment) if rng.random() < 0.8 else rng.randrange(65536)
    ip = bytearray(struct.pack("!BBHHHBBH4s4s", 0x45 if rng.random() < 0.9 else rng.randrange(256), 0, length,
                               rng.randrange(65536), rng.choice((0, 0x4000, 0x2000, rng.randrange(65536))), 64, 6, 0,
                               source, target))
    ip[10:12] = struct.pack("!H", checksum(bytes(ip)))
    return struct.pack("!6s6sH", mac, b"\x02garba", 0x0800) + bytes(ip) + bytes(segment)


def noise():
    kind = rng.choice((0x0800, 0x86DD, 0x0806, 0x8100, rng.randrange(65536)))
    header = struct.pack("!6s6sH", rng.choice((mac, b"\xff" * 6)), b"\x02garba", kind)
    return header + rng.randbytes(rng.randrange(1, 1400))


for _ in range(count):
    frame = tcp() if rng.random() < 0.6 else noise()
    if rng.random() < 0.3:
        frame = frame[:rng.randrange(14, len(frame) + 1)]
    try:
        port.send(frame)
    except OSError:
        pass
print(f"{count} frames sent")
