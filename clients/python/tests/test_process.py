"""Threads, signals, fork, the garbage collector, and the end of the interpreter."""

from __future__ import annotations

import gc
import itertools
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable

import pytest
from conftest import WAIT, End, Host, Pair, pattern

import ironwarp
from ironwarp import Access


def script(text: str, *arguments: str, seconds: float = WAIT) -> subprocess.CompletedProcess[str]:
    """Runs a program of its own."""
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-c", textwrap.dedent(text), *arguments]
    folder = os.path.dirname(__file__)
    environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, env=environment, check=False
    )


@pytest.mark.parametrize("call", ["cq", "listener", "event", "connect", "region", "write", "turn"])
def test_an_interrupt_ends_every_wait(call: str) -> None:
    ended = script(
        """
        import os, signal, socket, subprocess, sys, threading, time
        import ironwarp
        from conftest import Host, End
        call = sys.argv[1]
        silent = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        host, end = Host(), End()
        memory, offer = host.offer("lab", 64 << 20)
        region = ironwarp.connect_region(host.target("lab"))
        data = bytes(64 << 20)
        def write():
            while True:
                region.write(0, data)
        listener = end.context.listen("127.0.0.1:0")
        calls = {
            "cq": end.cq.wait,
            "listener": listener.get_request,
            "event": end.context.get_async_event,
            "connect": lambda: end.context.connect(end.qp, address, timeout=None),
            "region": lambda: ironwarp.connect_region(f"{address}/lab", timeout=None),
            "write": write,
            "turn": lambda: region.read(0, 1),
        }
        server = None
        if call == "turn":
            # The peer stops: the other thread's call has the region for long.
            text = "import time; from conftest import Host; host = Host(); kept = host.offer('lab', 64 << 20);"
            text += "print(host.target('lab'), flush=True); time.sleep(60)"
            server = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
            region = ironwarp.connect_region(server.stdout.readline().strip())
            server.send_signal(signal.SIGSTOP)
            threading.Thread(target=write, daemon=True).start()
            time.sleep(0.1)
        sent = 0.0
        def interrupt():
            global sent
            time.sleep(0.3)
            sent = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            calls[call]()
        except KeyboardInterrupt:
            late = time.monotonic() - sent
            print("interrupted", late)
            if server is not None:
                server.kill()
                server.wait()
            # Limits of time are those of a machine that does other work, too.
            sys.exit(0 if late < 0.2 + 0.8 * (os.getloadavg()[0] > 1) else 1)
        sys.exit(2)
        """,
        call,
    )
    assert ended.returncode == 0 and ended.stdout.startswith("interrupted"), ended


def test_a_handler_that_does_not_raise_leaves_the_wait_alone(pair: Pair) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        began = time.monotonic()
        with pytest.raises(ironwarp.Timeout):
            pair.near.cq.wait(0.5)
        assert time.monotonic() - began > 0.45 and len(seen) >= 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_other_threads_run_while_one_waits(pair: Pair) -> None:
    counted = 0

    def wait() -> None:
        with pytest.raises(ironwarp.Timeout):
            pair.near.cq.wait(0.5)

    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive():
        counted += 1
    thread.join()
    assert counted > 10_000


def test_threads_wait_for_queues_of_one_device() -> None:
    near, far = End(), End()
    lanes = []
    for _ in range(6):
        qps = [(end, end.context.create_cq(64)) for end in (near, far)]
        made = [(end, cq, end.pd.create_qp(cq)) for end, cq in qps]
        with far.context.listen("127.0.0.1:0") as listener:
            connecting = near.context._start_connect(made[0][2], listener.address, b"", True)
            listener.get_request(WAIT).accept(made[1][2])
            connection = None
            while connection is None:
                connection = connecting.poll()
        lanes.append(made)
    failed: list[object] = []

    def ping(lane: int, is_near: bool) -> None:
        end, cq, qp = lanes[lane][0 if is_near else 1]
        out, into = buffers[lane][0 if is_near else 1]
        try:
            for turn in range(200):
                # A message needs a buffer that waits, and its bytes stay until the peer has answered.
                if is_near:
                    memoryview(out)[:] = pattern(64, 1000 * lane + turn)
                    qp.post_send(out, 1)
                while not any(done.raise_for_status().wr_id == 2 for done in cq.wait(WAIT)):
                    pass
                assert bytes(into) == pattern(64, 1000 * lane + turn)
                if turn < 199:
                    qp.post_recv(into, 2)
                if not is_near:
                    memoryview(out)[:] = pattern(64, 1000 * lane + turn)
                    qp.post_send(out, 1)
        except Exception as error:
            failed.append(error)

    buffers = []
    for lane in lanes:
        buffers.append([(end.memory(64), end.memory(64)) for end, _, _ in lane])
        for (_, _, qp), (_, into) in zip(lane, buffers[-1], strict=True):
            qp.post_recv(into, 2)
    threads = [threading.Thread(target=ping, args=(lane, near)) for lane in range(6) for near in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not failed and not any(thread.is_alive() for thread in threads)
    near.context.close()
    far.context.close()


def test_threads_close_objects_that_others_use() -> None:
    for _ in range(20):
        end = End()
        errors: list[BaseException] = []
        threads = []

        def use(take: Callable[[], object], errors: list[BaseException] = errors) -> None:
            try:
                while True:
                    take()
            except ironwarp.Timeout as error:
                errors.append(error)
            except ironwarp.Error:
                pass

        calls: list[Callable[[], object]] = [
            lambda end=end: end.cq.wait(WAIT),  # type: ignore[misc]
            lambda end=end: end.context.poll_async_event(),  # type: ignore[misc]
            lambda end=end: end.memory(4096),  # type: ignore[misc]
            lambda end=end: end.context.listen("127.0.0.1:0").close(),  # type: ignore[misc]
        ]
        for take in calls:
            threads.append(threading.Thread(target=use, args=(take,)))
            threads[-1].start()
        time.sleep(0.01)
        end.context.close()
        for thread in threads:
            thread.join(WAIT)
        assert not errors and not any(thread.is_alive() for thread in threads)


def test_a_child_has_no_device() -> None:
    ended = script(
        """
        import errno, os, sys, threading
        import ironwarp
        from ironwarp import Access
        from conftest import Host, End, BOTH
        host, end = Host(), End()
        memory, offer = host.offer("lab", 4096)
        region = ironwarp.connect_region(host.target("lab"))
        mr = end.memory(10)
        # Locks of the device are taken at most moments.
        def busy():
            while True:
                end.cq.poll()
                region.read(0, 4096)
        for _ in range(2):
            threading.Thread(target=busy, daemon=True).start()
        calls = [
            end.context.alloc_pd, end.context.create_cq, end.cq.poll, lambda: end.cq.wait(1),
            lambda: end.memory(1), lambda: end.qp.post_send(mr), lambda: end.qp.post_recv(mr), lambda: end.qp.state,
            lambda: end.context.listen("127.0.0.1:0"), lambda: end.context.connect(end.qp, "127.0.0.1:1"),
            lambda: region.read(0, 1), lambda: region.write(0, b"x"), lambda: host.server.offer("x", memory, BOTH),
            lambda: memoryview(mr), end.context.poll_async_event, offer.stats, lambda: end.context.device,
        ]
        for _ in range(30):
            child = os.fork()
            if child == 0:
                for number, call in enumerate(calls):
                    try:
                        call()
                    except ironwarp.Error as error:
                        if error.errno == errno.ENODEV and "fork" in str(error):
                            continue
                    os._exit(number + 1)
                assert not end.context.is_open
                # Closing and dropping ends nothing of the parent's.
                region.close(); mr.close(); end.qp.close(); host.server.close(); end.context.close()
                own = ironwarp.Context.embedded()
                own.alloc_pd().alloc_mr(10, Access.ALL)
                own.close()
                sys.exit(0) if _ % 2 else os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, "call failed"
        region.write(0, b"parent")
        assert region.read(0, 6) == b"parent"
        print("served")
        os._exit(0)
        """,
        seconds=60,
    )
    assert ended.stdout == "served\n" and ended.returncode == 0, ended


@pytest.mark.parametrize("end", ["exit", "unfinished", "daemon threads", "collected", "loop"])
def test_the_interpreter_ends_with_open_connections(end: str) -> None:
    ended = script(
        """
        import asyncio, gc, sys, threading, time
        import ironwarp
        from conftest import Host, End, Pair
        end = sys.argv[1]
        host = Host()
        memory, offer = host.offer("lab", 8 << 20)
        region = ironwarp.connect_region(host.target("lab"))
        pair = Pair(End(), End())
        near, far = pair.near.memory(1 << 20), pair.far.memory(1 << 20)
        view = memoryview(near)
        for number in range(100):
            pair.far.qp.post_recv(far.sge(0, 10), number)
            pair.near.qp.post_write(near, far.addr, far.rkey, number)
        if end == "exit":
            pair.near.done(100)
        elif end == "daemon threads":
            def forever(call):
                while True:
                    call()
            for call in [pair.far.cq.wait, host.context.get_async_event, lambda: region.write(0, bytes(8 << 20))]:
                threading.Thread(target=forever, args=(call,), daemon=True).start()
            time.sleep(0.1)
        elif end == "collected":
            pair.cycle = [pair, view, region, host]
        elif end == "loop":
            loop = asyncio.new_event_loop()
            async def waits():
                await pair.far.cq.completions()
                await pair.far.cq.completions(1 << 20)
            task = loop.create_task(waits())
            loop.call_later(0.1, loop.stop)
            loop.run_forever()
        print("ends", flush=True)
        """,
        end,
    )
    assert ended.stdout == "ends\n" and ended.returncode == 0, ended
    assert "Traceback" not in ended.stderr and "panic" not in ended.stderr, ended


def test_objects_go_in_every_order() -> None:
    names = ["context", "pd", "cq", "qp", "mr", "connection"]
    orders = list(itertools.permutations(range(6)))
    for order in orders[::7]:
        pair = Pair(End(), End())
        memory = pair.near.memory(4096)
        far = pair.far.memory(4096)
        pair.near.qp.post_write(memory, far.addr, far.rkey)
        near = pair.near
        objects: list[object] = [near.context, near.pd, near.cq, near.qp, memory, pair.connection]
        peer = pair.far.context
        del pair, near, memory, far
        for place in order:
            objects[place] = None
            gc.collect(0)
        assert names
        peer.close()


@pytest.mark.parametrize("kind", ["region", "verbs", "memory"])
def test_memory_does_not_grow(kind: str, host: Host) -> None:
    host.offer("lab", 1 << 20)
    data = pattern(300_000)

    def region() -> None:
        with ironwarp.connect_region(host.target("lab")) as region:
            region.write(0, data)
            region.readinto(0, bytearray(300_000))

    def verbs() -> None:
        pair = Pair(End(), End())
        near, far = pair.near.memory(1 << 20), pair.far.memory(1 << 20)
        pair.near.qp.post_write(near, far.addr, far.rkey)
        pair.near.done()
        pair.close()

    buffer = bytearray(1 << 20)
    context = ironwarp.Context.embedded()
    pd = context.alloc_pd()

    def memory() -> None:
        for _ in range(5):
            pd.reg_mr(buffer, Access.ALL).close()
            mr = pd.alloc_mr(1 << 20, Access.ALL)
            memoryview(mr)[:] = buffer

    turn = {"region": region, "verbs": verbs, "memory": memory}[kind]

    def size() -> int:
        gc.collect()
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()

    # Arenas of the allocator and stacks of threads that have ended stay for the next ones.
    for _ in range(60):
        turn()
    before = size()
    for _ in range(120):
        turn()
    context.close()
    assert size() - before < 24 << 20
