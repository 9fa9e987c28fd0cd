/* Declares what kernels need of a launch.  The table stands beside their code, so nobody who
 * changes a program can change it.  backends/artifact/kernel_needs.py writes it and documents its
 * contents. */
#ifndef TCC_NEEDS_H
#define TCC_NEEDS_H

#include "runtime.h"

/* Reads the table into `program` and checks every launch whose sizes no run changes.  Fails with
 * TCC_CORRUPT where a launch is wrong; the caller frees the program in that case too. */
TCC_RARE tcc_status tcc_needs_read(const uint8_t *table, const uint8_t *end, tcc_program *program);
/* Returns true if a launch of at least one unit fits its kernel.  Then `proof` receives the
 * launch's units, ints and the bytes of its buffers.  `values` has room for program->max_values
 * numbers. */
TCC_RARE bool tcc_needs_prove(const tcc_program *program, const tcc_code *launch, const int64_t *registers,
                     const tcc_span *spans, int64_t *values, int64_t *proof);

/* Computes `a op b`.  Returns false where the result overflows or the divisor is not positive. */
static inline bool tcc_compute(int64_t op, int64_t a, int64_t b, int64_t *out_value) {
    switch (op) {
    case TCC_INT_CONST: *out_value = a; return true;
    case TCC_INT_ADD: return !__builtin_add_overflow(a, b, out_value);
    case TCC_INT_SUB: return !__builtin_sub_overflow(a, b, out_value);
    case TCC_INT_MUL: return !__builtin_mul_overflow(a, b, out_value);
    case TCC_INT_MIN: *out_value = a < b ? a : b; return true;
    case TCC_INT_MAX: *out_value = a > b ? a : b; return true;
    default:
        if (b <= 0) return false;
        *out_value = op == TCC_INT_MOD ? a % b + (a % b < 0 ? b : 0) : a / b - (a % b < 0);
        return true;
    }
}

#endif
