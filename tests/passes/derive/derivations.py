"""Regions from which searches start, the goals that they must find, and random regions with
chains."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from tcc.ir.expr.scalar import literal
from tcc.ir.region import Factor, Region, RegionStage, is_leaf, product
from tcc.ir.region.affine import Affine, digit, interval, loops_of
from tcc.ir.region.convert import from_expr
from tcc.ir.region.edit import readers
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.ops.algebra.window import ConvAttrs, ConvTransposeAttrs
from tcc.passes.derive.algebra.cost import estimate
from tcc.passes.derive.derivation import DerivationStep, applied
from tcc.passes.derive.rules.rule import Refused
from tcc.passes.derive.search import DerivationState
from tcc.schedule.limits import TYPICAL_RATES

from tests.ir.region.regions import affine
from tests.passes.derive.rules.moves import offered_steps


def price(region: Region) -> float:
    """Returns an estimate in which no parameter is constant."""
    return estimate(region, (False,) * len(region.params), TYPICAL_RATES)


# ---- goals --------------------------------------------------------------------------------------


class Contraction(NamedTuple):
    """A sum of products, described by sorted extents; extents of 1 are left out.

    `windows`: sum loops that share an index with a result loop. `bands`: result loops that do.
    `batch`: result loops that both operands use alone in an index. `rows`, `columns`: the number of
    points of the loops of one operand alone. `added`: the sums to which its result is added.
    """

    windows: tuple[int, ...]
    bands: tuple[int, ...]
    batch: tuple[int, ...]
    rows: int
    columns: int
    added: tuple[int, ...]


def contractions(region: Region) -> list[Contraction]:
    """Returns the contractions of two operands whose indices are sums of loops with different
    steps."""
    found = []
    for number, stage in enumerate(region.stages):
        forms = [form for factor in stage.factors for form in factor.forms]
        dense = all(set(form.steps) <= {0, 1} and not form.digits for form in forms)
        if not is_leaf(stage) and stage.sums and len(stage.factors) == 2 and dense:
            after = [region.stages[n] for n in readers(region, number)]
            added = [s for reader in after if len(reader.factors) == 1 for s in reader.sums]
            found.append(_contraction(stage, tuple(sorted(s for s in map(_int, added) if s > 1))))
    return found


def _int(size: object) -> int:
    assert isinstance(size, int)
    return size


def _contraction(stage: RegionStage, added: tuple[int, ...]) -> Contraction:
    first, extents = len(stage.iters), [_int(e) for e in stage.loops]
    windows, bands = set[int](), set[int]()
    alone: list[set[int]] = []
    depends: list[set[int]] = []
    for factor in stage.factors:
        alone.append(set())
        depends.append(set())
        for form in factor.forms:
            loops = {k for k in loops_of(form) if extents[k] > 1}
            depends[-1] |= loops
            results = {k for k in loops if k < first}
            if len(loops) == 1:
                alone[-1] |= loops
            elif len(results) > 1:
                bands |= results
            elif results:
                windows |= loops - results
    shared = {k for k in alone[0] & alone[1] if k < first}

    def own(side: int) -> int:
        return prod(extents[k] for k in depends[side] - depends[1 - side] if k < first)

    rows = (tuple(sorted(extents[k] for k in group)) for group in (windows, bands, shared))
    return Contraction(*rows, own(0), own(1), added)


# ---- cases --------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A region at full and at small size, and contractions that the search must reach within
    `states` states."""

    states: int
    full: Callable[[], Region]
    small: Callable[[], Region]
    goals: tuple[Contraction, ...]


def conv(
    batch: int, channels: int, image: tuple[int, int], features: int, taps: tuple[int, int],
    before: tuple[int, int], *, stride: int = 1, dilation: int = 1, group: int = 1,
    after: tuple[int, int] | None = None,
) -> Region:  # fmt: skip
    types = tensor(F32, batch, channels, *image), tensor(F32, features, channels // group, *taps)
    attrs = ConvAttrs((stride,) * 2, before, after or before, (dilation,) * 2, group)
    spec = OPS["conv"].expr
    assert spec is not None
    return from_expr(spec((*types, None), attrs))


def transposed(
    batch: int, channels: int, size: int, features: int, taps: int = 4, stride: int = 2
) -> Region:
    """Returns a transposed convolution with padding 1."""
    types = tensor(F32, batch, channels, size, size), tensor(F32, channels, features, taps, taps)
    attrs = ConvTransposeAttrs((stride, stride), (1, 1), (1, 1), (1, 1), (0, 0), 1)
    spec = OPS["conv_transpose"].expr
    assert spec is not None
    return from_expr(spec((*types, None), attrs))


def band(heads: int, rows: int, width: int, half: int, dilation: int, *, sums: bool) -> Region:
    """Returns `y[b, m, w] = sum(k) A[b, m, k] * B[b, m + d*(w - half), k]`, or, with `sums`, `y[b,
    m, n] = sum(w) A[b, m, w] * B[b, m + d*(w - half), n]`."""
    wide = 2 * half + 1
    b, m = affine(1, 0, 0, 0), affine(0, 1, 0, 0)
    w, k = affine(0, 0, 0, 1) if sums else affine(0, 0, 1, 0), affine(0, 0, 0, 1)
    steps = tuple(x + dilation * y for x, y in zip(m.steps, w.steps, strict=True))
    at = Affine(steps, -dilation * half)
    last = affine(0, 0, 1, 0) if sums else k
    factors = (
        Factor(0, 0, (b, m, w if sums else k), F32),
        Factor(1, 0, (b, at, last), F32, literal(0, F32)),
    )
    iters = (heads, rows, width) if sums else (heads, rows, wide)
    stage = RegionStage(iters, (wide if sums else width,), "sum", factors, product((F32, F32), F32))
    left = tensor(F32, heads, rows, wide if sums else width)
    return Region((left, tensor(F32, heads, rows, width)), (stage,), ((0, 0),))


_NONE: tuple[int, ...] = ()
CASES: Mapping[str, Case] = MappingProxyType(
    {
        "3x3": Case(
            10,
            lambda: conv(1, 512, (7, 7), 512, (3, 3), (1, 1)),
            lambda: conv(2, 2, (4, 5), 3, (3, 3), (1, 1), after=(0, 1)),
            (Contraction(_NONE, _NONE, _NONE, 49, 4608, (3, 3)),),
        ),
        "1x7": Case(
            10,
            lambda: conv(1, 2048, (7, 7), 128, (1, 7), (0, 3)),
            lambda: conv(2, 2, (3, 7), 2, (1, 7), (0, 3)),
            (Contraction(_NONE, _NONE, _NONE, 49, 896, (7,)),),
        ),
        "7x1": Case(
            10,
            lambda: conv(1, 2048, (7, 7), 128, (7, 1), (3, 0)),
            lambda: conv(1, 2, (6, 3), 2, (7, 1), (3, 0)),
            (Contraction(_NONE, _NONE, _NONE, 49, 896, (7,)),),
        ),
        "5x5": Case(
            250,
            lambda: conv(16, 32, (224, 224), 1, (5, 5), (2, 2)),
            lambda: conv(1, 2, (6, 5), 1, (5, 5), (2, 2)),
            (Contraction((3, 3), _NONE, _NONE, 16 * 226 * 226, 4, (2, 2)),),
        ),
        "6x6": Case(
            250,
            lambda: conv(1, 16, (224, 224), 64, (6, 6), (2, 2), after=(3, 3)),
            lambda: conv(1, 2, (6, 5), 2, (6, 6), (2, 2), after=(3, 3)),
            (Contraction((3, 3), _NONE, _NONE, 226 * 226, 256, (2, 2)),),
        ),
        "9x9": Case(
            250,
            lambda: conv(8, 16, (224, 224), 32, (9, 9), (4, 4)),
            lambda: conv(1, 1, (5, 7), 2, (9, 9), (4, 4)),
            (Contraction((3, 3), _NONE, _NONE, 8 * 226 * 226, 288, (3, 3)),),
        ),
        "transposed 4x4 s2": Case(
            110,
            lambda: transposed(16, 448, 2, 256),
            lambda: transposed(1, 2, 3, 2),
            (
                Contraction(_NONE, _NONE, _NONE, 64, 4096, (2, 2)),
                Contraction((2, 2), _NONE, _NONE, 16 * 3 * 3, 4 * 256, _NONE),
            ),
        ),
        "transposed 5x5 s3": Case(
            20,
            lambda: transposed(1, 64, 8, 32, 5, 3),
            lambda: transposed(1, 2, 3, 2, 5, 3),
            (Contraction((2, 2), _NONE, _NONE, 81, 9 * 32, _NONE),),
        ),
        "band d4": Case(
            10,
            lambda: band(8, 10000, 512, 32, 4, sums=False),
            lambda: band(2, 11, 3, 1, 2, sums=False),
            (Contraction(_NONE, (65, 2500), (4, 8), 1, 65, _NONE),),
        ),
        "band sums d4": Case(
            10,
            lambda: band(8, 10000, 512, 32, 4, sums=True),
            lambda: band(2, 11, 3, 1, 3, sums=True),
            (Contraction((65,), _NONE, (4, 8), 1, 512, _NONE),),
        ),
        "3x3 d2": Case(
            40,
            lambda: conv(1, 64, (32, 32), 64, (3, 3), (2, 2), dilation=2),
            lambda: conv(1, 2, (5, 6), 2, (3, 3), (2, 2), dilation=2),
            (Contraction((3, 3), _NONE, _NONE, 32 * 32, 64, _NONE),),
        ),
        "3x3 s2": Case(
            70,
            lambda: conv(1, 64, (56, 56), 128, (3, 3), (1, 1), stride=2),
            lambda: conv(1, 2, (5, 6), 2, (3, 3), (1, 1), stride=2),
            (Contraction((2, 2), _NONE, _NONE, 28 * 28, 128, _NONE),),
        ),
        "3x3 g4": Case(
            10,
            lambda: conv(1, 64, (56, 56), 64, (3, 3), (1, 1), group=4),
            lambda: conv(1, 4, (4, 3), 6, (3, 3), (1, 1), group=2),
            (Contraction((3, 3), _NONE, (4,), 56 * 56, 16, _NONE),),
        ),
    }
)  # fmt: skip


def reached(case: Case, candidates: tuple[DerivationState, ...]) -> list[DerivationState | None]:
    """Returns, for each goal of a case, the first candidate that reaches it, or None."""
    found = [contractions(state.region) for state in candidates]
    return [
        next((s for s, own in zip(candidates, found, strict=True) if goal in own), None)
        for goal in case.goals
    ]


# ---- random regions -----------------------------------------------------------------------------


def random_region(rng: random.Random) -> Region:
    """Returns a sum of products of two or three accesses with strides, digits and uneven
    padding."""
    iters = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 3)))
    sums = tuple(rng.randint(1, 5) for _ in range(rng.randint(1, 3)))
    loops = iters + sums
    factors, params = [], []
    for source in range(rng.randint(2, 3)):
        forms, shape, outside = [], [], False
        for _ in range(rng.randint(1, 3)):
            used = rng.sample(range(len(loops)), min(rng.randint(1, 2), len(loops)))
            steps = [rng.choice((1, 1, 1, 2, 3, -1)) if k in used else 0 for k in range(len(loops))]
            form = Affine(tuple(steps))
            if rng.random() < 0.25:
                form = digit(form, rng.choice((1, 2, 3)), rng.choice((0, 2, 3)), loops)
            low, high = (_int(end) for end in interval(form, loops))
            cut = [rng.choice((0, 0, 1, 2)) for _ in range(2)] if high - low > 3 else [0, 0]
            forms.append(form._replace(offset=_int(form.offset) - low - cut[0]))
            shape.append(high - low + 1 - sum(cut))
            outside = outside or any(cut)
        factors.append(Factor(source, 0, tuple(forms), F32, literal(0, F32) if outside else None))
        params.append(tensor(F32, *shape))
    body = product((F32,) * len(factors), F32)
    stage = RegionStage(iters, sums, "sum", tuple(factors), body)
    return Region(tuple(params), (stage,), ((0, 0),))


def random_chain(
    region: Region, rng: random.Random, most: int = 4
) -> tuple[Region, list[DerivationStep]]:
    """Returns the region after up to `most` random valid steps, and the steps."""
    chain: list[DerivationStep] = []
    for _ in range(most):
        offered = [*offered_steps(region)]
        rng.shuffle(offered)
        for step in offered:
            try:
                region = applied(region, step)
            except Refused:
                continue
            chain.append(step)
            break
    return region, chain
