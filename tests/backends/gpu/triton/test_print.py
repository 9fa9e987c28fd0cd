"""Tests of the Triton text of tile kernels: it computes the kernels' results."""

from __future__ import annotations

import numpy as np
import pytest
from tcc.backends.gpu.triton.print import triton_source
from tcc.errors import InternalError
from tcc.ir.tile.verify import verify_kernel

from tests.backends.gpu.blocks import TEXTS
from tests.backends.gpu.more_blocks import CORNERS
from tests.lib.interpreter.running import NEEDS_TRITON, Job, assert_same, interpreted, job_of
from tests.lib.oracle.tile.parse import parse_kernel

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("interpreter")]
SIZES = {"n": 19}


@pytest.fixture(scope="module")
def results() -> dict[str, tuple[Job, list[np.ndarray]]]:
    jobs = {}
    for name, text in (TEXTS | CORNERS).items():
        kernel = parse_kernel(text)
        jobs[name] = job_of(kernel, {v.name: SIZES[v.name] for v in kernel.sizes})
    jobs["gather"].arrays[1][:] = [3, -1, 9, (1 << 32) + 2]
    jobs["argmax"].arrays[0][1, 5] = np.nan
    jobs["softmax"].arrays[0][2, 5] = np.nan
    done = interpreted(list(jobs.values()))
    return {name: (jobs[name], got) for name, got in zip(jobs, done, strict=True)}


@pytest.mark.parametrize("name", [*TEXTS, *CORNERS])
def test_the_interpreter_computes_what_the_evaluator_does(
    name: str, results: dict[str, tuple[Job, list[np.ndarray]]]
) -> None:
    job, got = results[name]
    assert verify_kernel(job.kernel) == ()
    assert_same(job, got, rtol=3e-6, atol=3e-6)


def test_data_outside_an_index_range_is_masked(
    results: dict[str, tuple[Job, list[np.ndarray]]],
) -> None:
    """An index outside of its range is masked, even beyond 32 bits, where the offset would wrap."""
    _, got = results["gather"]
    assert (got[2][[1, 3]] == 7.0).all()


def test_a_text_is_read_in_one_look() -> None:
    text = triton_source(parse_kernel(TEXTS["matmul"]), "matmul", dot="tf32")
    assert text.endswith("""\
# A program for each of m: 0..2, n: 0..2
# a: f32[24,64] is read
# b: f32[64,32] is read
# bias: f32[32] is read
# c: f32[24,32] is written
@triton.jit
def matmul(a, b, bias, c):
    unit = tl.program_id(0)
    n = unit % 2
    m = unit // 2
    zero = tl.full([16, 16], 0.0, tl.float32)
    acc = zero
    lane16 = tl.arange(0, 16)
    row16 = lane16[:, None]
    col16 = lane16[None, :]
    inside = m * 16 + row16 < 24
    for k in tl.range(0, 64, 16):
        at = (k + m * 1024) + row16 * 64 + col16
        x = tl.load(a + at, mask=inside, other=0.0)
        at_2 = (k * 32 + n * 16) + row16 * 32 + col16
        y = tl.load(b + at_2)
        d = tl.dot(x, y, acc, input_precision="tf32", out_dtype=tl.float32)
        acc = d
    p = tl.load(bias + n * 16 + col16)
    r = maximum(acc + p, tl.full([], 0.0, tl.float32))
    at_3 = (m * 512 + n * 16) + row16 * 32 + col16
    tl.store(c + at_3, r, mask=inside)
""")


def test_equal_kernels_have_equal_text() -> None:
    texts = {triton_source(parse_kernel(TEXTS["attention"]), "k", dot="ieee") for _ in range(2)}
    assert len(texts) == 1


def test_offsets_take_64_bits_where_a_buffer_may_need_them() -> None:
    small = TEXTS["dynamic"]
    assert "int64" not in triton_source(parse_kernel(small), "k", dot="ieee")
    large = small.replace("in [1,4096]", "in [1,]")
    assert "tl.program_id(0).to(tl.int64)" in triton_source(parse_kernel(large), "k", dot="ieee")
    job = job_of(parse_kernel(large), SIZES)
    assert_same(job, interpreted([job])[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("line", ["sync", "prefetch %x[0] level 1"])
def test_other_statements_than_those_of_block_kernels_are_refused(line: str) -> None:
    text = TEXTS["pointwise"].replace("store", f"{line}\n store")
    with pytest.raises(InternalError, match="no block kernel"):
        triton_source(parse_kernel(text), "k", dot="ieee")


def test_a_product_of_bytes_that_no_device_takes_is_refused() -> None:
    """An int8 matmul with a sum of fewer than 32 products is refused, because Triton needs 32."""
    text = CORNERS["integers"].replace("i8[32,16]", "i8[16,16]").replace("i8[16,32]", "i8[16,16]")
    with pytest.raises(InternalError, match="no block kernel"):
        triton_source(parse_kernel(text), "k", dot="ieee")
