"""Converters of operators that draw random numbers."""

import struct
from collections.abc import Callable

from tcc.frontends.draws import Draws, draws, race
from tcc.frontends.onnx.context import Converter, Converters, NodeContext, Results
from tcc.frontends.scope import Operand
from tcc.ir.index import as_index, const
from tcc.ir.types import BF16, F16, F32, F64, I32, DType

_FLOATS = (F16, BF16, F32, F64)


def _fixed(ctx: NodeContext) -> int | None:
    """The seed that the model gives, whose fraction counts too; None without one."""
    if not ctx.has("seed"):
        return None
    (bits,) = struct.unpack("<q", struct.pack("<d", ctx.real("seed")))
    return int(bits)


def _dtype(ctx: NodeContext, default: DType) -> DType:
    """The element type of the draws."""
    dtype = ctx.dtype("dtype", default)
    if dtype not in _FLOATS:
        raise ctx.fail(f"it draws floating-point numbers, not {dtype.name}")
    return dtype


def _uniform(ctx: NodeContext, drawn: Draws, dtype: DType) -> Operand:
    return drawn.uniform(dtype, ctx.real("low", 0.0), ctx.real("high", 1.0))


def _normal(ctx: NodeContext, drawn: Draws, dtype: DType) -> Operand:
    return drawn.normal(dtype, ctx.real("mean", 0.0), ctx.real("scale", 1.0))


_Law = Callable[[NodeContext, Draws, DType], Operand]


def _shaped(law: _Law) -> Converter:
    """Draws of the shape in the attributes."""

    def convert(ctx: NodeContext) -> Results:
        shape = [as_index(size) for size in ctx.integers("shape")]
        return law(ctx, draws(ctx, shape, _fixed(ctx)), _dtype(ctx, F32))

    return convert


def _like(law: _Law) -> Converter:
    """Draws of the shape and, unless the attributes say another, the type of the input."""

    def convert(ctx: NodeContext) -> Results:
        x = ctx.input(0)
        return law(ctx, draws(ctx, x.shape, _fixed(ctx)), _dtype(ctx, x.dtype))

    return convert


def _bernoulli(ctx: NodeContext) -> Results:
    chance = ctx.input(0)
    drawn = draws(ctx, chance.shape, _fixed(ctx)).uniform(chance.dtype)
    return ctx.cast(drawn < chance, ctx.dtype("dtype", chance.dtype))


def _multinomial(ctx: NodeContext) -> Results:
    logarithms = ctx.ranked(ctx.input(0), 2)
    count = const(ctx.integer("sample_size", 1))
    scores = race(ctx, logarithms, count, _fixed(ctx))
    drawn = ctx.emit("arg_max", scores, axis=2, keepdims=False, select_last=False)
    return ctx.cast(drawn, ctx.dtype("dtype", I32))


CONVERTERS: Converters = {
    "RandomUniform": _shaped(_uniform),
    "RandomNormal": _shaped(_normal),
    "RandomUniformLike": _like(_uniform),
    "RandomNormalLike": _like(_normal),
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
}
