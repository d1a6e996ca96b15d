"""Awaiting a device in an event loop.

The loop waits for the device's two descriptors while somebody awaits the device. The thread of the device itself makes
progress meanwhile: a loop that is busy delays its own coroutines, and no peer.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Protocol, TypeVar

from ironwarp._errors import Error
from ironwarp._ironwarp import (
    Channel,
    CompletionQueue,
    Connecting,
    Connection,
    ConnectRequest,
    Context,
    Listener,
    QueuePair,
    WorkCompletion,
)

T = TypeVar("T")

#: Bytes of a read that empties a descriptor.
_DRAINED = 64


class HasChannel(Protocol):
    """An object of a device."""

    @property
    def _channel(self) -> Channel: ...


class _Watch:
    """A device whose descriptors an event loop watches."""

    def __init__(self, channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
        if not channel.claim():
            raise Error(errno.EBUSY, "another event loop waits for this device: open a device for each loop")
        self.channel = channel
        self.loop = loop
        self.waiters: set[asyncio.Future[None]] = set()
        self.users = 0
        self.descriptors: list[int] = []
        self.is_open = True
        try:
            # Copies, which stay valid if the device is closed meanwhile.
            for descriptor in channel.descriptors():
                self.descriptors.append(os.dup(descriptor))
            for descriptor in self.descriptors:
                loop.add_reader(descriptor, self.ring, descriptor)
        except BaseException:
            self.close()
            raise

    def ring(self, descriptor: int) -> None:
        """Empties a descriptor, and wakes those who wait."""
        try:
            os.read(descriptor, _DRAINED)
        except BlockingIOError:
            pass
        waiters, self.waiters = self.waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Leaves the descriptors to others, once."""
        if not self.is_open:
            return
        self.is_open = False
        for descriptor in self.descriptors:
            if not self.loop.is_closed():
                self.loop.remove_reader(descriptor)
            os.close(descriptor)
        self.descriptors = []
        self.channel.free()


#: Devices that event loops watch, by the key of their channel.
_watches: dict[int, _Watch] = {}


def _watch(channel: Channel) -> _Watch:
    loop = asyncio.get_running_loop()
    watch = _watches.get(channel.key)
    # A loop that was closed while coroutines waited has left its watch.
    if watch is not None and watch.loop is not loop and watch.loop.is_closed():
        _watches.pop(channel.key).close()
        watch = None
    if watch is None:
        watch = _watches[channel.key] = _Watch(channel, loop)
    elif watch.loop is not loop:
        raise Error(errno.EBUSY, "another event loop waits for this device: open a device for each loop")
    return watch


async def until(owner: HasChannel, take: Callable[[], T | None]) -> T:
    """Repeats ``take`` until it returns something, each time when the device has something new."""
    taken = take()
    if taken is not None:
        return taken
    channel = owner._channel
    watch = _watch(channel)
    watch.users += 1
    try:
        while True:
            # Before the attempt: what comes behind the attempt wakes the waiter.
            waiter = watch.loop.create_future()
            watch.waiters.add(waiter)
            taken = take()
            if taken is not None:
                return taken
            channel.check()
            await waiter
    finally:
        watch.waiters.discard(waiter)
        watch.users -= 1
        if watch.users == 0:
            if _watches.get(channel.key) is watch:
                del _watches[channel.key]
            watch.close()


async def completions(cq: CompletionQueue, count: int) -> list[WorkCompletion]:
    """Awaits completions."""
    return await until(cq, lambda: cq.poll_or_arm(count) or None)


class Completions:
    """Asynchronous iterator over the completions of a queue."""

    def __init__(self, cq: CompletionQueue) -> None:
        self._cq = cq
        self._left: list[WorkCompletion] = []

    def __aiter__(self) -> Completions:
        return self

    async def __anext__(self) -> WorkCompletion:
        if not self._left:
            self._left = await completions(self._cq, 64)
            self._left.reverse()
        return self._left.pop()


async def request(listener: Listener) -> ConnectRequest:
    """Awaits a peer that wants to connect."""
    return await until(listener, listener.poll_request)


async def resolve(address: str) -> str:
    """Resolves HOST:PORT without blocking the loop."""
    host, colon, port = address.rpartition(":")
    if not colon or host.startswith("["):
        return address
    found = await asyncio.get_running_loop().getaddrinfo(host, port)
    ip, number = str(found[0][4][0]), int(found[0][4][1])
    return f"[{ip}]:{number}" if ":" in ip else f"{ip}:{number}"


async def connect(
    context: Context, qp: QueuePair, address: str, private_data: bytes | None, peer_to_peer: bool
) -> Connection:
    """Connects a queue pair."""
    try:
        resolved = await resolve(address)
    except OSError as error:
        message = f"the address `{address}`: {error}; write HOST:PORT, and an IPv6 address in brackets"
        raise Error(errno.EADDRNOTAVAIL, message) from error
    connecting: Connecting = context._start_connect(qp, resolved, private_data, peer_to_peer)
    try:
        return await until(context, connecting.poll)
    except BaseException:
        connecting.close()
        raise


async def ended(connection: Connection) -> None:
    """Awaits the end of a connection."""
    await until(connection, lambda: connection.has_ended() or None)
