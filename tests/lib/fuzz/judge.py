"""What a graph's outputs must be, and how far rounding alone may move each element.

The reference evaluator runs a graph as it is and, several times, with every float result moved by
what its tolerance class allows.  How far those runs are from the first is how far an error of that
size comes through: cancellation, comparisons, rounding to integers and choices of indices included,
without a rule for any of them.  An element that no run moves must be equal bit for bit.

Where a sum may leave its type's range on the way, in some order of its terms, no order is the right
one: the runs also give what overflow makes of it, infinities and NaN, and one computes in f64.
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
# All errors upwards, all downwards, none and in f64; these and the others at random.
_UP, _DOWN, _WIDE, _NAN, _ZERO = range(5)
# Runs draw errors at random, code has its own: it may lie so many times further than the furthest.
FACTOR = 12.0
_EPS = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
# Differences and sums of operands much larger than the result.
_SUMS = frozenset({"add", "sub", "sum", "mean", "mod"})
_PRODUCTS = frozenset({"reduce_prod", "cum_prod"})
# Rows whose errors are those of their operands.
_FACTORS = frozenset(op.name for op in linalg.OPS)
_LEAST = 1e-20  # of matrices of zeros
# Operands up to this one do not overflow in sums of their fourth powers.
_SMALL = 1e8
# Where runs part by this and by the value itself, as tan of 1e20 does, no digit is known.
_LOST = 0.5
# How much larger than operands what a bilinear algorithm makes of them in a convolution may be.
_GROWTH = 336.0
_CONVOLUTIONS = frozenset({"conv", "conv_transpose"})
# Places in an image whose arithmetic may leave the range of f32.
_FAR = 1e30


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
        moved = _moved(made.graph, np.random.default_rng([run, 7]), run)
        try:
            results = evaluate_graph(moved, made.inputs)
        except (TccError, ValueError, IndexError, ZeroDivisionError, OverflowError):
            loose.update(outputs)  # nothing is known: an index or a size left its range, say
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
    return node.op.name == "dft" or any(as_int(as_index(n)) != 0 for n in pads)


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
    lost = spread > np.maximum(finite, _LOST)
    return np.where(spread > 0, np.where(lost, np.inf, FACTOR * spread + 4 * ulp), 0.0)


def _moved(graph: Graph, rng: np.random.Generator, run: int) -> Graph:
    """The graph with rows whose results are off by what their class allows."""
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
    """Whether results are operands' elements, or rounded the same way whatever computes them."""
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
        moved = [_noisy(r, s, d, rng, run) for r, s, d in zip(wide, steps, dtypes, strict=True)]
        ends = _ends(op, arrays, attrs, results, absolute, steps, dtypes)
        for n, (where, value) in ((n, e[run]) for n, e in enumerate(ends) if run in e):
            moved[n] = np.where(where, value, moved[n]).astype(dtypes[n].carrier)
        if follows and run in (_UP, _DOWN):
            infinity = np.inf if run == _UP else -np.inf
            for n, cancels in enumerate(_cancelled(op, arrays, attrs, results)):
                moved[n] = np.where(cancels, infinity, moved[n])
        return tuple(moved)

    return reference


def _nudged(array: Array, rng: np.random.Generator, run: int) -> Array:
    """A matrix that is as good as `array`: of one with equal or no singular values, vectors are
    those of the matrix beside it."""
    if array.dtype.kind != "f":
        return array
    step = 4 * np.finfo(array.dtype).eps * (_top(array) + _LEAST)
    by = {_UP: 1.0, _DOWN: -1.0, _WIDE: 0.0}.get(run)
    noise = rng.uniform(-1, 1, array.shape) if by is None else by
    return (array + noise * step).astype(array.dtype)


def _wide(
    op: OpSpec, arrays: Sequence[Array | None], attrs: Any, results: Sequence[Array]
) -> list[Array]:
    """What f64 makes of the operands; `results` where that has another shape."""
    wide = [a.astype(np.float64) if a is not None and a.dtype.kind == "f" else a for a in arrays]
    found = [np.asarray(w) for w in op.reference(wide, attrs)]
    return [w if w.shape == r.shape else r for w, r in zip(found, results, strict=True)]


def _noisy(result: Array, step: Array, dtype: DType, rng: np.random.Generator, run: int) -> Array:
    """`result` moved by up to `step`, as the type holds it."""
    if not dtype.is_float or dtype.is_narrow:
        return result.astype(dtype.carrier)
    by = {_UP: 1.0, _DOWN: -1.0, _WIDE: 0.0}.get(run)
    noise = rng.uniform(-1, 1, result.shape) if by is None else by
    with np.errstate(all="ignore"):
        moved = np.where(np.isfinite(result), result.astype(np.float64) + noise * step, result)
        return carrier(np.asarray(moved).astype(dtype.carrier), dtype)


def _steps(
    op: OpSpec,
    arrays: Sequence[Array | None],
    absolute: Sequence[Array],
    results: Sequence[Array],
    dtypes: Sequence[DType],
) -> list[Array]:
    """How far off results may be: a few units of their last place, and of their terms' in f32."""
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
    """The sum of the absolute values of each result's finite terms; zero for rows that sum none."""
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
    """Float operands in f64 with zeros for what is not finite; others as they are."""
    return [
        np.where(np.isfinite(a), a, 0).astype(np.float64)
        if a is not None and a.dtype.kind == "f"
        else a
        for a in arrays
    ]


def _top(array: Array) -> float:
    return float(np.max(np.where(np.isfinite(array), np.abs(array), 0), initial=0.0))


# ---- what overflow makes of sums and products ---------------------------------------------------

# What an element may be besides its value, by the run that gives it: where, and which value.
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
    """Of each result; none where no order of the terms overflows."""
    floats = [a for a in (*arrays, *results) if a is not None and a.dtype.kind == "f"]
    finite = all(np.all(np.isfinite(a)) for a in floats)
    far = op.name == "grid_sample" and _top(np.asarray(arrays[1])) > _FAR
    if op.name in _FACTORS and not finite:
        raise ValueError("no factors of infinities and NaN are the right ones")
    if far:
        return [_anything(r, d) for r, d in zip(results, dtypes, strict=True)]
    large = not finite or any(_top(a) > _SMALL for a in floats)
    if op.name in _PRODUCTS and arrays[0] is not None:
        return [_product_ends(op, arrays[0], attrs, dtypes[0])]
    if op.tolerance is not Tolerance.ACCUMULATE or not large:
        return []
    exact = _wide(op, arrays, attrs, results)
    found = []
    for result, wide, terms, step, dtype in zip(
        results, exact, absolute, steps, dtypes, strict=True
    ):
        count = _terms_of_mean(op, arrays, attrs, result)
        known = dtype.is_float and not dtype.is_narrow
        terms = terms * (_GROWTH if op.name in _CONVOLUTIONS else count)
        found.append(_sum_ends(result, wide, terms, step, dtype, count) if known else {})
    return found


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
    """Of images at places out of range."""
    where = np.ones(result.shape, np.bool_)
    if not dtype.is_float:
        return {_UP: (where, np.iinfo(np.int32).max)}
    return {_UP: (where, np.inf), _NAN: (where, np.nan)}


def _sum_ends(
    result: Array, exact: Array, absolute: Array, step: Array, dtype: DType, count: int
) -> _Ends:
    """Partial sums lie between that of the negative terms and that of the positive ones.

    Where the type and f64 part by more than rounding, what overflowed is no sum of the operands
    but one of their squares, say: what becomes of that may be anything.
    """
    narrowed = exact.astype(dtype.carrier).astype(np.float64)
    value = np.where(np.isfinite(exact), exact * count, 0)
    parts = np.where(np.isfinite(exact), 0.5, 1.0)  # beside an infinity the signs are not known
    high, low = (parts * (absolute + sign * value) > _most(dtype) for sign in (1, -1))
    lost = ~(high | low) & (_distance(result, narrowed) > FACTOR * step)
    up, down = (high | lost) & (exact != -np.inf), (low | lost) & (exact != np.inf)
    both = (up | (narrowed == np.inf)) & (low | lost | (narrowed == -np.inf))
    both |= (high | lost) & (narrowed == -np.inf)
    return {_UP: (up, np.inf), _DOWN: (down, -np.inf), _NAN: (both, np.nan)}


def _product_ends(op: OpSpec, x: Array, attrs: Any, dtype: DType) -> _Ends:
    """Partial products lie between that of the factors below one and that of those above."""
    sums = OPS[{"reduce_prod": "reduce_sum", "cum_prod": "cum_sum"}[op.name]].reference
    with np.errstate(all="ignore"):
        logs = np.log2(np.abs(x.astype(np.float64)))
    (above,), (below,) = (sums([np.fmax(sign * logs, 0)], attrs) for sign in (1, -1))
    tall, flat = above >= np.log2(_most(dtype)), below >= 126  # subnormals lose digits too
    return {
        _UP: (tall, np.inf),
        _DOWN: (tall, -np.inf),
        _NAN: (tall & flat, np.nan),
        _ZERO: (flat, 0.0),
    }


def _most(dtype: DType) -> float:
    """The largest value of what sums of this type are computed in, less what rounding may add."""
    return 0.999 * float(np.finfo(np.float64 if dtype.name == "f64" else np.float32).max)


def _terms_of_mean(op: OpSpec, arrays: Sequence[Array | None], attrs: Any, result: Array) -> int:
    """How many terms the sum has that a mean is a part of; 1 for other rows."""
    match op.name:
        case "mean":
            return len(arrays)
        case "average_pool":
            return int(np.prod(attrs.kernel))
        case "reduce_mean":
            return max(a.size for a in arrays if a is not None) // max(result.size, 1)
    return 1


def storage(array: Array, dtype: DType) -> Array:
    """Values of a type that NumPy lacks as artifacts take them."""
    return array if dtype.name not in EXTENSIONS else array.astype(numpy_dtype(dtype.name))


def from_storage(array: Array, dtype: DType) -> Array:
    """The values of an artifact's result in the type that carries them."""
    return array if dtype.name not in EXTENSIONS else array.astype(dtype.carrier)


def stored(inputs: Mapping[str, Array], graph: Graph) -> dict[str, Array]:
    """The inputs of a graph as its artifact takes them."""
    return {v.name: storage(inputs[v.name], v.type.dtype) for v in graph.inputs}
