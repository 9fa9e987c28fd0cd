"""Conformance tests of every backend in the table of backends.

A new backend is tested by its row; with a row in `conformance_runs.RUNS` its code runs too.
"""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest
from tcc.driver import compile_model
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.index import nonnegative
from tcc.passes.fuse.partition import partition
from tcc.passes.layout.assign import assign_layouts
from tcc.variants import BACKENDS

from tests.lib.interpreter.running import NEEDS_TRITON

from .conformance_cases import CASES, HARD, Array, Case
from .conformance_runs import REFUSED, RUNS, UNPRICED, interpreted, lowered, options_of

KINDS = [
    pytest.param(kind, marks=NEEDS_TRITON if RUNS.get(kind) is interpreted else ())
    for kind in BACKENDS
]
pytestmark = pytest.mark.xdist_group("conformance")


def agree(case: Case, got: list[Array], want: tuple[Array, ...]) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        one = np.asarray(one)
        assert one.shape == other.shape
        if one.dtype.kind == "f":
            most = max(float(np.abs(other).max(initial=0.0)), 1e-3)
            assert np.abs(one.astype(np.float64) - other).max(initial=0.0) <= case.tolerance * most
        else:
            assert np.array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_numpy(name: str, kind: str, tmp_path: Path) -> None:
    case = CASES[name]
    if (kind, name) in REFUSED:
        with pytest.raises(UserError):
            RUNS[kind](case.model, kind, tmp_path)
        return
    if kind not in RUNS:
        conformance_case = lowered(case.model, kind)
        names = [f"kernel{n}" for n in range(len(conformance_case.lowered.kernels))]
        assert len(conformance_case.code.generate(conformance_case.lowered, names).listings) == len(
            names
        )
        return
    run = RUNS[kind](case.model, kind, tmp_path)
    for size in case.sizes:
        feeds = case.inputs(np.random.default_rng(size), size)
        agree(case, list(run(feeds)), case.means(**feeds))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", HARD)
def test_unsupported_ops_are_refused_by_name(name: str, kind: str, tmp_path: Path) -> None:
    case, refused = HARD[name], ""
    run = None
    try:
        if kind in RUNS:
            run = RUNS[kind](case.model, kind, tmp_path)
        else:
            lowered(case.model, kind)
    except UserError as error:
        refused = f"{error}".replace("_", "").lower()
    if refused:
        assert name.lower() in refused
    elif run is not None:
        feeds = case.inputs(np.random.default_rng(1), 1)
        agree(case, list(run(feeds)), case.means(**feeds))


@pytest.mark.parametrize("kind", KINDS)
def test_two_compiles_give_equal_bytes_and_the_lines_of_the_manifest(
    kind: str, tmp_path: Path
) -> None:
    case, suffix = CASES["broadcast"], BACKENDS[kind].suffix
    paths = [tmp_path / part / f"model{suffix}" for part in ("one", "two")]
    results = []
    for path in paths:
        path.parent.mkdir()
        results.append(compile_model(case.model, options_of(kind), path))
    one, two = ({f.name: f.read_bytes() for f in path.parent.iterdir()} for path in paths)
    assert one == two
    assert f"model{suffix}" in one
    assert "model.h" in one
    (variant,) = results[0].summary.variants
    assert variant.target.startswith(kind)
    assert (variant.kernels, variant.weights) == (1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_are_described(kind: str) -> None:
    case = lowered(CASES["matmul"].model, kind)
    names = [f"kernel{n}" for n in range(len(case.lowered.kernels))]
    facts = case.code.generate(case.lowered, names).facts
    assert [k["symbol"] for k in facts["kernels"]] == names
    assert all(k["source"] and k["flops"] >= 0 for k in facts["kernels"])
    if kind not in UNPRICED:
        assert all(0 < k["seconds"] < 1 for k in facts["kernels"])
        assert facts["machine"]["name"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["matmul", "reductions", "convolution"])
def test_passes_see_schedules_and_prices(name: str, kind: str) -> None:
    case = lowered(CASES[name].model, kind)
    planner = case.code.planner
    for bound in case.lowered.table.bounds:
        candidates = planner.candidates(bound.group)
        assert candidates
        assert len(set(candidates)) == len(candidates)
        least = planner.least_units(bound)
        assert least is None or nonnegative(least - 1)
        planner.verify(bound.kernel)
        if kind in UNPRICED:
            continue
        seconds = [planner.price(bound.group, schedule) for schedule in candidates]
        assert all(s > 0 for s in seconds)
        assert min(seconds) < inf
    if kind in UNPRICED:
        return
    graph = load_model(CASES[name].model, {})
    placed = assign_layouts(graph, partition(graph, planner), planner)
    kernels = [step.kernel for step in placed.steps if step.kernel is not None]
    assert kernels
    assert all(planner.seconds(k, placed.layouts, graph.constants) > 0 for k in kernels)
