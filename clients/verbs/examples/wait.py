#!/usr/bin/env python3
"""wait.py: maps a region of iwarpd by its name and waits for a peer's write.

  wait.py lab 0 4096 >received      waits until the last of the 4096 bytes at offset 0 changes, then prints all

The program asks the daemon for the region's memory over the control socket: one line of JSON
(docs/control-socket.md), whose reply carries a descriptor. From then on it reads the memory itself. The end of a peer's
RDMA Write is placed after the rest (placement.last_segment), so the byte that is polled is the last one.
"""

import json
import mmap
import os
import socket
import sys
import time

SOCKET = "/run/iwarpd/control.sock"


def attach(path, name):
    """Asks the daemon for a region. Returns its description and its memory, mapped for reading."""
    request = {"jsonrpc": "2.0", "id": 1, "method": "region.attach", "params": {"name": name}}
    line, descriptors = b"", []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(path)
        client.sendall(json.dumps(request).encode() + b"\n")
        while not line.endswith(b"\n"):
            part, fds, _, _ = socket.recv_fds(client, 65536, 1)
            if not part:
                sys.exit(f"wait.py: {path}: the daemon closed the connection")
            line += part
            descriptors += fds
    reply = json.loads(line)
    if "error" in reply:
        sys.exit(f"wait.py: {name}: {reply['error']['message']}")
    # The whole file: its size is a multiple of the pages, which may be of 2 MiB.
    memory = mmap.mmap(descriptors[0], os.fstat(descriptors[0]).st_size, prot=mmap.PROT_READ)
    os.close(descriptors[0])
    return reply["result"], memory


def main():
    if len(sys.argv) != 4:
        print("usage: wait.py REGION OFFSET LENGTH", file=sys.stderr)
        sys.exit(2)
    name, offset, length = sys.argv[1], int(sys.argv[2], 0), int(sys.argv[3], 0)
    region, memory = attach(os.environ.get("IWARPCTL_SOCKET", SOCKET), name)
    if length < 1 or offset < 0 or offset + length > region["bytes"]:
        sys.exit(f"wait.py: {name}: the bytes are not inside the region")
    last = offset + length - 1
    before = memory[last]
    print(f"mapped {name}, {region['bytes']} bytes", file=sys.stderr)
    while memory[last] == before:
        time.sleep(0.0001)
    sys.stdout.buffer.write(memory[offset:offset + length])


main()
