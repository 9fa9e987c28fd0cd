"""The generator of random bits gives known answers, and equal bits in all evaluators."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.ir.expr.evaluate import evaluate_expr
from tcc.ir.op import Array
from tcc.ir.types import I64, tensor
from tcc.ops import OPS
from tcc.ops.operands import dims
from tcc.ops.random import RandomBitsAttrs, philox

# Counter, key and result of philox4x32 with ten rounds; facts: Random123 1.09, kat_vectors.
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def word(low: int, high: int) -> int:
    return high << 32 | low


def signed(number: int) -> Array:
    return np.array(number, np.uint64).view(np.int64)


@pytest.mark.parametrize(("counter", "key", "due"), KNOWN)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], due: tuple[int, ...]
) -> None:
    element = word(*counter[:2])
    words = philox(word(*key), word(*counter[2:]), np.array([element], np.uint64))
    assert tuple(int(w[0]) for w in words) == due
    # The expression's only element has number 0, so the offset is the counter.
    operands = [signed(n) for n in (word(*key), word(*counter[2:]), element)]
    for half in (0, 1):
        attrs = RandomBitsAttrs((), half)
        expr = OPS["random_bits"].expr
        assert expr is not None
        (result,) = evaluate_expr(expr([tensor(I64)] * 3, attrs), operands)
        assert int(result) == word(*due[2 * half : 2 * half + 2])


def test_expression_and_reference_have_equal_bits() -> None:
    rng = np.random.default_rng(1)
    expr = OPS["random_bits"].expr
    assert expr is not None
    for count in (1, 23, 32, 33, 64):
        attrs = RandomBitsAttrs(dims(5, 7, 31), int(rng.integers(2)), count)
        operands = [np.asarray(n) for n in rng.integers(-(1 << 63), 1 << 63, 3, np.int64)]
        (due,) = OPS["random_bits"].reference(operands, attrs)
        (result,) = evaluate_expr(expr([tensor(I64)] * 3, attrs), operands)
        np.testing.assert_array_equal(result, due)
        assert int(result.max()) < 1 << count


def test_every_element_stream_and_seed_draws_other_bits() -> None:
    attrs = RandomBitsAttrs(dims(1000))
    rows = [
        OPS["random_bits"].reference([signed(seed), signed(stream)], attrs)[0]
        for seed in (0, 1, 1 << 32)
        for stream in (0, 1, 1 << 32)
    ]
    # The chance of two equal numbers among 9,000 of 64 bits is 2e-12.
    assert len(np.unique(np.concatenate(rows))) == 9000
