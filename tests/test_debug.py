"""A trace writes a file per change and times nested stages."""

from pathlib import Path

import pytest
from tcc.debug import Timing, Trace, timing_table
from tcc.errors import UserError


def test_dumps_are_numbered_and_only_of_changes(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "a" / "b")
    for name, text in (("import", "one"), ("dce", "one"), ("fold", "two"), ("undo", "one")):
        trace.dump(name, lambda text=text: text)
    files = sorted((tmp_path / "a" / "b").iterdir())
    assert [f.name for f in files] == ["00-import.txt", "01-fold.txt", "02-undo.txt"]
    assert [f.read_text() for f in files] == ["one", "two", "one"]


def test_without_a_folder_no_text_is_made() -> None:
    def text() -> str:
        raise AssertionError("text is costly")

    Trace().dump("import", text)


def test_a_folder_that_cannot_be_made_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="dump folder"):
        Trace(tmp_path / "file" / "inside")


def test_stages_nest_report_and_survive_errors() -> None:
    begun: list[str] = []
    trace = Trace(progress=begun.append)
    with trace.stage("passes"), trace.stage("dce"):
        pass
    with pytest.raises(KeyError), trace.stage("link"):
        raise KeyError
    assert begun == ["passes", "dce", "link"]
    assert [(t.stage, t.depth) for t in trace.timings] == [("passes", 0), ("dce", 1), ("link", 0)]
    assert trace.timings[0].seconds >= trace.timings[1].seconds


def test_the_table_shows_shares_of_the_whole() -> None:
    lines = timing_table((Timing("a", 3.0, 0), Timing("b", 1.0, 1), Timing("c", 1.0, 0)))
    assert lines.splitlines() == [
        "    3.000 s  75.0%  a",
        "    1.000 s  25.0%    b",
        "    1.000 s  25.0%  c",
    ]
