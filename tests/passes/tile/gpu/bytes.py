"""8-bit matmuls with and without zero points, as graphs."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
from tcc.ir.graph import Graph
from tcc.ir.types import F32, I8, U8, DType
from tcc.ops.algebra.quantized import ConvIntegerAttrs
from tcc.ops.algebra.unary import CastAttrs

from tests.passes.fuse.models import Model


def product(
    a: DType,
    b: DType,
    points: str = "",
    shape: tuple[int, int, int] = (40, 96, 33),
    constant: bool = True,
    zero: int | None = None,
    negated: bool = False,
) -> Graph:
    """Returns a[m, k] times b[k, n].

    `points` names the operands with a zero point: "a", "b", and "B" for one per column of b. `zero`
    is the zero point of b; None: random. `negated` negates the result.
    """
    model = Model("bytes")
    rng = np.random.default_rng(5)
    m, k, n = shape

    def drawn(dtype: DType, *sizes: int) -> Any:
        info = np.iinfo(dtype.carrier)
        return rng.integers(info.min, info.max + 1, sizes).astype(dtype.carrier)

    x = model.input("x", m, k, dtype=a)
    w = model.builder.constant(drawn(b, k, n), "w") if constant else model.input("w", k, n, dtype=b)
    zero_point = model.input("zero", dtype=a) if "a" in points else None
    right = None
    if "b" in points.lower():
        array = drawn(b, *([n] if "B" in points else []))
        array = array if zero is None else np.full_like(array, zero)
        right = model.builder.constant(np.asarray(array, b.carrier), "point")
    sums = model.op("matmul_integer", x, w, zero_point, right)
    return model.finish(model.op("neg", sums) if negated else sums)


def requantised() -> Graph:
    model = Model("requantised")
    rng = np.random.default_rng(6)
    x = model.input("x", 2, 32, 64, dtype=U8)
    w = model.builder.constant(rng.integers(-128, 128, (64, 48)).astype(np.int8), "w")
    zero = model.builder.constant(np.array(9, np.uint8), "z")
    scale = model.builder.constant(np.float32(0.02 * 0.05 / 1.5), "s")
    sums = model.op("cast", model.op("matmul_integer", x, w, zero), attrs=CastAttrs(F32))
    rounded = model.op("round", model.op("mul", sums, scale))
    shifted = model.op("add", rounded, model.builder.constant(np.float32(9), "f"))
    return model.finish(model.op("cast", shifted, attrs=CastAttrs(U8)))


def convolved() -> Graph:
    model = Model("convolved")
    rng = np.random.default_rng(7)
    x = model.input("x", 1, 32, 12, 12, dtype=I8)
    w = model.builder.constant(rng.integers(-128, 128, (32, 32, 3, 3)).astype(np.int8), "w")
    attrs = ConvIntegerAttrs((1, 1), (1, 1), (1, 1), (1, 1), 1)
    return model.finish(model.op("conv_integer", x, w, attrs=attrs))


GRAPHS = MappingProxyType(
    {
        "signed": lambda: product(I8, I8),
        "unsigned": lambda: product(U8, U8),
        "mixed": lambda: product(U8, I8, "a"),
        "symmetric": lambda: product(U8, U8, "ab", zero=128),
        "column": lambda: product(U8, I8, "aB", negated=True),
        "both": lambda: product(U8, U8, "ab", zero=3),
        "signed_points": lambda: product(I8, I8, "ab", zero=-100),
        "no_constant": lambda: product(U8, I8, "a", constant=False),
        "long": lambda: product(U8, I8, "a", (16, 2048, 32), negated=True),
        "one_row": lambda: product(U8, I8, "a", (1, 256, 512)),
        "short_sum": lambda: product(I8, I8, "", (40, 16, 40)),
        "no_steps": lambda: product(U8, I8, "ab", (40, 0, 33)),
        "no_columns": lambda: product(U8, U8, "aB", (40, 96, 0)),
        "requantised": requantised,
        "convolved": convolved,
    }
)


def inputs_of(graph: Graph) -> dict[str, Any]:
    """Returns bytes of the whole range, and floats."""
    rng = np.random.default_rng(8)
    inputs = {}
    for value in graph.inputs:
        shape, dtype = value.type.static_shape, value.type.dtype
        assert shape is not None
        if dtype is F32:
            inputs[value.name] = rng.standard_normal(shape).astype(np.float32)
        else:
            info = np.iinfo(dtype.carrier)
            inputs[value.name] = rng.integers(info.min, info.max + 1, shape).astype(dtype.carrier)
    return inputs
