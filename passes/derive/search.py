"""Searches derivations of a region, until a budget of states is used up.

A step removes an obstacle: an index that keeps a contraction from peak speed (guide.py).  A state
is a region with the steps that lead to it.  Regions of equal fingerprints are the same state.

A queue holds the states to expand, in the order of their numbers of steps.  So each state is
expanded once, with the fewest steps that lead to it.  A larger budget visits the same states first,
and then more, so it finds at least as much.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from tcc.ir.region import Region
from tcc.ir.region.canonical import fingerprint
from tcc.passes.derive.derivation import applied
from tcc.passes.derive.guide import Steps, apply_free_steps, is_regular, repairs
from tcc.passes.derive.rules import RULES
from tcc.passes.derive.rules.rule import Refused

BUDGET = 500


class DerivationState(NamedTuple):
    """A region with the steps that lead to it."""

    region: Region
    chain: Steps

    @property
    def text(self) -> tuple[str, ...]:
        """The steps as text that `replay` reads."""
        return tuple(map(str, self.chain))


class Derivation(NamedTuple):
    """The result of a search.

    `candidates` are the states whose regions have no obstacle left (`guide.is_regular`), so that
    their contractions run near the machine's peak.  They are in the order of discovery.  `states`
    is the number of visited states.
    """

    candidates: tuple[DerivationState, ...]
    states: int


def search(region: Region, budget: int = BUDGET, strict: bool = False) -> Derivation:
    """Derives regions from `region` until `budget` states are visited or no step is left.

    If `strict`, only rules that keep the order of every sum are used.  Each step proves its own
    conditions, so no region is evaluated here.
    """
    visited: set[bytes] = set()
    candidates: list[DerivationState] = []
    queue: list[tuple[int, int, DerivationState]] = []

    def see(state: DerivationState) -> None:
        settled_region, more = apply_free_steps(state.region, strict)
        state = DerivationState(settled_region, (*state.chain, *more))
        key = fingerprint(state.region)
        if key not in visited:
            visited.add(key)
            if is_regular(state.region):
                candidates.append(state)
            heappush(queue, (len(state.chain), len(visited), state))

    see(DerivationState(region, ()))
    while queue and len(visited) < budget:
        *_, state = heappop(queue)
        for steps in repairs(state.region):
            new = _after(state, steps, strict)
            if new is not None and len(visited) < budget:
                see(new)
    return Derivation(tuple(candidates), len(visited))


def _after(state: DerivationState, steps: Steps, strict: bool) -> DerivationState | None:
    """Returns the state after more steps.

    Returns None if a rule refuses a step, or if `strict` and a rule reorders sums.
    """
    region = state.region
    try:
        for step in steps:
            if strict and not RULES[step.rule].strict:
                return None
            region = applied(region, step)
    except Refused:
        return None
    return DerivationState(region, (*state.chain, *steps))
