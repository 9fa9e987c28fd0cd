"""Random ONNX models of layers over images, signals and rows with symbolic sizes.

Batch, height, width and length are symbols; channels are numbers, because weights have them. The
model is built along a first run, at which it works. The other runs have sizes of 1, odd sizes, a 0,
and sizes below a window's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from .open_sizes import Builder, Dims, OpenModel, Value, model_of

# Elements of a value at the first run.
_MOST = 20_000
_SIGNAL, _IMAGE = 3, 4
Step = Callable[["_Layers"], bool]


class _Layers(Builder):
    """A builder that also draws weights. `Value.open` has the axes with symbolic sizes."""

    @property
    def lists(self) -> tuple[list[Any], ...]:
        """Returns all lists that a step appends to."""
        return self.values, self.nodes, self.constants

    def weights(self, *shape: int, scale: float | None = None) -> str:
        """Returns random weights, scaled so that sums are as large as their terms."""
        name = self.name()
        draw = np.random.default_rng(self.rng.randrange(1 << 30))
        by = scale or float(np.prod(shape[1:] or (1,))) ** -0.5
        array = (draw.normal(size=shape) * by).astype(np.float32)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def maps(self, *ranks: int) -> Value:
        """Returns a value with channels and a rank in `ranks`."""
        fits = [v for v in self.values if len(v.shape) in ranks and 1 not in v.open]
        return self.rng.choice(fits[-4:])

    def layer(
        self, x: Value, shape: Sequence[int], op: str, inputs: Sequence[str], **attrs: object
    ) -> None:
        """Adds a result with the symbolic axes of `x`."""
        self.result(shape, op, inputs, **attrs)
        self.values[-1].open = x.open

    def numbers(self, lo: int, hi: int, count: int) -> list[int]:
        return [self.rng.randint(lo, hi) for _ in range(count)]


def _space(x: Value) -> tuple[int, ...]:
    return x.shape[2:]


# ---- windows ------------------------------------------------------------------------------------


def _conv(b: _Layers) -> bool:
    """Adds a plain, grouped or depthwise convolution with padding, strides and dilations."""
    x = b.maps(_SIGNAL, _IMAGE)
    rank, channels = len(_space(x)), x.shape[1]
    groups = b.rng.choice([g for g in (1, 1, 1, 2, channels) if channels % g == 0])
    out = groups * b.rng.choice((1, 2, 3)) if groups > 1 else b.rng.choice((1, 3, 4, 8, 16))
    taps, steps = b.numbers(1, 4, rank), b.numbers(1, 2, rank)
    dilations = [b.rng.choice((1, 1, 2)) for _ in range(rank)]
    reach = [d * (k - 1) + 1 for k, d in zip(taps, dilations, strict=True)]
    attrs: dict[str, object] = {"strides": steps, "dilations": dilations, "group": groups}
    pads = [0] * (2 * rank)
    if b.rng.random() < 0.5:
        pads = [b.rng.randint(0, min(k, 2)) for k in taps * 2]
        attrs["pads"] = pads
    elif b.rng.random() < 0.3:
        attrs["auto_pad"] = b.rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    if "SAME" in str(attrs.get("auto_pad")):
        attrs["dilations"] = [1] * rank
        space = [-(-n // s) for n, s in zip(_space(x), steps, strict=True)]
    else:
        space = [
            (n + pads[k] + pads[k + rank] - reach[k]) // steps[k] + 1
            for k, n in enumerate(_space(x))
        ]
    if min(space) < 1:
        return False
    inputs = [x.name, b.weights(out, channels // groups, *taps)]
    inputs += [b.weights(out)] if b.rng.random() < 0.5 else []
    b.layer(x, (x.shape[0], out, *space), "Conv", inputs, **attrs)
    return True


def _conv_transpose(b: _Layers) -> bool:
    x = b.maps(_SIGNAL, _IMAGE)
    rank, channels = len(_space(x)), x.shape[1]
    groups = b.rng.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
    channels_of_group = b.rng.choice((1, 2, 4))
    taps, steps = b.numbers(1, 4, rank), b.numbers(1, 3, rank)
    pads = [b.rng.randint(0, min(k - 1, 1)) for k in taps * 2]
    more = [b.rng.randint(0, s - 1) for s in steps]
    space = [
        (n - 1) * steps[k] + more[k] + taps[k] - pads[k] - pads[k + rank]
        for k, n in enumerate(_space(x))
    ]
    if min(space) < 1:
        return False
    inputs = [x.name, b.weights(channels, channels_of_group, *taps, scale=channels**-0.5)]
    b.layer(
        x, (x.shape[0], channels_of_group * groups, *space), "ConvTranspose", inputs,
        strides=steps, pads=pads, output_padding=more, group=groups,
    )  # fmt: skip
    return True


def _pool(b: _Layers) -> bool:
    x = b.maps(_SIGNAL, _IMAGE)
    rank = len(_space(x))
    taps, steps = b.numbers(1, 3, rank), b.numbers(1, 3, rank)
    pads = [b.rng.randint(0, k // 2) for k in taps * 2] if b.rng.random() < 0.5 else [0] * 2 * rank
    op = b.rng.choice(("MaxPool", "AveragePool"))
    attrs: dict[str, object] = {"count_include_pad": 1} if op == "AveragePool" else {}
    if b.rng.random() < 0.3:
        attrs = {"ceil_mode": 1}
    space = []
    for k, n in enumerate(_space(x)):
        over = n + pads[k] + pads[k + rank] - taps[k]
        space.append((-(-over // steps[k]) if "ceil_mode" in attrs else over // steps[k]) + 1)
    if min(space) < 1:
        return False
    attrs |= {"kernel_shape": taps, "strides": steps, "pads": pads}
    b.layer(x, (*x.shape[:2], *space), op, [x.name], **attrs)
    return True


def _resize(b: _Layers) -> bool:
    x = b.maps(_IMAGE)
    name = b.name()
    scales = np.array([1, 1, 2, 2], np.float32)
    b.constants.append(numpy_helper.from_array(scales, name))
    mode = b.rng.choice(("nearest", "linear"))
    shape = (*x.shape[:2], *(2 * n for n in _space(x)))
    b.layer(x, shape, "Resize", [x.name, "", name], mode=mode)
    return True


# ---- parts --------------------------------------------------------------------------------------


def _crop(b: _Layers) -> bool:
    """Adds a crop of both ends of some symbolic axes behind the channels."""
    x = b.maps(_SIGNAL, _IMAGE)
    axes = [a for a in range(2, len(x.shape)) if b.rng.random() < 0.7]
    if not axes:
        return False
    first, last = b.numbers(0, 3, len(axes)), b.numbers(0, 3, len(axes))
    shape = list(x.shape)
    for axis, low, high in zip(axes, first, last, strict=True):
        shape[axis] -= low + high
    if min(shape) < 1:
        return False
    ends = [-n if n else (1 << 62) for n in last]
    b.layer(
        x, shape, "Slice",
        [x.name, b.constant(*first), b.constant(*ends), b.constant(*axes)],
    )  # fmt: skip
    return True


def _part(b: _Layers) -> bool:
    """Adds every second element, a half, the first few elements, or all in reverse."""
    x = b.maps(_SIGNAL, _IMAGE)
    axis = b.rng.randrange(2, len(x.shape))
    size, n = b.size(x, axis), x.shape[axis]
    half = b.node("Div", [size, b.constant(2)])
    kind = b.rng.choice(("strided", "front", "back", "few", "reversed"))
    start, end, step, length = b.constant(0), size, 1, n
    if kind == "strided":
        start, step, length = b.constant(1), 2, n // 2
    elif kind == "front":
        end, length = half, n // 2
    elif kind == "back":
        start, length = half, n - n // 2
    elif kind == "few":
        few = b.rng.randint(1, 6)
        end, length = b.constant(few), min(few, n)
    else:
        start, end, step = b.constant(-1), b.constant(-(1 << 62)), -1
    if length < 1:
        return False
    shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
    b.layer(x, shape, "Slice", [x.name, start, end, b.constant(axis), b.constant(step)])
    return True


def _pad(b: _Layers) -> bool:
    """Adds a constant padding, maybe negative, of zeros, neighbours or mirrored elements."""
    x = b.maps(_SIGNAL, _IMAGE)
    rank = len(_space(x))
    mode = b.rng.choice(("constant", "constant", "reflect", "edge"))
    least = -1 if mode == "constant" else 0
    first, last = b.numbers(least, 2, rank), b.numbers(least, 2, rank)
    space = [n + low + high for n, low, high in zip(_space(x), first, last, strict=True)]
    if min(space) < 1 or (mode == "reflect" and min(_space(x)) < 3):
        return False
    amounts = b.constant(0, 0, *first, 0, 0, *last)
    b.layer(x, (*x.shape[:2], *space), "Pad", [x.name, amounts], mode=mode)
    return True


def _pad_at_run_time(b: _Layers) -> bool:
    """Adds a padding by an input of the model, or up to a multiple of a number."""
    x = b.maps(_SIGNAL, _IMAGE)
    rank = len(x.shape)
    shape = list(x.shape)
    if b.rng.random() < 0.5:
        name = f"p{b.count}"
        drawn = [0, 0, *b.numbers(1, 2, rank - 2)] * 2
        b.amounts[name] = drawn
        shape = [n + drawn[k] + drawn[k + rank] for k, n in enumerate(shape)]
    else:
        by = b.rng.choice((2, 4, 8))
        lacking = []
        for axis in range(2, rank):
            size = b.node("Mul", [b.size(x, axis), b.constant(-1)])
            lacking.append(b.node("Mod", [size, b.constant(by)]))
            shape[axis] = -(-shape[axis] // by) * by
        name = b.node("Concat", [b.constant(*[0] * (rank + 2)), *lacking], axis=0)
    b.layer(x, shape, "Pad", [x.name, name])
    return True


def _concat(b: _Layers) -> bool:
    """Adds a concatenation of channels, or of a value with itself along a symbolic axis."""
    x = b.maps(_SIGNAL, _IMAGE)
    candidates = [v for v in b.values if v.shape[:1] + v.shape[2:] == x.shape[:1] + x.shape[2:]]
    y, axis = b.rng.choice([v for v in candidates if v.open == x.open]), 1
    if b.rng.random() < 0.3:
        y, axis = x, b.rng.randrange(2, len(x.shape))
    shape = list(x.shape)
    shape[axis] += y.shape[axis]
    b.layer(x, shape, "Concat", [x.name, y.name], axis=axis)
    return True


# ---- points -------------------------------------------------------------------------------------


def _sum(b: _Layers) -> bool:
    """Adds a sum of two values; the larger value is cropped at run time to the smaller."""
    x = b.maps(_SIGNAL, _IMAGE)
    fits = [v for v in b.values if len(v.shape) == len(x.shape) and v.shape[1] == x.shape[1]]
    y = b.rng.choice([v for v in fits if v.open == x.open and v.shape[0] == x.shape[0]])
    op = b.rng.choice(("Add", "Mul", "Max", "Sub"))
    if x.shape == y.shape:
        b.layer(x, x.shape, op, [x.name, y.name])
        return True
    axes = list(range(2, len(x.shape)))
    sizes = [b.node("Min", [b.size(x, axis), b.size(y, axis)]) for axis in axes]
    end = b.node("Concat", sizes, axis=0)
    start, along = b.constant(*[0] * len(axes)), b.constant(*axes)
    parts = [b.node("Slice", [v.name, start, end, along]) for v in (x, y)]
    shape = (*x.shape[:2], *map(min, x.shape[2:], y.shape[2:]))
    b.layer(x, shape, op, parts)
    return True


def _activation(b: _Layers) -> bool:
    x = b.maps(_SIGNAL, _IMAGE)
    op = b.rng.choice(("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish"))
    b.layer(x, x.shape, op, [x.name])
    return True


def _norm(b: _Layers) -> bool:
    x = b.maps(_SIGNAL, _IMAGE)
    channels = x.shape[1]
    kind = b.rng.choice(("Instance", "Batch", "Layer", "Group"))
    scale, shift = b.weights(channels), b.weights(channels)
    if kind == "Instance":
        b.layer(x, x.shape, "InstanceNormalization", [x.name, scale, shift])
    elif kind == "Batch":
        spread = b.node("Exp", [b.weights(channels)])
        inputs = [x.name, scale, shift, b.weights(channels), spread]
        b.layer(x, x.shape, "BatchNormalization", inputs)
    elif kind == "Layer":
        order = (0, *range(2, len(x.shape)), 1)
        last = b.node("Transpose", [x.name], perm=order)
        normalized = b.node("LayerNormalization", [last, scale, shift], axis=-1)
        back = [order.index(a) for a in range(len(x.shape))]
        b.layer(x, x.shape, "Transpose", [normalized], perm=back)
    else:
        if channels % 2:
            return False
        shape = b.node("Shape", [x.name])
        rows = b.node("Reshape", [x.name, b.constant(0, 2, -1)])
        normalized = b.node("InstanceNormalization", [rows, b.weights(2), b.weights(2)])
        b.layer(x, x.shape, "Reshape", [normalized, shape])
    return True


def _reduce(b: _Layers) -> bool:
    """Adds a reduction over all places, multiplied with its operand, or over the channels."""
    x = b.maps(_SIGNAL, _IMAGE)
    op = b.rng.choice(("ReduceMean", "ReduceMax", "GlobalAveragePool", "Channels"))
    if op == "Channels":
        b.layer(x, (x.shape[0], 1, *_space(x)), "ReduceMean", [x.name], axes=[1])
        return True
    axes = {} if op == "GlobalAveragePool" else {"axes": list(range(2, len(x.shape)))}
    b.layer(x, x.shape, "Mul", [x.name, b.node(op, [x.name], **axes)])
    return True


def _softmax(b: _Layers) -> bool:
    x = b.maps(_SIGNAL, _IMAGE)
    op = b.rng.choice(("Softmax", "Softmax", "LogSoftmax"))
    b.layer(x, x.shape, op, [x.name], axis=b.rng.choice((-1, -1, 1, len(x.shape) - 2)))
    return True


# ---- rows ---------------------------------------------------------------------------------------


def _tokens(b: _Layers) -> bool:
    """Adds an image as a signal, one place after the other."""
    x = b.maps(_IMAGE)
    n, c, h, w = x.shape
    if b.rng.random() < 0.5:
        b.result((n, c, h * w), "Reshape", [x.name, b.constant(0, 0, -1)])
    else:
        ends = [b.size(x, 0), b.constant(c), b.node("Mul", [b.size(x, 2), b.size(x, 3)])]
        b.result((n, c, h * w), "Reshape", [x.name, b.node("Concat", ends, axis=0)])
    b.values[-1].open = frozenset((0, 2))
    return True


def _blocks(b: _Layers) -> bool:
    """Adds blocks of places as channels, or the reverse, for even sizes or multiples of 4
    channels."""
    x = b.maps(_IMAGE)
    n, c, h, w = x.shape
    if c % 4 == 0 and b.rng.random() < 0.5:
        b.layer(x, (n, c // 4, 2 * h, 2 * w), "DepthToSpace", [x.name], blocksize=2)
        return True
    if h % 2 or w % 2 or c > 8:
        return False
    if b.rng.random() < 0.5:
        b.layer(x, (n, 4 * c, h // 2, w // 2), "SpaceToDepth", [x.name], blocksize=2)
        return True
    two = b.constant(2)
    halves = [b.node("Div", [b.size(x, axis), two]) for axis in (2, 3)]
    split_shape = b.node(
        "Concat", [b.size(x, 0), b.constant(c), halves[0], two, halves[1], two], axis=0
    )
    transposed = b.node(
        "Transpose", [b.node("Reshape", [x.name, split_shape])], perm=[0, 1, 3, 5, 2, 4]
    )
    shape = b.node("Concat", [b.size(x, 0), b.constant(4 * c), *halves], axis=0)
    b.layer(x, (n, 4 * c, h // 2, w // 2), "Reshape", [transposed, shape])
    return True


def _dense(b: _Layers) -> bool:
    """Adds a matmul of the channels of each place with a weight."""
    x = b.maps(_SIGNAL)
    n, c, m = x.shape
    out = b.rng.choice((3, 8, 16))
    rows = b.node("Transpose", [x.name], perm=[0, 2, 1])
    rows_out = b.node("MatMul", [rows, b.weights(c, out, scale=c**-0.5)])
    if b.rng.random() < 0.5:
        rows_out = b.node("Add", [rows_out, b.weights(out)])
    b.result((n, out, m), "Transpose", [rows_out], perm=[0, 2, 1])
    b.values[-1].open = x.open
    return True


def _gemm(b: _Layers) -> bool:
    """Adds a Gemm over all rows of the batch, with a symbolic M."""
    x = b.maps(_SIGNAL)
    n, c, m = x.shape
    rows = b.node("Reshape", [b.node("Transpose", [x.name], perm=[0, 2, 1]), b.constant(-1, c)])
    rows_out = b.node("Gemm", [rows, b.weights(8, c), b.weights(8)], transB=1)
    ends = b.node("Concat", [b.size(x, 0), b.size(x, 2), b.constant(8)], axis=0)
    back = b.node("Reshape", [rows_out, ends])
    b.result((n, 8, m), "Transpose", [back], perm=[0, 2, 1])
    b.values[-1].open = x.open
    return True


def _attention(b: _Layers) -> bool:
    """Adds a self-attention of places: M and N are symbolic in the first matmul, K in the
    second."""
    x = b.maps(_SIGNAL)
    if x.shape[2] > 150:
        return False
    queries = b.node("Transpose", [x.name], perm=[0, 2, 1])
    scores = b.node("MatMul", [queries, x.name])
    if b.rng.random() < 0.7:
        scores = b.node("Softmax", [scores], axis=-1)
    else:
        scores = b.node("Div", [scores, b.node("Cast", [b.size(x, 2)], to=TensorProto.FLOAT)])
    b.layer(x, x.shape, "MatMul", [x.name, scores])
    return True


def _planes(b: _Layers) -> bool:
    """Adds a matmul of each plane with its transpose: M, N and K are symbolic."""
    x = b.maps(_IMAGE)
    n, c, h, _ = x.shape
    other = b.node("Transpose", [x.name], perm=[0, 1, 3, 2])
    scaled = b.node("Div", [other, b.node("Cast", [b.size(x, 3)], to=TensorProto.FLOAT)])
    b.layer(x, (n, c, h, h), "MatMul", [x.name, scaled])
    return True


def _loop(b: _Layers) -> bool:
    """Adds a loop with a constant number of trips, or a number from a symbolic size."""
    x = b.maps(_SIGNAL, _IMAGE)
    by = b.weights(x.shape[1], *[1] * (len(x.shape) - 2))
    item = helper.make_tensor_value_info
    names = [b.name() for _ in range(4)]
    turn, go, old, new = names
    scaled, going = b.name(), b.name()
    body = helper.make_graph(
        [
            helper.make_node("Mul", [old, by], [scaled]),
            helper.make_node("Tanh", [scaled], [new]),
            helper.make_node("Identity", [go], [going]),
        ],
        f"body{b.count}",
        [
            item(turn, TensorProto.INT64, []),
            item(go, TensorProto.BOOL, []),
            item(old, TensorProto.FLOAT, [None] * len(x.shape)),
        ],
        [item(going, TensorProto.BOOL, []), item(new, TensorProto.FLOAT, [None] * len(x.shape))],
    )
    true = b.name()
    b.constants.append(numpy_helper.from_array(np.array(True), true))
    turns = b.constant(b.rng.randint(1, 3))
    if b.rng.random() < 0.5:
        turns = b.node("Min", [b.size(x, b.rng.choice((0, 2))), b.constant(4)])
    turns = b.node("Squeeze", [turns])
    b.layer(x, x.shape, "Loop", [turns, true, x.name], body=body)
    return True


STEPS: tuple[Step, ...] = (
    *(_conv,) * 5, *(_conv_transpose,) * 3, *(_pool,) * 2, *(_crop,) * 3, _part, _part, _pad, _pad,
    *(_pad_at_run_time,) * 2, _concat, _concat, *(_sum,) * 2, _activation, _norm, _norm, _reduce,
    _softmax, _tokens, _blocks, _blocks, _dense, _gemm, _attention, _planes, _loop, _resize,
)  # fmt: skip


def _sizes(
    rng: random.Random, symbols: Sequence[str], first: dict[str, int]
) -> list[dict[str, int]]:
    """Returns the first sizes, ones, odd sizes, sizes with a 0, and sizes below a window's."""
    odd = {s: rng.choice((3, 5, 7, 9, 13, 17, 33)) for s in symbols}
    none = {**odd, rng.choice(symbols): 0}
    few = {s: rng.randint(1, 4) for s in symbols}
    return [first, dict.fromkeys(symbols, 1), odd, none, few]


def generate(seed: int, most: int = 9) -> OpenModel:
    """Returns the model of a seed, of at most `most` steps."""
    rng = random.Random(f"layers {seed}")
    b = _Layers(rng, {})
    dims: Dims = ("n", rng.choice((1, 3, 4, 8, 16)), "h", "w")
    if rng.random() < 0.3:
        dims = dims[:3]
    if rng.random() < 0.2:
        dims = (rng.choice((1, 2)), *dims[1:])
    if len(dims) == _IMAGE and rng.random() < 0.15:
        dims = (*dims[:3], "h")
    symbols = list(dict.fromkeys(d for d in dims if isinstance(d, str)))
    first = {s: rng.randint(1, 3) if s == "n" else rng.randint(6, 14) for s in symbols}
    runs, steps = _sizes(rng, symbols, first), min(rng.randint(3, 9), most)
    shape = tuple(first[d] if isinstance(d, str) else d for d in dims)
    b.values.append(Value("x", shape, frozenset(n for n, d in enumerate(dims) if d in symbols)))
    for _ in range(20 * steps):
        ends = [len(items) for items in b.lists]
        try:
            fits = rng.choice(STEPS)(b) and np.prod(b.values[-1].shape) <= _MOST
        except IndexError:  # No value has a fitting rank.
            fits = False
        if not fits:
            for items, end in zip(b.lists, ends, strict=True):
                del items[end:]
        if len(b.values) > steps:
            break
    read = {name for node in b.nodes for name in node.input}
    b.amounts = {name: amounts for name, amounts in b.amounts.items() if name in read}
    return model_of(b, f"layers{seed}", {"x": dims}, runs)
