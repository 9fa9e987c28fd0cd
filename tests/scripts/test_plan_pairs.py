"""Plans of models of a few sizes agree with the rule that divides columns, then rows."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.costs import one_host
from tcc.distributed.mesh import Mesh
from tcc.distributed.plan import texts_of
from tcc.distributed.solve import solved

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from bars.pairs import MODELS, PAIRS, SMALL, rule, seconds_of
from bars.shapes import llama


def test_there_are_ten_pairs_of_a_model_and_a_cluster() -> None:
    assert len({(model, ranks) for model, ranks, _ in PAIRS}) == 10
    assert {model for model, _, _ in PAIRS} == set(MODELS)


@pytest.mark.parametrize("number", [0, 1, 3, 4])
def test_plans_are_never_dearer_than_the_rule(number: int) -> None:
    model, _, cluster = PAIRS[number]
    free, ruled = seconds_of(MODELS[model](), cluster)
    assert 0 < free <= ruled


def test_the_rule_alternates_between_columns_and_rows() -> None:
    graph = llama(replace(SMALL, layers=1))
    for sizes in ((2,), (2, 2)):
        fixed = rule(graph, Mesh(sizes))
        texts = Counter(texts_of(items) for items in fixed.values())
        columns, rows, table = (
            (text,) * len(sizes)
            for text in (
                "whole, split(1) -> split(1)",
                "split(1), split(0) -> partial(sum)",
                "split(0), whole -> partial(sum)",
            )
        )
        # Queries, keys, values, gate, up and the head; the output of attention, and down.
        assert texts == {columns: 6, rows: 2, table: 1}


def test_equal_layers_cost_as_much_as_one_another() -> None:
    seconds = [
        solved(llama(replace(SMALL, layers=count)), one_host(4), partition_solver(), {}).seconds
        for count in (1, 2, 3, 6)
    ]
    layer = seconds[1] - seconds[0]
    assert seconds[2] - seconds[1] == pytest.approx(layer, rel=1e-9)
    assert seconds[3] - seconds[0] == pytest.approx(5 * layer, rel=1e-9)
