"""Replaces sums of products by cheaper orders of the same sums and products.

    %s = matmul(%q, %kt)                          %t = expression(%kt, %v)       64 x 64 a head
    %y = matmul(%s, %v)      4,096 x 4,096   ->   %y = expression(%q, %t)

Sites (`sites`) are written anew (`reassociate`); what is estimated to save most is priced as the
kernels that it becomes, and all sites are chosen for together, weights within their bounds.  What
is made of constants is computed here in f64 and rounded once.  A replacement is checked against
what it replaces by exact values (`check`).

Orders of sums change rounding only.  A result is finite where the products of the largest
magnitudes of its factors are, summed; an infinity or a NaN of an operand makes the same results
infinite or NaN as before, though which of both may differ.  Numbers that are not near one stay
where they are, differences are not multiplied out, and no division by data is moved.
Requires folded constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tcc.errors import InternalError
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.ir.op import Array
from tcc.ir.types import DType
from tcc.passes.choose.beam import choose_together
from tcc.passes.derive.affine import plain
from tcc.passes.derive.algebra.cost import constant_stages, count, estimate, least_seconds
from tcc.passes.derive.algebra.fold import fold, foldable
from tcc.passes.derive.algebra.instance import agree
from tcc.passes.derive.algebra.reassociate import Candidate, reassociated
from tcc.passes.derive.bilinear.convolutions import constant_bytes
from tcc.passes.derive.check import Unchecked
from tcc.passes.derive.prices import SitePrices, add_region
from tcc.passes.derive.record import Region
from tcc.passes.derive.sites import Site, composed, sites
from tcc.record import record
from tcc.schedule.alternatives import Alternative

# The part of its price that a site's replacement has to save: prices err.
MARGIN = 0.05


@record
class Derivations:
    """What prices are made by, and how many times their size all weights together may take."""

    prices: SitePrices
    growth: float = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """A candidate for a site, its price where it was priced, and else why it was not."""

    candidate: Candidate
    seconds: float | None
    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A site, what it is estimated to take as it is, its price where anything was compared with it,
    the candidates, the best estimate first, and the `states` of the search; `chosen` is the option
    that was taken."""

    site: Site
    estimate: float
    seconds: float | None
    options: tuple[Option, ...]
    states: int
    chosen: Option | None = None


def derive(graph: Graph, limits: Derivations) -> Graph:
    """`graph` with the sites replaced that gain from it within the limits.

    Raises InternalError, with the chain, for a replacement that computes something else.
    """
    chosen = {d.site.nodes[-1]: d for d in decisions(graph, limits) if d.chosen is not None}
    new: dict[Value, Value] = {}

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        pairs = zip(node.inputs, inputs, strict=True)
        new.update((old, value) for old, value in pairs if old is not None and value is not None)
        decision = chosen.get(node)
        return None if decision is None else _replaced(b, decision, new)

    return rewritten(graph, visit) if chosen else graph


def decisions(graph: Graph, limits: Derivations) -> list[Decision]:
    """What was found for each site, and what all of them are given together."""
    known: dict[Any, Decision] = {}
    found: list[Decision] = []
    for site in sites(graph):
        key = site.key, site.surroundings
        if key not in known:
            known[key] = _decided(site, limits.prices)
        first = known[key]
        found.append(Decision(site, first.estimate, first.seconds, first.options, first.states))
    places = [_alternatives(decision) for decision in found]
    room = (limits.growth - 1) * constant_bytes(graph)
    picks = choose_together(places, {}, room)
    return [
        replace(decision, chosen=place[pick].replacement)
        for decision, place, pick in zip(found, places, picks, strict=True)
    ]


def _decided(site: Site, prices: SitePrices) -> Decision:
    """The candidates of a site, those priced that may save the margin."""
    rates = prices.planner.rates
    region = composed(site.nodes)
    own = estimate(region, site.constants, rates)
    found = reassociated(region, site.constants, rates, (1 - MARGIN) * own)
    worth = [c for c in found.candidates if c.seconds < (1 - MARGIN) * own]
    direct = prices.seconds(site) if worth else None
    options: list[Option] = []
    for candidate in found.candidates:
        if direct is None or candidate not in worth:
            why = f"saves less than {MARGIN:.0%} of the estimate"
        elif least_seconds(candidate.region, site.constants, rates) > (1 - MARGIN) * direct:
            why = "its products alone take longer"
        elif not foldable(candidate.region, site.constants):
            why = "its constants are too much work to make ahead of the run"
        else:
            seconds = prices.seconds(site, candidate.region)
            why = _unchecked(site, region, candidate) if seconds * (1 + MARGIN) < direct else ""
            options.append(Option(candidate, None if why else seconds, why))
            continue
        options.append(Option(candidate, None, why))
    return Decision(site, own, direct, tuple(options), found.states)


def _alternatives(decision: Decision) -> list[Alternative[Site, Option | None]]:
    """What is chosen from, the site as it is first: candidates count as dearer than priced."""
    site = decision.site
    found: list[Alternative[Site, Option | None]] = [
        Alternative(site, None, decision.seconds or 0.0)
    ]
    for option in decision.options:
        if option.seconds is not None:
            bytes_ = _extra(site, option.candidate.region)
            found.append(Alternative(site, option, option.seconds * (1 + MARGIN), bytes_))
    return found


def _extra(site: Site, region: Region) -> int:
    """Bytes by which constants grow."""
    fixed = constant_stages(region, site.constants)
    read = {
        (f.source, f.component)
        for stage, known in zip(region.stages, fixed, strict=True)
        for f in stage.factors
        if f.source is not None and not known
    }
    made = [(~s, c) for s, c in read if s < 0 and fixed[~s]]
    new = sum(count(region.stages[n].iters) * region.stages[n].dtypes[c].bytes for n, c in made)
    gone = [v.type for n, v in enumerate(site.operands) if site.freed[n] and (n, 0) not in read]
    return max(0, new - sum(count(map(plain, t.shape)) * t.dtype.bits // 8 for t in gone))


def _unchecked(site: Site, region: Region, candidate: Candidate) -> str:
    """Why a candidate cannot be compared with what it replaces; empty where the two agree.

    Raises InternalError where they do not."""
    try:
        same = agree(region, candidate.region)
    except Unchecked as error:
        return error.what
    if not same:
        raise InternalError(
            "a derivation changes what is computed",
            where=site.nodes[-1].loc,
            why=candidate.chain,
            hint="compile with --no-derive, and report the model",
        )
    return ""


def _replaced(b: GraphBuilder, decision: Decision, new: Mapping[Value, Value]) -> Replacement:
    site, option = decision.site, decision.chosen
    assert option is not None
    region = option.candidate.region
    operands = [new[v] for v in site.operands]
    arrays = [b.array(v) if c else None for v, c in zip(operands, site.constants, strict=True)]
    folded = fold(region, site.constants, arrays)
    rounded = {
        n: [_rounded(a, d) for a, d in zip(parts, region.stages[n].dtypes, strict=True)]
        for n, parts in folded.items()
    }
    if not all(np.isfinite(a).all() for parts in rounded.values() for a in parts):
        return None  # constants that are, or sums of them beyond the range
    sources = [s for v, c in zip(operands, site.constants, strict=True) if c for s in b.sources(v)]

    def constant(b: GraphBuilder, number: int, component: int) -> Value:
        dtype = region.stages[number].dtypes[component]
        return b.constant(rounded[number][component], "derived", dtype, sources)

    return [add_region(b, region, operands, site.constants, constant)]


def _rounded(array: Array, dtype: DType) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(array).astype(dtype.carrier)
