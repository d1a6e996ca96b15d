"""Mooncake's transfer engine, the wheel of PyPI: two processes write and read 64 MiB five times, and compare them.

transfer_engine.py target HOST
transfer_engine.py initiator HOST TARGET'S HOST
"""

import ctypes
import os
import random
import socket
import struct
import sys

from mooncake.engine import TransferEngine

SIZE = 64 << 20
ROUNDS = 5
PORT = 7000
PLACE = struct.Struct("!HQ")


def content(seed):
    return random.Random(seed).randbytes(1 << 20) * (SIZE >> 20)


def target(host, engine, memory):
    peer, _ = socket.create_server((host, PORT)).accept()
    peer.sendall(PLACE.pack(engine.get_rpc_port(), ctypes.addressof(memory)))
    for number in range(ROUNDS):
        assert peer.recv(1) == b"w"
        assert memory.raw == content(number), "other bytes than the initiator has written"
        memory.raw = content(100 + number)
        peer.sendall(b"r")
    peer.recv(1)


def initiator(far_host, engine, memory):
    peer = socket.create_connection((far_host, PORT))
    port, far = PLACE.unpack(peer.recv(PLACE.size, socket.MSG_WAITALL))
    segment, own = f"{far_host}:{port}", ctypes.addressof(memory)
    for number in range(ROUNDS):
        memory.raw = content(number)
        assert engine.transfer_sync_write(segment, own, far, SIZE) == 0
        peer.sendall(b"w")
        assert peer.recv(1) == b"r"
        assert engine.transfer_sync_read(segment, own, far, SIZE) == 0
        assert memory.raw == content(100 + number), "other bytes than the target has"


if __name__ == "__main__":
    engine = TransferEngine()
    assert engine.initialize(sys.argv[2], "P2PHANDSHAKE", "rdma", "iwarp0") == 0
    memory = ctypes.create_string_buffer(SIZE)
    assert engine.register_memory(ctypes.addressof(memory), SIZE) == 0
    if sys.argv[1] == "target":
        target(sys.argv[2], engine, memory)
    else:
        initiator(sys.argv[3], engine, memory)
    print("all bytes are right", flush=True)
    # Not by `exit`: threads of the engine run on.
    os._exit(0)
