"""For each local rule, a graph to which it applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.index import const
from tcc.ir.types import F32, tensor
from tcc.ops import OPS


def _chain(name: str, *attrs: Any) -> Callable[[], Graph]:
    """Returns a maker of a graph of consecutive nodes `name` on one input f32[2,3,1], followed by a
    `relu`."""

    def example() -> Graph:
        b = GraphBuilder("example")
        value = b.input("x", tensor(F32, 2, 3, 1))
        for item in attrs:
            (value,) = b.add(OPS[name], [value], item)
        return b.finish(b.add(OPS["relu"], [value], names=["y"]))

    return example


def _padded_conv_example() -> Graph:
    b = GraphBuilder("example")
    x = b.input("x", tensor(F32, 1, 2, 5, 4))
    w = b.constant(np.arange(54, dtype=np.float32).reshape(3, 2, 3, 3), "w")
    none, before, after = const(0), (const(1), const(0)), (const(2), const(1))
    pad = OPS["pad"].attrs((none, none, *before), (none, none, *after), "constant")
    (wide,) = b.add(OPS["pad"], [x], pad)
    conv = OPS["conv"].attrs((1, 2), (0, 1), (0, 0), (1, 1), 1)
    return b.finish(b.add(OPS["conv"], [wide, w], conv, names=["y"]))


def _reaching_taps_example() -> Graph:
    """Returns windows of three with a dilation of four over three rows, and of five over two
    columns."""
    b = GraphBuilder("example")
    x = b.input("x", tensor(F32, 1, 2, 3, 2))
    w = b.constant(np.arange(90, dtype=np.float32).reshape(3, 2, 3, 5), "w")
    conv = OPS["conv"].attrs((1, 2), (4, 3), (4, 4), (4, 1), 1)
    return b.finish(b.add(OPS["conv"], [x, w], conv, names=["y"]))


def _scattered_rows_example() -> Graph:
    b = GraphBuilder("example")
    x, updates = b.input("x", tensor(F32, 4, 3)), b.input("updates", tensor(F32, 5, 3))
    places = b.constant(np.array([[3], [0], [3], [-1], [1]]), "places")
    (where,) = b.add(OPS["expand"], [places], OPS["expand"].attrs((const(5), const(3))))
    attrs = OPS["scatter_elements"].attrs(0, "add")
    return b.finish(b.add(OPS["scatter_elements"], [x, where, updates], attrs, names=["y"]))


def _known_where_example() -> Graph:
    b = GraphBuilder("example")
    form = tensor(F32, 2, 3)
    x, y = b.input("x", form), b.input("y", form)
    condition = b.constant(np.zeros((3,), np.bool_), "condition")
    (z,) = b.add(OPS["where"], [condition, x, y])
    return b.finish(b.add(OPS["relu"], [z], names=["z"]))


def _with_constant(op: str, constant: object) -> Callable[[], Graph]:
    """Returns a maker of `relu(op(x, constant))` with an input f32[2,3]."""

    def example() -> Graph:
        b = GraphBuilder("example")
        x = b.input("x", tensor(F32, 2, 3))
        other = b.constant(np.asarray(constant, np.float32), "c")
        (y,) = b.add(OPS[op], [x, other])
        return b.finish(b.add(OPS["relu"], [y], names=["y"]))

    return example


def _in_a_row(*names: str) -> Callable[[], Graph]:
    def example() -> Graph:
        b = GraphBuilder("example")
        value = b.input("x", tensor(F32, 2, 3))
        for name in names:
            (value,) = b.add(OPS[name], [value])
        return b.finish(b.add(OPS["relu"], [value], names=["y"]))

    return example


def _cleaned_example() -> Graph:
    b = GraphBuilder("example")
    x = b.input("x", tensor(F32, 2, 3))
    (root,) = b.add(OPS["sqrt"], [x])
    (test,) = b.add(OPS["is_nan"], [root])
    zero = b.constant(np.asarray(0.0, np.float32), "c")
    return b.finish(b.add(OPS["where"], [test, zero, root], names=["y"]))


def _one_plus_erf_example() -> Graph:
    b = GraphBuilder("example")
    x = b.input("x", tensor(F32, 2, 3))
    (scaled,) = b.add(OPS["div"], [x, b.constant(np.asarray(np.sqrt(2), np.float32), "root")])
    (inner,) = b.add(OPS["erf"], [scaled])
    one = b.constant(np.asarray(1.0, np.float32), "one")
    return b.finish(b.add(OPS["add"], [inner, one], names=["y"]))


def _if_example() -> Graph:
    """Returns an `if` with a constant condition, whose branches read outer values."""
    b = GraphBuilder("example")
    form = tensor(F32, 2, 3)
    x = b.input("x", form)
    condition = b.constant(np.asarray(False), "condition")
    branches = []
    for name, op in (("then", "relu"), ("otherwise", "neg")):
        inner = GraphBuilder(name, parent=b)
        branches.append(inner.finish(inner.add(OPS[op], [x])))
    attrs = OPS["if"].attrs(*branches, (form,))
    (z,) = b.add(OPS["if"], [condition], attrs)
    return b.finish(b.add(OPS["exp"], [z], names=["z"]))


EXAMPLES: Mapping[str, Callable[[], Graph]] = MappingProxyType(
    {
        "moves nothing": _chain("reshape", OPS["reshape"].attrs((const(2), const(3), const(1)))),
        "reshape of reshape": _chain(
            "reshape",
            OPS["reshape"].attrs((const(3), const(2))),
            OPS["reshape"].attrs((const(6),)),
        ),
        "transpose of transpose": _chain(
            "transpose", OPS["transpose"].attrs((1, 2, 0)), OPS["transpose"].attrs((2, 1, 0))
        ),
        "transpose of unit axes": _chain("transpose", OPS["transpose"].attrs((2, 0, 1))),
        "padded convolution": _padded_conv_example,
        "taps outside of the image": _reaching_taps_example,
        "where of a constant": _known_where_example,
        "scatter of rows": _scattered_rows_example,
        "neutral constant": _with_constant("add", [-0.0, -0.0, -0.0]),
        "exact reciprocal": _with_constant("div", [2.0, -0.5, 8.0]),
        "small power": _with_constant("pow", 3),
        "one operand": _in_a_row("max"),
        "undone": _in_a_row("neg", "neg"),
        "constant instead of NaN": _cleaned_example,
        "if with a constant": _if_example,
        "one plus erf": _one_plus_erf_example,
    }
)
