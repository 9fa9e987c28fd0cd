"""The flag --tokenizer accepts exactly the files that the library tokenizers reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tcc import tokenizer
from tcc.errors import ToolError, UserError
from tcc.runtime import confined
from tcc.tokenizer import tokenizer_asset

GOOD = b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"\xc3\xa9": 0}, "merges": []}}'
BAD = {
    "empty": b"",
    "no JSON": b"tokenizer",
    "no UTF-8": b"\xff\xfe",
    "another object": b'{"a": 1}',
    "an unknown model": b'{"version": "1.0", "model": {"type": "Oracle"}}',
    "nested": b'{"version": "1.0", "model": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "cut": GOOD[:-5],
}


def test_the_asset_has_the_bytes_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(GOOD)
    assert tokenizer_asset(tmp_path / "t.json") == {"tokenizer.json": GOOD}
    assert tokenizer_asset(None) == {}


@pytest.mark.parametrize("kind", BAD)
def test_files_that_are_no_tokenizers_are_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "t.json").write_bytes(BAD[kind])
    with pytest.raises(UserError, match="the file is no tokenizer") as raised:
        tokenizer_asset(tmp_path / "t.json")
    assert str(tmp_path) in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_a_file_that_is_missing_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="No such file"):
        tokenizer_asset(tmp_path / "t.json")
    (tmp_path / "t.json").write_bytes(GOOD)
    monkeypatch.setattr(tokenizer, "_MOST_BYTES", len(GOOD) - 1)
    with pytest.raises(UserError, match="it has more than 0 MiB"):
        tokenizer_asset(tmp_path / "t.json")


def test_the_library_may_take_time_and_memory_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {f"word {number}": number for number in range(300_000)}
    model = {"type": "BPE", "vocab": words, "merges": []}
    (tmp_path / "t.json").write_text(json.dumps({"version": "1.0", "model": model}))
    monkeypatch.setattr(tokenizer, "_MOST_SECONDS", 1e-6)
    with pytest.raises(UserError, match="processor time"):
        tokenizer_asset(tmp_path / "t.json")


def test_without_the_library_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "find_spec", lambda name: None)
    with pytest.raises(ToolError, match=r"tcc\[lm\]"):
        tokenizer_asset(tmp_path / "t.json")


def test_a_process_that_crashes_is_an_error() -> None:
    with pytest.raises(confined.ConfinedError, match="No module named"):
        confined.answer("tcc.no_such_module", {}, seconds=1, most_bytes=1 << 30)
