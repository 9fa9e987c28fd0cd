"""Each rule gives a hand-computed result, and refuses invalid arguments with a reason."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from tcc.errors import UserError
from tcc.ir.expr.scalar import argument, literal
from tcc.ir.index import evaluate, symbol
from tcc.ir.region import Factor, Region, RegionStage, product
from tcc.ir.region.affine import Affine, Digit, Size, units
from tcc.ir.region.check import equal_at
from tcc.ir.region.edit import spliced
from tcc.ir.types import BF16, F32, tensor
from tcc.passes.derive.derivation import parse_step, replay
from tcc.passes.derive.rules import RULES
from tcc.passes.derive.rules.rule import Refused, relaid, with_new_loops

from tests.ir.region.regions import affine, convolution, matmul, operands, values
from tests.passes.derive.derivations import CASES, conv
from tests.passes.derive.rules.moves import MOVES


def after(region: Region, *chain: str) -> Region:
    new = replay(region, chain)
    arrays = operands(region)
    assert all(map(np.array_equal, values(region, arrays), values(new, arrays)))
    return new


def copied(*sizes: int, fill: Any = None, offset: int = 0, extent: int = 0) -> Region:
    """Returns y[...] = A[..., last + offset] as two stages, where the second only copies."""
    forms = list(units(len(sizes)))
    forms[-1] = forms[-1]._replace(offset=offset)
    outside = None if fill is None else literal(fill, F32)
    first = Factor(0, 0, tuple(forms), F32, outside)
    second = Factor(~0, 0, units(len(sizes)), F32)
    body = (argument(0, F32),)
    stages = (
        RegionStage(sizes, (), None, (first,), body),
        RegionStage(sizes, (), None, (second,), body),
    )
    params = (tensor(F32, *sizes[:-1], extent or sizes[-1]),)
    return Region(params, stages, ((1, 0),))


def test_sum_loops_split_and_merge() -> None:
    region = matmul(4, 6, 12)
    halves = after(region, "split stage=0 loop=2 inner=3 shift=0")
    assert halves.stages[0].sums == (4, 3)
    assert halves.stages[0].factors[0].forms[1] == affine(0, 0, 3, 1)
    assert after(halves, "merge stage=0 loop=2 other=3") == region
    turned = after(halves, "merge stage=0 loop=3 other=2")
    assert turned.stages[0].factors[0].forms[1] != region.stages[0].factors[0].forms[1]
    assert after(convolution(), "merge stage=0 loop=2 other=3").stages[0].sums == (9,)


def test_result_loops_split_unevenly_with_a_shift() -> None:
    """Seven rows with shift 2 are three groups of three: no reader uses rows 0 and 8."""
    region = after(matmul(7, 2, 3), "split stage=0 loop=0 inner=3 shift=2")
    inner, outer = region.stages
    assert inner.iters == (3, 3, 2)
    assert inner.factors[0].forms[0] == affine(3, 1, 0, 0, plus=-2)
    assert inner.factors[0].fill == literal(0, F32)
    row = affine(1, 0, plus=2)
    assert outer.factors[0].forms[0].digits == (Digit(1, row, 3, 0),)
    assert outer.factors[0].forms[1].digits == (Digit(1, row, 1, 3),)


def test_readers_follow_other_loops_and_no_copy_stays() -> None:
    for step in ("split stage=0 loop=1 inner=2 shift=0", "reverse stage=0 loop=1",
                 "merge stage=0 loop=0 other=1", "skew stage=0 loop=0 by=1 step=2"):  # fmt: skip
        assert len(after(copied(3, 6), step).stages) == 2
        assert len(after(matmul(3, 6, 2), step).stages) == 2


def test_a_reader_of_points_outside_keeps_a_copy() -> None:
    """Row 7 of a stage with 7 rows is the reader's fill, but row 7 of 8 rows in pairs would be an
    arbitrary value."""
    region = copied(7, fill=0.0)
    reader = region.stages[1]
    moved = Affine((1,), 1)
    outside = reader.factors[0]._replace(forms=(moved,), fill=literal(5, F32))
    region = spliced(region, 1, (reader._replace(factors=(outside,)),))
    assert len(after(region, "split stage=0 loop=0 inner=2 shift=0").stages) == 3
    tight = copied(7, fill=5.0, offset=-2, extent=3)
    reader = tight.stages[1]._replace(factors=(outside,))
    assert len(after(spliced(tight, 1, (reader,)),
                     "tighten stage=0 loop=0 low=2 high=5").stages) == 2  # fmt: skip


def test_a_reader_outside_of_rows_that_a_stage_has_more_keeps_a_copy() -> None:
    """Row 7 of seven rows is the fill 5, but row 7 of the nine rows that replace them would be a
    real row."""
    region = copied(7)
    first, reader = region.stages
    outside = reader.factors[0]._replace(forms=(Affine((1,), 1),), fill=literal(5, F32))
    region = spliced(region, 1, (reader._replace(factors=(outside,)),))
    wide = with_new_loops(region, first, (9,), 1, [Affine((1,), -1)])
    new = relaid(region, 0, wide, (Affine((1,), 1),))
    arrays = operands(region)
    assert all(map(np.array_equal, values(region, arrays), values(new, arrays)))
    assert len(new.stages) == 3


def test_sums_are_nested_and_skewed_and_tightened_exactly() -> None:
    region = after(convolution(), "nest stage=0 loops=2")
    assert [s.loops for s in region.stages] == [(6, 6, 3, 3), (6, 6, 3)]
    region = after(region, "skew stage=0 loop=0 by=2 step=1")
    assert region.stages[0].iters == (8, 6, 3)
    region = after(region, "tighten stage=0 loop=0 low=1 high=7")
    assert region.stages[0].iters == (6, 6, 3)
    assert region.stages[1].factors[0].forms[0] == affine(1, 0, 1, plus=-1)
    assert region.stages[1].factors[0].fill == literal(0, F32)
    back = after(convolution(), "nest stage=0 loops=2", "inline stage=1 factor=0")
    assert equal_at(back, convolution())


def test_an_extremum_nests_and_tightens_with_its_own_fill() -> None:
    image = affine(1, 1, plus=-1)
    factor = Factor(0, 0, (image,), F32, literal(float("-inf"), F32))
    stage = RegionStage((5,), (4,), "max", (factor,), (argument(0, F32),))
    region = Region((tensor(F32, 5),), (stage,), ((0, 0),))
    parts = after(region, "split stage=0 loop=1 inner=2 shift=0", "nest stage=0 loops=1",
                  "skew stage=0 loop=0 by=1 step=2")  # fmt: skip
    assert parts.stages[0].iters == (7, 2)
    assert parts.stages[0].sums == (2,)
    wide = region._replace(stages=(stage._replace(sums=(8,)),))
    assert after(wide, "tighten stage=0 loop=1 low=0 high=6").stages[0].sums == (6,)
    of_zero = factor._replace(fill=literal(0, F32))
    zeros = spliced(wide, 0, (wide.stages[0]._replace(factors=(of_zero,)),))
    with pytest.raises(Refused, match="may have any value"):
        RULES["tighten"].apply(zeros, 0, 1, 0, 6)


def test_windows_are_relaxed_where_the_kernel_ends() -> None:
    region = after(convolution(5, 5), "relax stage=0 loop=2 extent=6")
    image, kernel = region.stages[0].factors
    assert region.stages[0].sums == (6, 5)
    assert kernel.fill == literal(0, F32)
    assert image.fill == literal(0, F32)


def test_operands_are_regrouped_by_steps() -> None:
    """Rows 2*h + 2*p + q - 1 become [h + p, q]: the operand of a convolution with stride 2, by
    residues."""
    region = conv(1, 2, (6, 6), 1, (4, 3), (1, 1), stride=2)
    region = after(region, "split stage=0 loop=5 inner=2 shift=0", "regroup stage=0 factor=0")
    copy, stage = region.stages
    assert copy.iters[2:4] == (4, 2)
    assert set(stage.factors[0].forms[2].steps) == {0, 1}
    diagonal = Factor(0, 0, (affine(2, 0), affine(2, 0)), F32)
    other = Factor(1, 0, (affine(0, 1),), F32)
    stage = RegionStage((3,), (2,), "sum", (diagonal, other), product((F32, F32), F32))
    square = Region((tensor(F32, 5, 5), tensor(F32, 2)), (stage,), ((0, 0),))
    assert after(square, "regroup stage=0 factor=0").stages[0].iters == (3,)


REFUSED = {
    "split stage=0 loop=2 inner=2 shift=0": "does not divide",
    "split stage=0 loop=2 inner=3 shift=1": "does not divide",
    "split stage=0 loop=0 inner=9 shift=0": "has no digit",
    "split stage=0 loop=1 inner=1 shift=0": "has no digit",
    "split stage=0 loop=7 inner=2 shift=0": "no extent",
    "split stage=3 loop=0 inner=2 shift=0": "does not exist",
    "merge stage=0 loop=1 other=2": "not two of the result or two",
    "merge stage=0 loop=1 other=1": "not two of the result or two",
    "skew stage=0 loop=0 by=2 step=1": "not two of the result",
    "skew stage=0 loop=0 by=1 step=0": "step is 0",
    "nest stage=0 loops=2,3": "an ordered proper subset",
    "nest stage=0 loops=1": "an ordered proper subset",
    "solve stage=0 factor=0 loop=2": "not decided",
    "tighten stage=0 loop=0 low=0 high=5": "may have any value",
    "tighten stage=0 loop=2 low=1 high=3": "may have any value",
    "relax stage=0 loop=0 extent=9": "no sum loop",
    "relax stage=0 loop=2 extent=2": "no sum loop",
    "regroup stage=0 factor=5": "no factor 5",
    "regroup stage=0 factor=1": "in its own order",
    "inline stage=0 factor=0": "reads no stage",
}


@pytest.mark.parametrize("text", REFUSED)
def test_steps_whose_conditions_fail_are_refused(text: str) -> None:
    step = parse_step(text)
    with pytest.raises(Refused, match=REFUSED[text]):
        RULES[step.rule].apply(convolution(), step.stage, *step.arguments)


def test_digits_of_symbolic_sizes_are_refused() -> None:
    region = matmul(symbol("n", lo=1), 6, symbol("k", lo=1))
    for rule, arguments in (("merge", (1, 0)), ("skew", (1, 0, 1)), ("relax", (2, 9))):
        with pytest.raises(Refused, match="no extent that is a number"):
            RULES[rule].apply(region, 0, *arguments)
    with pytest.raises(Refused, match="2 does not divide loop 2 of a sum of k points"):
        RULES["split"].apply(region, 0, 2, 2)
    assert equal_at(region, RULES["split"].apply(region, 0, 1, 4, 1))


def test_sums_in_short_floats_are_nested_in_none() -> None:
    (stage,) = convolution().stages
    short = stage._replace(body=product((F32, F32), BF16))
    region = spliced(convolution(), 0, (short,))
    with pytest.raises(Refused, match="rounded once more"):
        RULES["nest"].apply(region, 0, 2)


@pytest.mark.parametrize("name", RULES)
def test_numbers_beyond_a_region_are_refused(name: str) -> None:
    """Chains come from files: a number without a stage, loop or factor raises no error but
    Refused."""
    rule = RULES[name]
    for case in CASES.values():
        region = case.small()
        for number in range(len(region.stages)):
            for arguments in itertools.islice(MOVES[name](region, number), 8):
                for place, far in itertools.product(range(len(arguments)), (-40, -1, 9, 40)):
                    damaged = (*arguments[:place], far, *arguments[place + 1 :])
                    with suppress(Refused):
                        rule.apply(region, number, *damaged)


# ---- symbolic sizes -----------------------------------------------------------------------------


def fixed(region: Region, sizes: dict[str, int]) -> Region:
    """Returns the region with the given sizes for its symbols."""

    def size(old: Size) -> int:
        return old if isinstance(old, int) else int(evaluate(old, sizes))

    def form(old: Affine) -> Affine:
        digits = (d._replace(step=size(d.step), of=form(d.of)) for d in old.digits)
        return Affine(tuple(map(size, old.steps)), size(old.offset), tuple(digits))

    def stage(old: RegionStage) -> RegionStage:
        factors = (f._replace(forms=tuple(map(form, f.forms))) for f in old.factors)
        loops = (tuple(map(size, s)) for s in (old.iters, old.sums))
        return RegionStage(*loops, old.monoid, tuple(factors), old.body)

    params = (p and tensor(p.dtype, *map(size, p.shape)) for p in region.params)
    return Region(tuple(params), tuple(map(stage, region.stages)), region.outputs)


H, W = symbol("h", lo=1), symbol("w", lo=1)
EVEN = symbol("e", lo=2, divisor=4)


@pytest.mark.parametrize(
    ("region", "chain"),
    [
        (convolution(H), ["split stage=0 loop=0 inner=2 shift=0"]),
        (convolution(H), ["split stage=0 loop=1 inner=3 shift=2"]),
        (convolution(H), ["reverse stage=0 loop=1"]),
        (convolution(H), ["nest stage=0 loops=2", "skew stage=0 loop=0 by=2 step=1"]),
        (convolution(H), ["regroup stage=0 factor=0"]),
        (convolution(H), ["split stage=0 loop=0 inner=2 shift=0", "regroup stage=0 factor=0"]),
        (matmul(H, W, EVEN), ["split stage=0 loop=2 inner=4 shift=0"]),
        (matmul(H, W, EVEN), ["split stage=0 loop=2 inner=2 shift=0",
                              "merge stage=0 loop=2 other=3"]),
        (matmul(H, 6, W * 3), ["merge stage=0 loop=0 other=1",
                               "split stage=0 loop=1 inner=3 shift=0"]),
    ],
)  # fmt: skip
def test_loops_of_symbolic_sizes_change_as_those_of_numbers(
    region: Region, chain: list[str]
) -> None:
    new = replay(region, chain)
    assert equal_at(region, new)
    for h, w, e in itertools.product((1, 2, 3, 7), (1, 4), (4, 8)):
        sizes = {"h": h, "w": w, "e": e}
        own = fixed(region, sizes)
        arrays = operands(own)
        assert all(map(np.array_equal, values(own, arrays), values(fixed(new, sizes), arrays)))


@pytest.mark.parametrize(
    "step",
    [
        "split stage=0 loop=2 inner=8 shift=0",  # the size is a multiple of 4 only
        "split stage=0 loop=2 inner=3 shift=0",
        "merge stage=0 loop=0 other=1",  # the digits of a symbolic size
        "tighten stage=0 loop=0 low=0 high=1",
    ],
)
def test_steps_that_symbolic_sizes_do_not_allow_are_refused(step: str) -> None:
    with pytest.raises(UserError, match="step 1"):
        replay(matmul(H, W, EVEN), [step])
