"""hold.py HOST PORT REGION N [--read]: opens N connections to the region service, requests the region on each, and
keeps them open until it is ended. Prints the number of grants. With --read each requests the whole region and does not
read the response. With --silent none of them sends anything."""

import resource
import socket
import struct
import sys
import time

host, port, region, count = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), int(sys.argv[4])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
private = b"IWR1" + bytes([3, len(region), 0, 0]) + region
request = b"MPA ID Req Frame" + struct.pack(">BBH", 0x40, 1, len(private)) + private
REPLY = 20 + 32


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def read_request(reply):
    """Builds an FPDU with an RDMA Read Request (RFC 5040 §4.4) for the region in the reply of the region service."""
    stag, base, length = struct.unpack(">I4xQQ", reply[28:52])
    header = bytes([0x41, 0x41]) + struct.pack(">IIII", 0, 1, 1, 0)
    ulpdu = header + struct.pack(">IQIIQ", 1, 0, length, stag, base)
    fpdu = struct.pack(">H", len(ulpdu)) + ulpdu
    fpdu += bytes(-len(fpdu) % 4)
    return fpdu + struct.pack("<I", crc32c(fpdu))


silent = "--silent" in sys.argv
held, granted = [], 0
for _ in range(count):
    sock = socket.create_connection((host, port), timeout=10)
    if not silent:
        sock.sendall(request)
    held.append(sock)
for sock in [] if silent else held:
    reply = b""
    while len(reply) < REPLY and (more := sock.recv(REPLY - len(reply))):
        reply += more
    if "--read" in sys.argv:
        sock.sendall(read_request(reply))
    granted += reply[:16] == b"MPA ID Rep Frame" and len(reply) == REPLY and reply[24] == 0
print(f"{count} connections are open" if silent else f"{granted} of {count} granted", flush=True)
while True:
    time.sleep(60)
