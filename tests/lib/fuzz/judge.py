"""Computes a graph's expected outputs, and how far rounding alone may move each element.

The reference evaluator runs a graph as it is. It also runs it several times with every float result
moved by as much as its tolerance class allows. The distance of those runs from the first shows how
an error of that size propagates, through cancellation, comparisons, rounding to integers and
choices of indices, without a rule for any of them. An element that no run moves must be equal bit
for bit.

A sum may leave its type's range in some order of its terms, and no order is the right one. So the
runs also produce the results of overflow, infinities and NaN, and one run computes in f64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tcc.errors import TccError
from tcc.ir.graph import Graph, Node, carrier, walk_nodes
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.index import as_index, as_int
from tcc.ir.op import OpSpec, Tolerance
from tcc.ir.types import DType
from tcc.ops import OPS
from tcc.ops.composite import linalg
from tcc.runtime.abi import EXTENSIONS, numpy_dtype

from .graphs import Array, Generated, bodies_of

RUNS = 6
# The modes of runs: all errors upwards, all downwards, none in f64; other runs draw random errors.
_UP, _DOWN, _WIDE, _NAN, _ZERO = range(5)
# Code may lie this many times further off than the furthest run, because runs draw few errors.
FACTOR = 12.0
_EPS = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
# Sums and differences, whose operands may be much larger than the result.
_SUMS = frozenset({"add", "sub", "sum", "mean", "mod"})
_PRODUCTS = frozenset({"reduce_prod", "cum_prod"})
# Ops that are as inaccurate as their operands.
_FACTORS = frozenset(op.name for op in linalg.OPS)
_LEAST = 1e-20  # The error of matrices of zeros.
# Sums of fourth powers of operands up to this size do not overflow.
_SMALL = 1e8
# Where runs differ by more than this and by more than the value, as for tan of 1e20, no digit is
# certain.
_LOST = 0.5
# A bilinear convolution algorithm's intermediate values may exceed its operands by this factor.
_GROWTH = 336.0
_CONVOLUTIONS = frozenset({"conv", "conv_transpose"})
# The arithmetic on image coordinates beyond this may leave the range of f32.
_FAR = 1e30


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected outputs by name, and how far each element of a right answer may lie from them.

    `loose` holds the outputs whose shape or existence depends on rounding; any answer is accepted.
    """

    outputs: dict[str, Array]
    allowed: dict[str, Array]
    loose: frozenset[str]


def expect(made: Generated) -> Expected:
    """Evaluates a graph's expected outputs; raises the reference evaluator's errors."""
    outputs = evaluate_graph(made.graph, made.inputs)
    types = {v.name: v.type.dtype for v in made.graph.outputs}
    spread = {name: np.zeros(a.shape) for name, a in outputs.items()}
    loose: set[str] = set()
    for run in range(RUNS):
        perturbed = _moved(made.graph, np.random.default_rng([run, 7]), run)
        try:
            results = evaluate_graph(perturbed, made.inputs)
        except (TccError, ValueError, IndexError, ZeroDivisionError, OverflowError):
            # An index or a size may have left its range, so nothing is known.
            loose.update(outputs)
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
    """Returns a line about an output's difference, or an empty text."""
    reference, allowed = expected.outputs[name], expected.allowed[name]
    if name in expected.loose:
        return ""
    if found.shape != reference.shape or found.dtype != reference.dtype:
        return f"{found.dtype}{found.shape} where {reference.dtype}{reference.shape} is due"
    off = _distance(found, reference)
    bad = off > allowed
    if not np.any(bad):
        return ""
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    return (
        f"{int(np.count_nonzero(bad))} of {reference.size} elements, the first at {at}: "
        f"{found[at]!r}, {reference[at]!r} is due, off by at most {allowed[at]:.3g}"
    )


def _has_zero_terms(node: Node) -> bool:
    """Returns true if the node multiplies by zeros that code may skip.

    Zeros around an image or a sine of zero make NaN with infinities.
    """
    attrs = getattr(node.attrs, "conv", node.attrs)
    pads = (*getattr(attrs, "before", ()), *getattr(attrs, "after", ()))
    return node.op.name == "dft" or any(as_int(as_index(n)) != 0 for n in pads)


def _special(array: Array) -> Array:
    return ~np.isfinite(array) if array.dtype.kind == "f" else np.zeros(array.shape, np.bool_)


def _distance(a: Array, b: Array) -> Array:
    """Returns the distance of each element: infinite if only one is NaN or infinities differ."""
    if a.dtype.kind != "f":
        if a.dtype.kind == "b":
            return (a != b).astype(np.float64)
        # Different 64-bit integers may have equal floats.
        near = np.abs(a.astype(np.float64) - b.astype(np.float64))
        return np.asarray(np.where(a == b, 0.0, np.maximum(near, 1.0)))
    x, y = a.astype(np.float64), b.astype(np.float64)
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(x - y)
    return np.asarray(np.where(equal, 0.0, np.where(np.isnan(distance), np.inf, distance)))


def _allowed(reference: Array, spread: Array, dtype: DType) -> Array:
    if not dtype.is_float or dtype.is_narrow:
        return np.where(spread > 0, np.maximum(FACTOR * spread, 1.0), 0.0)
    finite = np.where(np.isfinite(reference), np.abs(reference.astype(np.float64)), 0.0)
    ulp = _EPS[dtype.name] * finite
    lost = spread > np.maximum(finite, _LOST)
    return np.where(spread > 0, np.where(lost, np.inf, FACTOR * spread + 4 * ulp), 0.0)


def _moved(graph: Graph, rng: np.random.Generator, run: int) -> Graph:
    """Returns the graph with ops whose results are off by as much as their class allows."""
    producers = graph.producers()
    return replace(
        graph,
        nodes=tuple(
            _moved_node(node, any(v in producers for v in node.inputs), rng, run)
            for node in graph.nodes
        ),
    )


def _moved_node(node: Node, follows: bool, rng: np.random.Generator, run: int) -> Node:
    """Returns the node with the errors of a run; `follows` if another node computes an operand."""
    inner = {name: _moved(body, rng, run) for name, body in bodies_of(node.attrs)}
    if inner:
        return replace(node, attrs=replace(node.attrs, **inner))
    dtypes = [v.type.dtype for v in node.outputs]
    if not any(d.is_float for d in dtypes) or _copies(node):
        return node
    return replace(node, op=replace(node.op, reference=_off(node.op, dtypes, follows, rng, run)))


def _copies(node: Node) -> bool:
    """Returns true if results are elements of operands, or if every implementation rounds alike."""
    sums = getattr(node.attrs, "reduction", "none") in ("add", "mul")
    return node.op.tolerance is Tolerance.EXACT and node.op.name != "cast" and not sums


def _off(
    op: OpSpec, dtypes: Sequence[DType], follows: bool, rng: np.random.Generator, run: int
) -> Callable[[Sequence[Array | None], Any], tuple[Array, ...]]:
    def reference(arrays: Sequence[Array | None], attrs: Any) -> tuple[Array, ...]:
        if op.name in _FACTORS:
            arrays = [None if a is None else _nudged(a, rng, run) for a in arrays]
        results = [np.asarray(r) for r in op.reference(arrays, attrs)]
        absolute = _absolute(op, arrays, attrs, results)
        steps = _steps(op, arrays, absolute, results, dtypes)
        wide = _wide(op, arrays, attrs, results) if run == _WIDE else results
        variants = [_noisy(r, s, d, rng, run) for r, s, d in zip(wide, steps, dtypes, strict=True)]
        ends = _ends(op, arrays, attrs, results, absolute, steps, dtypes)
        for n, (where, value) in ((n, e[run]) for n, e in enumerate(ends) if run in e):
            variants[n] = np.where(where, value, variants[n]).astype(dtypes[n].carrier)
        if follows and run in (_UP, _DOWN):
            infinity = np.inf if run == _UP else -np.inf
            for n, cancels in enumerate(_cancelled(op, arrays, attrs, results)):
                variants[n] = np.where(cancels, infinity, variants[n])
        return tuple(variants)

    return reference


def _nudged(array: Array, rng: np.random.Generator, run: int) -> Array:
    """Returns the matrix with an error of rounding size.

    With equal or zero singular values, the vectors of a nearby matrix are as good.
    """
    if array.dtype.kind != "f":
        return array
    step = 4 * np.finfo(array.dtype).eps * (_top(array) + _LEAST)
    by = {_UP: 1.0, _DOWN: -1.0, _WIDE: 0.0}.get(run)
    noise = rng.uniform(-1, 1, array.shape) if by is None else by
    return (array + noise * step).astype(array.dtype)


def _wide(
    op: OpSpec, arrays: Sequence[Array | None], attrs: Any, results: Sequence[Array]
) -> list[Array]:
    """Returns the results of the operands in f64; an output of another shape keeps its result."""
    wide = [a.astype(np.float64) if a is not None and a.dtype.kind == "f" else a for a in arrays]
    results_wide = [np.asarray(w) for w in op.reference(wide, attrs)]
    return [w if w.shape == r.shape else r for w, r in zip(results_wide, results, strict=True)]


def _noisy(result: Array, step: Array, dtype: DType, rng: np.random.Generator, run: int) -> Array:
    """Returns `result` moved by up to `step`, in the precision of the type."""
    if not dtype.is_float or dtype.is_narrow:
        return result.astype(dtype.carrier)
    by = {_UP: 1.0, _DOWN: -1.0, _WIDE: 0.0}.get(run)
    noise = rng.uniform(-1, 1, result.shape) if by is None else by
    with np.errstate(all="ignore"):
        perturbed = np.where(np.isfinite(result), result.astype(np.float64) + noise * step, result)
        return carrier(np.asarray(perturbed).astype(dtype.carrier), dtype)


def _steps(
    op: OpSpec,
    arrays: Sequence[Array | None],
    absolute: Sequence[Array],
    results: Sequence[Array],
    dtypes: Sequence[DType],
) -> list[Array]:
    """Returns the steps of results: a few units in the last place, of the result and of f32
    terms."""
    size = max((a.size for a in arrays if a is not None), default=1)
    largest = max((_top(a) for a in arrays if a is not None and a.dtype.kind == "f"), default=1.0)
    steps = []
    for result, terms, dtype in zip(results, absolute, dtypes, strict=True):
        if not dtype.is_float or dtype.is_narrow:
            steps.append(np.zeros(result.shape))
            continue
        unit = _EPS["f64" if dtype.name == "f64" else "f32"]
        if op.tolerance is Tolerance.ACCUMULATE and op.name not in _SUMS:
            most = 0.0 if op.name in _PRODUCTS else 0.1 * largest
            terms = (np.sqrt(size) / 4 + 1) * (terms + most)
        exact = np.where(np.isfinite(result), np.abs(result), 0).astype(np.float64)
        step = 2 * _EPS[dtype.name] * exact + 4 * unit * terms
        if op.tolerance is Tolerance.ACTIVATION:
            step = np.maximum(step, 1e-12 if dtype.name == "f64" else 1e-6)
        steps.append(step)
    return steps


def _absolute(
    op: OpSpec, arrays: Sequence[Array | None], attrs: Any, results: Sequence[Array]
) -> list[Array]:
    """Returns the sum of absolute finite terms of each result; zeros for ops that do not sum."""
    plain = [np.zeros(r.shape) for r in results]
    if op.tolerance is not Tolerance.ACCUMULATE and op.name not in _SUMS:
        return plain
    terms = _finite(arrays)
    if op.name in _SUMS:
        present = [t for t, a in zip(terms, arrays, strict=True) if a is not None and t is not a]
        return [np.broadcast_to(sum(map(np.abs, present)), r.shape) for r in results]
    with np.errstate(all="ignore"):
        sums = op.reference(
            [t if t is a or t is None else np.abs(t) for t, a in zip(terms, arrays, strict=True)],
            attrs,
        )
    return [
        np.nan_to_num(np.abs(s), nan=0.0, posinf=np.inf) if np.asarray(s).dtype.kind == "f" else p
        for s, p in zip(sums, plain, strict=True)
    ]


def _finite(arrays: Sequence[Array | None]) -> list[Array | None]:
    """Returns float operands in f64 with zeros for NaN and infinities, and other operands
    unchanged."""
    return [
        np.where(np.isfinite(a), a, 0).astype(np.float64)
        if a is not None and a.dtype.kind == "f"
        else a
        for a in arrays
    ]


def _top(array: Array) -> float:
    return float(np.max(np.where(np.isfinite(array), np.abs(array), 0), initial=0.0))


# ---- overflow of sums and products ---------------------------------------------------------------

# Alternative values of elements: the run that gives them, the places, and the value.
_Ends = Mapping[int, tuple[Array, float]]


def _ends(
    op: OpSpec,
    arrays: Sequence[Array | None],
    attrs: Any,
    results: Sequence[Array],
    absolute: Sequence[Array],
    steps: Sequence[Array],
    dtypes: Sequence[DType],
) -> list[_Ends]:
    """Returns the alternative values of each result; none if no order of the terms overflows."""
    floats = [a for a in (*arrays, *results) if a is not None and a.dtype.kind == "f"]
    finite = all(np.all(np.isfinite(a)) for a in floats)
    is_far = op.name == "grid_sample" and _top(np.asarray(arrays[1])) > _FAR
    if op.name in _FACTORS and not finite:
        raise ValueError("no factors of infinities and NaN are the right ones")
    if is_far:
        return [_anything(r, d) for r, d in zip(results, dtypes, strict=True)]
    large = not finite or any(_top(a) > _SMALL for a in floats)
    if op.name in _PRODUCTS and arrays[0] is not None:
        return [_product_ends(op, arrays[0], attrs, dtypes[0])]
    if op.tolerance is not Tolerance.ACCUMULATE or not large:
        return []
    exact = _wide(op, arrays, attrs, results)
    ends = []
    for result, wide, terms, step, dtype in zip(
        results, exact, absolute, steps, dtypes, strict=True
    ):
        count = _terms_of_mean(op, arrays, attrs, result)
        is_wide = dtype.is_float and not dtype.is_narrow
        terms = terms * (_GROWTH if op.name in _CONVOLUTIONS else count)
        ends.append(_sum_ends(result, wide, terms, step, dtype, count) if is_wide else {})
    return ends


def _cancelled(
    op: OpSpec, arrays: Sequence[Array | None], attrs: Any, results: Sequence[Array]
) -> list[Array]:
    """Returns the places where a sum of products is NaN because infinities cancel.

    If an operand is a sum of products too, the products may be computed in another order, and
    fewer infinities are added: a * (b * inf) + c * (d * inf) is (a * b + c * d) * inf.
    """
    if op.tolerance is not Tolerance.ACCUMULATE or op.name in _SUMS | _PRODUCTS:
        return []
    tame = [a if a is None or a.dtype.kind != "f" else np.where(np.isinf(a), np.sign(a), a)
            for a in arrays]  # fmt: skip
    finite = [np.asarray(r) for r in op.reference(tame, attrs)]
    return [
        np.isnan(result) & ~np.isnan(other)
        if result.dtype.kind == "f" and result.shape == other.shape
        else np.zeros(result.shape, np.bool_)
        for result, other in zip(results, finite, strict=True)
    ]


def _anything(result: Array, dtype: DType) -> _Ends:
    """Returns alternatives that accept any value, for images at coordinates out of range."""
    where = np.ones(result.shape, np.bool_)
    if not dtype.is_float:
        return {_UP: (where, np.iinfo(np.int32).max)}
    return {_UP: (where, np.inf), _NAN: (where, np.nan)}


def _sum_ends(
    result: Array, exact: Array, absolute: Array, step: Array, dtype: DType, count: int
) -> _Ends:
    """Returns alternatives of a sum.

    Its partial sums lie between the sum of the negative terms and the sum of the positive terms.
    Where the type and f64 differ by more than rounding, an intermediate value has overflowed, such
    as a square, and any result is accepted.
    """
    narrowed = exact.astype(dtype.carrier).astype(np.float64)
    value = np.where(np.isfinite(exact), exact * count, 0)
    parts = np.where(np.isfinite(exact), 0.5, 1.0)  # Beside an infinity the signs are not known.
    high, low = (parts * (absolute + sign * value) > _most(dtype) for sign in (1, -1))
    lost = ~(high | low) & (_distance(result, narrowed) > FACTOR * step)
    up, down = (high | lost) & (exact != -np.inf), (low | lost) & (exact != np.inf)
    either = (up | (narrowed == np.inf)) & (low | lost | (narrowed == -np.inf))
    either |= (high | lost) & (narrowed == -np.inf)
    return {_UP: (up, np.inf), _DOWN: (down, -np.inf), _NAN: (either, np.nan)}


def _product_ends(op: OpSpec, x: Array, attrs: Any, dtype: DType) -> _Ends:
    """Returns alternatives of a product.

    Its partial products lie between the product of the factors below 1 and the product of the
    others.
    """
    sums = OPS[{"reduce_prod": "reduce_sum", "cum_prod": "cum_sum"}[op.name]].reference
    with np.errstate(all="ignore"):
        logs = np.log2(np.abs(x.astype(np.float64)))
    (above,), (below,) = (sums([np.fmax(sign * logs, 0)], attrs) for sign in (1, -1))
    tall, flat = above >= np.log2(_most(dtype)), below >= 126  # Subnormal numbers lose digits too.
    return {
        _UP: (tall, np.inf),
        _DOWN: (tall, -np.inf),
        _NAN: (tall & flat, np.nan),
        _ZERO: (flat, 0.0),
    }


def _most(dtype: DType) -> float:
    """Returns the largest value of the type's accumulator, less a margin for rounding."""
    return 0.999 * float(np.finfo(np.float64 if dtype.name == "f64" else np.float32).max)


def _terms_of_mean(op: OpSpec, arrays: Sequence[Array | None], attrs: Any, result: Array) -> int:
    """Returns the number of terms of a mean's sum; 1 for other ops."""
    match op.name:
        case "mean":
            return len(arrays)
        case "average_pool":
            return int(np.prod(attrs.kernel))
        case "reduce_mean":
            return max(a.size for a in arrays if a is not None) // max(result.size, 1)
    return 1


def storage(array: Array, dtype: DType) -> Array:
    """Returns an array in the storage type of artifacts, for types that NumPy lacks."""
    return array if dtype.name not in EXTENSIONS else array.astype(numpy_dtype(dtype.name))


def from_storage(array: Array, dtype: DType) -> Array:
    """Returns an artifact's result in the dtype that carries it."""
    return array if dtype.name not in EXTENSIONS else array.astype(dtype.carrier)


def stored(inputs: Mapping[str, Array], graph: Graph) -> dict[str, Array]:
    """Returns a graph's inputs in the storage types of its artifact."""
    return {v.name: storage(inputs[v.name], v.type.dtype) for v in graph.inputs}
