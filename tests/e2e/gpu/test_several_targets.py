"""One file for several GPUs and the CPU is compiled and run without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc import cli
from tcc.artifact import read_listings, read_manifest
from tcc.cli.kernels.listing import kernel_listing
from tcc.driver import CompileResult, compile_model
from tcc.errors import UserError
from tcc.options import read_options
from tcc.runtime.summary_text import code_text, memory_text
from tcc.target import GPU_DEFAULTS

from tests.lib.agreement import FLOAT, model_of, value
from tests.lib.interpreter.running import NEEDS_TRITON

from .small_models import MODELS

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("gpu-joined")]


def compiled(model: onnx.ModelProto, out: Path, **options: Any) -> CompileResult:
    return compile_model(model, read_options({"jobs": 1, "name": "m", **options}), out)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    out = tmp_path_factory.mktemp("joined") / "m.so"
    return compiled(MODELS["attention"](), out, target="cuda:sm_80+cpu", keep_ir=True)


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "")


def test_without_a_gpu_results_equal_those_of_the_cpu_file(
    joined: CompileResult, tmp_path: Path
) -> None:
    cpu_module = tcc.load(compiled(MODELS["attention"](), tmp_path / "cpu.so", target="cpu").path)
    module = tcc.load(joined.path)
    assert module.variant == 1
    x = np.random.default_rng(0).standard_normal((7, 32)).astype(np.float32)
    assert module(x).tobytes() == cpu_module(x).tobytes()
    entry, only = module.manifest["variants"][1], cpu_module.manifest["variants"][0]
    shared_fields = (
        "target",
        "cpu",
        "features",
        "machine",
        "kernels",
        "steps",
        "traffic",
        "arena_bytes",
    )
    assert all(entry[key] == only[key] for key in shared_fields)


def test_each_part_is_shown(joined: CompileResult, capsys: pytest.CaptureFixture[str]) -> None:
    record = asdict(joined.summary)
    texts = [code_text(record, variant) for variant in record["variants"]]
    assert [text.startswith(("cuda:sm_80, f32, ", "cpu:x86-64 (")) for text in texts] == [True] * 2
    needs = [memory_text(record, variant) for variant in record["variants"]]
    assert ["NVIDIA driver" in text for text in needs] == [True, False]
    path = str(joined.path)
    assert cli.execute(["inspect", path, "--kernels"]) == 0
    shown_text = capsys.readouterr().out
    assert (
        shown_text.index("cuda:sm_80:")
        < shown_text.index("spilt bytes")
        < shown_text.index("cpu:x86-64 (")
    )
    assert cli.execute(["inspect", path, "--measure", "--runs", "1", "--input", "x=5x32"]) == 0
    measured = capsys.readouterr().out
    assert "cuda" not in measured
    assert cli.execute(["inspect", path, "--kernels", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["variant"].partition(":")[0] for row in rows} == {"cuda", "cpu"}


def test_progress_counts_the_kernels_of_each_target(tmp_path: Path) -> None:
    stages: list[str] = []

    def report(stage: str, count: Callable[[], tuple[int, int]] | None = None) -> None:
        if count is not None:
            kernels, all_kernels = count()
            assert 0 <= kernels <= all_kernels
            assert all_kernels > 0
            stages.append(stage.partition(":")[0])

    options = read_options({"jobs": 1, "target": "cuda:sm_80+cpu"})
    compile_model(MODELS["attention"](), options, tmp_path / "m.so", report)
    assert list(dict.fromkeys(stages)) == ["cuda", "cpu"]


def test_listings_are_those_of_the_part(joined: CompileResult) -> None:
    names = list(read_listings(joined.path))
    assert names[0] == "0/tcc_kernel_0"
    assert "@triton.jit" in kernel_listing(joined.path, "0", "triton")
    assert "define void" in kernel_listing(joined.path, "1/0", "llvm")
    assert "tcc_kernel_0:" in kernel_listing(joined.path, "1/tcc_kernel_0", "asm")
    with pytest.raises(UserError, match="not kept in this form"):
        kernel_listing(joined.path, "0/0", "asm")
    with pytest.raises(UserError, match="no variant 2"):
        kernel_listing(joined.path, "2/0", "asm")


def test_commands_run_it(joined: CompileResult, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(MODELS["attention"](), model)
    path, size = str(joined.path), ("--input", "x=6x32")
    assert cli.execute(["run", path, *size]) == 0
    assert cli.execute(["verify", str(model), path, *size]) == 0
    assert cli.execute(["bench", path, "--rounds", "1", "--seconds", "0.1", *size]) == 0


def row() -> onnx.ModelProto:
    """Returns a model that is one kernel on every target."""
    return model_of(
        [helper.make_node("Relu", ["x"], ["y"])],
        [value("x", FLOAT, [1000])],
        [value("y", FLOAT, [1000])],
        {},
    )


@pytest.mark.parametrize("kind", list(GPU_DEFAULTS))
def test_a_bare_kind_is_its_list_of_architectures(kind: str, tmp_path: Path) -> None:
    paths = tmp_path / "a" / "x.so", tmp_path / "b" / "x.so"
    for out in paths:
        compiled(row(), out, target=kind)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    variants = read_manifest(paths[0])["variants"]
    built = [build["arch"] for variant in variants for build in variant["builds"]]
    assert sorted(built) == sorted(GPU_DEFAULTS[kind])
    images = [i for variant in variants for i in variant["gpu"]["images"]]
    assert {i["form"] for i in images} == ({"cubin", "ptx"} if kind == "cuda" else {"hsaco"})


def test_both_vendors_share_weights(tmp_path: Path) -> None:
    out = tmp_path / "m.so"
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [value("x", FLOAT, [16, 32])],
        [value("y", FLOAT, [16, 64])],
        {"w": np.ones((32, 64), np.float32)},
    )
    compiled(model, out, target="cuda:sm_80+rocm:gfx942", precision="tf32")
    manifest = read_manifest(out)
    assert manifest["precision"] == "tf32"
    first, second = manifest["variants"]
    assert first["weights"] == second["weights"]
    with pytest.raises(UserError, match=r"no CUDA driver.*; no HIP driver"):
        tcc.load(out)


def test_options_of_one_part_are_taken(tmp_path: Path) -> None:
    """The option tf32 affects GPUs only: the CPU computes in f32."""
    options = {"target": "cuda:sm_80+cpu", "precision": "tf32", "cpu": "x86-64-v3"}
    result = compiled(row(), tmp_path / "m.so", **options)
    assert result.summary.target == "cuda:sm_80+cpu:x86-64 (x86-64-v3)"
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    assert np.array_equal(tcc.load(result.path)(x), np.maximum(x, 0))
