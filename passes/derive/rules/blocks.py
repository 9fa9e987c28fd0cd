"""`strassen`, `winograd`: a product of matrices by fewer products of their blocks.

    y[i, j] = sum(k) a[i, k] * b[k, j]      a: 2*m x 2*k, b: 2*k x 2*n

    u[p, i, k] = sums of the four blocks of a, by row p of an algorithm's factor A, 7 of m x k
    v[p, k, j] = sums of the four blocks of b, by row p of B
    z[p, i, j] = sum(k) u[p, i, k] * v[p, k, j]
    y[i, j]    = a sum over p of z[p, i % m, j % n], by row (i // m, j // n) of C

Levels nest: with two, p counts 49 products of quarters.  The longest loop of the rows is cut, that
of the columns and that of the sum; all others stay.  A block that reaches beyond its matrix has
zeros there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import product

from tcc.ir.expr.scalar import Scalar, argument
from tcc.ir.types import F32, I64
from tcc.ops.formula import chosen
from tcc.passes.derive.affine import Size, combine, constant, digit, loops_of, unit
from tcc.passes.derive.algebra.cost import count
from tcc.passes.derive.bilinear.algorithms import STRASSEN, WINOGRAD, Bilinear, Matrix
from tcc.passes.derive.bilinear.shared_sums import along, grid_of, shared_sums
from tcc.passes.derive.edit import depends, moved, spliced
from tcc.passes.derive.record import Factor, Region, Stage, is_contraction, shape_of
from tcc.passes.derive.rules.rule import Arguments, Refused, Rule, filled, stage_of

BLOCK_ALGORITHMS = {"strassen": STRASSEN, "winograd": WINOGRAD}
# Levels of a step: all sums of a block are one kernel's, which has room for so many.
MOST_LEVELS = 2


def cut_loops(region: Region, number: int) -> tuple[int, int, int]:
    """The loops of a stage that blocks cut: of the first factor's rows, of the second's columns,
    and of the sum.

    Raises Refused for a stage that is no f32 product of two matrices, of which it reads every
    element for one row, or one column.
    """
    stage = stage_of(region, number)
    if not is_contraction(stage) or len(stage.factors) != 2:
        raise Refused(f"stage {number} is no sum of products of two factors")
    if {stage.dtypes[0], *(f.dtype for f in stage.factors)} != {F32}:
        raise Refused(f"stage {number} is not of f32 alone")
    if not all(_reads_once(region, stage, f) for f in stage.factors):
        raise Refused(f"stage {number} reads an element in several places of a matrix")
    first, (a, b) = len(stage.iters), map(depends, stage.factors)
    results, sums = {*range(first)}, {*range(first, len(stage.loops))}
    rows, columns, steps = (_longest(stage, g) for g in ((a - b) & results, b - a, a & b & sums))
    if columns >= first:
        raise Refused(f"stage {number} sums over a factor alone")
    return rows, columns, steps


def _reads_once(region: Region, stage: Stage, factor: Factor) -> bool:
    """Whether a factor has no more points than its source has elements."""
    if factor.source is None:
        return False
    return count(stage.loops[k] for k in depends(factor)) <= count(shape_of(region, factor.source))


def _longest(stage: Stage, loops: AbstractSet[int]) -> int:
    """Of some loops the one of the largest extent that is a number, the first of several."""
    known = [(n, -k) for k in loops if isinstance(n := stage.loops[k], int)]
    if not known:
        raise Refused("no loop of the rows, of the columns or of the sum has a known extent")
    return -max(known)[1]


def by_blocks(region: Region, number: int, levels: int, *, algorithm: Bilinear) -> Region:
    """The region with a product of matrices computed by products of blocks, of `levels` levels."""
    cut, stage = cut_loops(region, number), region.stages[number]
    parts, blocks = 2**levels, list(stage.loops)
    for loop in cut:
        extent = blocks[loop]
        assert isinstance(extent, int)
        if not 1 <= levels <= MOST_LEVELS or extent < parts:
            raise Refused(f"there are no {levels} levels of blocks of {extent} points")
        blocks[loop] = -(-extent // parts)
        whole = extent % parts == 0 or loop < len(stage.iters)
        if not whole and not all(_ends(region, stage, f, loop) for f in stage.factors):
            raise Refused(f"beyond the {extent} points of the sum a matrix has no zeros")
    row, column, step = cut
    a, b = stage.factors
    first, wide = len(stage.iters), len(blocks) + 1
    sums = [
        _sums_of_blocks(region, stage, a, (row, step), blocks, algorithm.inputs, levels),
        _sums_of_blocks(region, stage, b, (step, column), blocks, algorithm.weights, levels),
    ]
    factors = tuple(
        Factor(~(number + n), 0, tuple(unit(k, wide) for k in (0, *(m + 1 for m in own))), F32)
        for n, own in enumerate(map(_kept, (a, b)))
    )
    iters = (algorithm.products**levels, *blocks[:first])
    products = stage._replace(iters=iters, sums=tuple(blocks[first:]), factors=factors)
    result = _results(stage, ~(number + 2), (row, column), blocks, algorithm.results, levels)
    return spliced(region, number, (*sums, products, result))


def _ends(region: Region, stage: Stage, factor: Factor, loop: int) -> bool:
    """Whether a factor has its fill, zero, beyond the last point of a loop."""
    assert factor.source is not None
    pairs = zip(factor.forms, shape_of(region, factor.source), strict=True)
    own = [(form, size) for form, size in pairs if loop in loops_of(form)]
    zero = factor.fill is None or factor.fill.value == 0
    return zero and own == [(unit(loop, len(stage.loops)), stage.loops[loop])]


def _kept(factor: Factor) -> list[int]:
    """The loops of a factor, and of the sums of its blocks."""
    return sorted(depends(factor))


def _sums_of_blocks(
    region: Region, stage: Stage, factor: Factor, cut: tuple[int, int], blocks: Sequence[Size],
    matrix: Matrix, levels: int,
) -> Stage:  # fmt: skip
    """The sums of a factor's blocks, with a result loop for the rows of `matrix` before its own."""
    own = _kept(factor)
    iters = (len(matrix) ** levels, *(blocks[k] for k in own))
    places = {k: unit(n, len(iters)) for n, k in enumerate(own, 1)}
    maps = [places.get(k, constant(0, len(iters))) for k in range(len(stage.loops))]
    grid, factors = grid_of([4] * levels), list[Factor]()
    for at in product(range(4), repeat=levels):
        grid[at] = argument(len(factors), F32)
        shifted = list(maps)
        for loop, place in zip(cut, _place(at), strict=True):
            shifted[loop] = combine([(1, maps[loop])], iters, blocks[loop] * place)
        factors.append(moved(factor, shifted, iters))
    which = Factor(None, 0, (unit(0, len(iters)),), I64)
    values = along(grid, [shared_sums(matrix)] * levels)
    body = (chosen(argument(len(factors), I64), list(values.flat)),)
    made = Stage(iters, (), None, (*factors, which), body)
    return made._replace(factors=tuple(filled(region, made, f) for f in made.factors))


def _results(
    stage: Stage, source: int, cut: tuple[int, int], blocks: Sequence[Size], matrix: Matrix,
    levels: int,
) -> Stage:  # fmt: skip
    """The results, each a sum of the products at its place in a block."""
    loops = [unit(k, len(stage.iters)) for k in range(len(stage.iters))]
    which = []
    for loop in cut:
        block, form = blocks[loop], loops[loop]
        assert isinstance(block, int)
        which.append(Factor(None, 0, (digit(form, block, 0, stage.iters),), I64))
        loops[loop] = digit(form, 1, block, stage.iters)
    points = range(len(matrix[0]) ** levels)
    grid = grid_of([len(matrix[0])] * levels)
    grid.flat[:] = [argument(p, F32) for p in points]
    values = along(grid, [shared_sums(matrix)] * levels)
    rows: list[list[Scalar]] = [[] for _ in range(2**levels)]
    for at in sorted(product(range(4), repeat=levels), key=_place):
        rows[_place(at)[0]].append(values[at])
    row, column = (argument(len(points) + n, I64) for n in range(2))
    body = (chosen(row, [chosen(column, values) for values in rows]),)
    factors = (Factor(source, 0, (constant(p, len(loops)), *loops), F32) for p in points)
    return Stage(stage.iters, (), None, (*factors, *which), body)


def _place(at: tuple[int, ...]) -> tuple[int, int]:
    """Row and column of a block of blocks."""
    row = column = 0
    for number in at:
        row, column = 2 * row + number // 2, 2 * column + number % 2
    return row, column


def levels_of(region: Region, number: int) -> Iterator[Arguments]:
    """One level, where a stage is a product of matrices."""
    try:
        cut_loops(region, number)
    except Refused:
        return
    yield (1,)


BLOCK_RULES = {
    name: Rule(partial(by_blocks, algorithm=algorithm), levels_of, ("levels",), False)
    for name, algorithm in BLOCK_ALGORITHMS.items()
}
