"""Tile kernels for the corner cases of every statement."""

from __future__ import annotations

from types import MappingProxyType

CORNERS = MappingProxyType(
    {
        "branches": """
            size n in [1,100]
            kernel(n) parallel(m: 0..4) {
              input %x : f32[32] align 64
              output %z : f32[32] align 64
              if 8*m < n {
                for k: 0..8 in 0..8 step 4 {
                  %a: f32[4] = load %x[8*m+k+l0]
                  %b: f32[4] = compute(%a) neg(arg(0):f32)
                  store %b to %z[8*m+k+l0]
                }
              } else {
                %c: f32[1] = load %x[8*m+l0]
                %d: f32[8] = broadcast %c
                store %d to %z[8*m+l0]
              }
            }""",
        "bounded": """
            kernel() parallel(m: 0..6) {
              input %x : f32[40] align 64
              output %z : f32[24] align 64
              %a: f32[4] = compute() 0.0:f32
              %s: f32[4] = for k: 0..5 in max(0,(4*m-9)//8)..min(5,(3*m-2)//4) step 1
                carry (%c: f32[4] = %a) {
                %b: f32[8] = load %x[8*k+l0]
                %t: f32[1] = reduce sum(%b) over (0)
                %d: f32[4] = compute(%c, %t) arg(0):f32 + arg(1):f32
                yield %d
              }
              store %s to %z[4*m+l0]
            }""",
        "side_by_side": """
            kernel() parallel(u: 0..1) {
              input %x : f32[2,4,8] align 64
              output %z : f32[2,2] align 64
              %a: f32[2,4,8] = load %x[l0, l1, l2]
              %s: f32[2,1,1], %m: f32[2,1,1] = reduce sum_max(%a, %a) over (1, 2)
              store %s to %z[l0, 0]
              store %m to %z[l0, 1]
            }""",
        "bytes": """
            kernel() parallel(m: 0..3) {
              input %w : i8[3,10] align 64
              output %s : i8[3] align 64
              output %p : i8[3] align 64
              %c: i8[1,16] = load %w[m+l0, l1] where 0 <= l1 < 10
              %d: i8[1,16] = compute(%c) mul(arg(0):i8, 31:i8)
              %sum: i8[1,1] = reduce sum(%d) over (1)
              store %sum to %s[m]
              %top: i8[1,1] = reduce max(%d) over (1)
              store %top to %p[m]
            }""",
        "integers": """
            kernel() parallel(u: 0..1) {
              input %a : i8[32,16] align 64
              input %b : i8[16,32] align 64
              output %c : i32[16,16] align 64
              %x: i8[16,32] = load %a[l1, l0]
              %y: i8[32,16] = load %b[l1, l0]
              %zero: i32[16,16] = compute() 5:i32
              %d: i32[16,16] = contract %x[m,k] * %y[k,n] + %zero[m,n]
              store %d to %c[l1, l0]
            }""",
        "halves": """
            kernel() parallel(u: 0..1) {
              input %a : f16[16,16] align 64
              input %b : f16[16,16] align 64
              output %c : f16[16,16] align 64
              output %s : f16[16] align 64
              %x: f16[16,16] = load %a[l0, l1]
              %y: f16[16,16] = load %b[l0, l1]
              %zero: f16[16,16] = compute() 0.5:f16
              %d: f16[16,16] = contract %x[m,k] * %y[k,n] + %zero[m,n]
              store %d to %c[l0, l1]
              %sum: f16[16,1] = reduce sum(%x) over (1)
              %flat: f16[16] = relayout %sum order (1, 0)
              store %flat to %s[l0]
            }""",
        "scalars": """
            kernel() parallel(m: 0..3) {
              input %x : f32[3] align 64
              output %z : f32[3] align 64
              output %w : f32[3] align 64
              %a: f32[] = load %x[m]
              %b: f32[] = compute(%a) add(sqrt(abs(arg(0):f32)), index(m):f32)
              store %b to %z[m]
              %c: f32[1,1] = relayout %b order ()
              %d: f32[1,1] = compute(%c) mul(arg(0):f32, arg(0):f32)
              %e: f32[] = relayout %d order (0, 1)
              store %e to %w[m]
            }""",
        "window": """
            kernel() parallel(m: 0..2) {
              input %x : f32[20] align 64
              output %z : f32[2,16] align 64
              %a: f32[16] = load %x[(8*m+l0-9)//2+4] where 0 <= (8*m+l0-9)//2+4 < 7 fill -1.5
              %b: f32[16] = compute(%a) add(arg(0):f32, index((l0+3*m-5) % 7):f32)
              store %b to %z[m, l0]
            }""",
        "rounding": """
            kernel() parallel(u: 0..1) {
              input %x : bf16[64] align 64
              input %y : bf16[64] align 64
              output %z : bf16[64] align 64
              output %s : bf16[64] align 64
              %a: bf16[64] = load %x[l0]
              %b: bf16[64] = load %y[l0]
              %c: bf16[64] = compute(%a, %b)
                add(mul(arg(0):bf16, arg(1):bf16), select(lt(arg(0):bf16, 0.1:bf16), arg(1):bf16,
                1.0:bf16))
              store %c to %z[l0]
              %d: bf16[64] = compute() index(3*l0):bf16
              store %d to %s[l0]
            }""",
    }
)
