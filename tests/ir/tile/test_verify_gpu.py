"""The verifier of block kernels accepts kernels of GPU backends, and names violations."""

from __future__ import annotations

import pytest
from tcc.errors import InternalError
from tcc.ir.tile.verify import verify_kernel
from tcc.ir.tile.verify_gpu import verify_blocks

from tests.lib.oracle.tile.parse import parse_kernel

GEMM = """\
kernel() parallel(p: 0..4) {
  input %a : f32[2048] align 4
  input %b : f32[512] align 4
  output %c : f32[1024] align 4
  %z: f32[16,16] = compute() 0.0:f32
  %s: f32[16,16] = for k: 0..2 in 0..2 step 1 carry (%c0: f32[16,16] = %z) {
    %x: f32[16,16] = load %a[512*p+32*l0+16*k+l1]
    %y: f32[16,16] = load %b[256*k+16*l0+l1]
    %d: f32[16,16] = contract %x[m,k] * %y[k,n] + %c0[m,n]
    yield %d
  }
  store %s to %c[256*p+16*l0+l1]
}
"""

BROKEN = {
    "no power of two": ("%z: f32[16,16] =", "%u: f32[12] = compute() 0.0:f32\n  %z: f32[16,16] ="),
    "too large": ("%z: f32[16,16] =", "%u: f32[2097152] = compute() 0.0:f32\n  %z: f32[16,16] ="),
    "is local": ("output %c", "local %t : f32[16] align 64\n  output %c"),
    "is not flat": ("%c : f32[1024]", "%c : f32[4,256]"),
    "no matrices": ("%x[m,k] * %y[k,n]", "%x[k,m] * %y[k,n]"),
    "a Sync": ("store %s", "sync\n  store %s"),
}


def test_a_product_of_matrices_is_a_block_kernel() -> None:
    kernel = parse_kernel(GEMM)
    assert verify_kernel(kernel) == ()
    verify_blocks(kernel)


@pytest.mark.parametrize("problem", list(BROKEN))
def test_a_broken_promise_is_named(problem: str) -> None:
    old, new = BROKEN[problem]
    text = GEMM.replace(old, new)
    assert text != GEMM
    if problem == "is not flat":
        text = text.replace("%c[256*p+16*l0+l1]", "%c[p, 16*l0+l1]")
    with pytest.raises(InternalError) as raised:
        verify_blocks(parse_kernel(text))
    assert problem in raised.value.why


def test_a_narrow_product_is_refused() -> None:
    text = GEMM.replace("[16,16]", "[8,16]").replace("%y: f32[8,16]", "%y: f32[16,16]")
    with pytest.raises(InternalError) as raised:
        verify_blocks(parse_kernel(text))
    assert "a side is below 16" in raised.value.why
