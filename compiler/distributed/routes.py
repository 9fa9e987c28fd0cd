"""Changes of sharding on a mesh, as changes along one axis after another.

A value has a sharding for each axis of the mesh.  The first divides the value, and each later
sharding divides the array that the shardings before it give.  On 2x2 ranks:

    split(0), split(1)    rank (i, j) has block i of the rows and block j of the columns
    split(0), split(0)    rank (i, j) has block j of the rows of block i

Along an axis the sharding can change while the shardings of later axes stay, unless they divide the
same axis of the array.  There, the later sharding becomes whole first:

    split(0), split(0)  ->  split(0), whole  ->  whole, whole  ->  whole, split(0)
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias

from tcc.distributed.sharding import WHOLE, Partial, Sharding, Shardings, Split, local_type
from tcc.frozen import frozen
from tcc.ir.types import TensorType
from tcc.ops.shapes import replaced
from tcc.zipped import zip_equal

# Returns the price of a change along an axis of the mesh; None for a change that does not exist.
# The type is that of the array before the axis divides it.
Price: TypeAlias = Callable[[int, TensorType, Sharding, Sharding], float | None]


@frozen
class AxisChange:
    """A change of an array of `type` along axis `axis` of the mesh, from `source` to `result`."""

    axis: int
    type: TensorType
    source: Sharding
    result: Sharding


@frozen
class Route:
    """The steps of a change of sharding, and their price."""

    price: float
    steps: tuple[AxisChange, ...] = ()


def mesh_type(type: TensorType, shardings: Shardings, sizes: Sequence[int]) -> TensorType:
    """Returns the type of a rank's array of a value of `type`, on a mesh of `sizes`.

    Raises ValueError where the ranks have no equal blocks.
    """
    for sharding, size in zip_equal(shardings, sizes):
        type = local_type(type, sharding, size)
    return type


def route(
    type: TensorType, sources: Shardings, results: Shardings, sizes: Sequence[int], price: Price
) -> Route | None:
    """Returns the cheapest steps from the shardings `sources` to `results`; None if none exist.

    On its way an axis has one of the two shardings, or is whole.
    """
    count = 0
    queue: list[tuple[float, int, Shardings, tuple[AxisChange, ...]]] = [(0.0, count, sources, ())]
    visited: set[Shardings] = set()
    while queue:
        total, _, state, steps = heapq.heappop(queue)
        if state == results:
            return Route(total, steps)
        if state in visited:
            continue
        visited.add(state)
        for step in _steps(type, state, results, sizes):
            cost = price(step.axis, step.type, step.source, step.result)
            if cost is not None:
                count += 1
                after = replaced(state, step.axis, step.result)
                heapq.heappush(queue, (total + cost, count, after, (*steps, step)))
    return None


def _steps(
    type: TensorType, state: Shardings, results: Shardings, sizes: Sequence[int]
) -> Iterator[AxisChange]:
    """Yields the steps from the shardings `state`."""
    for axis, source in enumerate(state):
        earlier, later = state[:axis], state[axis + 1 :]
        for result in dict.fromkeys((results[axis], WHOLE)):
            pair = source, result
            if source == result or not all(_commute(a, b) for a in later for b in pair):
                continue
            with suppress(ValueError):  # no equal blocks, so the shardings do not exist
                mesh_type(type, (*earlier, result, *later), sizes)
                undivided = mesh_type(type, (*earlier, WHOLE, *later), sizes)
                yield AxisChange(axis, undivided, source, result)


def _commute(inner: Sharding, outer: Sharding) -> bool:
    """True where the array is the same whichever of two axes divides it first."""
    match inner, outer:
        case Split(axis), Split(other):
            return axis != other
        case Partial(first), Partial(second):
            return first == second
    return True
