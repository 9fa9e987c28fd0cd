"""Functions of the host as expressions: what they compute, evaluated and in block kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tcc.debug import Trace
from tcc.ir.evaluate import evaluate_graph
from tcc.ir.evaluate_program import evaluate_program
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.index import const, symbol
from tcc.ir.op import Array, Sample
from tcc.ir.types import TensorType, dtype_of
from tcc.ops import OPS
from tcc.passes.blocks.plan import BlockPlanner
from tcc.passes.express import EXPRESSED, express_calls
from tcc.passes.lower_model import lower_for_gpu
from tcc.passes.pipeline import EXPRESS_CALLS, run_pipeline
from tcc.passes.precision import FULL

SIZED = ("non_zero", "compress")


def samples() -> list[tuple[str, Sample]]:
    rng = np.random.default_rng(5)
    return [(name, sample) for name in EXPRESSED for sample in OPS[name].samples(rng)]


SAMPLES = samples()


def graph_of(name: str, operands: tuple[Array | None, ...], attrs: Any) -> Graph:
    """One node; sizes that data decide are symbols."""
    b = GraphBuilder(name)
    values = [
        b.input(f"x{n}", TensorType(dtype_of(x), tuple(map(const, x.shape))))
        for n, x in enumerate(operands)
        if x is not None
    ]
    if name in SIZED:
        attrs = type(attrs)(**{**{f: getattr(attrs, f) for f in attrs.__slots__}, "size": symbol("s")})
    return b.finish(b.add(OPS[name], values, attrs, loc=name))


def feeds(operands: tuple[Array | None, ...]) -> dict[str, Array]:
    return {f"x{n}": np.asarray(x) for n, x in enumerate(operands) if x is not None}


def check(graph: Graph, given: dict[str, Array]) -> None:
    changed = express_calls(graph)
    assert changed is not graph
    assert not {n.op.name for n in changed.nodes} & EXPRESSED.keys()
    want = evaluate_graph(graph, given)
    got = evaluate_graph(changed, given)
    made = lower_for_gpu(
        run_pipeline(graph, 2, Trace(), asked=(EXPRESS_CALLS,)), BlockPlanner(), FULL
    )
    assert not any("call" in type(i).__name__.lower() for i in made.program.body)
    section = np.zeros(0, np.uint8)
    ran = evaluate_program(made.program, made.kernels, list(given.values()), section)
    for value, other, array in zip(graph.outputs, changed.outputs, ran, strict=True):
        agree(got[other.name], want[value.name])
        agree(array, want[value.name])


def agree(got: Array, want: Array) -> None:
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
    else:
        tolerance = 2e-3 if want.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "sample"), SAMPLES, ids=[f"{n}-{i}-{s.label}" for i, (n, s) in enumerate(SAMPLES)]
)
def test_samples(name: str, sample: Sample) -> None:
    check(graph_of(name, sample.inputs, sample.attrs), feeds(sample.inputs))
