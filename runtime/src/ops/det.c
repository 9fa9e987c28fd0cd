/* det: inputs (x f32 or f64 [..., n, n]), outputs (y [...]), both of one type.
 *
 * Elimination with partial pivoting in double; the product of the pivots is kept as mantissa and
 * exponent, so that only a result outside the type overflows. */
#include <math.h>
#include <string.h>

#include "order.h"

/* The row at or below `column` whose element there is largest; NaN counts as largest. */
static int64_t pivot_row(const double *a, int64_t n, int64_t column) {
    int64_t best = column;
    for (int64_t row = column + 1; row < n && !isnan(a[best * n + column]); row++)
        if (!(fabs(a[row * n + column]) <= fabs(a[best * n + column]))) best = row;
    return best;
}

static void swap_rows(double *a, int64_t n, int64_t first, int64_t second) {
    for (int64_t i = 0; i < n; i++) {
        double held = a[first * n + i];
        a[first * n + i] = a[second * n + i];
        a[second * n + i] = held;
    }
}

static void eliminate_below(double *a, int64_t n, int64_t column) {
    for (int64_t row = column + 1; row < n; row++) {
        double factor = a[row * n + column] / a[column * n + column];
        for (int64_t i = column + 1; i < n; i++) a[row * n + i] -= factor * a[column * n + i];
    }
}

/* The determinant of the n x n matrix `a`, which is overwritten. */
static double determinant(double *a, int64_t n) {
    double mantissa = 1;
    int64_t exponent = 0;
    for (int64_t column = 0; column < n; column++) {
        int64_t best = pivot_row(a, n, column);
        double pivot = a[best * n + column];
        if (pivot == 0) return 0;
        if (best != column) {
            swap_rows(a, n, best, column);
            mantissa = -mantissa;
        }
        int of_pivot = 0, of_product = 0;
        pivot = frexp(pivot, &of_pivot);
        mantissa = frexp(mantissa * pivot, &of_product);
        /* What frexp stores is unspecified for infinity and NaN. */
        if (!isfinite(mantissa)) of_pivot = of_product = 0;
        exponent += of_pivot + of_product;
        eliminate_below(a, n, column);
    }
    exponent = exponent > 4096 ? 4096 : exponent < -4096 ? -4096 : exponent;
    return ldexp(mantissa, (int)exponent);
}

static void widen(const tcc_op_tensor *x, int64_t first, double *to, int64_t count) {
    const float *singles = x->data;
    const double *doubles = x->data;
    for (int64_t i = 0; i < count; i++)
        to[i] = x->dtype.bits == 64 ? doubles[first + i] : (double)singles[first + i];
}

static bool fits(const tcc_op_tensor *x, const tcc_op_tensor *y) {
    bool types = x->dtype.code == 2 && (x->dtype.bits == 32 || x->dtype.bits == 64) &&
                 memcmp(&x->dtype, &y->dtype, sizeof x->dtype) == 0;
    if (!types || x->ndim < 2 || y->ndim != x->ndim - 2) return false;
    for (int32_t dim = 0; dim < y->ndim; dim++)
        if (x->dims[dim] != y->dims[dim]) return false;
    return x->dims[x->ndim - 1] == x->dims[x->ndim - 2];
}

tcc_status tcc_op_det(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 1, 0, 0, "det"));
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    if (!fits(x, y)) return tcc_fail(TCC_INTERNAL, "det: operands do not fit");
    int64_t n = x->dims[x->ndim - 1];
    if (y->count == 0) return TCC_OK;
    if (n * n > INT64_MAX / 8) return tcc_fail(TCC_OUT_OF_MEMORY, "det: too many elements");
    void *memory = NULL;
    TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, (size_t)(n * n) * sizeof(double), &memory));
    for (int64_t i = 0; i < y->count; i++) {
        widen(x, i * n * n, memory, n * n);
        double value = determinant(memory, n);
        if (y->dtype.bits == 64)
            ((double *)y->data)[i] = value;
        else
            ((float *)y->data)[i] = (float)value;
    }
    tcc_pool_give(call->pool, memory);
    return TCC_OK;
}
