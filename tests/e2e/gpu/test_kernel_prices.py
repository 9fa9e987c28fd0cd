"""Price predictions for Gluon kernels count ring buffers as stages."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
from tcc.artifact import read_manifest
from tcc.driver import compile_model
from tcc.options import read_options

from tests.lib.interpreter.running import NEEDS_TRITON

pytestmark = NEEDS_TRITON
# The operations per second that vendors' libraries are said to reach for a large bf16 matmul on an
# H200: 60 to 80 % of the 989.5e12 in its data sheet.
LEAST, MOST = 590e12, 800e12


def test_a_large_product_is_priced_as_hopper_takes_it(tmp_path: Path) -> None:
    n = 8192
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 23]> g (bfloat16[{n},{n}] a, bfloat16[{n},{n}] b) '
        f"=> (bfloat16[{n},{n}] y) {{ y = MatMul(a, b) }}"
    )
    path = tmp_path / "product.so"
    compiled = compile_model(model, read_options({"target": "cuda:sm_90"}), path)
    (variant,) = read_manifest(path)["variants"]
    (kernel,) = variant["kernels"]
    (entry,) = variant["builds"][0]["kernels"]
    assert entry["language"] == "gluon"
    assert entry["stages"] > 1
    assert LEAST < kernel["flops"] / kernel["seconds"] < MOST
    needs = [(image["form"], image["needs"]) for image in variant["gpu"]["images"]]
    assert needs == [
        ("cubin", "NVIDIA driver 525 (CUDA 12.0)"),
        ("ptx", "NVIDIA driver 470 (CUDA 11.4)"),
    ]
    assert compiled.summary.variants[0].needs == "NVIDIA driver 525 (CUDA 12.0)"
