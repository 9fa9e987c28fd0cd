"""A handful of ops, just enough to exercise the forms without the op table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tcc.ir.graph import Graph
from tcc.ir.index import Index, symbol
from tcc.ir.op import NoAttrs, OpSpec, Tolerance
from tcc.ir.types import BOOL, DTYPES, F32, I64, DType, TensorType, tensor

ROWS = symbol("rows.loop")  # the row count of every loop


@dataclass(frozen=True, slots=True)
class Reshape:
    shape: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Sized:
    size: Index


@dataclass(frozen=True, slots=True)
class BindSize:
    symbol: Index
    element: int = 0


@dataclass(frozen=True, slots=True)
class Every:
    """Attributes with one field of each possible kind."""

    axis: int = 0
    alpha: float = 1.0
    keep: bool = False
    mode: str = "plain"
    pads: tuple[tuple[int, int], ...] = ()
    scales: tuple[float, ...] = ()
    size: Index | None = None
    to: DType = F32
    like: TensorType | None = None


@dataclass(frozen=True, slots=True)
class If:
    then: Graph
    otherwise: Graph


@dataclass(frozen=True, slots=True)
class Loop:
    body: Graph


@dataclass(frozen=True, slots=True)
class Scan:
    body: Graph
    num_scan_inputs: int
    input_axes: tuple[int, ...]
    input_reverse: tuple[bool, ...]
    output_axes: tuple[int, ...]
    output_reverse: tuple[bool, ...]


def _spec(
    name: str, infer: Callable[..., Any], reference: Callable[..., Any], attrs: type[Any] = NoAttrs
) -> OpSpec:
    return OpSpec(
        name, attrs, (0, 9), infer, reference, lambda rng: iter(()), tuple(DTYPES.values()),
        Tolerance.EXACT, name,
    )  # fmt: skip


def _same(types: Any, attrs: Any) -> tuple[TensorType, ...]:
    if len({t.dtype.name for t in types}) != 1 or types[0].shape != types[-1].shape:
        raise ValueError("operands differ in type")
    return (types[0],)


def _refuse(*args: Any) -> Any:
    raise AssertionError("control flow has no reference")


def _stacked(body: Graph, skip: int, states: int) -> tuple[TensorType, ...]:
    return tuple(o.type for o in body.outputs[skip : skip + states])


@pytest.fixture(scope="session")
def ops() -> Mapping[str, OpSpec]:
    def loop(types: Any, a: Loop) -> tuple[TensorType, ...]:
        states = len(types) - 2
        stacked = a.body.outputs[1 + states :]
        rows = (tensor(o.type.dtype, ROWS, *o.type.shape) for o in stacked)
        return (*_stacked(a.body, 1, states), *rows)

    def scan(types: Any, a: Scan) -> tuple[TensorType, ...]:
        states = len(types) - a.num_scan_inputs
        length = types[states].shape[a.input_axes[0]]
        rows = []
        for out, axis in zip(a.body.outputs[states:], a.output_axes, strict=True):
            shape = list(out.type.shape)
            shape.insert(axis, length)
            rows.append(TensorType(out.type.dtype, tuple(shape)))
        return (*_stacked(a.body, 0, states), *rows)

    rows = (
        _spec("add", _same, lambda x, a: (x[0] + x[1],)),
        _spec("mul", _same, lambda x, a: (x[0] * x[1],)),
        _spec("neg", _same, lambda x, a: (-x[0],)),
        _spec("less", lambda t, a: (TensorType(BOOL, t[0].shape),), lambda x, a: (x[0] < x[1],)),
        _spec("optional", lambda t, a: (t[1],), lambda x, a: (x[1],)),
        _spec("wrong", lambda t, a: (t[0],), lambda x, a: (x[0].astype(np.float64),)),
        _spec("pair", lambda t, a: (t[0], t[0]), lambda x, a: (x[0], x[0]), Every),
        _spec(
            "reshape",
            lambda t, a: (TensorType(t[0].dtype, a.shape),),
            lambda x, a: (x[0].reshape([d.const for d in a.shape]),),
            Reshape,
        ),
        _spec(
            "nonzero",
            lambda t, a: (tensor(I64, t[0].rank, a.size),),
            lambda x, a: (np.stack(np.nonzero(x[0])).astype(np.int64),),
            Sized,
        ),
        _spec("bind_size", lambda t, a: (t[0],), lambda x, a: (x[0],), BindSize),
        _spec(
            "fill",
            lambda t, a: (tensor(F32, *a.shape),),
            lambda x, a: (np.full([d.const for d in a.shape], 3, np.float32),),
            Reshape,
        ),
        _spec("if", lambda t, a: tuple(o.type for o in a.then.outputs), _refuse, If),
        _spec("loop", loop, _refuse, Loop),
        _spec("scan", scan, _refuse, Scan),
    )
    return MappingProxyType({row.name: row for row in rows})
