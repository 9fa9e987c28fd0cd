"""Tests of refusals: a feature that C files lack gives an error with the place and a remedy."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import tcc
from tcc.errors import UserError

from tests.lib.c_files.run_c import build, write_c

from .models import model

OPEN = (
    '<ir_version: 8, opset_import: ["": 17]> m (float[n, 3] x) => (float[n, 3] y) { y = Relu (x) }'
)


def test_symbolic_sizes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"input x: nx3(.|\n)*--input x="):
        write_c(onnx.parser.parse_model(OPEN), tmp_path)
    build(write_c(onnx.parser.parse_model(OPEN), tmp_path, inputs={"x": (2, 3)}))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"precision": "bf16"}, "--precision"),
        ({"cpu": "x86-64-v3"}, "--cpu"),
        ({"target": "c+cpu"}, "cannot share a file"),
        ({"target": "c:cortex"}, "unknown target"),
    ],
)
def test_options(options: dict[str, str], text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=text):
        write_c(model("mlp").proto, tmp_path, **options)


def test_a_c_file_is_no_module() -> None:
    with pytest.raises(UserError, match="tcc compile"):
        tcc.compile(model("mlp").proto, target="c")
