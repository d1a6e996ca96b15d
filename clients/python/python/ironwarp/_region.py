"""A region of a peer in an event loop: many coroutines share one connection."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

from ironwarp._enums import Access, SendFlags
from ironwarp._errors import ConnectionLost, Error, RegionDenied, RegionError, Rejected, Timeout
from ironwarp._ironwarp import Connection, Context, WorkCompletion, region_grant, region_request

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ironwarp._typing import AnyBuffer

T = TypeVar("T")

#: Port of the region service, unless a target names another.
_PORT = 7400
#: Bytes of one RDMA Read or Write.
_CHUNK = 128 << 10
#: Transfers at a time; the others wait.
_SLOTS = 16
_BOTH = Access.REMOTE_READ | Access.REMOTE_WRITE


class _Transfer:
    """A transfer in flight, and the slot of the window that it uses."""

    def __init__(self, slot: int, finish: Callable[[], None], done: asyncio.Future[None]) -> None:
        self.slot = slot
        self.finish = finish
        self.done = done


class AsyncRemoteRegion:
    """A region of a peer, over a connection of its own; ``aconnect_region`` makes one.

    An RDMA Write completes when TCP has accepted the bytes. So an RDMA Read of no bytes follows each one, which the
    peer may answer only after the bytes before it are placed (RFC 5040 section 5.5).
    """

    def __init__(self, target: str, context: Context, owns_context: bool, timeout: float | None) -> None:
        self.target = target
        self._context = context
        self._owns_context = owns_context
        self._timeout = timeout
        pd = context.alloc_pd()
        self._cq = context.create_cq(4 * _SLOTS)
        self._qp = pd.create_qp(self._cq, max_send_wr=2 * _SLOTS, max_recv_wr=1)
        # The peer is to access nothing here.
        self._qp.modify_access(Access(0))
        self._window = pd.alloc_mr(_SLOTS * _CHUNK, Access.LOCAL_READ | Access.LOCAL_WRITE)
        self._view = memoryview(self._window)
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(_SLOTS):
            self._free.put_nowait(slot)
        self._transfers: dict[int, _Transfer] = {}
        self._next = 0
        # Transfers that have completed.
        self._finished = 0
        self._pump: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._ended = "the region is closed"
        self._access = Access(0)
        self._rkey = self._base = self._bytes = 0

    async def _connect(self, access: Access, token: bytes | None) -> None:
        address, slash, name = self.target.partition("/")
        if not slash:
            raise RegionError(errno.EINVAL, f"`{self.target}` cannot be connected to: write HOST:PORT/NAME")
        if ":" not in address.rpartition("]")[2]:
            address = f"{address}:{_PORT}"
        request = region_request(name, access, token)
        try:
            connection = await self._in_time(self._context.connect_async(self._qp, address, request))
        except Rejected as rejected:
            region_grant(self.target, access, rejected.private_data)
            raise
        try:
            self._rkey, self._base, self._bytes = region_grant(self.target, access, connection.private_data)
        except Error:
            connection.close()
            raise
        self._connection = connection
        self._access = access

    async def _in_time(self, awaited: Awaitable[T]) -> T:
        """Awaits something. The connection ends if no transfer completes for the timeout."""
        future = asyncio.ensure_future(awaited)
        try:
            while True:
                finished = self._finished
                done, _ = await asyncio.wait({future}, timeout=self._timeout)
                if done:
                    return future.result()
                if finished == self._finished:
                    message = f"{self.target} was silent for {self._timeout} s; a longer timeout waits longer"
                    self._end(message)
                    raise Timeout(errno.ETIMEDOUT, message)
        finally:
            if not future.done():
                future.cancel()
                await asyncio.wait({future})
            if not future.cancelled():
                future.exception()

    async def _slot(self) -> int:
        """Takes a part of the window, once one is free."""
        taken = asyncio.ensure_future(self._free.get())
        try:
            slot = await self._in_time(taken)
        except BaseException:
            if taken.done() and not taken.cancelled():
                self._free.put_nowait(taken.result())
            raise
        if self._connection is None:
            self._free.put_nowait(slot)
            raise self._lost()
        return slot

    def __len__(self) -> int:
        return self._bytes

    @property
    def is_open(self) -> bool:
        """True until the connection has ended, as far as the calls before have seen."""
        return self._connection is not None

    async def aread(self, offset: int, length: int) -> bytes:
        """Reads bytes at an offset (RDMA Read)."""
        if length < 0:
            raise ValueError(f"a length of {length} bytes: give 0 or more")
        out = bytearray(length)
        await self.areadinto(offset, out)
        return bytes(out)

    async def areadinto(self, offset: int, buffer: AnyBuffer) -> int:
        """Reads as many bytes at an offset as a writable buffer has, and returns their number."""
        with _view(buffer) as whole, _bytes(whole) as out:
            if out.readonly and len(out) > 0:
                raise BufferError("the buffer is read-only: give a writable one")
            self._check(Access.REMOTE_READ, offset, len(out))
            transfers = []
            try:
                for start in range(0, len(out), _CHUNK):
                    slot = await self._slot()
                    part = out[start : start + _CHUNK]
                    transfers.append(self._read(slot, offset + start, part))
                for done in transfers:
                    await self._in_time(done)
            finally:
                # After a cancellation, bytes that still come go nowhere.
                for done in transfers:
                    done.cancel()
            return len(out)

    async def awrite(self, offset: int, data: AnyBuffer) -> int:
        """Writes bytes to an offset (RDMA Write), and returns their number once they are in the peer's memory."""
        with _view(data) as whole, _bytes(whole) as bytes_:
            self._check(Access.REMOTE_WRITE, offset, len(bytes_))
            transfers = []
            for start in range(0, len(bytes_), _CHUNK):
                slot = await self._slot()
                transfers.append(self._write(slot, offset + start, bytes_[start : start + _CHUNK]))
            for done in transfers:
                await self._in_time(done)
            return len(bytes_)

    def _check(self, right: Access, offset: int, length: int) -> None:
        if self._connection is None:
            raise ConnectionLost(errno.ECONNRESET, f"the connection to {self.target} is closed: {self._ended}")
        if right not in self._access:
            message = f"{self.target} was connected to without {right.name}: name the right in `access`"
            raise RegionDenied(errno.EACCES, message)
        if offset < 0 or offset + length > self._bytes:
            message = f"{length} bytes at offset {offset} are not inside {self.target} of {self._bytes} bytes"
            raise ValueError(message)

    def _read(self, slot: int, offset: int, out: memoryview) -> asyncio.Future[None]:
        at = slot * _CHUNK

        def finish() -> None:
            out[:] = self._view[at : at + len(out)]

        sge = self._window.sge(at, len(out))
        return self._start(
            slot, finish, lambda number: self._qp.post_read(sge, self._base + offset, self._rkey, number)
        )

    def _write(self, slot: int, offset: int, data: memoryview) -> asyncio.Future[None]:
        at = slot * _CHUNK
        self._view[at : at + len(data)] = data
        sge = self._window.sge(at, len(data))
        to = self._base + offset

        def post(number: int) -> None:
            self._qp.post_write(sge, to, self._rkey, number, flags=SendFlags.NONE)
            self._qp.post_read(None, to, self._rkey, number)

        return self._start(slot, lambda: None, post)

    def _start(
        self, slot: int, finish: Callable[[], None], post: Callable[[int], None]
    ) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._connection is None:
            self._free.put_nowait(slot)
            done.set_exception(self._lost())
            return done
        number = self._next
        self._next += 1
        self._transfers[number] = _Transfer(slot, finish, done)
        try:
            post(number)
        except BaseException:
            del self._transfers[number]
            self._free.put_nowait(slot)
            raise
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._take_completions())
        return done

    async def _take_completions(self) -> None:
        try:
            while self._transfers:
                for completion in await self._cq.completions(_SLOTS):
                    self._finish(completion)
        except (Error, ValueError) as error:
            self._end(str(error))

    def _finish(self, completion: WorkCompletion) -> None:
        if not completion.ok:
            reason = completion.status.name
            while (event := self._context._poll_qp_event(self._qp.num)) is not None:
                if event.reason is not None:
                    reason = f"the peer has ended the connection: {event.reason}"
            self._end(reason)
            return
        transfer = self._transfers.pop(completion.wr_id, None)
        if transfer is None:
            # The connection has ended meanwhile.
            return
        self._finished += 1
        self._free.put_nowait(transfer.slot)
        if not transfer.done.done():
            transfer.finish()
            transfer.done.set_result(None)

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(errno.ECONNRESET, f"the connection to {self.target} is closed: {self._ended}")

    def _end(self, reason: str) -> None:
        """Ends the connection, and all transfers with it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._ended = reason
            connection.close()
        transfers, self._transfers = self._transfers, {}
        for transfer in transfers.values():
            self._free.put_nowait(transfer.slot)
            if not transfer.done.done():
                transfer.done.set_exception(self._lost())
                # Nobody may await the transfer any more.
                transfer.done.exception()

    def close(self) -> None:
        """Ends the connection. Transfers in flight fail with ConnectionLost."""
        self._end("the program has closed it")
        if self._pump is not None and not self._pump.get_loop().is_closed():
            self._pump.cancel()
        self._pump = None
        self._view.release()
        self._qp.close()
        self._window.close()
        if self._owns_context:
            self._context.close()

    async def __aenter__(self) -> AsyncRemoteRegion:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _view(buffer: AnyBuffer) -> memoryview:
    """Returns a view of a buffer, as it is."""
    return memoryview(cast("Buffer", buffer))


def _bytes(view: memoryview) -> memoryview:
    """Returns a view of single bytes."""
    if not view.c_contiguous:
        raise BufferError("the buffer is not contiguous: copy it to a contiguous one")
    return view.cast("B") if view.nbytes > 0 else memoryview(b"")


async def aconnect_region(
    target: str,
    access: Access = _BOTH,
    token: bytes | None = None,
    timeout: float | None = 10.0,
    *,
    context: Context | None = None,
) -> AsyncRemoteRegion:
    """Connects to a region of a peer: HOST:PORT/NAME.

    Without ``context``, the region has a device of its own. ``timeout`` is the longest time without progress.
    """
    owned = Context.embedded() if context is None else context
    region = AsyncRemoteRegion(target, owned, context is None, timeout)
    try:
        await region._connect(access, token)
    except BaseException:
        region.close()
        raise
    return region
