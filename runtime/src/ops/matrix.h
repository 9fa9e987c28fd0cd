/* Declares matrices for functions of linear algebra: copies in double, row by row. */
#ifndef TCC_OPS_MATRIX_H
#define TCC_OPS_MATRIX_H

#include "order.h"

/* A batch of matrices: the last two axes of a tensor. */
typedef struct tcc_matrices {
    const tcc_op_tensor *tensor;
    int64_t count, rows, columns;
} tcc_matrices;

/* Describes the matrices of an f32 or f64 tensor.  Fails with TCC_INTERNAL for another type. */
tcc_status tcc_matrices_of(const tcc_op_tensor *tensor, const char *op, tcc_matrices *out_matrices);

/* Fails with TCC_INTERNAL unless the tensor has element type `type`, the batch's first axes, and
 * `count` last axes with the sizes `dims`. */
tcc_status tcc_matrices_expect(const tcc_matrices *batch, const tcc_op_tensor *tensor,
                               tcc_dtype type, int32_t count, const int64_t *dims, const char *op);

/* Copy `count` elements of an f32 or f64 tensor from element `first` on to doubles, and back. */
void tcc_matrix_widen(const tcc_op_tensor *tensor, int64_t first, int64_t count, double *to);
void tcc_matrix_narrow(const double *from, int64_t count, const tcc_op_tensor *tensor,
                       int64_t first);

/* Computes the bytes of `copies` arrays of rows x columns doubles.  Fails where the number is too
 * large. */
tcc_status tcc_matrix_room(int64_t rows, int64_t columns, int64_t copies, size_t *out_bytes);

/* Eliminates a rows x columns matrix with partial pivoting.  Afterwards U lies on and above the
 * diagonal, and below it the factors of L, whose diagonal is one.  `pivots`, if not NULL, receives
 * for each step the row, counted from 1, that was exchanged with the step's row.  A column without
 * a pivot stays unchanged.  Returns true if the number of exchanges is odd. */
bool tcc_matrix_eliminate(double *a, int64_t rows, int64_t columns, int32_t *pivots, tcc_ending *ending);

/* Returns true if the run ends.  It looks only where rows of `n` elements make a step long
 * enough. */
bool tcc_matrix_ends(tcc_ending *ending, int64_t n);

#endif
