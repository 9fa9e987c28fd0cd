"""The rule which kernels may write a result over an operand agrees with kernels run in one
memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tcc.errors import InternalError
from tcc.ir.index import const, of_atom
from tcc.ir.tile.overwrite import overwrites, stored_lanes
from tcc.ir.tile.text import kernel_text
from tcc.ir.tile.verify import verify_kernel

from tests.lib.oracle.tile.evaluate import evaluate_kernel
from tests.lib.oracle.tile.parse import parse_kernel

SCALE = """\
kernel() parallel(p: 0..3) {
  input %x : f32[24] align 4
  output %y : f32[24] align 4
  if p < 2 {
    for k: 0..8 in 0..8 step 4 {
      %a: f32[4] = load %x[8*p+k+l0]
      %b: f32[4] = compute(%a) arg(0):f32 * 2.0:f32
      store %b to %y[8*p+k+l0]
    }
  } else {
    %c: f32[8] = load %x[l0+16]
    %d: f32[8] = compute(%c) arg(0):f32 * 2.0:f32
    store %d to %y[l0+16]
  }
}
"""


def together(text: str) -> np.ndarray:
    """Returns one memory that holds both buffers, after the kernel ran on it."""
    kernel = parse_kernel(text)
    memory = np.arange(24, dtype=np.float32)
    evaluate_kernel(kernel, [memory, memory], {})
    return memory


def test_each_element_is_replaced_where_it_was_read() -> None:
    kernel = parse_kernel(SCALE)
    assert overwrites(kernel, 0, 1)
    assert stored_lanes(kernel, 1) == const(24)
    np.testing.assert_array_equal(together(SCALE), 2 * np.arange(24, dtype=np.float32))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("load %x[8*p+k+l0]", "load %x[-8*p-k-l0+23]"),  # other instances replace these elements
        ("      %a: f32[4] = load %x[8*p+k+l0]\n", "      %a: f32[4] = load %x[l0]\n"),
        ("    for k", "    %e: f32[4] = load %x[8*p+l0]\n    for k"),  # in a separate loop body
        ("x : f32[24]", "x : f32[25]"),
        (
            "    store %d to %y[l0+16]\n",
            "    store %d to %y[l0+16]\n    %e: f32[8] = load %x[l0]\n",
        ),
        ("    store %d to %y[l0+16]\n", "    store %c to %y[l0+16] where 0 <= l0 < 5\n"),
        ("    store %d to", "    %e: f32[8] = load %y[l0+16]\n    store %d to"),
    ],
)
def test_kernels_that_read_other_elements_may_not_overwrite(old: str, new: str) -> None:
    assert old in SCALE
    assert not overwrites(parse_kernel(SCALE.replace(old, new, 1)), 0, 1)


def test_one_kernel_that_may_not_gives_other_results() -> None:
    text = SCALE.replace("load %x[8*p+k+l0]", "load %x[-8*p-k-l0+23]", 1)
    kernel = parse_kernel(text)
    source, target = np.arange(24, dtype=np.float32), np.zeros(24, np.float32)
    evaluate_kernel(kernel, [source, target], {})
    assert not np.array_equal(together(text), target)


@pytest.mark.parametrize(
    ("old", "new", "lanes"),
    [
        ("if p < 2", "if p < 1", 8 + 2 * 8),
        ("    for k: 0..8 in 0..8 step 4", "    for k: 0..8 in 0..8 step 2", 2 * 16 + 8),
        ("p: 0..3", "p: 0..4", 2 * 8 + 2 * 8),
        ("p: 0..3", "p: 0..2", 2 * 8),
    ],
)
def test_lanes_are_counted(old: str, new: str, lanes: int) -> None:
    assert old in SCALE
    assert stored_lanes(parse_kernel(SCALE.replace(old, new, 1)), 1) == const(lanes)


def test_symbolic_sizes_are_counted() -> None:
    """From n = 2 on, some program instances take the other branch; both branches store 8 lanes."""
    text = "size n in [2,]\n" + SCALE.replace("kernel()", "kernel(n)").replace("0..3", "0..n")
    kernel = parse_kernel(text)
    (n,) = kernel.sizes
    assert stored_lanes(kernel, 1) == 8 * of_atom(n)
    split = parse_kernel(text.replace("p < 2", "p < n-1"))
    (n,) = split.sizes
    assert stored_lanes(split, 1) == 8 * of_atom(n)


def test_lanes_that_more_than_sizes_decides_are_not_counted() -> None:
    assert stored_lanes(parse_kernel(SCALE.replace("0..8 in 0..8", "0..8 in 0..4*p")), 1) is None


def test_the_pair_is_printed_read_and_verified() -> None:
    kernel = replace(parse_kernel(SCALE), in_place=((0, 1),))
    assert verify_kernel(kernel) == ()
    text = kernel_text(kernel)
    assert "place %y over %x" in text
    assert parse_kernel(text).in_place == ((0, 1),)
    wrong = parse_kernel(text.replace("load %x[l0+16]", "load %x[l0+15]"))
    with pytest.raises(InternalError):
        verify_kernel(wrong)
