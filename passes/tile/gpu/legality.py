"""Decides what may be one kernel on a GPU: a block kernel whose blocks fit the registers."""

from collections.abc import Sequence

from tcc.errors import TccError
from tcc.ir.expr import Expr
from tcc.ir.expr.scalar import Read, uncast
from tcc.ir.tile import Contract, walk_statements
from tcc.ir.tile.group import GroupStage
from tcc.ir.types import F32, DType
from tcc.passes.fuse.combine import read_plainly
from tcc.passes.fuse.forms import repeating_forms
from tcc.passes.fuse.structure import build_group, row_major_storage, steps_evenly
from tcc.passes.tile.gpu.lower import lower_blocks
from tcc.passes.tile.gpu.stored import stored_as
from tcc.schedule.alternatives import IMPOSSIBLE
from tcc.schedule.gpu.choose import ranked
from tcc.schedule.gpu.matmuls import is_matmul
from tcc.schedule.gpu.schedule import TYPICAL_DEVICE, BlockProfile
from tcc.schedule.limits import FusionLimits
from tcc.schedule.nest import contraction_factors


def is_gpu_kernel(
    expr: Expr,
    constants: Sequence[bool],
    profile: BlockProfile = TYPICAL_DEVICE,
    floats: DType = F32,
) -> bool:
    """Returns True if `expr` can be one block kernel that is worth having.

    All values are row-major, and f32 values are stored as `floats`.
    """
    stored_expr = stored_as(expr, floats)
    forms = repeating_forms(stored_expr, profile.limits)
    return any(_is_block_kernel(stored_expr, constants, profile, form) for form in forms)


def _is_block_kernel(
    expr: Expr, constants: Sequence[bool], profile: BlockProfile, limits: FusionLimits
) -> bool:
    operands, results = row_major_storage(expr, constants)
    try:
        loops = build_group(expr, operands, results, collapsed=False, limits=limits)
        if not all(map(_multiplies_loads, loops.stages)):
            return False
        group = build_group(expr, operands, results, limits=limits)
        best = ranked(group, profile)[0]
        body = walk_statements(lower_blocks(group, best.schedule).body)
        # Two kernels stay apart if a matmul of one of them would not be computed by `Contract` in
        # the joined kernel, but as sums across lanes.
        contractions = sum(isinstance(node, Contract) for node in body)
        return len(group.stages) == 1 or (
            read_plainly(expr)
            # Values that do not fit the registers are better stored between two kernels.
            and best.price.seconds != IMPOSSIBLE
            and sum(map(is_matmul, group.stages)) <= contractions
        )
    except TccError:
        return False


def _multiplies_loads(stage: GroupStage) -> bool:
    """Returns True if the factors of a contraction are loads, or casts of loads; True for other
    stages.

    Any other factor would be computed again for every block with which it is multiplied.
    """
    factors = contraction_factors(stage)
    if factors is None:
        return True
    plain = all(isinstance(uncast(s), Read) for s in (factors.a, factors.b))
    return (plain or factors.a is factors.b) and steps_evenly(stage)
