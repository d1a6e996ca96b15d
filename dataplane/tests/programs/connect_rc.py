"""Two processes with the package `ibverbs` of PyPI, which connect their queue pairs by its `connect_rc`.

connect_rc.py server | client DEVICE GID_INDEX

They tell each other where they are by TCP on port 18515 of 127.0.0.1. The client writes, reads, changes and sends
bytes; each end compares what it has with what the other had.
"""

import ctypes
import random
import socket
import struct
import sys
import time

import ibverbs

SIZE = 1 << 20
PLACE = ("127.0.0.1", 18515)
RIGHTS = (
    ibverbs.AccessFlags.LOCAL_WRITE
    | ibverbs.AccessFlags.REMOTE_WRITE
    | ibverbs.AccessFlags.REMOTE_READ
    | ibverbs.AccessFlags.REMOTE_ATOMIC
)
IMMEDIATE = 0xC0FFEE
MEMORY = struct.Struct("!QI")


class End:
    """One end: a queue pair, whose memory is one region."""

    def __init__(self, device, gid_index):
        self.context = next(d for d in ibverbs.get_device_list() if d.name == device).open()
        self.gid_index = gid_index
        self.domain = self.context.alloc_pd()
        self.sent, self.received = self.context.create_cq(16), self.context.create_cq(16)
        self.memory = ctypes.create_string_buffer(SIZE)
        self.region = self.domain.reg_mr(ctypes.addressof(self.memory), SIZE, RIGHTS)
        self.queues = self.domain.create_qp(
            ibverbs.QPInitAttr(send_cq=self.sent, recv_cq=self.received, qp_type=ibverbs.QPType.RC)
        )

    def connect(self, peer):
        """Exchanges queue pair number, GID and memory over this socket, and connects."""
        port, gid = self.context.query_port(1), self.context.query_gid(1, self.gid_index)
        own = ibverbs.local_qp_info(self.queues, port, gid, port=1, psn=random.getrandbits(24))
        said = own.to_bytes()
        peer.sendall(said + MEMORY.pack(self.region.addr, self.region.rkey))
        heard = receive(peer, len(said) + MEMORY.size)
        self.far, self.key = MEMORY.unpack(heard[len(said) :])
        remote = ibverbs.QPInfo.from_bytes(heard[: len(said)])
        ibverbs.connect_rc(
            self.queues, remote, port=1, sgid_index=self.gid_index, access=RIGHTS, local_psn=own.psn, max_rd_atomic=1
        )

    def receives(self):
        self.queues.post_recv(ibverbs.RecvWR(wr_id=1, sg_list=[ibverbs.SGE(self.region, SIZE)]))

    def asks(self, opcode, length=SIZE, **fields):
        """Posts a request, and waits for its completion; a Send does without the address and key of the far memory."""
        self.queues.post_send(
            ibverbs.SendWR(
                wr_id=2,
                sg_list=[ibverbs.SGE(self.region, length)],
                opcode=opcode,
                send_flags=ibverbs.SendFlags.SIGNALED,
                remote_addr=self.far,
                rkey=self.key,
                **fields,
            )
        )
        return completes(self.sent, 2)

    def number(self):
        """First eight bytes of the memory, as an atomic operation takes them."""
        return int.from_bytes(self.memory.raw[:8], sys.byteorder)

    def has(self, content):
        assert self.memory.raw == content, "other bytes than those of the peer"


def completes(queue, work):
    """Waits for one completion in this queue, which must be of this work and a success."""
    # Other suites share the machine.
    until = time.monotonic() + 90
    while not (found := queue.poll(1)):
        assert time.monotonic() < until, "no completion"
    found[0].raise_for_status()
    assert found[0].wr_id == work, f"a completion of {found[0].wr_id}, not {work}"
    return found[0]


def receive(peer, count):
    got = b""
    while len(got) < count:
        part = peer.recv(count - len(got))
        assert part, "the peer has gone"
        got += part
    return got


def content(seed):
    return random.Random(seed).randbytes(SIZE)


def server(end):
    listener = socket.create_server(PLACE)
    peer, _ = listener.accept()
    end.connect(peer)
    # A message by TCP says that the Write has completed: its bytes must be here.
    receive(peer, 1)
    end.has(content(1))
    end.memory.raw = content(2)
    peer.sendall(b"2")
    receive(peer, 1)
    assert end.number() == int.from_bytes(content(2)[:8], sys.byteorder) + 5 & (1 << 64) - 1
    end.receives()
    peer.sendall(b"3")
    done = completes(end.received, 1)
    assert done.imm_data == IMMEDIATE and done.byte_len == SIZE, f"{done.imm_data:x} of {done.byte_len} bytes"
    end.has(content(3))
    end.memory.raw = content(4)
    end.asks(ibverbs.WROpcode.RDMA_WRITE_WITH_IMM, imm_data=IMMEDIATE + 1)
    receive(peer, 1)


def client(end):
    peer = socket.create_connection(PLACE)
    end.connect(peer)
    end.memory.raw = content(1)
    end.asks(ibverbs.WROpcode.RDMA_WRITE)
    peer.sendall(b"1")
    receive(peer, 1)
    end.asks(ibverbs.WROpcode.RDMA_READ)
    end.has(content(2))
    first = end.number()
    end.asks(ibverbs.WROpcode.ATOMIC_FETCH_AND_ADD, 8, compare_add=5)
    assert end.number() == first
    # One compare that fails, and returns what is there.
    end.asks(ibverbs.WROpcode.ATOMIC_CMP_AND_SWP, 8, compare_add=first, swap=1)
    assert end.number() == first + 5 & (1 << 64) - 1
    peer.sendall(b"2")
    receive(peer, 1)
    end.receives()
    end.memory.raw = content(3)
    end.asks(ibverbs.WROpcode.SEND_WITH_IMM, imm_data=IMMEDIATE)
    done = completes(end.received, 1)
    assert done.imm_data == IMMEDIATE + 1, f"{done.imm_data:x}"
    end.has(content(4))
    peer.sendall(b"3")


if __name__ == "__main__":
    role = {"server": server, "client": client}[sys.argv[1]]
    role(End(sys.argv[2], int(sys.argv[3])))
    print("all bytes are right")
