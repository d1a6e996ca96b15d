"""Regions of peers: bytes of every length, and every refusal with its exception."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable

import pytest
from conftest import BOTH, LENGTHS, WAIT, Host, pattern

import ironwarp
from ironwarp import Access


def round_trips(region: ironwarp.RemoteRegion, memory: memoryview | None) -> None:
    bytes_ = len(region)
    for seed, length in enumerate(LENGTHS):
        for offset in sorted({0, bytes_ - length}):
            data = pattern(length, seed)
            assert region.write(offset, data) == length
            assert memory is None or memory[offset : offset + length] == data
            assert region.read(offset, length) == data
            changed = bytearray(pattern(length, seed + 100))
            assert region.write(offset, changed) == length
            into = bytearray(length)
            assert region.readinto(offset, into) == length
            assert into == changed


def test_bytes_of_every_length_go_and_come(host: Host) -> None:
    memory, offer = host.offer("lab", 6 << 20)
    with ironwarp.connect_region(host.target("lab")) as region, memoryview(memory) as view:
        assert (len(region), region.access, region.target) == (6 << 20, BOTH, host.target("lab"))
        assert region.peer == host.server.addresses[0]
        round_trips(region, view)
        grants, placed, fetched = offer.stats()
        assert grants == 1 and placed == fetched > 0


def test_iwarpctl_serve_is_a_peer(served: Callable[[str], str]) -> None:
    with ironwarp.connect_region(served("lab")) as region:
        round_trips(region, None)
    with ironwarp.connect_region(served("image")) as region:
        assert region.read(0, len(region)) == pattern(1_000_003, 7)
        with pytest.raises(ValueError, match="1 bytes at offset 1000003"):
            region.read(1_000_003, 1)
    with pytest.raises(ironwarp.RegionNotFound):
        ironwarp.connect_region(served("none"))


def test_an_access_outside_is_not_sent(host: Host) -> None:
    host_memory, _ = host.offer("lab", 10)
    with ironwarp.connect_region(host.target("lab")) as region:
        for offset, length in [(10, 1), (0, 11), (-1, 1), (11, 0), (2**62, 1), (0, -1)]:
            with pytest.raises(ValueError, match="bytes"):
                region.read(offset, length)
        for offset, length in [(10, 1), (0, 11), (-1, 1), (11, 0)]:
            with pytest.raises(ValueError, match="not inside"):
                region.write(offset, bytes(length))
            with pytest.raises(ValueError, match="not inside"):
                region.readinto(offset, bytearray(length))
        assert region.write(10, b"") == 0 and region.read(10, 0) == b""
        region.write(0, b"0123456789")
        assert bytes(memoryview(host_memory)) == b"0123456789"


def test_rights_are_those_of_the_offer(host: Host) -> None:
    host.offer("ro", 64, Access.REMOTE_READ)
    with pytest.raises(ironwarp.RegionDenied) as denied:
        ironwarp.connect_region(host.target("ro"))
    assert denied.value.errno == errno.EACCES and isinstance(denied.value, PermissionError)
    with ironwarp.connect_region(host.target("ro"), Access.REMOTE_READ) as region:
        assert region.read(0, 64) == bytes(64)
        with pytest.raises(ironwarp.RegionDenied, match="without remote-write"):
            region.write(0, b"x")
        region.read(0, 1)
    with pytest.raises(ironwarp.RegionError) as wrong:
        ironwarp.connect_region(host.target("ro"), Access.LOCAL_READ)
    assert wrong.value.errno == errno.EINVAL
    with pytest.raises(ValueError, match="Access"):
        ironwarp.connect_region(host.target("ro"), Access(0x80))


def test_a_token_and_a_source_are_required(host: Host) -> None:
    host.offer("secret", 64, token=b"open sesame")
    for token in [None, b"open sesamf"]:
        with pytest.raises(ironwarp.RegionDenied, match="token"):
            ironwarp.connect_region(host.target("secret"), token=token)
    with ironwarp.connect_region(host.target("secret"), token=b"open sesame") as region:
        region.write(0, b"x")
    for token in [b"", b"x" * 33]:
        with pytest.raises(ValueError, match="1 to 32"):
            ironwarp.connect_region(host.target("secret"), token=token)
    host.offer("near", 64, allow=["127.0.0.0/8"])
    host.offer("far", 64, allow=["10.0.0.0/8", "fd00::/8"])
    ironwarp.connect_region(host.target("near")).close()
    with pytest.raises(ironwarp.RegionDenied):
        ironwarp.connect_region(host.target("far"))
    with pytest.raises(ValueError, match="prefix"):
        host.offer("x", 64, allow=["10.0.0.1/8"])


def test_nobody_answers(host: Host) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError) as refused:
            ironwarp.connect_region(f"127.0.0.1:{unused.getsockname()[1]}/lab")
    assert refused.value.errno == errno.ECONNREFUSED and isinstance(refused.value, ironwarp.ConnectionRefused)
    for target in ["", "lab", "host:7400/", ":7400/lab", "::1/lab", "127.0.0.1:0/lab"]:
        with pytest.raises(ironwarp.RegionError) as wrong:
            ironwarp.connect_region(target)
        assert wrong.value.errno == errno.EINVAL
    with pytest.raises(ironwarp.Error) as unknown:
        ironwarp.connect_region("name.invalid:7400/lab")
    assert unknown.value.errno == errno.EHOSTUNREACH and "name.invalid" in str(unknown.value)
    with pytest.raises(ironwarp.RegionNotFound) as absent:
        ironwarp.connect_region(host.target("none"))
    assert absent.value.errno == errno.ENOENT and isinstance(absent.value, FileNotFoundError)


def test_a_silent_peer_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(TimeoutError) as late:
            ironwarp.connect_region(f"127.0.0.1:{silent.getsockname()[1]}/lab", timeout=0.3)
        assert 0.25 < time.monotonic() - began < 5
    assert late.value.errno == errno.ETIMEDOUT and isinstance(late.value, ironwarp.Timeout)
    for timeout in [-1.0, float("nan")]:
        with pytest.raises(ValueError, match="seconds"):
            ironwarp.connect_region("127.0.0.1:1/lab", timeout=timeout)


def test_a_withdrawn_region_ends_its_connections(host: Host) -> None:
    memory, offer = host.offer("lab", 64)
    region = ironwarp.connect_region(host.target("lab"))
    region.write(0, b"here")
    offer.withdraw()
    with pytest.raises(ironwarp.ConnectionLost, match="ended the connection") as lost:
        region.write(0, b"gone")
    assert lost.value.errno == errno.ECONNRESET and isinstance(lost.value, ConnectionResetError)
    with pytest.raises(ironwarp.ConnectionLost):
        region.read(0, 1)
    assert bytes(memoryview(memory)[:4]) == b"here"
    region.close()
    region.close()
    with pytest.raises(ironwarp.Error, match="region is closed") as closed:
        region.read(0, 1)
    assert closed.value.errno == errno.EBADF
    host.server.close()
    with pytest.raises(ironwarp.Error):
        host.offer("again", 64)
    with pytest.raises(ironwarp.ConnectionRefused):
        ironwarp.connect_region(host.target("lab"))


def test_a_server_says_why_it_refuses(host: Host) -> None:
    memory, _ = host.offer("lab", 64)
    with pytest.raises(ironwarp.Error, match="offered already") as taken:
        host.server.offer("lab", memory, BOTH)
    assert taken.value.errno == errno.EBUSY
    readable = host.pd.alloc_mr(64, Access.REMOTE_READ | Access.LOCAL_READ)
    with pytest.raises(ironwarp.PermissionDenied):
        host.server.offer("x", readable, BOTH)
    with pytest.raises(ironwarp.Error) as twice:
        host.context.serve_regions(["127.0.0.1:0"])
    assert twice.value.errno == errno.EBUSY
    other = ironwarp.Context.embedded()
    for address, number in [(host.server.addresses[0], errno.EADDRINUSE), ("192.0.2.77:0", errno.EADDRNOTAVAIL)]:
        with pytest.raises(ironwarp.Error) as refused:
            other.serve_regions([address])
        assert refused.value.errno == number
    with pytest.raises(ironwarp.Error) as wrong:
        other.serve_regions(["nonsense"])
    assert wrong.value.errno == errno.EADDRNOTAVAIL and "HOST:PORT" in str(wrong.value)
    other.close()


def test_a_file_is_a_region(host: Host, tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "image"
    path.write_bytes(pattern(100_001))
    host.server.offer_file("image", path, BOTH)
    with ironwarp.connect_region(host.target("image")) as region:
        assert region.read(0, len(region)) == pattern(100_001)
        region.write(50_000, pattern(50_001, 2))
    assert path.read_bytes() == pattern(100_001)[:50_000] + pattern(50_001, 2)
    with pytest.raises(ironwarp.Error) as absent:
        host.server.offer_file("none", path.with_name("none"), BOTH)
    assert absent.value.errno == errno.ENOENT


def test_threads_share_a_region(host: Host) -> None:
    memory, _ = host.offer("lab", 8 * 200_000)
    region = ironwarp.connect_region(host.target("lab"))
    failed: list[int] = []

    def work(number: int) -> None:
        for turn in range(10):
            data = pattern(200_000, number * 100 + turn)
            region.write(number * 200_000, data)
            if region.read(number * 200_000, 200_000) != data:
                failed.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not failed
    assert memoryview(memory)[: 200_000] == pattern(200_000, 9)
