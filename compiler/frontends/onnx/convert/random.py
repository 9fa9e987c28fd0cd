"""Converters of operators that draw random numbers."""

import struct
from collections.abc import Callable

from tcc.frontends.draws import Draws, draws, dropped, race
from tcc.frontends.onnx.context import Converter, Converters, NodeContext, Results
from tcc.frontends.scope import Operand
from tcc.ir.index import as_index, const
from tcc.ir.types import BF16, BOOL, F16, F32, F64, I32, DType

_FLOATS = (F16, BF16, F32, F64)


def seed_of(ctx: NodeContext, *, whole: bool = False) -> int | None:
    """The seed that the model gives, a `whole` number or one whose fraction counts too; None
    without one."""
    if not ctx.has("seed"):
        return None
    if whole:
        return ctx.integer("seed")
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
        return law(ctx, draws(ctx, shape, seed_of(ctx)), _dtype(ctx, F32))

    return convert


def _like(law: _Law) -> Converter:
    """Draws of the shape and, unless the attributes say another, the type of the input."""

    def convert(ctx: NodeContext) -> Results:
        x = ctx.input(0)
        return law(ctx, draws(ctx, x.shape, seed_of(ctx)), _dtype(ctx, x.dtype))

    return convert


def _bernoulli(ctx: NodeContext) -> Results:
    chance = ctx.input(0)
    drawn = draws(ctx, chance.shape, seed_of(ctx)).uniform(chance.dtype)
    return ctx.cast(drawn < chance, ctx.dtype("dtype", chance.dtype))


def _multinomial(ctx: NodeContext) -> Results:
    logarithms = ctx.ranked(ctx.input(0), 2)
    count = const(ctx.integer("sample_size", 1))
    scores = race(ctx, logarithms, count, seed_of(ctx))
    drawn = ctx.emit("arg_max", scores, axis=2, keepdims=False, select_last=False)
    return ctx.cast(drawn, ctx.dtype("dtype", I32))


def _dropout(ctx: NodeContext) -> Results:
    x, ratio, training = ctx.input(0), ctx.optional(1), ctx.optional(2)
    drops = False if training is None else ctx.truth(training)
    if drops is not False:
        chance = 0.5 if ratio is None else ratio
        y, kept = dropped(ctx, x, chance, None if drops else training, seed_of(ctx, whole=True))
        return [y, kept]
    if not ctx.wants(1):
        return x
    # Before opset 12 a mask of inference is said not to be filled: it is zeros, as ONNX Runtime's.
    kept = ctx.filled(ctx.opset >= 12, BOOL if ctx.opset >= 10 else x.dtype)
    return [x, ctx.expand(kept, x.shape)]


CONVERTERS: Converters = {
    "RandomUniform": _shaped(_uniform),
    "RandomNormal": _shaped(_normal),
    "RandomUniformLike": _like(_uniform),
    "RandomNormalLike": _like(_normal),
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "Dropout": _dropout,
}
