"""Finds the obstacles that keep a sum of products from peak speed, and the steps that remove them.

A contraction runs near peak if every index of every operand is a loop, as in `A[i, k]`, or a sum of
loops, as in the window `A[h + r]`.  An index of another kind is an obstacle.  A step applies a rule
(`rules`) to a stage.  One or two steps remove an obstacle:

    an index with                    steps
    a quotient or remainder          split its loops by the divisor, and solve the condition
    a coefficient other than 1       split another loop of the index by it, or regroup the operand
    a result loop and a sum loop     nest the sum, or split its window into smaller windows
    two result loops                 skew one loop by the other
    loops of opposite signs          reverse the sum loop

Steps are offered in this order.  Two limits keep steps that commute from being tried in each order:
a nested sum is not split again, and steps of operands come last.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import gcd
from typing import TypeAlias

from tcc.ir.region import Region, RegionStage, is_leaf
from tcc.ir.region.affine import Affine, is_multiple
from tcc.ir.region.edit import readers
from tcc.passes.derive.derivation import DerivationStep, applied
from tcc.passes.derive.rules.bounds import tightenings
from tcc.passes.derive.rules.operands import is_copy
from tcc.passes.derive.rules.rule import Refused
from tcc.passes.derive.rules.substitute import skews
from tcc.passes.derive.rules.sums import nests, solutions
from tcc.zipped import zip_equal

Steps: TypeAlias = tuple[DerivationStep, ...]
_WINDOWS = (3, 2)  # sizes, in taps, of the windows into which a larger window is split


def apply_free_steps(region: Region, strict: bool) -> tuple[Region, Steps]:
    """Returns the region after all steps that cost nothing, and the steps in order.

    A free step solves a condition, tightens bounds, or reverses a window so that it runs in the
    direction of its results.  If `strict`, only steps that solve a condition are taken, because the
    other two kinds reorder sums.
    """
    steps: list[DerivationStep] = []
    while (result := _free_step(region, strict)) is not None:
        step, region = result
        steps.append(step)
    return region, tuple(steps)


def _free_step(region: Region, strict: bool) -> tuple[DerivationStep, Region] | None:
    for number, stage in enumerate(region.stages):
        if is_leaf(stage):
            continue
        steps = [DerivationStep("solve", number, a) for a in solutions(region, number)]
        if not strict:
            steps += [DerivationStep("tighten", number, a) for a in tightenings(region, number)]
            if _multiplies(stage):
                steps += [DerivationStep("reverse", number, (loop,)) for loop in _against(stage)]
        for step in steps:
            try:
                new = applied(region, step)
            except Refused:
                continue
            if len(new.stages) <= len(region.stages):
                return step, new
    return None


def _against(stage: RegionStage) -> list[int]:
    """Returns the sum loops to reverse, for example k in `A[h - k]`.

    A returned loop has a step opposite to the step of a result loop in some index, and in no index
    a step equal to that of a result loop.
    """
    first = len(stage.iters)
    signs: dict[int, set[bool]] = {}
    for steps in map(_steps, _forms(stage)):
        result_steps = [step for loop, step in steps if loop < first]
        for loop, step in steps:
            if loop >= first:
                matching = (other for other in result_steps if abs(other) == abs(step))
                signs.setdefault(loop, set()).update(other == step for other in matching)
    return [loop for loop, signs_of_loop in signs.items() if signs_of_loop == {False}]


def is_regular(region: Region) -> bool:
    """Returns True if every index of every contraction is a plain sum of loops.

    No index has digits, and each step is 0 or 1.
    """
    forms = (f for _, stage in _contractions(region) for f in _forms(stage))
    return all(not f.digits and set(f.steps) <= {0, 1} for f in forms)


def repairs(region: Region) -> Iterator[Steps]:
    """Yields tuples of steps; each tuple removes an obstacle of a contraction."""
    for number, stage in _contractions(region):
        if any(is_copy(region, f.source) for f in stage.factors):
            continue
        nested = any(_adds(region.stages[n]) for n in readers(region, number))
        if any(form.digits for form in _forms(stage)):
            yield from _of_digits(number, stage)
            continue
        if not nested:
            yield from _of_splits(number, stage)
            yield from _of_sums(region, number, stage)
        yield from _of_results(region, number, stage)
        yield from _of_operands(number, stage)


def _contractions(region: Region) -> Iterator[tuple[int, RegionStage]]:
    return ((n, s) for n, s in enumerate(region.stages) if not is_leaf(s) and _multiplies(s))


def _multiplies(stage: RegionStage) -> bool:
    """Returns True if a stage has a sum and reads at least two tensors."""
    return bool(stage.sums) and sum(f.source is not None for f in stage.factors) > 1


def _adds(stage: RegionStage) -> bool:
    return bool(stage.sums) and len(stage.factors) == 1


def _forms(stage: RegionStage) -> list[Affine]:
    """Returns the indices of a stage's accesses; loops with a single iteration get step 0."""
    forms = [form for factor in stage.factors for form in factor.forms]
    if 1 not in stage.loops:
        return forms
    return [
        form._replace(
            steps=tuple(
                step if size != 1 else 0 for step, size in zip_equal(form.steps, stage.loops)
            )
        )
        for form in forms
    ]


def _steps(form: Affine) -> list[tuple[int, int]]:
    """Returns the pairs (loop, step) of a form whose step is a number other than 0."""
    return [(k, s) for k, s in enumerate(form.steps) if isinstance(s, int) and s]


def _of_digits(number: int, stage: RegionStage) -> Iterator[Steps]:
    """Yields for each digit the splits of all its loops by its divisor, in two alternatives.

    A digit is a quotient or remainder within an index, such as (i + 1) // 4 or (i + 1) % 4.  The
    first alternative shifts result loops so that the digit's offset, here 1, vanishes.  The second
    alternative does not shift them, because a shift adds points to a loop.
    """
    digits = dict.fromkeys(digit for form in _forms(stage) for digit in form.digits)
    for digit, shifts in product(digits, (True, False)):
        by = digit.div if digit.div > 1 else digit.mod
        steps: Steps = ()
        for loop, step in reversed(_steps(digit.of)):
            if gcd(step, by) == 1 and isinstance(digit.of.offset, int):
                shift = pow(step, -1, by) * digit.of.offset % by
                shift = shift if shifts and loop < len(stage.iters) else 0
                steps += _split(number, stage, loop, by, shift)
        if steps:
            yield steps


def _of_splits(number: int, stage: RegionStage) -> Iterator[Steps]:
    """Yields splits of loops, each as the steps that it takes.

    In `A[4*i + j]`, whose loops have different steps, j is split by 4, the ratio of the steps.  In
    a window `A[h + r]`, whose loops have equal steps, the sum loop r is split into windows of 3 or
    2 taps.
    """
    first, splits = len(stage.iters), dict[Steps, None]()
    for steps in map(_steps, _forms(stage)):
        for loop, step in steps:
            size = stage.loops[loop]
            same_step = [k for k, s in steps if abs(s) == abs(step) and k != loop]
            inner = [abs(s // step) for _, s in steps if s % step == 0 and abs(s) != abs(step)]
            if same_step:
                larger = isinstance(size, int) and size > max(_WINDOWS)
                inner = [*_WINDOWS] if larger and loop >= first > min(same_step) else []
            splits.update((_split(number, stage, loop, by), None) for by in inner)
    return filter(None, splits)


def _split(number: int, stage: RegionStage, loop: int, inner: int, shift: int = 0) -> Steps:
    """Returns the steps that split a loop into an outer loop and a loop of `inner` iterations.

    A sum loop is first relaxed to a multiple of `inner`.  Returns no steps for a loop of at most
    `inner` iterations, and for a sum loop whose symbolic extent `inner` does not divide.
    """
    size, step = stage.loops[loop], DerivationStep("split", number, (loop, inner, shift))
    if isinstance(size, int) and size <= inner:
        return ()
    if loop < len(stage.iters) or is_multiple(size, inner):
        return (step,)
    if not isinstance(size, int):
        return ()
    return DerivationStep("relax", number, (loop, -(-size // inner) * inner)), step


def _of_sums(region: Region, number: int, stage: RegionStage) -> Iterator[Steps]:
    """Yields steps that compute a sum in two stages: first over some loops, then over the others.

    Each loop of the first sum shares an index with a result loop, as r in `A[h + r]`.
    """
    first = len(stage.iters)
    mixed = {
        k
        for steps in map(_steps, _forms(stage))
        if any(loop < first for loop, _ in steps)
        for k, _ in steps
    }
    for loops in nests(region, number):
        if mixed.issuperset(loops):
            yield (DerivationStep("nest", number, loops),)


def _of_results(region: Region, number: int, stage: RegionStage) -> Iterator[Steps]:
    """Yields a single tuple of skews, one for each pair of result loops that overlap in an index.

    In `A[h + r]`, h and r overlap: different pairs of values give the same index.  The skew of h by
    r replaces h + r by one loop, and so takes r out of all indices that contain h.
    """
    forms, steps = _forms(stage), list[DerivationStep]()
    skewed, skewed_by = set[int](), set[int]()
    for loop, by, step in skews(region, number):
        size = stage.loops[loop]
        overlaps = not isinstance(size, int) or abs(step) < size
        forms_of_loop = [form for form in forms if form.steps[loop] != 0]
        free = loop not in skewed_by and by not in skewed
        if overlaps and free and all(f.steps[by] == step * f.steps[loop] for f in forms_of_loop):
            skewed.add(loop)
            skewed_by.add(by)
            steps.append(DerivationStep("skew", number, (loop, by, step)))
    return iter([tuple(steps)] if steps else [])


def _of_operands(number: int, stage: RegionStage) -> Iterator[Steps]:
    """Yields a tuple of `regroup` steps, if there are any.

    There is a step for each operand with an index in which some loop has a step other than 1, for
    example 2*i + j.
    """
    steps: Steps = ()
    for place, factor in enumerate(stage.factors):
        if factor.source is not None and any(s != 1 for f in factor.forms for _, s in _steps(f)):
            steps += (DerivationStep("regroup", number + len(steps), (place,)),)
    if steps:
        yield steps
