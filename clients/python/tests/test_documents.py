"""The examples of docs/python.md run as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import WAIT

import ironwarp

DOCUMENT = Path(os.environ.get("DOCUMENT", Path(__file__).parents[3] / "docs/python.md"))
#: Output of each example in Python, in their order.
OUTPUTS = [
    r"b'hello' 1048576\n",
    r"serving lab at 127\.0\.0\.1:\d+\n",
    r"5 b'hello'\n",
    r"b'cc'\n",
    r"8000 499500\.0\n",
    r"111 cannot reach 127\.0\.0\.1:1/lab: .*\n",
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)


def run(text: str, folder: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        capture_output=True,
        text=True,
        timeout=WAIT,
        cwd=folder,
        check=False,
    )
    assert ended.returncode == 0 and ended.stderr == "", ended
    return ended.stdout


def test_every_example_is_run() -> None:
    assert len(blocks("python")) == len(OUTPUTS) and len(blocks("sh")) == 1
    assert DOCUMENT.read_text().count("\n```\n") == len(OUTPUTS) + 1


@pytest.mark.parametrize("number", range(1, len(OUTPUTS)))
def test_an_example_prints_what_it_says(number: int, tmp_path: Path) -> None:
    assert re.fullmatch(OUTPUTS[number], run(blocks("python")[number], tmp_path))


def test_the_first_example_reads_what_iwarpctl_serves(tmp_path: Path) -> None:
    program = os.environ.get("IWARPCTL")
    if program is None:
        pytest.skip("IWARPCTL names no program")
    (command,) = blocks("sh")
    name, *arguments = command.split()
    assert name == "iwarpctl"
    with subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL) as server:
        until = time.monotonic() + WAIT
        while True:
            try:
                ironwarp.connect_region("127.0.0.1:7400/lab").close()
                break
            except ironwarp.ConnectionRefused:
                assert time.monotonic() < until and server.poll() is None
                time.sleep(0.05)
        assert re.fullmatch(OUTPUTS[0], run(blocks("python")[0], tmp_path))
        server.terminate()
        assert server.wait(WAIT) == 0
