"""Processors for which tests compile, and on which they run."""

from __future__ import annotations

import pytest
from tcc.backends.cpu.detect import detect
from tcc.target import parse_target

_HOST = parse_target("cpu", "host", detect).profile
# Marks tests that expect the error of bf16 operands: on other processors, operands stay f32.
multiplies_bf16 = pytest.mark.skipif(
    not _HOST.multiplies_pairs, reason="the processor multiplies no bf16"
)
# Marks tests that compare ONNX Runtime's u8 x s8 matmuls with exact results: without VNNI it adds
# pairs in 16 bits, which saturate (its documentation on quantisation).
adds_bytes_exactly = pytest.mark.skipif(
    {"avx512vnni", "avxvnni", "dotprod"}.isdisjoint(_HOST.features),
    reason="ONNX Runtime's sums of byte products saturate on this processor",
)
# Marks a test that fails with short vectors: their prices fold `v`, `up` and `bias` of its model
# into one constant, whose rounding cannot be repeated on the model's own weights.
has_long_vectors = pytest.mark.skipif(
    _HOST.vector_bits < 512, reason="prices of short vectors fold a bias into rounded weights"
)


def distinct(*cpus: str) -> tuple[str, ...]:
    """Returns the processors with different generated code; the first stands for all with equal
    instruction sets."""
    cpu_by_profile: dict[tuple[object, ...], str] = {}
    for cpu in cpus:
        profile = parse_target("cpu", cpu, detect).profile
        cpu_by_profile.setdefault(
            (profile.arch, profile.features, profile.vector_bits, profile.tile), cpu
        )
    return tuple(cpu_by_profile.values())
