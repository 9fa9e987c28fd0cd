"""All prices are compared in one way: the least wins, the first of equals, and a change must save a
margin."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tcc.schedule.alternatives import (
    SILENT,
    Alternative,
    Site,
    digest_of,
    in_order,
    preferred,
    read_site,
    saves,
)
from tcc.schedule.choice_text import read_data, text_of
from tcc.schedule.cpu.core import Knobs
from tcc.schedule.cpu.schedule import Nest, Schedule, TailVectors
from tcc.schedule.gpu.schedule import BlockSchedule
from tcc.schedule.limits import Form
from tcc.schedule.margins import MARGINS, NO_MARGIN, Margin

CLASSES = (Knobs, Nest, Schedule, TailVectors, BlockSchedule, Form)


def priced(*prices: float) -> list[Alternative[int]]:
    return [Alternative(n, price) for n, price in enumerate(prices)]


def margin(saved: float) -> Margin:
    return Margin("test", saved)


@pytest.mark.parametrize(
    ("prices", "saved", "taken"),
    [
        ((10, 9.7, 9.5), 0.1, 0),
        ((10, 9.7, 9.5), 0.04, 2),
        ((10, 9, 8), 0.2, 0),  # a gain of exactly the margin is too little
        ((10, 9, 9), 0.05, 1),
        ((10, 10), 0.0, 0),
        ((float("inf"), 3.0), 0.1, 1),
        ((float("inf"), float("inf")), 0.1, 0),
        ((10,), 0.1, 0),
    ],
)
def test_another_than_the_rule_has_to_save_the_margin(
    prices: tuple[float, ...], saved: float, taken: int
) -> None:
    rule, *alternatives = priced(*prices)
    assert preferred(rule, alternatives, margin(saved)).replacement == taken
    choice = SILENT.decide(lambda: Site("test", "x"), rule, alternatives, margin(saved))
    assert choice.replacement == taken


def test_the_cheapest_comes_first_and_equals_stay_in_order() -> None:
    for prices in permutations((3.0, 1.0, 2.0, 1.0)):
        ordered = [alternative.replacement for alternative in in_order(priced(*prices))]
        assert ordered == sorted(range(4), key=lambda n: (prices[n], n))


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=4),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.1]),
)
def test_either_compares_the_lowest_prices(
    joined: list[float], apart: list[float], saved: float
) -> None:
    choice = SILENT.either(
        lambda: Site("test", "x"), ("join", joined), ("apart", lambda: apart), margin(saved)
    )
    assert choice is not saves(min(apart), min(joined), margin(saved))


def test_margins_have_names_and_are_fractions() -> None:
    assert all(name == row.name for name, row in MARGINS.items())
    assert all(0 <= row.saves < 1 for row in (NO_MARGIN, *MARGINS.values()))


# ---- texts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 3])
def test_sites_have_texts_that_parse_back(number: int) -> None:
    site = Site("join-part", "expr(p0: f32[4]) {\n  s0[i0: 0..4] = p0[i0]\n}; 7", number)
    assert read_site(site.text) == site
    assert len(site.digest) == 32
    assert site.digest != Site("join-part", site.content, number + 1).digest
    with pytest.raises(ValueError, match="is not a site"):
        read_site("NoSite")


def test_digests_depend_on_the_text_alone() -> None:
    assert digest_of("schedule x") == "91804ff4888db5d290ba5eadbd49afaf"


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (None, "none"),
        (True, "true"),
        ((0, 2, 3, 1), "(0, 2, 3, 1)"),
        ((), "()"),
        (("i0.i1", "i2+i3"), "(i0.i1, i2+i3)"),
        ("none", '"none"'),
        ("a, b", '"a, b"'),
        (-1.5, "-1.5"),
        (float("inf"), "inf"),
        (Knobs(), "Knobs()"),
        (Knobs(panel=4, along=0), "Knobs(panel=4, along=0)"),
        (Form(streams=True), "Form(streams=true)"),
        (BlockSchedule((("i0", 64),), ("i0",), 4, 2), None),
        (
            Schedule(
                (("i0", 6),),
                ("i0", "i1"),
                (Nest((0, 1), ("i2",), (("i1", 16),), "i1", vectors=TailVectors(16, True)),),
                stream_block=64,
                skips=True,
            ),
            None,
        ),
    ],
)
def test_alternatives_have_texts_that_parse_back(item: object, text: str | None) -> None:
    text_written = text_of(item)
    assert text in (None, text_written)
    assert read_data(text_written, *CLASSES) == item


def test_an_expression_has_no_text_of_data() -> None:
    with pytest.raises(TypeError, match="has no text"):
        text_of(object())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(",
        "(1 2)",
        "1, 2",
        "Knobs",  # a word
        "Knobs(",
        "Knobs(panel=4",
        "Knobs(panel=4, panel=4)",
        "Knobs(size=4)",
        "Pricer(4)",
        "TailVectors()",
        "__import__(os)",
        "(" * 100_000,
        "(" * 40 + ")" * 40,
        "9" * 100,
        "x" * 70_000,
        "'a'",
        "1e",
        "{}",
    ],
)
def test_invalid_texts_are_refused(text: str) -> None:
    if text == "Knobs":
        assert read_data(text, *CLASSES) == "Knobs"
        return
    with pytest.raises(ValueError, match=r"\w"):
        read_data(text, *CLASSES)
