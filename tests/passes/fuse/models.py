"""Small graphs with the structures of real networks; sizes are symbolic if possible."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.ir.graph import Graph, GraphBuilder, Value
from tcc.ir.index import Index, IndexLike, as_index, symbol
from tcc.ir.types import BOOL, F32, I64, tensor
from tcc.ops import OPS
from tcc.ops.algebra.activation import GeluAttrs
from tcc.ops.algebra.movement import (
    ConcatAttrs,
    ExpandAttrs,
    ReshapeAttrs,
    SliceAttrs,
    SplitAttrs,
    TransposeAttrs,
)
from tcc.ops.algebra.pad import PadAttrs
from tcc.ops.algebra.pool import PoolAttrs
from tcc.ops.algebra.reduce import ReduceAttrs
from tcc.ops.algebra.window import ConvAttrs, ConvTransposeAttrs
from tcc.ops.composite.normalization import EpsilonAttrs, NormAttrs
from tcc.ops.shapes import AxisAttrs


class Model:
    """A builder of a graph; constants are random, and the same in every process."""

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name)
        self._rng = np.random.default_rng(len(name))

    def input(self, name: str, *shape: IndexLike, dtype: Any = F32) -> Value:
        return self.builder.input(name, tensor(dtype, *shape))

    def weight(self, *shape: int, low: float = -0.5) -> Value:
        array = self._rng.uniform(low, 0.5, shape).astype(np.float32)
        return self.builder.constant(array, "w")

    def op(self, name: str, *inputs: Value | None, attrs: Any = None) -> Value:
        return self.ops(name, *inputs, attrs=attrs)[0]

    def ops(self, name: str, *inputs: Value | None, attrs: Any = None) -> tuple[Value, ...]:
        return self.builder.add(OPS[name], list(inputs), attrs)

    def scalar(self, value: float) -> Value:
        return self.builder.constant(np.float32(value), "c")

    def reshape(self, x: Value, *shape: IndexLike) -> Value:
        return self.op("reshape", x, attrs=ReshapeAttrs(tuple(map(as_index, shape))))

    def transpose(self, x: Value, *perm: int) -> Value:
        return self.op("transpose", x, attrs=TransposeAttrs(perm))

    def conv(
        self, x: Value, out: int, size: int, *, stride: int = 1, pad: int = 0, group: int = 1,
        dilation: int = 1, bias: bool = True,
    ) -> Value:  # fmt: skip
        channels = x.type.shape[1].const
        w = self.weight(out, channels // group, size, size)
        pads = (pad, pad)
        attrs = ConvAttrs((stride, stride), pads, pads, (dilation, dilation), group)
        return self.op("conv", x, w, self.weight(out) if bias else None, attrs=attrs)

    def finish(self, *outputs: Value) -> Graph:
        return self.builder.finish(list(outputs))


def _norm(m: Model, x: Value) -> Value:
    c = x.type.shape[1].const
    scale, shift, mean = m.weight(c), m.weight(c), m.weight(c)
    variance = m.weight(c, low=0.1)
    return m.op("batch_normalization", x, scale, shift, mean, variance, attrs=EpsilonAttrs())


def conv_norm_relu() -> Graph:
    m = Model("conv_norm_relu")
    x = m.input("x", symbol("n", 1), 3, 9, 7)
    return m.finish(m.op("relu", _norm(m, m.conv(x, 5, 3, pad=1, bias=False))))


def residual_block() -> Graph:
    m = Model("residual_block")
    x = m.input("x", 1, 8, 6, 6)
    first = m.op("relu", m.conv(x, 8, 3, pad=1))
    second = m.conv(first, 8, 3, pad=1)
    down = m.conv(m.op("relu", m.op("add", second, x)), 4, 1, stride=2)
    return m.finish(m.op("relu", down), second)


def strided_shortcut(stride: int = 2, shown: bool = False) -> Graph:
    """Returns a residual block whose shortcut reads every other row and column of a wide value,
    after the main branch has read the value. With `shown`, the value is an output too."""
    m = Model("strided_shortcut")
    wide = m.op("relu", m.conv(m.input("x", 2, 4, 9, 7), 16, 1))
    main = m.op("relu", m.conv(m.op("relu", m.conv(wide, 8, 1)), 8, 3, pad=1, stride=stride))
    shortcut = m.conv(wide, 32, 1, stride=stride)
    last = m.op("relu", m.op("add", m.conv(main, 32, 1), shortcut))
    return m.finish(m.op("relu", m.conv(last, 4, 1)), *([wide] if shown else []))


def depthwise() -> Graph:
    m = Model("depthwise")
    x = m.input("x", 1, 6, 8, symbol("w", 3, 40))
    wide = m.op("clip", m.conv(x, 12, 1), m.scalar(0), m.scalar(6))
    deep = m.op("hard_swish", m.conv(wide, 12, 3, pad=1, stride=2, group=12))
    return m.finish(m.conv(deep, 6, 1))


def dilated() -> Graph:
    m = Model("dilated")
    x = m.input("x", 1, 4, 9, 9)
    return m.finish(m.conv(m.conv(x, 4, 3, pad=2, dilation=2), 2, 3, pad=1, group=2))


def up_and_down() -> Graph:
    """Returns a U-net step: pool, transposed convolution, concat with the skip."""
    m = Model("up_and_down")
    x = m.input("x", 1, 4, 8, 8)
    low = m.op("max_pool", x, attrs=PoolAttrs((2, 2), (0, 0), (0, 0), (1, 1), (2, 2)))
    attrs = ConvTransposeAttrs((2, 2), (0, 0), (0, 0), (1, 1), (0, 0), 1)
    high = m.op("conv_transpose", low, m.weight(4, 4, 2, 2), m.weight(4), attrs=attrs)
    concatenated = m.op("concat", x, high, attrs=ConcatAttrs(1))
    return m.finish(m.op("relu", m.conv(concatenated, 4, 3, pad=1)))


def phases() -> Graph:
    """Returns transposed convolutions whose phases begin in different places."""
    m = Model("phases")
    x = m.op("relu", m.conv(m.input("x", 1, 2, symbol("h", 1, 9), 3), 2, 3, pad=1))
    twice = ConvTransposeAttrs((2, 2), (1, 1), (1, 1), (1, 1), (0, 0), 1)
    up = m.op("conv_transpose", x, m.weight(2, 2, 4, 4), m.weight(2), attrs=twice)
    thirds = ConvTransposeAttrs((3, 1), (1, 0), (0, 0), (1, 1), (0, 0), 2)
    return m.finish(
        m.op("tanh", up), m.op("conv_transpose", up, m.weight(2, 1, 4, 1), attrs=thirds)
    )


def padded_pools() -> Graph:
    m = Model("padded_pools")
    x = m.input("x", symbol("n", 1), 3, 5, 5)
    pads = PoolAttrs((2, 2), (1, 1), (1, 1), (1, 1), (3, 3))
    largest = m.op("max_pool", m.op("relu", m.conv(x, 3, 3, pad=1)), attrs=pads)
    return m.finish(largest, m.op("average_pool", largest, attrs=pads))


def global_pool() -> Graph:
    m = Model("global_pool")
    x = m.input("x", symbol("n", 1), 6, 5, 4)
    mean = m.op("reduce_mean", m.op("relu", x), attrs=ReduceAttrs((2, 3), False))
    logits = m.op("gemm", mean, m.weight(6, 9), m.weight(9))
    return m.finish(m.op("softmax", logits, attrs=AxisAttrs(1)))


def matmul_gelu() -> Graph:
    m = Model("matmul_gelu")
    x = m.input("x", symbol("n", 1), 12)
    sums = m.op("add", m.op("matmul", x, m.weight(12, 20)), m.weight(20))
    return m.finish(m.op("gelu", sums, attrs=GeluAttrs("none")))


def norm_residual() -> Graph:
    m = Model("norm_residual")
    x, y = m.input("x", symbol("n", 1), 3, 10), m.input("y", symbol("n", 1), 3, 10)
    residual_sum = m.op("add", x, y)
    attrs = NormAttrs(2)
    scaled = m.op("layer_normalization", residual_sum, m.weight(10), m.weight(10), attrs=attrs)
    return m.finish(scaled, residual_sum)


def masked_softmax() -> Graph:
    m = Model("masked_softmax")
    s = symbol("s", 1)
    x, mask = m.input("x", 2, 3, s, s), m.input("mask", 2, 1, 1, s, dtype=BOOL)
    scaled = m.op("mul", x, m.scalar(0.125))
    masked = m.op("where", mask, scaled, m.scalar(-1e9))
    return m.finish(m.op("softmax", masked, attrs=AxisAttrs(3)))


def attention() -> Graph:
    """Returns one head-split attention block with projections, residual and norm."""
    m = Model("attention")
    n, s, heads, width = symbol("n", 1, 4), symbol("s", 1, 64), 2, 4
    x = m.input("x", n, s, heads * width)

    def heads_of(value: Value) -> Value:
        return m.transpose(m.reshape(value, n, s, heads, width), 0, 2, 1, 3)

    def project(value: Value) -> Value:
        side = heads * width
        return m.op("add", m.op("matmul", value, m.weight(side, side)), m.weight(side))

    q, k, v = (heads_of(project(x)) for _ in range(3))
    scores = m.op("mul", m.op("matmul", q, m.transpose(k, 0, 1, 3, 2)), m.scalar(0.5))
    mixed = m.op("matmul", m.op("softmax", scores, attrs=AxisAttrs(3)), v)
    heads_together = m.reshape(m.transpose(mixed, 0, 2, 1, 3), n, s, heads * width)
    out = m.op("add", project(heads_together), x)
    norm = m.op("layer_normalization", out, m.weight(8), m.weight(8), attrs=NormAttrs(2))
    return m.finish(norm)


def shared_heads(rows: int = 3) -> Graph:
    """Returns attention of eight heads over two heads of keys and values, each shared by four
    heads."""
    m = Model("shared_heads")
    q = m.input("q", 1, 8, rows, 16)

    def spread(name: str) -> Value:
        x = m.reshape(m.input(name, 1, 2, 12, 16), 1, 2, 1, 12, 16)
        shape = tuple(map(as_index, (1, 2, 4, 12, 16)))
        return m.reshape(m.op("expand", x, attrs=ExpandAttrs(shape)), 1, 8, 12, 16)

    scores = m.op("matmul", q, m.transpose(spread("k"), 0, 1, 3, 2))
    parts = m.op("softmax", m.op("mul", scores, m.scalar(0.25)), attrs=AxisAttrs(3))
    return m.finish(m.op("matmul", parts, spread("v")))


def few_rows(rows: int = 3) -> Graph:
    """Returns two matmuls of the same normalised rows; the width of one is no multiple of a
    panel."""
    m = Model("few_rows")
    x = m.input("x", rows, 16)
    norm = m.op("layer_normalization", x, m.weight(16), m.weight(16), attrs=NormAttrs(1))
    wide = m.op("matmul", norm, m.weight(16, 512))
    return m.finish(wide, m.op("relu", m.op("matmul", norm, m.weight(16, 1041))))


def projections() -> Graph:
    """Returns reshapes and transposes before and after matmuls."""
    m = Model("projections")
    x = m.input("x", 2, 6, 5)
    a = m.op("matmul", m.transpose(x, 0, 2, 1), m.weight(6, 8))
    b = m.reshape(m.transpose(m.reshape(a, 2, 5, 2, 4), 0, 2, 1, 3), 4, 20)
    c = m.op("matmul", b, m.weight(20, 3))
    return m.finish(m.transpose(m.reshape(c, 2, 2, 3), 2, 1, 0), m.op("relu", b))


def split_concat() -> Graph:
    m = Model("split_concat")
    x = m.input("x", 2, symbol("n", 1), 12)
    sizes = tuple(map(as_index, (3, 4, 5)))
    a, b, c = m.ops("split", x, attrs=SplitAttrs(2, sizes))
    swapped = m.op("concat", c, m.op("sigmoid", b), a, attrs=ConcatAttrs(2))
    return m.finish(m.op("add", swapped, x))


def joined_maps() -> Graph:
    """Returns a concat into whose parts kernels store. One part has other, padded readers; an input
    and a second use of one operand are copied."""
    m = Model("joined_maps")
    n, h = symbol("n", 1, 2), symbol("h", 4, 24)
    x = m.input("x", n, 3, h, 6)
    a = m.op("relu", m.conv(x, 5, 3, pad=1))
    b = m.conv(a, 4, 3, pad=1)
    concatenated = m.op("concat", a, x, b, a, attrs=ConcatAttrs(1))
    return m.finish(m.op("relu", m.conv(concatenated, 4, 3, pad=1)), m.conv(b, 2, 5, pad=2))


def joined_twice() -> Graph:
    """Returns growing features: each concat is a part of the next concat, and the last is an
    output."""
    m = Model("joined_twice")
    x = m.input("x", symbol("n", 1, 2), 3, 5, 5)
    features = m.conv(x, 4, 3, pad=1)
    for _ in range(3):
        more = m.conv(m.op("relu", features), 3, 3, pad=1)
        features = m.op("concat", features, more, attrs=ConcatAttrs(1))
    return m.finish(features)


def joined_along_windows() -> Graph:
    """Returns windows that slide along the axis of a concat, where elements beyond a part are no
    padding."""
    m = Model("joined_along_windows")
    x = m.input("x", 2, 3, 7, 9)
    a = m.conv(x, 4, 3, pad=1)
    b = m.conv(x, 4, 3, pad=1)
    concatenated = m.op("concat", a, b, attrs=ConcatAttrs(2))
    return m.finish(
        m.conv(a, 2, 3, pad=1), m.conv(b, 2, 3, pad=1), m.conv(concatenated, 2, 3, pad=1)
    )


def joined_rows() -> Graph:
    """Returns matmuls of symbolic sizes side by side, and one below another."""
    m = Model("joined_rows")
    s, t = symbol("s", 1, 40), symbol("t", 1, 40)
    x, y = m.input("x", s, 6), m.input("y", t, 6)
    rows = [m.op("matmul", v, m.weight(6, 8)) for v in (x, y)]
    below = m.op("concat", *rows, attrs=ConcatAttrs(0))
    concatenated = m.op(
        "concat", m.op("matmul", below, m.weight(8, 3)), below, attrs=ConcatAttrs(1)
    )
    return m.finish(m.op("softmax", concatenated, attrs=AxisAttrs(1)), m.op("exp", rows[0]))


def slices() -> Graph:
    m = Model("slices")
    n = symbol("n", 4, 40)
    x = m.input("x", n, 8)
    tail = SliceAttrs((as_index(2), as_index(7)), (1, -2), (n - 2, as_index(4)))
    one = m.op("slice", x, attrs=tail)
    pads = tuple(map(as_index, (1, 0)))
    wide = m.op("pad", one, m.scalar(3), attrs=PadAttrs(pads, pads[::-1], "constant"))
    spread = m.op("expand", wide, attrs=ExpandAttrs((as_index(2), n - 1, as_index(5))))
    return m.finish(spread)


def gathered() -> Graph:
    """Returns a gather of a computed table; negative indices count from the end, and others outside
    give nothing."""
    m = Model("gathered")
    s: Index = symbol("s", 1)
    ids = m.input("ids", 2, s, dtype=I64)
    table = m.op("tanh", m.weight(11, 6))
    words = m.op("gather", table, ids, attrs=AxisAttrs(0))
    twice = m.op("gather", m.op("mul", words, words), ids, attrs=AxisAttrs(2))
    return m.finish(m.op("reduce_sum", words, attrs=ReduceAttrs((1,), False)), twice)


def shared_value() -> Graph:
    """Returns a value that two kernels read and that is an output."""
    m = Model("shared_value")
    x = m.input("x", 5, 16)
    y = m.op("exp", x)
    total = m.op("reduce_sum", y, attrs=ReduceAttrs((1,), True))
    rows = m.op("reduce_max", y, attrs=ReduceAttrs((0,), True))
    return m.finish(m.op("div", y, total), m.op("sub", y, rows), y)


def row_ranges(rows: int = 6, depth: int = 0, columns: int = 24, wide: int = 40) -> Graph:
    """Returns two products of the rounded rows of a norm, which also read the largest elements of
    these rows, and a product of the norm.  With a depth, the norm is that of a product."""
    m = Model("row_ranges")
    x = m.input("x", rows, depth or columns)
    if depth:
        x = m.op("matmul", x, m.weight(depth, columns))
    scale, bias = m.weight(columns), m.weight(columns)
    norm = m.op("layer_normalization", x, scale, bias, attrs=NormAttrs(1))
    largest = m.op("reduce_max", norm, attrs=ReduceAttrs((1,), True))
    rounded = m.op("round", m.op("mul", norm, m.op("reciprocal", largest)))
    factors = (m.op("matmul", rounded, m.weight(columns, wide)) for _ in range(2))
    products = [m.op("mul", factor, largest) for factor in factors]
    return m.finish(*products, m.op("matmul", norm, m.weight(columns, 16)))


MODELS: MappingProxyType[str, Callable[[], Graph]] = MappingProxyType(
    {
        f.__name__: f
        for f in (
            *(
                conv_norm_relu,
                residual_block,
                strided_shortcut,
                depthwise,
                dilated,
                up_and_down,
                phases,
                padded_pools,
            ),
            *(global_pool, matmul_gelu, norm_residual, masked_softmax, attention, projections),
            shared_heads,
            *(joined_maps, joined_twice, joined_along_windows, joined_rows),
            *(split_concat, slices, gathered, shared_value, few_rows, row_ranges),
        )
    }
)
