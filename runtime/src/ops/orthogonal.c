/* qr: inputs (x f32 or f64 [..., m, n]), outputs (packed [..., m, n], tau [..., min(m, n)]).
 *     R lies on and above the diagonal; reflection i is 1 - tau[i] v v', where v is zero above row
 *     i, one there, and below it what column i of `packed` holds.
 * svd: inputs (x f32 or f64 [..., m, n]), outputs (u [..., m, k], s [..., k], vt [..., k, n]), k the
 *     smaller of m and n.  s falls; the largest element of each column of u is positive.
 *
 * Everything is computed in double and rounded once. */
#include <math.h>
#include <string.h>

#include "matrix.h"

static double largest(const double *values, int64_t count) {
    double maximum = 0;
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(values[i]) <= maximum)) maximum = fabs(values[i]);
    return maximum;
}

/* ---- reflections ------------------------------------------------------------------------------- */

/* Computes the reflection that clears column `step` below the diagonal, and applies it to the
 * columns behind. */
static double reflect(double *a, int64_t rows, int64_t columns, int64_t step) {
    double below = 0, scale = 0, head = a[step * columns + step];
    for (int64_t row = step + 1; row < rows; row++)
        if (!(fabs(a[row * columns + step]) <= scale)) scale = fabs(a[row * columns + step]);
    if (scale == 0) return 0;
    if (fabs(head) > scale) scale = fabs(head);
    for (int64_t row = step; row < rows; row++) {
        double part = a[row * columns + step] / scale;
        below += part * part;
    }
    double length = -copysign(scale * sqrt(below), head), tau = (length - head) / length;
    for (int64_t row = step + 1; row < rows; row++) a[row * columns + step] /= head - length;
    a[step * columns + step] = length;
    for (int64_t column = step + 1; column < columns; column++) {
        double along = a[step * columns + column];
        for (int64_t row = step + 1; row < rows; row++)
            along += a[row * columns + step] * a[row * columns + column];
        a[step * columns + column] -= tau * along;
        for (int64_t row = step + 1; row < rows; row++)
            a[row * columns + column] -= tau * along * a[row * columns + step];
    }
    return tau;
}

static void qr_part(void *context, int64_t begin, int64_t end, void *room) {
    const tcc_op_call *call = context;
    const tcc_op_tensor *x = &call->inputs[0];
    int64_t rows = x->dims[x->ndim - 2], columns = x->dims[x->ndim - 1], count = rows * columns;
    int64_t steps = rows < columns ? rows : columns;
    for (int64_t i = begin; i < end; i++) {
        tcc_matrix_widen(x, i * count, count, room);
        for (int64_t step = 0; step < steps && !tcc_matrix_ends(call->ending, rows); step++) {
            double tau = reflect(room, rows, columns, step);
            tcc_matrix_narrow(&tau, 1, &call->outputs[1], i * steps + step);
        }
        tcc_matrix_narrow(room, count, &call->outputs[0], i * count);
    }
}

tcc_status tcc_op_qr(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 2, 0, 0, "qr"));
    tcc_matrices x;
    size_t room = 0;
    TCC_RETURN_IF_ERROR(tcc_matrices_of(&call->inputs[0], "qr", &x));
    int64_t steps = x.rows < x.columns ? x.rows : x.columns, dims[] = {x.rows, x.columns};
    tcc_dtype type = x.tensor->dtype;
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&x, &call->outputs[0], type, 2, dims, "qr"));
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&x, &call->outputs[1], type, 1, &steps, "qr"));
    TCC_RETURN_IF_ERROR(tcc_matrix_room(x.rows, x.columns, 1, &room));
    return tcc_op_parallel(call, qr_part, call, x.count, room);
}

/* ---- singular values --------------------------------------------------------------------------- */

enum { SWEEPS = 60 }; /* ten suffice except for constructed counterexamples */
static const double tiny = 0x1p-52;

/* `count` vectors of `length` elements, one after another, and for each its coefficients as a
 * combination of the original vectors.  Both are rotated together until the vectors are orthogonal
 * (Hestenes). */
typedef struct turning {
    double *vectors, *combined;
    int64_t length, count;
    tcc_ending *ending;
} turning;

static double dot(const double *x, const double *y, int64_t length) {
    double total = 0;
    for (int64_t i = 0; i < length; i++) total += x[i] * y[i];
    return total;
}

static void rotate(double *x, double *y, int64_t length, double cosine, double sine) {
    for (int64_t i = 0; i < length; i++) {
        double left = x[i], right = y[i];
        x[i] = cosine * left - sine * right;
        y[i] = sine * left + cosine * right;
    }
}

/* Makes two vectors orthogonal.  Returns true if they were not. */
static bool turn_pair(const turning *t, int64_t first, int64_t second) {
    double *x = t->vectors + first * t->length, *y = t->vectors + second * t->length;
    double xx = dot(x, x, t->length), yy = dot(y, y, t->length), xy = dot(x, y, t->length);
    if (!(fabs(xy) > tiny * sqrt(xx) * sqrt(yy)) || !isfinite(xy)) return false;
    double zeta = (yy - xx) / (2 * xy);
    double tangent = copysign(1 / (fabs(zeta) + hypot(1, zeta)), zeta);
    double cosine = 1 / hypot(1, tangent), sine = cosine * tangent;
    rotate(x, y, t->length, cosine, sine);
    rotate(t->combined + first * t->count, t->combined + second * t->count, t->count, cosine, sine);
    return true;
}

/* Sorts vectors by falling length.  `lengths` receives the lengths. */
static void sort_vectors(const turning *t, double *lengths) {
    for (int64_t i = 0; i < t->count; i++) {
        const double *vector = t->vectors + i * t->length;
        lengths[i] = sqrt(dot(vector, vector, t->length));
    }
    for (int64_t place = 0; place < t->count; place++) {
        int64_t best = place;
        for (int64_t i = place + 1; i < t->count; i++)
            if (lengths[i] > lengths[best]) best = i;
        if (best == place) continue;
        double length = lengths[place];
        lengths[place] = lengths[best];
        lengths[best] = length;
        rotate(t->vectors + place * t->length, t->vectors + best * t->length, t->length, 0, -1);
        rotate(t->combined + place * t->count, t->combined + best * t->count, t->count, 0, -1);
    }
}

/* Makes vector `number`, which has no direction of its own, a unit vector orthogonal to the vectors
 * before it: the remainder of an axis after projection.  It takes the axis with the largest
 * remainder. */
static void fill_vector(const turning *t, int64_t number) {
    double *vector = t->vectors + number * t->length;
    int64_t best = 0;
    double smallest = INFINITY;
    for (int64_t axis = 0; axis < t->length; axis++) {
        double energy = 0;
        for (int64_t i = 0; i < number; i++)
            energy += t->vectors[i * t->length + axis] * t->vectors[i * t->length + axis];
        if (energy < smallest) smallest = energy, best = axis;
    }
    memset(vector, 0, (size_t)t->length * sizeof *vector);
    vector[best] = 1;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < number; i++) {
            const double *other = t->vectors + i * t->length;
            double along = dot(vector, other, t->length);
            for (int64_t k = 0; k < t->length; k++) vector[k] -= along * other[k];
        }
    double size = sqrt(dot(vector, vector, t->length));
    for (int64_t k = 0; k < t->length; k++) vector[k] /= size;
}

/* Turns the vectors into left singular vectors, and the combinations into right ones. */
static void decompose(const turning *t, double *lengths) {
    double scale = largest(t->vectors, t->length * t->count);
    int exponent = 0;
    if (scale > 0) (void)frexp(scale, &exponent);
    for (int64_t i = 0; i < t->length * t->count; i++)
        t->vectors[i] = ldexp(t->vectors[i], -exponent);
    memset(t->combined, 0, (size_t)(t->count * t->count) * sizeof *t->combined);
    for (int64_t i = 0; i < t->count; i++) t->combined[i * t->count + i] = 1;
    bool has_rotated = true;
    for (int sweep = 0; has_rotated && sweep < SWEEPS; sweep++) {
        has_rotated = false;
        for (int64_t first = 0; first < t->count && !tcc_matrix_ends(t->ending, t->length); first++)
            for (int64_t second = first + 1; second < t->count; second++)
                has_rotated |= turn_pair(t, first, second);
    }
    sort_vectors(t, lengths);
    double negligible = t->count ? (double)t->length * tiny * lengths[0] : 0;
    for (int64_t i = 0; i < t->count && !tcc_matrix_ends(t->ending, t->length); i++) {
        double *vector = t->vectors + i * t->length;
        if (lengths[i] <= negligible)
            fill_vector(t, i);
        else
            for (int64_t k = 0; k < t->length; k++) vector[k] /= lengths[i];
        lengths[i] = ldexp(lengths[i], exponent);
    }
}

/* Fills the result of matrices with infinities and NaN. */
static void undefine(const turning *t, double *lengths) {
    for (int64_t i = 0; i < t->count * t->length; i++) t->vectors[i] = NAN;
    for (int64_t i = 0; i < t->count * t->count; i++) t->combined[i] = NAN;
    for (int64_t i = 0; i < t->count; i++) lengths[i] = NAN;
}

/* Negates pairs of singular vectors so that the left one's largest element is positive. */
static void orient(double *left, int64_t rows, double *right, int64_t columns) {
    int64_t best = 0;
    for (int64_t i = 1; i < rows; i++)
        if (fabs(left[i]) > fabs(left[best])) best = i;
    if (rows == 0 || !(left[best] < 0)) return;
    for (int64_t i = 0; i < rows; i++) left[i] = -left[i];
    for (int64_t i = 0; i < columns; i++) right[i] = -right[i];
}

static void transpose(const double *from, int64_t rows, int64_t columns, double *to) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++)
            to[column * rows + row] = from[row * columns + column];
}

static void svd_part(void *context, int64_t begin, int64_t end, void *room) {
    const tcc_op_call *call = context;
    const tcc_op_tensor *x = &call->inputs[0];
    int64_t rows = x->dims[x->ndim - 2], columns = x->dims[x->ndim - 1], count = rows * columns;
    bool tall = rows >= columns;
    int64_t k = tall ? columns : rows;
    double *matrix = room, *lengths = matrix + count + count + k * k;
    turning t = {matrix + count, matrix + count + count, tall ? rows : columns, k,
                 call->ending};
    for (int64_t i = begin; i < end; i++) {
        tcc_matrix_widen(x, i * count, count, matrix);
        if (tall)
            transpose(matrix, rows, columns, t.vectors);
        else
            memcpy(t.vectors, matrix, (size_t)count * sizeof *matrix);
        if (isfinite(largest(matrix, count)))
            decompose(&t, lengths);
        else
            undefine(&t, lengths);
        double *left = tall ? t.vectors : t.combined, *right = tall ? t.combined : t.vectors;
        for (int64_t n = 0; n < k; n++)
            orient(left + n * rows, rows, right + n * columns, columns);
        transpose(left, k, rows, matrix);
        tcc_matrix_narrow(matrix, rows * k, &call->outputs[0], i * rows * k);
        tcc_matrix_narrow(lengths, k, &call->outputs[1], i * k);
        tcc_matrix_narrow(right, k * columns, &call->outputs[2], i * k * columns);
    }
}

tcc_status tcc_op_svd(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 3, 0, 0, "svd"));
    tcc_matrices x;
    size_t room = 0, square = 0;
    TCC_RETURN_IF_ERROR(tcc_matrices_of(&call->inputs[0], "svd", &x));
    int64_t k = x.rows < x.columns ? x.rows : x.columns;
    int64_t left[] = {x.rows, k}, right[] = {k, x.columns};
    tcc_dtype type = x.tensor->dtype;
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&x, &call->outputs[0], type, 2, left, "svd"));
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&x, &call->outputs[1], type, 1, &k, "svd"));
    TCC_RETURN_IF_ERROR(tcc_matrices_expect(&x, &call->outputs[2], type, 2, right, "svd"));
    TCC_RETURN_IF_ERROR(tcc_matrix_room(x.rows, x.columns, 2, &room));
    TCC_RETURN_IF_ERROR(tcc_matrix_room(k, k + 1, 1, &square));
    return tcc_op_parallel(call, svd_part, call, x.count, room + square);
}
