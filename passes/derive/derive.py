"""Replaces sites of a graph by what computes them in less time.

    %s = matmul(%q, %kt)                          %t = expression(%kt, %v)       64 x 64 a head
    %y = matmul(%s, %v)      4,096 x 4,096   ->   %y = expression(%q, %t)

Sites are sums of products (`sites`), which are written anew in other orders (`rewritten`), and
convolutions, which are computed in bilinear forms (`bilinear`).  The candidates whose estimates and
bounds are low are priced as the kernels that they become, and all sites are chosen for together:
neighbours by what they take together, weights within their bounds.  What is made of constants is
computed here in f64 and rounded once.  Another region is checked against what it replaces by exact
values (`check`).

Orders of sums change rounding only.  A result is finite where the products of the largest
magnitudes of its factors are, summed; an infinity or a NaN of an operand makes the same results
infinite or NaN as before, though which of both may differ.  Numbers that are not near one stay
where they are, differences are not multiplied out, and no division by data is moved.
Requires folded constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TypeAlias

from tcc.ir.graph import Graph, GraphBuilder, Node, Value, constant_bytes
from tcc.ir.graph.rewrite import Inputs, Replacement, rewritten
from tcc.passes.choose.beam import Link, choose_together
from tcc.passes.derive.bilinear.conv_forms import forms_of
from tcc.passes.derive.bilinear.convolutions import (
    Tiled,
    convolutions,
    epilogue,
    fitting,
    pool_formula,
    pools_of,
    tiled,
)
from tcc.passes.derive.candidate import MARGIN, Candidate, Found, dearer
from tcc.passes.derive.phases import by_phases
from tcc.passes.derive.prices import Prices
from tcc.passes.derive.rewritten import reordered, searched
from tcc.passes.derive.sites import Scope, Site, scopes
from tcc.record import record
from tcc.schedule.alternatives import Alternative

# An option that is so many times as dear as the best is not looked at together with others.
_HOPELESS = 1.15


@record
class Derivations:
    """What prices are made by, how many times their size all weights together may take, and
    whether convolutions may take `bilinear` forms.

    `strict` keeps to what gives every result the terms that it had, in their order.
    """

    prices: Prices
    growth: float = 5.0
    bilinear: bool = True
    strict: bool = False


@dataclass(slots=True, eq=False)
class Option:
    """A candidate for a site, its price once it is priced, and else why it is not."""

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

    def alternatives(self) -> list[Alternative[Site, Option | None]]:
        """What is chosen from, the site as it is first: candidates count as dearer than priced."""
        site = self.site
        found: list[Alternative[Site, Option | None]] = [Alternative(site, None, self.seconds or 0)]
        for option in self.options:
            if option.seconds is not None:
                candidate = option.candidate
                price = option.seconds * dearer(candidate)
                found.append(Alternative(site, option, price, candidate.growth(site)))
        return found


def derive(graph: Graph, limits: Derivations) -> Graph:
    """`graph` with the sites replaced that gain from it within the limits.

    Raises InternalError, with the chain, for a replacement that computes something else.
    """
    found = [(d.site, d.chosen.candidate) for d in decisions(graph, limits) if d.chosen is not None]
    chosen = {site.sink: (site, candidate) for site, candidate in found}
    pools = pools_of(graph, {s.sink: c.form for s, c in found if isinstance(c, Tiled)})
    new: dict[Value, Value] = {}

    def visit(b: GraphBuilder, node: Node, inputs: Inputs) -> Replacement:
        pairs = zip(node.inputs, inputs, strict=True)
        new.update((old, value) for old, value in pairs if old is not None and value is not None)
        if node in pools:
            return pool_formula(b, node, *inputs)
        return _emitted(b, *chosen[node], new) if node in chosen else None

    return rewritten(graph, visit) if chosen else graph


def _emitted(
    b: GraphBuilder, site: Site, candidate: Candidate, new: dict[Value, Value]
) -> Replacement:
    operands = [new[v] for v in site.operands]
    arrays = [b.array(v) if c else None for v, c in zip(operands, site.constants, strict=True)]
    value = candidate.emit(b, operands, arrays)
    return None if value is None else [value]


def decisions(graph: Graph, limits: Derivations) -> list[Decision]:
    """What was found for each site, and what all of them are given together."""
    known: dict[Any, Decision] = {}
    found: list[Decision] = []
    scope_of: list[Scope] = []
    for scope in scopes(graph):
        for site in _sites(scope):
            key = site.key
            if key not in known:
                known[key] = _decided(site, limits)
            found.append(replace(known[key], site=site))
            scope_of.append(scope)
    for each in known.values():
        for option in (o for o in each.options if not o.why):
            price = _priced(limits.prices, each.site, each.seconds, option.candidate)
            option.seconds, option.why = price
    places = [decision.alternatives() for decision in found]
    links = dict(_links(limits.prices, scope_of, places))
    picks = choose_together(places, links, (limits.growth - 1) * constant_bytes(graph))
    return [
        replace(decision, chosen=place[pick].replacement)
        for decision, place, pick in zip(found, places, picks, strict=True)
    ]


def _sites(scope: Scope) -> Iterator[Site]:
    """The convolutions that forms may compute, and all other sums of products, which may hold such
    convolutions."""
    alone = list(convolutions(scope))
    sinks = {site.sink for site in alone}
    yield from (s for s in scope.sums() if len(s.nodes) > 1 or s.sink not in sinks)
    yield from alone


def _decided(site: Site, limits: Derivations) -> Decision:
    """The candidates of a site, those to be priced that may save the margin."""
    prices = limits.prices
    found = _found(site, limits)
    pairs: list[tuple[Candidate, bool]] = []
    for own in found:
        known = own.estimate
        if known is None:
            known = prices.seconds(site) if own.candidates else 0.0
        pairs += [(c, c.estimate * dearer(c) < known) for c in own.candidates]
    direct = prices.seconds(site) if any(worth for _, worth in pairs) else None
    little = f"saves less than {MARGIN:.0%} of the estimate"
    options = tuple(Option(c, None, "" if worth else little) for c, worth in pairs)
    first = found[0].estimate or 0.0
    return Decision(site, first, direct, options, sum(own.states for own in found))


def _priced(
    prices: Prices, site: Site, direct: float | None, candidate: Candidate
) -> tuple[float | None, str]:
    """The price of a candidate for a site that takes `direct` as it is, or why it has none."""
    assert direct is not None
    factor = dearer(candidate)
    if candidate.least_seconds(prices.planner.rates) * factor >= direct:
        return None, "its products alone take longer"
    if why := candidate.refused():
        return None, why
    seconds = prices.seconds(site, ((site, candidate),))
    why = candidate.unchecked(site) if seconds * factor < direct else ""
    return (None if why else seconds), why


def _found(site: Site, limits: Derivations) -> list[Found]:
    """What each generator of candidates finds for a site."""
    prices, conv = limits.prices, fitting(site)
    derived = searched(site, prices.planner.rates, limits.strict)
    if limits.strict:
        return [derived]
    if conv is None:
        return [reordered(site, prices.planner.rates), derived]
    forms = forms_of(conv) if limits.bilinear else ()
    fast = tiled(conv, forms, prices.least_seconds, limits.growth)
    return [fast, by_phases(site, prices.planner.rates), derived]


# ---- sites together -----------------------------------------------------------------------------

_Place: TypeAlias = Sequence[Alternative[Site, Option | None]]


def _links(
    prices: Prices, scope_of: Sequence[Scope], places: Sequence[_Place]
) -> Iterator[tuple[tuple[int, int], Link]]:
    """What the choices at two places add: without bound where both replace a node; where a
    convolution reads what comes of another, and a neighbour may tip the scales, what both take
    together."""
    makers: dict[Value, int] = {}
    owners: dict[Node, int] = {}
    for number, place in enumerate(places):
        site = place[0].region
        if len(place) > 1:
            for other in {owners[node] for node in site.nodes if node in owners}:
                yield (other, number), lambda a, b: inf if a and b else 0.0
            owners.update(dict.fromkeys(site.nodes, number))
        if fitting(site) is None:
            continue
        before = makers.get(site.operands[0])
        if before is not None and (_contested(places[before]) or _contested(place)):
            yield (before, number), _link(prices, scope_of[number], places[before], place)
        makers.update((v, number) for n in site.around for v in n.outputs)


def _contested(place: _Place) -> bool:
    return sum(_hopeful(place)) > 1


def _hopeful(place: _Place) -> list[bool]:
    least = min(each.price for each in place)
    return [each.price <= _HOPELESS * least for each in place]


def _link(prices: Prices, scope: Scope, first: _Place, second: _Place) -> Link:
    """What two convolutions take together beyond what they take alone, if both have a form that is
    looked at."""
    sites = first[0].region, second[0].region
    nodes = [site.sink for site in sites]
    around = (n for node in nodes for n in epilogue(scope, node))
    both = scope.site(nodes, around, stored=True)
    ones, others = _hopeful(first), _hopeful(second)

    def beyond(a: int, b: int) -> float:
        one, other = first[a].replacement, second[b].replacement
        if one is None or other is None or one.seconds is None or not (ones[a] and others[b]):
            return 0.0
        taken = (sites[0], one.candidate), (sites[1], other.candidate)
        together, plain = (prices.seconds(both, t) for t in (taken, taken[1:]))
        return together - plain - (one.seconds - first[0].price)

    return beyond
