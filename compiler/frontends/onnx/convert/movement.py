"""Converters of operators that move elements, or compute with shapes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tcc.frontends.emit import (
    broadcast,
    concat,
    constant,
    filled,
    require,
    size_scalar,
    size_vector,
)
from tcc.frontends.extents import backward_range, forward_range
from tcc.frontends.onnx.axes import (
    Dims,
    bound_sizes,
    is_late,
    marks,
    named_axes,
    run_axes,
    spread,
    squeezed,
    strided,
    unsqueezed,
)
from tcc.frontends.onnx.context import (
    LARGEST,
    Axis,
    Converters,
    NodeContext,
    Results,
    named,
    static_ints,
)
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.index import Index, as_int, bounds, ceildiv, const, maximum, minimum
from tcc.ir.index.compare import sign
from tcc.ir.index.names import is_long
from tcc.ir.index.ones import may_be_one
from tcc.ir.types import F32, F64, I32, I64, STRING, DType, element_count
from tcc.ops.algebra.narrow import ROUNDINGS
from tcc.zipped import zip_equal

# ---- constants and shapes ------------------------------------------------------------------------


_VALUES: dict[str, tuple[Callable[..., Any], type]] = {
    "value_float": (NodeContext.real, np.float32),
    "value_int": (NodeContext.integer, np.int64),
    "value_floats": (NodeContext.reals, np.float32),
    "value_ints": (NodeContext.integers, np.int64),
    "value_string": (NodeContext.text, object),
    "value_strings": (NodeContext.texts, object),
}


def _constant(ctx: NodeContext) -> Results:
    if ctx.has("value"):
        return ctx.tensor("value")
    if ctx.has("sparse_value"):
        return constant(*ctx.session.tensors.dense(ctx._attributes["sparse_value"].sparse_tensor))
    for name, (read_attribute, dtype) in _VALUES.items():
        if ctx.has(name):
            return constant(np.array(read_attribute(ctx, name), dtype))
    raise Refusal("it has no value")


def _constant_of_shape(ctx: NodeContext, shape: Operand) -> Results:
    value = ctx.tensor("value") if ctx.has("value") else filled(0.0, F32)
    return value.reshape(()).expand(shape.as_sizes("the shape"))


def _shape(x: Operand, *, start: int = 0, end: int | None = None) -> Results:
    return size_vector(x.shape[start:end])


def _bit_cast(x: Operand, *, to: DType) -> Results:
    return x if to is x.dtype else x.bit_cast(to=to)


def _converted(ctx: NodeContext, x: Operand, to: DType) -> Operand:
    if to.is_packed and to.is_integer and x.dtype.is_float:
        return x.cast(I32).cast(to)  # i32 keeps the low bits of large values
    if not to.is_float or not to.is_narrow or STRING in (x.dtype, to) or x.dtype is to:
        return x.cast(to)
    rounding = ctx.text("round_mode", "up")
    if rounding not in ROUNDINGS:
        raise Refusal(f"there is no round_mode {rounding!r}")
    return x.to_narrow(to=to, saturate=ctx.flag("saturate", True), rounding=rounding)


# ---- reshapes ------------------------------------------------------------------------------------


def _reshape(x: Operand, shape: Operand, *, allowzero: bool) -> Results:
    if shape.index_elements is None:
        shape = _resolved_at_run_time(x, shape, allowzero)
    target = list(shape.as_sizes("the shape"))
    for axis, size in enumerate(target):
        if as_int(size) == 0 and not allowzero:
            if axis >= x.rank:
                raise Refusal(f"the shape copies axis {axis} of a tensor of rank {x.rank}")
            target[axis] = x.shape[axis]
    free = [axis for axis, size in enumerate(target) if as_int(size) == -1]
    if len(free) > 1:
        raise Refusal("the shape has more than one -1")
    if free:
        target[free[0]] = _remaining(x.shape, [s for s in target if as_int(s) != -1])
    return x.reshape(target)


def _remaining(shape: Sequence[Index], divided_by: Sequence[Index]) -> Index:
    """Returns the product of `shape` divided by the product of `divided_by`.

    Equal dimensions cancel first.
    """
    numerator = list(shape)
    divisors: list[Index] = []
    for size in divided_by:
        if size in numerator:
            numerator.remove(size)
        else:
            divisors.append(size)
    count, by = element_count(tuple(numerator)), element_count(tuple(divisors))
    return const(0) if as_int(by) == 0 else count // by


def _resolved_at_run_time(x: Operand, shape: Operand, keeps_zero: bool) -> Operand:
    """Returns a target shape that the run computes, with its 0 and -1 replaced by sizes of `x`.

    If `keeps_zero`, 0 is a size and stays.
    """
    count = _length(shape, "the shape")
    if not keeps_zero:
        source_sizes = size_vector([*x.shape, *[const(0)] * count][:count], shape.dtype)
        shape = shape.equals(0).select(source_sizes, shape)
    is_free = shape.equals(-1)
    fixed_count = is_free.select(1, shape).reduce("prod", 0, keepdims=True)
    element_total = size_vector([element_count(x.shape)], shape.dtype)
    return is_free.select(element_total / fixed_count, shape)


def _flatten(x: Operand, *, axis: int) -> Results:
    if not -x.rank <= axis <= x.rank:
        raise Refusal(f"axis {axis} is outside a tensor of rank {x.rank}")
    split_axis = axis + x.rank if axis < 0 else axis
    return x.reshape((element_count(x.shape[:split_axis]), element_count(x.shape[split_axis:])))


def _squeeze(x: Operand, axes: Operand | None = None) -> Results:
    if is_late(axes):
        return squeezed(x, axes)
    dropped = named_axes(axes, x.rank, [n for n in range(x.rank) if x.extent(n) == 1])
    for dim in (d for d in x.shape if not axes and d.terms and may_be_one(d)):
        reason = "a squeeze that names no axes would drop this one (--input fixes its size)"
        require(dim, maximum(dim, minimum(2 * dim, 2)), reason)
    wrong = [n for n in dropped if x.extent(n) not in (1, None)]
    if wrong:
        raise Refusal(f"axis {wrong[0]} of {x.type!r} is not of size 1")
    return x.squeeze(dropped)


def _unsqueeze(x: Operand, axes: Operand) -> Results:
    if is_late(axes):
        return unsqueezed(x, axes)
    rank = x.rank + (axes.type.count or 0)
    inserted = named_axes(axes, rank, ())
    dims = iter(x.shape)
    return x.reshape([const(1) if n in inserted else next(dims) for n in range(rank)])


# ---- rearrangements ------------------------------------------------------------------------------


def _transpose(ctx: NodeContext, x: Operand) -> Results:
    perm = ctx.integers("perm", range(x.rank)[::-1])
    if sorted(perm) != list(range(x.rank)):
        raise Refusal(f"perm {perm} is not a permutation of the axes of {x.type!r}")
    return x.transpose(perm)


def _concat(ctx: NodeContext) -> Results:
    parts = ctx.present()
    if not parts:
        raise Refusal("it has no inputs")
    return concat(parts, ctx.axis_of("axis", parts[0].rank))


def _split(ctx: NodeContext, x: Operand, split: Operand | None = None, *, axis: Axis) -> Results:
    extent, parts = x.shape[axis], len(ctx.node.output)
    if split:
        sizes = split.as_sizes("split")
    else:
        told = ctx.integer("num_outputs", parts)
        if told != parts:
            raise Refusal(f"num_outputs is {told}, there are {parts} outputs")
        chunk = ceildiv(extent, parts)
        sizes = (*[chunk] * (parts - 1), extent - chunk * (parts - 1))
    if len(sizes) != parts:
        raise Refusal(f"split has {len(sizes)} sizes for {parts} outputs")
    length = sum(sizes, const(0))
    if is_long(length):  # a long sum would become a symbol, whose value cannot be proved
        require(length, extent, "the parts of a split are its axis")
        sizes = (*sizes[:-1], extent - length + sizes[-1])
    return x.emit_all("split", axis=axis, sizes=sizes)


def _expand(x: Operand, shape: Operand) -> Results:
    if shape.index_elements is None:
        shape = _expanded_at_run_time(x, shape)
    return x.expand(broadcast(x.shape, shape.as_sizes("the shape")))


def _expanded_at_run_time(x: Operand, shape: Operand) -> Operand:
    """Returns a target shape that the run computes, with its ones replaced by the operand's
    sizes."""
    count = _length(shape, "the shape")
    dims = [*[const(1)] * (count - x.rank), *x.shape]
    source_sizes = size_vector(dims[len(dims) - count :], shape.dtype)
    return shape.equals(1).select(source_sizes, shape)


def _tile(x: Operand, counts: Operand) -> Results:
    repeats = counts.as_sizes("repeats")
    if len(repeats) != x.rank:
        raise Refusal(f"{len(repeats)} repeats for a tensor of rank {x.rank}")
    return x.tile(repeats=repeats)


def _spread_pads(pads: Sequence[Index], axes: Dims, rank: int) -> Dims:
    """Returns the pads of all axes.

    `pads` has the pads before, then those after each of `axes`, which are known only at run time.
    """
    if len(pads) != 2 * len(axes):
        raise Refusal(f"{len(pads)} pads for {len(axes)} axes")
    marked, zeros = marks(axes, rank), (const(0),) * rank
    halves = pads[: len(axes)], pads[len(axes) :]
    every = [pad for half in halves for pad in spread(axes, half, rank, marked, zeros)]
    return bound_sizes(every, lo=-LARGEST)


def _pad(
    x: Operand,
    pads: Operand,
    value: Operand | None = None,
    axes: Operand | None = None,
    *,
    mode: str,
) -> Results:
    amounts = pads.as_sizes("pads", lo=-LARGEST)
    if is_late(axes):
        amounts, axes = _spread_pads(amounts, run_axes(axes, x.rank), x.rank), None
    padded = named_axes(axes, x.rank, range(x.rank))
    if len(amounts) != 2 * len(padded):
        raise Refusal(f"{len(amounts)} pads for {len(padded)} axes")
    before, after = [const(0)] * x.rank, [const(0)] * x.rank
    for n, axis in enumerate(padded):
        before[axis], after[axis] = amounts[n], amounts[n + len(padded)]
    if mode != "constant":
        value = None
    elif value:
        value = value.reshape(())
    elif x.dtype is STRING:
        value = filled(0, STRING)
    return x.emit_all("pad", value, before=tuple(before), after=tuple(after), mode=mode)


# ---- slice ---------------------------------------------------------------------------------------


def _slice(
    x: Operand,
    starts: Operand,
    ends: Operand,
    axes: Operand | None = None,
    steps: Operand | None = None,
) -> Results:
    count = _length(starts, "starts")
    if is_late(axes):
        return strided(x, (starts, ends), run_axes(axes, x.rank), steps)
    sliced = named_axes(axes, x.rank, range(count))
    if is_late(steps):
        return strided(x, (starts, ends), tuple(map(const, sliced)), steps)
    strides = static_ints(steps, "steps") if steps else (1,) * count
    dims = [x.shape[a] for a in sliced]
    firsts = _positions(starts, dims)
    # With a negative step, an end before the first element is -1.
    lasts = _positions(ends, dims, [-1 if step < 0 else 0 for step in strides])
    if not len(firsts) == len(lasts) == len(sliced) == len(strides):
        raise Refusal("starts, ends, axes and steps differ in number")
    begin, size, step = [const(0)] * x.rank, list(x.shape), [1] * x.rank
    for axis, start, end, by in zip_equal(sliced, firsts, lasts, strides):
        if by == 0:
            raise Refusal("a step is zero")
        range_of = forward_range if by > 0 else backward_range
        begin[axis], size[axis] = range_of(start, end, by, x.shape[axis])
        step[axis] = by
    if tuple(size) == x.shape and all(s == 1 for s in step) and not any(b.terms for b in begin):
        return x
    return x.slice(starts=tuple(begin), steps=tuple(step), sizes=tuple(size))


def _length(operand: Operand, what: str) -> int:
    count = operand.extent(0) if operand.rank == 1 else None
    if count is None:
        raise Refusal(f"{what} must be a vector of known length")
    return count


def _positions(operand: Operand, dims: Sequence[Index], lowest: Sequence[int] = ()) -> Dims:
    """Returns the starts or the ends of a slice of axes with the sizes `dims`.

    They are returned unchanged if the import knows their signs. Otherwise each run adds the axis'
    size to a negative position, and limits each position to the range from its entry of `lowest`,
    by default 0, to the axis' size.
    """
    elements = operand.index_elements
    if elements is not None:
        values = tuple(elements.reshape(-1))
        if all(_has_sign(value) for value in values):
            return values
    extents = size_vector(dims, operand.dtype)
    shifted = (operand < 0).select(operand + extents, operand)
    low = size_vector(lowest, operand.dtype) if any(lowest) else operand.like(0)
    clamped = shifted.minimum(extents).maximum(low)
    return clamped.as_sizes("positions", lo=min(lowest, default=0))


def _has_sign(index: Index) -> bool:
    lo = bounds(index)[0]
    return sign(index) is not None or (lo is not None and lo >= 0)


# ---- generated sequences -------------------------------------------------------------------------


def _range(ctx: NodeContext) -> Results:
    operands = [ctx.input(n).reshape(()) for n in range(3)]
    start, limit, delta = operands
    elements = [o.index_elements for o in operands]
    step = None if elements[2] is None else as_int(elements[2].item())
    if elements[0] is not None and elements[1] is not None and step:
        distance = elements[1].item() - elements[0].item()
        size = maximum(ceildiv(distance if step > 0 else -distance, abs(step)), 0)
    else:
        count = (_distance(start, limit) / delta.cast(F64)).ceil().cast(I64)
        size = count.maximum(0).as_size("the length")
    return start.range(limit, delta, size=size)


def _distance(start: Operand, limit: Operand) -> Operand:
    """Returns `limit - start` in f64; exact for integers whose difference fits i64."""
    rough = limit.cast(F64) - start.cast(F64)
    if not start.dtype.is_integer:
        return rough
    exact = limit.cast(I64) - start.cast(I64)
    return (abs(rough) < 2.0**62).select(exact.cast(F64), rough)


CONVERTERS: Converters = {
    **named(
        _constant,
        _constant_of_shape,
        _shape,
        _bit_cast,
        _reshape,
        _flatten,
        _squeeze,
        _unsqueeze,
        _transpose,
        _concat,
        _split,
        _expand,
        _tile,
        _pad,
        _slice,
        _range,
    ),
    "Size": lambda x: size_scalar(element_count(x.shape)),
    "Identity": lambda x: x,
    "Cast": lambda ctx, x: _converted(ctx, x, ctx.dtype("to")),
    "CastLike": lambda ctx, x, like: _converted(ctx, x, like.dtype),
}
