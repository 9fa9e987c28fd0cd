"""Artifacts for GPUs, compiled without a GPU, have the right contents and equal bytes; wrong
options are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import tcc
from onnx import helper
from tcc import cli
from tcc.artifact import read_manifest
from tcc.cli.kernels.listing import kernel_listing
from tcc.driver import compile_model
from tcc.errors import UserError
from tcc.options import read_options

from tests.lib.agreement import FLOAT, model_of, value
from tests.lib.interpreter.running import NEEDS_TRITON

from .small_models import MODELS

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("gpu-artifacts")]
TARGETS = {"cuda:sm_90": "cubin", "rocm:gfx942": "hsaco"}


def made(model: onnx.ModelProto, out: Path, **options: Any) -> dict[str, Any]:
    compile_model(model, read_options({"jobs": 1, "name": "m", **options}), out)
    return read_manifest(out)


@pytest.fixture(scope="module", params=list(TARGETS))
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gpu") / "network.so"
    made(MODELS["network"](), out, target=request.param, keep_ir=True)
    return out


def test_equal_models_give_equal_bytes(artifact: Path, tmp_path: Path) -> None:
    """The artifacts come from this process, which may have compiled other kernels, and from two new
    processes."""
    again = tmp_path / artifact.name
    target = read_manifest(artifact)["target"]["text"]
    made(MODELS["network"](), again, target=target, keep_ir=True, jobs=2)
    assert again.read_bytes() == artifact.read_bytes()


def test_the_manifest_describes_each_compiled_kernel(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    target = manifest["target"]["text"]
    (variant,) = manifest["variants"]
    (build,) = variant["builds"]
    assert variant["target"] == target == f"{target.partition(':')[0]}:{build['arch']}"
    assert variant["gpu"]["images"][0]["form"] == TARGETS[target]
    assert len(variant["kernels"]) == len(build["kernels"]) == variant["kernel_count"]
    for kernel in build["kernels"]:
        assert kernel["registers"] > 0
        assert kernel["private"] == 0
        assert kernel["warps"] >= 1
    assert "fill_halo" not in variant["steps"]


def test_inspect_shows_builds_and_sources(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["inspect", str(artifact), "--kernels"]) == 0
    text = capsys.readouterr().out
    assert "shared bytes" in text
    assert read_manifest(artifact)["variants"][0]["builds"][0]["arch"] + ":" in text
    assert cli.execute(["inspect", str(artifact), "--form", "triton", "--kernel", "0"]) == 0
    assert "@triton.jit" in capsys.readouterr().out


def test_assembly_is_not_kept(artifact: Path) -> None:
    with pytest.raises(UserError, match="not kept in this form"):
        kernel_listing(artifact, "0", "asm")


def test_without_a_gpu_the_driver_is_missed(artifact: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    with pytest.raises(UserError, match="driver was found"):
        tcc.load(artifact)


def test_several_architectures_share_one_program(tmp_path: Path) -> None:
    options = {"target": "cuda:sm_80,sm_90", "precision": "bf16"}
    manifest = made(MODELS["attention"](), tmp_path / "m.so", **options)
    assert manifest["precision"] == "bf16"
    (variant,) = manifest["variants"]
    assert [build["arch"] for build in variant["builds"]] == ["sm_80", "sm_90"]
    images = [(image["arch"], image["form"]) for image in variant["gpu"]["images"]]
    assert images == [("sm_80", "cubin"), ("sm_90a", "cubin"), ("sm_80", "ptx")]


def determinant() -> onnx.ModelProto:
    return model_of(
        [helper.make_node("Det", ["x"], ["y"], name="volume")],
        [value("x", FLOAT, [4, 3, 3])],
        [value("y", FLOAT, [4])],
    )


def test_functions_of_the_host_are_refused_by_name_unless_allowed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cuda cannot run") as caught:
        made(determinant(), tmp_path / "m.so", target="cuda:sm_90")
    assert "det at volume" in caught.value.why
    assert "--allow-host" in caught.value.hint
    manifest = made(determinant(), tmp_path / "m.so", target="cuda:sm_90", allow_host=True)
    assert "det" in manifest["variants"][0]["steps"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"precision": "tf32"}, "precision of GPUs"),
        ({"allow_host": True}, "host's already"),
        ({"target": "cuda", "cpu": "x86-64-v3"}, "not made for a processor"),
        ({"target": "rocm", "machine": "machine.json"}, "not GPUs"),
    ],
)
def test_options_of_the_other_kind_are_refused(
    options: dict[str, Any], what: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=what):
        made(MODELS["network"](), tmp_path / "m.so", **options)
