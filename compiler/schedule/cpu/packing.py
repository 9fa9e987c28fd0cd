"""Whether a product's vector operand is made in scratch before it is multiplied.

    sum(k) x[i, k] * (level[k, j] * scale[k/32, j])        128 rows i
    sum(k) x[i, k] * y[k, j]                               577 columns j

What makes an element of such an operand is repeated for every block of rows, unless a K-block of it
is made once, in the unit's scratch, and all rows multiply it from there.  An operand that is only
read is copied there where the price of its vectors that lie in two lines says so (`Knobs.copy`).
"""

from tcc.ir.expr import known_extent
from tcc.ir.expr.scalar import Apply, Cast, Read, Scalar, children
from tcc.ir.index import Var
from tcc.ir.tile.group import GroupStage
from tcc.schedule.nest import contraction_factors, depends, points

# Rows from which on making a K-block once is faster, storing and loading it included.  Measured
# with levels of four bits, 2048 x 2048: 32 rows lose 5 %, 40 and 64 gain a tenth, 48 (whole blocks
# of 12, as they are made for each) nothing, 128 a sixth.  Not asked of prices: these count what
# makes an operand once for so many rows as a vector has lanes, whatever the block; and a loop of
# open size is told by its rows as the kernel runs.
FEW_ROWS = 40


def packs(stage: GroupStage, vector: Var, rows: tuple[Var, ...], copied: bool = False) -> bool:
    """Whether a K-block of the operand along `vector` has a known size and lies in scratch: it is
    worth making once for all of `rows`, or is to be `copied` from memory."""
    if any(known_extent(v) is None for v in stage.reduce):
        return False
    own = _operand(stage, vector)
    if isinstance(own, Read):
        return copied and isinstance(own.source, int) and vector in stage.iters
    return points(rows) >= FEW_ROWS and made(stage, vector) > 0


def made(stage: GroupStage, vector: Var) -> int:
    """Instructions that make an element of the operand along `vector` of what lies in memory, as a
    level and its scale."""
    own = _operand(stage, vector)
    return 0 if isinstance(own, Read | Cast) else _operations(own)


def _operand(stage: GroupStage, vector: Var) -> Scalar:
    factors = contraction_factors(stage)
    assert factors is not None
    return next((f for f in (factors.a, factors.b) if vector in depends(stage, f)), factors.a)


def _operations(scalar: Scalar) -> int:
    """Functions and casts between a scalar and what it reads."""
    if isinstance(scalar, Read):
        return 0
    return isinstance(scalar, Apply | Cast) + sum(map(_operations, children(scalar)))
