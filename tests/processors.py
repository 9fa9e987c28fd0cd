"""Processors that tests compile for and run on."""

from __future__ import annotations

import pytest
from tcc.backends.cpu.detect import detect
from tcc.target import parse_target

_HOST = parse_target("cpu", "host", detect).profile
# For tests whose expected error is that of multiplied bf16 operands: elsewhere they stay f32.
multiplies_bf16 = pytest.mark.skipif(
    not _HOST.multiplies_pairs, reason="the processor multiplies no bf16"
)
# For tests that compare ONNX Runtime's u8 x s8 products with exact ones: without VNNI it adds pairs
# in 16 bits, which saturate (its documentation on quantisation).
adds_bytes_exactly = pytest.mark.skipif(
    {"avx512vnni", "avxvnni", "dotprod"}.isdisjoint(_HOST.features),
    reason="ONNX Runtime's sums of byte products saturate on this processor",
)
# Prices of shorter vectors fold `v`, `up` and `bias` of a test's model into one constant, whose
# rounding cannot be repeated on the model's own weights.
has_long_vectors = pytest.mark.skipif(
    _HOST.vector_bits < 512, reason="prices of short vectors fold a bias into rounded weights"
)


def distinct(*cpus: str) -> tuple[str, ...]:
    """Those for which a kernel becomes other code: of equal instruction sets the first stands for
    all."""
    found: dict[tuple[object, ...], str] = {}
    for cpu in cpus:
        profile = parse_target("cpu", cpu, detect).profile
        found.setdefault((profile.arch, profile.features, profile.vector_bits, profile.tile), cpu)
    return tuple(found.values())
