"""Choices for several places have the least total price within the byte limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcc.passes.choose.beam import EXACT, Link, Picks, choose_together
from tcc.schedule.alternatives import Alternative

Option = partial(Alternative, "")
Places = Sequence[Sequence[Alternative[str]]]
Table = Mapping[tuple[int, int], Sequence[Sequence[float]]]


def links_of(table: Table) -> dict[tuple[int, int], Link]:
    return {pair: lambda a, b, costs=costs: costs[a][b] for pair, costs in table.items()}


def total(places: Places, table: Table, picks: Picks) -> float:
    own_price = sum(options[pick].price for options, pick in zip(places, picks, strict=True))
    return own_price + sum(costs[picks[a]][picks[b]] for (a, b), costs in table.items())


def test_places_alone_take_their_cheapest_option() -> None:
    places = [[Option(5), Option(4)], [Option(3), Option(7)]]
    assert choose_together(places, {}, 0) == (1, 0)
    assert choose_together([], {}, 0) == ()


def test_neighbours_that_gain_together_beat_each_ones_best() -> None:
    # The second option is the best for each place alone; adjacent third options save 3.
    places = [[Option(9), Option(4), Option(5)]] * 3
    saved = [[0, 0, 0], [0, 0, 0], [0, 0, -3]]
    table: Table = {(0, 1): saved, (1, 2): saved}
    picks = choose_together(places, links_of(table), 0)
    assert picks == (2, 2, 2)
    assert total(places, table, picks) < total(places, table, (1, 1, 1))


def test_a_long_chain_is_seen_through_by_its_cheapest_beginnings() -> None:
    count = 40
    assert 3**count > EXACT
    places = [[Option(9), Option(4), Option(5)]] * count
    saved = [[0, 0, 0], [0, 0, 0], [0, 0, -3]]
    table: Table = {(n, n + 1): saved for n in range(count - 1)}
    assert choose_together(places, links_of(table), 0) == (2,) * count


def test_room_goes_to_the_largest_saving_per_byte() -> None:
    places = [[Option(10), Option(4, 6)], [Option(10), Option(5, 1)], [Option(10), Option(3, 6)]]
    assert choose_together(places, {}, 7) == (0, 1, 1)
    assert choose_together(places, {}, 0.5) == (0, 0, 0)
    many = [[Option(10), Option(9, 5)]] * 30 + [[Option(10), Option(1, 5)]] * 2
    assert choose_together(many, {}, 10) == (0,) * 30 + (1,) * 2  # no room is left for the last


@st.composite
def problems(draw: st.DrawFn) -> tuple[Places, Table, int]:
    costs, bytes_ = st.integers(0, 9), st.integers(0, 4)
    places = [
        [Option(draw(costs)), *draw(st.lists(st.builds(Option, costs, bytes_), max_size=2))]
        for _ in range(draw(st.integers(1, 4)))
    ]
    table = {
        (a, b): [[draw(costs) - 4 for _ in places[b]] for _ in places[a]]
        for b in range(len(places))
        for a in range(b)
        if draw(st.booleans())
    }
    return places, table, draw(st.integers(0, 8))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_few_combinations_are_all_looked_at(
    problem: tuple[Places, Table, int],
) -> None:
    places, table, room = problem
    picks = choose_together(places, links_of(table), room)
    fitting = [
        p
        for p in product(*(range(len(o)) for o in places))
        if sum(o[n].bytes for o, n in zip(places, p, strict=True)) <= room
    ]
    assert picks in fitting
    least = min(total(places, table, p) for p in fitting)
    assert total(places, table, picks) == pytest.approx(least)
