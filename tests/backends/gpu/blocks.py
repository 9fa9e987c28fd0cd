"""Hand-written tile kernels, in the text of tile kernels."""

from __future__ import annotations

from types import MappingProxyType

TEXTS = MappingProxyType(
    {
        "pointwise": """
            kernel() parallel(m: 0..3) {
              input %x : f32[40] align 64
              input %y : f32[40] align 4
              output %z : f32[40] align 64
              %a: f32[16] = load %x[16*m+l0] where 0 <= 16*m+l0 < 40
              %b: f32[16] = load %y[16*m+l0] where 0 <= 16*m+l0 < 40
              %c: f32[16] = compute(%a, %b) mul(exp(arg(0):f32), add(arg(1):f32, 0.5:f32))
              store %c to %z[16*m+l0] where 0 <= 16*m+l0 < 40
            }""",
        "transpose": """
            kernel() parallel(m: 0..2, n: 0..3) {
              input %x : f32[20,40] align 64
              output %z : f32[40,20] align 64
              %a: f32[16,16] = load %x[16*m+l0, 16*n+l1]
                where 0 <= 16*m+l0 < 20, 0 <= 16*n+l1 < 40
              %b: f32[16,16] = relayout %a order (1, 0)
              store %b to %z[16*n+l0, 16*m+l1] where 0 <= 16*n+l0 < 40, 0 <= 16*m+l1 < 20
            }""",
        "softmax": """
            kernel() parallel(m: 0..5) {
              input %x : f32[5,24] align 64
              output %z : f32[5,24] align 64
              %a: f32[1,32] = load %x[m+l0, l1] where 0 <= l1 < 24 fill -inf
              %top: f32[1,1] = reduce max(%a) over (1)
              %e: f32[1,32] = compute(%a, %top) exp(sub(arg(0):f32, arg(1):f32))
              %sum: f32[1,1] = reduce sum(%e) over (1)
              %y: f32[1,32] = compute(%e, %sum) div(arg(0):f32, arg(1):f32)
              store %y to %z[m+l0, l1] where 0 <= l1 < 24
            }""",
        "matmul": """
            kernel() parallel(m: 0..2, n: 0..2) {
              input %a : f32[24,64] align 64
              input %b : f32[64,32] align 64
              input %bias : f32[32] align 64
              output %c : f32[24,32] align 64
              %zero: f32[16,16] = compute() 0.0:f32
              %sum: f32[16,16] = for k: 0..64 in 0..64 step 16 carry (%acc: f32[16,16] = %zero) {
                %x: f32[16,16] = load %a[16*m+l0, k+l1] where 0 <= 16*m+l0 < 24
                %y: f32[16,16] = load %b[k+l0, 16*n+l1]
                %d: f32[16,16] = contract %x[m,k] * %y[k,n] + %acc[m,n]
                yield %d
              }
              %p: f32[1,16] = load %bias[16*n+l1]
              %r: f32[16,16] = compute(%sum, %p) max(add(arg(0):f32, arg(1):f32), 0.0:f32)
              store %r to %c[16*m+l0, 16*n+l1] where 0 <= 16*m+l0 < 24
            }""",
        "half_matmul": """
            kernel() parallel(h: 0..2) {
              input %a : bf16[2,16,32] align 64
              input %b : bf16[2,16,32] align 64
              output %c : bf16[2,16,16] align 64
              %x: bf16[1,16,32] = load %a[h+l0, l1, l2]
              %y: bf16[1,32,16] = load %b[h+l0, l2, l1]
              %zero: f32[1,16,16] = compute() 0.0:f32
              %d: f32[1,16,16] = contract %x[b,m,k] * %y[b,k,n] + %zero[b,m,n]
              %r: bf16[1,16,16] = compute(%d) cast(tanh(arg(0):f32), bf16)
              store %r to %c[h+l0, l1, l2]
            }""",
        "attention": """
            kernel() parallel(h: 0..2, i: 0..2) {
              input %q : f32[2,32,16] align 64
              input %k : f32[2,48,16] align 64
              input %v : f32[2,48,16] align 64
              output %o : f32[2,32,16] align 64
              %rows: f32[16,16] = load %q[h, 16*i+l0, l1]
              %low: f32[16,1] = compute() -inf:f32
              %none: f32[16,1] = compute() 0.0:f32
              %zero: f32[16,16] = compute() 0.0:f32
              %t3: f32[16,1], %s3: f32[16,1], %a3: f32[16,16] = for j: 0..48 in 0..48 step 16
                  carry (%t: f32[16,1] = %low, %s: f32[16,1] = %none, %a: f32[16,16] = %zero) {
                %keys: f32[16,16] = load %k[h, j+l1, l0]
                %values: f32[16,16] = load %v[h, j+l0, l1]
                %start: f32[16,16] = compute() 0.0:f32
                %scores: f32[16,16] = contract %rows[i,d] * %keys[d,j] + %start[i,j]
                %largest: f32[16,1] = reduce max(%scores) over (1)
                %t2: f32[16,1] = compute(%t, %largest) max(arg(0):f32, arg(1):f32)
                %shrink: f32[16,1] = compute(%t, %t2) exp(sub(arg(0):f32, arg(1):f32))
                %w: f32[16,16] = compute(%scores, %t2) exp(sub(arg(0):f32, arg(1):f32))
                %sums: f32[16,1] = reduce sum(%w) over (1)
                %s2: f32[16,1] = compute(%s, %shrink, %sums)
                  add(mul(arg(0):f32, arg(1):f32), arg(2):f32)
                %faded: f32[16,16] = compute(%a, %shrink) mul(arg(0):f32, arg(1):f32)
                %a2: f32[16,16] = contract %w[i,j] * %values[j,d] + %faded[i,d]
                yield %t2, %s2, %a2
              }
              %y: f32[16,16] = compute(%a3, %s3) div(arg(0):f32, arg(1):f32)
              store %y to %o[h, 16*i+l0, l1]
            }""",
        "argmax": """
            kernel() parallel(m: 0..3) {
              input %x : f32[3,13] align 64
              output %z : i64[3] align 64
              %a: f32[1,16] = load %x[m+l0, l1] where 0 <= l1 < 13 fill -inf
              %at: i64[1,16] = compute() index(l1):i64
              %v: f32[1,1], %p: i64[1,1] = reduce argmax(%a, %at) over (1)
              store %p to %z[m]
            }""",
        "gather": """
            kernel() parallel(m: 0..4) {
              input %table : f32[10,8] align 64
              input %ids : i64[4] align 64
              output %z : f32[4,8] align 64
              %id: i64[1,1] = load %ids[m+l0]
              %row: f32[1,8] = load %table[t, l1 | t: 0..10 = %id] where 0 <= t < 10 fill 7.0
              store %row to %z[m+l0, l1]
            }""",
        "dynamic": """
            size n in [1,4096]
            kernel(n) parallel(u: 0..(n+7)//8) {
              input %x : f32[n,6] align 64
              output %z : f32[n] align 64
              %zero: f32[8,1] = compute() 0.0:f32
              %s: f32[8,1] = for k: 0..8 in 0..8 step 4 carry (%c: f32[8,1] = %zero) {
                %a: f32[8,4] = load %x[8*u+l0, k+l1] where 0 <= 8*u+l0 < n, 0 <= k+l1 < 6
                %r: f32[8,1] = reduce sum(%a) over (1)
                %d: f32[8,1] = compute(%c, %r) add(arg(0):f32, arg(1):f32)
                yield %d
              }
              store %s to %z[8*u+l0] where 0 <= 8*u+l0 < n
            }""",
    }
)

BIG_MATMUL = """
    kernel() parallel(m: 0..4, n: 0..4) {
      input %a : bf16[512,512] align 64
      input %b : bf16[512,512] align 64
      output %c : f32[512,512] align 64
      %zero: f32[128,128] = compute() 0.0:f32
      %sum: f32[128,128] = for k: 0..512 in 0..512 step 64 carry (%acc: f32[128,128] = %zero) {
        %x: bf16[128,64] = load %a[128*m+l0, k+l1]
        %y: bf16[64,128] = load %b[k+l0, 128*n+l1]
        %d: f32[128,128] = contract %x[m,k] * %y[k,n] + %acc[m,n]
        yield %d
      }
      store %sum to %c[128*m+l0, 128*n+l1]
    }"""
