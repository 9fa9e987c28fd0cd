"""Replays a chain of steps from a file, as a candidate of the site that the file names.

site /layer/MatMul
split stage=0 loop=2 inner=64 shift=0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tcc.errors import UserError
from tcc.passes.derive.algebra.cost import estimate
from tcc.passes.derive.derivation import replay
from tcc.passes.derive.derive import Derivations, Option, SiteOptions
from tcc.passes.derive.rewritten import Rewritten
from tcc.passes.derive.sites import composed

# The reason of a replayed option begins with this word.
REPLAYED = "replayed"


def replayed(decided: Sequence[SiteOptions], text: str, limits: Derivations) -> list[SiteOptions]:
    """Returns `decided` with a replayed candidate, priced, as the first option of its site.

    `text` has a line with the site's name, then the steps of the candidate's chain.  Lines or
    semicolons separate steps.  Raises UserError for a text that does not begin with a site of the
    model, and for a step that cannot be applied there.
    """
    first, *lines = text.strip().splitlines() or [""]
    name = first.removeprefix("site ").strip()
    names = list(dict.fromkeys(d.site.name for d in decided))
    if not first.startswith("site ") or name not in names:
        raise UserError(
            "a derivation does not replay",
            where=f"line 1: {first}",
            why=f"it names no site of this model: {', '.join(names) or 'there are none'}",
            hint="begin with a line `site NAME`, and replay the chain on its own model",
        )
    chain = [step.strip() for line in lines for step in line.split(";") if step.strip()]
    return [_with_chain(d, chain, limits) if d.site.name == name else d for d in decided]


def _with_chain(decision: SiteOptions, chain: Sequence[str], limits: Derivations) -> SiteOptions:
    site, prices = decision.site, limits.prices
    region = replay(composed(site.nodes), chain)
    seconds = estimate(region, site.constants, prices.planner.rates)
    candidate = Rewritten("; ".join(chain), seconds, region, site.constants)
    why = ": ".join(filter(None, (REPLAYED, candidate.unchecked(site))))
    option = Option(candidate, prices.seconds(site, ((site, candidate),)), why)
    return replace(decision, seconds=prices.seconds(site), options=(option, *decision.options))
