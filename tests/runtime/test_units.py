"""Numbers are printed with suitable units."""

from __future__ import annotations

import pytest
from tcc.runtime.units import bytes_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (1000 * 1024, "1000 KiB"),
        (3 << 30, "3 GiB"),
        (2 << 40, "2048 GiB"),
    ],
)
def test_bytes_have_the_largest_unit_that_keeps_them_above_one(size: int, text: str) -> None:
    assert bytes_text(size) == text
