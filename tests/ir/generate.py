"""Hypothesis strategies for graphs of the handmade ops and for index expressions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st
from tcc.ir.graph import Graph, GraphBuilder, Value
from tcc.ir.index import Index, const, maximum, minimum, symbol
from tcc.ir.op import OpSpec
from tcc.ir.types import DTYPES, F32, tensor

Ops = Mapping[str, OpSpec]
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)


@st.composite
def graphs(
    draw: st.DrawFn,
    ops: Ops,
    parent: GraphBuilder | None = None,
    outer: tuple[Value, ...] = (),
) -> Graph:
    """Draws a graph of most handmade ops, with odd names, constants, captures and nested bodies."""
    b = GraphBuilder(draw(NAMES), parent=parent)
    values = list(outer)
    if not outer:
        m = symbol(draw(NAMES), 1, draw(st.none() | st.integers(2, 9)), draw(st.integers(1, 3)))
        values.append(b.input(draw(NAMES), tensor(F32, 2 * m + 1, 3)))
    m = next(v for v in values[0].type.shape[0].terms[0][0])
    size = symbol(m.name, m.lo, m.hi, m.divisor)
    values.append(b.constant(np.full((7, 3), draw(st.integers(0, 3)), np.float32), draw(NAMES)))
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["neg", "add", "pair", "optional", "if"]))
        x = draw(st.sampled_from(values))
        if kind == "if" and not outer:
            bodies = [draw(graphs(ops, b, tuple(values))) for _ in range(2)]
            values += b.add(ops["if"], [x], ops["if"].attrs(*bodies), names=[draw(NAMES)])
        elif kind == "pair":
            every = ops["pair"].attrs(
                alpha=draw(st.floats()), axis=draw(st.integers()), mode=draw(st.text(max_size=4)),
                scales=tuple(draw(st.lists(st.floats(), max_size=2))),
                size=draw(st.sampled_from([None, size, size * size // 3 - 2])),
                to=draw(st.sampled_from(list(DTYPES.values()))),
            )  # fmt: skip
            values += b.add(ops["pair"], [x], every, loc=draw(st.text(max_size=8)))
        elif kind == "optional":
            values += b.add(ops["optional"], [None, x])
        elif kind != "if":
            values += b.add(ops[kind], [x, x][: 1 + (kind == "add")], names=[draw(NAMES)])
    return b.finish([draw(st.sampled_from(values))])


@st.composite
def indices(draw: st.DrawFn, variables: list[Index], depth: int = 3) -> Index:
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.one_of(st.sampled_from(variables), st.integers(-9, 9).map(const)))
    a, b = draw(indices(variables, depth - 1)), draw(indices(variables, depth - 1))
    divisor = draw(st.sampled_from([const(2), const(4), const(6), variables[0]]))
    match draw(st.sampled_from(["+", "-", "*", "//", "%", "min", "max"])):
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // divisor
        case "%":
            return a % divisor
        case "min":
            return minimum(a, b)
        case _:
            return maximum(a, b)
