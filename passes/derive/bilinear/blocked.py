"""Products of matrices by products of blocks as candidates (`rules/blocks`): f32, one to three
levels, each of which saves an eighth of the products.

The sums of a constant factor's blocks are made ahead of the run, in f64.  The error policy is that
of convolutions (`conv_forms`): infinities and NaNs spread over the rows and columns of all blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from math import prod
from typing import NamedTuple

from tcc.passes.derive.algebra.cost import constant_stages, count
from tcc.passes.derive.algebra.instance import shrunk
from tcc.passes.derive.bilinear.algorithms import STRASSEN, Bilinear, Matrix
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
# The part of its price that a product by blocks has to save: timed in turns with the product as it
# is, at 128 and 512 rows on a machine with other work, the ratio of times was off from that of
# prices by 0.10 in the root mean square for one level, and by 0.18 for two.
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

    def dear(candidate: Blocked) -> float:
        return candidate.estimate * dearer(candidate)

    found: list[Blocked] = []
    region, numbers = composed(site.nodes), tuple(levels)
    for own in _products(region, site.constants):
        direct = _work(own, STRASSEN, 0).least_seconds(rates)
        for number in numbers:
            every = _candidates(site, region, own, number, rates)
            # Prices err, but bounds do not.
            fit = [c for c in every if c.least * (dearer(c) - c.margin) < direct]
            found += sorted(fit, key=dear)[:1]
    return Found(None, sorted(found, key=dear)[:_PRICED], 0)


def _products(region: Region, constants: Sequence[bool]) -> Iterator[_Product]:
    fixed = constant_stages(region, constants)
    for number, stage in enumerate(region.stages):
        try:
            cut = cut_loops(region, number)
        except Refused:
            continue
        sources = (f.source or 0 for f in stage.factors)
        known = tuple(constants[s] if s >= 0 else fixed[~s] for s in sources)
        if not fixed[number]:
            yield _Product(number, stage, cut, known)


def _candidates(
    site: Site, region: Region, own: _Product, levels: int, rates: Rates
) -> Iterator[Blocked]:
    """The site with a product by blocks, by each algorithm that the error policy allows and for
    which the matrices are large enough."""
    for name, algorithm in BLOCK_ALGORITHMS.items():
        amplified = float(algorithm.amplification(2) ** levels)
        steps = tuple(
            Step(name, own.number + done, (min(MOST_LEVELS, levels - done),))
            for done in range(0, levels, MOST_LEVELS)
        )
        try:
            made = _after(region, steps)
        except Refused:
            continue
        if is_allowed(amplified, _roundings(own, algorithm, levels), count(own.stage.sums)):
            work = _work(own, algorithm, levels)
            least = work.least_seconds(rates)
            seconds, chain = least + work.exchanged / rates.bytes, "; ".join(map(str, steps))
            yield Blocked(chain, seconds, made, site.constants, steps, levels, amplified, least)


def _after(region: Region, steps: Sequence[Step]) -> Region:
    return reduce(applied, steps, region)


def _roundings(own: _Product, algorithm: Bilinear, levels: int) -> int:
    """The most roundings between an operand and a result."""
    inputs, weights, results = (
        shared_sums(m).roundings for m in (algorithm.inputs, algorithm.weights, algorithm.results)
    )
    terms = prod(_blocks(own, levels)[len(own.stage.iters) :])
    return levels * (max(inputs, weights) + results) + terms


def _blocks(own: _Product, levels: int) -> list[int]:
    """The loops of a stage with those of a block in the place of those that are cut."""
    sizes = [count((size,)) for size in own.stage.loops]
    return [-(-n // 2**levels) if k in own.cut else n for k, n in enumerate(sizes)]


def _work(own: _Product, algorithm: Bilinear, levels: int) -> FormWork:
    """What a product by blocks does at each run; of no `levels` the product as it is."""
    blocks, times = _blocks(own, levels), algorithm.products**levels
    weights = exchanged = 0
    made = prod(blocks[: len(own.stage.iters)])
    sums = made * _additions(algorithm.results, levels)
    sides = zip(own.stage.factors, own.known, (algorithm.inputs, algorithm.weights), strict=True)
    for factor, known, matrix in sides:
        size = prod(blocks[k] for k in depends(factor))
        weights += size * known
        exchanged += size * (not known)
        sums += size * (not known) * _additions(matrix, levels)
    exchanged = 4 * times * (exchanged + made) if levels else 0
    if levels > MOST_LEVELS:  # what the step before hands on
        exchanged += _work(own, algorithm, MOST_LEVELS).exchanged
    return FormWork(times * prod(blocks), sums, 4 * times * weights, exchanged)


def _additions(matrix: Matrix, levels: int) -> int:
    """Additions of nested sums for an element of a block."""
    rows, columns = len(matrix), len(matrix[0])
    each = sum(shared_sums(matrix).operations.values())
    return sum(rows**n * columns ** (levels - 1 - n) * each for n in range(levels))
