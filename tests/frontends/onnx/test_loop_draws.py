"""Random loops, whose carried values change rank and size, agree with ONNX Runtime."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    RuntimeException,
)
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph

from tests.lib.import_oracle import expected, model_of

SHAPES = ((), (1,), (1, 1), (3,), (1, 3), (3, 1))
# Steps of a body: {x} and {y} stand for earlier values, {r} for the result.
STEPS = (
    "{r} = Add ({x}, d0)", "{r} = Add ({x}, d1)", "{r} = Add ({x}, d2)", "{r} = Squeeze ({x})",
    "{r} = Unsqueeze ({x}, zero)", "{r} = Reshape ({x}, flat)", "{r} = Reshape ({x}, row)",
    "{r} = ReduceSum <keepdims = 0> ({x})", "{r} = Mul ({x}, {y})", "{r} = Neg ({x})",
    "{r}f = Reshape ({x}, flat)  {r} = Concat <axis = 0> ({r}f, d1)",
    "{r}f = Cast <to = 1> (i)  {r} = Add ({x}, {r}f)",
)  # fmt: skip
CONSTANTS = """<float d0 = {0.5}, float[1] d1 = {1.5}, float[1, 1] d2 = {-1.0}, float end = {4.0},
    int64[1] zero = {0}, int64[1] flat = {-1}, int64[2] row = {1, -1}>"""

REASONS = (
    "still changes the rank", "its rows change", "stacks rows of different sizes",
    "a size is 0 where the model needs 1", "a squeeze that names no axes", "do not broadcast",
)  # fmt: skip


def drawn(draw: Random) -> tuple[onnx.ModelProto, list[tuple[int, ...]], int | None]:
    """Returns a loop of one to three carried values, the shapes of their initial values, and its
    number of trips if that is a constant."""
    shapes = [draw.choice(SHAPES) for _ in range(draw.randint(1, 3))]
    count, body = len(shapes), []
    names = [*(f"a{n}" for n in range(count)), "d0"]
    for number in range(draw.randint(1, 5)):
        x, y = draw.choice(names), draw.choice(names)
        body.append(draw.choice(STEPS).format(x=x, y=y, r=f"t{number}"))
        names.append(f"t{number}")
    results = [f"b{n}" for n in range(count)] + ["row0"] * draw.randint(0, 1)
    body += [f"{result} = Identity ({draw.choice(names)})" for result in results]
    if draw.random() < 0.3:
        body.append("s = ReduceSum <keepdims = 0> (b0)  go = Less (s, end)")
    else:
        body.append("go = Identity (k)")
    trips = draw.randint(0, 5) if draw.random() < 0.4 else None
    outputs = [f"y{n}" for n in range(len(results))]
    after = []
    if draw.random() < 0.4:  # a reduction accepts any rank
        after = [f"{name}s = ReduceSum <keepdims = 0> ({name})" for name in outputs]
    ends = [f"float {name}s" if after else f"float[] {name}" for name in outputs]
    inputs = [f"float{list(shape) if shape else ''} x{n}" for n, shape in enumerate(shapes)]
    count_of = "" if trips is None else f"m = Constant <value = int64 {{{trips}}}> ()"
    model = model_of(f"""
    g ({"" if count_of else "int64 m, "}{", ".join(inputs)}) => ({", ".join(ends)}) {CONSTANTS} {{
      {count_of}
      {", ".join(outputs)} = Loop (m, "", {", ".join(f"x{n}" for n in range(count))}) <
        body = body (int64 i, bool k, {", ".join(f"float[] a{n}" for n in range(count))}) =>
            (bool[] go, {", ".join(f"float[] {name}" for name in results)}) {{ {" ".join(body)} }}
      >
      {" ".join(after)}
    }}""")
    return model, shapes, trips


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_drawn_loops_agree_or_are_refused(first: int) -> None:
    agreeing, refusals = 0, []
    for seed in range(first, first + 20):
        model, shapes, trips = drawn(Random(seed))
        rng = np.random.default_rng(seed)
        feeds = {f"x{n}": rng.standard_normal(s).astype(np.float32) for n, s in enumerate(shapes)}
        try:
            graph = load_model(model)
        except UserError as error:
            refusals.append((seed, str(error)))
            continue
        for count in (0, 1, 2, 4) if trips is None else (trips,):
            inputs = feeds if trips is not None else {**feeds, "m": np.array(count)}
            try:
                due = expected(model, inputs)
            except (Fail, InvalidArgument, InvalidGraph, RuntimeException):
                continue  # ONNX Runtime refuses a trip for its ranks
            try:
                outputs = evaluate_graph(graph, inputs)
            except UserError as error:
                refusals.append((seed, str(error)))
                continue
            for name, array in due.items():
                # For a loop without trips, ONNX Runtime gives rows whose sizes are zero.
                assert outputs[name].size == array.size, (seed, count, name)
                np.testing.assert_allclose(
                    outputs[name].ravel(), array.ravel(), rtol=1e-5, atol=1e-5, err_msg=f"{seed}"
                )
            agreeing += 1
    assert agreeing >= 25
    assert [r for r in refusals if not any(reason in r[1] for reason in REASONS)] == []
