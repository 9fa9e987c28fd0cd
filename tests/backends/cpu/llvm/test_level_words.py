"""Tests of quantised levels that become bf16 words in registers: results, and short machine code.

Few machines have the instructions, so LLVM code of the same meaning replaces them here.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tcc.backends.cpu.codegen import compile_assembly
from tcc.backends.cpu.detect import detect
from tcc.backends.cpu.llvm.emit import KernelText, emit_kernel
from tcc.ir.graph import carrier
from tcc.ir.tile import MemorySpace, TileKernel
from tcc.ir.types import BF16, I8
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import lower_node
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.schedule.cpu.core import CoreModel
from tcc.target import Target, parse_target

from tests.backends.cpu import conftest
from tests.backends.cpu.conftest import Compiled
from tests.backends.cpu.llvm.test_dot_operands import standing_in
from tests.lib.oracle.tile.evaluate import evaluate_kernel
from tests.passes.placing import place_graph
from tests.passes.quantize.test_level_pairs import PAIRS_OF_BITS, with_levels

_LOOK_UP = re.compile(r"@llvm\.x86\.avx512\.permvar\.hi\.(\d+)")
_DECLARED = re.compile(r"^declare .*@llvm\.x86\.avx512\.permvar\.hi\.(\d+)\(.*$", re.MULTILINE)


def kernel_of(rows: int, depth: int, bits: int, lanes: int = 16) -> TileKernel:
    """Returns the kernel of a matmul with 512 columns of levels."""
    graph, _, _ = with_levels(rows, depth, 512)
    precision = PAIRS_OF_BITS[bits]
    planner = CoreChooser(CoreModel(lanes, 32 if lanes > 8 else 16))
    placed = place_graph(graph, precision)
    _, table, _ = lower_program(placed, planner, lower_node, precision)
    return table.bounds[-1].kernel


def look_up(match: re.Match[str]) -> str:
    """Returns an LLVM function that looks up the elements of a vector one by one."""
    count = int(match[1]) // 16
    kind = f"<{count} x i16>"
    lines = [f"define internal {kind} @look_up.{match[1]}({kind} %t, {kind} %i) alwaysinline {{"]
    lines.append(f"  %m = and {kind} %i, splat (i16 {count - 1})")
    last = "poison"
    for n in range(count):
        lines += [
            f"  %i{n} = extractelement {kind} %m, i32 {n}",
            f"  %e{n} = extractelement {kind} %t, i16 %i{n}",
            f"  %r{n} = insertelement {kind} {last}, i16 %e{n}, i32 {n}",
        ]
        last = f"%r{n}"
    return "\n".join([*lines, f"  ret {kind} {last}", "}"])


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    ("rows", "depth"), [(1, 128), (5, 66), (7, 48), (41, 64), (42, 66), (43, 131), (2, 131)]
)
def test_machine_code_multiplies_levels(
    monkeypatch: pytest.MonkeyPatch, rows: int, depth: int, bits: int, wide: bool
) -> None:
    host = parse_target("cpu", "host", detect)
    look_ups = ("avx512bw", "avx512vl")
    extensions = ("avx512bf16", *(look_ups if wide else ()))
    features_before = [f for f in host.profile.features if wide or f not in look_ups]
    features = tuple(dict.fromkeys((*features_before, *extensions)))
    target = replace(host, profile=replace(host.profile, features=features))
    kernel = kernel_of(rows, depth, bits, host.profile.vector_bits // 32)
    looks_up = wide and bits == 4 and depth % 2 == 0  # Levels of an odd depth have eight bits.

    def emit(node: TileKernel, name: str, _: Target) -> KernelText:
        text = standing_in(emit_kernel(node, name, target))
        assert bool(_LOOK_UP.search(text.llvm)) == looks_up
        llvm = _LOOK_UP.sub(lambda m: f"@look_up.{m[1]}", _DECLARED.sub(look_up, text.llvm))
        for feature in extensions:
            if feature not in host.profile.features:
                llvm = llvm.replace(f"+{feature}", f"-{feature}")
        return replace(text, llvm=llvm)

    monkeypatch.setattr(conftest, "emit_kernel", emit)
    rng = np.random.default_rng(3)
    arrays = []
    for buffer in kernel.buffers:
        shape = [n.const for n in buffer.sizes]
        if buffer.dtype is I8:
            arrays.append(rng.integers(-128, 128, shape).astype(np.int8))
        else:
            values = rng.standard_normal(shape).astype(np.float32)
            arrays.append(carrier(values, BF16) if buffer.dtype is BF16 else values)
    assert_evaluated(kernel, host, arrays, 1e-5)


def assert_evaluated(
    kernel: TileKernel, host: Target, arrays: list[np.ndarray], relative: float
) -> None:
    """Fails unless machine code gives the evaluator's results, within `relative` of the largest."""
    expected = [a.copy() for a in arrays]
    results = Compiled(kernel, host).run(arrays, {})
    evaluate_kernel(kernel, expected, {}, np.random.default_rng(1))
    for buffer, result, due in zip(kernel.buffers, results, expected, strict=True):
        if buffer.scope is MemorySpace.OUTPUT:
            limit = relative * np.abs(due).max()
            np.testing.assert_allclose(result, due, rtol=relative, atol=limit)


def listing(rows: int, depth: int, bits: int, kind: str, cpu: str) -> str:
    target = parse_target(kind, cpu, detect)
    kernel = kernel_of(rows, depth, bits, target.profile.vector_bits // 32)
    return compile_assembly(emit_kernel(kernel, "k", target).llvm, target)


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids"])
@pytest.mark.parametrize("rows", [1, 6, 64])
def test_a_scale_multiplies_the_sum_of_its_group(cpu: str, rows: int) -> None:
    text = listing(rows, 256, 4, "cpu", cpu)
    # The loop over a group's words only multiplies pairs: it has no scale and no level as f32.
    vectors = 4 * min(rows, 6)
    loops = [body for body in re.split(r"^\.LBB", text, flags=re.MULTILINE) if "vdpbf16ps" in body]
    assert loops
    for body in loops:
        inner = body[: body.index("\tj")]
        assert inner.count("vdpbf16ps") <= vectors
        assert "vfmadd" not in inner
        assert "vmulps" not in inner
        assert "vcvtdq2ps" not in inner
    assert text.count("vpermw") == 4
    assert "vpmovdw" not in text


def test_arm_multiplies_levels_in_pairs() -> None:
    text = listing(4, 256, 8, "cpu:aarch64", "neoverse-v1")
    assert "\tbfdot\t" in text
