"""Random ONNX models with symbolic sizes, which are equal, different or 1 in different runs.

Sizes are symbols, and the results of slices, repetitions and joins. The model is built along a
first run, at which it works, so that other runs often work too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SYMBOLS = ("n", "m", "p")
SIZES = (1, 2, 3)
Shape = tuple[int, ...]
Dims = tuple[str | int, ...]
Arrays = Mapping[str, Any]


@dataclass
class Value:
    """A value of a model that is being built, its shape at the first run, and its symbolic axes."""

    name: str
    shape: Shape
    open: frozenset[int] = frozenset()


@dataclass
class OpenModel:
    """A model, its inputs' dims (symbols or numbers), and the sizes of its symbols in each run.

    `amounts` are integer inputs that also decide sizes, with their values at the first run;
    `values` are the results of steps.
    """

    model: onnx.ModelProto
    inputs: dict[str, Dims]
    runs: list[dict[str, int]]
    amounts: dict[str, list[int]] = field(default_factory=dict)
    values: list[str] = field(default_factory=list)

    def feeds(self, run: dict[str, int]) -> Arrays:
        """Returns inputs of small whole numbers, whose sums are exact."""
        rng = np.random.default_rng(list(run.values()))
        arrays = {
            name: rng.integers(-4, 5, [run.get(str(d), d) for d in dims]).astype(np.float32)
            for name, dims in self.inputs.items()
        }
        first = run == self.runs[0]
        for name, amounts in self.amounts.items():
            arrays[name] = np.array([n if first else n and rng.integers(3) for n in amounts])
        return arrays


@dataclass
class Builder:
    """The nodes and values of a model that is being built."""

    rng: random.Random
    sizes: dict[str, int]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    count: int = 0
    kind: str = ""
    amounts: dict[str, list[int]] = field(default_factory=dict)

    def may(self, kind: str, other: str) -> bool:
        """Returns true if the model is of this kind, or was of neither kind until now."""
        if self.kind != other:
            self.kind = kind
        return self.kind == kind

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def constant(self, *numbers: int) -> str:
        name = self.name()
        self.constants.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def node(self, op: str, inputs: Sequence[str], **attrs: object) -> str:
        name = self.name()
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    def result(self, shape: Sequence[int], op: str, inputs: Sequence[str], **attrs: object) -> None:
        self.values.append(Value(self.node(op, inputs, **attrs), tuple(shape)))

    def pick(self, *ranks: int) -> Value:
        return self.rng.choice([v for v in self.values if not ranks or len(v.shape) in ranks])

    def size(self, x: Value, axis: int) -> str:
        return self.node("Gather", [self.node("Shape", [x.name]), self.constant(axis)])


def _joined(*shapes: Shape) -> Shape | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


Step = Callable[[Builder], bool]


def _pointwise(b: Builder) -> bool:
    count = b.rng.choice((2, 2, 3))
    xs = [b.pick() for _ in range(count)]
    shape = _joined(*(x.shape for x in xs))
    if shape is None:
        return False
    op = b.rng.choice(("Max", "Sum")) if count == 3 else b.rng.choice(("Add", "Mul", "Sub", "Max"))
    b.result(shape, op, [x.name for x in xs])
    return True


def _where(b: Builder) -> bool:
    c, x, y = b.pick(), b.pick(), b.pick()
    shape = _joined(c.shape, x.shape, y.shape)
    if shape is None:
        return False
    zero = b.node("CastLike", [b.constant(0), c.name])
    b.result(shape, "Where", [b.node("Greater", [c.name, zero]), x.name, y.name])
    return True


def _concat(b: Builder) -> bool:
    x = b.pick(1, 2, 3)
    axis = b.rng.randrange(len(x.shape))
    y = x if b.rng.random() < 0.3 else b.pick(len(x.shape))
    other_dims = [s[:axis] + s[axis + 1 :] for s in (x.shape, y.shape)]
    if other_dims[0] != other_dims[1] or not b.may("filled", "empty"):
        return False
    sizes = list(x.shape)
    sizes[axis] += y.shape[axis]
    b.result(sizes, "Concat", [x.name, y.name], axis=axis)
    return True


def _matmul(b: Builder) -> bool:
    x, y = b.pick(1, 2, 3), b.pick(1, 2, 3)
    try:
        shape = np.matmul(np.zeros(x.shape), np.zeros(y.shape)).shape
    except ValueError:
        return False
    b.result(shape, "MatMul", [x.name, y.name])
    return True


def _gemm(b: Builder) -> bool:
    x, y, c = b.pick(2), b.pick(2), b.pick(0, 1, 2)
    ta, tb = b.rng.randrange(2), b.rng.randrange(2)
    lhs, right = x.shape[:: -1 if ta else 1], y.shape[:: -1 if tb else 1]
    if lhs[1] != right[0]:
        return False
    shape = lhs[0], right[1]
    if _joined(c.shape, shape) != shape:
        return False
    b.result(shape, "Gemm", [x.name, y.name, c.name], transA=ta, transB=tb)
    return True


def _expand(b: Builder) -> bool:
    x, y = b.pick(), b.pick()
    shape = _joined(x.shape, y.shape)
    if shape is None:
        return False
    b.result(shape, "Expand", [x.name, b.node("Shape", [y.name])])
    return True


def _einsum(b: Builder) -> bool:
    xs = [b.pick(1, 2, 3) for _ in range(b.rng.choice((1, 2, 2, 3)))]
    terms = ["".join(b.rng.choice("abcd") for _ in x.shape) for x in xs]
    letters = sorted(set("".join(terms)))
    out = "".join(b.rng.sample(letters, b.rng.randint(0, len(letters))))
    if not b.may("filled", "empty"):
        return False
    equation = ",".join(terms) + "->" + out
    try:
        shape = np.einsum(equation, *(np.zeros(x.shape) for x in xs)).shape
    except ValueError:
        return False
    b.result(shape, "Einsum", [x.name for x in xs], equation=equation)
    return True


def _part(b: Builder) -> bool:
    """Adds a part of a value: a multiple of a number, a half, a stride, or the rest.

    A part may be empty. ONNX Runtime fails at some operators with empty operands, so a model has
    either.
    """
    x = b.pick(1, 2, 3)
    axis, by = b.rng.randrange(len(x.shape)), b.rng.choice((2, 3))
    size, n = b.size(x, axis), x.shape[axis]
    kind = b.rng.choice(("whole", "front", "back", "stride", "rest"))
    if kind in ("whole", "rest", "back") and not b.may("empty", "filled"):
        return False
    start, end, step = b.constant(0), size, 1
    if kind == "whole":
        end = b.node("Mul", [b.node("Div", [size, b.constant(by)]), b.constant(by)])
        n = n // by * by
    elif kind == "front":
        end = b.node("Div", [b.node("Add", [size, b.constant(by - 1)]), b.constant(by)])
        n = -(-n // by)
    elif kind == "back":
        start = b.node("Div", [size, b.constant(by)])
        n -= n // by
    elif kind == "stride":
        step = by
        n = -(-n // by)
    else:
        start = b.node("Mod", [size, b.constant(by)])
        n -= n % by
    shape = (*x.shape[:axis], n, *x.shape[axis + 1 :])
    b.result(shape, "Slice", [x.name, start, end, b.constant(axis), b.constant(step)])
    return True


def _moved(b: Builder) -> bool:
    x = b.pick(1, 2, 3)
    rank = len(x.shape)
    kind = b.rng.choice(("Transpose", "ReduceMax", "Reshape", "Unsqueeze"))
    if kind == "Transpose":
        order = b.rng.sample(range(rank), rank)
        b.result([x.shape[a] for a in order], kind, [x.name], perm=order)
    elif kind == "ReduceMax":
        axis = b.rng.randrange(rank)
        if not x.shape[axis]:
            return False
        shape = [1 if n == axis else s for n, s in enumerate(x.shape)]
        b.result(shape, kind, [x.name], axes=[axis])
    elif kind == "Reshape":
        b.result([int(np.prod(x.shape))], kind, [x.name, b.constant(-1)])
    elif kind == "Unsqueeze" and rank < 3:
        axis = b.rng.randrange(rank + 1)
        shape = [*x.shape[:axis], 1, *x.shape[axis:]]
        b.result(shape, kind, [x.name, b.constant(axis)])
    else:
        return False
    return True


def _tile(b: Builder) -> bool:
    x = b.pick(1, 2, 3)
    if not b.may("filled", "empty"):
        return False
    times = [b.rng.choice((1, 2)) for _ in x.shape]
    shape = [s * t for s, t in zip(x.shape, times, strict=True)]
    b.result(shape, "Tile", [x.name, b.constant(*times)])
    return True


STEPS: tuple[Step, ...] = (
    *(_pointwise,) * 3, _where, _concat, _matmul, _matmul, _gemm, _expand, _expand,
    _einsum, _einsum, _part, _part, _moved, _moved, _tile,
)  # fmt: skip


def generate(seed: int, steps: int = 6) -> OpenModel:
    """Returns the model of a seed."""
    rng = random.Random(seed)
    combos = list(product(SIZES, repeat=len(SYMBOLS)))
    first = dict(zip(SYMBOLS, rng.choice(combos), strict=True))
    b = Builder(rng, first)
    inputs: dict[str, Dims] = {}
    for n in range(rng.randint(2, 4)):
        dims = tuple(
            rng.choice((*SYMBOLS, *SYMBOLS, 1, 3)) for _ in range(rng.choice((1, 2, 2, 3)))
        )
        inputs[f"x{n}"] = dims
        b.values.append(Value(f"x{n}", tuple(first.get(str(d), d) for d in dims)))
    first_count = len(b.values)
    for _ in range(20 * steps):
        before = len(b.values)
        try:
            step = rng.choice(STEPS)
            if step(b) and max(b.values[-1].shape, default=1) > 24:
                del b.values[before:]
        except IndexError:  # No value has a fitting rank.
            continue
        if len(b.values) - first_count == steps:
            break
    other_combos = rng.sample(combos, 7)
    runs = [first, *(dict(zip(SYMBOLS, sizes, strict=True)) for sizes in other_combos)]
    return model_of(b, f"seed{seed}", inputs, runs)


def model_of(
    b: Builder, name: str, inputs: dict[str, Dims], runs: list[dict[str, int]]
) -> OpenModel:
    """Returns the built model, whose outputs are all values that no node reads."""
    item, read = helper.make_tensor_value_info, {name for node in b.nodes for name in node.input}
    ends = [v for v in b.values[len(inputs) :] if v.name not in read]
    sizes = [item(n, TensorProto.INT64, [len(a)]) for n, a in b.amounts.items()]
    graph = helper.make_graph(
        b.nodes,
        name,
        [*(item(n, TensorProto.FLOAT, dims) for n, dims in inputs.items()), *sizes],
        [item(v.name, TensorProto.FLOAT, [None] * len(v.shape)) for v in ends],
        b.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return OpenModel(model, inputs, runs, b.amounts, [v.name for v in b.values[len(inputs) :]])
