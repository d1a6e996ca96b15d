#!/usr/bin/env python3
"""Checks a capture of NFS over RDMA with tshark's dissectors: `wire.py CAPTURE CREDITS`.

It prints what it has seen, and each violation of a rule of RFC 8166 or RFC 8797. The exit code is 1 if there is one, or
if a kind of message is missing. CREDITS is the number that the server grants. The capture must begin before the
connections do.
"""
import collections
import subprocess
import sys

SERVER_PORT = "20049"
MSG, NOMSG = "0", "1"
# RDMAP opcodes (RFC 5040, figure 4).
WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INVALIDATE, SEND_SE, SEND_SE_INVALIDATE, TERMINATE = range(8)
SENDS = (SEND, SEND_INVALIDATE, SEND_SE, SEND_SE_INVALIDATE)
# Bytes of the header of a tagged DDP segment (RFC 5041, figure 3).
TAGGED_HEADER = 14
# RFC 8797 §4: format identifier, version 1; the next byte has the flag of remote invalidation.
PRIVATE_DATA = "f6ab0e1801"

FIELDS = ("frame.number", "tcp.stream", "tcp.srcport", "iwarp_mpa.privatedata", "iwarp_mpa.ulpdulength",
          "iwarp_rdma.opcode", "iwarp_ddp.last_flag", "iwarp_ddp.stag", "iwarp_rdma.inval_stag",
          "iwarp_rdma.srcstag", "iwarp_rdma.rdmardsz", "rpcordma.xid", "rpcordma.version", "rpcordma.flow_control",
          "rpcordma.msg_type", "rpcordma.reads_count", "rpcordma.writes_count", "rpcordma.reply_count",
          "rpcordma.position", "rpcordma.segment_count", "rpcordma.rdma_handle", "rpcordma.rdma_length")


def tshark(path, *options):
    """Runs tshark, and returns the lines that it prints."""
    command = ["tshark", "-n", "-r", path, "--disable-protocol", "smb_direct", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def frames(path):
    """Yields each frame as a dictionary of lists. NFS stays out: the lists of its messages say all that counts here."""
    options = [option for field in FIELDS for option in ("-e", field)]
    for line in tshark(path, "-Y", "iwarp_mpa", "--disable-protocol", "nfs", "-T", "fields", "-E", "separator=|",
                       "-E", "aggregator=;", *options):
        values = (value.split(";") if value else [] for value in line.split("|"))
        yield dict(zip(FIELDS, values, strict=True))


def number(text):
    return int(text, 0)


class Message:
    """A message of RPC over RDMA, taken from the lists of its frame in the order of the header's fields."""

    def __init__(self, frame):
        def take(field):
            return frame[field].pop(0)

        def segment():
            return number(take("rpcordma.rdma_handle")), number(take("rpcordma.rdma_length"))

        def chunk():
            return [segment() for _ in range(number(take("rpcordma.segment_count")))]

        self.xid, self.version, self.kind = (take(f"rpcordma.{it}") for it in ("xid", "version", "msg_type"))
        self.credits = number(take("rpcordma.flow_control"))
        self.reads = []
        for _ in range(number(take("rpcordma.reads_count"))):
            take("rpcordma.position")
            self.reads.append(segment())
        self.writes = [chunk() for _ in range(number(take("rpcordma.writes_count")))]
        self.reply = chunk() if number(take("rpcordma.reply_count")) else None

    def writable(self):
        """Lists the segments that the responder may write."""
        return [segment for chunk in self.writes + [self.reply or []] for segment in chunk]

    def shape(self):
        lists = (("read", self.reads), ("write", self.writes), ("reply", self.reply))
        chunks = "+".join(name for name, content in lists if content) or "no"
        return f"{'RDMA_MSG' if self.kind == MSG else 'RDMA_NOMSG'} with {chunks} chunk"


class Connection:
    """One connection: calls in flight by XID, and the bytes moved by STag."""

    def __init__(self):
        self.calls = {}
        self.private_data = {}
        self.written = collections.Counter()
        self.fetched = collections.Counter()


class Wire:
    def __init__(self, credits):
        self.credits = credits
        self.seen = collections.Counter()
        self.violations = []
        self.connections = collections.defaultdict(Connection)

    def require(self, holds, text):
        if not holds:
            self.violations.append(text)

    def frame(self, frame):
        where = f"frame {frame['frame.number'][0]}"
        connection = self.connections[frame["tcp.stream"][0]]
        side = "server" if frame["tcp.srcport"][0] == SERVER_PORT else "client"
        for data in frame["iwarp_mpa.privatedata"]:
            connection.private_data[side] = data.replace(":", "")
        sends = self.segments(where, side, connection, frame)
        messages = len(frame["rpcordma.xid"])
        self.require(sends == messages, f"{where}: {sends} Sends, of which {messages} are RPC over RDMA")
        for _ in range(messages):
            self.message(where, side, connection, Message(frame))

    def segments(self, where, side, connection, frame):
        """Accounts for the DDP segments of a frame; returns the number of Sends that end in it."""
        sends, stags = 0, frame["iwarp_ddp.stag"]
        columns = (frame[it] for it in ("iwarp_mpa.ulpdulength", "iwarp_rdma.opcode", "iwarp_ddp.last_flag"))
        fpdus = zip(*columns, strict=True)
        for length, opcode, last in fpdus:
            opcode = number(opcode)
            self.require(opcode != TERMINATE, f"{where}: a Terminate")
            allowed = (SEND, READ_RESPONSE) if side == "client" else (SEND, SEND_INVALIDATE, WRITE, READ_REQUEST)
            self.require(opcode in allowed, f"{where}: the {side} sends opcode {opcode}")
            sends += opcode in SENDS and last == "1"
            if opcode in (WRITE, READ_RESPONSE):
                stag, payload = number(stags.pop(0)), number(length) - TAGGED_HEADER
                self.seen[f"{side}: bytes of {'Writes' if opcode == WRITE else 'Read Responses'}"] += payload
                if opcode == WRITE:
                    connection.written[stag] += payload
                    offered = [it for call in connection.calls.values() for it in call.writable() if it[0] == stag]
                    self.require(offered, f"{where}: a Write to memory that no call in flight offers")
        for stag, size in zip(frame["iwarp_rdma.srcstag"], frame["iwarp_rdma.rdmardsz"], strict=True):
            connection.fetched[number(stag)] += number(size)
        for stag in map(number, frame["iwarp_rdma.inval_stag"]):
            self.seen["server: invalidations"] += 1
            own = [it for call in connection.calls.values() for it in call.reads + call.writable() if it[0] == stag]
            self.require(own, f"{where}: it invalidates an STag of no call in flight")
        return sends

    def message(self, where, side, connection, message):
        self.seen[f"{side}: {message.shape()}"] += 1
        self.require(message.version == "1", f"{where}: version {message.version}")
        self.require(message.kind in (MSG, NOMSG), f"{where}: message type {message.kind}")
        if side == "client":
            self.require(message.xid not in connection.calls, f"{where}: the XID of a call in flight")
            self.require(message.credits >= 1, f"{where}: a request for no credits")
            connection.calls[message.xid] = message
            self.require(len(connection.calls) <= self.credits, f"{where}: more calls than credits")
            self.seen["calls in flight at most"] = max(self.seen["calls in flight at most"], len(connection.calls))
            return
        self.require(message.credits == self.credits, f"{where}: a grant of {message.credits} credits")
        call = connection.calls.pop(message.xid, None)
        if call is None:
            self.violations.append(f"{where}: a reply to no call")
            return
        self.answer(where, connection, call, message)

    def answer(self, where, connection, call, reply):
        """RFC 8166 §4.3: a reply returns the call's chunks, with the lengths that were written."""
        self.require(not reply.reads, f"{where}: a reply with a read list")
        shapes = [[len(chunk) for chunk in message.writes] for message in (call, reply)]
        self.require(shapes[0] == shapes[1], f"{where}: other write chunks")
        self.require((reply.kind == NOMSG) == (reply.reply is not None), f"{where}: a reply chunk, or no message in it")
        returned = reply.writable() if reply.reply else [it for chunk in reply.writes for it in chunk]
        offered = dict(call.writable())
        for stag, length in returned:
            room = offered.get(stag, -1)
            self.require(length <= room, f"{where}: {length} bytes in a segment of {room}")
            written = connection.written.pop(stag, 0)
            self.require(written == length, f"{where}: {written} bytes were written, {length} are reported")
        for stag, length in call.reads:
            fetched = connection.fetched.pop(stag, 0)
            self.require(fetched == length, f"{where}: {fetched} of {length} bytes were fetched")

    def private_data(self):
        for name, connection in self.connections.items():
            for side in ("client", "server"):
                data = connection.private_data.get(side, "")
                at = data.find(PRIVATE_DATA)
                self.require(at >= 0, f"connection {name}: no properties in the private data of the {side}: {data}")
                flags = data[at + len(PRIVATE_DATA):][:2]
                self.require(flags == "01", f"connection {name}: the {side} does not support remote invalidation")

    def malformed(self, path):
        """NFS is there again. tshark 4.0 looks for the data of a READ behind the reply: for iWARP, it has no Writes."""
        fields = ("-T", "fields", "-e", "frame.number", "-e", "rpcordma.writes_count")
        for line in tshark(path, "-Y", "_ws.malformed", *fields):
            frame, writes = line.split("\t")
            self.seen["malformed for tshark: replies with data in a write chunk"] += 1
            self.require(any(number(it) for it in writes.split(",") if it), f"frame {frame}: malformed")
        for line in tshark(path, "-Y", "_ws.malformed", "--disable-protocol", "nfs"):
            self.violations.append(f"malformed: {line}")

    def crcs(self, path):
        verdicts = [line for line in tshark(path, "-V", "-Y", "iwarp_mpa.fpdu", "--disable-protocol", "nfs")
                    if "CRC check: " in line]
        bad = [line for line in verdicts if "(Good CRC32)" not in line]
        self.seen["FPDUs with the right CRC"] = len(verdicts) - len(bad)
        self.require(not bad, f"{len(bad)} FPDUs have a wrong CRC")

    def complete(self):
        for what in ("client: RDMA_MSG with no chunk", "client: RDMA_MSG with read chunk",
                     "client: RDMA_MSG with write chunk", "client: RDMA_MSG with reply chunk",
                     "server: RDMA_MSG with no chunk", "server: RDMA_MSG with write chunk",
                     "server: RDMA_NOMSG with reply chunk", "server: invalidations", "FPDUs with the right CRC"):
            self.require(self.seen[what], f"not seen: {what}")


def main():
    path, wire = sys.argv[1], Wire(int(sys.argv[2]))
    for frame in frames(path):
        wire.frame(frame)
    wire.private_data()
    wire.malformed(path)
    wire.crcs(path)
    wire.complete()
    for what, count in sorted(wire.seen.items()):
        print(f"{count:>9}  {what}")
    for violation in wire.violations[:20]:
        print("violation:", violation)
    sys.exit(1 if wire.violations else 0)


main()
