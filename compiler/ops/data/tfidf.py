"""Counts n-grams: how often each n-gram of a pool occurs in rows of tokens."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from tcc.frozen import frozen
from tcc.ir.index import const
from tcc.ir.op import Array
from tcc.ir.types import F32, I32, I64, STRING, TensorType
from tcc.ops.operands import require
from tcc.ops.rows import op_row
from tcc.zipped import zip_equal

MODES = ("TF", "IDF", "TFIDF")


@frozen
class TfIdfAttrs:
    """The pool holds 1-grams, then 2-grams, and so on; n-grams of `least` to `most` tokens count.

    The (n + 1)-grams begin at position `counts[n]` of the pool. `places[g]` is the output column of
    n-gram g, and `weights[g]` its factor in the modes IDF and TFIDF (1 if absent). The tokens of an
    n-gram are at equal distances, at most `skips` + 1.
    """

    mode: str
    least: int
    most: int
    skips: int
    counts: tuple[int, ...]
    places: tuple[int, ...]
    weights: tuple[float, ...]

    @property
    def columns(self) -> int:
        return max(self.places, default=-1) + 1


def grams(attrs: TfIdfAttrs, tokens: int) -> Iterator[tuple[int, int]]:
    """Yields (start, length) of each n-gram of a pool that has `tokens` tokens, in order."""
    ends = (*attrs.counts[1:], tokens)
    for size, (begin, end) in enumerate(zip_equal(attrs.counts, ends), 1):
        for start in range(begin, end - size + 1, size):
            yield start, size


def check(attrs: TfIdfAttrs, tokens: int) -> None:
    """Raises ValueError if the attributes contradict one another or the size of the pool."""
    require(attrs.mode in MODES, f"no mode is called {attrs.mode}")
    require(1 <= attrs.least <= attrs.most, f"n-grams of {attrs.least} to {attrs.most} tokens")
    require(attrs.skips >= 0, f"{attrs.skips} skips")
    bounds = (0, *attrs.counts, tokens)
    rising = all(a <= b for a, b in pairwise(bounds))
    require(bool(attrs.counts) and rising, f"parts {attrs.counts} of {tokens} tokens")
    require(attrs.most <= len(attrs.counts), f"there are no n-grams of {attrs.most} tokens")
    is_whole = all((end - begin) % n == 0 for n, (begin, end) in enumerate(pairwise(bounds)) if n)
    require(is_whole, "a part of the pool does not consist of whole n-grams")
    count = sum(1 for _ in grams(attrs, tokens))
    require(len(attrs.places) == count, f"{len(attrs.places)} columns for {count} n-grams")
    require(all(0 <= p < 1 << 31 for p in attrs.places), "a column is negative or too large")
    require(len(attrs.weights) in (0, count), f"{len(attrs.weights)} weights for {count} n-grams")


def _infer(attrs: TfIdfAttrs, x: TensorType, pool: TensorType) -> TensorType:
    require(x.rank in (1, 2), f"{x!r} is neither a row nor rows of tokens")
    fits = pool.dtype is (STRING if x.dtype is STRING else I64) and pool.rank == 1
    require(fits and x.dtype in (STRING, I32, I64), f"tokens {x!r} and a pool {pool!r}")
    shape = pool.static_shape
    require(shape is not None, "the pool has no known size")
    check(attrs, shape[0] if shape else 0)
    return TensorType(F32, (*x.shape[:-1], const(attrs.columns)))


def _reference(attrs: TfIdfAttrs, x: Array, pool: Array) -> Array:
    tokens = pool.tolist()
    numbers_by_gram = {}
    for number, (start, size) in enumerate(grams(attrs, len(tokens))):
        if attrs.least <= size <= attrs.most:
            numbers_by_gram[tuple(tokens[start : start + size])] = number
    rows = x.reshape(-1, x.shape[-1]).tolist()
    out = np.zeros((len(rows), attrs.columns), np.float32)
    for row, counts in zip_equal(rows, out):
        for number in _grams_in(row, numbers_by_gram, attrs):
            counts[attrs.places[number]] += 1
    if attrs.mode != "TF":
        _weigh(out, attrs)
    return out.reshape(*x.shape[:-1], attrs.columns)


def _grams_in(
    row: list[object], numbers_by_gram: dict[tuple[object, ...], int], attrs: TfIdfAttrs
) -> Iterator[int]:
    for size in range(attrs.least, attrs.most + 1):
        for step in range(1, 2 if size == 1 else min(attrs.skips + 1, len(row)) + 1):
            for start in range(len(row) - (size - 1) * step):
                number = numbers_by_gram.get(
                    tuple(row[start : start + (size - 1) * step + 1 : step])
                )
                if number is not None:
                    yield number


def _weigh(counts: Array, attrs: TfIdfAttrs) -> None:
    """Multiplies the counts by the weights, in place; in mode IDF, a count is 0 or 1."""
    weights = np.ones(attrs.columns, np.float32)
    for place, weight in zip(attrs.places, attrs.weights, strict=False):
        weights[place] = weight
    if attrs.mode == "IDF":
        counts[:] = counts > 0
    counts *= weights


OPS = (
    op_row(
        "tf_idf", TfIdfAttrs, _infer, _reference, (I32, I64, STRING),
        "How often each n-gram of a pool occurs in rows of tokens; operands (tokens, pool).",
    ),
)  # fmt: skip
