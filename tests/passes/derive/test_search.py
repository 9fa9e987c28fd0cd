"""Searches find the goal of each case without a list of rules, and the result is exact."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from tcc.errors import UserError
from tcc.ir.region.canonical import fingerprint
from tcc.ir.region.check import equal_at
from tcc.passes.derive.derivation import parse_step, replay
from tcc.passes.derive.rules import RULES
from tcc.passes.derive.search import search

from .derivations import CASES, price, random_chain, random_region, reached
from .mistakes import agree, wrong_chain, wrong_result


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_found_and_replays(name: str) -> None:
    case = CASES[name]
    region = case.full()
    found = search(region, case.states)
    for state in reached(case, found.candidates):
        assert state is not None
        assert fingerprint(replay(region, state.text)) == fingerprint(state.region)


@pytest.mark.parametrize("name", CASES)
def test_candidates_of_small_cases_are_exact_everywhere(name: str) -> None:
    region = CASES[name].small()
    found = search(region, 40)
    assert len(found.candidates) > 1
    for state in random.Random(0).sample(found.candidates, min(8, len(found.candidates))):
        assert agree(region, state.region)
        assert equal_at(region, state.region, points=4)


def test_a_larger_budget_finds_more_and_ends_alike() -> None:
    region = CASES["transposed 4x4 s2"].full()
    found = [search(region, budget).candidates for budget in (1, 4, 8, 12, 16)]
    assert all(more[: len(less)] == less for less, more in pairwise(found))
    assert len(found[-1]) > len(found[0])
    assert search(region, 16) == search(region, 16)


def test_strict_searches_keep_the_order_of_sums() -> None:
    region = CASES["band d4"].full()
    found = search(region, 10, strict=True)
    assert reached(CASES["band d4"], found.candidates) != [None]
    rules = {step.rule for state in found.candidates for step in state.chain}
    assert rules
    assert all(RULES[rule].strict for rule in rules)
    conv = search(CASES["3x3"].full(), 20, strict=True)
    assert reached(CASES["3x3"], conv.candidates) == [None]


def test_a_convolution_stays_as_it_is_by_price() -> None:
    found = search(CASES["3x3"].full(), CASES["3x3"].states)
    assert min(found.candidates, key=lambda state: price(state.region)).chain == ()


@pytest.mark.parametrize("seed", range(120))
def test_random_chains_are_exact_everywhere(seed: int) -> None:
    rng = random.Random(seed)
    region = random_region(rng)
    derived, chain = random_chain(region, rng)
    text = [str(step) for step in chain]
    assert [parse_step(line) for line in text] == chain
    assert agree(region, derived), text
    assert equal_at(region, derived, points=4), text


# ---- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_wrong_chain_is_refused_or_no_wrong_one(seed: int) -> None:
    origin, made = wrong_chain(seed)
    assert made is None or agree(origin, made)


@pytest.mark.parametrize("seed", range(40))
def test_a_wrong_result_is_seen(seed: int) -> None:
    origin, wrong = wrong_result(seed)
    assert equal_at(origin, wrong) == agree(origin, wrong)


def test_a_chain_that_fails_names_its_step() -> None:
    region = CASES["3x3"].small()
    chain = ["nest stage=0 loops=5,6", "skew stage=0 loop=2 by=9 step=1"]
    with pytest.raises(UserError, match="step 2: skew") as caught:
        replay(region, chain)
    assert "loop 9 has no extent" in str(caught.value)
    for line in ("", "turn stage=0", "nest stage=0 loops=a", "skew stage=0 loop=1,2 by=3 step=1"):
        with pytest.raises(UserError, match="step 1"):
            replay(region, [line])
