"""Tests of non-temporal stores: kernels have them in the right places, and results are right."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from tcc.backends.cpu.detect import detect
from tcc.backends.cpu.llvm.emit import emit_kernel
from tcc.ir.expr import extent
from tcc.ir.graph import Graph
from tcc.ir.index import const, evaluate
from tcc.ir.tile import Guard, Load, Store, TileKernel, lanes
from tcc.ir.tile.text import kernel_text
from tcc.ir.types import F16, F32, F64, U8
from tcc.ops.shapes import AxisAttrs
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.schedule.cpu.core import CoreModel
from tcc.schedule.cpu.cost import Pricer
from tcc.schedule.cpu.machine import Machine
from tcc.schedule.cpu.shipped_machines import machine_for, shipped_machine
from tcc.target import Target, parse_target

from tests.backends.cpu.conftest import Compiled, aligned
from tests.backends.cpu.kernels import RNG, buffer, copy_kernel, output
from tests.lib.oracle.tile.parse import parse_kernel
from tests.passes.fuse.models import Model
from tests.passes.placing import place_graph

HINT = "!nontemporal"
ARM = parse_target("cpu", "neoverse-n1", detect)


def planned(graph: Graph, machine: Machine) -> TileKernel:
    placed = place_graph(graph)
    (step,) = placed.steps
    assert step.kernel is not None
    core = CoreModel(machine.lanes, machine.registers, machine.l2.size)
    planner = CoreChooser(core, Pricer(machine, 0))
    return planner.plan(step.kernel, placed.layouts, graph.constants).bound.kernel


def residual(*shape: int) -> Graph:
    m = Model("residual")
    return m.finish(m.op("relu", m.op("add", m.input("x", *shape), m.input("y", *shape))))


def softmax(rows: int, columns: int) -> Graph:
    m = Model("softmax")
    return m.finish(m.op("softmax", m.input("x", rows, columns), attrs=AxisAttrs(1)))


def small(target: Target) -> Machine:
    """Returns the target's machine with a last-level cache of 64 KiB."""
    machine = machine_for(target.profile)
    return replace(machine, l3=replace(machine.l3, size=1 << 16))


def hints(kernel: TileKernel, target: Target) -> int:
    return emit_kernel(kernel, "k", target).llvm.count(HINT)


def run_at(
    kernel: TileKernel, target: Target, operands: Sequence[np.ndarray], shift: int
) -> np.ndarray:
    """Runs a kernel with its result `shift` bytes behind a cache line, and returns the result.

    Fails if bytes around the result change.
    """
    compiled = Compiled(kernel, target)
    result = kernel.buffers[-1]
    count = int(evaluate(result.sizes[0], {}))
    memory = aligned((count * 4 + 128,), np.uint8)
    memory[:] = 0xA5
    values = memory[64 + shift : 64 + shift + count * 4].view(np.float32)
    operand_copies = [aligned(a.shape, a.dtype) for a in operands]
    for at, array in zip(operand_copies, operands, strict=True):
        at[...] = array
    pointers = (ctypes.c_void_p * 3)(*(a.ctypes.data for a in (*operand_copies, values)))
    units = prod(int(evaluate(extent(v), {})) for v in kernel.axes)
    scratch = aligned((compiled.scratch + 64,), np.uint8)
    for begin, end in ((units // 2, units), (0, units // 2)):
        compiled._entry(pointers, None, begin, end, scratch.ctypes.data)
    assert (memory[: 64 + shift] == 0xA5).all()
    assert (memory[64 + shift + count * 4 :] == 0xA5).all()
    return values


@pytest.mark.parametrize("shape", [(8, 64, 64), (5, 7, 1111)], ids=["lines", "tails"])
def test_results_are_equal_at_any_address(target: Target, shape: tuple[int, ...]) -> None:
    kernel = planned(residual(*shape), small(target))
    assert kernel.nontemporal == (2,)
    assert hints(kernel, target) > 0
    x, y = (RNG.standard_normal(prod(shape)).astype(np.float32) for _ in range(2))
    for shift in (0, 4, 16, 32):
        values = run_at(kernel, target, (x, y), shift)
        np.testing.assert_array_equal(values, np.maximum(x + y, 0))


def test_only_stores_larger_than_the_last_cache_are_non_temporal() -> None:
    machine = shipped_machine("znver5")
    assert planned(residual(64, 512, 512), machine).nontemporal == (2,)
    assert planned(residual(6, 512, 512), machine).nontemporal == ()
    large = machine.l3.size * (2 + machine.memory.reading(together=True) / machine.memory.write_all)
    assert not machine.bypasses(int(large))
    assert machine.bypasses(int(large) + 1)


def test_stores_that_a_kernel_reads_back_are_not_non_temporal(target: Target) -> None:
    """A softmax reads its exponentials back from its result, so its stores are not non-temporal."""
    kernel = planned(softmax(64, 4096), small(target))
    assert kernel.nontemporal == ()  # The exponentials are stored there too.
    assert hints(replace(kernel, nontemporal=(1,)), target) == 0
    logs = Model("log")
    x = logs.input("x", 64, 4096)
    graph = logs.finish(logs.op("log_softmax", x, attrs=AxisAttrs(1)))
    assert hints(planned(graph, small(target)), target) > 0


def test_results_over_operands_stay_near(target: Target) -> None:
    kernel = planned(residual(8, 64, 64), small(target))
    assert hints(replace(kernel, in_place=((0, 2),)), target) == 0


def test_other_processors_have_one_version() -> None:
    kernel = planned(residual(8, 64, 64), small(ARM))
    text = emit_kernel(kernel, "k", ARM).llvm
    assert text == emit_kernel(replace(kernel, nontemporal=()), "k", ARM).llvm
    assert "sfence" not in text


@pytest.mark.parametrize("dtype", [F32, F64, F16, U8], ids=str)
def test_only_rows_of_whole_lines_go_past_the_caches(target: Target, dtype) -> None:
    line = 64 // dtype.bytes

    def count(cols: int, pitch: int, first: int = 0, guards: tuple[Guard, ...] = ()) -> int:
        l0, l1 = lanes((2, cols))
        x, y = buffer("x", dtype, (2, cols)), output("y", dtype, 2 * pitch + first)
        at = (pitch * l0 + l1 + first,)
        kernel = copy_kernel(x, y, (2, cols), (l0, l1), at, (), guards)
        return hints(replace(kernel, nontemporal=(1,)), target)

    assert count(2 * line, 2 * line) > 0
    assert count(2 * line, 3 * line, line) > 0
    assert count(2 * line, 2 * line + 1) < count(2 * line, 2 * line)
    assert count(2 * line, 2 * line, 1) == 0
    assert count(line + line // 2, 2 * line) == 0
    l1 = lanes((2, 2 * line))[1]
    assert count(2 * line, 2 * line, guards=(Guard(l1, const(line)),)) == 0


def test_a_read_back_is_found_wherever_it_stands(target: Target) -> None:
    cols = 64
    (l0,) = lanes((cols,))
    x, y = buffer("x", F32, (cols,)), output("y", F32, cols)
    kernel = replace(copy_kernel(x, y, (cols,), (l0,), (l0,)), nontemporal=(1,))
    assert hints(kernel, target) > 0
    load, store = kernel.body
    assert isinstance(load, Load)
    assert isinstance(store, Store)
    again = replace(load, out=replace(load.out, name="z"), buffer=y)
    assert hints(replace(kernel, body=(load, store, again)), target) == 0


def test_the_text_lists_them() -> None:
    text = kernel_text(planned(residual(64, 512, 512), shipped_machine("znver5")))
    assert "  nontemporal %b2\n" in text
    assert kernel_text(parse_kernel(text)) == text
