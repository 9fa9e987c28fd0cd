/* lu: inputs (x f32 or f64 [..., m, n]), outputs (lu [..., m, n], pivots i32 [..., min(m, n)]).
 * pivot_order: inputs (pivots i32 [..., k]), outputs (order i64 [..., m]): the rows as their
 *     exchanges leave them.
 * det: inputs (x f32 or f64 [..., n, n]), outputs (y [...]).
 * solve_triangular: inputs (a [..., n, n], b [..., n, k]), outputs (x [..., n, k]), ints (upper, unit).
 *     The other triangle of a is not read, nor with `unit` its diagonal.
 * cholesky: inputs (x [..., n, n]), outputs (l [..., n, n], info i32 [...]).  The upper triangle of x
 *     is not read, that of l is zero; info counts from 1 the first column whose leading part is not
 *     positive definite, and is 0 where there is none; l is whole up to that column.
 *
 * Everything is computed in double and rounded once. */
#include "matrix.h"

#include <math.h>
#include <string.h>

tcc_status tcc_matrices_of(const tcc_op_tensor *tensor, const char *op, tcc_matrices *out_matrices) {
    bool real = tensor->dtype.code == 2 && (tensor->dtype.bits == 32 || tensor->dtype.bits == 64);
    if (!real || tensor->ndim < 2) return tcc_fail(TCC_INTERNAL, "%s: operands do not fit", op);
    int64_t count = 1;
    for (int32_t dim = 0; dim < tensor->ndim - 2; dim++) count *= tensor->dims[dim];
    *out_matrices = (tcc_matrices){tensor, count, tensor->dims[tensor->ndim - 2],
                                   tensor->dims[tensor->ndim - 1]};
    return TCC_OK;
}

tcc_status tcc_matrices_expect(const tcc_matrices *batch, const tcc_op_tensor *tensor,
                               tcc_dtype type, int32_t count, const int64_t *dims, const char *op) {
    int32_t first = batch->tensor->ndim - 2;
    bool fits = memcmp(&tensor->dtype, &type, sizeof type) == 0 && tensor->ndim == first + count;
    for (int32_t dim = 0; fits && dim < tensor->ndim; dim++)
        fits = tensor->dims[dim] == (dim < first ? batch->tensor->dims[dim] : dims[dim - first]);
    return fits ? TCC_OK : tcc_fail(TCC_INTERNAL, "%s: operands do not fit", op);
}

void tcc_matrix_widen(const tcc_op_tensor *tensor, int64_t first, int64_t count, double *to) {
    const float *singles = tensor->data;
    const double *doubles = tensor->data;
    for (int64_t i = 0; i < count; i++)
        to[i] = tensor->dtype.bits == 64 ? doubles[first + i] : (double)singles[first + i];
}

void tcc_matrix_narrow(const double *from, int64_t count, const tcc_op_tensor *tensor,
                       int64_t first) {
    float *singles = tensor->data;
    double *doubles = tensor->data;
    for (int64_t i = 0; i < count; i++) {
        if (tensor->dtype.bits == 64)
            doubles[first + i] = from[i];
        else
            singles[first + i] = (float)from[i];
    }
}

tcc_status tcc_matrix_room(int64_t rows, int64_t columns, int64_t copies, size_t *out_bytes) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(rows, columns, &bytes) ||
        __builtin_mul_overflow(bytes, copies * (int64_t)sizeof(double), &bytes))
        return tcc_fail(TCC_OUT_OF_MEMORY, "a matrix has too many elements");
    *out_bytes = (size_t)bytes;
    return TCC_OK;
}

bool tcc_matrix_ends(tcc_ending *ending, int64_t n) { return n > 64 && tcc_run_ends(ending); }

/* ---- elimination ------------------------------------------------------------------------------- */

static const tcc_dtype i32 = {0, 32, 1};
static const tcc_dtype i64 = {0, 64, 1};

/* Returns the row at or below `first` whose element in `column` has the largest magnitude; NaN
 * counts as largest. */
static int64_t pivot_row(const double *a, int64_t rows, int64_t columns, int64_t first) {
    int64_t best = first;
    for (int64_t row = first + 1; row < rows && !isnan(a[best * columns + first]); row++)
        if (!(fabs(a[row * columns + first]) <= fabs(a[best * columns + first]))) best = row;
    return best;
}

static void swap_rows(double *a, int64_t columns, int64_t first, int64_t second) {
    for (int64_t i = 0; i < columns; i++) {
        double value = a[first * columns + i];
        a[first * columns + i] = a[second * columns + i];
        a[second * columns + i] = value;
    }
}

bool tcc_matrix_eliminate(double *a, int64_t rows, int64_t columns, int32_t *pivots, tcc_ending *ending) {
    bool odd = false;
    for (int64_t step = 0; step < rows && step < columns && !tcc_matrix_ends(ending, columns); step++) {
        int64_t best = pivot_row(a, rows, columns, step);
        if (pivots) pivots[step] = (int32_t)(best + 1);
        if (best != step) {
            swap_rows(a, columns, best, step);
            odd = !odd;
        }
        double pivot = a[step * columns + step];
        if (pivot == 0) continue;
        for (int64_t row = step + 1; row < rows; row++) {
            double factor = a[row * columns + step] /= pivot;
            for (int64_t i = step + 1; i < columns; i++)
                a[row * columns + i] -= factor * a[step * columns + i];
        }
    }
    return odd;
}

static void factor_part(void *context, int64_t begin, int64_t end, void *room) {
    const tcc_op_call *call = context;
    tcc_matrices x;
    (void)tcc_matrices_of(&call->inputs[0], "lu", &x);
    int64_t steps = x.rows < x.columns ? x.rows : x.columns, count = x.rows * x.columns;
    for (int64_t i = begin; i < end; i++) {
        tcc_matrix_widen(x.tensor, i * count, count, room);
        tcc_matrix_eliminate(room, x.rows, x.columns, (int32_t *)call->outputs[1].data + i * steps,
                             call->ending);
        tcc_matrix_narrow(room, count, &call->outputs[0], i * count);
    }
}

tcc_status tcc_op_lu(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 2, 0, 0, "lu"));
    tcc_matrices x;
    size_t room = 0;
    TCC_RETURN_IF_ERROR(tcc_matrices_of(&call->inputs[0], "lu", &x));
    int64_t steps = x.rows < x.columns ? x.rows : x.columns, dims[] = {x.rows, x.columns};
    tcc_dtype type = x.tensor->dtype;
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&x, &call->outputs[0], type, 2, dims, "lu"));
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&x, &call->outputs[1], i32, 1, &steps, "lu"));
    if (x.rows > INT32_MAX) return tcc_fail(TCC_OUT_OF_MEMORY, "lu: too many rows");
    TCC_RETURN_IF_ERROR(tcc_matrix_room(x.rows, x.columns, 1, &room));
    return tcc_op_parallel(call, factor_part, call, x.count, room);
}

tcc_status tcc_op_pivot_order(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 1, 0, 0, "pivot_order"));
    const tcc_op_tensor *pivots = &call->inputs[0], *order = &call->outputs[0];
    bool fits = pivots->ndim >= 1 && order->ndim == pivots->ndim &&
                memcmp(&pivots->dtype, &i32, sizeof i32) == 0 &&
                memcmp(&order->dtype, &i64, sizeof i64) == 0;
    for (int32_t dim = 0; fits && dim < order->ndim - 1; dim++)
        fits = pivots->dims[dim] == order->dims[dim];
    if (!fits) return tcc_fail(TCC_INTERNAL, "pivot_order: operands do not fit");
    int64_t steps = pivots->dims[pivots->ndim - 1], rows = order->dims[order->ndim - 1];
    if (steps > rows) return tcc_fail(TCC_INTERNAL, "pivot_order: operands do not fit");
    for (int64_t first = 0; rows && first < order->count; first += rows) {
        int64_t *places = (int64_t *)order->data + first;
        const int32_t *exchanged = (const int32_t *)pivots->data + first / rows * steps;
        for (int64_t row = 0; row < rows; row++) places[row] = row;
        for (int64_t step = 0; step < steps; step++) {
            int64_t other = (int64_t)exchanged[step] - 1, place = places[step];
            if (other < 0 || other >= rows)
                return tcc_fail(TCC_INVALID_ARGUMENT, "pivot %lld is outside the %lld rows",
                                (long long)other + 1, (long long)rows);
            places[step] = places[other];
            places[other] = place;
        }
    }
    return TCC_OK;
}

/* Returns the product of the pivots.  It keeps mantissa and exponent apart, so that only a result
 * outside the type overflows. */
static double determinant(double *a, int64_t n, tcc_ending *ending) {
    double mantissa = tcc_matrix_eliminate(a, n, n, NULL, ending) ? -1 : 1;
    int64_t exponent = 0;
    for (int64_t step = 0; step < n; step++) {
        double pivot = a[step * n + step];
        if (pivot == 0) return 0;
        int of_pivot = 0, of_product = 0;
        pivot = frexp(pivot, &of_pivot);
        mantissa = frexp(mantissa * pivot, &of_product);
        /* frexp leaves the exponent unspecified for infinity and NaN */
        if (!isfinite(mantissa)) of_pivot = of_product = 0;
        exponent += of_pivot + of_product;
    }
    exponent = exponent > 4096 ? 4096 : exponent < -4096 ? -4096 : exponent;
    return ldexp(mantissa, (int)exponent);
}

static void determinant_part(void *context, int64_t begin, int64_t end, void *room) {
    const tcc_op_call *call = context;
    tcc_matrices x;
    (void)tcc_matrices_of(&call->inputs[0], "det", &x);
    int64_t count = x.rows * x.rows;
    for (int64_t i = begin; i < end; i++) {
        tcc_matrix_widen(x.tensor, i * count, count, room);
        double value = determinant(room, x.rows, call->ending);
        tcc_matrix_narrow(&value, 1, &call->outputs[0], i);
    }
}

tcc_status tcc_op_det(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 1, 0, 0, "det"));
    tcc_matrices x;
    size_t room = 0;
    TCC_RETURN_IF_ERROR(tcc_matrices_of(&call->inputs[0], "det", &x));
    tcc_dtype type = x.tensor->dtype;
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&x, &call->outputs[0], type, 0, NULL, "det"));
    if (x.rows != x.columns) return tcc_fail(TCC_INTERNAL, "det: operands do not fit");
    TCC_RETURN_IF_ERROR(tcc_matrix_room(x.rows, x.rows, 1, &room));
    return tcc_op_parallel(call, determinant_part, call, x.count, room);
}

/* ---- triangles --------------------------------------------------------------------------------- */

/* Solves for one more row of x: subtracts from b's row the contributions of the rows [first, end)
 * of x. */
static void solve_row(const double *a, double *b, int64_t n, int64_t columns, int64_t row,
                      int64_t first, int64_t end, bool unit) {
    for (int64_t other = first; other < end; other++)
        for (int64_t i = 0; i < columns; i++)
            b[row * columns + i] -= a[row * n + other] * b[other * columns + i];
    if (!unit)
        for (int64_t i = 0; i < columns; i++) b[row * columns + i] /= a[row * n + row];
}

static void triangle_part(void *context, int64_t begin, int64_t end, void *room) {
    const tcc_op_call *call = context;
    const tcc_op_tensor *triangle = &call->inputs[1];
    int64_t n = triangle->dims[triangle->ndim - 2], columns = triangle->dims[triangle->ndim - 1];
    bool upper = call->ints[0], unit = call->ints[1];
    double *a = room, *b = a + n * n;
    for (int64_t i = begin; i < end; i++) {
        tcc_matrix_widen(&call->inputs[0], i * n * n, n * n, a);
        tcc_matrix_widen(triangle, i * n * columns, n * columns, b);
        for (int64_t step = 0; step < n && !tcc_matrix_ends(call->ending, n); step++) {
            int64_t row = upper ? n - 1 - step : step;
            solve_row(a, b, n, columns, row, upper ? row + 1 : 0, upper ? n : row, unit);
        }
        tcc_matrix_narrow(b, n * columns, &call->outputs[0], i * n * columns);
    }
}

tcc_status tcc_op_solve_triangular(tcc_op_call *call) {
    const char *op = "solve_triangular";
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 2, 0, op));
    tcc_matrices a, b;
    size_t room = 0, right = 0;
    TCC_RETURN_IF_ERROR(tcc_matrices_of(&call->inputs[0], op, &a));
    TCC_RETURN_IF_ERROR(tcc_matrices_of(&call->inputs[1], op, &b));
    int64_t square[] = {b.rows, b.rows}, dims[] = {b.rows, b.columns};
    tcc_dtype type = b.tensor->dtype;
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&b, a.tensor, type, 2, square, op));
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&b, &call->outputs[0], type, 2, dims, op));
    TCC_RETURN_IF_ERROR(tcc_matrix_room(b.rows, b.rows, 1, &room));
    TCC_RETURN_IF_ERROR(tcc_matrix_room(b.rows, b.columns, 1, &right));
    return tcc_op_parallel(call, triangle_part, call, b.count, room + right);
}

/* Replaces the lower triangle by the lower factor, and the part above by zeros. */
static int32_t cholesky(double *a, int64_t n, tcc_ending *ending) {
    int32_t failed = 0;
    for (int64_t column = 0; column < n && !tcc_matrix_ends(ending, n); column++) {
        for (int64_t row = 0; row < column; row++) a[row * n + column] = 0;
        if (failed) continue;
        for (int64_t row = column; row < n; row++)
            for (int64_t i = 0; i < column; i++)
                a[row * n + column] -= a[row * n + i] * a[column * n + i];
        double pivot = a[column * n + column];
        if (!(pivot > 0)) {
            failed = (int32_t)(column + 1);
            continue;
        }
        a[column * n + column] = sqrt(pivot);
        for (int64_t row = column + 1; row < n; row++) a[row * n + column] /= sqrt(pivot);
    }
    return failed;
}

static void cholesky_part(void *context, int64_t begin, int64_t end, void *room) {
    const tcc_op_call *call = context;
    const tcc_op_tensor *x = &call->inputs[0];
    int64_t n = x->dims[x->ndim - 1];
    for (int64_t i = begin; i < end; i++) {
        tcc_matrix_widen(x, i * n * n, n * n, room);
        ((int32_t *)call->outputs[1].data)[i] = cholesky(room, n, call->ending);
        tcc_matrix_narrow(room, n * n, &call->outputs[0], i * n * n);
    }
}

tcc_status tcc_op_cholesky(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 2, 0, 0, "cholesky"));
    tcc_matrices x;
    size_t room = 0;
    TCC_RETURN_IF_ERROR(tcc_matrices_of(&call->inputs[0], "cholesky", &x));
    int64_t square[] = {x.rows, x.rows};
    tcc_dtype type = x.tensor->dtype;
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&x, x.tensor, type, 2, square, "cholesky"));
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&x, &call->outputs[0], type, 2, square, "cholesky"));
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&x, &call->outputs[1], i32, 0, NULL, "cholesky"));
    TCC_RETURN_IF_ERROR(tcc_matrix_room(x.rows, x.rows, 1, &room));
    return tcc_op_parallel(call, cholesky_part, call, x.count, room);
}
