"""Patterns of states pair inputs and outputs, and wrong patterns are refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.passes.graph.state_names import named_states


def graph(inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    b = GraphBuilder("g")
    values = [b.input(name, tensor(F32, 2)) for name in inputs]
    results = [b.add(OPS["neg"], [values[0]], names=[name])[0] for name in outputs]
    return b.finish(results)


LAYERS = (10, 2, 1)  # not in numeric order
MODEL = graph(
    ["x", *(f"past.{n}.{kind}" for n in LAYERS for kind in ("value", "key")), "past*"],
    ["y", *(f"present.{n}.{kind}" for n in LAYERS for kind in ("key", "value")), "now*"],
)


@pytest.mark.parametrize("pattern", [("past.*", "present.*"), ("past.*.*", "present.*.*")])
def test_a_pattern_pairs_names_in_natural_order(pattern: tuple[str, str]) -> None:
    assert named_states(MODEL, [pattern]) == tuple(
        (f"past.{n}.{kind}", f"present.{n}.{kind}") for n in (1, 2, 10) for kind in ("key", "value")
    )


def test_pairs_and_patterns_keep_their_order() -> None:
    pairs = [("x", "y"), ("past.*.key", "present.*.key"), ("past*", "now*")]
    names = [past for past, _ in named_states(MODEL, pairs)]
    assert names == ["x", "past.1.key", "past.2.key", "past.10.key", "past*"]


def test_a_star_stands_for_the_same_text_in_both_names() -> None:
    model = graph(["a1", "a12", "a(2)"], ["12", "122", "(2)2", "1"])
    assert named_states(model, [("a*", "*2")]) == (("a1", "12"), ("a12", "122"), ("a(2)", "(2)2"))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (("cache.*", "present.*"), r"no input matches the pattern 'cache\.\*'.*past\.10\.value"),
        (("past.*", "present"), r"more \* on one side.*at: --state past\.\*=present"),
        (("past.*", "next.*"), r"'past\.1\.key', which has no output 'next\.1\.key'.*present\.10"),
        (("*", "*"), "the input 'past\\*', which has no output 'past\\*'"),
    ],
)
def test_patterns_without_states_are_refused(pattern: tuple[str, str], message: str) -> None:
    with pytest.raises(UserError, match=f"(?s){message}"):
        named_states(MODEL, [pattern])


def test_a_long_name_of_digits_is_no_number() -> None:
    model = graph([f"p{'9' * 5000}", "p2"], [f"q{'9' * 5000}", "q2"])
    assert [past[:2] for past, _ in named_states(model, [("p*", "q*")])] == ["p2", "p9"]
