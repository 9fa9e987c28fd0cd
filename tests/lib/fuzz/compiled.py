"""Checks generated graphs as machine code: an artifact holds many, each has expected results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from tcc import driver, runtime
from tcc.backends.cpu import compile as cpu_compile
from tcc.ir.graph import Graph, GraphBuilder, Value, captures
from tcc.options import read_options

from tests.lib.pool_here import PoolHere

from .graphs import Array, Generated, generate
from .judge import Expected, expect, from_storage, stored, wrong

# The compile options of each mode.
MODES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "O0": MappingProxyType({"level": 0}),
        "O3": MappingProxyType({"level": 3}),
        "strict": MappingProxyType({"level": 3, "numerics": "strict"}),
        "avx2": MappingProxyType({"level": 3, "cpu": "x86-64-v3"}),
    }
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed whose graph does not compile or gives wrong results in a mode."""

    seed: int
    mode: str
    what: str


def check(seeds: Sequence[int], modes: Sequence[str], most: int | None = None) -> list[Failure]:
    """Returns the failures of some seeds, which compile together; an exception halves the group."""
    expected = {seed: expect(generate(seed, most)) for seed in seeds}
    return [f for mode in modes for f in _check(seeds, mode, most, expected)]


def _check(
    seeds: Sequence[int], mode: str, most: int | None, expected: Mapping[int, Expected]
) -> list[Failure]:
    try:
        return _together(seeds, mode, most, expected)
    except Exception as error:  # Any exception is a finding.
        if len(seeds) == 1:
            return [Failure(seeds[0], mode, f"{type(error).__name__}: {error}")]
    middle = len(seeds) // 2
    parts = seeds[:middle], seeds[middle:]
    return [f for part in parts for f in _check(part, mode, most, expected)]


def _together(
    seeds: Sequence[int], mode: str, most: int | None, expected: Mapping[int, Expected]
) -> list[Failure]:
    generated, graph = join(seeds, most)
    feeds = {}
    for one in generated.values():
        feeds.update(one.inputs)
    outputs = _run(graph, stored(feeds, graph), mode)
    types = {v.name: v.type.dtype for v in graph.outputs}
    failures = []
    for seed, one in generated.items():
        for value in dict.fromkeys(one.graph.outputs):
            array = from_storage(outputs[value.name], types[value.name])
            what = wrong(expected[seed], value.name, array)
            if what:
                failures.append(Failure(seed, mode, f"%{value.name}: {what}"))
                break
    return failures


def join(seeds: Sequence[int], most: int | None = None) -> tuple[dict[int, Generated], Graph]:
    """Returns the graphs of the seeds, and one graph that contains them all."""
    builder = GraphBuilder("fuzz")
    graphs = {seed: generate(seed, most, builder) for seed in seeds}
    outputs = [v for one in graphs.values() for v in dict.fromkeys(one.graph.outputs)]
    return graphs, builder.finish(dict.fromkeys(outputs))


def _run(graph: Graph, feeds: Mapping[str, Array], mode: str) -> dict[str, Any]:
    options = read_options({"jobs": 1, **MODES[mode]})
    with (
        TemporaryDirectory() as folder,
        patch.object(driver, "load_batched", lambda g, *_, **__: (g, None)),
        patch.object(cpu_compile, "WorkerPool", PoolHere),
    ):
        path = Path(folder, "fuzz.so")
        driver.compile_model(graph, options, path)
        return runtime.load(path, 1, poison=True).run(feeds, seed=0)


def shrink(seed: int, mode: str) -> tuple[Generated, str] | None:
    """Returns the smallest failing part of a seed's graph and its failure; None if the seed
    passes."""
    steps = (most for most in range(1, 25) if check([seed], [mode], most))
    most = next(steps, None)
    if most is None:
        return None
    generated = generate(seed, most)
    what = failure_of(generated, mode)
    for value in generated.graph.outputs:
        small = _for_output(generated, value)
        failure = failure_of(small, mode)
        if failure:
            return small, failure
    return generated, what


def failure_of(made: Generated, mode: str) -> str:
    """Returns a graph's failure in a mode, or an empty text."""
    expected = expect(made)
    try:
        outputs = _run(made.graph, stored(made.inputs, made.graph), mode)
    except Exception as error:  # Any exception is a finding.
        return f"{type(error).__name__}: {error}"
    for value in made.graph.outputs:
        what = wrong(expected, value.name, from_storage(outputs[value.name], value.type.dtype))
        if what:
            return f"%{value.name}: {what}"
    return ""


def _for_output(generated: Generated, output: Value) -> Generated:
    """Returns the part of a graph that one output needs."""
    needed, nodes = {output}, []
    for node in reversed(generated.graph.nodes):
        if needed & set(node.outputs):
            needed.update(v for v in (*node.inputs, *captures(node)) if v is not None)
            nodes.append(node)
    graph = generated.graph
    inputs = tuple(v for v in graph.inputs if v in needed)
    constants = {v: h for v, h in graph.constants.items() if v in needed}
    small = replace(
        graph, inputs=inputs, outputs=(output,), nodes=tuple(reversed(nodes)), constants=constants
    )
    return replace(
        generated, graph=small, inputs={v.name: generated.inputs[v.name] for v in inputs}
    )
