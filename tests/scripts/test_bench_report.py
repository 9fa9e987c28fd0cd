"""Goals, tables and charts of `scripts/bench` follow from hand-written results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tcc.runtime.interleaved import best_ratio

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import bench_table
import goals
from chart import Bar, bar_chart


def times(median: float, best: float) -> dict[str, Any]:
    """Returns two rounds: the best, and a slower round that gives the median."""
    return {
        "least": best,
        "median": median,
        "best": best,
        "rounds": [best, 2 * median - best],
        "runs": 9,
    }


def row(tcc: tuple[float, float], **peers: Any) -> dict[str, Any]:
    peer_times = {k: times(*v) if isinstance(v, tuple) else v for k, v in peers.items()}
    return {
        "peers": {"tcc": times(*tcc), **peer_times},
        "peaks": {"flops": [1e11, 2e11], "read": [1e10, 2e10]},
        "flops": 4e8,
        "traffic": {"launches": 7, "bytes": 3_000_000, "weights": 2_000_000, "unfused": 9_000_000},
        "kernels": 5,
        "compile_seconds": 1.0,
    }


def results(models: dict[str, Any], precision: str = "f32", batch: int = 1) -> dict[str, Any]:
    return {
        "target": "cpu",
        "date": "2026-01-01",
        "precision": precision,
        "batch": batch,
        "threads": 2,
        "rounds": 2,
        "peers": list(goals.BASELINES[precision]),
        "models": models,
    }


def test_goals_are_of_the_ratio_within_rounds() -> None:
    report = results({"csrnet": row((0.010, 0.008), ort=(0.030, 0.024), openvino=(0.022, 0.016))})
    assert goals.goal_ratio(report, "csrnet") == pytest.approx((16 / 8 + 28 / 12) / 2)
    (verdict,) = goals.judge(report)
    assert (verdict.what, verdict.goal, verdict.text) == ("ratio", 2.2, "MISSED")


def test_a_missing_baseline_leaves_a_goal_open() -> None:
    run_results = results(
        {"lstm": row((0.01, 0.01), ort=(0.05, 0.05), openvino={"absent": "gone"})}
    )
    (verdict,) = goals.judge(run_results)
    assert (verdict.text, verdict.met) == ("unknown", False)
    text = bench_table.table(run_results)
    assert "openvino: gone" in text
    assert "0 of 1 goals met" in text


def test_disturbed_turns_are_named() -> None:
    peers = {"ort": (0.02, 0.02), "openvino": (0.03, 0.02)}
    one, other = row((0.01, 0.01), **peers), row((0.01, 0.01), **peers)
    one["peers"]["ort"]["disturbed"] = 2
    one["peers"]["tcc"]["disturbed"] = 1
    text = bench_table.table(results({"lstm": one, "unet": other}))
    assert "measurements on a disturbed machine: lstm 3\n" in text


def test_pairs_are_taken_round_by_round() -> None:
    one = row((0.01, 0.01), ort=(0.02, 0.02), openvino=(0.03, 0.03))
    one["peers"]["tcc"]["rounds"] = [0.01, 0.02, 0.04]
    one["peers"]["ort"]["rounds"] = [0.02, 0.05, 0.04]
    one["peers"]["openvino"]["rounds"] = [0.03, 0.03, 0.03]
    assert goals.ratio(one, ("ort", "openvino")) == pytest.approx(1.5)  # ratios 2, 1.5, 0.75
    assert goals.ratio(one, ("ort", "openvino"), best_ratio) == pytest.approx(2.0)
    assert goals.ratio(one, ("iree",)) is None


def test_derivations_have_a_column_where_both_were_timed() -> None:
    one = row((0.01, 0.01), ort=(0.02, 0.02), openvino=(0.03, 0.03))
    run_results = results({"unet": one})
    assert "derived" not in bench_table.table(run_results)
    one["peers"]["no-derive"] = {**times(0.03, 0.02), "rounds": [0.022, 0.018]}
    one["peers"]["tcc"]["rounds"] = [0.01, 0.01]
    with_peer = {**run_results, "peers": ["no-derive", *run_results["peers"]]}
    columns, cells = bench_table.columns(with_peer), bench_table.cells(with_peer, "unet")
    assert cells[columns.index("derived")] == "2.00"
    assert cells[columns.index("no-derive")] == "30.000"
    assert len(columns) == len(cells)
    assert "time without derivations" in bench_table.table(with_peer)


def test_the_mean_needs_every_model() -> None:
    rows = {m: row((0.01, 0.01), **{"openvino-bf16": (0.02, 0.02)}) for m in ("a", "b")}
    rows["b"]["peers"]["openvino-bf16"] = times(0.005, 0.005)
    last = list(goals.judge(results(rows, "bf16")))
    assert [v.text for v in last] == ["met", "MISSED", "MISSED"]
    assert last[-1].value == pytest.approx(1.0)  # of 2 and 0.5
    assert not any("mean" in v.what for v in goals.judge(results({"lstm": row((1, 1))})))


def test_the_goal_of_decoding_is_the_bandwidth() -> None:
    run_results = results({"gpt2_decode": row((125e-6, 1e-4), ort=(1, 1), openvino=(1, 1))})
    (verdict,) = goals.judge(run_results)  # 2 MB in 125 us are 16 GB/s of 20
    assert (verdict.value, verdict.text) == (pytest.approx(0.8), "MISSED")


def test_the_table_lines_up_and_says_all() -> None:
    one = row((0.002, 0.002), ort=(0.003, 0.003), openvino=(0.005, 0.004))
    text = bench_table.table(results({"unet": one, "resnet50": one}, batch=8))
    head, first, second = text.split("\n\n")[1].splitlines()
    assert len(first) == len(second) == len(head)
    cells = dict(zip(head.split()[2:4], first.split()[2:4], strict=True))
    assert cells == {"ort": "3.000", "(best)": "3.000"}
    assert first.split()[-4:] == ["3.0", "9.0", "100%", "5%"]
    assert second.split()[8:10] == ["1.00", "met"]


def test_no_text_of_a_chart_is_cut() -> None:
    """The test also assumes Verdana, whose letters have an average width of 0.6 of their size."""
    bars = [Bar("m" + "odel" * n, n / 3, n / 2) for n in range(1, 12)]
    root = ElementTree.fromstring(bar_chart("word " * 60, "note " * 90, [*bars, Bar("x", None, 9)]))
    widest, texts = float(root.get("width", "")), root.findall("{*}text")
    assert len(texts) > 26, "headings of several lines"
    for text in texts:
        at, letters = float(text.get("x", "")), len(text.text or "")
        width = letters * 0.6 * float(text.get("font-size", "12"))
        begin = at - width if text.get("text-anchor") == "end" else at
        assert begin >= 0
        assert begin + width <= widest
    heads = [float(t.get("y", "")) for t in texts if t.get("x") == "12"]
    first = min(float(r.get("y", "0")) for r in root.findall("{*}rect")[1:])
    assert max(heads) < first


def test_a_chart_is_well_formed_and_to_scale() -> None:
    svg = bar_chart("a < b", "", [Bar("x & y", 2.0, 1.0), Bar("z", None, None)])
    root = ElementTree.fromstring(svg)
    (bar,) = (r for r in root.findall("{*}rect") if r.get("x") == "120")
    line = next(e for e in root.findall("{*}line") if not e.get("stroke-dasharray"))
    assert float(bar.get("width", "")) == 2 * (float(line.get("x1", "")) - 120)
    assert [t.text for t in root.findall("{*}text")][1:] == ["x & y", "2.00", "z", "not measured"]
