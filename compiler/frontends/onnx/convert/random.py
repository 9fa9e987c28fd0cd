"""Converters of operators that draw random numbers."""

import struct

from tcc.frontends.draws import draws, dropped, race
from tcc.frontends.onnx.context import Converter, Converters, NodeContext, Results
from tcc.frontends.scope import Operand
from tcc.ir.index import as_index, const
from tcc.ir.types import BOOL, F32, I32
from tcc.ops.shapes import FLOATS


def seed_of(ctx: NodeContext, *, whole: bool = False) -> int | None:
    """The seed that the model gives, a `whole` number or one whose fraction counts too; None
    without one."""
    if not ctx.has("seed"):
        return None
    if whole:
        return ctx.integer("seed")
    (bits,) = struct.unpack("<q", struct.pack("<d", ctx.real("seed")))
    return int(bits)


def _drawn(law: str, *numbers: str) -> Converter:
    """Draws of the shape of the input, or of that in the attributes; `numbers` name the attributes
    that are 0 and 1 by default."""

    def convert(ctx: NodeContext) -> Results:
        x = ctx.optional(0)
        shape = map(as_index, ctx.integers("shape")) if x is None else x.shape
        dtype = ctx.dtype("dtype", F32 if x is None else x.dtype)
        if dtype not in FLOATS:
            raise ctx.fail(f"it draws floating-point numbers, not {dtype.name}")
        given = (ctx.real(name, float(n)) for n, name in enumerate(numbers))
        found: Operand = getattr(draws(ctx, shape, seed_of(ctx)), law)(dtype, *given)
        return found

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
    **dict.fromkeys(("RandomUniform", "RandomUniformLike"), _drawn("uniform", "low", "high")),
    **dict.fromkeys(("RandomNormal", "RandomNormalLike"), _drawn("normal", "mean", "scale")),
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "Dropout": _dropout,
}
