"""Predicted seconds of a plan's parts: the work of a node on a rank, and changes of sharding.

They are roofline counts: operations at a rate, constants read from memory at a rate, and bytes
between ranks at a rate behind a latency.  They only rank alternatives.
"""

from math import prod

from tcc.distributed.changes import transfer
from tcc.distributed.sharding import WHOLE, Partial, Sharding, local_type
from tcc.distributed.strategies import Strategy
from tcc.frozen import frozen
from tcc.ir.expr import Expr, extent
from tcc.ir.expr.scalar import Apply, walk
from tcc.ir.types import TensorType
from tcc.schedule.nest import typical


@frozen
class RankRates:
    """The speeds of a rank and of the link between ranks.

    `operations` and `memory_bytes` are per second of one rank, `link_bytes` per second of one rank
    into a collective; `latency` is the seconds that a collective of no bytes takes.  The defaults
    are those of a core of a server and of memory that ranks of one host share.
    """

    operations: float = 5e10
    memory_bytes: float = 1e10
    link_bytes: float = 1e10
    latency: float = 1e-5


HOST = RankRates()


def change_seconds(
    type: TensorType, source: Sharding, result: Sharding, ranks: int, rates: RankRates
) -> float | None:
    """Returns the seconds of a change of sharding; None for a change that does not exist."""
    change = transfer(type, source, result, ranks)
    if change is None:
        return None
    return rates.latency * bool(change.kind) + change.bytes / rates.link_bytes


def work_seconds(expr: Expr, strategy: Strategy, ranks: int, rates: RankRates) -> float:
    """Returns the seconds of a rank's operations, and of the reductions between them.

    A symbolic extent counts as its typical value.
    """
    blocks = dict(strategy.blocks)
    operations = 0.0
    for number, stage in enumerate(expr.stages):
        points = prod(typical(extent(loop)) for loop in stage.loops)
        applied = sum(isinstance(scalar, Apply) for scalar in walk(*stage.body))
        share = ranks if number in blocks else 1
        operations += points * (applied + 1) / share  # a store, or a step of a reduction
    seconds = operations / rates.operations
    for number, monoids in strategy.reduced:
        for type, monoid in zip(expr.stages[number].types, monoids, strict=True):
            seconds += change_seconds(type, Partial(monoid), WHOLE, ranks, rates) or 0.0
    return seconds


def constant_seconds(type: TensorType, sharding: Sharding, ranks: int, rates: RankRates) -> float:
    """Returns the seconds in which a rank reads its part of a constant."""
    shape = local_type(type, sharding, ranks).shape
    elements = prod(map(typical, shape))
    return elements * type.dtype.bits / 8 / rates.memory_bytes
