"""Embedding bags as Gather and ScatterND read their rows in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tcc
from onnx import parser
from tcc.errors import TccError
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.index import const
from tcc.ir.types import F32, I64, tensor
from tcc.ops import OPS
from tcc.ops.data.indexing import ScatterNdAttrs
from tcc.ops.shapes import AxisAttrs
from tcc.passes.graph.scatter_rows import scatter_rows


def bag(*, reshaped: bool = False, read_again: bool = False, axis: int = 0) -> Graph:
    b = GraphBuilder("bag")
    x, table = b.input("x", tensor(F32, 5, 6)), b.input("table", tensor(F32, 6, 6))
    ids = b.input("ids", tensor(I64, *((2, 2) if reshaped else (4,))))
    where = b.input("where", tensor(I64, 4, 1))
    (rows,) = b.add(OPS["gather"], [table, ids], AxisAttrs(axis))
    if reshaped:
        (rows,) = b.add(OPS["reshape"], [rows], OPS["reshape"].attrs((const(4), const(6))))
    if axis:
        (rows,) = b.add(OPS["transpose"], [rows], OPS["transpose"].attrs((1, 0)))
    results = b.add(OPS["scatter_nd"], [x, where, rows], ScatterNdAttrs("max"), names=["y"])
    more = b.add(OPS["relu"], [rows], names=["z"]) if read_again else ()
    return b.finish([*results, *more])


def ops_of(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def test_a_gather_joins_its_scatter() -> None:
    fused = scatter_rows(bag())
    assert ops_of(fused) == ["scatter_rows"]
    assert fused.nodes[0].attrs.reduction == "max"
    assert [v.name for v in fused.nodes[0].inputs if v] == ["x", "where", "table", "ids"]


def test_a_reshaped_gather_joins_its_scatter() -> None:
    assert ops_of(scatter_rows(bag(reshaped=True))) == ["reshape", "scatter_rows"]


@pytest.mark.parametrize(
    "graph", [bag(read_again=True), bag(axis=1)], ids=["read again", "columns"]
)
def test_other_scatters_stay(graph: Graph) -> None:
    assert scatter_rows(graph) is graph


MODEL = """<ir_version: 10, opset_import: ["" : 18]> g
(float[300,N] x, float[50,N] table, int64[2000] ids, int64[2000,1] where) => (float[300,N] y) {
  rows = Gather<axis=0>(table, ids)
  y = ScatterND<reduction="add">(x, where, rows) }"""


def test_compiled_bags_are_equal_for_all_threads(tmp_path: Path) -> None:
    """The f32 sums have the order of the updates; an id or a place outside ends the run."""
    artifact = tmp_path / "bag.so"
    tcc.compile(parser.parse_model(MODEL), target="cpu").save(artifact)
    rng = np.random.default_rng(6)
    for width in (3, 130):
        x, table = (rng.standard_normal((n, width)).astype(np.float32) for n in (300, 50))
        feeds = {
            "x": x,
            "table": table,
            "ids": rng.integers(-50, 50, 2000),
            "where": (rng.random((2000, 1)) ** 4 * 600 - 300).astype(np.int64),
        }
        reference = x.copy()
        np.add.at(reference, feeds["where"][:, 0], table[feeds["ids"]])  # sequentially, in f32
        for threads in (1, 2, 4):
            module = tcc.load(artifact, threads=threads)
            assert module.run(feeds)["y"].tobytes() == reference.tobytes()
            for name, bad in (("ids", 50), ("where", -301)):
                wrong = feeds[name].copy()
                wrong.flat[1234] = bad
                with pytest.raises(TccError, match="axis"):
                    module.run({**feeds, name: wrong})
