"""Damaged artifacts, and files that are not artifacts."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tcc.driver import compile_model
from tcc.options import read_options

from .hostile_case import Action, Case, Outcome, plain


def cases() -> Iterator[Case]:
    yield _damaged("clean", lambda data: data, Outcome.WORKS)
    texts = {"empty": b"", "text": b"not a library\n" * 99, "zeros": bytes(9000)}
    for name, data in texts.items():
        yield _damaged(name, lambda _, data=data: data)
    for part in range(1, 16):
        yield _damaged(f"cut-{part}", lambda data, part=part: data[: len(data) * part // 16])
    for fewer in (1, 8, 64, 4096):
        yield _damaged(f"short-by-{fewer}", lambda data, fewer=fewer: data[:-fewer])
    yield _damaged("longer", lambda data: data + b"x")
    # The number stands for aarch64.
    yield _damaged("machine", lambda data: _set(data, 18, struct.pack("<H", 183)))
    yield _damaged("class", lambda data: _set(data, 4, b"\x01"))
    yield _damaged("order", lambda data: _set(data, 5, b"\x02"))
    yield _damaged("kind", lambda data: _set(data, 16, struct.pack("<H", 2)))
    yield _damaged("sections", lambda data: _set(data, 40, struct.pack("<Q", 1 << 62)))
    yield _damaged("section-count", lambda data: _set(data, 60, b"\xff\xff"))
    for number in range(24):
        yield _damaged(f"flip-{number}", lambda data, n=number: _flipped(data, n), Outcome.EITHER)
    for number in range(8):
        yield _damaged(f"tail-{number}", lambda data, n=number: _tail(data, n))
    for number in range(8):
        yield _damaged(
            f"manifest-{number}", lambda data, n=number: _manifest(data, n), Outcome.EITHER
        )


def _damaged(
    name: str, change: Callable[[bytes], bytes], outcome: Outcome = Outcome.REFUSED
) -> Case:
    def write(folder: Path) -> None:
        (folder / "m.so").write_bytes(change(_artifact()))

    feeds = {"x": np.ones((2, 3), np.float32)}
    return Case(f"artifact-{name}", outcome, write, Action.LOAD, feeds)


@cache
def _artifact() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "m.so")
        compile_model(plain(), read_options({"cpu": "x86-64-v3", "jobs": 1}), path)
        return path.read_bytes()


def _set(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def _flipped(data: bytes, number: int) -> bytes:
    """Returns the artifact with one flipped bit anywhere."""
    rng = random.Random(number)
    at = rng.randrange(len(data))
    return _set(data, at, bytes([data[at] ^ 1 << rng.randrange(8)]))


def _tail(data: bytes, number: int) -> bytes:
    """Returns the artifact with a flipped bit in the trailer at its end, which says where weights
    lie."""
    at = len(data) - 1 - number * 5
    return _set(data, at, bytes([data[at] ^ 1 << number]))


def _manifest(data: bytes, number: int) -> bytes:
    """Returns the artifact with one changed byte in the manifest's text."""
    at = data.index(b'{"') + number * 11
    return _set(data, at, b"}")
