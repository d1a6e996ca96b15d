"""writer.py HOST PORT REGION [--token TOKEN] [--idle] [--deaf]: an iWARP peer that writes 64 bytes to a region every
20 ms until the connection ends, or with --idle nothing at all.

Written from RFC 5044, 5041 and 5040, sharing no code with the product. Prints `granted`, or `refused STATUS`, when the
reply of the region service has come; then `terminate LAYER/TYPE/CODE`, `closed` (a FIN) or `reset`. SIGUSR1 has it
close the connection itself, and print `done`. With --deaf it does not close after the peer's FIN.
"""
import argparse
import select
import signal
import socket
import struct

parser = argparse.ArgumentParser()
parser.add_argument("host")
parser.add_argument("port", type=int)
parser.add_argument("region")
parser.add_argument("--token", default="")
parser.add_argument("--idle", action="store_true")
parser.add_argument("--deaf", action="store_true")
options = parser.parse_args()
PAUSE = 0.02
WRITE = 2


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


def fpdu(ulpdu):
    body = struct.pack(">H", len(ulpdu)) + ulpdu
    body += bytes(-len(body) % 4)
    return body + crc32c(body)


def say(text):
    print(text, flush=True)


def receive(stream, count):
    data = b""
    while len(data) < count:
        piece = stream.recv(count - len(data))
        if not piece:
            return data
        data += piece
    return data


def ended(stream):
    """Reads what the peer has sent: a Terminate (RFC 5040 §4.8), or the end of the stream."""
    try:
        head = receive(stream, 2)
        if not head:
            return "closed"
        ulpdu = receive(stream, struct.unpack(">H", head)[0])
    except ConnectionError:
        return "reset"
    if ulpdu[1] & 0xF != 7:
        return f"opcode {ulpdu[1] & 0xF}"
    layer_type, code = ulpdu[18], ulpdu[19]
    return f"terminate {layer_type >> 4:x}/{layer_type & 0xF:x}/{code:02x}"


over = []
signal.signal(signal.SIGUSR1, lambda *_: over.append(True))
name, token = options.region.encode(), options.token.encode()
private = b"IWR1" + bytes([WRITE, len(name), len(token), 0]) + name + token
sock = socket.create_connection((options.host, options.port), timeout=10)
sock.sendall(b"MPA ID Req Frame" + struct.pack(">BBH", 0x40, 1, len(private)) + private)
reply = receive(sock, 52)
if len(reply) < 52 or reply[24] != 0:
    say(f"refused {reply[24]}" if len(reply) == 52 else "closed")
    raise SystemExit
stag, base = struct.unpack(">I4xQ", reply[28:44])
write = fpdu(bytes([0xC1, 0x40]) + struct.pack(">IQ", stag, base) + bytes(64))
say("granted")
sock.settimeout(60)
while not over:
    if select.select([sock], [], [], PAUSE)[0]:
        say(ended(sock))
        while options.deaf:
            signal.pause()
        raise SystemExit
    if not options.idle:
        try:
            sock.sendall(write)
        except ConnectionError:
            # What came before the end is still there to be read.
            say(ended(sock))
            raise SystemExit
sock.shutdown(socket.SHUT_WR)
say("done" if ended(sock) == "closed" else "cut off")
