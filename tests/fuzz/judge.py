"""What a graph's outputs must be, and how far rounding alone may move each element.

The reference evaluator runs a graph as it is and, several times, with every float result moved by
what its tolerance class allows.  How far those runs are from the first is how far an error of that
size comes through: cancellation, comparisons, rounding to integers and choices of indices included,
without a rule for any of them.  An element that no run moves must be equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tcc.errors import TccError
from tcc.ir.evaluate import evaluate_graph
from tcc.ir.graph import Graph, Node, carrier, walk_nodes
from tcc.ir.index import as_index, as_int
from tcc.ir.op import OpSpec, Tolerance
from tcc.ir.types import DType
from tcc.runtime.abi import EXTENSIONS, numpy_dtype

from .graphs import Array, Generated, bodies_of

RUNS = 6
# Runs draw errors at random, code has its own: it may lie so many times further than the furthest.
FACTOR = 12.0
_EPS = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
# Differences and sums of operands much larger than the result.
_SUMS = frozenset({"add", "sub", "sum", "mean", "mod"})


@dataclass(frozen=True, slots=True)
class Expected:
    """The outputs by name, and per element how far from them a right answer may lie.

    `loose` holds the outputs whose shape or very existence rounding decides: nothing is asked of
    them.
    """

    outputs: dict[str, Array]
    allowed: dict[str, Array]
    loose: frozenset[str]


def expect(made: Generated) -> Expected:
    """Raises what the reference evaluator raises on the graph as it is."""
    outputs = evaluate_graph(made.graph, made.inputs)
    types = {v.name: v.type.dtype for v in made.graph.outputs}
    spread = {name: np.zeros(a.shape) for name, a in outputs.items()}
    loose: set[str] = set()
    for run in range(RUNS):
        rng = np.random.default_rng([run, 7])
        side = {0: 1.0, 1: -1.0}.get(run)
        moved = _moved(made.graph, rng, side)
        try:
            results = evaluate_graph(moved, made.inputs)
        except (TccError, ValueError, IndexError, ZeroDivisionError, OverflowError):
            loose.update(outputs)  # an error moved an index or a size out of its range
            break
        for name, array in results.items():
            if array.shape != outputs[name].shape:
                loose.add(name)
            else:
                spread[name] = np.maximum(spread[name], _distance(array, outputs[name]))
    allowed = {name: _allowed(outputs[name], spread[name], types[name]) for name in outputs}
    if made.special and any(map(_has_zero_terms, walk_nodes(made.graph))):
        allowed = {n: np.where(_special(outputs[n]), np.inf, a) for n, a in allowed.items()}
    return Expected(outputs, allowed, frozenset(loose))


def wrong(expected: Expected, name: str, found: Array) -> str:
    """What is wrong with an output, in one line; empty if nothing is."""
    want, allowed = expected.outputs[name], expected.allowed[name]
    if name in expected.loose:
        return ""
    if found.shape != want.shape or found.dtype != want.dtype:
        return f"{found.dtype}{found.shape} where {want.dtype}{want.shape} is due"
    off = _distance(found, want)
    bad = off > allowed
    if not np.any(bad):
        return ""
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    return (
        f"{int(np.count_nonzero(bad))} of {want.size} elements, the first at {at}: {found[at]!r}, "
        f"{want[at]!r} is due, off by at most {allowed[at]:.3g}"
    )


def _has_zero_terms(node: Node) -> bool:
    """Whether terms that are zero take part: zeros around an image, a sine of zero.  Times an
    infinity they are NaN, and code may leave them out."""
    attrs = getattr(node.attrs, "conv", node.attrs)
    pads = (*getattr(attrs, "before", ()), *getattr(attrs, "after", ()))
    return node.op.name in ("dft", "stft") or any(as_int(as_index(n)) != 0 for n in pads)


def _special(array: Array) -> Array:
    return ~np.isfinite(array) if array.dtype.kind == "f" else np.zeros(array.shape, np.bool_)


def _distance(a: Array, b: Array) -> Array:
    """Per element; infinite where only one is NaN, or where infinities differ."""
    if a.dtype.kind != "f":
        if a.dtype.kind == "b":
            return (a != b).astype(np.float64)
        # Integers of 64 bits differ where their floats may not.
        near = np.abs(a.astype(np.float64) - b.astype(np.float64))
        return np.asarray(np.where(a == b, 0.0, np.maximum(near, 1.0)))
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore", over="ignore"):
        far = np.abs(x - y)
    return np.asarray(np.where(same, 0.0, np.where(np.isnan(far), np.inf, far)))


def _allowed(want: Array, spread: Array, dtype: DType) -> Array:
    if not dtype.is_float or dtype.is_narrow:
        return np.where(spread > 0, np.maximum(FACTOR * spread, 1.0), 0.0)
    finite = np.where(np.isfinite(want), np.abs(want.astype(np.float64)), 0.0)
    ulp = _EPS[dtype.name] * finite
    return np.where(spread > 0, FACTOR * spread + 4 * ulp, 0.0)


def _moved(graph: Graph, rng: np.random.Generator, side: float | None) -> Graph:
    """The graph with rows whose results are off by what their class allows."""
    return replace(graph, nodes=tuple(_moved_node(node, rng, side) for node in graph.nodes))


def _moved_node(node: Node, rng: np.random.Generator, side: float | None) -> Node:
    inner = {name: _moved(body, rng, side) for name, body in bodies_of(node.attrs)}
    if inner:
        return replace(node, attrs=replace(node.attrs, **inner))
    dtypes = [v.type.dtype for v in node.outputs]
    if not any(d.is_float for d in dtypes) or _copies(node):
        return node
    return replace(node, op=replace(node.op, reference=_off(node.op, dtypes, rng, side)))


def _copies(node: Node) -> bool:
    """Whether results are operands' elements, or rounded the same way whatever computes them."""
    sums = getattr(node.attrs, "reduction", "none") in ("add", "mul")
    return node.op.tolerance is Tolerance.EXACT and node.op.name != "cast" and not sums


def _off(
    op: OpSpec, dtypes: Sequence[DType], rng: np.random.Generator, side: float | None
) -> Callable[[Sequence[Array | None], Any], tuple[Array, ...]]:
    def reference(arrays: Sequence[Array | None], attrs: Any) -> tuple[Array, ...]:
        results = op.reference(arrays, attrs)
        scales = _scales(op, arrays, attrs, results)
        return tuple(
            _noisy(r, s, d, op, rng, side) for r, s, d in zip(results, scales, dtypes, strict=True)
        )

    return reference


def _noisy(
    result: Array,
    scale: Array,
    dtype: DType,
    op: OpSpec,
    rng: np.random.Generator,
    side: float | None,
) -> Array:
    """`result` moved by a few units of its last place, and of `scale`'s in f32."""
    result = np.asarray(result)
    if not dtype.is_float or dtype.is_narrow:
        return result
    exact = np.where(np.isfinite(result), result, 0).astype(np.float64)
    unit = _EPS["f64" if dtype.name == "f64" else "f32"]
    step = 2 * _EPS[dtype.name] * np.abs(exact) + 4 * unit * scale
    if op.tolerance is Tolerance.ACTIVATION:
        step = np.maximum(step, 1e-12 if dtype.name == "f64" else 1e-6)
    by = side if side is not None else rng.uniform(-1, 1, result.shape)
    with np.errstate(all="ignore"):
        moved = (result.astype(np.float64) + by * step).astype(dtype.carrier)
    return carrier(np.asarray(np.where(np.isfinite(result), moved, result)), dtype)


def _scales(
    op: OpSpec, arrays: Sequence[Array | None], attrs: Any, results: Sequence[Array]
) -> list[Array]:
    """The sum of absolute terms of each result, where errors are relative to that."""
    plain = [np.zeros(np.shape(r)) for r in results]
    if op.tolerance is not Tolerance.ACCUMULATE and op.name not in _SUMS:
        return plain
    terms = [None if a is None or a.dtype.kind != "f" else np.abs(a) for a in arrays]
    if op.name in _SUMS:
        present = [
            np.where(np.isfinite(t), t, 0).astype(np.float64) for t in terms if t is not None
        ]
        return [np.broadcast_to(sum(present), np.shape(r)) for r in results]
    size = max((a.size for a in arrays if a is not None), default=1)
    largest = max((_top(t) for t in terms if t is not None), default=1.0)
    whole = [a if t is None else t for a, t in zip(arrays, terms, strict=True)]
    sums = op.reference(whole, attrs)
    depth = np.sqrt(size) / 4 + 1
    return [
        depth * (np.where(np.isfinite(s), np.abs(s), 0) + 0.1 * largest)
        if np.asarray(s).dtype.kind == "f"
        else p
        for s, p in zip(sums, plain, strict=True)
    ]


def _top(array: Array) -> float:
    return float(np.max(np.where(np.isfinite(array), array, 0), initial=0.0))


def storage(array: Array, dtype: DType) -> Array:
    """Values of a type that NumPy lacks as artifacts take them."""
    return array if dtype.name not in EXTENSIONS else array.astype(numpy_dtype(dtype.name))


def from_storage(array: Array, dtype: DType) -> Array:
    """The values of an artifact's result in the type that carries them."""
    return array if dtype.name not in EXTENSIONS else array.astype(dtype.carrier)


def stored(inputs: Mapping[str, Array], graph: Graph) -> dict[str, Array]:
    """The inputs of a graph as its artifact takes them."""
    return {v.name: storage(inputs[v.name], v.type.dtype) for v in graph.inputs}
