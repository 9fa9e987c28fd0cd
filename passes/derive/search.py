"""The search of derivations: by what a region lacks first, then by every rule, within a budget.

States are regions, known by their fingerprints.  A queue holds those to go on from, fewest steps
that nothing asked for first, then shortest chains: so a state is expanded once, with the fewest of
both (limited discrepancy search; Harvey and Ginsberg 1995).  The states of a budget are the first
of those of a larger one, which therefore finds no less.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from tcc.passes.derive.canonical import fingerprint
from tcc.passes.derive.derivation import applied
from tcc.passes.derive.guide import Steps, is_regular, moves, settled, wanted
from tcc.passes.derive.record import Region
from tcc.passes.derive.rules import RULES
from tcc.passes.derive.rules.rule import Refused

BUDGET = 500
_MOST_STEPS = 24


class State(NamedTuple):
    """A region with the steps that lead to it."""

    region: Region
    chain: Steps

    @property
    def text(self) -> tuple[str, ...]:
        """The steps, which `replay` reads."""
        return tuple(map(str, self.chain))


class Derivation(NamedTuple):
    """The `candidates` of a search, all regions whose contractions run at peak, in the order found,
    and how many `states` it saw."""

    candidates: tuple[State, ...]
    states: int


def search(
    region: Region, budget: int = BUDGET, strict: bool = False, guided: bool = False
) -> Derivation:
    """Derives from `region` until `budget` states are seen or no step is left.

    `strict` keeps to the rules that change no order of a sum, `guided` to the steps that mend what
    a contraction lacks.  Steps hold by their own conditions; nothing is evaluated here.
    """
    seen: set[bytes] = set()
    found: list[State] = []
    queue: list[tuple[int, int, int, bool, State]] = []

    def see(state: State, extra: int) -> None:
        settled_region, more = settled(state.region, strict)
        state = State(settled_region, (*state.chain, *more))
        key = fingerprint(state.region)
        if key not in seen:
            seen.add(key)
            if is_regular(state.region):
                found.append(state)
            heappush(queue, (extra, len(state.chain), len(seen), False, state))

    see(State(region, ()), 0)
    while queue and len(seen) < budget:
        extra, length, number, explores, state = heappop(queue)
        for steps in moves(state.region) if explores else wanted(state.region):
            new = _after(state, steps, strict)
            if new is not None and len(seen) < budget:
                see(new, extra)
        if not (explores or guided) and length < _MOST_STEPS:
            heappush(queue, (extra + 1, length, number, True, state))
    return Derivation(tuple(found), len(seen))


def _after(state: State, steps: Steps, strict: bool) -> State | None:
    """The state after more steps; None where a rule refuses, or reorders a sum in strict mode."""
    region = state.region
    try:
        for step in steps:
            if strict and not RULES[step.rule].strict:
                return None
            region = applied(region, step)
    except Refused:
        return None
    return State(region, (*state.chain, *steps))
