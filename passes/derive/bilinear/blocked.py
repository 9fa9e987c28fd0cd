"""Products of matrices by products of blocks as candidates (`rules/blocks`): f32, one to three
levels, each of which saves an eighth of the products.

The sums of a constant factor's blocks are made ahead of the run, in f64.  The error policy is that
of convolutions (`conv_forms`): infinities and NaNs spread over the rows and columns of all blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from tcc.passes.derive.algebra.cost import constant_stages, count
from tcc.passes.derive.algebra.instance import shrunk
from tcc.passes.derive.bilinear.algorithms import Bilinear, Matrix
from tcc.passes.derive.bilinear.conv_forms import FormWork, is_allowed
from tcc.passes.derive.bilinear.shared_sums import shared_sums
from tcc.passes.derive.candidate import Found, dearer
from tcc.passes.derive.check import equal_at
from tcc.passes.derive.derivation import Step, applied
from tcc.passes.derive.edit import depends
from tcc.passes.derive.record import Region, Stage
from tcc.passes.derive.rewritten import Rewritten
from tcc.passes.derive.rules.blocks import BLOCK_ALGORITHMS, MOST_LEVELS, cut_loops
from tcc.passes.derive.rules.rule import Refused
from tcc.passes.derive.sites import Site, composed
from tcc.record import record
from tcc.schedule.limits import Rates

LEVELS = (1, 2, 3)
# Candidates of a site whose kernels are made to be priced.
_PRICED = 2
# The part of its price that a product by blocks has to save: timed against the product as it is, at
# 128 and 512 rows, the ratio of both was off from that of their prices by 0.12 in the root mean
# square.
_MARGIN = 0.12


@record
class Blocked(Rewritten):
    """A site with a product by blocks; `steps` make its region of the site's, with 2^`levels` parts
    of each cut loop, `amplified` is their amplification, `least` a lower bound of its seconds."""

    steps: tuple[Step, ...]
    levels: int
    amplified: float
    least: float

    @property
    def margin(self) -> float:
        return _MARGIN

    @property
    def amplification(self) -> float:
        return self.amplified

    def least_seconds(self, rates: Rates) -> float:
        return self.least

    def agrees(self, site: Site) -> bool:
        """Whether the region is what the steps make of the site's, which are exact at small sizes
        that blocks cut alike."""
        whole = composed(site.nodes)
        small = shrunk(whole, 2**self.levels)
        exact = equal_at(small, _after(small, self.steps), points=2)
        return exact and _after(whole, self.steps) == self.region


class _Product(NamedTuple):
    """A product of matrices: of which stage, the loops that are cut, and which factors are known
    ahead of the run."""

    number: int
    stage: Stage
    cut: tuple[int, int, int]
    known: tuple[bool, ...]


def blocked(site: Site, rates: Rates, levels: Iterable[int] = LEVELS) -> Found:
    """For each stage of a site that is a product of matrices, and each number of `levels`, the
    algorithm with the lowest estimate, if its bound is lower than the product's; of these the
    `_PRICED` best."""
    region, numbers = composed(site.nodes), tuple(levels)
    found: list[Blocked] = []
    for own in _products(region, site.constants):
        direct = _work(own, None, 0).least_seconds(rates)
        for number in numbers:
            every = [
                _candidate(site, region, own, name, number, rates) for name in BLOCK_ALGORITHMS
            ]
            fit = [c for c in every if c is not None and _least(c) < direct]
            found += sorted(fit, key=_dear)[:1]
    return Found(None, sorted(found, key=_dear)[:_PRICED], 0)


def _least(candidate: Blocked) -> float:
    """The bound as it counts, without the margin for errors of prices."""
    return candidate.least * (dearer(candidate) - candidate.margin)


def _dear(candidate: Blocked) -> float:
    return candidate.estimate * dearer(candidate)


def _products(region: Region, constants: Sequence[bool]) -> Iterator[_Product]:
    fixed = constant_stages(region, constants)
    for number, stage in enumerate(region.stages):
        try:
            cut = cut_loops(region, number)
        except Refused:
            continue
        sources = [f.source for f in stage.factors if f.source is not None]
        known = tuple(constants[s] if s >= 0 else fixed[~s] for s in sources)
        if not all(known):
            yield _Product(number, stage, cut, known)


def _candidate(
    site: Site, region: Region, own: _Product, name: str, levels: int, rates: Rates
) -> Blocked | None:
    """The site with a product by blocks; None where the error policy or a rule refuses it."""
    algorithm = BLOCK_ALGORITHMS[name]
    amplified = float(algorithm.amplification(2) ** levels)
    if not is_allowed(amplified, _roundings(own, algorithm, levels), count(own.stage.sums)):
        return None
    work = _work(own, algorithm, levels)
    least = work.least_seconds(rates)
    steps = _steps(name, own.number, levels)
    try:
        made = _after(region, steps)
    except Refused:
        return None
    chain = "; ".join(map(str, steps))
    seconds = least + work.exchanged / rates.bytes
    return Blocked(chain, seconds, made, site.constants, steps, levels, amplified, least)


def _steps(name: str, number: int, levels: int) -> tuple[Step, ...]:
    """Of as many levels each as a step may have; the products of a step are its third stage."""
    most = range(0, levels, MOST_LEVELS)
    return tuple(
        Step(name, number + 2 * n, (min(MOST_LEVELS, levels - done),))
        for n, done in enumerate(most)
    )


def _after(region: Region, steps: Sequence[Step]) -> Region:
    for step in steps:
        region = applied(region, step)
    return region


def _roundings(own: _Product, algorithm: Bilinear, levels: int) -> int:
    """The most roundings between an operand and a result."""
    sides = (algorithm.inputs, algorithm.weights)
    pairs = zip(sides, own.known, strict=True)
    each = [0 if known else shared_sums(matrix).roundings for matrix, known in pairs]
    outward = shared_sums(algorithm.results).roundings
    terms = count(_blocks(own, levels)[len(own.stage.iters) :])
    return levels * (max(each) + outward) + any(own.known) + terms


def _blocks(own: _Product, levels: int) -> list[int]:
    """The loops of a stage with those of a block in the place of those that are cut."""
    sizes = [count((size,)) for size in own.stage.loops]
    return [-(-n // 2**levels) if k in own.cut else n for k, n in enumerate(sizes)]


def _work(own: _Product, algorithm: Bilinear | None, levels: int) -> FormWork:
    """What a product by blocks does at each run; of no `levels` the product as it is."""
    blocks, results = _blocks(own, levels), range(len(own.stage.iters))
    sizes = [prod(blocks[k] for k in depends(f)) for f in own.stage.factors]
    weights = sum(n for n, known in zip(sizes, own.known, strict=True) if known)
    if algorithm is None:
        return FormWork(prod(blocks), 0, 4 * weights, 0)
    times, made = algorithm.products**levels, prod(blocks[k] for k in results)
    sides = zip(sizes, own.known, (algorithm.inputs, algorithm.weights), strict=True)
    sums = sum(n * _additions(m, levels) for n, known, m in sides if not known)
    sums += made * _additions(algorithm.results, levels)
    exchanged = 4 * times * (sum(sizes) - weights + made)
    if levels > MOST_LEVELS:  # what the step before hands on
        exchanged += _work(own, algorithm, levels - 1 - (levels - 1) % MOST_LEVELS).exchanged
    return FormWork(times * prod(blocks), sums, 4 * times * weights, exchanged)


def _additions(matrix: Matrix, levels: int) -> int:
    """Additions of nested sums for an element of a block."""
    rows, columns = len(matrix), len(matrix[0])
    each = sum(shared_sums(matrix).operations.values())
    return sum(rows**n * columns ** (levels - 1 - n) * each for n in range(levels))
