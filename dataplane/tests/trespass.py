#!/usr/bin/env python3
"""trespass.py HOST PORT REGION [terminate]: an iWARP peer that reads one byte beyond a region and checks the Terminate.

Written from RFC 5044, 5041 and 5040, sharing no code with the product. Exits with 0 if the reply is the
Terminate of RFC 5040 §4.8: layer RDMAP, remote protection error, base and bounds violation, headers attached.
With `terminate` the peer sends a Terminate instead, for a CRC error, and exits with 0 if the stream then ends.
"""
import socket
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


def fpdu(ulpdu):
    body = struct.pack("!H", len(ulpdu)) + ulpdu
    body += bytes(-len(body) % 4)
    return body + crc32c(body)


def read_exactly(stream, count):
    data = b""
    while len(data) < count:
        piece = stream.recv(count - len(data))
        if not piece:
            sys.exit(f"closed after {len(data)} of {count} bytes")
        data += piece
    return data


host, port, region = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
stream = socket.create_connection((host, port), timeout=5)
wanted = b"IWR1" + bytes((1, len(region), 0, 0)) + region
stream.sendall(b"MPA ID Req Frame" + struct.pack("!BBH", 0x40, 1, len(wanted)) + wanted)

key, flags, _, length = struct.unpack("!16sBBH", read_exactly(stream, 20))
reply = read_exactly(stream, length)
if key != b"MPA ID Rep Frame" or flags & 0x20 or reply[4]:
    sys.exit(f"refused: flags {flags:#x}, status {reply[4]}")
stag, base, size = struct.unpack("!8xI4xQQ", reply)

if sys.argv[4:] == ["terminate"]:
    # Queue 2, MSN 1, offset 0; layer 2, type 0, code 2, and, as RFC 5040 figure 10 has it, no headers.
    stream.sendall(fpdu(struct.pack("!BBIIII", 0x41, 0x47, 0, 2, 1, 0) + bytes((0x20, 0x02, 0, 0))))
    sys.exit("bytes behind the Terminate" if stream.recv(1) else 0)

# Untagged, last, DDP 1; RDMAP 1, Read Request; queue 1, MSN 1, offset 0; sink 7 @ 0, one byte, from the end.
headers = struct.pack("!BBIIII", 0x41, 0x41, 0, 1, 1, 0) + struct.pack("!IQIIQ", 7, 0, 1, stag, base + size)
stream.sendall(fpdu(headers))

(length,) = struct.unpack("!H", read_exactly(stream, 2))
rest = read_exactly(stream, length + -(2 + length) % 4 + 4)
if crc32c(struct.pack("!H", length) + rest[:-4]) != rest[-4:]:
    sys.exit("the Terminate's CRC is wrong")
ulpdu = rest[:length]
control, queue = ulpdu[:2], struct.unpack("!I", ulpdu[6:10])[0]
terminate = ulpdu[18:]
print(f"control {control.hex()}, queue {queue}, terminate {terminate[:4].hex()}, {len(terminate)} bytes")
expected = bytes((0x01, 0x01, 0xE0, 0x00)) + struct.pack("!H", len(headers)) + headers
if control != b"\x41\x47" or queue != 2 or terminate != expected:
    sys.exit(f"expected {expected.hex()}\n     got {terminate.hex()}")
if stream.recv(1):
    sys.exit("bytes behind the Terminate")
