"""Random ONNX models that mostly compute shapes, in chains of up to 300 nodes.

The model is built along a first run, at which it works: each node's value is computed, and large
results are not added. Runs at other sizes take other branches or fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .open_sizes import OpenModel

_LARGEST = 400  # Elements of a tensor at the first run.
_VAST = 1 << 40  # A bound of numbers that may become sizes.


@dataclass
class _Value:
    name: str
    array: Any  # The value at the first run.


@dataclass
class _Chain:
    rng: random.Random
    depth: float  # The probability that a step continues from the last value of its kind.
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[_Value] = field(default_factory=list)
    numbers: list[_Value] = field(default_factory=list)  # Vectors of one element.
    constants: dict[tuple[int, ...], str] = field(default_factory=dict)
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def constant(self, *numbers: int) -> str:
        return self.constants.setdefault(numbers, "c" + "_".join(map(str, numbers)))

    def node(self, op: str, inputs: Sequence[str], **attrs: object) -> str:
        name = self.name()
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    def number(self, value: int, op: str, inputs: Sequence[str], **attrs: object) -> bool:
        name = self.node(op, inputs, **attrs)
        self.numbers.append(_Value(name, value))
        return abs(value) < _VAST

    def tensor(self, array: Any, op: str, inputs: Sequence[str], **attrs: object) -> bool:
        self.tensors.append(_Value(self.node(op, inputs, **attrs), array))
        return bool(0 < array.size <= _LARGEST)

    def pick(self, values: Sequence[_Value]) -> _Value:
        return values[-1] if self.rng.random() < self.depth else self.rng.choice(values)

    def small(self, most: int) -> _Value:
        """Returns a number from 0 to `most`, computed from another number."""
        x = self.pick(self.numbers)
        return _Value(self.node("Mod", [x.name, self.constant(most + 1)]), x.array % (most + 1))


Step = Callable[[_Chain], bool]


def _size(c: _Chain) -> bool:
    """Adds the size of an axis, in one of the exporters' ways."""
    x = c.pick(c.tensors)
    axis = c.rng.randrange(x.array.ndim)
    size = x.array.shape[axis]
    shape = c.node("Shape", [x.name])
    way = c.rng.choice(("gather", "slice", "split", "product", "squeezed"))
    if way == "slice":
        return c.number(size, "Slice", [shape, c.constant(axis), c.constant(axis + 1)])
    if way == "product":
        return c.number(x.array.size, "ReduceProd", [shape], keepdims=1)
    if way == "split" and x.array.ndim > 1:
        names = [c.name() for _ in x.array.shape]
        c.nodes.append(helper.make_node("Split", [shape], names, axis=0))
        c.numbers.append(_Value(names[axis], size))
        return True
    if way == "squeezed":
        scalar = c.node("Squeeze", [c.node("Gather", [shape, c.constant(axis)]), c.constant(0)])
        return c.number(size, "Unsqueeze", [scalar, c.constant(0)])
    return c.number(size, "Gather", [shape, c.constant(axis)])


def _arithmetic(c: _Chain) -> bool:
    x, y = c.pick(c.numbers), c.rng.choice(c.numbers)
    if c.rng.random() < 0.3:
        value = c.rng.choice((1, 2, 3, 5, 16))
        y = _Value(c.constant(value), value)
    op = c.rng.choice(("Add", "Add", "Sub", "Mul", "Min", "Max"))
    value = {
        "Add": x.array + y.array,
        "Sub": x.array - y.array,
        "Mul": x.array * y.array,
        "Min": min(x.array, y.array),
        "Max": max(x.array, y.array),
    }[op]
    return c.number(value, op, [x.name, y.name])


def _divided(c: _Chain) -> bool:
    """Adds a division by a positive number, because a division by zero kills ONNX Runtime."""
    x, y = c.pick(c.numbers), c.rng.choice(c.numbers)
    by = _Value(c.node("Max", [y.name, c.constant(1)]), max(y.array, 1))
    if c.rng.random() < 0.6:
        value = c.rng.choice((2, 3, 4, 7))
        by = _Value(c.constant(value), value)
    if c.rng.random() < 0.5:
        return c.number(x.array % by.array, "Mod", [x.name, by.name])
    # Division truncates towards zero.
    value = abs(x.array) // by.array * (1 if x.array >= 0 else -1)
    return c.number(value, "Div", [x.name, by.name])


def _chosen(c: _Chain) -> bool:
    x, y, z = c.pick(c.numbers), c.rng.choice(c.numbers), c.rng.choice(c.numbers)
    test = c.node("Greater", [x.name, y.name])
    value = x.array if x.array > y.array else z.array
    return c.number(value, "Where", [test, x.name, z.name])


def _cut(c: _Chain) -> bool:
    x = c.pick(c.tensors)
    axis = c.rng.randrange(x.array.ndim)
    size = x.array.shape[axis]
    start, end = c.small(max(size // 2, 1)), c.small(size + 2)
    step = c.rng.choice((1, 1, 1, 2))
    at = [slice(None)] * x.array.ndim
    at[axis] = slice(start.array, end.array, step)
    names = [x.name, start.name, end.name, c.constant(axis), c.constant(step)]
    return c.tensor(x.array[tuple(at)], "Slice", names)


def _joined(c: _Chain) -> bool:
    """Adds a join of a tensor with itself, or of vectors.

    Other joins are absent, because ONNX Runtime joins an empty tensor to tensors of any shape.
    """
    x = c.pick(c.tensors)
    axis = c.rng.randrange(x.array.ndim)
    y = c.rng.choice([v for v in c.tensors if v.array.ndim == 1]) if x.array.ndim == 1 else x
    array = np.concatenate([x.array, y.array], axis)
    return c.tensor(array, "Concat", [x.name, y.name], axis=axis)


def _reshaped(c: _Chain) -> bool:
    x = c.pick(c.tensors)
    way = c.rng.choice(("flat", "flat", "turned", "turned", "row", "rows"))
    if way == "turned" and x.array.ndim > 1:
        order = c.rng.sample(range(x.array.ndim), x.array.ndim)
        shape = c.node("Shape", [x.name])
        sizes = [c.node("Gather", [shape, c.constant(axis)]) for axis in order]
        array = x.array.reshape([x.array.shape[axis] for axis in order])
        inputs = [x.name, c.node("Concat", sizes, axis=0)]
        return c.tensor(array, "Reshape", inputs, allowzero=1)
    if way in ("flat", "turned"):
        return c.tensor(x.array.reshape(-1), "Reshape", [x.name, c.constant(-1)])
    # Runs at other sizes may be indivisible.
    by = 1 if way == "row" else c.rng.choice([n for n in (2, 3, 4) if not x.array.size % n])
    return c.tensor(x.array.reshape(by, -1), "Reshape", [x.name, c.constant(by, -1)])


def _stretched(c: _Chain) -> bool:
    x = c.pick(c.tensors)
    way = c.rng.choice(("expand", "tile", "pad", "where"))
    count = c.small(3)
    if way == "expand":
        count = _Value(c.node("Add", [count.name, c.constant(1)]), count.array + 1)
        flat = c.node("Reshape", [x.name, c.constant(1, -1)])
        shape = c.node("Concat", [count.name, c.constant(1)], axis=0)
        array = np.broadcast_to(x.array.reshape(1, -1), (count.array, x.array.size))
        return c.tensor(array, "Expand", [flat, shape])
    if way == "tile":
        repeats_of_one = [c.constant(1)] * (x.array.ndim - 1)
        repeats = c.node("Concat", [count.name, *repeats_of_one], axis=0)
        repeated = (count.array, *[1] * (x.array.ndim - 1))
        return c.tensor(np.tile(x.array, repeated), "Tile", [x.name, repeats])
    if way == "pad":
        other = c.small(2)
        zeros = [c.constant(0)] * (x.array.ndim - 1)
        pads = c.node("Concat", [count.name, *zeros, other.name, *zeros], axis=0)
        widths = [(count.array, other.array), *[(0, 0)] * (x.array.ndim - 1)]
        return c.tensor(np.pad(x.array, widths), "Pad", [x.name, pads])
    test = c.node("Greater", [x.name, c.node("CastLike", [c.constant(0), x.name])])
    y = c.rng.choice(c.tensors) if c.rng.random() < 0.3 else x
    array = np.where(x.array > 0, x.array, y.array)
    return c.tensor(array, "Where", [test, x.name, y.name])


def _created(c: _Chain) -> bool:
    size = c.small(9)
    if c.rng.random() < 0.5:
        value = numpy_helper.from_array(np.array([2], np.float32))
        return c.tensor(
            np.full(size.array, 2, np.float32), "ConstantOfShape", [size.name], value=value
        )
    limit = c.node("Squeeze", [size.name, c.constant(0)])
    zero = c.node("Squeeze", [c.constant(0), c.constant(0)])
    one = c.node("Squeeze", [c.constant(1), c.constant(0)])
    counted = c.node("Range", [zero, limit, one])
    return c.tensor(
        np.arange(size.array).astype(np.float32), "Cast", [counted], to=TensorProto.FLOAT
    )


def _split(c: _Chain) -> bool:
    x = c.pick(c.tensors)
    axis = c.rng.randrange(x.array.ndim)
    size, wish = x.array.shape[axis], c.small(x.array.shape[axis])
    extent = c.node("Gather", [c.node("Shape", [x.name]), c.constant(axis)])
    first = _Value(c.node("Min", [wish.name, extent]), min(wish.array, size))
    second = c.node("Sub", [extent, first.name])
    sizes = c.node("Concat", [first.name, second], axis=0)
    names = [c.name(), c.name()]
    c.nodes.append(helper.make_node("Split", [x.name, sizes], names, axis=axis))
    parts = np.split(x.array, [first.array], axis)
    c.tensors += [_Value(n, p) for n, p in zip(names, parts, strict=True) if p.size]
    return True


def _loop(c: _Chain) -> bool:
    """Adds a loop that doubles a number as often as another number says."""
    trips, x = c.small(3), c.pick(c.numbers)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["old", "old"], ["twice"]),
            helper.make_node("Min", ["twice", c.constant(97)], ["new"]),
        ],
        f"body{c.count}",
        [
            helper.make_tensor_value_info("trip", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("old", TensorProto.INT64, [1]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("new", TensorProto.INT64, [1]),
        ],
    )
    value = x.array
    for _ in range(trips.array):
        value = min(2 * value, 97)
    count = c.node("Squeeze", [trips.name, c.constant(0)])
    return c.number(value, "Loop", [count, "", x.name], body=body)


def _grown(c: _Chain) -> bool:
    """Adds a loop that cuts a vector at a computed place and joins another vector in each trip."""
    trips, x, y, middle = c.small(3), c.pick(c.tensors), c.rng.choice(c.tensors), c.small(4)
    old = c.node("Reshape", [x.name, c.constant(-1)])
    other = c.node("Reshape", [y.name, c.constant(-1)])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Shape", ["old"], ["size"]),
            helper.make_node("Div", ["size", c.constant(2)], ["half"]),
            helper.make_node("Add", ["half", middle.name], ["end"]),
            helper.make_node("Slice", ["old", c.constant(0), "end", c.constant(0)], ["part"]),
            helper.make_node("Concat", ["part", other], ["new"], axis=0),
        ],
        f"body{c.count}",
        [
            helper.make_tensor_value_info("trip", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("old", TensorProto.FLOAT, [None]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("new", TensorProto.FLOAT, [None]),
        ],
    )
    array, more = x.array.reshape(-1), y.array.reshape(-1)
    for _ in range(trips.array):
        array = np.concatenate([array[: len(array) // 2 + middle.array], more])
    count = c.node("Squeeze", [trips.name, c.constant(0)])
    return c.tensor(array, "Loop", [count, "", old], body=body)


def _branched(c: _Chain) -> bool:
    """Adds a vector that is cut in one of two ways, chosen by a comparison of numbers."""
    x, a, b = c.pick(c.tensors), c.pick(c.numbers), c.rng.choice(c.numbers)
    flat, place = c.node("Reshape", [x.name, c.constant(-1)]), c.small(5)
    test = c.node("Squeeze", [c.node("Greater", [a.name, b.name]), c.constant(0)])
    bodies = []
    for number, ends in enumerate(((c.constant(0), place.name), (place.name, c.constant(1 << 40)))):
        nodes = [helper.make_node("Slice", [flat, *ends, c.constant(0)], [f"part{number}"])]
        result = helper.make_tensor_value_info(f"part{number}", TensorProto.FLOAT, [None])
        bodies.append(helper.make_graph(nodes, f"branch{c.count}_{number}", [], [result]))
    array = x.array.reshape(-1)
    array = array[: place.array] if a.array > b.array else array[place.array :]
    return c.tensor(array, "If", [test], then_branch=bodies[0], else_branch=bodies[1])


_NUMBERS: tuple[Step, ...] = (*(_arithmetic,) * 5, *(_divided,) * 3, _chosen, _size)
_TENSORS: tuple[Step, ...] = (
    *(_cut,) * 4, *(_joined,) * 4, _reshaped, _reshaped, _stretched, _stretched, _created, _split,
)  # fmt: skip
# A kind of model consists mostly of numbers, of cuts and joins of tensors, or of all steps.
_KINDS: tuple[tuple[Step, ...], ...] = (
    (*_NUMBERS * 4, *_TENSORS),
    (*(_cut, _joined) * 8, *_TENSORS, _size, *_NUMBERS),
    (*_NUMBERS, *_TENSORS, _loop),
    (*_NUMBERS, *_TENSORS, _loop, *(_grown, _branched) * 2),
)


def generate(seed: int, most: int = 300) -> OpenModel:
    """Returns the model of a seed with at most about `most` nodes, and four runs."""
    rng = random.Random(seed)
    c = _Chain(rng, rng.choice((0.3, 0.7, 0.95)))
    count = rng.choice((1, 2, 3, 5, 20, 60, most))
    inputs: dict[str, tuple[str | int, ...]] = {}
    shared = rng.random() < 0.3
    sizes: dict[str, int] = {}
    for n in range(count):
        names = [f"s{rng.randrange(4) if shared else f'{n}_{axis}'}" for axis in range(3)]
        dims = (*names[: rng.choice((1, 1, 1, 2, 3))],)
        for name in dims:
            sizes.setdefault(name, rng.randint(1, 6))
        inputs[f"x{n}"] = dims
        array = np.zeros([sizes[d] for d in dims], np.float32)
        c.tensors.append(_Value(f"x{n}", array + np.arange(array.size).reshape(array.shape) - 2))
    steps, limit = rng.choice(_KINDS), rng.choice((most // 15, most // 5, most))
    _size(c)
    _sum_of_sizes(c, most // 6)
    limit = min(limit + len(c.nodes), most)
    while len(c.nodes) < limit:
        before = len(c.nodes), len(c.tensors), len(c.numbers)
        try:
            is_taken = rng.choice(steps)(c)
        except (IndexError, ValueError):  # No value fits the step.
            is_taken = False
        if not is_taken:
            del c.nodes[before[0] :], c.tensors[before[1] :], c.numbers[before[2] :]
    return OpenModel(_model(c, inputs, seed), inputs, _runs(rng, sizes))


def _sum_of_sizes(c: _Chain, most: int) -> None:
    """Adds a sum of the first sizes of `most` inputs."""
    total = c.numbers[-1]
    for x in c.tensors[:most]:
        size = c.node("Gather", [c.node("Shape", [x.name]), c.constant(0)])
        c.number(total.array + x.array.shape[0], "Add", [total.name, size])
        total = c.numbers[-1]


def _model(c: _Chain, inputs: dict[str, tuple[str | int, ...]], seed: int) -> onnx.ModelProto:
    read = {name for node in c.nodes for name in node.input}
    results = [v for v in c.tensors if v.name not in inputs and v.name not in read][-20:]
    numbers = [v for v in c.numbers if v.name not in read][-20:] or c.numbers[-1:]
    graph = helper.make_graph(
        c.nodes,
        f"seed{seed}",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in inputs.items()],
        [
            *(
                helper.make_tensor_value_info(v.name, TensorProto.FLOAT, [None] * v.array.ndim)
                for v in results
            ),
            *(helper.make_tensor_value_info(v.name, TensorProto.INT64, [1]) for v in numbers),
        ],
        [numpy_helper.from_array(np.array(n, np.int64), name) for n, name in c.constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _runs(rng: random.Random, first: dict[str, int]) -> list[dict[str, int]]:
    """Returns the first run, a run with sizes of 1, and two random runs."""
    sizes_of_one = dict.fromkeys(first, 1)
    other_sizes = [{name: rng.randint(0, 6) for name in first} for _ in range(2)]
    return [first, sizes_of_one, *other_sizes]
