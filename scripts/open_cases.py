"""Times operators with symbolic sizes beside the same operators with fixed sizes.

`scripts/operators --open` runs this. One artifact with symbolic sizes serves all sizes of an
operator; beside it, an artifact is compiled for each size. An operator that takes less than a
millisecond is repeated in a chain, so that the call itself is a small part of the time.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from beside import Arrays, PairSettings, distance
from goals import geometric_mean
from onnx import TensorProto, helper, numpy_helper
from operator_cases import OPSET, Array
from tcc.cli.peers.peer import Peer, PeerKind
from tcc.driver import compile_model
from tcc.options import Options
from tcc.runtime.interleaved import REST, paired_ratio

SIZES = (1, 3, 7, 12, 15, 25, 28, 63, 65, 77, 96, 199)
_CHANNELS = (64, 128)
_CHAIN = 8
# An operator with at least this many multiply-adds is measured alone; a smaller one is measured in
# a chain, so that a run is not too short. Two cores need some hundred microseconds for so many.
_UNCHAINED_WORK = 1e8
_WORKER = str(Path(__file__).with_name("peers") / "peer_sizes.py")


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator with constant weights.

    `shape` is the shape of its input; a 0 in it stands for a symbolic size. `work` is the number of
    multiply-adds, or of operations that take as long, for each point of the symbolic axes. A case
    is a chain of operators, in which each reads the result of the operator before it. With
    `own_inputs`, each operator reads an input of its own instead, because a result has another size
    than an input.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    work: int
    weights: tuple[tuple[int, ...], ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    relu: bool = False
    own_inputs: bool = False

    def sized(self, size: int) -> tuple[int, ...]:
        return tuple(extent or size for extent in self.shape)

    def chain(self, size: int) -> int:
        """Returns how many operators a chain has at this size."""
        return _CHAIN if self.work * size ** self.shape.count(0) < _UNCHAINED_WORK else 1

    def feed(self, size: int) -> Arrays:
        rng = np.random.default_rng(size)
        names = [f"x{n}" for n in range(self.chain(size) if self.own_inputs else 1)]
        return {n: rng.standard_normal(self.sized(size)).astype(np.float32) for n in names}


def operators() -> Iterator[Operator]:
    """Yields all operators with 64 channels, then with 128."""
    for c in _CHANNELS:
        yield from _contractions(c)
        rows, planes, pair = (1, 0, c), (1, c, 0, 0), ((c,), (c,))
        groups = {"num_groups": 8}
        yield Operator(f"layer norm {c}", "LayerNormalization", rows, 16 * c, pair)
        yield Operator(f"group norm {c}", "GroupNormalization", planes, 16 * c, pair, groups)
        yield Operator(f"instance norm {c}", "InstanceNormalization", planes, 16 * c, pair)
        yield Operator(f"softmax {c}", "Softmax", (1, c, 0), 32 * c, (), {"axis": 2})


def _contractions(c: int) -> Iterator[Operator]:
    image = (1, c, 0, 0)
    for k in (1, 3, 5):
        pads, weights = {"pads": [k // 2] * 4}, ((c, c, k, k), (c,))
        yield Operator(f"conv {k}x{k} {c}", "Conv", image, c * c * k * k, weights, pads, relu=True)
    yield Operator(f"conv 1-d {c}", "Conv", (1, c, 0), 3 * c * c, ((c, c, 3), (c,)),
                   {"pads": [1, 1]}, relu=True)  # fmt: skip
    yield Operator(f"depthwise 3x3 {c}", "Conv", image, 9 * c, ((c, 1, 3, 3), (c,)),
                   {"group": c, "pads": [1] * 4}, relu=True)  # fmt: skip
    yield Operator(f"transposed 2x2 {c}", "ConvTranspose", image, 4 * c * c,
                   ((c, c, 2, 2), (c,)), {"strides": [2, 2]}, own_inputs=True)  # fmt: skip
    yield Operator(f"matmul {c}", "MatMul", (0, c), c * c, ((c, c),), relu=True)


def model_of(operator: Operator, count: int, size: int | None) -> onnx.ModelProto:
    """Returns a chain of `count` operators whose open axes have `size`, or are symbolic if None."""
    rng = np.random.default_rng(7)
    open_axes = iter("hwd")
    dims = [e or (next(open_axes) if size is None else size) for e in operator.shape]
    inputs = [f"x{n}" for n in range(count if operator.own_inputs else 1)]
    nodes, constants, results = [], {}, []
    for n in range(count):
        names = [f"c{n}_{i}" for i in range(len(operator.weights))]
        constants |= {k: _weight(rng, s) for k, s in zip(names, operator.weights, strict=True)}
        source = inputs[n] if operator.own_inputs else results[-1] if results else inputs[0]
        results.append(f"y{n}")
        output = f"a{n}" if operator.relu else results[-1]
        nodes.append(
            helper.make_node(operator.op, [source, *names], [output], **operator.attributes)
        )
        if operator.relu:
            nodes.append(helper.make_node("Relu", [output], [results[-1]]))
    typed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in inputs]
    ends = results if operator.own_inputs else results[-1:]
    rank = [None] * len(dims)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, rank) for name in ends]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "operator", typed, outputs, weights)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)


def _weight(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Returns random weights whose scale keeps the magnitude of data along a chain."""
    scale = (2 / max(np.prod(shape[1:]), 1)) ** 0.5 if len(shape) > 1 else 1.0
    return (rng.standard_normal(shape) * scale).astype(np.float32)


@dataclass(frozen=True, slots=True)
class OpenRow:
    """The times of an operator or a model at one size, each as the seconds of all rounds.

    `open` are the times of tcc with symbolic sizes, `fixed` those with fixed sizes, and `ort` those
    of ONNX Runtime. `difference` is the largest difference of tcc's results from ONNX Runtime's, as
    a share of the largest value.
    """

    operator: str
    size: int | str
    open: tuple[float, ...]
    fixed: tuple[float, ...]
    ort: tuple[float, ...]
    difference: float

    @property
    def loss(self) -> float:
        """Returns the time with symbolic sizes over the time with fixed sizes."""
        return paired_ratio(self.fixed, [self.open])

    @property
    def lead(self) -> float:
        """Returns ONNX Runtime's time over the time with symbolic sizes."""
        return paired_ratio(self.open, [self.ort])

    @property
    def slow(self) -> bool:
        """Returns True if tcc reaches 0.95 of ONNX Runtime's speed with fixed sizes, but not with
        symbolic sizes."""
        return self.lead < 0.95 <= paired_ratio(self.fixed, [self.ort])

    @property
    def text(self) -> str:
        times = "".join(f"{np.median(t) * 1e6:11.1f}" for t in (self.open, self.fixed, self.ort))
        ratios = (self.loss, self.lead, paired_ratio(self.fixed, [self.ort]))
        name = f"{self.operator} @{self.size}"
        return f"{name:26}{times}" + "".join(f"{ratio:12.2f}" for ratio in ratios)


HEAD = (
    f"{'operator @size':26}{'open us':>11}{'fixed us':>11}{'ort us':>11}"
    f"{'open/fixed':>12}{'ort/open':>12}{'ort/fixed':>12}"
)


def measure(
    operator: Operator, sizes: Sequence[int], options: Options, plan: PairSettings, scratch: Path
) -> Iterator[OpenRow]:
    """Compiles and times an operator; yields a row for each size. Raises TccError if tcc fails."""
    sources, opened, fixed = [], [], []
    for size in sizes:
        count = operator.chain(size)
        for files, fixed_size in ((opened, None), (fixed, size)):
            name = re.sub("[^a-z0-9]+", "_", f"{operator.name} {count} {fixed_size or 'open'}")
            source, artifact = scratch / f"{name}.onnx", scratch / f"{name}.so"
            if str(artifact) not in files:
                onnx.save(model_of(operator, count, fixed_size), source)
                compile_model(source, options, artifact)
            files.append(str(artifact))
        sources.append(opened[-1].replace(".so", ".onnx"))
    lists = {"open": opened, "fixed": fixed, "ort": sources}
    feeds = [operator.feed(size) for size in sizes]
    yield from open_rows(operator.name, sizes, lists, feeds, plan, scratch)


def open_rows(
    name: str,
    sizes: Sequence[int | str],
    lists: Mapping[str, Sequence[str]],
    feeds: Sequence[Arrays],
    plan: PairSettings,
    scratch: Path,
) -> Iterator[OpenRow]:
    """Times the artifacts of the operator or model `name`; yields a row for each size.

    `lists` maps "open", "fixed" and "ort" to a file for each size, and `feeds` has the inputs at
    each size. Raises ToolError if a process fails.
    """
    rounds, outputs = _rounds(lists, feeds, plan, scratch)
    for n, size in enumerate(sizes):
        results = {kind: _part(arrays, n) for kind, arrays in outputs.items()}
        difference = max(distance(results[kind], results["ort"]) for kind in ("open", "fixed"))
        times = {kind: tuple(turn[n] for turn in turns) for kind, turns in rounds.items()}
        yield OpenRow(name, size, **times, difference=difference)


def _rounds(
    lists: Mapping[str, Sequence[str]], feeds: Sequence[Arrays], plan: PairSettings, scratch: Path
) -> tuple[Mapping[str, Sequence[Sequence[float]]], Mapping[str, Arrays]]:
    """Returns (times, outputs), both by the kinds of `lists`: "open", "fixed" and "ort".

    `times[kind][round][n]` is the time of size number `n` in seconds. `outputs[kind]` maps "n NAME"
    to the output NAME at size number n. Each kind has a process of its own. The processes take
    turns in every round, and a process runs all sizes in its turn.
    """
    inputs = {f"{n} {name}": array for n, feed in enumerate(feeds) for name, array in feed.items()}
    peers: list[Peer] = []
    with ExitStack() as stack:
        for kind, files in lists.items():
            file_list = scratch / f"{kind}.json"
            file_list.write_text(json.dumps(files))
            row = PeerKind(kind, _WORKER, arguments=("ort" if kind == "ort" else "tcc",))
            peers.append(stack.enter_context(Peer(kind, file_list, inputs, plan.threads, row=row)))
        outputs = {peer.kind: peer.outputs() for peer in peers}
        turns: dict[str, list[Sequence[float]]] = {peer.kind: [] for peer in peers}
        for number in range(plan.rounds):
            first = number % len(peers)
            for peer in (*peers[first:], *peers[:first]):
                time.sleep(REST)
                turns[peer.kind].append(peer.seconds(round(plan.seconds * 1e6)))
    return turns, outputs


def _part(arrays: Arrays, number: int) -> Arrays:
    return {
        name.partition(" ")[2]: array
        for name, array in arrays.items()
        if name.startswith(f"{number} ")
    }


def summary(rows: Sequence[OpenRow]) -> Iterator[str]:
    """Yields a line for each operator, then a line for all.

    A line has the geometric mean and the maximum of `OpenRow.loss`, and the number of rows that are
    `slow`.
    """
    groups: dict[str, list[OpenRow]] = {}
    for row in rows:
        groups.setdefault(row.operator, []).append(row)
    yield f"{'operator':26}{'open/fixed':>12}{'worst':>12}{'below ort':>12}"
    for name, group in (*groups.items(), ("together", rows)):
        losses = [row.loss for row in group]
        slow = sum(row.slow for row in group)
        yield f"{name:26}{geometric_mean(losses):12.2f}{max(losses):12.2f}{slow:12}"
