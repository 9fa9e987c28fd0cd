"""What may be one kernel on a GPU: what becomes a block kernel and keeps its processors busy."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from tcc.errors import TccError
from tcc.ir.expr import Expr
from tcc.ir.expr.scalar import Read, uncast
from tcc.ir.tile import Compute, Contract, Load, walk_statements
from tcc.ir.tile.group import GroupStage, TileGroup
from tcc.ir.types import F32, DType
from tcc.passes.fuse.combine import read_plainly
from tcc.passes.fuse.structure import build_group, row_major_storage, steps_evenly
from tcc.passes.tile.gpu.lower import lower_blocks
from tcc.passes.tile.gpu.stored import stored_as
from tcc.schedule.gpu.choose import ranked
from tcc.schedule.gpu.matmuls import is_matmul
from tcc.schedule.gpu.schedule import TYPICAL_DEVICE, BlockProfile
from tcc.schedule.nest import contraction_factors, points, weight, work

# Operations of a kernel that a few processors do as soon as all would.
_SMALL = 1 << 20
# Results of a unit of a product that stands alone.
_RESULTS = 64
# Elements of a block that the registers of a unit hold beside others.
_HELD = 1 << 15
# Operations that every unit may do again.
_AGAIN = 1 << 14


def is_gpu_kernel(
    expr: Expr,
    constants: Sequence[bool],
    profile: BlockProfile = TYPICAL_DEVICE,
    floats: DType = F32,
) -> bool:
    """Whether one block kernel of `expr`, with everything row-major and f32 stored as `floats`, is
    worth having."""
    stored = stored_as(expr, floats)
    operands, results = row_major_storage(stored, constants)
    try:
        loops = build_group(stored, operands, results, collapsed=False, limits=profile.limits)
        if not all(map(_multiplies_loads, loops.stages)):
            return False
        group = build_group(stored, operands, results, limits=profile.limits)
        best = ranked(group, profile)[0]
        body = list(walk_statements(lower_blocks(group, best.schedule).body))
        # No join may turn a product of matrices into sums along lanes.
        contractions = sum(isinstance(node, Contract) for node in body)
        return len(group.stages) == 1 or (
            read_plainly(expr)
            and best.price.seconds < inf  # values that no registers hold are better stored
            and _keeps_busy(group, best.price.units, profile)
            and all(prod(n.out.shape) <= _HELD for n in body if isinstance(n, Load | Compute))
            and sum(map(is_matmul, group.stages)) <= contractions
        )
    except TccError:
        return False


def _multiplies_loads(stage: GroupStage) -> bool:
    """Whether a sum of products multiplies elements as they lie, or what they are in another
    type: anything else would be computed once for every block that it meets."""
    factors = contraction_factors(stage)
    if factors is None:
        return True
    plain = all(isinstance(uncast(s), Read) for s in (factors.a, factors.b))
    return (plain or factors.a is factors.b) and steps_evenly(stage)


def _keeps_busy(group: TileGroup, units: int, profile: BlockProfile) -> bool:
    """Whether the units do little that others do too, and of several totals there is little to do
    or there are units for a fourth of the processors."""
    if any(_again(group, s) > _AGAIN for s in group.stages):
        return False
    totals = sum(bool(s.reduce) for s in group.stages)
    if totals <= 1 or sum(work(s) * weight(s) for s in group.stages) < _SMALL:
        return True
    least = profile.processors // 4
    return units >= min(least, _most_units(group))


def _again(group: TileGroup, stage: GroupStage) -> int:
    """Operations of a stage that lacks loops of the grid, for one unit."""
    if set(group.common) <= set(stage.iters):
        return 0
    own = tuple(v for v in (*stage.iters, *stage.reduce) if v not in group.common)
    return points(own) * weight(stage)


def _most_units(group: TileGroup) -> int:
    """Units of the largest stage, were it alone."""
    main = max(group.stages, key=lambda s: work(s) * weight(s))
    return max(1, points(main.iters) // (_RESULTS if contraction_factors(main) is not None else 1))
