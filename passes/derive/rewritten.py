"""Finds candidates that are regions: sums and products in other orders, and regions that rules
derive.

A region is an expression of stages, each of which computes a tensor (`tcc.ir.region`).  A stage is
constant if it depends on constants only; it is then computed at compile time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.graph import GraphBuilder, Value, on_each_rank
from tcc.ir.index import as_index
from tcc.ir.op import Array, Arrays
from tcc.ir.region import Factor, Region, RegionStage
from tcc.ir.region.affine import plain
from tcc.ir.region.check import Unchecked
from tcc.ir.region.convert import region_text, to_expr
from tcc.ir.types import DType, TensorType
from tcc.passes.derive.algebra.cost import constant_stages, count, estimate, least_seconds
from tcc.passes.derive.algebra.fold import fold, foldable
from tcc.passes.derive.algebra.instance import agree
from tcc.passes.derive.algebra.reassociate import reassociated
from tcc.passes.derive.candidate import MARGIN, Candidate, RankArrays, SearchResult
from tcc.passes.derive.guide import is_regular, repairs
from tcc.passes.derive.search import Derivation, search
from tcc.passes.derive.sites import DerivationSite, composed
from tcc.passes.graph.emit import express
from tcc.passes.program.price import unread
from tcc.schedule.alternatives import Seconds, are_close, cheapest_first
from tcc.schedule.limits import Rates
from tcc.zipped import zip_equal

# A search has at most _BUDGET states. At most _PRICED regions of a search are priced.
_BUDGET, _PRICED = 128, 2
# The most bits of an element of weights that are stored narrow.
_NARROW = 8

# A function (number of a constant stage, number of its component) that returns the component's
# value in the graph.
_Folded: TypeAlias = Callable[[int, int], Value]


@frozen
class Rewritten(Candidate):
    """A region that computes a site; `constants` says for each parameter if it is constant."""

    region: Region
    constants: tuple[bool, ...]

    @property
    def text(self) -> str:
        return region_text(self.region)

    def growth(self, site: DerivationSite) -> int:
        region, fixed = self.region, constant_stages(self.region, self.constants)
        accesses = {
            (f.source, f.component)
            for stage, is_constant in zip_equal(region.stages, fixed)
            for f in stage.factors
            if f.source is not None and not is_constant
        }
        folded_types = [_stage_type(region, ~s, c) for s, c in accesses if s < 0 and fixed[~s]]
        pairs = enumerate(zip_equal(site.operands, site.freed))
        freed_types = [v.type for n, (v, freed) in pairs if freed and (n, 0) not in accesses]
        return max(0, sum(map(_bytes, folded_types)) - sum(map(_bytes, freed_types)))

    def least_seconds(self, rates: Rates) -> Seconds:
        return least_seconds(self.region, self.constants, rates)

    def refused(self, site: DerivationSite) -> str:
        if "relax " in self.chain:
            return "the terms that it adds are zeros, which make NaN of infinities"
        pairs = zip_equal(site.operands, self.constants)
        if any(c and v.dtype.bits <= _NARROW for v, c in pairs) and self.growth(site):
            # Narrow weights are there to take little memory, which the price of one run ignores.
            return "it stores narrow weights in a wider type"
        folds = foldable(self.region, self.constants)
        return "" if folds else "its constants are too much work to make ahead of the run"

    def unchecked(self, site: DerivationSite) -> str:
        try:
            is_equal = agree(composed(site.nodes), self.region)
        except Unchecked as error:
            return error.what
        if not is_equal:
            raise InternalError(
                "a derivation changes what is computed",
                where=site.sink.loc,
                why=self.chain,
                hint="compile with --no-derive, and report the model",
            )
        return ""

    def emit(
        self, b: GraphBuilder, operands: Sequence[Value], arrays: RankArrays | None
    ) -> Value | None:
        region = self.region
        if arrays is None:
            return self._add(b, operands, lambda n, c: unread(b, _stage_type(region, n, c)))
        folded = on_each_rank(arrays, self._folded)
        if folded is None:
            return None
        pairs = zip_equal(operands, self.constants)
        sources = [s for v, c in pairs if c for s in b.sources(v)]

        def constant(number: int, component: int) -> Value:
            dtype = region.stages[number].dtypes[component]
            parts = [stages[number][component] for stages in folded]
            return b.constant_per_rank(parts, "derived", dtype, sources)

        return self._add(b, operands, constant)

    def _folded(self, arrays: Arrays) -> dict[int, list[Array]] | None:
        """Returns the arrays of each constant stage, one per component, for one rank's constants.

        Returns None if an element is not finite: a constant is infinite, or a sum is beyond the
        range of its type.
        """
        folded = {
            n: [_rounded(a, d) for a, d in zip_equal(parts, self.region.stages[n].dtypes)]
            for n, parts in fold(self.region, self.constants, arrays).items()
        }
        is_finite = all(np.isfinite(a).all() for parts in folded.values() for a in parts)
        return folded if is_finite else None

    def _add(self, b: GraphBuilder, operands: Sequence[Value], folded: _Folded) -> Value:
        """Adds a node for every stage that is not constant, and returns the region's result.

        `folded(n, c)` returns the value of component c of the constant stage n.
        """
        fixed = constant_stages(self.region, self.constants)
        values: dict[tuple[int, int], Value] = {}

        def value(source: int, component: int) -> Value:
            if source >= 0:
                return operands[source]
            if fixed[~source] and (~source, component) not in values:
                values[~source, component] = folded(~source, component)
            return values[~source, component]

        for number, stage in enumerate(self.region.stages):
            if not fixed[number]:
                part, sources = single_stage(stage)
                inputs = [value(*r) for r in sources]
                part = part._replace(params=tuple(v.type for v in inputs))
                results = express(b, to_expr(part), *inputs)
                values.update(((number, c), v) for c, v in enumerate(results))
        ((number, component),) = self.region.outputs
        return value(~number, component)


def reordered(site: DerivationSite, rates: Rates) -> SearchResult:
    """Returns regions that compute a site's sums and products in other orders.

    The first region has the lowest estimated time.
    """
    region = composed(site.nodes)
    seconds = estimate(region, site.constants, rates)
    search = reassociated(region, site.constants, rates, (1 - MARGIN) * seconds)
    candidates = [
        Rewritten(c.chain, c.seconds, c.region, site.constants) for c in search.candidates
    ]
    return SearchResult(seconds, candidates, search.states)


def searched(site: DerivationSite, rates: Rates, strict: bool = False) -> SearchResult:
    """Returns the regions with the lowest estimates that a search finds.

    Regions with equal estimates differ only in the order of nested loops, so only the first is
    kept.  Estimates assume that contractions run near peak (`guide`).  If those of the site do not,
    the site gets no estimate, and candidates are compared with its price instead.
    """
    region = composed(site.nodes)
    derived = _derived(region, strict)
    direct = estimate(region, site.constants, rates) if is_regular(region) else None
    candidates = [
        Rewritten(
            "; ".join(s.text), estimate(s.region, site.constants, rates), s.region, site.constants
        )
        for s in derived.candidates
        if s.chain
    ]
    best: list[Rewritten] = []
    for candidate in cheapest_first(candidates, lambda c: c.estimate):
        if len(best) < _PRICED and not (best and are_close(candidate.estimate, best[-1].estimate)):
            best.append(candidate)
    return SearchResult(direct, best, derived.states)


@lru_cache(256)
def _derived(region: Region, strict: bool) -> Derivation:
    """Returns the states without obstacles that a search finds (`guide`), and how many it visited.

    A region that has no obstacle itself is not searched.
    """
    if next(repairs(region), None) is None:
        return Derivation((), 0)
    return search(region, _BUDGET, strict)


def _stage_type(region: Region, number: int, component: int) -> TensorType:
    """Returns the type of a stage's component."""
    stage = region.stages[number]
    return TensorType(stage.dtypes[component], tuple(map(as_index, stage.iters)))


def _bytes(type_: TensorType) -> int:
    return count(map(plain, type_.shape)) * type_.dtype.bits // 8


def _rounded(array: Array, dtype: DType) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(dtype.carrier)


def single_stage(stage: RegionStage) -> tuple[Region, list[tuple[int, int]]]:
    """Returns a region that consists of `stage`, and the list of its parameters' sources.

    Parameter n of the region stands for component c of source s in the old region, where the list's
    element n is (s, c).  The types of the parameters are left out.
    """
    places: dict[tuple[int, int], int] = {}

    def renumbered(factor: Factor) -> Factor:
        if factor.source is None:
            return factor
        key = factor.source, factor.component
        return factor._replace(source=places.setdefault(key, len(places)), component=0)

    renumbered_stage = stage._replace(factors=tuple(map(renumbered, stage.factors)))
    outputs = tuple((0, c) for c in range(len(stage.dtypes)))
    return Region((), (renumbered_stage,), outputs), list(places)
