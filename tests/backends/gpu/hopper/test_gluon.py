"""Tests of Hopper's kernels in Gluon without a GPU.

The tests compare an interpreter with the evaluator, plant faults, and read the machine code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tcc.backends.artifact.gpu_binaries import Param
from tcc.backends.gpu.source import HOPPER, KernelSource, kernel_source
from tcc.ir.tile import TileKernel
from tcc.ir.tile.verify import verify_kernel
from tcc.target import GPUS

from tests.lib.interpreter import gluon_interpreter as gluon
from tests.lib.interpreter.running import NEEDS_TRITON, compile_kernels, evaluated, job_of
from tests.lib.oracle.gpu.machine_code import machine_code, machine_codes
from tests.lib.oracle.tile.parse import parse_kernel

from .gluon_kernels import REFUSED, TEXTS

SHARED = 232448


def parsed(text: str) -> TileKernel:
    kernel = parse_kernel(text)
    verify_kernel(kernel)
    return kernel


def both(text: str, shared: int = SHARED) -> KernelSource:
    """Returns the kernel in Triton, and also in Gluon if its shape allows that."""
    return kernel_source(parsed(text), "k", warps=8, stages=3, dot="ieee", gluon=shared)


def source(text: str, shared: int = SHARED) -> KernelSource:
    made = both(text, shared).hopper
    assert made is not None
    return made


def launch(
    text: str, made: KernelSource, programs: int, seed: int, order: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns all buffers after a launch, and the evaluator's buffers."""
    job = job_of(parsed(text), seed=seed)
    arrays = [a.copy() for a in job.arrays]
    pairs = [(b.dtype.name, a) for b, a in zip(job.kernel.buffers, arrays, strict=True)]
    gluon.run(made.text, "k", pairs, made.maps, programs=programs, seed=seed, order=order)
    return arrays, evaluated(job)


def assert_right(text: str, programs: int = 2, seed: int = 0, order: str = "late") -> None:
    got, want = launch(text, source(text), programs, seed, order)
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=2e-2, err_msg=f"buffer {number}")


@pytest.mark.parametrize("order", gluon.ORDERS)
@pytest.mark.parametrize("name", TEXTS)
def test_results_are_the_evaluator_s(name: str, order: str) -> None:
    for seed, programs in enumerate((1, 3)):
        assert_right(TEXTS[name], programs, seed, order)


@pytest.mark.parametrize("programs", [1, 2, 5, 64])
def test_any_number_of_programs_does_all_tiles(programs: int) -> None:
    assert_right(TEXTS["tails"], programs)


def test_tiles_are_all_written_once() -> None:
    """Every unit is written: no element keeps its initial value."""
    got, want = launch(TEXTS["plain"], source(TEXTS["plain"]), 3, 1, "random")
    assert not np.any(got[-1] == 77)
    assert not np.any(want[-1] == 77)


FAULTS: dict[str, Callable[[str], str]] = {
    "the copies do not wait": lambda t: t.replace(
        "mbarrier.wait(empty.index(step), phase)", "pass"
    ),
    "the products do not wait": lambda t: t.replace(
        "mbarrier.wait(full.index(step), phase)", "pass"
    ),
    "the copies begin in the wrong phase": lambda t: t.replace(
        "phase = tl.to_tensor(1)", "phase = tl.to_tensor(0)"
    ),
    "the products begin in the wrong phase": lambda t: t.replace(
        "phase = tl.to_tensor(0)", "phase = tl.to_tensor(1)"
    ),
    "buffers are given back too early": lambda t: t.replace(
        "empty.index(before), pred=k > 0", "empty.index(step), pred=True"
    ),
    "two products are left under way": lambda t: t.replace(
        "num_outstanding=1", "num_outstanding=2"
    ),
    "the last buffer is not given back": lambda t: t.replace(
        "mbarrier.arrive(empty.index(before))\n", "pass\n"
    ),
    "the sums are used too early": lambda t: t.replace("num_outstanding=0", "num_outstanding=1"),
    "fewer bytes are expected": lambda t: t.replace("(step), 8192", "(step), 4096"),
    "more bytes are expected": lambda t: t.replace("(step), 8192", "(step), 8208"),
    "barriers are not initialised": lambda t: t.replace(
        "mbarrier.init(empty.index(step), count=1)", "pass"
    ),
    "a tile is written while it leaves": lambda t: t.replace("tma.store_wait(0)\n        ", ""),
    "stores are not awaited": lambda t: t.replace("\n    tma.store_wait(0)\n", "\n"),
    "a store without a fence": lambda t: t.replace("fence_async_shared()", "pass"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    """A planted fault gives an error, a deadlock or wrong numbers in at least one order of
    execution."""
    text = TEXTS["tails"]
    made = source(text)
    broken = replace(made, text=FAULTS[fault](made.text))
    assert broken.text != made.text
    found = 0
    for seed, order in enumerate((*gluon.ORDERS, "random", "uneven", "uneven")):
        try:
            got, want = launch(text, broken, 1, seed, order)
        except gluon.GluonError:
            found += 1
            continue
        found += not all(np.allclose(*p, rtol=1e-2, atol=2e-2) for p in zip(got, want, strict=True))
    assert found


@pytest.mark.parametrize("name", REFUSED)
def test_kernels_that_are_no_proven_matmul_stay_with_triton(name: str) -> None:
    assert both(REFUSED[name]).hopper is None


def test_other_options_and_alignments_stay_with_triton() -> None:
    kernel = parsed(TEXTS["plain"])
    options = {"warps": 8, "stages": 3, "dot": "ieee"}
    assert kernel_source(kernel, "k", **options).hopper is None  # type: ignore[arg-type]
    for n in range(2):
        alignments = [64, 64, 64]
        alignments[n] = 8
        made = kernel_source(kernel, "k", alignments=alignments, gluon=SHARED, **options)  # type: ignore[arg-type]
        assert made.hopper is None


def test_a_ring_is_as_long_as_memory_allows() -> None:
    """The ring of buffers shrinks with the memory; without room for results they bypass shared
    memory."""
    text = TEXTS["tails"]
    assert "[4, 128, 16]" in source(text).text
    assert "[3, 128, 16]" in source(text, 2048 + 3 * 8192 + 32768).text
    direct = source(text, 2048 + 3 * 8192)
    assert "tma.async_store" not in direct.text
    got, want = launch(text, direct, 2, 0, "late")
    np.testing.assert_allclose(got[-1], want[-1], rtol=1e-2, atol=2e-2)
    assert both(text, 8192).hopper is None


class TestCompiled:
    """Tests of the code that Triton compiles."""

    pytestmark = NEEDS_TRITON

    def test_the_machine_code_copies_and_multiplies(self) -> None:
        names = ("plain", "tails", "batched", "turned", "epilogue")
        sources = [both(TEXTS[name]) for name in names]
        made = compile_kernels(sources, [GPUS[f"cuda:{HOPPER}"]], 1)
        kernels = [kernel for (kernel,) in made]
        for kernel, code in zip(kernels, machine_codes(kernels), strict=True):
            assert kernel.stays
            assert kernel.warps == 12  # Eight warps multiply, four belong to the part that copies.
            assert kernel.private == 0
            assert dict(code.matrix)["HGMMA"] >= 1
            assert "cp.async.bulk.tensor" in kernel.assembly
            assert "setmaxnreg.dec" in kernel.assembly
            assert len(kernel.maps) == kernel.params.count(Param.TENSOR_MAP)
            # The kernel never reads the parameter behind a map.
            head, _, body = kernel.assembly.partition(")\n.reqntid")
            for number, kind in enumerate(kernel.params):
                if kind is Param.NULL:
                    assert f"k_param_{number}]" not in body
            assert head.count(".align 64 .b8") == len(kernel.maps)

    def test_older_devices_get_the_kernels_of_triton(self) -> None:
        ((kernel,),) = compile_kernels([both(TEXTS["plain"])], [GPUS["cuda:sm_80"]], 1)
        assert not kernel.stays
        assert kernel.maps == ()
        assert dict(machine_code(kernel).matrix)["HMMA"] >= 1
