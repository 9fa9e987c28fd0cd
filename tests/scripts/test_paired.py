"""`scripts/bench --base` decides what counts as slower, and prints it in its table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from paired import Pair, checked_out, pairs_table


def test_a_model_is_slower_where_nearly_all_rounds_say_so() -> None:
    base = [0.010] * 15
    steady = Pair("steady", base, [0.0103] * 12 + [0.0099] * 3)
    disturbed = Pair("disturbed", base, [0.0103] * 10 + [0.0099] * 5)
    assert steady.slower
    assert not disturbed.slower
    assert not Pair("equal").slower
    text = pairs_table([disturbed, steady, Pair("equal")], "a processor", "12345678")
    assert "slower by 2%: steady of 3 models" in text
    rows = [line.split() for line in text.splitlines()[4:8]]
    assert [row[0] for row in rows[1:]] == ["steady", "equal", "disturbed"]
    assert rows[1][1:] == ["10.000", "10.300", "1.030", "1.030", "slower"]
    assert rows[2][-2:] == ["equal", "bytes"]


def test_a_base_that_is_no_commit_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--base nothing: there is no such commit"):
        checked_out("nothing", tmp_path)
