"""Emits the conditions for the guards of an access."""

from collections.abc import Sequence

from tcc.backends.cpu.llvm.blocks import Chunk
from tcc.backends.cpu.llvm.indices import LlvmIndices, constant, lane_of
from tcc.backends.cpu.llvm.text import Code, Reg, lane_consts, remembered
from tcc.frozen import frozen
from tcc.ir.index import Index, bounds, const, free_vars, linear_in
from tcc.ir.tile import Guard


@frozen
class Mask:
    """The active lanes of a vector: the lanes for which both `scalar` (an i1) and `vector` (a
    vector of i1) are true.

    None in place of a condition means true. `never`: no lane can be active.
    """

    scalar: Reg | None = None
    vector: Reg | None = None
    never: bool = False


def mask_of(indices: LlvmIndices, guards: Sequence[Guard], chunk: Chunk) -> Mask:
    """Returns the lanes for which all guards hold; the guards depend on `lane_of(chunk)`."""
    scalar: Reg | None = None
    vector: Reg | None = None
    for guard in guards:
        for index, extent in _tests(guard):
            if extent is None:
                return Mask(never=True)
            for_all, for_lanes = _test(indices, index, extent, chunk)
            scalar = _both(indices.code, scalar, for_all)
            vector = _both(indices.code, vector, for_lanes)
    return Mask(scalar, vector)


def _tests(guard: Guard) -> list[tuple[Index, Index | None]]:
    """Returns the pairs (index, extent) of the tests `index < extent` that a guard needs.

    An extent of None means that no lane is active.
    """
    low, high = bounds(guard.index)
    tests: list[tuple[Index, Index | None]] = []
    room = bounds(guard.extent - 1 - guard.index)
    if (high is not None and high < 0) or (room[1] is not None and room[1] < 0):
        return [(guard.index, None)]
    if low is None or low < 0:
        tests.append((-1 - guard.index, const(0)))
    if room[0] is None or room[0] < 0:
        tests.append((guard.index, guard.extent))
    return tests


def _test(
    indices: LlvmIndices, index: Index, extent: Index, chunk: Chunk
) -> tuple[Reg | None, Reg | None]:
    """Returns the condition `index < extent` as a pair, one item of which is None.

    The first item is an i1 if the condition is the same for all lanes of `chunk`. Otherwise the
    second item is a vector of i1 with the condition of each lane.
    """
    code = indices.code
    (lane,) = free_vars(lane_of(chunk))
    difference = extent - index  # a lane is active if this is positive
    split = linear_in(difference, lane)
    slope = split and constant(split[0])
    if split and slope in (1, -1):
        return None, _threshold(indices.code, indices.emit(split[1]), slope, chunk.width)
    distance = indices.emit(difference) if slope == 0 else indices.lanes(difference, chunk)
    active = code.remember(("positive", distance), lambda: code.compare("icmp sgt", distance, 0))
    return (active, None) if active.width == 1 else (None, active)


@remembered
def _threshold(code: Code, offset: Reg, slope: int, width: int) -> Reg:
    """Returns the lanes for which `slope * lane + offset > 0`, by one 32-bit compare.

    The slope is 1 or -1.
    """
    # Clamping does not change the result, and it makes the offset fit into 32 bits.
    raised = code.intrinsic("smax", offset, -width)
    clamped = code.convert("trunc", code.intrinsic("smin", raised, width), "i32")
    lanes = lane_consts(range(width), "i32")
    if slope == -1:  # condition: lane < offset
        return code.compare("icmp slt", lanes, code.splat(clamped, width))
    negated = code.op("sub", 0, clamped)  # condition: lane > -offset
    return code.compare("icmp sgt", lanes, code.splat(negated, width))


@remembered
def _both(code: Code, a: Reg | None, b: Reg | None) -> Reg | None:
    if a is None or b is None:
        return a if b is None else b
    return code.op("and", a, b)
