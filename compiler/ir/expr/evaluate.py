"""Evaluates expressions with NumPy: the executable meaning of `ir.expr`.

The code is simple rather than fast: a stage is computed at all points of its iterators at once,
with the reduced iterators as the last axes.  Large grids are computed in parts along the first
iterator.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any

import numpy as np
from tcc.frozen import entity
from tcc.ir.expr import MONOIDS, Expr, Stage, extent, unconditional
from tcc.ir.expr.scalar import (
    FUNCTIONS,
    Apply,
    Arg,
    Cast,
    Const,
    IndexValue,
    Read,
    Scalar,
    StageRef,
    walk,
)
from tcc.ir.graph import carrier
from tcc.ir.index import evaluate
from tcc.ir.op import Array, Arrays, OutArrays
from tcc.ir.types import BOOL, DType, integer_limits
from tcc.zipped import zip_equal

_GRID_LIMIT = 1 << 24
_SMALL = 1 << 12


def evaluate_expr(
    expr: Expr, operands: Arrays, sizes: Mapping[str, int] | None = None
) -> OutArrays:
    """Returns the arrays of `expr.outputs`.

    `operands` are the arrays of the operands, and `sizes` the values of the size symbols by name.
    Raises IndexError if a read without `fill` is outside its source, except under a branch of
    `select`: there the read returns NaN, or the largest integer.
    """
    env = dict(sizes or {})
    results: list[OutArrays] = []
    with np.errstate(all="ignore"):
        for stage in expr.stages:
            results.append(_evaluate_stage(stage, operands, results, env))
    return tuple(results[o.stage][o.component] for o in expr.outputs)


def evaluate_scalars(
    bodies: Sequence[Scalar], grid: Mapping[str, Any], args: Sequence[Array]
) -> OutArrays:
    """Returns the values of scalars that contain no reads.

    `grid` has the value of each variable by name, and `args[n]` the value of `Arg` n.  All arrays
    broadcast.
    """
    body = _Body((), [], grid, args)
    return tuple(np.asarray(carrier(np.asarray(body.value(b)), b.dtype)) for b in bodies)


def _evaluate_stage(
    stage: Stage,
    operands: Arrays,
    results: list[OutArrays],
    env: Mapping[str, int],
) -> OutArrays:
    outer = [int(evaluate(extent(v), env)) for v in stage.iters]
    inner = [int(evaluate(extent(v), env)) for v in stage.reduce]
    points = prod((*outer, *inner))
    axes = [np.arange(n) for n in (*outer, *inner)]
    cuts = [axes]
    if outer and points > _GRID_LIMIT:
        rows = np.array_split(axes[0], min(outer[0], -(-points // _GRID_LIMIT)))
        cuts = [[row_range, *axes[1:]] for row_range in rows]
    names = [var.name for var in stage.loops]
    parts = []
    for ranges in cuts:
        grid = {**env, **dict(zip_equal(names, np.ix_(*ranges)))}
        body = _Body(operands, results, grid, must=unconditional(stage.body))
        full = tuple(map(len, ranges))
        values = tuple(np.broadcast_to(body.value(s), full) for s in stage.body)
        parts.append(_reduce(stage, values, full[: len(outer)]) if stage.monoid else values)
    arrays = tuple(
        np.concatenate([p[c] for p in parts]) if len(parts) > 1 else np.array(parts[0][c])
        for c in range(len(stage.body))
    )
    return tuple(carrier(a, s.dtype) for a, s in zip_equal(arrays, stage.body))


def _reduce(stage: Stage, values: OutArrays, shape: tuple[int, ...]) -> OutArrays:
    """Returns the components of shape `shape`, with all later dimensions of `values` combined.

    The monoid combines neighbouring pairs of elements until one element is left.
    """
    assert stage.monoid is not None
    monoid = MONOIDS[stage.monoid]
    dtypes = tuple(s.dtype for s in stage.body)
    combine = monoid.combine(dtypes)
    identity = [np.asarray(_literal(s)) for s in monoid.identity(dtypes)]
    flat = [v.reshape(*shape, prod(v.shape[len(shape) :])) for v in values]

    def empty(*shape: int) -> list[Array]:
        return [np.broadcast_to(i.astype(v.dtype), shape) for i, v in zip_equal(identity, flat)]

    if flat[0].shape[-1] == 0:
        return tuple(empty(*shape))
    while flat[0].shape[-1] != 1:
        if flat[0].shape[-1] % 2:
            pairs = zip_equal(flat, empty(*shape, 1))
            flat = [np.concatenate(pair, axis=-1) for pair in pairs]
        args = [v[..., 0::2] for v in flat] + [v[..., 1::2] for v in flat]
        body = _Body((), [], {}, args)
        flat = [np.asarray(carrier(body.value(c), t)) for c, t in zip_equal(combine, dtypes)]
    return tuple(v[..., 0] for v in flat)


@entity
class _Body:
    """Evaluates scalars at all points of a grid; computes each scalar once.

    `grid` has the values of the variables by name.  The reads in `must` are not under a branch of
    `select`, so they may not leave their source.
    """

    operands: Arrays
    results: Sequence[OutArrays]
    grid: Mapping[str, Any]
    args: Sequence[Array] = ()
    must: Collection[Scalar] = ()
    computed: dict[Scalar, Any] = field(default_factory=dict)

    def value(self, root: Scalar) -> Any:
        for scalar in walk(root):
            if scalar not in self.computed:
                self.computed[scalar] = self._compute(scalar)
        return self.computed[root]

    def _compute(self, scalar: Scalar) -> Any:
        match scalar:
            case Const():
                return _literal(scalar)
            case IndexValue():
                index = np.asarray(evaluate(scalar.index, self.grid))
                return carrier(index.astype(scalar.dtype.carrier), scalar.dtype)
            case Read():
                return self._read(scalar)
            case Apply():
                args = [self.computed[a] for a in scalar.args]
                raw = np.asarray(FUNCTIONS[scalar.function].numpy(*args))
                return carrier(raw.astype(scalar.dtype.carrier), scalar.dtype)
            case Cast():
                return convert(self.computed[scalar.arg], scalar.arg.dtype, scalar.dtype)
            case Arg():
                return self.args[scalar.number]

    def _read(self, node: Read) -> Any:
        source = node.source
        array = (
            self.results[source.stage][source.component]
            if isinstance(source, StageRef)
            else self.operands[source]
        )
        if array is None:
            raise IndexError(f"read of absent operand {source}")
        bound = {v.name: np.asarray(self.computed[s]).astype(np.int64) for v, s in node.indirect}
        env = {**self.grid, **bound}
        at = [np.asarray(evaluate(i, env)) for i in node.indices]
        inside: Any = np.True_
        for index, size in zip_equal(at, array.shape):
            inside = inside & (index >= 0) & (index < size)
        if node.fill is None and (node in self.must or np.all(inside)):
            return _gathered(array, at)
        fill = np.asarray(_poison(node.dtype) if node.fill is None else node.fill, array.dtype)
        if array.size == 0:
            return np.broadcast_to(fill, np.shape(inside))
        clipped = [np.clip(i, 0, n - 1) for i, n in zip_equal(at, array.shape)]
        return np.where(inside, _gathered(array, clipped), fill)


def _gathered(array: Any, at: Sequence[Any]) -> Any:
    """Returns `array[at]`.

    Gathers large results one axis at a time where each index array varies along an axis of its own,
    because NumPy's slices and one-axis gathers are faster than a general gather.
    """
    shape = np.broadcast_shapes(*(i.shape for i in at))
    is_open_mesh = _SMALL < prod(shape) == prod(i.size for i in at)
    if not is_open_mesh or any(i.size != max(i.shape, default=1) for i in at):
        return array[tuple(at)]
    for axis, index in enumerate(at):
        line = index.reshape(-1)
        first, last = line[0], line[-1]
        is_range = np.array_equal(line, range(first, last + 1))
        is_slice = is_range and first >= 0 and last < array.shape[axis]
        part: Any = slice(first, last + 1) if is_slice else line
        array = array[(slice(None),) * axis + (part,)]
    order = sorted(range(len(at)), key=lambda n: -[*at[n].shape[::-1], 1].index(at[n].size))
    return array.transpose(order).reshape(shape)


def _poison(dtype: DType) -> float:
    """Returns the value of a read outside its source, which `select` must drop.

    It is NaN for floats, else the largest value of the type.
    """
    return float("nan") if dtype.is_float else integer_limits(dtype)[1]


def _literal(scalar: Scalar) -> Any:
    assert isinstance(scalar, Const)
    return carrier(np.asarray(scalar.value, scalar.dtype.carrier), scalar.dtype)


def convert(array: Any, source: DType, target: DType) -> Array:
    """Returns values of type `source` converted to `target`.

    Conversion from floats to integers truncates and saturates; NaN becomes 0.
    """
    data = np.asarray(array)
    if target is BOOL:
        return np.asarray(data != 0)
    if source.is_float and target.is_integer:
        lowest, highest = integer_limits(target)
        wide = np.trunc(
            np.nan_to_num(data.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
        )
        low, high = wide <= float(lowest), wide >= float(highest)
        body = np.where(low | high, 0, wide).astype(target.carrier)
        return np.where(low, lowest, np.where(high, highest, body)).astype(target.carrier)
    if target.is_float or target.is_integer:
        return carrier(data.astype(target.carrier), target)
    return data
