"""Tests of the layout of several variants' weights and kernels in a file."""

from __future__ import annotations

import hashlib
import weakref
from pathlib import Path

import numpy as np
import pytest
from tcc.backends.artifact.weight_section import Range, append_section, lay_out
from tcc.passes.layout.weights import WeightPart
from tcc.runtime.sections import TRAILER

PAGE, HUGE = 64 << 10, 2 << 20
SMALL, LARGE = bytes(range(200)), np.arange(HUGE // 4 + 5, dtype=np.int32)


def test_weights_begin_on_pages_and_images_on_lines(tmp_path: Path) -> None:
    weights, images = [[SMALL], [LARGE], [SMALL, SMALL], []], [b"t" * 70, b"", b"u" * 3, b""]
    section = lay_out(tmp_path / "section", weights, images)
    assert section.weights == (
        Range(0, 200), Range(HUGE, LARGE.nbytes), Range(2 * HUGE + PAGE, 400), Range(0, 0),
    )  # fmt: skip
    begin = 2 * HUGE + PAGE + 448
    assert section.images == (Range(begin, 70), Range(0, 0), Range(begin + 128, 3), Range(0, 0))
    assert section.size == begin + 131


def test_equal_weights_are_stored_once_even_if_divided_differently(tmp_path: Path) -> None:
    weights = [[SMALL[:50], SMALL[50:]], [SMALL], [SMALL[1:]]]
    section = lay_out(tmp_path / "section", weights, [b"x", b"y", b"x"])
    assert section.weights == (Range(0, 200), Range(0, 200), Range(PAGE, 199))
    assert section.images[0] == section.images[2] != section.images[1]


@pytest.mark.parametrize("weights", [[], [SMALL], [SMALL, LARGE]])
def test_the_file_ends_with_the_section_and_its_trailer(
    weights: list[bytes | np.ndarray], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"ELF")
    section = lay_out(tmp_path / "section", [weights], [b""])
    append_section(path, section)
    data = path.read_bytes()
    if not weights:
        assert (data, section.size) == (b"ELF", 0)
        return
    _, _, offset, size, digest = TRAILER.unpack(data[-TRAILER.size :])
    assert offset == (HUGE if size >= HUGE else PAGE)
    stored = data[offset : offset + size]
    assert stored == b"".join(bytes(memoryview(part).cast("B")) for part in weights)
    assert len(data) == offset + size + TRAILER.size
    assert digest == hashlib.sha256(stored).digest() == section.sha256


def test_parts_are_made_once_and_not_kept(tmp_path: Path) -> None:
    arrays: list[weakref.ref[np.ndarray]] = []

    def make() -> np.ndarray:
        array = LARGE.view(np.uint8).copy()
        arrays.append(weakref.ref(array))
        return array

    path = tmp_path / "file"
    path.write_bytes(b"ELF")
    section = lay_out(tmp_path / "section", [[WeightPart(LARGE.nbytes, make)]], [b""])
    append_section(path, section)
    assert section.sha256 == lay_out(tmp_path / "other", [[LARGE]], [b""]).sha256
    assert LARGE.tobytes() in path.read_bytes()
    assert [array() for array in arrays] == [None]
