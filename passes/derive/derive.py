"""Replaces sites of a graph by computations that take less time.

    %s = matmul(%q, %kt)                          %t = expression(%kt, %v)       64 x 64 a head
    %y = matmul(%s, %v)      4,096 x 4,096   ->   %y = expression(%q, %t)

There are two kinds of sites.  Sums of products (`sites`) are rewritten in other orders
(`rewritten`).  Convolutions are computed in bilinear forms (`bilinear`).  Candidates with low
estimates and bounds are priced as the kernels that they become.  All sites are decided together,
because the prices of neighbours depend on each other, and all weights share one limit of size.
Constants are computed here in f64 and rounded once.  A rewritten region is checked against its
original by exact values (`check`).

A change of the order of sums changes only rounding.  A result stays finite if the sum of products
of its factors' largest magnitudes is finite.  If operands are infinite or NaN, the same results are
infinite or NaN as before, but an infinity may become a NaN, and a NaN an infinity.  Numbers that
are not near 1 stay where they are, differences are not multiplied out, and no division by data is
moved.

Requires folded constants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tcc.frozen import frozen
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, constant_bytes
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.passes.choose.beam import Link
from tcc.passes.choose.together import decide_together, numbered
from tcc.passes.derive.bilinear.conv_forms import forms_of
from tcc.passes.derive.bilinear.convolutions import (
    Tiled,
    convolution_of,
    convolutions,
    epilogue,
    pool_formula,
    pools_of,
    tiled,
)
from tcc.passes.derive.candidate import MARGIN, Candidate, SearchResult, price_factor
from tcc.passes.derive.phases import by_phases
from tcc.passes.derive.prices import Prices
from tcc.passes.derive.rewritten import reordered, searched
from tcc.passes.derive.sites import DerivationSite, SiteScope, scopes
from tcc.schedule.alternatives import IMPOSSIBLE, NO_TIME, Alternative, Seconds, in_order, saves
from tcc.schedule.margins import MARGINS
from tcc.zipped import zip_equal

# The name of the alternative that keeps the site.
AS_IT_IS = "as-it-is"
# An option is hopeless if the site's best option saves this share of its price or more. A hopeless
# option is not priced together with the options of neighbouring sites.
_HOPELESS = MARGINS["hopeless form"]


@frozen
class Derivations:
    """The prices that decide about derivations, and the limits that they keep.

    `growth` is the largest factor by which all weights together may grow.  `bilinear` allows
    bilinear forms of convolutions.  `strict` allows only candidates that add the terms of every
    result in the original order.
    """

    prices: Prices
    growth: float = 5.0
    bilinear: bool = True
    strict: bool = False


@dataclass(slots=True, eq=False)
class Option:
    """A candidate for a site, with its price in seconds; `why` says why it has no price."""

    candidate: Candidate
    seconds: Seconds | None
    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class SiteOptions:
    """A site with its candidates and the choice among them.

    `estimate`: the estimated time of the site as it is, from its work alone.
    `seconds`: the price of the site as it is; None if no candidate was priced.
    `options`: the candidates in the order of their estimates, the best first.
    `states`: the number of states that the search visited.
    `chosen`: the option that replaces the site; None if it stays as it is.
    """

    site: DerivationSite
    estimate: Seconds
    seconds: Seconds | None
    options: tuple[Option, ...]
    states: int
    chosen: Option | None = None

    def alternatives(self) -> list[Alternative[Option | None]]:
        """Returns the site as it is, then its priced options.

        The price of an option is multiplied by `price_factor`.
        """
        site = self.site
        choices: list[Alternative[Option | None]] = [
            Alternative(None, self.seconds or NO_TIME, name=AS_IT_IS)
        ]
        names: Counter[str] = Counter()
        for option in self.options:
            if option.seconds is not None:
                candidate = option.candidate
                price = option.seconds * price_factor(candidate)
                names[candidate.chain] += 1
                repeated = names[candidate.chain]
                name = candidate.chain + (f" ({repeated})" if repeated > 1 else "")
                choices.append(Alternative(option, price, candidate.growth(site), name))
        return choices


def derive(graph: Graph, limits: Derivations) -> Graph:
    """Returns `graph` with sites replaced by candidates that save time within the limits.

    Raises InternalError, with the chain, for a replacement that computes other values.
    """
    sites = decisions(graph, limits)
    chosen = {d.site.sink: (d.site, d.chosen.candidate) for d in sites if d.chosen is not None}
    forms = {sink: c.form for sink, (_, c) in chosen.items() if isinstance(c, Tiled)}
    return with_candidates(graph, chosen, pools_of(graph, forms))


def with_candidates(
    graph: Graph,
    chosen: Mapping[Node, tuple[DerivationSite, Candidate]],
    pools: Collection[Node] = (),
) -> Graph:
    """Returns `graph` with sites replaced by candidates; `graph` itself if none is.

    `chosen` has both by the site's sink.  The max-pools `pools` become formulas.
    """
    new: dict[Value, Value] = {}

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        pairs = zip_equal(node.inputs, inputs)
        new.update((old, value) for old, value in pairs if old is not None and value is not None)
        if node in pools:
            return pool_formula(b, node, *inputs)
        return _emitted(b, *chosen[node], new) if node in chosen else None

    return rewritten(graph, visit) if chosen else graph


def _emitted(
    b: GraphBuilder, site: DerivationSite, candidate: Candidate, new: dict[Value, Value]
) -> Replacement:
    operands = [new[v] for v in site.operands]
    arrays = [b.arrays(v) if c else None for v, c in zip_equal(operands, site.constants)]
    value = candidate.emit(b, operands, arrays)
    return None if value is None else [value]


def decisions(graph: Graph, limits: Derivations) -> list[SiteOptions]:
    """Returns every site with its candidates and its choice; all choices are made together."""
    decided: dict[Any, SiteOptions] = {}
    ordered: list[SiteOptions] = []
    scope_of: list[SiteScope] = []
    for scope in scopes(graph):
        for site in _sites(scope):
            key = site.key
            if key not in decided:
                decided[key] = _decided(site, limits)
            ordered.append(replace(decided[key], site=site))
            scope_of.append(scope)
    for entry in decided.values():
        for option in (o for o in entry.options if not o.why):
            price = _priced(limits.prices, entry.site, entry.seconds, option.candidate)
            option.seconds, option.why = price
    places = [decision.alternatives() for decision in ordered]
    links = dict(_links(limits.prices, scope_of, [entry.site for entry in ordered], places))
    ledger = limits.prices.planner.ledger
    choices = decide_together(
        ledger,
        numbered(ledger, "derive", lambda: [(entry.site.key,) for entry in ordered]),
        places,
        links,
        (limits.growth - 1) * constant_bytes(graph),
        [entry.site.name for entry in ordered],
    )
    return [
        replace(entry, chosen=choice.replacement) for entry, choice in zip_equal(ordered, choices)
    ]


def _sites(scope: SiteScope) -> Iterator[DerivationSite]:
    """Yields the sites of a scope: sums of products, then convolutions that may be bilinear.

    A site that consists of one bilinear convolution is yielded once, as a convolution.  A
    convolution may also be a node of a larger site.
    """
    convs = list(convolutions(scope))
    sinks = {site.sink for site in convs}
    yield from (s for s in scope.sums() if len(s.nodes) > 1 or s.sink not in sinks)
    yield from convs


def _decided(site: DerivationSite, limits: Derivations) -> SiteOptions:
    """Returns a site with its candidates.

    A candidate whose estimate saves less than the margin gets this as its reason `why`, and is not
    priced later.
    """
    prices = limits.prices
    searches = _searches(site, limits)
    pairs: list[tuple[Candidate, bool]] = []
    for result in searches:
        baseline = result.estimate
        if baseline is None:
            baseline = prices.seconds(site) if result.candidates else NO_TIME
        pairs += [(c, saves(c.estimate * price_factor(c), baseline)) for c in result.candidates]
    direct = prices.seconds(site) if any(worth for _, worth in pairs) else None
    little = f"saves less than {MARGIN:.0%} of the estimate"
    options = tuple(Option(c, None, "" if worth else little) for c, worth in pairs)
    first = searches[0].estimate or NO_TIME
    return SiteOptions(site, first, direct, options, sum(result.states for result in searches))


def _priced(
    prices: Prices, site: DerivationSite, direct: Seconds | None, candidate: Candidate
) -> tuple[Seconds | None, str]:
    """Returns (price, "") for a candidate, or (None, reason why it gets no price).

    `direct` is the price of the site as it is.
    """
    assert direct is not None
    factor = price_factor(candidate)
    if not saves(candidate.least_seconds(prices.planner.rates) * factor, direct):
        return None, "its products alone take longer"
    if why := candidate.refused(site):
        return None, why
    seconds = prices.seconds(site, ((site, candidate),))
    why = candidate.unchecked(site) if saves(seconds * factor, direct) else ""
    return (None if why else seconds), why


def _searches(site: DerivationSite, limits: Derivations) -> list[SearchResult]:
    """Returns a result for each generator of candidates that applies to a site."""
    prices, conv = limits.prices, convolution_of(site)
    rates = prices.planner.rates
    derived = searched(site, rates, limits.strict)
    if limits.strict:
        return [derived]
    if conv is None:
        return [reordered(site, rates), derived]
    forms = forms_of(conv) if limits.bilinear else ()
    fast = tiled(conv, forms, prices.least_seconds, limits.growth)
    return [fast, by_phases(site, rates), derived]


# ---- sites together -----------------------------------------------------------------------------

_Place: TypeAlias = Sequence[Alternative[Option | None]]


def _links(
    prices: Prices,
    scope_of: Sequence[SiteScope],
    sites: Sequence[DerivationSite],
    places: Sequence[_Place],
) -> Iterator[tuple[tuple[int, int], Link]]:
    """Yields ((a, b), link) for each pair of sites whose choices influence each other's cost.

    `places` has the alternatives of each site; a and b are indices of sites.  `link(i, j)` is the
    time to add if site a takes alternative i and site b takes alternative j.  It is infinite if
    both replace the same node.  If a convolution reads the result of another, and one of them has
    several options near its best price, their options are priced in pairs.
    """
    makers: dict[Value, int] = {}
    owners: dict[Node, int] = {}
    for number, (site, place) in enumerate(zip_equal(sites, places)):
        if len(place) > 1:
            for other in {owners[node] for node in site.nodes if node in owners}:
                yield (other, number), lambda a, b: IMPOSSIBLE if a and b else NO_TIME
            owners.update(dict.fromkeys(site.nodes, number))
        if convolution_of(site) is None:
            continue
        before = makers.get(site.operands[0])
        if before is not None and (_contested(places[before]) or _contested(place)):
            pair = sites[before], site
            yield (before, number), _link(prices, scope_of[number], pair, places[before], place)
        makers.update((v, number) for n in site.neighbourhood for v in n.outputs)


def _contested(place: _Place) -> bool:
    return sum(_hopeful(place)) > 1


def _hopeful(place: _Place) -> list[bool]:
    best = in_order(place)[0].price
    return [not saves(best, alternative.price, _HOPELESS) for alternative in place]


def _link(
    prices: Prices,
    scope: SiteScope,
    sites: tuple[DerivationSite, DerivationSite],
    first: _Place,
    second: _Place,
) -> Link:
    """Returns the link of two convolutions, where the second reads the result of the first.

    `link(i, j)` is the time that alternatives i and j take together, minus the sum of their own
    prices.  It is 0 if an alternative keeps its convolution or is hopeless (`_HOPELESS`).
    """
    nodes = [site.sink for site in sites]
    neighbours = (n for node in nodes for n in epilogue(scope, node))
    pair = scope.site(nodes, neighbours, stored=True)
    hopeful_first, hopeful_second = _hopeful(first), _hopeful(second)

    def beyond(a: int, b: int) -> Seconds:
        one, other = first[a].replacement, second[b].replacement
        if (
            one is None
            or other is None
            or one.seconds is None
            or not (hopeful_first[a] and hopeful_second[b])
        ):
            return NO_TIME
        replaced = (sites[0], one.candidate), (sites[1], other.candidate)
        together, plain = (prices.seconds(pair, t) for t in (replaced, replaced[1:]))
        return together - plain - (one.seconds - first[0].price)

    return beyond
