"""The manager, and the whole pipeline on random graphs of real ops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tcc.debug import Trace
from tcc.errors import InternalError
from tcc.ir.graph import Graph, GraphBuilder, Value, walk_nodes
from tcc.ir.index import const
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.passes.manager import Pass, run_passes
from tcc.passes.pipeline import PIPELINE, run_pipeline

Read = Callable[..., Graph]
Agree = Callable[..., None]

TEXT = """\
graph g(%x : f32[2]) {
  %a = relu(%x) : f32[2]
  %y = neg(%a) : f32[2]
  return %y
}
"""


def test_only_changed_graphs_are_dumped(read: Read, tmp_path: Path) -> None:
    other = TEXT.replace("relu", "exp")
    passes = (
        Pass("same", lambda graph: graph),
        Pass("other", lambda graph: read(other)),
        Pass("never", lambda graph: read("refused"), level=3),
    )
    trace = Trace(tmp_path)
    after = run_passes(read(TEXT), passes, 2, trace, verify=True)
    assert [n.op.name for n in after.nodes] == ["exp", "neg"]
    assert [p.name for p in tmp_path.iterdir()] == ["00-other.txt"]
    assert (tmp_path / "00-other.txt").read_text() == other
    assert [t.stage for t in trace.timings] == ["same", "other"]


def test_the_pass_that_breaks_a_graph_is_named(read: Read) -> None:
    def cut(graph: Graph) -> Graph:
        fields = {n: getattr(graph, n) for n in Graph.__slots__}
        return Graph(**{**fields, "nodes": graph.nodes[1:]})

    with pytest.raises(InternalError) as caught:
        run_passes(read(TEXT), (Pass("cut", cut),), 0, Trace(), verify=True)
    assert "after pass cut" in caught.value.__notes__


def test_names_are_unique_and_level_0_is_what_lowering_needs() -> None:
    names = [step.name for step in PIPELINE]
    assert len(set(names)) == len(names)
    lowest = [step.name for step in PIPELINE if step.level == 0]
    assert lowest == ["decompose", "drop-dead-nodes", "drop-unread-arrays"]


class Chance:
    """Draws a graph on values f32[1,4,6,6], with many chances for every pass."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = GraphBuilder("g")
        self.values = [self.b.input("x", tensor(F32, 1, 4, 6, 6))]

    def pick(self) -> Value:
        newest = self.rng.random() < 0.6
        return self.values[-1 if newest else self.rng.integers(len(self.values))]

    def weights(self, *shape: int) -> Value:
        return self.b.constant((self.rng.standard_normal(shape) / 2).astype(np.float32), "w")

    def node(self) -> None:
        b, x = self.b, self.pick()
        kind = self.rng.choice(
            ["unary", "scale", "neutral", "conv", "norm", "up", "moves", "fold", "add", "pad"]
        )
        match kind:
            case "unary":
                (x,) = b.add(OPS[self.rng.choice(["relu", "neg", "identity", "tanh"])], [x])
            case "scale":
                op = OPS[self.rng.choice(["mul", "add", "sub"])]
                (x,) = b.add(op, [x, self.weights(4, 1, 1)])
            case "neutral":
                one = b.constant(np.array(self.rng.choice([1.0, 2.0]), np.float32), "one")
                (x,) = b.add(OPS[self.rng.choice(["mul", "div", "pow"])], [x, one])
                (x,) = b.add(OPS["tanh"], [x])
            case "conv":
                attrs = OPS["conv"].attrs((1, 1), (1, 1), (1, 1), (1, 1), 2)
                (x,) = b.add(OPS["conv"], [x, self.weights(4, 2, 3, 3)], attrs)
            case "norm":
                vectors = [self.weights(4) for _ in range(3)]
                spread = b.constant(np.ones(4, np.float32), "one")
                attrs = OPS["batch_normalization"].attrs(1e-5)
                (x,) = b.add(OPS["batch_normalization"], [x, *vectors, spread], attrs)
            case "up":
                attrs = OPS["conv_transpose"].attrs((2, 2), (1, 1), (1, 1), (0, 0), (1, 1), 1)
                (x,) = b.add(OPS["conv_transpose"], [x, self.weights(4, 4, 4, 4)], attrs)
                pool = OPS["max_pool"].attrs((2, 2), (2, 2), (0, 0), (0, 0), (1, 1))
                (x,) = b.add(OPS["max_pool"], [x], pool)
            case "moves":
                perm = OPS["transpose"].attrs((0, 1, 3, 2))
                (x,) = b.add(OPS["transpose"], [x], perm)
                if self.rng.random() < 0.5:
                    (x,) = b.add(OPS["transpose"], [x], perm)
                shape = tuple(map(const, (1, 4, 6, 6)))
                (x,) = b.add(OPS["reshape"], [x], OPS["reshape"].attrs(shape))
            case "fold":
                (k,) = b.add(OPS["exp"], [self.weights(4, 1, 1)])
                (x,) = b.add(OPS["add"], [x, k])
            case "pad":
                none, one = const(0), const(1)
                pad = OPS["pad"].attrs((none, none, one, one), (none, none, one, one), "constant")
                (x,) = b.add(OPS["pad"], [x], pad)
                conv = OPS["conv"].attrs((1, 1), (0, 0), (0, 0), (1, 1), 1)
                (x,) = b.add(OPS["conv"], [x, self.weights(4, 4, 3, 3)], conv)
            case _:
                (x,) = b.add(OPS["add"], [x, self.pick()])
        self.values.append(x)

    def graph(self, length: int) -> Graph:
        for _ in range(length):
            self.node()
        outputs = [self.values[-1]]
        if self.values[len(self.values) // 2] not in (*outputs, self.values[0]):
            outputs.append(self.values[len(self.values) // 2])
        return self.b.finish(outputs)


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_keep_their_meaning(seed: int, agree: Agree) -> None:
    before = Chance(seed).graph(3 + seed % 9)
    after = run_pipeline(before, 2, Trace(), verify=True)
    agree(before, after, tolerance=2e-5)
    left = {n.op.name for n in walk_nodes(after)}
    assert not left & {"batch_normalization", "conv_transpose"}
    assert run_pipeline(after, 2, Trace()) is after
    agree(before, run_pipeline(before, 0, Trace(), verify=True))
