"""Types of sequences and optionals have names, joins, and the words that the runtime reads."""

from __future__ import annotations

import pytest
from tcc.ir.graph import ConstantStore, Graph, Value
from tcc.ir.graph.text import graph_text
from tcc.ir.lists import (
    NOTHING,
    ListType,
    fits,
    joined,
    optional_of,
    parse_list_type,
    sequence_of,
    type_words,
)
from tcc.ir.types import F32, I64, STRING, TensorType

from tests.lib.oracle.graph.parse import parse_graph

TYPES = (
    sequence_of(F32),
    sequence_of(F32, ()),
    sequence_of(F32, (2, None)),
    sequence_of(STRING, NOTHING),
    optional_of(I64, (3,)),
    optional_of(sequence_of(F32, (None,))),
    sequence_of(sequence_of(optional_of(STRING, (1, 2)))),
)


@pytest.mark.parametrize("type_", TYPES, ids=lambda t: t.name)
def test_names_and_texts_read_back(type_: ListType) -> None:
    assert parse_list_type(type_.name) is type_
    value = Value("x", TensorType(type_, ()))
    text = graph_text(Graph("g", (value,), (value,), (), {}, ConstantStore()))
    again = parse_graph(text, {}, ConstantStore())
    assert again.inputs[0].type.dtype is type_
    assert graph_text(again) == text


@pytest.mark.parametrize(
    "text", ["f32", "sequence(f33)", "sequence(f32[2)", "sequence(f32[x])", ""]
)
def test_invalid_type_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no type|invalid literal"):
        parse_list_type(text)


def test_joins_keep_the_facts_of_both_types() -> None:
    assert joined(sequence_of(F32, (2, 3)), sequence_of(F32, (2, 4))) is sequence_of(F32, (2, None))
    assert joined(sequence_of(F32, (2,)), sequence_of(F32, (2, 3))) is sequence_of(F32)
    assert joined(sequence_of(F32, NOTHING), sequence_of(F32, (2,))) is sequence_of(F32, (2,))
    nested = optional_of(sequence_of(F32, (1,))), optional_of(sequence_of(F32, (2,)))
    assert joined(*nested) is optional_of(sequence_of(F32, (None,)))
    assert joined(sequence_of(F32), sequence_of(I64)) is None
    assert joined(sequence_of(F32), optional_of(F32)) is None
    assert joined(F32, F32) is F32


def test_fitting_looks_at_no_sizes() -> None:
    assert fits(sequence_of(F32, (2,)), sequence_of(F32))
    assert not fits(sequence_of(F32), sequence_of(I64))
    assert not fits(sequence_of(F32), F32)


def test_words() -> None:
    f32, string = 2 << 8 | 32, 3 << 8 | 128
    assert type_words(sequence_of(F32, (2, None))) == (2, 0, f32, 2, 2, -1)
    assert type_words(optional_of(sequence_of(STRING))) == (1, 2, 0, string, -1)


def test_depth_is_bounded() -> None:
    type_ = sequence_of(F32)
    for _ in range(7):
        type_ = sequence_of(type_)
    with pytest.raises(ValueError, match="nest"):
        sequence_of(type_)
