"""The search of derivations: guided by the obstacles of a region first, then by every rule, within
a budget of states.

States are regions, identified by their fingerprints.  A queue orders the states to expand by their
number of unguided steps, then by the length of their chains: so a state is expanded once, with the
fewest of both (limited discrepancy search; Harvey and Ginsberg 1995).  The states of a budget are
the first states of every larger budget, so a larger budget finds no less.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from tcc.ir.region import Region
from tcc.ir.region.canonical import fingerprint
from tcc.passes.derive.derivation import applied
from tcc.passes.derive.guide import Steps, apply_free_steps, is_regular, moves, repairs
from tcc.passes.derive.rules import RULES
from tcc.passes.derive.rules.rule import Refused

BUDGET = 500
_MOST_STEPS = 24


class DerivationState(NamedTuple):
    """A region with the steps that lead to it."""

    region: Region
    chain: Steps

    @property
    def text(self) -> tuple[str, ...]:
        """The steps as text that `replay` reads."""
        return tuple(map(str, self.chain))


class Derivation(NamedTuple):
    """The result of a search: `candidates` are all regions whose contractions run at peak, in the
    order of discovery; `states` is the number of visited states."""

    candidates: tuple[DerivationState, ...]
    states: int


def search(
    region: Region, budget: int = BUDGET, strict: bool = False, guided: bool = False
) -> Derivation:
    """Derives regions from `region` until `budget` states are visited or no step is left.

    `strict` allows only rules that keep the order of every sum, `guided` only steps that remove an
    obstacle.  Each step proves its own conditions; nothing is evaluated here.
    """
    visited: set[bytes] = set()
    candidates: list[DerivationState] = []
    queue: list[tuple[int, int, int, bool, DerivationState]] = []

    def see(state: DerivationState, extra: int) -> None:
        settled_region, more = apply_free_steps(state.region, strict)
        state = DerivationState(settled_region, (*state.chain, *more))
        key = fingerprint(state.region)
        if key not in visited:
            visited.add(key)
            if is_regular(state.region):
                candidates.append(state)
            heappush(queue, (extra, len(state.chain), len(visited), False, state))

    see(DerivationState(region, ()), 0)
    while queue and len(visited) < budget:
        extra, length, number, explores, state = heappop(queue)
        for steps in moves(state.region) if explores else repairs(state.region):
            new = _after(state, steps, strict)
            if new is not None and len(visited) < budget:
                see(new, extra)
        if not (explores or guided) and length < _MOST_STEPS:
            heappush(queue, (extra + 1, length, number, True, state))
    return Derivation(tuple(candidates), len(visited))


def _after(state: DerivationState, steps: Steps, strict: bool) -> DerivationState | None:
    """Returns the state after more steps; None where a rule refuses, or reorders a sum in strict
    mode."""
    region = state.region
    try:
        for step in steps:
            if strict and not RULES[step.rule].strict:
                return None
            region = applied(region, step)
    except Refused:
        return None
    return DerivationState(region, (*state.chain, *steps))
