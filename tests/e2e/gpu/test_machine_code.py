"""The machine code of every kernel of two architectures obeys the rules, on every kind of GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest
from tcc.driver import compile_model
from tcc.options import read_options

from tests.lib.interpreter.running import NEEDS_TRITON
from tests.lib.oracle.gpu.code_rules import CheckedKernel, matrix_families
from tests.part import part

from .architectures import bert, resnet

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

from gpu.observe import Exemption, judge, observations, with_machine_code

pytestmark = NEEDS_TRITON

# Instructions that each architecture must use somewhere, so that no rule passes for lack of cases.
FAMILIES = {
    "cuda:sm_80": {"HMMA"},
    "cuda:sm_90": {"HMMA", "HGMMA"},
    "rocm:gfx90a": {"v_mfma"},
    "rocm:gfx942": {"v_mfma"},
    "rocm:gfx1100": {"v_wmma"},
}
# bf16 on every kind of GPU, and f32 on one. A run takes half of the cases; `scripts/gpu_compile
# --check` takes all.
CASES = (
    *((target, "bert", "bf16") for target in ("cuda:sm_90", "rocm:gfx942", "rocm:gfx1100")),
    ("rocm:gfx90a", "resnet", "bf16"),
    ("cuda:sm_80", "resnet", "f32"),
)
EXEMPTIONS: tuple[Exemption, ...] = ()


def model_of(name: str) -> onnx.ModelProto:
    return bert(8, 64, 256, 4) if name == "bert" else resnet(2, 56, 32)


def compiled(
    target: str, name: str, precision: str, out: Path
) -> tuple[list[CheckedKernel], list[str]]:
    """Returns the distinct kernels of a model, and the nodes from which they come."""
    options = read_options({"target": target, "precision": precision, "jobs": 1, "name": "m"})
    with observations() as kernels:
        compile_model(model_of(name), options, out / "m.so")
    return with_machine_code(kernels), [kernel.source for kernel in kernels]


@pytest.mark.parametrize(("target", "name", "precision"), part("machine code", CASES, 2))
def test_every_kernel_obeys_the_rules(
    target: str, name: str, precision: str, tmp_path: Path
) -> None:
    kernels, sources = compiled(target, name, precision, tmp_path)
    broken, kept = judge(name, precision, kernels, sources, EXEMPTIONS)
    assert not broken
    assert not kept, "known to break a rule, and keeps it now: take it off the list"
    if name == "bert":
        assert {family for kernel in kernels for family in matrix_families(kernel)} == FAMILIES[
            target
        ]
        assert any(kernel.code.wide_loads for kernel in kernels if not matrix_families(kernel))
