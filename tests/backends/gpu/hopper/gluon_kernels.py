"""Tile kernels that become Gluon, and tile kernels that must not."""

from __future__ import annotations

from types import MappingProxyType


def _product(
    m: int, n: int, k: int, *, a: str = "", b: str = "", sums: str = "", out: str = "bf16"
) -> str:
    """Returns c = a b in blocks of 128 x 128 x 16, with guards where sizes do not divide."""
    rows, columns = -(-m // 128), -(-n // 128)
    of_m = f"0 <= 128*m+l0 < {m}" if m % 128 else ""
    of_n = f"0 <= 128*n+l1 < {n}" if n % 128 else ""
    of_k0, of_k1 = (f"0 <= 16*k+{lane} < {k}" if k % 16 else "" for lane in ("l0", "l1"))

    def where(*guards: str) -> str:
        found = ", ".join(g for g in guards if g)
        return f" where {found}" if found else ""

    a = a or f"%a[{k}*(128*m+l0)+16*k+l1]{where(of_m, of_k1)}"
    b = b or f"%b[{n}*(16*k+l0)+128*n+l1]{where(of_k0, of_n)}"
    sums = sums or f"%y: {out}[128,128] = compute(%sum) cast(arg(0):f32, {out})"
    return f"""
        kernel() parallel(m: 0..{rows}, n: 0..{columns}) {{
          input %a : bf16[{m * k}] align 64
          input %b : bf16[{k * n}] align 64
          output %c : {out}[{m * n}] align 64
          %zero: f32[128,128] = compute() 0.0:f32
          %sum: f32[128,128] = for k: 0..{-(-k // 16)} in 0..{-(-k // 16)} step 1
              carry (%acc: f32[128,128] = %zero) {{
            %x: bf16[128,16] = load {a}
            %z: bf16[16,128] = load {b}
            %d: f32[128,128] = contract %x[m,k] * %z[k,n] + %acc[m,n]
            yield %d
          }}
          {sums}
          store %y to %c[{n}*(128*m+l0)+128*n+l1]{where(of_m, of_n)}
        }}"""


_EPILOGUE = """
    kernel() parallel(m: 0..2, n: 0..2) {
      input %a : bf16[12800] align 64
      input %b : bf16[8704] align 64
      input %bias : f32[136] align 4
      input %scale : f32[1] align 4
      input %full : bf16[27200] align 2
      output %c : f32[27200] align 64
      output %h : bf16[27200] align 64
      %zero: f32[128,128] = compute() 0.0:f32
      %sum: f32[128,128] = for k: 0..4 in 0..4 step 1 carry (%acc: f32[128,128] = %zero) {
        %x: bf16[128,16] = load %a[64*(128*m+l0)+16*k+l1] where 0 <= 128*m+l0 < 200
        %z: bf16[16,128] = load %b[136*(16*k+l0)+128*n+l1] where 0 <= 128*n+l1 < 136
        %d: f32[128,128] = contract %x[m,k] * %z[k,n] + %acc[m,n]
        yield %d
      }
      %p: f32[1,128] = load %bias[128*n+l1] where 0 <= 128*n+l1 < 136
      %s: f32[1,1] = load %scale[0]
      %r: bf16[128,128] = load %full[136*(128*m+l0)+128*n+l1]
        where 0 <= 128*m+l0 < 200, 0 <= 128*n+l1 < 136
      %y: f32[128,128] = compute(%sum, %p, %s, %r)
        add(max(mul(add(arg(0):f32, arg(1):f32), arg(2):f32), 0.0:f32), cast(arg(3):bf16, f32))
      store %y to %c[136*(128*m+l0)+128*n+l1] where 0 <= 128*m+l0 < 200, 0 <= 128*n+l1 < 136
      %e: bf16[128,128] = compute(%y) cast(exp(mul(arg(0):f32, -0.25:f32)), bf16)
      store %e to %h[136*(128*m+l0)+128*n+l1] where 0 <= 128*m+l0 < 200, 0 <= 128*n+l1 < 136
    }"""

_BATCHED = """
    kernel() parallel(h: 0..3, m: 0..2) {
      input %a : f16[36864] align 64
      input %b : f16[24576] align 64
      output %c : f16[73728] align 64
      %zero: f32[128,128] = compute() 0.0:f32
      %sum: f32[128,128] = for k: 0..4 in 0..4 step 1 carry (%acc: f32[128,128] = %zero) {
        %x: f16[128,16] = load %a[12288*h+64*(128*m+l0)+16*k+l1] where 0 <= 128*m+l0 < 192
        %z: f16[16,128] = load %b[8192*h+128*(16*k+l0)+l1]
        %d: f32[128,128] = contract %x[m,k] * %z[k,n] + %acc[m,n]
        yield %d
      }
      %y: f16[128,128] = compute(%sum) cast(arg(0):f32, f16)
      store %y to %c[24576*h+128*(128*m+l0)+l1] where 0 <= 128*m+l0 < 192
    }"""

TEXTS = MappingProxyType(
    {
        "plain": _product(256, 384, 64),
        "tails": _product(200, 136, 88),
        "turned": _product(
            256, 256, 64, a="%a[256*(16*k+l1)+128*m+l0]", b="%b[64*(128*n+l1)+16*k+l0]"
        ),
        "batched": _BATCHED,
        "epilogue": _EPILOGUE,
        "wide": _product(
            200, 136, 88, out="f32", sums="%y: f32[128,128] = compute(%sum) arg(0):f32"
        ),
    }
)  # fmt: skip

REFUSED = MappingProxyType(
    {
        "rows of an odd length": _product(200, 136, 84),
        "few steps": _product(256, 256, 48),
        "a step along rows": _product(256, 256, 64, a="%a[128*(64*m+l0)+32*k+2*l1]"),
        "a load filled with ones": _product(
            200, 136, 64, a="%a[64*(128*m+l0)+16*k+l1] where 0 <= 128*m+l0 < 200 fill 1.0"
        ),
        "rows that go around": _product(
            256, 256, 64, a="%a[64*((128*m+l0) % 200)+16*k+l1]"
        ),
        "sums turned around": _product(
            256, 256, 64, sums="%y: bf16[128,128] = relayout %w order (1, 0)"
        ).replace("%y: bf16[128,128] = relayout", "%w: bf16[128,128] = compute(%sum) "
                  "cast(arg(0):f32, bf16)\n          %y: bf16[128,128] = relayout"),
    }
)  # fmt: skip
