"""Tests of attention in Gluon without a GPU: an interpreter, planted faults, the machine code."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tcc.backends.gpu.source import HOPPER, KernelSource, kernel_source
from tcc.ir.index import minimum, of_atom
from tcc.ir.tile import TileKernel, TileLoop
from tcc.ir.types import F16
from tcc.target import GPUS

from tests.lib.interpreter import gluon_interpreter as gluon
from tests.lib.interpreter.running import NEEDS_TRITON, compile_kernels, evaluated, job_of
from tests.lib.oracle.gpu.machine_code import listings, machine_codes
from tests.lib.oracle.gpu.structure import innermost_arithmetic

from .attention_kernels import attention

SHARED = 232448
CASES: dict[str, dict[str, Any]] = {
    "plain": {"queries": 256, "keys": 320},
    "tails": {"queries": 200, "keys": 320},
    "causal": {"queries": 256, "keys": 256, "causal": True},
    "wide": {"queries": 256, "keys": 256, "width": 128, "block": 128},
    "wide, five steps": {"queries": 128, "keys": 640, "width": 128, "block": 128},
    "wide, causal": {"queries": 256, "keys": 256, "width": 128, "block": 128, "causal": True},
    "wide, causal, five steps": {
        "queries": 128, "keys": 640, "width": 128, "block": 128, "causal": True,
    },
    "two steps": {"queries": 128, "keys": 128},
    "wider than the keys": {"queries": 256, "keys": 256, "width": 128},
    "shared keys": {"queries": 256, "keys": 256, "shared": 2},
    "f16": {"queries": 256, "keys": 256, "dtype": F16},
}  # fmt: skip


def source(kernel: TileKernel, dot: str = "bf16", shared: int = SHARED) -> KernelSource:
    aligned = [16] * len(kernel.buffers)
    return kernel_source(kernel, "k", warps=8, stages=2, dot=dot, alignments=aligned, gluon=shared)


def launch(
    kernel: TileKernel, made: KernelSource, text: str, programs: int, seed: int, order: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    job = job_of(kernel, seed=seed)
    arrays = [a.copy() for a in job.arrays]
    pairs = [(b.dtype.name, a) for b, a in zip(kernel.buffers, arrays, strict=True)]
    gluon.run(text, "k", pairs, made.maps, programs=programs, seed=seed, order=order)
    return arrays, evaluated(job)


@pytest.mark.parametrize("order", gluon.ORDERS)
@pytest.mark.parametrize("name", CASES)
def test_results_are_the_evaluator_s(name: str, order: str) -> None:
    kernel = attention(**CASES[name])
    made = source(kernel, "f16" if name == "f16" else "bf16").hopper
    assert made is not None
    for seed, programs in enumerate((1, 3)):
        got, want = launch(kernel, made, made.text, programs, seed, order)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-2, atol=2e-2)


def cut_short() -> TileKernel:
    """Returns a causal kernel whose loops visit only keys that some row of the tile sees."""
    kernel = attention(256, 256, causal=True)
    (loop,) = (n for n in kernel.body if isinstance(n, TileLoop))
    rows = of_atom(kernel.axes[-1])
    short = replace(loop, stop=minimum(2 * rows + 2, 4 + 0 * rows))
    body = tuple(short if n is loop else n for n in kernel.body)
    return replace(kernel, body=body)


@pytest.mark.parametrize("order", gluon.ORDERS)
def test_streaming_loops_may_have_different_lengths(order: str) -> None:
    kernel = cut_short()
    made = source(kernel).hopper
    assert made is not None
    whole = evaluated(job_of(attention(256, 256, causal=True), seed=1))
    for programs in (1, 3):
        got, want = launch(kernel, made, made.text, programs, 1, order)
        np.testing.assert_allclose(got[-1], want[-1], rtol=2e-2, atol=2e-2)
        np.testing.assert_allclose(got[-1], whole[-1], rtol=2e-2, atol=2e-2)


def orders(text: str) -> list[str]:
    """Returns the lines of both parts that turn a block's `program` into the tile that it takes."""
    matches = re.findall(r"^ +(first = .*)\n +(last = .*)\n +(tile = .*)\n", text, re.MULTILINE)
    return ["\n".join(lines) for lines in matches]


def tiles_of(lines: str, number: int, programs: int, tiles: int) -> list[int]:
    """Returns the tiles that block `number` of `programs` computes, by the kernel's `lines`."""
    language = SimpleNamespace(
        program_id=lambda axis: number,
        num_programs=lambda axis: programs,
        minimum=min,
        where=lambda condition, a, b: a if condition else b,
    )
    places = []
    for program in range(number, tiles, programs):
        names = {"tl": language, "program": program}
        exec(lines, names)
        places.append(names["tile"])
    return places


def test_causal_blocks_take_equal_numbers_of_steps() -> None:
    """Two heads of 32 tiles on 4 blocks: without the reversed rounds, one block takes 9 % more."""
    gluon_kernel = source(attention(4096, 4096, causal=True)).hopper
    assert gluon_kernel is not None
    copies, attends = orders(gluon_kernel.text)
    assert copies == attends
    for programs in (1, 3, 4, 5, 7, 63, 64, 65):
        blocks = [tiles_of(copies, n, programs, 64) for n in range(programs)]
        assert sorted(tile for block in blocks for tile in block) == list(range(64))
    steps = [sum(t % 32 + 1 for t in tiles_of(copies, n, 4, 64)) for n in range(4)]
    assert steps == [264] * 4
    in_order = [sum(t % 32 + 1 for t in range(n, 64, 4)) for n in range(4)]
    assert max(in_order) == 288


def test_blocks_keep_the_order_where_tiles_are_equal() -> None:
    gluon_kernel = source(attention(256, 320)).hopper
    assert gluon_kernel is not None
    assert orders(gluon_kernel.text) == []


@pytest.mark.parametrize("order", gluon.ORDERS)
@pytest.mark.parametrize("programs", [2, 3, 4])
def test_both_parts_take_the_same_tiles_in_reversed_rounds(programs: int, order: str) -> None:
    kernel = attention(640, 640, causal=True)
    gluon_kernel = source(kernel).hopper
    assert gluon_kernel is not None
    got, want = launch(kernel, gluon_kernel, gluon_kernel.text, programs, 2, order)
    np.testing.assert_allclose(got[-1], want[-1], rtol=2e-2, atol=2e-2)
    text = gluon_kernel.text.replace("% 2 == 1", "% 2 == 2", 1)
    assert text != gluon_kernel.text
    try:
        got, want = launch(kernel, gluon_kernel, text, programs, 2, order)
    except gluon.GluonError:
        return
    assert not np.allclose(got[-1], want[-1], rtol=2e-2, atol=2e-2)


def seen_rows(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of causal attention that see only the first half of the keys.

    The second half of keys and values holds NaN. The first result is from the kernel `text`, the
    second from the evaluator.
    """
    kernel = attention(256, 256, causal=True)
    made = source(kernel).hopper
    assert made is not None
    job = job_of(kernel)
    want = evaluated(job)[-1]
    arrays = [a.copy() for a in job.arrays]
    for operand in arrays[1:3]:
        operand.reshape(2, 256, 64)[:, 128:] = np.nan
    pairs = [(b.dtype.name, a) for b, a in zip(kernel.buffers, arrays, strict=True)]
    gluon.run(text, "k", pairs, made.maps, programs=1, seed=0, order=gluon.ORDERS[0])
    shown = [a.reshape(2, 256, 64)[:, :128] for a in (arrays[-1], want)]
    return shown[0], shown[1]


def test_hidden_keys_are_not_read() -> None:
    """The kernel does not read hidden keys, since a loop over all keys gives NaN (zero times
    NaN)."""
    made = source(attention(256, 256, causal=True)).hopper
    assert made is not None
    got, want = seen_rows(made.text)
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2)
    whole, count = re.subn(r"range\(([01]), p_\w+ \* 2 \+ 2, 1\)", r"range(\1, 4, 1)", made.text)
    assert count == 2, "keys are brought, and used"
    got, _ = seen_rows(whole)
    assert np.isnan(got).all()


FAULTS: dict[str, Callable[[str], str]] = {
    "queries are not awaited": lambda t: t.replace(
        "mbarrier.wait(q_full.index(half), turn)", "pass"
    ),
    "keys are not awaited": lambda t: t.replace("mbarrier.wait(k_full.index(step), phase)", "pass"),
    "values are not awaited": lambda t: t.replace(
        "mbarrier.wait(v_full.index(late), late_phase)", "pass"
    ),
    "queries are brought too early": lambda t: t.replace(
        "mbarrier.wait(q_empty.index(1), turn)", "pass"
    ),
    "keys are brought too early": lambda t: t.replace(
        "mbarrier.wait(k_empty.index(step), phase)", "pass"
    ),
    "one half gives the values back": lambda t: t.replace(
        "mbarrier.init(v_empty.index(step), count=2)",
        "mbarrier.init(v_empty.index(step), count=1)",
    ),
    "the values are given back by nobody": lambda t: t.replace(
        "mbarrier.arrive(v_empty.index(late))", "pass"
    ),
    "values of this step are taken for those of the last": lambda t: t.replace(
        "late, late_phase = step, phase", "late, late_phase = tl.to_tensor(0), phase"
    ),
    "values are given back while they are multiplied": lambda t: t.replace(
        "num_outstanding=1, deps=(v10_2,))\n            mbarrier.arrive(k_empty.index(step))",
        "num_outstanding=1, deps=(v10_2,))\n            mbarrier.arrive(v_empty.index(late))",
    ),
    "the phase of the queries does not turn": lambda t: t.replace("turn = turn ^ 1", "pass"),
    "the rings are one shorter": lambda t: t.replace("behind = step == 4", "behind = step == 3", 1),
    "scores are used too early": lambda t: t.replace("num_outstanding=0", "num_outstanding=1", 1),
    "scores are used before the values of the last step": lambda t: t.replace(
        "num_outstanding=1", "num_outstanding=2"
    ),
    "both halves have the same rows": lambda t: t.replace("(k_attend, (1,", "(k_attend, (0,"),
    "a part begins in the wrong phase": lambda t: t.replace(
        "phase = tl.to_tensor(1)", "phase = tl.to_tensor(0)"
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    kernel = attention(256, 640)
    made = source(kernel).hopper
    assert made is not None
    text = FAULTS[fault](made.text)
    assert text != made.text
    found = 0
    for seed, order in enumerate((*gluon.ORDERS, "random", "uneven", "uneven")):
        try:
            got, want = launch(kernel, made, text, 1, seed, order)
        except gluon.GluonError:
            found += 1
            continue
        found += not np.allclose(got[-1], want[-1], rtol=2e-2, atol=2e-2)
    assert found


def test_other_kernels_stay_with_triton() -> None:
    """A kernel stays with Triton if shares stay f32, rows are few, keys fill no block, or shared
    memory is too small."""
    kernel = attention(256, 320)
    assert source(kernel).hopper is not None
    assert source(kernel, "ieee").hopper is None
    assert source(kernel, "f16").hopper is None
    assert source(attention(256, 320, rows=64)).hopper is None
    assert source(attention(256, 300)).hopper is None
    assert source(kernel, shared=16384 + 2048 + 16384).hopper is None


class TestCompiled:
    """Tests of the code that Triton compiles."""

    pytestmark = NEEDS_TRITON

    def test_two_warpgroups_multiply_and_nothing_spills(self) -> None:
        sources = [source(attention(**CASES[name])) for name in ("tails", "causal", "wide")]
        made = compile_kernels([*sources, source(cut_short())], [GPUS[f"cuda:{HOPPER}"]], 1)
        kernels = [kernel for (kernel,) in made]
        for kernel, code in zip(kernels, machine_codes(kernels), strict=True):
            assert kernel.stays
            assert kernel.warps == 12
            assert kernel.private == 0
            assert len(kernel.maps) == 3
            assert dict(code.matrix)["HGMMA"] >= 8
            assert "setmaxnreg.inc.sync.aligned.u32 \t240" in kernel.assembly

    def test_the_loop_over_keys_has_few_arithmetic_instructions(self) -> None:
        """A step has 64 scores a lane and 16 matrix instructions, so 4 are one a score.

        Plain attention takes 11.4 instructions a score. The mask takes 2.5 more: a comparison, a
        selection and half of a position.
        """
        names = ("wide, five steps", "wide, causal, five steps")
        sources = [source(attention(**{**CASES[name], "queries": 640})) for name in names]
        binaries = compile_kernels(sources, [GPUS[f"cuda:{HOPPER}"]], 1)
        plain, causal = map(innermost_arithmetic, listings([binary for (binary,) in binaries]))
        assert plain <= 46
        assert causal <= 56
