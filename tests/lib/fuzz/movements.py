"""Ops that move, reduce or normalise a value of any shape, with attributes made for it."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from tcc.ir.index import Index, as_int, const
from tcc.ir.op import OpSpec
from tcc.ir.types import DTYPES, TensorType
from tcc.ops import OPS

if TYPE_CHECKING:
    from .graphs import Known, Maker

Made = tuple[str, "list[Known | None]", Any]


# All types but handles, which have separate tests.
TYPES = tuple(d for d in DTYPES.values() if not d.is_handle)


def pick(rng: np.random.Generator, items: Sequence[Any]) -> Any:
    """Returns a random item."""
    return items[int(rng.integers(0, len(items)))]


def movement(rng: np.random.Generator, x: Known, maker: Maker) -> Made | None:
    """Returns the name, operands and attributes of an op that moves the elements of `x`."""
    name = pick(rng, tuple(_MOVES))
    if not x.type.rank and name not in ("reshape", "cast"):
        return None
    return _MOVES[name](rng, x, maker)


def _axis(rng: np.random.Generator, x: Known) -> int:
    return int(rng.integers(0, x.type.rank))


def _few(rng: np.random.Generator, low: int, high: int, count: int) -> tuple[Index, ...]:
    return tuple(const(int(n)) for n in rng.integers(low, high, count))


def _cast(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    to = pick(rng, TYPES)
    return "cast", [x], OPS["cast"].attrs(to)


def _reshape(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    return "reshape", [x], OPS["reshape"].attrs(_new_shape(rng, x.type.shape))


def _transpose(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    perm = tuple(int(p) for p in rng.permutation(x.type.rank))
    return "transpose", [x], OPS["transpose"].attrs(perm)


def _cut(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    return "slice", [x], _slice(rng, x)


def _concat(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    again = maker.fresh_of(x.type) if rng.random() < 0.5 else x
    operands = [x, again, *([x] if rng.random() < 0.2 else [])]
    return "concat", operands, OPS["concat"].attrs(_axis(rng, x))


def _pad(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    before, after = (_few(rng, 0, 4, x.type.rank) for _ in range(2))
    return "pad", [x], OPS["pad"].attrs(before, after, "constant")


def _expand(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    front = _few(rng, 1, 4, int(rng.integers(0, 2)))
    tail = [const(int(rng.integers(1, 6))) if as_int(d) == 1 else d for d in x.type.shape]
    return "expand", [x], OPS["expand"].attrs((*front, *tail))


def _tile(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    return "tile", [x], OPS["tile"].attrs(_few(rng, 1, 4, x.type.rank))


def _split(rng: np.random.Generator, x: Known, maker: Maker) -> Made | None:
    axis = _axis(rng, x)
    extent = as_int(x.type.shape[axis])
    if not extent or extent < 2:
        return None
    place = int(rng.integers(1, extent))
    return "split", [x], OPS["split"].attrs(axis, (const(place), const(extent - place)))


def _reduce(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    row = OPS[pick(rng, tuple(n for n in OPS if n.startswith(("reduce_", "arg_"))))]
    return row.name, [x], _reduce_attrs(rng, row, x.type.rank)


def _softmax(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    name = pick(rng, ("softmax", "softmax", "log_softmax"))
    return name, [x], OPS[name].attrs(_axis(rng, x))


def _gather(rng: np.random.Generator, x: Known, maker: Maker) -> Made | None:
    axis = _axis(rng, x)
    extent = x.array.shape[axis]
    if not extent:
        return None  # No index is valid.
    places = maker.fresh(rng.integers(-extent, extent, int(rng.integers(1, 5))))
    return "gather", [x, places], OPS["gather"].attrs(axis)


def _running(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    flags = (bool(rng.random() < 0.3) for _ in range(2))
    return "cum_sum", [x], OPS["cum_sum"].attrs(_axis(rng, x), *flags)


def _top_k(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    axis = _axis(rng, x)
    k = const(int(rng.integers(0, x.array.shape[axis] + 1)))
    return "top_k", [x], OPS["top_k"].attrs(axis, k, bool(rng.random() < 0.5), True)


def _norm(rng: np.random.Generator, x: Known, maker: Maker) -> Made:
    axis = _axis(rng, x)
    scale = maker.fresh_of(TensorType(x.type.dtype, x.type.shape[axis:]))
    name = pick(rng, ("layer_normalization", "rms_normalization"))
    return name, [x, scale], OPS[name].attrs(axis, 1e-3, 1)


_MOVES = MappingProxyType(
    {
        "cast": _cast,
        "reshape": _reshape,
        "transpose": _transpose,
        "slice": _cut,
        "concat": _concat,
        "pad": _pad,
        "expand": _expand,
        "tile": _tile,
        "split": _split,
        "reduce": _reduce,
        "softmax": _softmax,
        "gather": _gather,
        "cum_sum": _running,
        "top_k": _top_k,
        "norm": _norm,
    }
)


def _reduce_attrs(rng: np.random.Generator, row: OpSpec, rank: int) -> Any:
    keep = bool(rng.random() < 0.5)
    if row.name.startswith("arg_"):
        return row.attrs(int(rng.integers(0, rank)), keep, bool(rng.random() < 0.5))
    axes = sorted(int(a) for a in rng.permutation(rank)[: int(rng.integers(1, rank + 1))])
    return row.attrs(tuple(axes), keep)


def _slice(rng: np.random.Generator, x: Known) -> Any:
    starts, steps, counts = [], [], []
    for dim, extent in zip(x.type.shape, x.array.shape, strict=True):
        if as_int(dim) is None or rng.random() < 0.4:
            starts.append(const(0))
            steps.append(1)
            counts.append(dim)
            continue
        first, step = int(rng.integers(0, extent + 1)), int(rng.integers(1, 4))
        most = len(range(first, extent, step))
        back = most > 1 and rng.random() < 0.3
        starts.append(const(first + (most - 1) * step if back else first))
        steps.append(-step if back else step)
        counts.append(const(most if back else int(rng.integers(0, most + 1))))
    return OPS["slice"].attrs(tuple(starts), tuple(steps), tuple(counts))


def _new_shape(rng: np.random.Generator, shape: Sequence[Index]) -> tuple[Index, ...]:
    """Returns `shape` after a few changes: two axes joined, an axis split, or a 1 inserted."""
    dims = list(shape)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, len(dims) + 1))
        kind = rng.random()
        size = as_int(dims[at]) if at < len(dims) else None
        if kind < 0.4 and at + 1 < len(dims):
            dims[at : at + 2] = [dims[at] * dims[at + 1]]
        elif kind < 0.8 and size and size > 1:
            factor = pick(rng, [n for n in range(1, size + 1) if size % n == 0])
            dims[at : at + 1] = [const(factor), const(size // factor)]
        elif len(dims) < 6:
            dims.insert(at, const(1))
    return tuple(dims)
