"""Event loops: completions, connections and regions are awaited, many at a time and on several devices."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from conftest import BOTH, LENGTHS, WAIT, End, Host, Pair, pattern

import ironwarp
from ironwarp import Access, _aio


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine, which leaves no descriptor watched."""
    asyncio.run(asyncio.wait_for(main, 2 * WAIT))
    assert not _aio._watches


def test_two_devices_connect_and_talk_in_one_loop() -> None:
    async def main() -> None:
        near, far = End(), End()
        listener = far.context.listen("127.0.0.1:0")

        async def serve() -> ironwarp.Connection:
            request = await listener.get_request_async()
            assert request.private_data == b"question"
            far.qp.post_recv(memory)
            return request.accept(far.qp, b"answer")

        memory = far.memory(5)
        serving = asyncio.create_task(serve())
        connection = await near.context.connect_async(near.qp, listener.address, b"question")
        assert connection.private_data == b"answer"
        accepted = await serving
        source = near.memory(5)
        memoryview(source)[:] = b"hello"
        near.qp.post_send(source, 3)
        (received,) = await far.cq.completions()
        assert received.byte_len == 5 and bytes(memory) == b"hello"
        assert [done.wr_id for done in await near.cq.completions()] == [3]
        connection.disconnect()
        await asyncio.gather(connection.wait_ended_async(), accepted.wait_ended_async())
        near.context.close()
        far.context.close()

    run(main())


def test_a_hundred_operations_wait_at_once(make_pair: Callable[..., Pair]) -> None:
    pairs = [make_pair() for _ in range(4)]

    async def main() -> None:
        async def operate(number: int) -> None:
            pair = pairs[number % 4]
            near, far = pair.near.memory(1000), pair.far.memory(1000)
            memoryview(near)[:] = pattern(1000, number)
            done = waiting[number] = asyncio.get_running_loop().create_future()
            pair.near.qp.post_write(near, far.addr, far.rkey, 1000 + number)
            pair.near.qp.post_read(None, far.addr, far.rkey, number)
            await done
            assert bytes(far) == pattern(1000, number)

        async def take(pair: Pair) -> None:
            async for completion in pair.near.cq:
                completion.raise_for_status()
                if completion.wr_id < 1000:
                    waiting[completion.wr_id].set_result(None)

        waiting: dict[int, asyncio.Future[None]] = {}
        takers = [asyncio.create_task(take(pair)) for pair in pairs]
        await asyncio.gather(*(operate(number) for number in range(100)))
        assert len(waiting) == 100
        for taker in takers:
            taker.cancel()
        await asyncio.gather(*takers, return_exceptions=True)

    run(main())


def test_a_hundred_coroutines_share_a_region(host: Host) -> None:
    memory, offer = host.offer("lab", 100 * 50_000)

    async def main() -> None:
        async with await ironwarp.aconnect_region(host.target("lab")) as region:
            assert len(region) == 5_000_000 and region.is_open

            async def go(number: int) -> None:
                data = pattern(50_000, number)
                assert await region.awrite(number * 50_000, data) == 50_000
                assert await region.aread(number * 50_000, 50_000) == data

            await asyncio.gather(*(go(number) for number in range(100)))
        assert not region.is_open
        with pytest.raises(ironwarp.ConnectionLost):
            await region.aread(0, 1)

    run(main())
    with memoryview(memory) as view:
        assert view[4_950_000:] == pattern(50_000, 99)


def test_a_region_takes_bytes_of_every_length(host: Host, served: Callable[[str], str]) -> None:
    async def main(target: str, context: ironwarp.Context | None) -> None:
        async with await ironwarp.aconnect_region(target, context=context) as region:
            for seed, length in enumerate(LENGTHS):
                offset = len(region) - length
                assert await region.awrite(offset, pattern(length, seed)) == length
                into = bytearray(length)
                assert await region.areadinto(offset, into) == length
                assert into == pattern(length, seed)

    host.offer("lab", 6 << 20)
    run(main(host.target("lab"), None))
    with ironwarp.Context.embedded() as context:
        run(main(host.target("lab"), context))
        run(main(served("lab"), context))
        assert context.is_open


def test_a_region_refuses_as_the_blocking_one_does(host: Host) -> None:
    host.offer("ro", 10, Access.REMOTE_READ)
    memory, offer = host.offer("lab", 10)

    async def main() -> None:
        with pytest.raises(ironwarp.RegionNotFound):
            await ironwarp.aconnect_region(host.target("none"))
        with pytest.raises(ironwarp.RegionDenied):
            await ironwarp.aconnect_region(host.target("ro"), BOTH)
        with pytest.raises(ironwarp.RegionError) as wrong:
            await ironwarp.aconnect_region("nonsense")
        assert wrong.value.errno == errno.EINVAL
        with pytest.raises(ironwarp.Error) as unknown:
            await ironwarp.aconnect_region("name.invalid:1/lab")
        assert unknown.value.errno == errno.EADDRNOTAVAIL
        with pytest.raises(ironwarp.ConnectionRefused):
            await ironwarp.aconnect_region("127.0.0.1:1/lab")
        async with await ironwarp.aconnect_region(host.target("ro"), Access.REMOTE_READ) as region:
            assert await region.aread(0, 10) == bytes(10)
            with pytest.raises(ironwarp.RegionDenied):
                await region.awrite(0, b"x")
        async with await ironwarp.aconnect_region(host.target("lab")) as region:
            for offset, length in [(10, 1), (0, 11), (-1, 1), (11, 0)]:
                with pytest.raises(ValueError, match="not inside"):
                    await region.aread(offset, length)
            with pytest.raises(ValueError, match="0 or more"):
                await region.aread(0, -1)
            with pytest.raises(BufferError):
                await region.areadinto(0, b"constant")
            offer.withdraw()
            with pytest.raises(ironwarp.ConnectionLost, match="ended the connection"):
                await region.awrite(0, b"gone")
            with pytest.raises(ironwarp.ConnectionLost):
                await region.aread(0, 1)

    run(main())


def test_a_silent_peer_is_a_timeout() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            with pytest.raises(ironwarp.Timeout) as late:
                await ironwarp.aconnect_region(f"127.0.0.1:{silent.getsockname()[1]}/lab", timeout=0.2)
            assert late.value.errno == errno.ETIMEDOUT

    run(main())


def test_cancellation_leaves_the_region_to_others(host: Host) -> None:
    memory, _ = host.offer("lab", 8 << 20)

    async def main() -> None:
        async with await ironwarp.aconnect_region(host.target("lab")) as region:
            for turn in range(20):
                tasks = [asyncio.create_task(region.awrite(0, bytes(4 << 20))) for _ in range(3)]
                reads = [asyncio.create_task(region.aread(0, 4 << 20)) for _ in range(3)]
                await asyncio.sleep(0.001 * turn)
                for task in [*tasks, *reads]:
                    task.cancel()
                await asyncio.gather(*tasks, *reads, return_exceptions=True)
            data = pattern(6 << 20)
            await region.awrite(0, data)
            assert await region.aread(0, 6 << 20) == data

    run(main())


def test_one_loop_at_a_time_waits_for_a_device(pair: Pair) -> None:
    async def waiting() -> None:
        task = asyncio.create_task(waits(pair.near.cq))
        await asyncio.sleep(0)
        with pytest.raises(ironwarp.Error, match="event loop") as busy:
            pair.near.cq.wait(1)
        assert busy.value.errno == errno.EBUSY
        other = asyncio.new_event_loop()
        with pytest.raises(ironwarp.Error, match="another event loop"):
            await asyncio.to_thread(other.run_until_complete, waits(pair.near.cq))
        other.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(ironwarp.Timeout):
            pair.near.cq.wait(0.01)

    async def waits(cq: ironwarp.CompletionQueue) -> None:
        await cq.completions()

    run(waiting())


def test_a_closed_device_ends_what_awaits_it() -> None:
    async def main() -> None:
        end = End()
        task = asyncio.ensure_future(end.cq.completions())
        listener = end.context.listen("127.0.0.1:0")
        await asyncio.sleep(0.01)
        end.context.close()
        with pytest.raises(ironwarp.Error) as closed:
            await task
        assert closed.value.errno == errno.EBADF
        with pytest.raises(ironwarp.Error):
            await listener.get_request_async()

    run(main())


def test_descriptors_do_not_leak(host: Host) -> None:
    host.offer("lab", 4096)

    async def main() -> None:
        async with await ironwarp.aconnect_region(host.target("lab")) as region:
            await region.awrite(0, b"x")

    run(main())
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        run(main())
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 6
