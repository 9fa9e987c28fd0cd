"""Half-precision attention is one op; other attention is imported as ONNX's function body."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from tcc.frontends import load_model
from tcc.ir.graph import Graph, carrier, walk_nodes
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.types import BF16


def graph(dtype: str, *, attributes: str = "", mask: bool = False, heads: int = 4) -> Graph:
    q, kv = f"{dtype}[2,4,9,8]", f"{dtype}[2,{heads},9,8]"
    more, name = (f", {dtype}[9,9] m", ", m") if mask else ("", "")
    call = f"y = Attention<{attributes}>(q, k, v{name})".replace("<>", "")
    text = f"g ({q} q, {kv} k, {kv} v{more}) => ({q} y) {{ {call} }}"
    return load_model(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]> {text}'), {}
    )


def ops(found: Graph) -> set[str]:
    return {node.op.name for node in walk_nodes(found)}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("attributes", ["", "is_causal = 1", "scale = 0.5, softcap = 2.0"])
def test_halves_are_one_op(dtype: str, attributes: str) -> None:
    assert ops(graph(dtype, attributes=attributes)) == {"attention"}


def test_all_else_is_the_body_s() -> None:
    assert "attention" not in ops(graph("float"))
    assert "attention" not in ops(graph("bfloat16", mask=True))


@pytest.mark.parametrize("attributes", ["", "is_causal = 1", "scale = 0.5", "softcap = 2.0"])
@pytest.mark.parametrize("heads", [4, 2])
def test_halves_give_the_rounded_results_of_floats(attributes: str, heads: int) -> None:
    rng = np.random.default_rng(heads)
    arrays = {
        name: np.asarray(carrier(rng.standard_normal((2, n, 9, 8)).astype(np.float32), BF16))
        for name, n in (("q", 4), ("k", heads), ("v", heads))
    }
    reference, output = (
        evaluate_graph(graph(dtype, attributes=attributes, heads=heads), arrays)["y"]
        for dtype in ("float", "bfloat16")
    )
    np.testing.assert_allclose(output, reference, rtol=2**-8, atol=2**-9)
