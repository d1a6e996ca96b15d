#!/usr/bin/env python3
"""Talks to the verbs socket as no library would: `verbs.py CASE VERBS_SOCKET [ARGUMENT]`."""

import array
import ctypes
import json
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import time

# All but the right of a peer to invalidate, which memory regions do not have.
RIGHTS = 0x77
# Number of events in the ring of events: behind the version's cache line and the doorbells of 4096 queues.
EVENTS = 64 + 80 * 8
CAP = {"max_send_wr": 16, "max_recv_wr": 16, "max_send_sge": 1, "max_recv_sge": 1, "max_inline_data": 0}


class Refused(Exception):
    """The daemon has answered with an error."""


class Program:
    """A connection to the verbs socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(path)
        self.pending = b""
        self.fds = []

    def call(self, method, **params):
        line = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        try:
            self.socket.sendall(json.dumps(line).encode() + b"\n")
        except BrokenPipeError:
            # A daemon that refuses the connection itself answers before it reads.
            pass
        return self.answer()

    def answer(self):
        self.fds = []
        while b"\n" not in self.pending:
            data, fds, _, _ = socket.recv_fds(self.socket, 1 << 16, 8)
            self.fds += fds
            if not data:
                raise EOFError("the daemon has closed the connection")
            self.pending += data
        line, self.pending = self.pending.split(b"\n", 1)
        reply = json.loads(line)
        if "error" in reply:
            raise Refused(reply["error"]["data"]["kind"])
        return reply["result"]

    def open(self, **params):
        return self.call("context.open", **params)

    def execute(self, *requests):
        """Returns the results; an error is the name of its reason."""
        results = self.call("context.execute", requests=requests)["results"]
        return [result.get("Ok", result.get("Err")) for result in results]

    def one(self, request):
        return self.execute(request)[0]

    def objects(self):
        """Creates a protection domain and a completion queue."""
        pd, cq = self.execute("alloc_pd", {"create_cq": 64})
        return pd["pd"], cq["cq"][0]

    def alloc(self, length, **how):
        memory = self.call("memory.alloc", bytes=length, **how)
        return memory, self.fds[0]

    def call_with(self, fd, method):
        """Calls a method with a descriptor, which is closed."""
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}).encode() + b"\n"
        socket.send_fds(self.socket, [line], [fd])
        os.close(fd)
        return self.answer()


def refused(kind, call):
    try:
        call()
    except Refused as error:
        assert str(error) == kind, f"{error}, not {kind}"
    else:
        raise AssertionError(f"not refused: {kind}")


def qp(pd, cq, **cap):
    queues = {"send_cq": cq, "recv_cq": cq, "srq": None, "cap": {**CAP, **cap}}
    return {"create_qp": {"pd": pd, **queues, "sq_sig_all": False}}


def requests(path):
    """Requests that are wrong, and requests for objects of others."""
    first, second = Program(path), Program(path)
    refused("invalid_params", lambda: first.execute("alloc_pd"))
    refused("no_such_object", lambda: first.open(device="nowhere"))
    refused("too_large", lambda: first.open(queue_bytes=1 << 60))
    first.open()
    second.open()
    refused("exists", first.open)
    pd, cq = first.objects()
    foreign_pd, foreign_cq = second.objects()
    number = first.one(qp(pd, cq))["qp"][0]
    # Objects of another context, and those that nobody has.
    for theirs in [qp(foreign_pd, cq), qp(pd, foreign_cq), {"destroy_cq": foreign_cq}, {"dealloc_pd": foreign_pd}]:
        assert first.one(theirs) == "NoSuchObject", theirs
    assert second.one({"destroy_qp": number}) == "NoSuchObject"
    for unknown in [{"query_qp": 0xFFFFFFFF}, {"dereg_mr": 77}, {"dealloc_mw": 1 << 31}, {"destroy_id": 5}]:
        assert first.one(unknown) == "NoSuchObject", unknown
    # Sizes beyond every limit.
    assert first.one({"create_cq": 0xFFFFFFFF}) == "NoResources"
    assert first.one({"create_cq": 1 << 17}) in ("Invalid", "NoResources")
    for cap in [{"max_send_wr": 65535}, {"max_send_sge": 65535}, {"max_inline_data": 65535}]:
        assert first.one(qp(pd, cq, **cap)) in ("Invalid", "NoResources"), cap
    # Not requests.
    for wrong in ["nonsense", {"reg_mr": {}}, {"query_qp": -1}, {"query_qp": "x"}, 5, None, {"alloc_pd": 1, "x": 2}]:
        refused("invalid_params", lambda: first.execute(wrong))
    refused("too_large", lambda: first.execute(*["alloc_pd"] * 257))
    refused("unknown_method", lambda: first.call("region.register"))
    # A descriptor that comes with a request is closed, and the request is served.
    pid = daemon_of(path)
    before = len(os.listdir(f"/proc/{pid}/fd"))
    for fd in [0, os.open("/dev/null", os.O_RDONLY), first.socket.fileno()]:
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "device.list", "params": {}}).encode() + b"\n"
        socket.send_fds(first.socket, [line], [fd] * 5)
        first.answer()
    assert len(os.listdir(f"/proc/{pid}/fd")) == before
    assert first.one({"query_qp": number})["qp_attr"]["state"] == "Idle"


def daemon_of(path):
    """Returns the process number of the daemon."""
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    probe.connect(path)
    credentials = array.array("i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    probe.close()
    # The daemon notices the end of this connection.
    time.sleep(0.3)
    return credentials[0]


def memory(path):
    """Memory of a program: mapped, registered, and closed to what could harm the daemon."""
    program = Program(path)
    program.open()
    pd, _ = program.objects()
    refused("invalid_params", lambda: program.call("memory.alloc", bytes=0))
    refused("no_resources", lambda: program.call("memory.alloc", bytes=1 << 62))
    for length in [1, 4096, 4097, 3 << 20]:
        made, fd = program.alloc(length)
        size = -(-length // made["page_bytes"]) * made["page_bytes"]
        mapping = mmap.mmap(fd, size)
        register = {"memory": made["memory"], "pd": pd, "base": {"At": 0x1000}, "access": RIGHTS}
        mr = program.call("mr.register", **register)
        assert mr["length"] == length and mr["addr"] == 0x1000
        refused("no_such_object", lambda: program.call("mr.register", **register))
        refused("no_such_object", lambda: program.call("memory.free", memory=made["memory"]))
        # From here on no hole can be punched, and no other mapping made for writing.
        libc = ctypes.CDLL(None, use_errno=True)
        punched = libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(size))
        assert punched == -1, "a hole in the daemon's memory"
        try:
            mmap.mmap(fd, size)
            raise AssertionError("mapped for writing again")
        except PermissionError:
            pass
        mapping[0] = 7
        assert "deregistered" in program.one({"dereg_mr": mr["id"]})
        assert program.one({"dereg_mr": mr["id"]}) == "NoSuchObject"
        mapping.close()
        os.close(fd)
    made, fd = program.alloc(100)
    os.close(fd)
    assert program.call("memory.free", memory=made["memory"]) == {}


def parts(path):
    """A program's own memory: in exchanged pages, and through the kernel."""
    program, other = Program(path), Program(path)
    program.open()
    other.open()
    pd, _ = program.objects()
    buffer = ctypes.create_string_buffer(10000)
    address = ctypes.addressof(buffer)
    kernel = {"kernel": {"address": address, "bytes": 10000}}
    register = lambda *parts: program.call("mr.register_parts", pd=pd, address=address, parts=parts, access=RIGHTS)
    # Only this program's memory, open for reading and writing, is accepted.
    refused("invalid_params", lambda: register(kernel))
    refused("invalid_params", lambda: program.call("memory.process"))
    for name, mode in [("/dev/null", os.O_RDWR), ("/proc/self/mem", os.O_RDONLY), ("/proc/self/maps", os.O_RDONLY)]:
        refused("invalid_params", lambda: program.call_with(os.open(name, mode), "memory.process"))
    assert program.call_with(os.open("/proc/self/mem", os.O_RDWR), "memory.process") == {}
    assert program.call_with(os.open("/proc/self/mem", os.O_RDWR), "memory.process") == {}
    # Parts that are empty, outside of their memory, another program's, too many, or none.
    made, _ = program.alloc(8192, exchange=True)
    theirs, _ = other.alloc(8192, exchange=True)
    plain, _ = program.alloc(8192)
    part = lambda memory, offset, length: {"exchanged": {"memory": memory["memory"], "offset": offset, "bytes": length}}
    for kind, wrong in [
        ("invalid_params", []),
        ("invalid_params", [part(made, 0, 0)]),
        ("invalid_params", [part(made, 1, 8192)]),
        ("invalid_params", [part(made, (1 << 64) - 1, 2)]),
        ("invalid_params", [{"kernel": {"address": (1 << 64) - 1, "bytes": 2}}]),
        ("invalid_params", [{"kernel": {"address": 0, "bytes": (1 << 64) - 1}}] * 2),
        ("no_such_object", [part(theirs, 0, 8192)]),
        ("no_such_object", [part(plain, 0, 8192)]),
        ("too_large", [kernel] * 65),
    ]:
        refused(kind, lambda wrong=wrong: register(*wrong))
    mr = register({"kernel": {"address": address, "bytes": 100}}, part(made, 0, 8192), kernel)
    assert mr["length"] == 18292 and mr["addr"] == address, mr
    # Memory that has parts of a memory region is not freed, nor registered in another way.
    refused("no_such_object", lambda: program.call("memory.free", memory=made["memory"]))
    again = {"memory": made["memory"], "pd": pd, "base": "Zero", "access": RIGHTS}
    refused("no_such_object", lambda: program.call("mr.register", **again))
    second = register(part(made, 4096, 4096))
    assert "deregistered" in program.one({"dereg_mr": mr["id"]})
    refused("no_such_object", lambda: program.call("memory.free", memory=made["memory"]))
    assert "deregistered" in program.one({"dereg_mr": second["id"]})
    assert program.call("memory.free", memory=made["memory"]) == {}


def limits(path):
    """A user has no more than configured: three contexts, 40 queue pairs, 2000 entries, 12 MiB in whole pages."""
    programs = [Program(path) for _ in range(3)]
    for program in programs:
        program.open(queue_bytes=1 << 20)
    refused("no_resources", lambda: Program(path).open())
    first, second, _ = programs
    refused("no_resources", lambda: first.call("memory.alloc", bytes=10 << 20))
    made, fd = first.alloc(6 << 20)
    os.close(fd)
    refused("no_resources", lambda: second.call("memory.alloc", bytes=4 << 20))
    first.call("memory.free", memory=made["memory"])
    second.alloc(6 << 20)
    objects = [program.objects() for program in (first, second)]
    made = first.execute(*[qp(*objects[0])] * 30)
    assert all("qp" in result for result in made), made
    made = second.execute(*[qp(*objects[1])] * 30)
    assert [result == "NoResources" for result in made] == [False] * 10 + [True] * 20, made
    # Entries: two queues of 64, and 40 times 32.
    assert first.one({"create_cq": 700}) == "NoResources"
    assert "cq" in first.one({"create_cq": 500})
    # A program that has gone leaves its share to the others.
    first.socket.close()
    until = time.monotonic() + 5
    while "qp" not in second.one(qp(*objects[1])):
        assert time.monotonic() < until, "its queue pairs are still there"
    assert all("qp" in result for result in second.execute(*[qp(*objects[1])] * 29))


def many(path):
    """Creates a thousand queue pairs, and prints how long that took."""
    program = Program(path)
    program.open(queue_bytes=64 << 20)
    pd, cq = program.objects()
    begin = time.monotonic()
    made = sum((program.execute(*[qp(pd, cq)] * 200) for _ in range(5)), [])
    took = time.monotonic() - begin
    assert all("qp" in result for result in made)
    print(f"1000 queue pairs in {took * 1000:.0f} ms")
    assert took < 1, took


def watches(path):
    """Watches of regions: wrong requests, and the limits of a region, 8, and of the queue memory."""
    first, second = Program(path), Program(path)
    pid = daemon_of(path)
    before = len(os.listdir(f"/proc/{pid}/fd"))
    refused("no_such_object", lambda: first.call("region.watch", name="none"))
    refused("invalid_params", lambda: first.call("region.watch"))
    refused("no_such_object", lambda: first.call("region.unwatch", watch=1))
    begun = first.call("region.watch", name="shared")
    assert begun["bytes"] == 1 << 20 and begun["shape"][0] == 4 and len(first.fds) == 3, begun
    refused("no_such_object", lambda: second.call("region.unwatch", watch=begun["watch"]))
    # The rings are the program's, and cannot be shrunk.
    rings = os.fstat(first.fds[1]).st_size
    assert mmap.mmap(first.fds[1], rings)[:64] == bytes(64)
    for fd in first.fds:
        try:
            os.ftruncate(fd, 0)
            raise AssertionError("truncated")
        except OSError:
            os.close(fd)
    others = [second.call("region.watch", name="shared")["watch"] for _ in range(7)]
    refused("no_resources", lambda: first.call("region.watch", name="shared"))
    assert second.call("region.unwatch", watch=others[0]) == {}
    refused("no_such_object", lambda: second.call("region.unwatch", watch=others[0]))
    first.call("region.watch", name="shared")
    first.socket.close()
    second.socket.close()
    until = time.monotonic() + 5
    while len(os.listdir(f"/proc/{pid}/fd")) > before - 2:
        assert time.monotonic() < until, "descriptors are left"
        time.sleep(0.05)
    # A user who may not open regions may not watch them.
    if os.fork() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        refused("not_permitted", lambda: Program(path).call("region.watch", name="shared"))
        os._exit(0)
    assert os.wait()[1] == 0


def stay(path, listen=None, number=0):
    """Opens a context with some of everything, says so, and waits to be killed. With an address, it listens there."""
    program = Program(path)
    program.open()
    pd, cq = program.objects()
    numbers = [made["qp"][0] for made in program.execute(*[qp(pd, cq)] * 5)]
    if listen:
        program.call("region.watch", name="shared")
        depths = {"depths": [1, 1]}
        for port in [20000 + number * 2, 20001 + number * 2]:
            listener = program.one({"create_id": f"{listen}:{port}"})["id"]
            program.one({"listen": {"id": listener, "backlog": 4, **depths}})
        # To the region service: the request is none of its, so that it refuses; and to the program itself.
        for of, port in zip(numbers, [7400, 20000 + number * 2]):
            one = program.one({"create_id": None})["id"]
            connect = {"peer": f"{listen}:{port}", "private_data": [], **depths, "revision": 2}
            program.one({"connect": {"id": one, "qp": of, **connect}})
    made, _ = program.alloc(1 << 20)
    program.call("mr.register", memory=made["memory"], pd=pd, base="Zero", access=RIGHTS)
    program.execute({"create_id": "0.0.0.0:0"}, {"alloc_mw": pd})
    print("here", flush=True)
    signal.pause()


def use_of(pid, ctl):
    """Returns what the daemon has: descriptors, mappings, hugepages (kB), applications, and TCP connections."""
    status = open(f"/proc/{pid}/status").read()
    listed = lambda *what: len(json.loads(subprocess.check_output([*ctl, *what])))
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "mappings": open(f"/proc/{pid}/maps").read().count("memfd:"),
        "hugepages_kb": int(status.split("HugetlbPages:")[1].split()[0]) if "HugetlbPages:" in status else 0,
        "applications": listed("app", "list"),
        "connections": listed("conn", "list"),
        "memory regions": listed("mr", "list"),
    }


def killed(path, count, iwarpctl, control, address):
    """Starts programs and kills each at a random point. What they had is free afterward, and so are their TCP ports."""
    random.seed(7)
    pid = daemon_of(path)
    use = lambda: use_of(pid, [iwarpctl, "--socket", control, "-j"])
    # Connections of programs before may still be closing.
    until = time.monotonic() + 10
    while (before := use())["connections"]:
        assert time.monotonic() < until, f"{before} before the first program"
        time.sleep(0.05)
    running = []
    for number in range(int(count)):
        child = os.fork()
        if child == 0:
            try:
                os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
                stay(path, address, number)
            finally:
                os._exit(1)
        running.append((child, time.monotonic() + random.random() * 0.05))
        while len(running) >= 16 or (running and running[0][1] < time.monotonic()):
            child, at = running.pop(0)
            time.sleep(max(0, at - time.monotonic()))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    for child, _ in running:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    until = time.monotonic() + 10
    while use() != before:
        assert time.monotonic() < until, f"{use()}, {before} before"
        time.sleep(0.05)
    # All ports at once: a port that is taken is told by an event.
    last = Program(path)
    last.open(queue_bytes=4 << 20)
    words = mmap.mmap(last.fds[0], 4 << 20)
    for port in range(20000, 20000 + 2 * int(count)):
        listener = last.one({"create_id": f"{address}:{port}"})["id"]
        assert last.one({"listen": {"id": listener, "backlog": 4, "depths": [1, 1]}}) == "done"
        # The worker executes the next request behind that.
        last.one({"addresses": listener})
        events = int.from_bytes(words[EVENTS : EVENTS + 8], sys.byteorder)
        assert events == 0, f"port {port} is taken"
        last.one({"destroy_id": listener})
    print(f"{count} programs killed; the daemon has {before}, as before, and their ports are free")


CASES = {f.__name__: f for f in [requests, memory, parts, watches, limits, many, stay, killed]}

if __name__ == "__main__":
    CASES[sys.argv[1]](*sys.argv[2:])
