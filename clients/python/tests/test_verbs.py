"""Queue pairs: every operation with compared bytes, connections, and every failure with its exception."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable

import pytest
from conftest import LENGTHS, WAIT, End, Pair, pattern

import ironwarp
from ironwarp import Access, Opcode, QpState, SendFlags, Status


def fill(memory: ironwarp.MemoryRegion, data: bytes) -> None:
    with memoryview(memory) as view:
        view[: len(data)] = data


def held(memory: ironwarp.MemoryRegion, length: int) -> bytes:
    with memoryview(memory) as view:
        return bytes(view[:length])


@pytest.mark.parametrize("length", LENGTHS)
def test_bytes_of_every_length_are_sent_written_and_read(pair: Pair, length: int) -> None:
    near, far = pair.near.memory(length + 8), pair.far.memory(length + 8)
    qp = pair.near.qp
    pair.far.qp.post_recv(far, 1)
    fill(near, pattern(length, 1))
    qp.post_send(near.sge(0, length), 2)
    (sent,), (received,) = pair.near.done(), pair.far.done()
    assert (sent.wr_id, sent.opcode, sent.status) == (2, Opcode.SEND, Status.SUCCESS)
    assert (received.wr_id, received.opcode, received.byte_len) == (1, Opcode.RECV, length)
    assert received.qp_num == pair.far.qp.num and received.ok and received.imm_data is None
    assert held(far, length) == pattern(length, 1)

    fill(near, pattern(length, 2))
    qp.post_write(near.sge(0, length), far.addr, far.rkey, 3)
    # The peer answers the Read only after the bytes of the Write are placed.
    qp.post_read(None, far.addr, far.rkey, 4)
    assert [done.wr_id for done in pair.near.done(2)] == [3, 4]
    assert held(far, length + 8) == pattern(length, 2) + bytes(8)

    fill(far, pattern(length, 3))
    qp.post_read(near.sge(0, length), far.addr, far.rkey, 5)
    (read,) = pair.near.done()
    assert (read.wr_id, read.opcode) == (5, Opcode.RDMA_READ)
    assert held(near, length) == pattern(length, 3)


def test_immediate_data_notifies_the_peer(pair: Pair) -> None:
    near, far = pair.near.memory(100), pair.far.memory(100)
    for number in range(3):
        pair.far.qp.post_recv(None, number)
    fill(near, pattern(100))
    pair.near.qp.post_write(near, far.addr, far.rkey, 1, imm_data=b"12345678")
    (received,) = pair.far.done()
    assert (received.opcode, received.imm_data) == (Opcode.RECV_RDMA_WITH_IMM, b"12345678")
    assert held(far, 100) == pattern(100)
    pair.near.qp.post_imm(b"abcdefgh", 2, flags=SendFlags.SIGNALED | SendFlags.SOLICITED)
    (received,) = pair.far.done()
    assert received.imm_data == b"abcdefgh" and received.solicited
    pair.near.done(2)
    for wrong in [b"", b"1234567", b"123456789"]:
        with pytest.raises(ValueError, match="eight"):
            pair.near.qp.post_imm(wrong)


def test_atomic_operations_return_the_value_before(pair: Pair) -> None:
    near, far = pair.near.memory(16), pair.far.memory(16)
    counter, before = far.array("=u8"), near.array("=u8")
    counter[1] = 40
    pair.near.qp.post_fetch_add(near.sge(0, 8), far.addr + 8, far.rkey, 2, 1)
    (added,) = pair.near.done()
    assert (added.opcode, before[0], list(counter)) == (Opcode.FETCH_ADD, 40, [0, 42])
    pair.near.qp.post_compare_swap(near.sge(8, 8), far.addr + 8, far.rkey, 41, 7, 2)
    pair.near.done()
    assert (before[1], counter[1]) == (42, 42)
    pair.near.qp.post_compare_swap(near.sge(8, 8), far.addr + 8, far.rkey, 42, 2**64 - 1, 3)
    (swapped,) = pair.near.done()
    assert (swapped.opcode, before[1], counter[1]) == (Opcode.COMP_SWAP, 42, 2**64 - 1)


def test_lists_gather_and_inline_bytes_are_copied(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(max_send_sge=3, max_recv_sge=2, max_inline_data=64)
    near, far = pair.near.memory(100), pair.far.memory(100)
    fill(near, pattern(100))
    pair.far.qp.post_recv([far.sge(0, 10), far.sge(50, 50)], 1)
    pair.near.qp.post_send([near.sge(0, 5), near.sge(90, 10), near.sge(20, 7)], 2)
    pair.near.done()
    (received,) = pair.far.done()
    whole = pattern(100)[:5] + pattern(100)[90:] + pattern(100)[20:27]
    assert received.byte_len == 22
    assert held(far, 10) + held(far, 62)[50:] == whole
    pair.far.qp.post_recv(far)
    pair.near.qp.post_send(b"inline", 3)
    pair.far.done()
    assert held(far, 6) == b"inline"
    with pytest.raises(ironwarp.Error) as many:
        pair.near.qp.post_send([near.sge(0, 1)] * 4)
    assert many.value.errno == errno.EINVAL
    with pytest.raises(ironwarp.Error):
        pair.near.qp.post_send(bytes(65))
    with pytest.raises(ValueError, match="registered memory"):
        pair.far.qp.post_recv(b"constant")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        pair.near.qp.post_send([1, 2])  # type: ignore[list-item]


def test_unsignaled_requests_complete_silently(pair: Pair) -> None:
    near, far = pair.near.memory(8), pair.far.memory(8)
    for number in range(100):
        pair.near.qp.post_write(near, far.addr, far.rkey, number, flags=SendFlags.NONE)
    pair.near.qp.post_read(near, far.addr, far.rkey, 100, flags=SendFlags.SIGNALED | SendFlags.FENCE)
    assert [done.wr_id for done in pair.near.done()] == [100]


def test_full_queues_and_idle_ones_refuse_work(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(max_send_wr=4, max_recv_wr=4)
    near, far = pair.near.memory(8), pair.far.memory(8)
    with pytest.raises(ironwarp.QueueFull, match="poll completions") as full:
        for number in range(5):
            pair.near.qp.post_write(near, far.addr, far.rkey, number)
    assert full.value.errno == errno.ENOMEM
    pair.near.done(4)
    pair.near.qp.post_write(near, far.addr, far.rkey)
    idle = pair.near.pd.create_qp(pair.near.cq)
    assert idle.state == QpState.IDLE and pair.near.qp.state == QpState.RTS
    with pytest.raises(ironwarp.Error, match="connect the queue pair first") as early:
        idle.post_send(near)
    assert early.value.errno == errno.EINVAL
    with pytest.raises(OverflowError):
        pair.near.qp.post_write(near, -1, far.rkey)


def test_a_wrong_key_ends_the_connection(pair: Pair) -> None:
    near, far = pair.near.memory(8), pair.far.memory(8, Access.LOCAL_READ | Access.LOCAL_WRITE)
    pair.near.qp.post_read(near, far.addr, far.rkey, 9)
    (failed,) = pair.near.cq.wait(WAIT)
    assert (failed.wr_id, failed.status, failed.ok) == (9, Status.WR_FLUSH_ERR, False)
    with pytest.raises(ironwarp.CompletionError, match="work request 9") as error:
        failed.raise_for_status()
    assert error.value.errno == errno.EIO
    assert error.value.status == Status.WR_FLUSH_ERR and error.value.completion is failed
    event = pair.near.context.get_async_event(WAIT)
    assert (event.kind, event.qp_num) == ("qp_terminated", pair.near.qp.num)
    assert event.reason is not None and "access" in event.reason
    assert pair.far.context.get_async_event(WAIT).kind == "qp_access_error"
    pair.connection.wait_ended(WAIT)
    assert pair.connection.has_ended() and pair.near.qp.state == QpState.ERROR


def test_closed_memory_is_not_sent(pair: Pair) -> None:
    near = pair.near.memory(100)
    sge = near.sge()
    near.close()
    with pytest.raises(ironwarp.Error, match="closed"):
        pair.near.qp.post_send(near)
    pair.near.qp.post_send(sge)
    assert pair.near.cq.wait(WAIT)[0].status == Status.LOC_PROT_ERR


def test_a_long_message_does_not_fit(pair: Pair) -> None:
    near, far = pair.near.memory(100), pair.far.memory(99)
    pair.far.qp.post_recv(far)
    pair.near.qp.post_send(near)
    assert pair.far.cq.wait(WAIT)[0].status == Status.LOC_LEN_ERR


def test_private_data_goes_both_ways() -> None:
    near, far = End(), End()
    with far.context.listen("127.0.0.1:0") as listener:
        assert listener.poll_request() is None
        with pytest.raises(ironwarp.Timeout):
            listener.get_request(0.05)
        connecting = near.context._start_connect(near.qp, listener.address, b"question", False)
        request = listener.get_request(WAIT)
        assert request.private_data == b"question" and request.peer.startswith("127.0.0.1:")
        accepted = request.accept(far.qp, b"answer")
        connection = None
        while connection is None:
            connection = connecting.poll()
        assert connection.private_data == b"answer" and accepted.private_data == b"question"
        assert connection.peer == listener.address == accepted.local
        assert connection.local == accepted.peer == request.peer
        assert not connection.has_ended()
        with pytest.raises(ironwarp.Timeout):
            connection.wait_ended(0.05)
        connection.disconnect()
        accepted.wait_ended(WAIT)
        connection.wait_ended(WAIT)
        with pytest.raises(ironwarp.Error) as long:
            near.context.connect(near.pd.create_qp(near.cq), listener.address, bytes(513))
        assert long.value.errno == errno.EINVAL
    near.context.close()
    far.context.close()


def test_a_peer_rejects_is_absent_or_silent() -> None:
    near, far = End(), End()
    with far.context.listen("127.0.0.1:0") as listener:
        connecting = near.context._start_connect(near.qp, listener.address, b"", False)
        listener.get_request(WAIT).reject(b"not today")
        with pytest.raises(ironwarp.Rejected) as rejected:
            while connecting.poll() is None:
                pass
        assert rejected.value.private_data == b"not today" and rejected.value.errno == errno.ECONNREFUSED
        # A request that nobody answers is closed with its last handle.
        qp = near.pd.create_qp(near.cq)
        connecting = near.context._start_connect(qp, listener.address, b"", False)
        listener.get_request(WAIT)
        with pytest.raises(ironwarp.ConnectionLost):
            while connecting.poll() is None:
                pass
        address = listener.address
    with pytest.raises(ConnectionRefusedError) as refused:
        near.context.connect(near.pd.create_qp(near.cq), address)
    assert refused.value.errno == errno.ECONNREFUSED and address in str(refused.value)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(TimeoutError) as late:
            near.context.connect(near.pd.create_qp(near.cq), at, timeout=0.3)
        assert late.value.errno == errno.ETIMEDOUT and 0.25 < time.monotonic() - began < 5
    with pytest.raises(ironwarp.Error) as unknown:
        near.context.connect(near.pd.create_qp(near.cq), "name.invalid:1")
    assert unknown.value.errno == errno.EADDRNOTAVAIL
    for taken in [far.context.listen("127.0.0.1:0").address, "192.0.2.99:7000"]:
        holder = far.context.listen("127.0.0.1:0")
        with pytest.raises(ironwarp.Error) as unfit:
            far.context.listen(holder.address if taken.startswith("127") else taken)
        assert unfit.value.errno == errno.EADDRNOTAVAIL
    near.context.close()
    far.context.close()


def test_a_queue_pair_is_used_again(pair: Pair) -> None:
    pair.connection.disconnect()
    pair.accepted.wait_ended(WAIT)
    pair.connection.wait_ended(WAIT)
    for end, connection in [(pair.near, pair.connection), (pair.far, pair.accepted)]:
        connection.close()
        end.qp.modify(QpState.IDLE)
        assert end.qp.state == QpState.IDLE
    again = Pair(pair.near, pair.far)
    near, far = again.near.memory(5), again.far.memory(5)
    again.far.qp.post_recv(far)
    fill(near, b"again")
    again.near.qp.post_send(near)
    again.far.done()
    assert bytes(far) == b"again"
    with pytest.raises(ValueError, match="IDLE or ERROR"):
        again.near.qp.modify(QpState.RTS)
    with pytest.raises(ironwarp.Error) as connected:
        again.near.qp.modify(QpState.IDLE)
    assert connected.value.errno == errno.EINVAL
    again.far.qp.post_recv(far, 7)
    again.far.qp.modify(QpState.ERROR)
    (flushed,) = again.far.cq.wait(WAIT)
    assert (flushed.wr_id, flushed.status) == (7, Status.WR_FLUSH_ERR)


def test_rights_of_the_peer_are_those_of_the_queue_pair(pair: Pair) -> None:
    near, far = pair.near.memory(8), pair.far.memory(8)
    pair.far.qp.modify_access(Access.REMOTE_READ)
    pair.near.qp.post_read(near, far.addr, far.rkey)
    pair.near.done()
    pair.near.qp.post_write(near, far.addr, far.rkey)
    assert pair.far.context.get_async_event(WAIT).kind == "qp_access_error"
    with pytest.raises(ironwarp.Error):
        pair.far.qp.modify_access(Access.LOCAL_READ)


def test_waits_end_in_time(pair: Pair) -> None:
    assert pair.near.cq.poll() == []
    began = time.monotonic()
    with pytest.raises(TimeoutError) as late:
        pair.near.cq.wait(0.25)
    assert 0.2 < time.monotonic() - began < 5
    assert late.value.errno == errno.ETIMEDOUT
    with pytest.raises(ironwarp.Timeout):
        pair.near.context.get_async_event(0)
    assert pair.near.context.poll_async_event() is None
    for count in [0, -1]:
        with pytest.raises(ValueError, match="at least one"):
            pair.near.cq.poll(count)
    pair.near.cq.resize(1000)
    with pytest.raises(ironwarp.Error) as large:
        pair.near.context.create_cq(2**31)
    assert large.value.errno == errno.EINVAL


def test_objects_of_two_devices_do_not_mix(pair: Pair) -> None:
    with pytest.raises(ironwarp.Error, match="two contexts") as mixed:
        pair.near.pd.create_qp(pair.far.cq)
    assert mixed.value.errno == errno.EINVAL
    with pytest.raises(ironwarp.Error, match="two contexts"):
        pair.near.context.connect(pair.far.pd.create_qp(pair.far.cq), "127.0.0.1:1")


def test_a_daemon_that_is_absent_has_an_errno(tmp_path: object) -> None:
    for call in (ironwarp.Context.open, ironwarp.devices):
        with pytest.raises(ironwarp.Error, match="none.sock") as absent:
            call(f"{tmp_path}/none.sock")
        assert absent.value.errno == errno.ENOENT
    context = ironwarp.Context.embedded()
    assert context.is_open and context.device.name and "127.0.0.1/8" in context.device.addresses
    context.close()
    context.close()
    assert not context.is_open
    with pytest.raises(ironwarp.Error, match="device is closed") as closed:
        context.alloc_pd()
    assert closed.value.errno == errno.EBADF
