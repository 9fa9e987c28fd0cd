"""Computes transposed convolutions by a convolution for each residue of positions modulo the
stride.

A residue is called a phase.  Phases are the alternative to bilinear forms if they have unequal
numbers of taps.  The search could find them only by adding zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.index import as_int
from tcc.ir.types import element_count
from tcc.passes.derive.candidate import Candidate, RankArrays, SearchResult
from tcc.passes.derive.sites import DerivationSite
from tcc.passes.graph.decompose import is_derived, phases
from tcc.passes.program.price import unread
from tcc.schedule.alternatives import Seconds
from tcc.schedule.limits import Rates


@frozen
class Phases(Candidate):
    """A transposed convolution with attributes `attrs`, computed by its phases."""

    attrs: Any

    @property
    def direct(self) -> bool:
        return True

    def growth(self, site: DerivationSite) -> int:
        return 0

    def emit(
        self, b: GraphBuilder, operands: Sequence[Value], arrays: RankArrays | None
    ) -> Value | None:
        image, source, *biases = operands
        bias = biases[0] if biases else None
        weights, shift = (
            map(_contents, (source, bias)) if arrays is None else (*arrays[1:], None)[:2]
        )
        assert weights is not None
        return phases(b, self.attrs, (image, source, bias), weights, shift)


def _contents(value: Value | None) -> Any:
    """Returns zeros in the shape of a constant for all ranks, because prices do not depend on its
    elements."""
    if value is None:
        return None
    return (np.zeros([as_int(n) or 0 for n in value.type.shape], value.type.dtype.carrier),)


def by_phases(site: DerivationSite, rates: Rates) -> SearchResult:
    """Returns the phases of a site that is a transposed convolution, as a candidate.

    There is no candidate if `searched` finds the phases, or if `phases` cannot compute the site.
    """
    (node,) = site.nodes
    if node.op.name != "conv_transpose" or is_derived(node):
        return SearchResult(None, (), 0)
    image, weights = site.operands[:2]
    terms = prod(as_int(n) or 1 for n in weights.type.shape[1:])
    products = (as_int(element_count(image.type.shape)) or 1) * terms
    candidate = Phases("phases", Seconds(products / rates.products), node.attrs)
    b = GraphBuilder("trial")
    trial = candidate.emit(b, [unread(b, v.type) for v in site.operands], None)
    return SearchResult(None, () if trial is None else (candidate,), 0)
