"""Classifies how the stages of an expression read each other.

    y[4*u + k] = f(k; m[0, u], ..., m[5, u])       each point u reads six elements, none twice

In this example, the stage y combines the elements of the stage m once (`combines_once`).  The value
of the loop k selects the formula f(k; ...).  A loop of this kind is unrolled first, so that each of
its values has a formula of its own.
"""

from tcc.ir.expr import Expr, Stage, known_extent, nest_size, reads
from tcc.ir.expr.scalar import Read, walk
from tcc.ir.index import as_int, free_vars
from tcc.passes.fuse.compose import is_contraction
from tcc.passes.fuse.unify_iterators import digits_of, linked_stages, radix_size, stage_reads
from tcc.zipped import zip_equal


def read_plainly(expr: Expr) -> bool:
    """Returns True if stages read earlier stages element by element, and not through windows.

    Windows overlap, so a tile would compute elements of neighbouring tiles again.
    """
    return all(
        as_int(index) is not None or digits_of(index, radix_size(formula)) is not None
        for source, at in stage_reads(linked_stages(expr))
        for index, formula in zip_equal(at, source.logical)
    )


def combines_once(expr: Expr) -> bool:
    """Returns True if each point of the second of two stages combines several elements of the
    first.

    Each element must be read exactly once.
    """
    stages = linked_stages(expr)
    if len(stages) != 2:
        return False
    first, last = stages
    read_places = {at for _, at in stage_reads(stages)}
    produced, points = (nest_size(s.stage.iters) for s in (first, last))
    return len(read_places) > 1 and points * len(read_places) is produced


def chooses_matrices(expr: Expr) -> bool:
    """Returns True if contractions read operands at data-dependent indices, and each index selects
    a whole matrix, such as the weights of an expert.

    If an index selects a row, it is better to copy the rows next to each other first.
    """
    indirect_reads = [
        (stage, node)
        for stage in expr.stages
        if is_contraction(stage)
        for node in reads(stage)
        if node.indirect
    ]
    return bool(indirect_reads) and all(_is_matrix(stage, node) for stage, node in indirect_reads)


def _is_matrix(stage: Stage, node: Read) -> bool:
    positions = walk(*(scalar for _, scalar in node.indirect))
    at = free_vars(*(i for inner in positions if isinstance(inner, Read) for i in inner.indices))
    inside = set(free_vars(*node.indices)) - {v for v, _ in node.indirect}
    matrix_loops = (inside & {*stage.reduce}, inside & {*stage.iters})
    return inside.isdisjoint(at) and all(
        any(known_extent(v) != 1 for v in loops if v.extent is not None) for loops in matrix_loops
    )
