"""Results over operands: which values of small graphs share a buffer, and what comes out."""

from __future__ import annotations

import pytest
from tcc.ir.graph import Graph
from tcc.ir.program import Launch, Program
from tcc.ir.verify_tile import verify_kernel
from tcc.schedule.choose import Registers

from .fuse.models import MODELS, Model
from .fuse.test_programs import check, lowered


def bottleneck(*, kept: bool = False, other: bool = False) -> Graph:
    """A sum of two branches; `kept`: a branch is read again after it, `other`: it is a transpose of
    the branch that is added, so that elements are read where others go."""
    m = Model("bottleneck")
    x = m.input("x", 1, 8, 6, 6)
    a = m.conv(x, 16, 1, stride=2)
    b = m.conv(m.op("relu", m.conv(x, 8, 3, pad=1)), 16, 1, stride=2)
    y = m.op("relu", m.op("add", b, m.transpose(a, 0, 1, 3, 2) if other else a))
    return m.finish(m.conv(y, 4, 1), *((m.conv(a, 2, 1),) if kept else ()))


def in_place(program: Program) -> int:
    """Launches that name a buffer twice."""
    return sum(len(set(i.buffers)) < len(i.buffers) for i in program.body if isinstance(i, Launch))


@pytest.mark.parametrize(
    ("graph", "launches"),
    [
        (bottleneck(), 1),
        (bottleneck(kept=True), 0),
        (bottleneck(other=True), 0),
    ],
    ids=["dies", "read again", "elsewhere"],
)
def test_sums_lie_where_an_operand_did(graph: Graph, launches: int) -> None:
    made = lowered(graph, Registers(16, 16))
    assert in_place(made[0]) == launches
    for kernel in made[1]:
        verify_kernel(kernel)
    check(graph, made, 1)


def test_kernels_name_the_pairs_that_launches_use() -> None:
    program, kernels, _ = lowered(bottleneck(), Registers(16, 16))
    for launch in program.body:
        if isinstance(launch, Launch):
            twice = {b for b in launch.buffers if launch.buffers.count(b) > 1}
            pairs = kernels[launch.kernel].in_place
            assert twice <= {launch.buffers[a] for a, _ in pairs}
            for buffer in twice:
                places = tuple(n for n, b in enumerate(launch.buffers) if b == buffer)
                assert places in pairs


@pytest.mark.parametrize("name", ["residual_block", "joined_maps", "joined_twice"])
def test_models_keep_their_results(name: str) -> None:
    graph = MODELS[name]()
    check(graph, lowered(graph, Registers(16, 16)), 5)
