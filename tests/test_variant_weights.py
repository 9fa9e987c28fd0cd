"""Time and memory that the weights of a model take in a compile for several buckets."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import tcc.ir.graph.store as stores
from tcc.debug import Trace
from tcc.ir.graph import Graph, GraphBuilder, constant_bytes
from tcc.ir.index import const, symbol
from tcc.ir.types import BF16, F32, TensorType
from tcc.options import Options
from tcc.passes.graph.emit import emit
from tcc.passes.program.join_programs import join_programs
from tcc.variants import lower, optimise, resolve_targets, variant_backends

from tests.draws import RNG

WIDTH, HIDDEN, LAYERS = 512, 1024, 3  # a matrix takes 2 MiB in f32
SIZES = (2, 8, 64)


def network() -> Graph:
    """Layers that multiply with bf16 matrices, each [out, in] and cast to f32 as in a file of
    weights."""
    b = GraphBuilder("g")
    x = b.input("x", TensorType(F32, (symbol("seq", 1), const(WIDTH))))
    for layer in range(LAYERS):
        for name, shape in (("up", (HIDDEN, WIDTH)), ("down", (WIDTH, HIDDEN))):
            words = RNG.integers(0x3C00, 0x3E00, shape).astype(np.uint32) << 16
            w = b.constant(words.view(np.float32), f"{name}.{layer}", BF16, [f"{name}.{layer}"])
            x = emit(b, "matmul", x, emit(b, "transpose", emit(b, "cast", w, to=F32), perm=(1, 0)))
    return b.finish([x])


def packed(graph: Graph, **choices: Any) -> list[bytes]:
    """The weights of the artifact, in parts, of a compile for all buckets of `choices`."""
    options = Options(**{"target": "cpu:x86-64", "cpu": "x86-64-v3", **choices})
    codes = variant_backends(resolve_targets(options), options, constant_bytes(graph))
    ((_, (general, *specials)),) = lower(codes, optimise(graph, codes, options, Trace()), Trace())
    lowered = join_programs(general, specials)
    return [part().tobytes() for part in lowered.weights.parts()]


def buckets(*sizes: int) -> dict[str, Any]:
    return {"buckets": (("seq", sizes),)}


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the arrays that were converted from bf16."""
    sizes: list[int] = []
    convert = stores.bf16_values

    def counted(bits: np.ndarray) -> np.ndarray:
        sizes.append(bits.size)
        return convert(bits)

    monkeypatch.setattr(stores, "bf16_values", counted)
    monkeypatch.setattr(stores, "_FACTS", {})
    return sizes


OPTIONS: dict[str, dict[str, Any]] = {
    "as stored": {},
    "int4": {"weights": "int4"},
    "int8 and bytes": {"weights": "int8", "activations": "int8"},
    "bf16": {"precision": "bf16", "cpu": "znver4"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_buckets_convert_no_weight_again(name: str, conversions: list[int]) -> None:
    graph = network()
    weights = packed(graph, **OPTIONS[name])
    once = len(conversions)
    assert 0 < once <= 5 * 2 * LAYERS
    del conversions[:]
    stores._FACTS.clear()
    assert packed(graph, **buckets(*SIZES), **OPTIONS[name]) == weights
    assert len(conversions) == once


def test_weights_that_two_bytes_hold_take_little_more_memory_than_their_file() -> None:
    graph = network()
    options = Options(target="cpu:x86-64", cpu="x86-64-v3", **buckets(8))
    codes = variant_backends(resolve_targets(options), options, constant_bytes(graph))
    matrix = 4 * WIDTH * HIDDEN
    tracemalloc.start()
    try:
        lowerings = lower(codes, optimise(graph, codes, options, Trace()), Trace())
        ((_, (general, *specials)),) = lowerings
        for part in join_programs(general, specials).weights.parts():
            part()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Not even one layer more than the matrix that is converted, in a few forms.
    assert peak < 4 * matrix + (4 << 20)
