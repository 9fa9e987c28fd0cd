"""Computes transposed convolutions phase by phase.

A phase is the results whose positions are equal modulo the stride.  Each phase is a convolution
with a part of the filter's taps.  If phases have unequal numbers of taps, the search of derivations
could find these convolutions only by adding taps of weight zero; so this module proposes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.index import as_int
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
    """Returns an array of zeros with the shape of a constant, as the array of all ranks.

    Prices do not depend on the elements of a constant.
    """
    if value is None:
        return None
    return (np.zeros([as_int(n) or 0 for n in value.shape], value.dtype.carrier),)


def by_phases(site: DerivationSite, rates: Rates) -> SearchResult:
    """Returns the candidate that computes a transposed convolution by its phases.

    There is no candidate if `rewritten.searched` finds the phases, or if `decompose.phases` cannot
    compute them.
    """
    (node,) = site.nodes
    if node.op.name != "conv_transpose" or is_derived(node):
        return SearchResult(None, (), 0)
    image, weights = site.operands[:2]
    terms = prod(as_int(n) or 1 for n in weights.shape[1:])
    products = (image.type.count or 1) * terms
    candidate = Phases("phases", Seconds(products / rates.products), node.attrs)
    b = GraphBuilder("trial")
    trial = candidate.emit(b, [unread(b, v.type) for v in site.operands], None)
    return SearchResult(None, () if trial is None else (candidate,), 0)
