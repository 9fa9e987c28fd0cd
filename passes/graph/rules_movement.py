"""Rules for ops that copy elements: what moves nothing goes, what moves twice moves once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Value
from tcc.ir.graph.rewrite import Rule, Site
from tcc.ir.index import Index, Indices, as_index, as_int, const
from tcc.ir.types import BOOL, F32, TensorType, tensor
from tcc.ops import OPS

Result = Sequence[Value]


def result_types(site: Site) -> tuple[TensorType, ...]:
    """The types of the node's results for its inputs in the new graph."""
    types = [None if v is None else v.type for v in site.inputs]
    return site.node.op.infer(types, site.node.attrs)


def first_operand(site: Site) -> Value:
    """Operand 0, which the op requires."""
    value = site.inputs[0]
    assert value is not None
    return value


def take(site: Site, found: Value) -> Result:
    """The build function of rules that replace a node by a value that is already there."""
    return (found,)


def _constants(values: Sequence[Index]) -> tuple[int | None, ...]:
    return tuple(as_int(v) for v in values)


def _same_shape(site: Site) -> Value | None:
    """Operand 0 if it has the type of the one result."""
    value = first_operand(site)
    types = result_types(site)
    return value if types == (value.type,) else None


# ---- nodes that move nothing --------------------------------------------------------------------


def _moves_nothing(site: Site) -> Value | None:
    attrs = site.node.attrs
    match site.node.op.name:
        case "identity" | "reshape" | "expand" | "cast":
            return _same_shape(site)
        case "transpose":
            still = attrs.perm == tuple(range(len(attrs.perm)))
            return first_operand(site) if still else None
        case "concat":
            return first_operand(site) if len(site.inputs) == 1 else None
        case "split":
            return _same_shape(site)
        case "tile":
            ones = all(n == 1 for n in _constants(attrs.repeats))
            return first_operand(site) if ones else None
        case "slice":
            whole = all(n == 0 for n in _constants(attrs.starts)) and set(attrs.steps) <= {1}
            return _same_shape(site) if whole else None
        case "pad":
            none = all(n == 0 for n in _constants((*attrs.before, *attrs.after)))
            return first_operand(site) if none else None
        case "depth_to_space" | "space_to_depth":
            return first_operand(site) if attrs.blocksize == 1 else None
    return None


def _chain(name: str, *attrs: Any) -> Callable[[], Graph]:
    """A graph of nodes `name` in a row on one input f32[2,3,1], with a `relu` behind them."""

    def example() -> Graph:
        b = GraphBuilder("example")
        value = b.input("x", tensor(F32, 2, 3, 1))
        for item in attrs:
            (value,) = b.add(OPS[name], [value], item)
        return b.finish(b.add(OPS["relu"], [value], names=["y"]))

    return example


# ---- one after another --------------------------------------------------------------------------


def _double_reshape(site: Site) -> Value | None:
    if site.node.op.name != "reshape":
        return None
    before = site.producer(0)
    return before.inputs[0] if before and before.op.name == "reshape" else None


def _reshape_source(site: Site, source: Value) -> Result:
    return site.builder.add(site.node.op, [source], site.node.attrs, loc=site.node.loc)


def _double_transpose(site: Site) -> tuple[Value, tuple[int, ...]] | None:
    if site.node.op.name != "transpose":
        return None
    before = site.producer(0)
    if before is None or before.op.name != "transpose":
        return None
    source = before.inputs[0]
    assert source is not None
    return source, tuple(before.attrs.perm[p] for p in site.node.attrs.perm)


def _transpose_source(site: Site, found: tuple[Value, tuple[int, ...]]) -> Result:
    source, perm = found
    attrs = OPS["transpose"].attrs(perm)
    return site.builder.add(OPS["transpose"], [source], attrs, loc=site.node.loc)


def _unit_transpose(site: Site) -> Indices | None:
    """The new shape where only axes of one element change places."""
    if site.node.op.name != "transpose":
        return None
    shape = first_operand(site).type.shape
    moved = [p for p in site.node.attrs.perm if shape[p] is not const(1)]
    return tuple(shape[p] for p in site.node.attrs.perm) if moved == sorted(moved) else None


def _as_reshape(site: Site, shape: Indices) -> Result:
    attrs = OPS["reshape"].attrs(shape)
    return site.builder.add(OPS["reshape"], site.inputs, attrs, loc=site.node.loc)


# ---- zeros before a convolution -----------------------------------------------------------------


def _padded_conv(site: Site) -> tuple[Value, Any] | None:
    """The unpadded image and the attributes of a convolution that pads it itself."""
    if site.node.op.name != "conv":
        return None
    pad = site.producer(0)
    if pad is None or pad.op.name != "pad" or pad.attrs.mode != "constant":
        return None
    before, after = _constants(pad.attrs.before), _constants(pad.attrs.after)
    sizes = [n for n in (*before, *after) if n is not None and n >= 0]
    if len(sizes) < 2 * len(before) or any((*before[:2], *after[:2])) or not _zero_fill(site, pad):
        return None
    attrs, image = site.node.attrs, pad.inputs[0]
    assert image is not None
    wider = type(attrs)(
        attrs.strides,
        tuple(as_index(a) + b for a, b in zip(attrs.before, pad.attrs.before[2:], strict=True)),
        tuple(as_index(a) + b for a, b in zip(attrs.after, pad.attrs.after[2:], strict=True)),
        attrs.dilations,
        attrs.group,
    )
    return image, wider


def _zero_fill(site: Site, pad: Any) -> bool:
    if len(pad.inputs) < 2 or pad.inputs[1] is None:
        return True
    fill = site.builder.array(pad.inputs[1])
    return fill is not None and not fill.any()


def _conv_of(site: Site, found: tuple[Value, Any]) -> Result:
    image, attrs = found
    return site.builder.add(site.node.op, [image, *site.inputs[1:]], attrs, loc=site.node.loc)


def _padded_conv_example() -> Graph:
    b = GraphBuilder("example")
    x = b.input("x", tensor(F32, 1, 2, 5, 4))
    w = b.constant(np.arange(54, dtype=np.float32).reshape(3, 2, 3, 3), "w")
    none, before, after = const(0), (const(1), const(0)), (const(2), const(1))
    pad = OPS["pad"].attrs((none, none, *before), (none, none, *after), "constant")
    (wide,) = b.add(OPS["pad"], [x], pad)
    conv = OPS["conv"].attrs((1, 2), (0, 1), (0, 0), (1, 1), 1)
    return b.finish(b.add(OPS["conv"], [wide, w], conv, names=["y"]))


# ---- choices that are known ---------------------------------------------------------------------


def _known_where(site: Site) -> Value | None:
    """The branch of `where` that a constant condition takes everywhere, if it has the shape."""
    if site.node.op.name != "where":
        return None
    condition = site.array(0)
    if condition is None or not condition.size or condition.all() != condition.any():
        return None
    chosen = site.inputs[1 if condition.all() else 2]
    return chosen if chosen is not None and result_types(site) == (chosen.type,) else None


def _known_where_example() -> Graph:
    b = GraphBuilder("example")
    form = tensor(F32, 2, 3)
    x, y = b.input("x", form), b.input("y", form)
    condition = b.constant(np.zeros((3,), np.bool_), "condition")
    (z,) = b.add(OPS["where"], [condition, x, y])
    return b.finish(b.add(OPS["relu"], [z], names=["z"]))


MOVEMENT = (
    Rule(
        "moves nothing",
        _moves_nothing,
        take,
        _chain("reshape", OPS["reshape"].attrs((const(2), const(3), const(1)))),
    ),
    Rule(
        "reshape of reshape",
        _double_reshape,
        _reshape_source,
        _chain(
            "reshape",
            OPS["reshape"].attrs((const(3), const(2))),
            OPS["reshape"].attrs((const(6),)),
        ),
    ),
    Rule(
        "transpose of transpose",
        _double_transpose,
        _transpose_source,
        _chain("transpose", OPS["transpose"].attrs((1, 2, 0)), OPS["transpose"].attrs((2, 1, 0))),
    ),
    Rule(
        "transpose of unit axes",
        _unit_transpose,
        _as_reshape,
        _chain("transpose", OPS["transpose"].attrs((2, 0, 1))),
    ),
    Rule("padded convolution", _padded_conv, _conv_of, _padded_conv_example),
    Rule("where of a constant", _known_where, take, _known_where_example),
)


# ---- if -----------------------------------------------------------------------------------------


def if_example() -> Graph:
    """An `if` with a constant condition; its branches read what lies around."""
    b = GraphBuilder("example")
    form = tensor(F32, 2, 3)
    x = b.input("x", form)
    condition = b.constant(np.asarray(False), "condition")
    assert condition.type.dtype is BOOL
    branches = []
    for name, op in (("then", "relu"), ("otherwise", "neg")):
        inner = GraphBuilder(name, parent=b)
        branches.append(inner.finish(inner.add(OPS[op], [x])))
    attrs = OPS["if"].attrs(*branches, (form,))
    (z,) = b.add(OPS["if"], [condition], attrs)
    return b.finish(b.add(OPS["exp"], [z], names=["z"]))
