"""Rules that change an operand: copy it in another order, or inline the stage that computes it."""

from __future__ import annotations

from tcc.ir.expr.scalar import argument
from tcc.ir.region import Factor, Region, RegionStage, is_leaf
from tcc.ir.region.affine import Affine, Size, Sizes, interval, plain, units
from tcc.ir.region.edit import drop_unused, inlined, spliced
from tcc.ops.shapes import replaced
from tcc.passes.derive.rules.rule import Refused, filled, stage_of


def regroup(region: Region, number: int, place: int) -> Region:
    """Copies an operand so that every index of factor number `place` becomes a sum of loops with
    step 1.

    `A[2*h + 2*p + q - 1 else 0]` becomes `B[h + p, q]`, with the copy `B[u, q] = A[2*u + q - 1 else
    0]`: the copy has an axis for the loops of step 2, and an axis for the loop of step 1.
    """
    stage = stage_of(region, number)
    if not 0 <= place < len(stage.factors):
        raise Refused(f"stage {number} has no factor {place}")
    factor = stage.factors[place]
    if factor.source is None or any(form.digits for form in factor.forms):
        raise Refused(f"factor {place} reads no tensor by sums of loops")
    # Has an element for each axis of the copy: the index at which the reader reads it, and its
    # extent.
    axes: dict[Affine, Size] = {}
    parts = [_axes(form, stage.loops, axes) for form in factor.forms]
    forms = []
    for groups, offset in parts:
        steps = (sum(step for step, form in groups if form == axis) for axis in axes)
        forms.append(Affine(tuple(steps), offset))
    source = factor._replace(forms=tuple(forms))
    body = (argument(0, factor.dtype),)
    copy = RegionStage(tuple(axes.values()), (), None, (), body)
    copy = copy._replace(factors=(filled(region, copy, source),))
    reader = Factor(~number, 0, tuple(axes), factor.dtype)
    is_plain = source.forms == units(len(axes)) and source.fill is None
    if is_plain or is_copy(region, source.source):
        raise Refused(f"factor {place} reads a copy already, or an operand in its own order")
    factors = replaced(stage.factors, place, reader)
    return spliced(region, number, (copy, stage._replace(factors=factors)))


def inline(region: Region, number: int, place: int) -> Region:
    """Replaces factor number `place` by the body of the stage that it reads.

    Sum loops of that stage become sum loops of the reader.
    """
    stage = stage_of(region, number)
    new = inlined(region, number, place) if 0 <= place < len(stage.factors) else None
    if new is None:
        raise Refused(f"factor {place} reads no stage that can be inlined")
    return drop_unused(spliced(region, number, (new,)))


def _axes(
    form: Affine, extents: Sizes, axes: dict[Affine, Size]
) -> tuple[list[tuple[int, Affine]], Size]:
    """Returns the index `form` as (groups, offset), so that it is `offset` plus the sum of
    step * sum over all groups (step, sum).

    `sum` is a sum of loops, shifted so that its smallest value is 0: 2*h + 2*p + q - 1 has the
    groups (2, h + p) and (1, q), and the offset -1.  Adds each `sum` to `axes`, with its extent.
    """
    offset, groups = form.offset, []
    for step in sorted({abs(s) for s in form.steps if isinstance(s, int) and s}, reverse=True):
        signs = tuple((s == step) - (s == -step) for s in form.steps)
        is_reversed = sum(s != 0 for s in signs) == 1 and min(signs) < 0
        signs = tuple(map(abs, signs)) if is_reversed else signs
        low, high = interval(Affine(signs), extents)
        if not isinstance(low, int) or high is None:
            raise Refused("a sum of an operand's loops has no numeric lower bound")
        signed_step = -step if is_reversed else step
        offset += signed_step * low
        axes[Affine(signs, -low)] = plain(high - low + 1)
        groups.append((signed_step, Affine(signs, -low)))
    if not all(isinstance(s, int) for s in form.steps):
        raise Refused("a step of an operand is no number")
    return groups, offset


def is_copy(region: Region, source: int | None) -> bool:
    """Returns True if a source is a stage that only moves data."""
    if source is None or source >= 0:
        return False
    stage = region.stages[~source]
    return not is_leaf(stage) and stage.monoid is None and len(stage.factors) == 1
