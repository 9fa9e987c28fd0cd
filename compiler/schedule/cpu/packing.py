"""Decides if a contraction's vector operand is packed in scratch before it is multiplied.

    sum(k) x[i, k] * (level[k, j] * scale[k/32, j])        128 rows i
    sum(k) x[i, k] * y[k, j]                               577 columns j

In the first sum the vector operand is computed. Without packing, each element is computed again for
every block of rows. With packing, a K-block of the operand is computed once in the tile's scratch,
and all rows multiply from there. The operand of the second sum is only read. It is copied to
scratch if the price of vectors that cross cache lines is higher (`Knobs.copy`).
"""

from tcc.ir.expr.scalar import Apply, Cast, Read, Scalar, children
from tcc.ir.index import Var
from tcc.ir.tile.group import GroupStage
from tcc.schedule.nest import contraction_factors, depends, is_open, of_pairs, points

# The fewest rows for which packing a K-block saves time, with its store and loads counted. Measured
# with weights of four bits, 2048 x 2048. Packing takes 5 % more time with 32 rows, a tenth less
# with 40 and 64 rows, and a sixth less with 128 rows. With 48 rows, four full blocks of 12 rows, it
# saves nothing. Prices do not decide this, for two reasons. They assume that a weight is unpacked
# once for as many rows as a vector has lanes, whatever the rows of a block. And the number of rows
# of a symbolic loop is known only at run time.
FEW_ROWS = 40


def packs(stage: GroupStage, vector: Var, rows: tuple[Var, ...], copied: bool = False) -> bool:
    """Returns True if K-blocks of the vector operand are stored in scratch before the
    multiplication.

    The operand of a sum over a loop of symbolic size is never packed. Otherwise, an operand in
    memory is packed if `copied`. A computed operand is packed if there are at least `FEW_ROWS`
    rows, each of which uses the packed values again; `rows` are the loops of rows.
    """
    if any(is_open(v) for v in stage.reduce):
        return False
    operand = _operand(stage, vector)
    if isinstance(operand, Read):
        return copied and isinstance(operand.source, int) and vector in stage.iters
    return points(rows) >= FEW_ROWS and unpacking_operations(stage, vector) > 0


def unpacking_operations(stage: GroupStage, vector: Var) -> int:
    """Returns how many operations compute an element of the vector operand.

    For example, an element may be the product of a weight's level and its scale. An operand that is
    only read or converted has 0.  An operand that is computed in bf16 counts its conversion.
    """
    operand = _operand(stage, vector)
    if of_pairs(stage) and isinstance(operand, Cast):
        return _operations(operand.arg)
    return 0 if isinstance(operand, Read | Cast) else _operations(operand)


def _operand(stage: GroupStage, vector: Var) -> Scalar:
    """Returns the factor of the contraction that varies with the loop `vector`."""
    factors = contraction_factors(stage)
    assert factors is not None
    return next((f for f in (factors.a, factors.b) if vector in depends(stage, f)), factors.a)


def _operations(scalar: Scalar) -> int:
    """Returns the number of functions and casts in a scalar."""
    if isinstance(scalar, Read):
        return 0
    return isinstance(scalar, Apply | Cast) + sum(map(_operations, children(scalar)))
