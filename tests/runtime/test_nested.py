"""Modules take nested arguments, without torch."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
from tcc.runtime.nested import CallForm, MismatchError, by_name

FORM = CallForm([
    ([0, 0, 0], {"input": "xs_0"}),
    ([0, 0, 1, "x"], {"input": "xs_1_x"}),
    ([0, 0, 1, "y"], {"input": "xs_1_y"}),
    ([0, 1], {"input": "mask"}),
    ([0, 2], {"fixed": 2}),
    ([1, "scale"], {"input": "scale"}),
    ([1, "extra", "a"], {"fixed": None}),
])  # fmt: skip
WANTED = {"xs_0": 10, "xs_1_x": 11, "xs_1_y": 12, "mask": 13, "scale": 14}
Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    "pair",
    [{"x": 11, "y": 12}, OrderedDict(y=12, x=11), Pair(11, 12), SimpleNamespace(x=11, y=12)],
)
def test_containers(pair: Any) -> None:
    for xs in ([10, pair], (10, pair)):
        assert FORM.named((xs, 13, 2), {"scale": 14, "extra": {"a": None}}) == WANTED
        assert FORM.named((xs, 13, 2), {"scale": 14}) == WANTED


def test_keywords_may_name_inputs() -> None:
    form = CallForm([([0, 0, 0], {"input": "xs_0"}), ([0, 1], {"input": "mask"})])
    assert form.named(([1],), {"mask": 2}) == {"xs_0": 1, "mask": 2}
    assert form.named(([1], 2), {"state": 3}) == {"xs_0": 1, "mask": 2, "state": 3}


def test_one_array_for_each_input() -> None:
    names = list(WANTED)
    assert by_name(FORM, names, (10, 11, 12, 13, 14), {}) == WANTED
    assert by_name(FORM, names, (10, 11), {"mask": 13, "scale": 14, "xs_1_y": 12}) == WANTED
    assert by_name(None, ["a", "b"], (1,), {"b": 2}) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("arrays", "keywords", "why"),
    [
        (([10], 13, 2), {"scale": 14}, r"arguments\[0\] has 1 entries, due are 2"),
        (([10, {"x": 1}], 13, 2), {"scale": 14}, r"arguments\[0\]\[1\] has the keys 'x', due are"),
        (([10, 11], 13, 2), {"scale": 14}, r"\[1\] is a int, due is a dict of 2"),
        ((7, 13, 2), {"scale": 14}, r"arguments\[0\] is a int, due is a list of 2"),
        (([10, {"x": 1, "y": 2}], 13, 3), {"scale": 14}, r"arguments\[2\] is fixed to 2"),
        (([10, {"x": 1, "y": 2}], 13, True), {"scale": 14}, "it was given True"),
        (([10, {"x": 1, "y": 2}], 13), {"scale": 14}, "arguments has 2 entries, due are 3"),
        (([10, {"x": 1, "y": 2}], 13, 2), {}, "the argument scale is missing"),
        (([10, {"x": 1, "y": 2}], 13, 2), {"scale": 1, "extra": {"a": 0}}, r"extra\['a'\] is fix"),
        ((1,), {"xs_0": 2}, "'xs_0' was given both by position and by name"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(arrays: Any, keywords: Any, why: str) -> None:
    with pytest.raises(MismatchError, match=why):
        by_name(FORM, list(WANTED), arrays, keywords)


def test_more_arrays_than_inputs() -> None:
    with pytest.raises(MismatchError, match="3 arrays for 2 inputs"):
        by_name(None, ["a", "b"], (1, 2, 3), {"c": 4})


def test_text() -> None:
    assert str(FORM) == (
        "call module([xs_0, {'x': xs_1_x, 'y': xs_1_y}], mask, 2, scale=scale, "
        "extra={'a': None}), or give each array by itself"
    )
