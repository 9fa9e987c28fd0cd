"""A pair of regions at small sizes: what holds for the one holds for the other.

Where every index is a loop itself, a region computes the same formula at all sizes, and two regions
that agree at some agree at others.  Different sizes stay different, and a size of 1 stays 1.
"""

from __future__ import annotations

from tcc.ir.index import as_index
from tcc.ir.types import TensorType
from tcc.passes.derive.affine import Affine, Size, Sizes, plain
from tcc.passes.derive.check import equal_at
from tcc.passes.derive.record import Region, is_leaf


def agree(a: Region, b: Region) -> bool:
    """Whether two regions compute the same, at small sizes if these stand for all.

    Raises `Unchecked` for sums that are too long to be checked.
    """
    if all(map(_is_free, (a, b))):
        small = _sizes(a, b)
        if equal_at(_shrunk(a, small), _shrunk(b, small)):
            return True
    return equal_at(a, b, points=2)


def _is_free(region: Region) -> bool:
    """Whether the indices of a region are loops themselves, or 0."""
    return not any(map(is_leaf, region.stages)) and all(
        _is_loop(form)
        for stage in region.stages
        for factor in stage.factors
        for form in factor.forms
    )


def _is_loop(form: Affine) -> bool:
    steps = [step for step in form.steps if step != 0]
    return not form.digits and form.offset == 0 and steps in ([], [1])


def _sizes(*regions: Region) -> dict[int, int]:
    """A small size for every size over 1, in their order."""
    found: set[int] = set()
    for region in regions:
        sizes = [d for p in region.params if p is not None for d in map(plain, p.shape)]
        sizes += [size for stage in region.stages for size in stage.loops]
        found.update(size for size in sizes if isinstance(size, int) and size > 1)
    return {size: n for n, size in enumerate(sorted(found), 2)}


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
