"""Sites computed by other regions: orders of sums and products, and what a search derives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isclose
from typing import TypeAlias

import numpy as np
from tcc.errors import InternalError
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.index import as_index
from tcc.ir.op import Array
from tcc.ir.types import DType, TensorType
from tcc.passes.choose.price import unread
from tcc.passes.derive.affine import plain
from tcc.passes.derive.algebra.cost import constant_stages, count, estimate, least_seconds
from tcc.passes.derive.algebra.fold import fold, foldable
from tcc.passes.derive.algebra.instance import agree
from tcc.passes.derive.algebra.reassociate import reassociated
from tcc.passes.derive.candidate import MARGIN, Arrays, Candidate, Found
from tcc.passes.derive.check import Unchecked
from tcc.passes.derive.convert import region_text, to_expr
from tcc.passes.derive.guide import is_regular, wanted
from tcc.passes.derive.record import Factor, Region, Stage
from tcc.passes.derive.search import State, search
from tcc.passes.derive.sites import Site, composed
from tcc.passes.graph.emit import express
from tcc.record import record
from tcc.schedule.limits import Rates

# States of a search by what contractions lack, and regions that are handed on.
_BUDGET, _PRICED = 128, 2

# The value of a component of a constant stage.
_Folded: TypeAlias = Callable[[int, int], Value]


@record
class Rewritten(Candidate):
    """A site as another region; `constants` tells of each parameter whether it is one."""

    region: Region
    constants: tuple[bool, ...]

    @property
    def text(self) -> str:
        return region_text(self.region)

    def growth(self, site: Site) -> int:
        region, fixed = self.region, constant_stages(self.region, self.constants)
        read = {
            (f.source, f.component)
            for stage, known in zip(region.stages, fixed, strict=True)
            for f in stage.factors
            if f.source is not None and not known
        }
        made = [_stage_type(region, ~s, c) for s, c in read if s < 0 and fixed[~s]]
        pairs = enumerate(zip(site.operands, site.freed, strict=True))
        gone = [v.type for n, (v, freed) in pairs if freed and (n, 0) not in read]
        return max(0, sum(map(_bytes, made)) - sum(map(_bytes, gone)))

    def least_seconds(self, rates: Rates) -> float:
        return least_seconds(self.region, self.constants, rates)

    def refused(self) -> str:
        if "relax " in self.chain:
            return "the terms that it adds are zeros, which make NaN of infinities"
        folds = foldable(self.region, self.constants)
        return "" if folds else "its constants are too much work to make ahead of the run"

    def unchecked(self, site: Site) -> str:
        try:
            same = agree(composed(site.nodes), self.region)
        except Unchecked as error:
            return error.what
        if not same:
            raise InternalError(
                "a derivation changes what is computed",
                where=site.sink.loc,
                why=self.chain,
                hint="compile with --no-derive, and report the model",
            )
        return ""

    def emit(
        self, b: GraphBuilder, operands: Sequence[Value], arrays: Arrays | None
    ) -> Value | None:
        region = self.region
        if arrays is None:
            return self._add(b, operands, lambda n, c: unread(b, _stage_type(region, n, c)))
        folded = {
            n: [_rounded(a, d) for a, d in zip(parts, region.stages[n].dtypes, strict=True)]
            for n, parts in fold(region, self.constants, arrays).items()
        }
        if not all(np.isfinite(a).all() for parts in folded.values() for a in parts):
            return None  # constants that are, or sums of them beyond the range
        pairs = zip(operands, self.constants, strict=True)
        sources = [s for v, c in pairs if c for s in b.sources(v)]

        def constant(number: int, component: int) -> Value:
            dtype = region.stages[number].dtypes[component]
            return b.constant(folded[number][component], "derived", dtype, sources)

        return self._add(b, operands, constant)

    def _add(self, b: GraphBuilder, operands: Sequence[Value], folded: _Folded) -> Value:
        """Adds a node for every stage that is not constant; constant stages that others read are
        `folded`."""
        fixed = constant_stages(self.region, self.constants)
        made: dict[tuple[int, int], Value] = {}

        def value(source: int, component: int) -> Value:
            if source >= 0:
                return operands[source]
            if fixed[~source] and (~source, component) not in made:
                made[~source, component] = folded(~source, component)
            return made[~source, component]

        for number, stage in enumerate(self.region.stages):
            if not fixed[number]:
                part, read = _alone(stage)
                inputs = [value(*r) for r in read]
                part = part._replace(params=tuple(v.type for v in inputs))
                results = express(b, to_expr(part), *inputs)
                made.update(((number, c), v) for c, v in enumerate(results))
        ((number, component),) = self.region.outputs
        return value(~number, component)


def reordered(site: Site, rates: Rates) -> Found:
    """The orders of a site's sums and products that are estimated to be cheapest."""
    region = composed(site.nodes)
    own = estimate(region, site.constants, rates)
    found = reassociated(region, site.constants, rates, (1 - MARGIN) * own)
    candidates = [Rewritten(c.chain, c.seconds, c.region, site.constants) for c in found.candidates]
    return Found(own, candidates, found.states)


def searched(site: Site, rates: Rates, strict: bool = False) -> Found:
    """The regions a search by what the site's contractions lack finds that are estimated to be
    cheapest, one of equal estimates: the others nest the same loops in another order.  Contractions
    that do not run at peak are not estimated, but priced."""
    region = composed(site.nodes)
    states, found = _derived(region, strict)

    def seconds(state: State) -> float:
        return estimate(state.region, site.constants, rates)

    own = estimate(region, site.constants, rates) if is_regular(region) else None
    best: list[tuple[float, int]] = []
    for price, n in sorted((seconds(s), n) for n, s in enumerate(found) if s.chain):
        if len(best) < _PRICED and not (best and isclose(price, best[-1][0])):
            best.append((price, n))
    chains = ("; ".join(found[n].text) for _, n in best)
    candidates = [
        Rewritten(chain, price, found[n].region, site.constants)
        for (price, n), chain in zip(best, chains, strict=True)
    ]
    return Found(own, candidates, states)


@lru_cache(maxsize=256)
def _derived(region: Region, strict: bool) -> tuple[int, tuple[State, ...]]:
    """How many states a search saw, and the candidates; of a region that lacks nothing none."""
    if next(wanted(region), None) is None:
        return 0, ()
    found = search(region, _BUDGET, strict, guided=True)
    return found.states, found.candidates


def _stage_type(region: Region, number: int, component: int) -> TensorType:
    """The type of what a stage computes."""
    stage = region.stages[number]
    return TensorType(stage.dtypes[component], tuple(map(as_index, stage.iters)))


def _bytes(type_: TensorType) -> int:
    return count(map(plain, type_.shape)) * type_.dtype.bits // 8


def _rounded(array: Array, dtype: DType) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(dtype.carrier)


def _alone(stage: Stage) -> tuple[Region, list[tuple[int, int]]]:
    """A region of one stage without the types of its parameters, and what each of these is: source
    and component."""
    places: dict[tuple[int, int], int] = {}

    def moved(factor: Factor) -> Factor:
        if factor.source is None:
            return factor
        key = factor.source, factor.component
        return factor._replace(source=places.setdefault(key, len(places)), component=0)

    own = stage._replace(factors=tuple(map(moved, stage.factors)))
    outputs = tuple((0, c) for c in range(len(stage.dtypes)))
    return Region((), (own,), outputs), list(places)
