#!/usr/bin/env python3
"""Emulates a bad link between two interfaces: loses, delays, reorders, duplicates and corrupts frames.

Both interfaces must have their offloads off (ethtool -K IF tso off gso off gro off tx off), or frames longer than a
link can carry arrive. A seed makes the treatment of the same frames repeatable. Ends on SIGTERM or SIGINT and prints
its counters as one JSON object.
"""
import argparse
import heapq
import json
import random
import select
import signal
import socket
import time

FRAME_MAX = 16384
BURST = 64
# asm-generic/socket.h: Python does not define these.
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33


def open_port(name):
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
    port.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 32 << 20)
    port.bind((name, 0))
    port.setblocking(False)
    return port


class Wire:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.queue = []
        self.count = 0
        self.stats = dict.fromkeys(
            ("forwarded", "lost", "reordered", "duplicated", "corrupted", "oversize", "refused"), 0)

    def take(self, now, frame, out):
        """Decides the treatment of a frame that enters the link."""
        options, chance = self.options, self.random.random
        if options.frame_max and len(frame) > options.frame_max:
            self.stats["oversize"] += 1
            return
        if chance() < options.loss:
            self.stats["lost"] += 1
            return
        if chance() < options.corrupt and len(frame) > 60:
            frame = bytearray(frame)
            frame[self.random.randrange(34, len(frame))] ^= 1 << self.random.randrange(8)
            self.stats["corrupted"] += 1
        due = now + options.delay_ms / 1e3
        if chance() < options.reorder:
            due += options.reorder_ms / 1e3
            self.stats["reordered"] += 1
        self.put(due, frame, out)
        if chance() < options.duplicate:
            self.stats["duplicated"] += 1
            self.put(due, frame, out)

    def put(self, due, frame, out):
        self.count += 1
        heapq.heappush(self.queue, (due, self.count, frame, out))

    def deliver(self, now):
        """Sends the frames that are due; returns the time until the next one."""
        while self.queue:
            due, _, frame, out = self.queue[0]
            if due > now:
                return due - now
            heapq.heappop(self.queue)
            try:
                out.send(frame)
                self.stats["forwarded"] += 1
            except OSError:
                self.stats["refused"] += 1
        return 0.2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", help="one interface")
    parser.add_argument("b", help="the other interface")
    for name, text in (("loss", "lost"), ("reorder", "held back by --reorder-ms"), ("duplicate", "sent twice"),
                       ("corrupt", "damaged by one bit")):
        parser.add_argument(f"--{name}", type=float, default=0.0, help=f"share of frames that are {text}, 0 to 1")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one-way delay of every frame")
    parser.add_argument("--reorder-ms", type=float, default=1.0, help="further delay of a reordered frame")
    parser.add_argument("--frame-max", type=int, default=0, help="frames longer than this vanish (0: none)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    ports = open_port(options.a), open_port(options.b)
    other = {ports[0]: ports[1], ports[1]: ports[0]}
    wire = Wire(options)
    running = True

    def stop(*_):
        nonlocal running
        running = False

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    wait = 0.2
    print("ready", flush=True)
    while running:
        readable, _, _ = select.select(ports, [], [], wait)
        for port in readable:
            for _ in range(BURST):
                try:
                    frame, address = port.recvfrom(FRAME_MAX)
                except BlockingIOError:
                    break
                if address[2] != socket.PACKET_OUTGOING:
                    wire.take(time.monotonic(), frame, other[port])
        wait = wire.deliver(time.monotonic())
    print(json.dumps(wire.stats), flush=True)


main()
