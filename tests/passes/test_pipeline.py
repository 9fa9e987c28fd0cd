"""The pass manager, and the whole pipeline on random graphs of real ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.planner import arena_planner
from tcc.debug import Stopped, Trace
from tcc.errors import InternalError
from tcc.ir.expr import StageRef
from tcc.ir.graph import Graph, GraphBuilder, Value, walk_nodes
from tcc.ir.index import const
from tcc.ir.types import F32, tensor
from tcc.ops import OPS
from tcc.passes.forms import text
from tcc.passes.layout.assign import Placed
from tcc.passes.manager import run_steps
from tcc.passes.pipeline import (
    GRAPH,
    LOWER,
    PLAIN,
    GraphSettings,
    lower,
    run_pipeline,
    step_names,
)
from tcc.passes.place import PLACE, LoweringContext
from tcc.passes.program.lowered import Lowered
from tcc.passes.steps import Step
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.passes.tile.gpu.plan import BlockChooser
from tcc.schedule.cpu.core import TYPICAL_CORE

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
        Step("same", lambda graph: graph),
        Step("other", lambda graph: read(other)),
        Step("never", lambda graph: read("refused"), level=3),
        Step("left out", lambda graph: read("refused"), when="requantize"),
    )
    trace = Trace(tmp_path, verifying=True)
    after = run_steps(read(TEXT), passes, PLAIN, trace, 2)
    assert [n.op.name for n in after.nodes] == ["exp", "neg"]
    assert [p.name for p in tmp_path.iterdir()] == ["00-other.txt"]
    assert (tmp_path / "00-other.txt").read_text() == other
    assert [t.stage for t in trace.timings] == ["same", "other"]


def test_the_pass_that_breaks_a_graph_is_named(read: Read) -> None:
    def cut(graph: Graph) -> Graph:
        return replace(graph, nodes=graph.nodes[1:])

    with pytest.raises(InternalError) as caught:
        run_steps(read(TEXT), (Step("cut", cut),), PLAIN, Trace(verifying=True))
    assert "after step cut" in caught.value.__notes__


PLANNERS = {"cpu": CoreChooser(TYPICAL_CORE), "gpu": BlockChooser()}


@pytest.mark.parametrize("kind", PLANNERS)
def test_every_form_is_verified_and_written(read: Read, tmp_path: Path, kind: str) -> None:
    lower(
        read(TEXT),
        LoweringContext(PLANNERS[kind], arena_planner()),
        Trace(tmp_path, verifying=True),
    )
    texts = {path.stem.partition("-")[2]: path.read_text() for path in tmp_path.iterdir()}
    assert texts["partition"] == "0: relu %a : f32[2], neg %y : f32[2]\n"
    assert "expr(p0: f32[2])" in texts["assign-layouts"]
    assert "launch k0" in texts["emit"]
    assert "kernel(" in texts["plan-arena"]


def broken_kernel(lowered: Lowered) -> Lowered:
    (kernel,) = lowered.kernels
    return replace(lowered, kernels=(replace(kernel, body=(*kernel.body, *kernel.body)),))


def broken_program(lowered: Lowered) -> Lowered:
    return replace(lowered, program=replace(lowered.program, body=lowered.program.body[1:]))


def broken_expression(placed: Placed) -> Placed:
    (step,) = placed.steps
    assert step.kernel is not None
    wrong = replace(step.kernel.expr, outputs=(StageRef(7),))
    kernel = replace(step.kernel, expr=wrong)
    return replace(placed, steps=(replace(step, kernel=kernel),))


@pytest.mark.parametrize(
    ("after", "fault"),
    [("plan-arena", broken_kernel), ("plan-arena", broken_program), ("emit", broken_expression)],
)
def test_the_step_that_breaks_a_later_form_is_named(
    read: Read, after: str, fault: Callable[[Any], Any]
) -> None:
    steps = [step for step in LOWER if step.name != "describe-ports"]
    place = [step.name for step in steps].index(after) + (after != "emit")
    steps.insert(place, Step("fault", fault))
    plan = LoweringContext(CoreChooser(TYPICAL_CORE), arena_planner())
    with pytest.raises(InternalError) as caught:
        run_steps(read(TEXT), steps, plan, Trace(verifying=True))
    assert "after step fault" in caught.value.__notes__


def test_a_compile_ends_after_any_step_and_shows_the_form(read: Read) -> None:
    for step in LOWER:
        plan = LoweringContext(CoreChooser(TYPICAL_CORE), arena_planner())
        if step.when not in ("", "ports") and not step.runs(plan):
            continue
        with pytest.raises(Stopped) as stopped:
            lower(read(TEXT), plan, Trace(last=step.name))
        assert text(stopped.value.form).strip()


def test_names_are_unique_and_level_0_is_what_lowering_needs() -> None:
    names = step_names()
    assert len(set(names)) == len(names)
    assert set(names) == {step.name for step in (*GRAPH, *LOWER)}
    lowest = [step.name for step in GRAPH if step.level == 0 and not step.when]
    assert lowest == ["drop-dead-nodes", "bind-states"]


def test_steps_are_named_functions_whose_settings_exist() -> None:
    plan = LoweringContext(CoreChooser(TYPICAL_CORE), arena_planner())
    for steps, settings in ((GRAPH, PLAIN), (LOWER, plan)):
        for step in steps:
            assert step.function.__name__ != "<lambda>"
            for name in (step.when, *step.reads):
                assert not name or attrgetter(name)(settings) is not PLAIN


# The steps from a graph to placed kernels, for each kind of graph on each kind of machine.
CORE, DEVICE = CoreChooser(TYPICAL_CORE), BlockChooser()
PLACED = {
    "model": (
        LoweringContext(CORE),
        "partition assign-layouts tabulate choose-layouts narrow-storage level-bytes exact-weights "
        "compact-buffers divide-sums",
    ),
    "body": (
        LoweringContext(CORE, outer={}),
        "partition merge-groups assign-layouts tabulate choose-layouts narrow-storage level-bytes "
        "exact-weights divide-sums",
    ),
    "price": (
        LoweringContext(CORE, priced=True),
        "partition assign-layouts tabulate narrow-storage level-bytes divide-sums",
    ),
    "model on a GPU": (
        LoweringContext(DEVICE),
        "partition assign-layouts choose-layouts narrow-storage level-bytes exact-weights "
        "divide-sums sign-operands turn-operands",
    ),
}


@pytest.mark.parametrize("kind", PLACED)
def test_models_bodies_and_prices_read_the_same_rows(kind: str) -> None:
    plan, names = PLACED[kind]
    assert " ".join(step.name for step in PLACE if step.runs(plan)) == names


class Chance:
    """Draws a graph on values f32[1,4,6,6] in which every pass has many places to apply."""

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
                attrs = OPS["conv_transpose"].attrs((2, 2), (1, 1), (1, 1), (1, 1), (0, 0), 1)
                (x,) = b.add(OPS["conv_transpose"], [x, self.weights(4, 4, 4, 4)], attrs)
                pool = OPS["max_pool"].attrs((2, 2), (0, 0), (0, 0), (1, 1), (2, 2))
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
    after = run_pipeline(
        before, 2, Trace(verifying=True), settings=GraphSettings(fold_factors=True)
    )
    agree(before, after, tolerance=2e-5)
    op_names = {n.op.name for n in walk_nodes(after)}
    assert not op_names & {"batch_normalization", "conv_transpose"}
    assert run_pipeline(after, 2, Trace(), settings=GraphSettings(fold_factors=True)) is after
    agree(before, run_pipeline(before, 0, Trace(verifying=True)))
