"""Converters of operators that draw random numbers.

A `generator` is not looked at: the run's seed takes its place.
"""

from collections.abc import Sequence

from tcc.frontends.draws import draws, dropped, race
from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter, Converters
from tcc.ir.index import as_int, const
from tcc.ir.types import BOOL, F32, I64


def _drawn(law: str, *numbers: str) -> Converter:
    """Draws of the result's shape and type; `numbers` name the arguments that are 0 and 1 by
    default."""

    def convert(ctx: CallContext) -> Operand:
        given = (ctx.real(name, float(n)) for n, name in enumerate(numbers))
        drawn = draws(ctx, ctx.result_shape())
        found: Operand = getattr(drawn, law)(ctx.result_dtype(), *given)
        return found

    return convert


def _integers(ctx: CallContext) -> Operand:
    """The ends are called `low` and `high`, or `from` and `to`."""
    low, high = (next(filter(ctx.has, names), "") for names in (("low", "from"), ("high", "to")))
    least = ctx.integer(low) if low else 0
    return draws(ctx, ctx.result_shape()).integers(least, ctx.integer(high))


def _coins(ctx: CallContext) -> Operand:
    """Ones where a number in [0, 1) is below the chance: `p`, or else each element."""
    chance = ctx.operand("p" if ctx.has("p") else ctx.first(), F32)
    return draws(ctx, ctx.result_shape()).uniform(F32) < chance


def _dropout(ctx: CallContext) -> Sequence[Operand]:
    """The elements that are kept, scaled for their sum to stay, and which these are."""
    x, chance = ctx.operand("input"), ctx.real("p")
    if ctx.arguments.get("train") is False or chance == 0:
        return [x, ctx.full(True, BOOL, x.shape)]
    return dropped(ctx, x, chance)


def _multinomial(ctx: CallContext) -> Operand:
    weights, count = ctx.operand("self"), ctx.index("num_samples")
    rows = weights if weights.rank == 2 else ctx.unsqueeze(weights, 0)
    again = ctx.flag("replacement") or as_int(count) == 1
    scores = race(ctx, ctx.emit("log", rows), count if again else const(1))
    if again:
        found = ctx.emit("arg_max", scores, axis=2, keepdims=False, select_last=False)
    else:
        options = {"axis": 1, "k": count, "largest": True, "sorted": True}
        found = ctx.emit_all("top_k", [ctx.squeeze(scores, (1,))], **options)[1]
    return found if weights.rank == 2 else ctx.squeeze(found, (0,))


def _permutation(ctx: CallContext) -> Operand:
    """The order of as many numbers; two of 63 bits are equal once in 2**63 / n**2 runs."""
    keys = ctx.cast(draws(ctx, ctx.result_shape()).bits(63), I64)
    options = {"axis": 0, "k": keys.shape[0], "largest": False, "sorted": True}
    return ctx.emit_all("top_k", [keys], **options)[1]


CONVERTERS: Converters = {
    **dict.fromkeys(("rand", "rand_like"), _drawn("uniform")),
    **dict.fromkeys(("randn", "randn_like"), _drawn("normal")),
    "prims.uniform": _drawn("uniform", "low", "high"),
    **dict.fromkeys(("prims.normal", "normal_functional"), _drawn("normal", "mean", "std")),
    **dict.fromkeys(("randint", "randint_like", "random.from", "random.to"), _integers),
    "bernoulli": _coins,
    "native_dropout": _dropout,
    "multinomial": _multinomial,
    "randperm": _permutation,
}
