"""Converters of operators that write into a copy of a tensor."""

from __future__ import annotations

from tcc.frontends.onnx_scope import Operand
from tcc.frontends.torch_context import CallContext, Converter
from tcc.frontends.torch_create import counted
from tcc.frontends.torch_indexing import as_indices, places_of, tuples
from tcc.frontends.torch_movement import place
from tcc.ir.index import Index, as_int, const
from tcc.ir.types import BOOL, U8, element_count

_REDUCTIONS = {"add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max",
               "amin": "min"}  # fmt: skip


def _scattered(ctx: CallContext, x: Operand, at: Operand, source: Operand, how: str) -> Operand:
    axis = ctx.axis_of("dim", x.rank)
    at = as_indices(ctx, at)
    if element_count(at.shape).key == "0":
        return x
    if not x.rank:
        x, at, source = (ctx.reshape(o, (1,)) for o in (x, at, source))
        return ctx.reshape(ctx.emit("scatter_elements", x, at, source, axis=0, reduction=how), ())
    if source.rank and source.shape != at.shape:
        for n, (have, want) in enumerate(zip(source.shape, at.shape, strict=True)):
            if have is not want:
                source = ctx.slice_axis(source, n, 0, want)
    return ctx.emit("scatter_elements", x, at, source, axis=axis, reduction=how)


def _scatter(ctx: CallContext) -> Operand:
    x, at = ctx.operand("self"), ctx.operand("index")
    if ctx.has("src"):
        source = ctx.operand("src", x.dtype)
    else:
        source = ctx.expand(ctx.reshape(ctx.operand("value", x.dtype), ()), at.shape)
    how = _REDUCTIONS[ctx.text("reduce")] if ctx.has("reduce") else "none"
    return _scattered(ctx, x, at, source, how)


def _scatter_add(ctx: CallContext) -> Operand:
    x = ctx.operand("self")
    return _scattered(ctx, x, ctx.operand("index"), ctx.operand("src"), "add")


def _scatter_reduce(ctx: CallContext) -> Operand:
    how = ctx.text("reduce")
    if how not in _REDUCTIONS or not ctx.flag("include_self"):
        raise ctx.fail(f"reduction {how} with include_self={ctx.flag('include_self')}")
    x = ctx.operand("self")
    return _scattered(ctx, x, ctx.operand("index"), ctx.operand("src"), _REDUCTIONS[how])


def _index_put(ctx: CallContext) -> Operand:
    x = ctx.operand("self")
    values = ctx.operand("values", x.dtype)
    only = [value for value in ctx.arguments["indices"] if value is not None]
    plain = not ctx.flag("accumulate") and len(only) == 1 and only[0].dtype in (BOOL, U8)
    if plain and element_count(values.shape).key == "1":
        return _filled_where(ctx, x, only[0], values)
    places = places_of(ctx, x.rank)
    perm = (*places.axes, *places.rest)
    front = ctx.transpose(x, perm)
    rest = tuple(x.shape[n] for n in places.rest)
    target = (*rest[: places.first], *places.shape, *rest[places.first :])
    spread = ctx.expand(values, target)
    count, first = len(places.shape), places.first
    order = (*range(first, first + count), *range(first), *range(first + count, len(target)))
    updates = ctx.transpose(spread, order)
    how = "add" if ctx.flag("accumulate") else "none"
    found = ctx.emit("scatter_nd", front, tuples(ctx, places), updates, reduction=how)
    return ctx.transpose(found, tuple(perm.index(n) for n in range(x.rank)))


def _filled_where(ctx: CallContext, x: Operand, mask: Operand, value: Operand) -> Operand:
    """`x` with one value where a mask over its leading axes holds."""
    leading = next(n for n, v in enumerate(ctx.arguments["indices"]) if v is not None)
    trailing = x.rank - leading - mask.rank
    wide = ctx.reshape(mask, (*[1] * leading, *mask.shape, *[1] * trailing))
    return ctx.where(ctx.cast(wide, BOOL), ctx.reshape(value, ()), x)


# ---- whole slices --------------------------------------------------------------------------------


def _along(
    ctx: CallContext, x: Operand, axis: int, at: Operand, shape: tuple[Index, ...]
) -> Operand:
    """Positions along one axis, repeated over the others to `shape`."""
    line = [element_count(at.shape) if n == axis else const(1) for n in range(x.rank)]
    flat = ctx.reshape(as_indices(ctx, at), line)
    return ctx.expand(flat, shape)


def _index_write(how: str) -> Converter:
    """index_add, index_copy: slices along an axis at the places of a vector."""

    def convert(ctx: CallContext) -> Operand:
        x, at = ctx.operand("self"), ctx.operand("index")
        axis = ctx.axis_of("dim", x.rank)
        source = ctx.operand("source", x.dtype)
        if "alpha" in ctx.arguments and ctx.real("alpha") != 1:
            source = ctx.emit("mul", source, ctx.operand("alpha", x.dtype))
        if not x.rank:
            at, source = ctx.reshape(at, ()), ctx.reshape(source, ())
            return _scattered(ctx, x, at, source, how)
        shape = tuple(
            element_count(at.shape) if n == axis else dim for n, dim in enumerate(x.shape)
        )
        places = _along(ctx, x, axis, at, shape)
        return _scattered(ctx, x, places, ctx.reshape(source, shape), how)

    return convert


def _index_reduce(ctx: CallContext) -> Operand:
    how = ctx.text("reduce")
    if how not in _REDUCTIONS or not ctx.flag("include_self"):
        raise ctx.fail(f"reduction {how} with include_self={ctx.flag('include_self')}")
    found: Operand = _index_write(_REDUCTIONS[how])(ctx)
    return found


def _index_fill(ctx: CallContext) -> Operand:
    x, at = ctx.operand("self"), ctx.operand("index")
    value = ctx.reshape(ctx.operand("value", x.dtype), ())
    axis = ctx.axis_of("dim", x.rank)
    if not x.rank:
        return _scattered(ctx, x, ctx.reshape(at, ()), value, "none")
    shape = tuple(element_count(at.shape) if n == axis else dim for n, dim in enumerate(x.shape))
    return _scattered(ctx, x, _along(ctx, x, axis, at, shape), ctx.expand(value, shape), "none")


def _strided_write(
    ctx: CallContext, x: Operand, source: Operand, axis: int, start: Index, step: int
) -> Operand:
    """`source` in the places `start`, `start + step`, ... of an axis."""
    size = source.shape[axis]
    if step == 1:
        parts = [ctx.slice_axis(x, axis, 0, start), source]
        parts.append(ctx.slice_axis(x, axis, start + size, x.shape[axis] - start - size))
        return ctx.concat([p for p in parts if as_int(p.shape[axis]) != 0] or [source], axis)
    steps = ctx.emit("mul", counted(ctx, size), ctx.constant(step))
    at = ctx.emit("add", steps, ctx.size_scalar(start))
    return _scattered_at(ctx, x, _along(ctx, x, axis, at, source.shape), source, axis)


def _scattered_at(ctx: CallContext, x: Operand, at: Operand, source: Operand, axis: int) -> Operand:
    if element_count(at.shape).key == "0":
        return x
    return ctx.emit("scatter_elements", x, at, source, axis=axis, reduction="none")


def _slice_scatter(ctx: CallContext) -> Operand:
    x = ctx.operand("self")
    axis, step = ctx.axis_of("dim", x.rank), ctx.integer("step")
    dim = x.shape[axis]
    start = place(ctx, ctx.index("start"), dim) if ctx.has("start") else const(0)
    size = ctx.cut(x, axis, start, ctx.index("end") if ctx.has("end") else dim, step).shape
    source = ctx.expand(ctx.operand("src", x.dtype), size)
    known, extent = as_int(start), as_int(dim)
    if known is not None and extent is not None:
        start = const(min(max(known, 0), extent))
    return _strided_write(ctx, x, source, axis, start, step)


def _select_scatter(ctx: CallContext) -> Operand:
    x = ctx.operand("self")
    axis = ctx.axis_of("dim", x.rank)
    start = place(ctx, ctx.index("index"), x.shape[axis])
    shape = [const(1) if n == axis else dim for n, dim in enumerate(x.shape)]
    source = ctx.reshape(ctx.operand("src", x.dtype), shape)
    return _strided_write(ctx, x, source, axis, start, 1)


def _diagonal_scatter(ctx: CallContext) -> Operand:
    """`src` on a diagonal: its elements are taken where row and column are on it."""
    x, source = ctx.operand("self"), ctx.operand("src", ctx.result_dtype())
    first, second = (ctx.axis_of(name, x.rank) for name in ("dim1", "dim2"))
    offset = ctx.integer("offset")
    rows, columns = x.shape[first], x.shape[second]
    if element_count(source.shape).key == "0":
        return x
    row = ctx.reshape(counted(ctx, rows), (rows, 1))
    column = ctx.reshape(counted(ctx, columns), (1, columns))
    held = ctx.emit("equal", ctx.emit("add", row, ctx.constant(offset)), column)
    # Along the diagonal the elements are counted by the axis that starts at it.
    along = column if offset < 0 else row
    last = ctx.size_scalar(source.shape[-1] - 1)
    place = ctx.expand(ctx.emit("min", along, last), (rows, columns))
    spread = ctx.emit("gather", source, place, axis=source.rank - 1)
    rest = [n for n in range(x.rank) if n not in (first, second)]
    order = (*rest, first, second)
    turned = ctx.transpose(spread, tuple(order.index(n) for n in range(x.rank)))
    mask = ctx.reshape(held, (*[1] * len(rest), rows, columns))
    return ctx.where(ctx.transpose(mask, tuple(order.index(n) for n in range(x.rank))), turned, x)


def _copy(ctx: CallContext) -> Operand:
    return ctx.expand(ctx.operand("src", ctx.result_dtype()), ctx.result_shape())


CONVERTERS: dict[str, Converter] = {
    "scatter": _scatter,
    "scatter_add": _scatter_add,
    "scatter_reduce.two": _scatter_reduce,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "index_add": _index_write("add"),
    "index_copy": _index_write("none"),
    "index_fill": _index_fill,
    "index_reduce": _index_reduce,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "diagonal_scatter": _diagonal_scatter,
    "copy": _copy,
}
