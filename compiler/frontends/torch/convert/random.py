"""Converters of operators that draw random numbers.

A `generator` is ignored: the run's seed takes its place.
"""

from collections.abc import Sequence

from tcc.frontends.draws import draws, dropped, race
from tcc.frontends.emit import full
from tcc.frontends.operand import Operand
from tcc.frontends.torch.context import (
    CallContext,
    Converter,
    Converters,
    ResultShape,
    ResultType,
    named,
)
from tcc.ir.index import Index, as_int, const
from tcc.ir.types import BOOL, F32, I64


def _drawn(law: str, *numbers: str) -> Converter:
    """Returns a converter that draws numbers in the result's shape and dtype.

    `law` is the distribution, a method of `Draws`. `numbers` are the names of its parameters:
    arguments with the defaults 0 and 1.
    """

    def convert(ctx: CallContext, shape: ResultShape, dtype: ResultType) -> Operand:
        parameters = (ctx.real(name, float(n)) for n, name in enumerate(numbers))
        numbers_drawn: Operand = getattr(draws(shape), law)(dtype, *parameters)
        return numbers_drawn

    return convert


def _integers(ctx: CallContext, shape: ResultShape) -> Operand:
    """Draws integers; the limits are called `low` and `high`, or `from` and `to`."""
    low, high = (next(filter(ctx.has, names), "") for names in (("low", "from"), ("high", "to")))
    lower_limit = ctx.integer(low) if low else 0
    return draws(shape).integers(lower_limit, ctx.integer(high))


def _bernoulli(ctx: CallContext, shape: ResultShape) -> Operand:
    """Draws ones and zeros; the chance of a one is `p`, or else the element of the input."""
    chance = ctx.operand("p" if ctx.has("p") else ctx.first(), F32)
    return draws(shape).uniform(F32) < chance


def _native_dropout(ctx: CallContext, x: Operand, p: float) -> Sequence[Operand]:
    """Returns `x` with dropout, and the mask of the elements that are not dropped.

    The other elements are scaled so that their sum does not change on average.
    """
    if ctx.arguments.get("train") is False or p == 0:
        return [x, full(True, BOOL, x.shape)]
    return dropped(x, p)


def _multinomial(x: Operand, num_samples: Index, replacement: bool) -> Operand:
    rows = x if x.rank == 2 else x.unsqueeze(0)
    with_replacement = replacement or as_int(num_samples) == 1
    scores = race(rows.log(), num_samples if with_replacement else const(1))
    if with_replacement:
        classes = scores.arg_max(axis=2, keepdims=False)
    else:
        classes = scores.squeeze((1,)).ordered(1, num_samples)[1]
    return classes if x.rank == 2 else classes.squeeze((0,))


def _randperm(shape: ResultShape) -> Operand:
    """Returns a random permutation: the sort order of random numbers.

    The numbers have 63 bits; two of n numbers are equal once in about 2**63 / n**2 runs.
    """
    keys = draws(shape).bits(63).cast(I64)
    return keys.ordered(0, keys.shape[0], False)[1]


CONVERTERS: Converters = {
    **named(_bernoulli, _native_dropout, _multinomial, _randperm),
    **dict.fromkeys(("rand", "rand_like"), _drawn("uniform")),
    **dict.fromkeys(("randn", "randn_like"), _drawn("normal")),
    "prims.uniform": _drawn("uniform", "low", "high"),
    **dict.fromkeys(("prims.normal", "normal_functional"), _drawn("normal", "mean", "std")),
    **dict.fromkeys(("randint", "randint_like", "random.from", "random.to"), _integers),
}
