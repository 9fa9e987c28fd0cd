"""Tests of quantised levels that are multiplied as bytes: results, and the length of the loop."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tcc.backends.cpu.codegen import compile_assembly
from tcc.backends.cpu.detect import detect
from tcc.backends.cpu.llvm.emit import emit_kernel
from tcc.ir.graph import carrier
from tcc.ir.tile import TileKernel
from tcc.ir.types import BF16, F32, I8, I32, U8, DType
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import lower_node
from tcc.passes.quantize.precision import Precision
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.schedule.cpu.core import CoreModel
from tcc.target import parse_target

from tests.backends.cpu.llvm.test_level_words import assert_evaluated
from tests.passes.fuse.models import Model
from tests.passes.placing import place_graph


def kernel_of(rows: int, depth: int, bits: int, kind: DType, lanes: int) -> TileKernel:
    """Returns the kernel of a matmul with 320 columns of levels."""
    m = Model("levels")
    graph = m.finish(m.op("matmul", m.input("x", rows, depth), m.weight(depth, 320)))
    precision = Precision(F32, bits, level_bytes=kind)
    planner = CoreChooser(CoreModel(lanes, 32 if lanes > 8 else 16))
    placed = place_graph(graph, precision)
    _, table, _ = lower_program(placed, planner, lower_node, precision)
    return table.bounds[-1].kernel


@pytest.mark.parametrize("kind", [U8, I8])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("rows", "depth"), [(1, 128), (3, 96), (7, 64), (65, 64)])
def test_machine_code_multiplies_bytes(rows: int, depth: int, bits: int, kind: DType) -> None:
    host = parse_target("cpu", "host", detect)
    kernel = kernel_of(rows, depth, bits, kind, host.profile.vector_bits // 32)
    rng = np.random.default_rng([rows, depth, bits])
    arrays = []
    for buffer in kernel.buffers:
        shape = [n.const for n in buffer.sizes]
        if buffer.dtype in (I8, U8):
            first, carried = (-127, np.int8) if buffer.dtype is I8 else (0, np.uint8)
            arrays.append(rng.integers(first, first + 255, shape).astype(carried))
        elif buffer.dtype is I32:
            arrays.append(rng.integers(-10_000, 10_000, shape).astype(np.int32))
        else:
            values = rng.standard_normal(shape).astype(np.float32)
            arrays.append(carrier(values, BF16) if buffer.dtype is BF16 else values)
    assert_evaluated(kernel, host, arrays, 1e-6)


def listing(rows: int, bits: int, kind: DType, target_text: str, cpu: str) -> str:
    target = parse_target(target_text, cpu, detect)
    kernel = kernel_of(rows, 256, bits, kind, target.profile.vector_bits // 32)
    return compile_assembly(emit_kernel(kernel, "k", target).llvm, target)


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids"])
@pytest.mark.parametrize(("rows", "vectors"), [(1, 4), (6, 12), (64, 12)])
def test_the_loop_over_a_group_multiplies_bytes_alone(cpu: str, rows: int, vectors: int) -> None:
    text = listing(rows, 4, U8, "cpu", cpu)
    loops = [body for body in re.split(r"^\.LBB", text, flags=re.MULTILINE) if "vpdpbusd" in body]
    assert loops
    for body in loops:
        inner = body[: body.index("\tj")]
        assert inner.count("vpdpbusd") <= 2 * vectors  # A byte holds two levels.
        assert inner.count("vpand") <= 8
        assert inner.count("vpsrld") <= 4
        for other in ("vfmadd", "vmulps", "vcvt", "vpmov", "rsp)"):
            assert other not in inner


@pytest.mark.parametrize("bits", [8, 4])
def test_other_processors_multiply_bytes(bits: int) -> None:
    assert "\tsdot\t" in listing(5, bits, I8, "cpu:aarch64", "neoverse-n1")
    assert "vpmaddwd" in listing(5, bits, U8, "cpu", "x86-64-v3")
