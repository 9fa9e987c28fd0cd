"""Compares regions at small sizes that represent all sizes.

    y[i, e] = sum(c: 512) p[i, c // 64, c % 64] * w[c, e]     sizes 8, 64, 512 become 2, 3, 2 * 3

A size is free if every index with a loop c of that size is just `c`, and never `c // 64` or `2*c`.
Then one formula describes the region for every value of the size.  So two regions that agree at
small values of the free sizes agree at all values.

Three changes make more sizes free.  Stages without sums are inlined into their readers.  A sum loop
is split into the digits that accesses read: above, c into a loop for c // 64 and a loop for c % 64.
An axis of a parameter is split too, if all accesses of both regions compute their index along the
axis from the same digits.

Different sizes stay different, and a size of 1 stays 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise

from tcc.ir.index import as_index
from tcc.ir.region import Factor, Region, RegionStage, is_leaf, shape_of
from tcc.ir.region.affine import Affine, Size, Sizes, loops_of, plain
from tcc.ir.region.check import equal_at
from tcc.ir.region.edit import drop_unused, inlined, is_map, spliced
from tcc.ir.types import TensorType
from tcc.ops.shapes import replaced
from tcc.passes.derive.algebra.fold import is_axis
from tcc.passes.derive.algebra.terms import Term, accesses, by_digits
from tcc.zipped import zip_equal

# A region is evaluated at its own sizes if its sums have at most this many terms together.
_MOST_TERMS = 1 << 22


def agree(a: Region, b: Region) -> bool:
    """Returns True if two regions compute the same values.

    The regions are evaluated at small sizes if small sizes represent all sizes.  Otherwise the sums
    of one stage keep their sizes, for a region that multiplies by the length of a sum; and last all
    sizes stay.  Raises `Unchecked` if the sums of the regions are too long for these checks.
    """
    fixed = ((), *(stage.sums for stage in a.stages if stage.sums))
    return any(
        equal_at(*_small(a, b, sizes), max_terms=_MOST_TERMS) for sizes in dict.fromkeys(fixed)
    ) or equal_at(a, b, points=2, max_terms=_MOST_TERMS)


def _small(a: Region, b: Region, fixed: Sizes) -> tuple[Region, Region]:
    """Returns both regions at small sizes; the sizes `fixed` stay."""
    free = _free(a), _free(b)
    for number, param in enumerate(a.params):
        for axis in reversed(range(0 if param is None else param.rank)):
            free = _split(*free, number, axis)
    sizes = _sizes(free, fixed)
    return _shrunk(free[0], sizes), _shrunk(free[1], sizes)


def _free(region: Region) -> Region:
    """Returns the region with more free sizes.

    Stages without sums are inlined into their readers, and every digit of a sum loop that an access
    reads becomes a loop.
    """
    for number in range(len(region.stages)):
        place = 0
        while place < len(region.stages[number].factors):
            source = region.stages[number].factors[place].source
            stage = None
            if source is not None and source < 0 and is_map(region.stages[~source]):
                stage = inlined(region, number, place)
            if stage is None:
                place += 1
            else:
                region = spliced(region, number, (stage,))
    stages = tuple(s if is_leaf(s) else _by_digits(s) for s in region.stages)
    return drop_unused(region._replace(stages=stages))


def _by_digits(stage: RegionStage) -> RegionStage:
    term = by_digits(Term((), stage.sums, stage.factors), stage.iters)
    return stage._replace(sums=term.sums, factors=term.factors)


# ---- axes ---------------------------------------------------------------------------------------


def _split(a: Region, b: Region, number: int, axis: int) -> tuple[Region, Region]:
    """Returns both regions with `axis` of parameter `number` split into an axis for each digit.

    For example, with all indices of the form 64*i + j along an axis of size 512, the axis becomes
    [8, 64].  Returns both regions unchanged if the indices differ in their digits.
    """
    param = a.params[number]
    size = None if param is None else plain(param.shape[axis])
    reads = accesses(a, number) + accesses(b, number)
    forms = [factor.forms[axis] for _, factor in reads if factor.forms]
    if not isinstance(size, int) or len(forms) < len(reads) or any(f.digits for f in forms):
        return a, b
    steps = {1, *(step for form in forms for step in form.steps if step != 0)}
    if len(steps) == 1 or not all(isinstance(s, int) and s > 0 for s in steps):
        return a, b
    radices = sorted((s for s in steps if isinstance(s, int)), reverse=True)
    ends = (size, *radices)
    if any(n % m for n, m in pairwise(ends)):
        return a, b
    axes = tuple(n // m for n, m in pairwise(ends))
    if not all(_has_digits(stage, f.forms[axis], radices, axes) for stage, f in reads):
        return a, b
    return _with_axes(a, number, axis, radices, axes), _with_axes(b, number, axis, radices, axes)


def _has_digits(
    stage: RegionStage, form: Affine, radices: Sequence[int], axes: Sequence[int]
) -> bool:
    """Returns True if each digit of `form` is 0 or a single loop that is no longer than its axis.

    `radices` are the weights of the digits, for example 64 and 1 for 64*i + j.  `axes` are the
    sizes of the axes into which the digits split the old axis.
    """
    axis_sizes: dict[Size, int] = dict(zip_equal(radices, axes))
    steps = [(step, size) for step, size in zip_equal(form.steps, stage.loops) if step != 0]
    fits = all(isinstance(size, int) and size <= axis_sizes[step] for step, size in steps)
    return fits and form.offset == 0 and len({step for step, _ in steps}) == len(steps)


def _with_axes(
    region: Region, number: int, axis: int, radices: Sequence[int], axes: Sequence[int]
) -> Region:
    param = region.params[number]
    assert param is not None
    shape = replaced(param.shape, axis, *map(as_index, axes))
    params = replaced(region.params, number, TensorType(param.dtype, shape))

    def with_digits(factor: Factor) -> Factor:
        if factor.source != number:
            return factor
        steps = factor.forms[axis].steps
        digits = (Affine(tuple(int(s == r) for s in steps)) for r in radices)
        return factor._replace(forms=replaced(factor.forms, axis, *digits))

    stages = tuple(s._replace(factors=tuple(map(with_digits, s.factors))) for s in region.stages)
    return Region(params, stages, region.outputs)


# ---- sizes --------------------------------------------------------------------------------------


def _sizes(regions: Sequence[Region], kept: Sizes) -> dict[int, int]:
    """Returns a smaller value for each free size above 1 that can get one and is not in `kept`.

    If a size is larger than another, its value is larger too.
    """
    all_sizes: set[Size] = set()
    fixed: set[Size] = {*kept}
    for region in regions:
        all_sizes.update(d for p in region.params if p is not None for d in map(plain, p.shape))
        for stage in region.stages:
            all_sizes.update(stage.loops)
            fixed.update(stage.loops if is_leaf(stage) else ())
            for factor in stage.factors:
                sizes = () if factor.source is None else shape_of(region, factor.source)
                for n, form in enumerate(factor.forms):
                    if form.offset != 0 or not is_axis(form):
                        fixed.update(stage.loops[k] for k in loops_of(form))
                        fixed.update(sizes[n : n + 1])
                fixed.update(sizes if not factor.forms else ())
    free = sorted(size for size in all_sizes - fixed if isinstance(size, int) and size > 1)
    small = (n for n in count(2) if n not in fixed)
    return {size: n for size, n in zip(free, small, strict=False) if n < size}


def _shrunk(region: Region, small: dict[int, int]) -> Region:
    def size(old: Size) -> Size:
        return small.get(old, old) if isinstance(old, int) else old

    def sizes(old: Sizes) -> Sizes:
        return tuple(map(size, old))

    params = tuple(
        p and TensorType(p.dtype, tuple(as_index(size(plain(d))) for d in p.shape))
        for p in region.params
    )
    stages = tuple(s._replace(iters=sizes(s.iters), sums=sizes(s.sums)) for s in region.stages)
    return Region(params, stages, region.outputs)
