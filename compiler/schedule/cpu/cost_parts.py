"""Parts of a price that need no state: the loops of a stage, and how times combine."""

from collections.abc import Mapping
from dataclasses import dataclass

from tcc.ir.index import Var
from tcc.ir.tile.group import GroupStage
from tcc.schedule.cpu.schedule import Nest
from tcc.schedule.footprint import Touch
from tcc.schedule.nest import contraction_factors, neighbours


@dataclass(slots=True)
class CoreCycles:
    """Cycles of all tiles on one core: of each resource, and of the slower one block by block."""

    compute: float = 0.0
    ports: float = 0.0
    either: float = 0.0


def follows(stage: GroupStage) -> set[Var]:
    """Returns the loops that select the part of a stage that a tile computes."""
    return {*stage.iters, *(() if stage.strip is None else (stage.strip.loop,))}


def vector_of(nest: Nest, stage: GroupStage, spans: Mapping[Var, int]) -> Var | None:
    """Returns the loop along which a stage's vectors run: the nest's vector loop.

    If the stage lacks this loop, its vectors run along its last loop of several elements, or, for a
    reduction, along none.
    """
    vector = next((v for v in stage.loops if v.name == nest.vector), None)
    if vector is None and not stage.reduce:
        return next((v for v in reversed(stage.iters) if spans.get(v, 1) > 1), None)
    return vector


def first_pass(busy: float, cold: float, reuse: float) -> float:
    """Returns the time of a kernel whose constant is not prefetched.

    The first of `reuse` passes over the constant runs at the pace of memory, and takes `cold`.
    `busy` is the time of all passes if nothing waits for memory. The cache prefetches operands that
    are read in order.
    """
    return max(cold, busy / reuse) + busy * (1 - 1 / reuse)


def lane_distance(stage: GroupStage, touch: Touch) -> int:
    """Returns the elements between neighbouring lanes of a contraction's operand.

    A constant operand is packed in words, which hold several steps of the sum.
    """
    if contraction_factors(stage) is None or not touch.constant:
        return 1
    return max(neighbours(stage), 2 if touch.size == 2 else 1)


def combined(a: float, b: float, rivals: float) -> float:
    """Returns the time that two resources take together, if they are busy at once for `a` and `b`.

    The sum of the times to the power of `rivals` is the result to the same power.
    """
    longest = max(a, b)
    return longest and longest * (1 + (min(a, b) / longest) ** rivals) ** (1 / rivals)
