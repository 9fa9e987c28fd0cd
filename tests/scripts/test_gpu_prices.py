"""`scripts/gpu_check` notes the parts of prices, and `price_check --gpu` fits constants to
times."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the reference needs torch")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import price_main

from gpu import fit, report, worker
from gpu.build import compile_with_tcc, kernel_item, make_folder
from gpu.devices import Cpu
from gpu.kernels import SMALL, kernels
from tests.lib.interpreter.running import NEEDS_TRITON

pytestmark = pytest.mark.xdist_group("gpu-check")

FACTORS = {"launch": 1.4, "units": 0.8, "lanes": 1.3, "latency": 1.6, "dram": 0.9, "l2": 1.2}


def kernels_of(seed: int, count: int) -> list[dict[str, Any]]:
    """Returns the parts of prices in which each part is at times the largest."""
    rng = np.random.default_rng(seed)
    names = ("compute", "latency", "dram", "l2")
    return [
        {
            **{name: float(10 ** rng.uniform(-6.5, -3.5)) for name in names},
            "launch": 2e-6,
            "units": bool(rng.integers(2)),
        }
        for _ in range(count)
    ]


def timed(parts: list[dict[str, Any]], factors: dict[str, float]) -> list[fit.Timed]:
    """Returns the times of kernels whose constants are changed by the factors, by the formula of
    the compiler's price."""
    rows = []
    for number, part in enumerate(parts):
        compute = part["compute"] * (factors["units"] if part["units"] else factors["lanes"])
        terms = (
            max(compute, part["latency"] * factors["latency"]),
            part["dram"] * factors["dram"],
            part["l2"] * factors["l2"],
        )
        seconds = part["launch"] * factors["launch"] + sum(t**4 for t in terms) ** 0.25
        rows.append(fit.Timed(f"kernel {number}", seconds, (part,)))
    return rows


def test_known_constants_are_recovered() -> None:
    factors = fit.fitted(timed(kernels_of(1, 80), FACTORS))
    assert factors == pytest.approx(FACTORS, rel=0.01, abs=0.0)


def test_a_tenth_of_wrong_prices_moves_the_constants_little() -> None:
    rows, rng = timed(kernels_of(2, 240), FACTORS), np.random.default_rng(3)
    noisy = [
        fit.Timed(row.name, row.seconds * float(np.exp(rng.normal(0, 0.05))), row.parts)
        for row in rows
    ]
    noisy[::10] = [fit.Timed(row.name, 4 * row.seconds, row.parts) for row in noisy[::10]]
    factors = fit.fitted(noisy)
    assert factors == pytest.approx(FACTORS, rel=0.15, abs=0.0)
    assert fit.holding(noisy, factors) > 0.85 > fit.holding(noisy, dict.fromkeys(FACTORS, 1.0))


def test_a_factor_that_no_time_depends_on_stays_one() -> None:
    parts = [{**part, "units": True} for part in kernels_of(4, 40)]
    assert fit.fitted(timed(parts, FACTORS))["lanes"] == pytest.approx(1.0, rel=1e-6, abs=0.0)
    with pytest.raises(ValueError, match="no time has a price"):
        fit.fitted([])


def test_price_check_reads_the_results_of_a_run(tmp_path: Path) -> None:
    rows = timed(kernels_of(5, 40), FACTORS)
    items = {
        row.name: {
            "facts": {"kind": "kernel", "priced": [{"seconds": 1e-6, "parts": row.parts[0]}]},
            "seconds": row.seconds,
        }
        for row in rows[:-2]
    }
    steps = [{"source": "memcpy"}, *({"source": r.name, "parts": r.parts[0]} for r in rows[-2:])]
    seconds = [1e-6, *(row.seconds for row in rows[-2:])]
    items["net"] = {"facts": {"kind": "model", "priced": steps}, "step_seconds": seconds}
    results = {"rehearsal": False, "items": items}
    assert [row.seconds for row in fit.timed_rows(results)] == [row.seconds for row in rows]
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    lines = price_main.gpu_fit(path).splitlines()
    fitted_by_name = {line.split()[0]: line.split() for line in lines if line}
    assert float(fitted_by_name["LAUNCH"][2]) == pytest.approx(2.8e-6, rel=0.02, abs=0.0)
    assert float(fitted_by_name["_MEMORY_SHARE"][3]) == pytest.approx(0.9, rel=0.02, abs=0.0)
    assert "fitted 100%" in "\n".join(lines)


@pytest.mark.gpu
@NEEDS_TRITON[1]
def test_the_parts_of_a_price_are_those_of_the_compiler(tmp_path: Path) -> None:
    names = ("gemm_bf16_k64", "softmax_f32_1mb", "embedding_bag_f32", "gemm_f32_k64")
    items = (kernel_item(kernel) for kernel in kernels(SMALL) if kernel.name in names)
    index = make_folder(tmp_path / "folder", items, ["sm_90"], compile_with_tcc)
    assert len(index["items"]) == len(names)
    plain = dict.fromkeys(fit.FACTORS, 1.0)
    for item in index["items"]:
        (step,) = item["priced"]
        # The manifest rounds to four digits.
        assert fit.price(step["parts"], plain) == pytest.approx(step["seconds"], rel=1e-3, abs=0.0)
        assert item["price"] == step["seconds"]
        assert step["parts"]["units"] == item["name"].startswith("gemm_bf16")


def test_steps_are_timed_beside_their_prices(tmp_path: Path) -> None:
    (kernel,) = (k for k in kernels(SMALL) if k.name == "conv_chain_bf16")
    folder = tmp_path / "folder"
    index = make_folder(folder, iter([kernel_item(kernel)]), ["cpu"], compile_with_tcc)
    (item,) = index["items"]
    result = worker.steps({"item": item, "folder": str(folder)}, Cpu())
    assert len(result["step_seconds"]) == len(item["priced"]) >= 3
    assert min(result["step_seconds"]) >= 0 < sum(result["step_seconds"])
    results = {"items": {"conv_chain": {"facts": item, **result}}}
    head, _, *lines = [*report._steps(results)][1:]
    assert head.startswith(f"conv_chain: {len(item['priced'])} steps in ")
    assert len(lines) == len(item["priced"])
    assert not fit.timed_rows(results)  # prices of CPUs have no such parts
