"""The tile verifier finds each kind of wrong kernel, and proves bounds of correct kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tcc.errors import InternalError, UserError
from tcc.ir.index import const
from tcc.ir.tile import Prefetch, lanes
from tcc.ir.tile.text import kernel_text
from tcc.ir.tile.verify import verify_kernel

from tests.lib.oracle.tile.parse import parse_kernel

GEMM = """\
size n in [1,]
kernel(n) parallel(p: 0..n // 4) {
  input %a : f32[n,8] align 4
  input %b : f32[8,16] align 4
  input %at : i64[n] align 8
  output %c : f32[n,16] align 4
  local %t : f32[16] align 64
  %z: f32[4,16] = compute() 0.0:f32
  %s: f32[4,16] = for k: 0..8 in 0..8 step 2 carry (%c0: f32[4,16] = %z) {
    %x: f32[4,2] = load %a[4*p+l0, k+l1]
    %y: f32[2,16] = load %b[k+l0, l1]
    %d: f32[4,16] = contract %x[m,k] * %y[k,n] + %c0[m,n]
    yield %d
  }
  %i: i64[4,1] = load %at[4*p+l0]
  %g: f32[4,16] = load %c[t, l1 | t: 0..n = %i] where 0 <= t < n fill 1.0
  %r: f32[4,1] = reduce sum(%s) over (1)
  %w: f32[4,16] = broadcast %r
  %q: f32[16,4] = relayout %w order (1, 0)
  if p < 1 {
    store %g to %c[4*p+l0, l1]
  } else {
    prefetch %b[4*p+64, 16] level 2
    sync
  }
  %j: i64[1,1] = load %at[p]
  prefetch %a[2*t+1, 0 | t: 0..n = %j] level 1 to write
  %h: f32[4,16] = compute(%g, %r) arg(0):f32 + arg(1):f32
  store %h to %c[4*p+l0, l1]
}
"""


def test_a_sound_kernel_passes_and_round_trips() -> None:
    kernel = parse_kernel(GEMM)
    assert verify_kernel(kernel) == ()
    text = kernel_text(kernel)
    assert kernel_text(parse_kernel(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("broadcast %r", "broadcast %d", "not defined"),
        ("broadcast %r", "broadcast %x", "does not spread"),
        ("%w: f32[4,16]", "%w: f64[4,16]", "another element type"),
        ("store %h to %c", "store %h to %b", "is an input"),
        ("%a[4*p+l0, k+l1]", "%a[4*p+l0]", "1 indices for 2"),
        ("* %y[k,n]", "* %y[j,n]", "one operand alone"),
        ("%y[k,n]", "%y[n,k]", "differ in size"),
        ("reduce sum(%s) over (1)", "reduce sum(%s) over (0)", "along"),
        ("reduce sum(%s)", "reduce argmax(%s)", "does not combine"),
        ("order (1, 0)", "order (1, 1)", "not laid out"),
        ("yield %d", "yield %x", "changes its type"),
        ("arg(1):f32", "arg(2):f32", "is not given"),
        ("arg(1):f32", "cast(arg(1):f32, i32)", "arg|gives"),
        ("%t : f32[16]", "%t : f32[n]", "not static"),
        ("at : i64", "at : f32", "no integers|holds"),
        ("prefetch %b[4*p+64, 16]", "prefetch %b[4*p+64]", "1 indices for 2"),
        ("prefetch %b[4*p+64, 16] level 2", "prefetch %b[4*p, 16] level 3", "no level 3"),
        ("0..n = %j]", "0..n = %i]", "not to one integer"),
        ("0..n = %j]", "0..n = %r]", "not to one integer"),
    ],
)
def test_wrong_kernels_are_refused(old: str, new: str, problem: str) -> None:
    assert old in GEMM
    with pytest.raises(InternalError) as caught:
        verify_kernel(parse_kernel(GEMM.replace(old, new, 1)))
    assert any(word in caught.value.why for word in problem.split("|"))


@pytest.mark.parametrize(
    ("old", "new", "claim"),
    [
        ("load %a[4*p+l0,", "load %a[4*p+l0+1,", "4*p"),
        ("%b[k+l0, l1]", "%b[k+l0+1, l1]", "k+l0"),
        (" where 0 <= t < n fill 1.0", "", "t"),
        ("where 0 <= t < n", "where 0 <= t < n+1", "t"),
        ("in 0..8 step 2", "in 0..8 step 3", "3 divides"),
        ("store %g to %c[4*p+l0,", "store %g to %c[4*p+l0-1,", "p"),
    ],
)
def test_accesses_that_are_not_proved_are_listed(old: str, new: str, claim: str) -> None:
    assert old in GEMM
    claims = verify_kernel(parse_kernel(GEMM.replace(old, new, 1)))
    assert any(claim in c for c in claims)


def test_a_prefetch_has_no_lanes() -> None:
    kernel = parse_kernel(GEMM)
    buffer = kernel.buffers[0]
    wrong = Prefetch(buffer, (lanes((4,))[0], const(0)))
    with pytest.raises(InternalError) as caught:
        verify_kernel(replace(kernel, body=(*kernel.body, wrong)))
    assert "prefetch of a uses l0, which is not in sight" in caught.value.why


def test_a_block_is_defined_once() -> None:
    kernel = parse_kernel(GEMM)
    again = replace(kernel, body=(kernel.body[0], *kernel.body))
    with pytest.raises(InternalError) as caught:
        verify_kernel(again)
    assert "%z:f32[4,16] is defined twice" in caught.value.why
    with pytest.raises(UserError, match="was defined before"):
        parse_kernel(GEMM.replace("%w: ", "%r: "))


def test_wrong_texts_are_refused_with_their_place() -> None:
    with pytest.raises(UserError, match="no block has this name") as caught:
        parse_kernel(GEMM.replace("broadcast %r", "broadcast %nothing"))
    assert caught.value.where == "line 18, column 29"
