"""The derivations of a model as records: each site's candidates, and the choice."""

from collections.abc import Sequence
from typing import Any

from tcc.errors import UserError
from tcc.ir.graph import GraphBuilder
from tcc.ir.region import Region
from tcc.ir.region.convert import region_text
from tcc.passes.derive.algebra.cost import constant_stages, products
from tcc.passes.derive.candidate import Candidate
from tcc.passes.derive.derive import SiteOptions
from tcc.passes.derive.replayed import REPLAYED
from tcc.passes.derive.rewritten import Rewritten
from tcc.passes.derive.sites import DerivationSite, composed
from tcc.zipped import zip_equal


def derivation_records(all_decisions: Sequence[SiteOptions]) -> list[dict[str, Any]]:
    """Returns one record for each group of equal sites.

    `sink` names the node in which the group's first site ends.  Seconds are predicted; they are
    null where a site or a candidate was not priced.
    """
    groups: dict[Any, list[SiteOptions]] = {}
    for decision in all_decisions:
        groups.setdefault(decision.site.key, []).append(decision)
    return [_record(decisions) for decisions in groups.values()]


def _record(group: Sequence[SiteOptions]) -> dict[str, Any]:
    first = group[0]
    region = composed(first.site.nodes)
    chosen = [d.chosen.candidate for d in group if d.chosen is not None]
    return {
        "sink": first.site.name,
        "nodes": [node.op.name for node in first.site.nodes],
        "sites": len(group),
        "estimate": first.estimate,
        "seconds": first.seconds,
        "states": first.states,
        "expression": region_text(region),
        "stages": _stages(region, first.site.constants),
        "candidates": [
            {
                "chain": option.candidate.chain,
                "estimate": option.candidate.estimate,
                "seconds": option.seconds,
                "chosen": chosen.count(option.candidate),
                "why": option.why,
                "expression": option.candidate.text,
                "stages": _stages(*_computed(first.site, option.candidate)),
            }
            for option in first.options
        ],
    }


def _computed(site: DerivationSite, candidate: Candidate) -> tuple[Region, Sequence[bool]]:
    """Returns (region that a candidate computes, flags).

    The region has a flag for each parameter: True if the parameter is a constant of the model.
    """
    if isinstance(candidate, Rewritten):
        return candidate.region, site.constants
    b = GraphBuilder("site")
    operands = [b.input(value.name, value.type) for value in site.operands]
    result = candidate.emit(b, operands, None)
    assert result is not None, "without arrays nothing is refused"
    nodes, is_known = b.finish([result]).nodes, dict(zip_equal(operands, site.constants))
    inner = {value for node in nodes for value in node.outputs}
    inputs = dict.fromkeys(v for node in nodes for v in node.inputs if v and v not in inner)
    return composed(nodes), [is_known.get(value, True) for value in inputs]


def _stages(region: Region, constants: Sequence[bool]) -> list[dict[str, Any]]:
    """Returns a row for each parameter and each stage of a region, in order.

    `reads` names the parameters and stages that a stage reads. `known` is true for a row whose
    values are computed at compile time.
    """

    def named(source: int) -> str:
        return f"p{source}" if source >= 0 else f"s{~source}"

    rows: list[dict[str, Any]] = [
        {"name": named(n), "type": str(param), "does": "operand", "reads": []}
        for n, param in enumerate(region.params)
    ]
    for n, stage in enumerate(region.stages):
        does = f"{stage.monoid} over {list(stage.sums)}" if stage.monoid else "point by point"
        if count := products(stage):
            does += f", {count / 1e6:,.1f} M products"
        reads = dict.fromkeys(named(f.source) for f in stage.factors if f.source is not None)
        types = ", ".join(f"{t}[{','.join(map(str, stage.iters))}]" for t in stage.dtypes)
        rows.append({"name": named(~n), "type": types, "does": does, "reads": list(reads)})
    known_flags = (*constants, *constant_stages(region, constants))
    return [{**row, "known": is_known} for row, is_known in zip_equal(rows, known_flags)]


def drawn(records: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the records of the site and the candidate to draw.

    The candidate is the one that --replay computes. Without --replay it is the first candidate that
    the compile chose. Raises UserError if there is neither.
    """
    pairs = [(site, c) for site in records for c in site["candidates"]]
    preferred = [p for p in pairs if p[1]["why"].startswith(REPLAYED)]
    preferred += [p for p in pairs if p[1]["chosen"]]
    if not preferred:
        why = "nothing of the model is computed in another way"
        raise UserError("there is no derivation to draw", where="--svg", why=why, hint="--replay")
    return preferred[0]
