"""What the tests share: devices, connected pairs, and a server in another process."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ironwarp
from ironwarp import Access

#: Longest wait of a test for something that comes at once.
WAIT = 30.0
BOTH = Access.REMOTE_READ | Access.REMOTE_WRITE
#: Lengths at which transfers begin, end, or are cut.
LENGTHS = [0, 1, 3, 7, 8, 4095, 4096, 4097, 64 << 10, (128 << 10) + 1, (1 << 20) - 1, (1 << 20) + 17, (5 << 20) + 3]


def pattern(length: int, seed: int = 0) -> bytes:
    """Returns bytes that differ at every place and for every seed."""
    return random.Random(seed).randbytes(length)


class End:
    """A device with a queue pair."""

    def __init__(self, **sizes: Any) -> None:
        self.context = ironwarp.Context.embedded()
        self.pd = self.context.alloc_pd()
        self.cq = self.context.create_cq(256)
        self.qp = self.pd.create_qp(self.cq, **sizes)

    def memory(self, length: int, access: Access = Access.ALL) -> ironwarp.MemoryRegion:
        return self.pd.alloc_mr(length, access)

    def done(self, count: int = 1) -> list[ironwarp.WorkCompletion]:
        """Waits for completions that all succeeded."""
        taken: list[ironwarp.WorkCompletion] = []
        while len(taken) < count:
            taken += self.cq.wait(WAIT)
        assert len(taken) == count
        return [completion.raise_for_status() for completion in taken]


class Pair:
    """Two devices of this process, whose queue pairs are connected."""

    def __init__(self, near: End, far: End) -> None:
        self.near, self.far = near, far
        with far.context.listen("127.0.0.1:0") as listener:
            connecting = near.context._start_connect(near.qp, listener.address, b"", True)
            self.request = listener.get_request(WAIT)
            self.accepted = self.request.accept(far.qp, b"")
            connection = None
            while connection is None:
                connection = connecting.poll()
            self.connection = connection

    def close(self) -> None:
        for end in (self.near, self.far):
            end.context.close()


@pytest.fixture
def make_pair() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(**sizes: int) -> Pair:
        made.append(Pair(End(**sizes), End(**sizes)))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


@pytest.fixture
def pair(make_pair: Callable[..., Pair]) -> Pair:
    return make_pair()


class Host:
    """A device that serves regions."""

    def __init__(self) -> None:
        self.context = ironwarp.Context.embedded()
        self.pd = self.context.alloc_pd()
        self.server = self.context.serve_regions(["127.0.0.1:0"])

    def offer(
        self, name: str, length: int, access: Access = BOTH, **conditions: Any
    ) -> tuple[ironwarp.MemoryRegion, ironwarp.Offer]:
        memory = self.pd.alloc_mr(length, Access.ALL)
        return memory, self.server.offer(name, memory, access, **conditions)

    def target(self, name: str) -> str:
        return f"{self.server.addresses[0]}/{name}"


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.context.close()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Starts `iwarpctl serve` with a file and memory, and returns the text that names a region of it."""
    program = os.environ.get("IWARPCTL")
    if program is None:
        pytest.skip("IWARPCTL names no program")
    image = tmp_path_factory.mktemp("served") / "image"
    image.write_bytes(pattern(1_000_003, 7))
    token = Path(str(image) + ".token")
    token.write_text("open sesame\n")
    regions = ["-r", "lab=8M", "-r", f"image={image}", "-a", "remote-read,remote-write", "-l", "127.0.0.1:0"]
    arguments = [program, "-j", "serve", *regions]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        yield lambda name: f"{ready['addresses'][0]}/{name}"
        server.terminate()
        server.wait(WAIT)
