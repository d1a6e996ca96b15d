"""Memory as buffers and arrays: without copies, and in place for as long as somebody sees it."""

from __future__ import annotations

import array
import errno
import gc
import weakref

import numpy as np
import pytest
from conftest import Host, Pair, pattern

import ironwarp
from ironwarp import Access


def test_memory_is_a_writable_buffer(pair: Pair) -> None:
    memory = pair.near.memory(100)
    assert len(memory) == 100 and memory.access == Access.ALL and memory.addr > 0
    with memoryview(memory) as view:
        assert (view.nbytes, view.format, view.readonly) == (100, "B", False)
        assert bytes(view) == bytes(100)
        view[10:15] = b"hello"
    assert bytes(memory)[8:17] == b"\0\0hello\0\0"
    assert np.frombuffer(memoryview(memory), "u1", 5, 10).tobytes() == b"hello"


def test_an_array_is_the_memory_itself(pair: Pair) -> None:
    far = pair.far.memory(4096)
    numbers = far.array("<u4", 1024)
    assert not numbers.any() and numbers.shape == (1024,)
    near = pair.near.memory(4096)
    near.array("<u4")[:] = np.arange(1024)
    pair.near.qp.post_write(near, far.addr, far.rkey, 1)
    # A Read behind the Write proves that the bytes are placed.
    pair.near.qp.post_read(near.sge(0, 4), far.addr + 4092, far.rkey, 2)
    pair.near.done(2)
    assert (numbers == np.arange(1024)).all()
    assert near.array("<u4")[0] == 1023
    numbers[0] = 77
    assert bytes(far)[:4] == b"\x4d\0\0\0"
    # Views of a view keep the memory, too.
    part = numbers[5:].reshape(-1, 1)
    del numbers
    with pytest.raises(BufferError, match="1 views"):
        far.close()
    with pytest.raises(BufferError):
        pair.far.context.close()
    assert part[0, 0] == 5
    del part
    far.close()
    with pytest.raises(ironwarp.Error, match="memory region is closed") as closed:
        memoryview(far)
    assert closed.value.errno == errno.EBADF


def test_a_view_outlives_every_handle() -> None:
    context = ironwarp.Context.embedded()
    memory = context.alloc_pd().alloc_mr(1 << 20, Access.ALL)
    view = memoryview(memory)[100:]
    gone = weakref.ref(context)
    del context, memory
    gc.collect()
    assert gone() is None
    view[-5:] = b"alive"
    assert bytes(view[-5:]) == b"alive" and len(view) == (1 << 20) - 100
    del view
    gc.collect()


@pytest.mark.parametrize("kind", ["bytearray", "array", "numpy", "matrix"])
def test_memory_of_others_is_registered(pair: Pair, kind: str) -> None:
    data = pattern(6000)
    made: object
    if kind == "bytearray":
        made = bytearray(data)
    elif kind == "array":
        made = array.array("d", data)
    elif kind == "numpy":
        made = np.frombuffer(data, "u1").copy()
    else:
        made = np.frombuffer(data, "<u2").copy().reshape(3, 1000)
    buffer = memoryview(made)  # type: ignore[arg-type]
    memory = pair.far.pd.reg_mr(buffer, Access.ALL)
    buffer.release()
    assert len(memory) == 6000 and bytes(memory) == data
    near = pair.near.memory(6000)
    near.array("u1")[:] = np.frombuffer(pattern(6000, 1), "u1")
    pair.near.qp.post_write(near, memory.addr, memory.rkey)
    pair.near.qp.post_read(near.sge(0, 1), memory.addr, memory.rkey)
    pair.near.done(2)
    now = made.tobytes() if isinstance(made, (np.ndarray, array.array)) else made
    assert now == pattern(6000, 1)
    if isinstance(made, bytearray):
        with pytest.raises(BufferError):
            made.append(1)
        memory.close()
        made.append(1)


def test_a_registered_buffer_lives_as_long() -> None:
    class Watched(bytearray):
        pass

    context = ironwarp.Context.embedded()
    pd = context.alloc_pd()
    buffer = Watched(10_000)
    gone = weakref.ref(buffer)
    memory = pd.reg_mr(buffer, Access.ALL)
    del buffer
    gc.collect()
    assert gone() is not None
    memory.close()
    gc.collect()
    assert gone() is None
    context.close()


def test_unfit_memory_is_refused(pair: Pair) -> None:
    pd = pair.near.pd
    with pytest.raises(BufferError, match="read-only"):
        pd.reg_mr(b"constant", Access.ALL)
    constant = pd.reg_mr(b"constant", Access.LOCAL_READ | Access.REMOTE_READ)
    assert memoryview(constant).readonly and bytes(constant) == b"constant"
    with pytest.raises(BufferError, match="contiguous"):
        pd.reg_mr(np.zeros((4, 4))[:, 1], Access.ALL)
    with pytest.raises(ValueError, match="empty"):
        pd.reg_mr(bytearray(), Access.ALL)
    for length in [0, -1]:
        with pytest.raises(ValueError, match="at least one byte"):
            pd.alloc_mr(length, Access.ALL)
    with pytest.raises(ironwarp.Error) as much:
        pd.alloc_mr(1 << 50, Access.ALL)
    assert much.value.errno == errno.ENOMEM
    with pytest.raises(ValueError, match="Access"):
        pd.alloc_mr(10, Access(0x100))
    with pytest.raises(TypeError):
        pd.reg_mr(7, Access.ALL)  # type: ignore[arg-type]
    memory = pair.near.memory(100)
    outside: list[tuple[int, int | None]] = [(101, None), (-1, None), (0, 101), (100, 1), (50, -1)]
    for offset, part in outside:
        with pytest.raises(ValueError, match="not inside 100 bytes"):
            memory.sge(offset, part)
    assert memory.sge(100).length == 0 and memory.sge(40).length == 60
    assert memory.sge(1, 2) == memory.sge(1, 2) != memory.sge(1, 3)


def test_numpy_arrays_go_to_a_region_and_come_back(host: Host) -> None:
    memory, _ = host.offer("lab", 8_000_000)
    with ironwarp.connect_region(host.target("lab")) as region:
        numbers = np.random.default_rng(1).random((1000, 1000))
        assert region.write(0, numbers) == 8_000_000
        assert (memory.array("f8").reshape(1000, 1000) == numbers).all()
        back = np.empty_like(numbers)
        assert region.readinto(0, back) == 8_000_000
        assert (back == numbers).all()
        with pytest.raises(BufferError, match="read-only"):
            region.readinto(0, b"constant")
        with pytest.raises(BufferError, match="contiguous"):
            region.write(0, numbers[:, 1])
        assert region.write(0, np.empty((0, 3))) == 0
