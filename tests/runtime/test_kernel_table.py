"""The table of kernels computes its figures correctly, from the right fields of a manifest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tcc.cli.kernels.facts import kernel_facts
from tcc.errors import UserError
from tcc.runtime import terminal
from tcc.runtime.kernel_table import (
    KernelRow,
    StepTime,
    contraction_line,
    contractions,
    kernel_rows,
    kernel_table,
    symbolic_sizes_line,
)
from tcc.runtime.reports import InputError

MANIFEST: dict[str, Any] = {
    "variants": [
        {
            "machine": {"flops_per_second": 1e9, "bytes_per_second": 1e8},
            "steps": [0, 1, "sort", 0],
            "kernels": [
                {"symbol": "k0", "source": "a", "flops": 1000, "bytes": 10, "seconds": 2e-6}
                | {"contraction_flops": 900},
                {"symbol": "k1", "source": "b", "flops": 0, "bytes": 400, "seconds": 8e-6}
                | {"contraction_flops": 0},
            ],
        }
    ],
}
VARIANT = MANIFEST["variants"][0]
PATH = Path("model.so")


def table_lines(rows: Sequence[KernelRow]) -> list[str]:
    return list(terminal.lines([kernel_table(rows)], None))


def test_rows_add_up_all_launches_and_come_longest_first() -> None:
    facts = kernel_facts(MANIFEST, PATH)
    rows = kernel_rows(facts, None)
    assert [(r.name, r.launches, r.flops, r.bytes) for r in rows] == [
        ("k1", 1, 0, 400),
        ("k0", 2, 2000, 20),
        ("sort", 1, None, None),
    ]
    # k0: 2000 flop at 1 Gflop/s take 2 us of 4; k1: 400 bytes at 100 MB/s take 4 us of 8.
    assert [(r.bound, r.share) for r in rows] == [
        ("bytes", pytest.approx(0.5)),
        ("flops", pytest.approx(0.5)),
        (None, None),
    ]


def test_measured_times_decide_order_and_share() -> None:
    seconds = (8e-6, 5e-6, 9e-6, 8e-6)
    times = [StepTime(s, 1, t) for s, t in zip(VARIANT["steps"], seconds, strict=True)]
    rows = kernel_rows(kernel_facts(MANIFEST, PATH), times)
    assert [r.name for r in rows] == ["k0", "sort", "k1"]
    assert rows[0].measured == pytest.approx(16e-6)
    assert rows[0].share == pytest.approx(2e-6 / 16e-6)
    lines = table_lines(rows)
    assert lines[1].split()[:4] == ["k0", "2", "16.00", "4.00"]
    assert lines[-1].split()[:4] == ["all", "4", "30.00", "12.00"]


def test_a_limit_that_a_time_is_below_is_none() -> None:
    """k1 streams 400 bytes at 100 MB/s in 4 us; k0 streams 20 bytes in 0.2 us and computes 2000
    flop in 2 us."""
    seconds = (0.5e-6, 1e-6, 9e-6, 0.5e-6)
    times = [StepTime(s, 1, t) for s, t in zip(VARIANT["steps"], seconds, strict=True)]
    rows = {r.name: r for r in kernel_rows(kernel_facts(MANIFEST, PATH), times)}
    assert (rows["k0"].bound, rows["k0"].share) == ("bytes", pytest.approx(0.2))
    assert (rows["k1"].bound, rows["k1"].share) == ("cache", None)
    assert (rows["sort"].bound, rows["sort"].share) == (None, None)
    lines = {line.split()[0]: line for line in table_lines(list(rows.values()))}
    assert lines["k1"].split()[-2:] == ["cache", "b"]
    assert "cache" not in lines["k0"] + lines["sort"]


def test_contractions_count_with_the_whole_time_of_their_kernels() -> None:
    facts = kernel_facts(MANIFEST, PATH)
    assert contractions(facts, None) == (1800, pytest.approx(4e-6))
    times = [StepTime(s, 1, 3e-6) for s in VARIANT["steps"]]
    assert contractions(facts, times) == (1800, pytest.approx(6e-6))
    assert contraction_line(facts, times) == (
        "contractions: 0.000 Gflop in 0.01 ms, 30% of the limit of multiply-adds"
    )
    assert contraction_line(replace(facts, steps=(1,)), None) is None


def test_a_limit_is_that_of_the_longest_launch() -> None:
    """k0 has two launches, at n = 90 and n = 20; the nearest priced sizes are 100 and 25."""
    manifest = with_formulas("8*n", "0", "4*n")
    manifest["variants"][0]["kernels"][0] |= {
        "limit": "compute",
        "limit_share": 0.9,
        "times": [[800, 400, 8e-6, 12e-6], [400, 200, 4e-6, 8e-6], [200, 100, 3e-6, 4e-6]],
        "limits": [["compute", 0.9], ["L2", 0.7], ["launch", 0.5]],
    }
    facts = kernel_facts(manifest, PATH)
    for spent, limit in (((8e-6, 2e-6), ("compute", 0.9)), ((2e-6, 8e-6), ("launch", 0.5))):
        times = [
            StepTime(0, 1, spent[0], (90, 1)),
            StepTime(1, 1, 1e-6),
            StepTime("sort", 1, 1e-6),
            StepTime(0, 1, spent[1], (20, 1)),
        ]
        rows = {row.name: row for row in kernel_rows(facts, times)}
        assert (rows["k0"].limit, rows["k0"].limit_share) == limit
        assert (rows["k1"].limit, rows["k1"].limit_share) == (None, None)
        (line,) = [line for line in table_lines([rows["k0"]]) if line.startswith("k0")]
        assert line.split()[-3:] == [f"{limit[1]:.0%}", limit[0], "a"]
    typical = {row.name: row for row in kernel_rows(facts, None)}
    assert (typical["k0"].limit, typical["k0"].limit_share) == ("compute", 0.9)


def with_formulas(*formulas: str) -> dict[str, Any]:
    manifest = copy.deepcopy(MANIFEST)
    manifest["variants"][0]["kernels"][0] |= {"sizes": ["n", "m"], "formulas": list(formulas)}
    return manifest


def test_work_of_symbolic_sizes_is_that_of_the_run() -> None:
    """There are two launches, at n = 3, m = 10 and at n = 100, m = 1; the second runs twice."""
    facts = kernel_facts(with_formulas("8*n*m", "2*n*m", "4*min(n,5)+(m+1)//2"), PATH)
    times = [
        StepTime(0, 1, 3e-6, (3, 10)),
        StepTime(1, 1, 3e-6),
        StepTime("sort", 1, 3e-6),
        StepTime(0, 2, 5e-6, (100, 1)),
    ]
    rows = {row.name: row for row in kernel_rows(facts, times)}
    assert (rows["k0"].flops, rows["k0"].bytes) == (240 + 2 * 800, 17 + 2 * 21)
    assert (rows["k0"].predicted, rows["k0"].launches) == (None, 3)
    assert rows["k0"].share == pytest.approx(1840e-9 / 8e-6)
    assert contractions(facts, times) == (60 + 2 * 200, pytest.approx(8e-6))
    assert "this run" in str(symbolic_sizes_line(facts, measured=True))
    assert "typical" in str(symbolic_sizes_line(facts, measured=False))
    assert symbolic_sizes_line(kernel_facts(MANIFEST, PATH), measured=True) is None


@pytest.mark.parametrize(
    ("n", "seconds"),
    [(100, 8e-6), (25, 3e-6), (50, 4e-6), (75, 6e-6), (30, 3.2e-6), (200, 16e-6), (5, 0.6e-6)],
)
def test_predicted_times_lie_between_those_that_were_priced(n: int, seconds: float) -> None:
    """Prices exist for n = 100, 50 and 25; beyond them the time is proportional."""
    manifest = with_formulas("8*n", "0", "4*n")
    priced = [[800, 400, 8e-6, 12e-6], [400, 200, 4e-6, 8e-6], [200, 100, 3e-6, 4e-6]]
    manifest["variants"][0]["kernels"][0]["times"] = priced
    (kernel, _) = kernel_facts(manifest, PATH).kernels
    row = kernel.at((n, 1))
    assert row is not None
    assert row.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(("threads", "seconds"), [(None, 8e-6), (1, 14e-6), (2, 8e-6), (16, 8e-6)])
def test_predicted_times_are_those_of_so_many_threads(threads: int | None, seconds: float) -> None:
    """More threads than in the price are not known to be faster."""
    manifest = with_formulas("8*n", "0", "4*n")
    priced = [[800, 400, 8e-6, 14e-6], [400, 200, 4e-6, 8e-6]]
    manifest["variants"][0]["kernels"][0]["times"] = priced
    (kernel, _) = kernel_facts(manifest, PATH).kernels
    row = kernel.at((100, 1), threads)
    assert row is not None
    assert row.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    "times", [3, [1.0], [[1, 2]], [[8, 4, 1e-6]], [["8", 4, 1e-6, 1e-6]], [[8, 4, None, 1e-6]]]
)
def test_priced_times_that_are_none(times: Any) -> None:
    manifest = with_formulas("n", "n", "m")
    manifest["variants"][0]["kernels"][0]["times"] = times
    with pytest.raises(UserError, match="does not describe its kernels"):
        kernel_facts(manifest, PATH)


def test_formulas_of_any_name_are_pythons_arithmetic() -> None:
    """Names that are no words are quoted as in JSON; the expected values are computed by hand."""
    names = ["past/len", "s0.1", "min", 'a"b', "sizes"]
    manifest = with_formulas(
        '-"past/len"*2+s0.1//3-(s0.1-1) % 3', 'max("min", 2*"a\\"b")', "sizes*sizes-1"
    )
    manifest["variants"][0]["kernels"][0]["sizes"] = names
    (kernel, _) = kernel_facts(manifest, PATH).kernels
    row = kernel.at((5, 8, 4, 3, 7))
    assert row is not None
    assert (row.flops, row.contraction_flops, row.bytes) == (-10 + 2 - 1, 6, 48)


@pytest.mark.parametrize("sizes", [(3, None), ()])
def test_open_sizes_that_data_decide_give_a_measured_kernel_no_work(sizes: Any) -> None:
    facts = kernel_facts(with_formulas("n", "n", "m"), PATH)
    times = [StepTime(s, 1, 3e-6, sizes) for s in VARIANT["steps"]]
    rows = {row.name: row for row in kernel_rows(facts, times)}
    assert (rows["k0"].flops, rows["k0"].share, rows["k1"].bytes) == (None, None, 400)
    assert contraction_line(facts, times) is None


@pytest.mark.parametrize("formula", ["n//m", "n % m", "-" * 100_000 + "n"])
def test_formulas_without_a_value(formula: str) -> None:
    (kernel, _) = kernel_facts(with_formulas(formula, "n", "n"), PATH).kernels
    assert kernel.at((3, 0)) is None


@pytest.mark.parametrize(
    "formula",
    ["n+", "k", "n!", "n//0", "(" * 100_000, "2**n", "n.m", "sizes[0]", "min(n)", "1.5", "'n'", ""],
)
def test_formulas_that_are_none(formula: str) -> None:
    facts = kernel_facts(with_formulas(formula, "n", "n"), PATH)
    with pytest.raises(InputError):
        facts.kernels[0].at((3, 4))
    times = [StepTime(step, 1, 1e-3, (3, 4)) for step in facts.steps]
    with pytest.raises(InputError, match="formula of the artifact's manifest"):
        kernel_rows(facts, times)


@pytest.mark.parametrize(
    "damage",
    [
        lambda m: m["variants"][0].pop("machine"),
        lambda m: m["variants"][0].pop("steps"),
        lambda m: m["variants"][0].update(steps=[7]),
        lambda m: m["variants"][0].update(steps=[-1]),
        lambda m: m["variants"][0].update(steps=[None]),
        lambda m: m["variants"][0].update(steps=3),
        lambda m: m.update(variants=[]),
        lambda m: m["variants"][0]["machine"].update(flops_per_second=0),
        lambda m: m["variants"][0]["kernels"][0].update(flops="many"),
        lambda m: m["variants"][0]["kernels"][0].pop("source"),
        lambda m: m["variants"][0]["kernels"][0].update(sizes=1),
        lambda m: m["variants"][0]["kernels"][0].update(formulas=[1]),
        lambda m: m["variants"][0].update(kernels=[3]),
        lambda m: m["variants"][0]["kernels"][0].update(limit=3),
        lambda m: m["variants"][0]["kernels"][0].update(limit_share="most"),
        lambda m: m["variants"][0]["kernels"][0].update(limits=[["compute", 0.9]]),
        lambda m: m["variants"][0]["kernels"][0].update(times=[[1, 1, 1, 1]], limits=[[0.9, "L2"]]),
    ],
)
def test_a_damaged_manifest_is_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    manifest = copy.deepcopy(MANIFEST)
    damage(manifest)
    with pytest.raises(UserError, match="does not describe its kernels"):
        kernel_facts(manifest, PATH)
