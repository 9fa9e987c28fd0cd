"""A compile lists and forces decisions: sites by content, alternatives by text."""

from __future__ import annotations

from pathlib import Path

import pytest
from tcc.errors import UserError
from tcc.ir.expr import ExprBuilder
from tcc.ir.index import Index, IndexLike, const, symbol
from tcc.ir.layout import row_major, with_halo
from tcc.ir.types import F32, TensorType
from tcc.passes.choose.choices_file import read_lines
from tcc.passes.choose.content import site
from tcc.passes.choose.ledger import Line, ListeningLedger
from tcc.passes.choose.together import decide_together, numbered
from tcc.passes.fuse.structure import Storage
from tcc.schedule.alternatives import Alternative, Site, digest_of, read_site
from tcc.schedule.margins import NO_MARGIN

SITE = Site("test", "x")
RULE, OTHER = Alternative((0, 1), 10.0), Alternative((1, 0), 9.0)


def content(size: IndexLike) -> Site:
    """Returns the site of a sum over rows of `size` elements."""
    dim = size if isinstance(size, Index) else const(size)
    b = ExprBuilder(TensorType(F32, (const(4), dim)))
    row, column = b.iters(4, dim)
    b.sum((row,), b.read(0, row, column), (column,))
    storage = Storage(F32, (const(4), dim), row_major((const(4), dim)))
    return site("schedule", b.done(), (storage,))


def forced(alternative: str, place: Site = SITE) -> Line:
    return Line(place.digest, alternative, "--choices f, line 1")


def test_sites_name_no_size_of_the_model() -> None:
    batch, rows, even = symbol("batch", 1), symbol("rows", 1), symbol("even", 2, divisor=2)
    assert content(batch).digest == content(rows).digest
    assert content(batch).digest != content(even).digest
    assert "batch" not in content(batch).text
    assert content(64).digest != content(65).digest
    assert read_site(content(batch).text) == content(batch)


def test_equal_zeros_of_different_signs_have_different_sites() -> None:
    """Texts are cached by equal objects, and -0.0 equals 0.0."""
    base = row_major((const(4), const(4)))
    layouts = [with_halo(base, ((1, 1), (1, 1)), fill) for fill in (0.0, -0.0)]
    assert layouts[0] == layouts[1]
    assert len({site("order", layout).text for layout in layouts}) == 2
    texts = set()
    for fill in (0.0, -0.0):
        b = ExprBuilder(TensorType(F32, (const(4),)))
        (row,) = b.iters(6)
        b.stage((row,), b.read(0, row - 1, fill=fill))
        texts.add(site("cut", b.done()).text)
    assert len(texts) == 2


def test_decisions_are_listed_with_reasons_and_counts() -> None:
    ledger = ListeningLedger()
    for _ in range(2):
        assert ledger.decide(lambda: SITE, RULE, (OTHER,), NO_MARGIN, "conv") is OTHER
    (decision,) = ledger.decisions()
    assert decision.alternatives == (RULE, OTHER)
    assert (decision.choice, decision.place) == (OTHER, "conv")
    assert decision.reason == "it saves 10.0% of the rule's price"
    assert ledger.counts[SITE.digest] == 2


def test_graphs_that_are_only_priced_leave_no_decision_and_obey_no_line() -> None:
    ledger = ListeningLedger([forced("(0, 1)")])
    with ledger.trial():
        assert ledger.decide(lambda: SITE, RULE, (OTHER,)) is OTHER
        assert ledger.forced(lambda: SITE, (RULE, OTHER)) is None
    assert not list(ledger.decisions())
    assert [line.where for line in ledger.unused()] == ["--choices f, line 1"]


@pytest.mark.parametrize("text", ["(0, 1)", digest_of("(0, 1)")])
def test_a_line_forces_an_alternative(text: str) -> None:
    ledger = ListeningLedger([forced(text)])
    assert ledger.decide(lambda: SITE, RULE, (OTHER,)) is RULE
    (decision,) = ledger.decisions()
    assert decision.reason.startswith("--choices f, line 1 forces it; else (1, 0)")
    assert list(ledger.changes)
    assert not ledger.unused()


def test_a_line_that_forces_the_choice_changes_nothing() -> None:
    ledger = ListeningLedger([forced("(1, 0)")])
    assert ledger.decide(lambda: SITE, RULE, (OTHER,)) is OTHER
    assert not ledger.changes


def test_a_line_without_an_alternative_of_its_site_is_refused() -> None:
    ledger = ListeningLedger([forced("(2, 0)")])
    with pytest.raises(UserError) as error:
        ledger.decide(lambda: SITE, RULE, (OTHER,))
    assert error.value.where == "--choices f, line 1"
    assert "(0, 1), (1, 0)" in error.value.why


def test_either_of_two_is_listed_and_forced() -> None:
    def joins(ledger: ListeningLedger) -> bool:
        prices = [3.0, 2.0]
        return ledger.either(lambda: SITE, ("join", prices), ("apart", lambda: [1.0, 4.0]))

    assert not joins(ListeningLedger())
    ledger = ListeningLedger([forced("join")])
    assert joins(ledger)
    (decision,) = ledger.decisions()
    assert [(a.text, a.price) for a in decision.alternatives] == [("join", 2.0), ("apart", 1.0)]


def test_sites_name_the_device_where_targets_share_a_ledger() -> None:
    there = Site("test", "x", 0, "cuda:sm_90")
    assert there.text == "test@cuda:sm_90 x"
    assert read_site(there.text) == there
    assert read_site("test#2@cpu x") == Site("test", "x", 2, "cpu")
    ledger = ListeningLedger([forced("(0, 1)", there)])
    assert ledger.on("cpu").decide(lambda: SITE, RULE, (OTHER,)) is OTHER
    assert ledger.on("cuda:sm_90").decide(lambda: SITE, RULE, (OTHER,)) is RULE
    assert [d.site.device for d in ledger.decisions()] == ["cpu", "cuda:sm_90"]
    assert not ledger.unused()


def test_equal_sites_that_decide_with_neighbours_have_numbers() -> None:
    places = [[Alternative("a", 2.0), Alternative("b", 1.0)]] * 2
    contents = [("x",), ("x",)]
    first = Site("order", site("order", "x").content)
    second = Site("order", first.content, 1)

    def choices(*lines: Line) -> list[str]:
        ledger = ListeningLedger(lines)
        sites = numbered(ledger, "order", lambda: contents)
        picks = decide_together(ledger, sites, places, {}, 0, ["p", "q"])
        assert [d.site for d in ledger.decisions()] == [first, second]
        return [pick.replacement for pick in picks]

    assert choices() == ["b", "b"]
    assert choices(forced("a", second)) == ["b", "a"]


def test_forced_places_take_their_bytes_first() -> None:
    places = [[Alternative("a", 9.0), Alternative("b", 1.0, 5)]] * 2
    line = forced("b", Site("order", site("order", "x").content, 1))
    ledger = ListeningLedger([line])
    sites = numbered(ledger, "order", lambda: [("x",), ("x",)])
    picks = decide_together(ledger, sites, places, {}, 5, ["p", "q"])
    assert [pick.replacement for pick in picks] == ["a", "b"]


# ---- files --------------------------------------------------------------------------------------


def lines_of(folder: Path, text: str | bytes) -> tuple[Line, ...]:
    file = folder / "choices.jsonl"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_lines(file)


def test_a_file_names_sites_by_digest_or_text(tmp_path: Path) -> None:
    text = '{"site": "%s", "alternative": "join", "kind": "join"}\n\n{"site": "cut y", '
    lines = lines_of(tmp_path, text % SITE.digest + '"alternative": "whole"}')
    assert [line.site for line in lines] == [SITE.digest, Site("cut", "y").digest]
    assert lines[1].where.endswith("line 3")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('{"site": "cut y"}', 1),
        ('\n{"site": 3, "alternative": "x"}', 2),
        ("[]", 1),
        ("nonsense", 1),
        ('{"site": "No site", "alternative": "x"}', 1),
        ('{"site": "cut y", "alternative": "a"}\n{"site": "cut y", "alternative": "b"}', 2),
        ("[" * 100_000, 1),
        (b"\xff\xfe", 1),
    ],
)
def test_a_broken_line_is_named_by_its_number(
    tmp_path: Path, text: str | bytes, number: int
) -> None:
    with pytest.raises(UserError) as error:
        lines_of(tmp_path, text)
    assert error.value.where.endswith(f"choices.jsonl, line {number}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_lines(tmp_path / "none.jsonl")
