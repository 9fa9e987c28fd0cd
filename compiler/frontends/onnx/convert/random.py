"""Converters of operators that draw random numbers."""

import struct

from tcc.frontends.draws import draws, dropped, race
from tcc.frontends.emit import filled
from tcc.frontends.onnx.context import Converter, Converters, NodeContext, Results, named
from tcc.frontends.operand import Operand, Refusal
from tcc.ir.index import as_index, const
from tcc.ir.types import BOOL, F32, I32
from tcc.ops.shapes import FLOATS


def seed_of(ctx: NodeContext, *, as_integer: bool = False) -> int | None:
    """Returns the seed that the model gives, else None.

    The attribute is a float. Its 64 bits, as an f64, are the seed, so floats that differ only in
    their fractions give different seeds. With `as_integer` the attribute is an integer.
    """
    if not ctx.has("seed"):
        return None
    if as_integer:
        return ctx.integer("seed")
    (bits,) = struct.unpack("<q", struct.pack("<d", ctx.real("seed")))
    return int(bits)


def _drawn(law: str, *numbers: str) -> Converter:
    """Returns a converter that draws numbers in the shape of the input, or of an attribute.

    `law` is the distribution, a method of `Draws`. `numbers` are the names of its parameters:
    attributes with the defaults 0 and 1.
    """

    def convert(ctx: NodeContext, x: Operand | None = None) -> Results:
        shape = x.shape if x else map(as_index, ctx.integers("shape"))
        dtype = ctx.dtype("dtype", F32 if x is None else x.dtype)
        if dtype not in FLOATS:
            raise Refusal(f"it draws floating-point numbers, not {dtype.name}")
        parameters = (ctx.real(name, float(n)) for n, name in enumerate(numbers))
        numbers_drawn: Operand = getattr(draws(shape, seed_of(ctx)), law)(dtype, *parameters)
        return numbers_drawn

    return convert


def _bernoulli(ctx: NodeContext, chance: Operand) -> Results:
    drawn = draws(chance.shape, seed_of(ctx)).uniform(chance.dtype)
    return (drawn < chance).cast(ctx.dtype("dtype", chance.dtype))


def _multinomial(ctx: NodeContext, logarithms: Operand, *, sample_size: int = 1) -> Results:
    count = const(sample_size)
    scores = race(logarithms.ranked(2), count, seed_of(ctx))
    return scores.arg_max(axis=2, keepdims=False).cast(ctx.dtype("dtype", I32))


def _dropout(
    ctx: NodeContext, x: Operand, ratio: Operand | None = None, training: Operand | None = None
) -> Results:
    drops = ctx.truth(training) if training else False
    if drops is not False:
        chance = ratio or 0.5
        y, mask = dropped(x, chance, None if drops else training, seed_of(ctx, as_integer=True))
        return [y, mask]
    if not ctx.wants(1):
        return x
    # Before opset 12, ONNX says that the mask is not filled in inference; ONNX Runtime returns
    # zeros.
    mask = filled(ctx.opset >= 12, BOOL if ctx.opset >= 10 else x.dtype)
    return [x, mask.expand(x.shape)]


CONVERTERS: Converters = {
    **named(_bernoulli, _multinomial, _dropout),
    **dict.fromkeys(("RandomUniform", "RandomUniformLike"), _drawn("uniform", "low", "high")),
    **dict.fromkeys(("RandomNormal", "RandomNormalLike"), _drawn("normal", "mean", "scale")),
}
