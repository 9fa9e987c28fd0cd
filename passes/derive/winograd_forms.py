"""The algorithms F(m x m, 3 x 3) as tensor expressions (Winograd 1980; Lavin and Gray 2016).

A tile of m x m results of a 3 x 3 convolution needs t x t inputs, t = m + 2:

    V[p] = BT x B          p: 0..t*t points, x: a tile's inputs
    M[p] = sum(c) V[p, c] * U[p, c]          U = G w GT, known when w is
    y = AT M A

Filters of a grouped convolution sum over their own group's channels.

The factors BT and AT are a few small integers: they are written out as sums, along one axis after
the other.  With dilation d, results whose places are equal modulo d form an image of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from tcc.ir.expr import Expr, ExprBuilder
from tcc.ir.expr.scalar import Scalar
from tcc.ir.index import Index, as_index, ceildiv, floordiv
from tcc.ir.op import Array
from tcc.ir.types import TensorType
from tcc.ops.formula import chosen, fn
from tcc.record import record

_Line = Callable[[Sequence[Scalar]], tuple[Scalar, ...]]


@record
class WinogradForm:
    """F(m x m, 3 x 3): the factors BT and AT as functions of a line, G as an array."""

    m: int
    inputs: _Line
    outputs: _Line
    filters: tuple[tuple[float, ...], ...]

    @property
    def points(self) -> int:
        """Products of a tile, for each pair of channels."""
        return (self.m + 2) ** 2


@record
class Tiling:
    """A convolution's geometry: the image, zeros before it, dilation and results along y and x."""

    image: TensorType
    before: tuple[Index, Index]
    dilations: tuple[int, int]
    results: tuple[Index, Index]

    def counts(self, form: WinogradForm) -> tuple[Index, ...]:
        """Tiles: images, sub-images along y and x, tiles along y and x."""
        sub = [ceildiv(n, d) for n, d in zip(self.results, self.dilations, strict=True)]
        tiles = (ceildiv(n, form.m) for n in sub)
        return (self.image.shape[0], *map(as_index, self.dilations), *tiles)


def transformed_filters(form: WinogradForm, weights: Array) -> Array:
    """U[point, channel, filter] of weights [filter, channel, 3, 3], in f64; channels of a group."""
    g = np.array(form.filters)
    filters, channels = weights.shape[:2]
    flat = weights.astype(np.float64).transpose(2, 3, 1, 0).reshape(9, channels * filters)
    points: Array = np.kron(g, g) @ flat
    return points.reshape(form.points, channels, filters)


def input_transform(form: WinogradForm, tiling: Tiling) -> Expr:
    """V[point, tile..., channel] of the image."""
    b = ExprBuilder(tiling.image)
    side = form.m + 2
    point, n, p, q, y, x, c = b.iters(form.points, *tiling.counts(form), tiling.image.shape[1])
    rows, columns = (
        [(tile * form.m + k) * d + sub - before for k in range(side)]
        for tile, sub, d, before in zip(
            (y, x), (p, q), tiling.dilations, tiling.before, strict=True
        )
    )
    lines = [form.inputs([b.read(0, n, c, i, j, fill=0) for i in rows]) for j in columns]
    values = [v for line in zip(*lines, strict=True) for v in form.inputs(line)]
    return b.finish((point, n, p, q, y, x, c), chosen(point, values))


def products(v: TensorType, u: TensorType, groups: int) -> Expr:
    """M[point, tile..., filter]: the sums over a group's channels, for each point by itself."""
    b = ExprBuilder(v, u)
    point, *tile, o = b.iters(*v.shape[:-1], u.shape[2])
    (c,) = b.iters(u.shape[1])
    channel = o // floordiv(u.shape[2], groups) * u.shape[1] + c
    body = fn("mul", b.read(0, point, *tile, channel), b.read(1, point, c, o))
    return b.finish((point, *tile, o), body, over=(c,), monoid="sum")


def output_transform(
    form: WinogradForm, tiling: Tiling, m: TensorType, bias: TensorType | None
) -> Expr:
    """y[image, filter, y, x] of the products, plus a bias."""
    b = ExprBuilder(m, bias)
    side = form.m + 2
    n, o, y, x = b.iters(tiling.image.shape[0], m.shape[-1], *tiling.results)
    sub = [i % d for i, d in zip((y, x), tiling.dilations, strict=True)]
    at = [i // d for i, d in zip((y, x), tiling.dilations, strict=True)]
    tile = [i // form.m for i in at]
    grid = [[b.read(0, i * side + j, n, *sub, *tile, o) for i in range(side)] for j in range(side)]
    lines = [form.outputs(column) for column in grid]
    rows = [chosen(at[1] % form.m, form.outputs(row)) for row in zip(*lines, strict=True)]
    value = chosen(at[0] % form.m, rows)
    return b.finish((n, o, y, x), value if bias is None else fn("add", value, b.read(1, o)))


def largest_of_four(image: TensorType, result: TensorType) -> Expr:
    """y[n, c, i, j], the largest of the image's elements 2*i + {0, 1}, 2*j + {0, 1}."""
    b = ExprBuilder(image)
    n, c, i, j = b.iters(*result.shape)
    four = [b.read(0, n, c, 2 * i + p, 2 * j + q) for p in range(2) for q in range(2)]
    return b.finish(
        (n, c, i, j), fn("max", fn("max", four[0], four[1]), fn("max", four[2], four[3]))
    )


# ---- the factors --------------------------------------------------------------------------------


def _add(a: Scalar, b: Scalar) -> Scalar:
    return fn("add", a, b)


def _sub(a: Scalar, b: Scalar) -> Scalar:
    return fn("sub", a, b)


def _times(factor: float, a: Scalar) -> Scalar:
    return fn("mul", a, factor)


def _inputs2(x: Sequence[Scalar]) -> tuple[Scalar, ...]:
    return _sub(x[0], x[2]), _add(x[1], x[2]), _sub(x[2], x[1]), _sub(x[1], x[3])


def _outputs2(m: Sequence[Scalar]) -> tuple[Scalar, ...]:
    return _add(_add(m[0], m[1]), m[2]), _sub(_sub(m[1], m[2]), m[3])


def _inputs4(x: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """4x0 - 5x2 + x4, -4x1 - 4x2 + x3 + x4, 4x1 - 4x2 - x3 + x4, -2x1 - x2 + 2x3 + x4,
    2x1 - x2 - 2x3 + x4, 4x1 - 5x3 + x5."""
    even, odd = _sub(x[4], _times(4, x[2])), _sub(x[3], _times(4, x[1]))
    near, far = _sub(x[4], x[2]), _times(2, _sub(x[3], x[1]))
    first = _add(_times(4, _sub(x[0], x[2])), near)
    last = _sub(_sub(x[5], x[3]), _times(2, far))
    return first, _add(even, odd), _sub(even, odd), _add(near, far), _sub(near, far), last


def _outputs4(m: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """m0 + m1 + m2 + m3 + m4, m1 - m2 + 2m3 - 2m4, m1 + m2 + 4m3 + 4m4,
    m1 - m2 + 8m3 - 8m4 + m5."""
    s, t = _add(m[1], m[2]), _sub(m[1], m[2])
    u, v = _add(m[3], m[4]), _sub(m[3], m[4])
    return (
        _add(_add(m[0], s), u),
        _add(t, _times(2, v)),
        _add(s, _times(4, u)),
        _add(_add(t, _times(8, v)), m[5]),
    )


_G2 = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
_G4 = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)

FORMS: Mapping[int, WinogradForm] = MappingProxyType(
    {2: WinogradForm(2, _inputs2, _outputs2, _G2), 4: WinogradForm(4, _inputs4, _outputs4, _G4)}
)
