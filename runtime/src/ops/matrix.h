/* Matrices as functions of linear algebra see them: copies in double, row by row. */
#ifndef TCC_OPS_MATRIX_H
#define TCC_OPS_MATRIX_H

#include "order.h"

/* A batch of matrices: the last two axes of a tensor. */
typedef struct tcc_matrices {
    const tcc_op_tensor *tensor;
    int64_t count, rows, columns;
} tcc_matrices;

/* The matrices of an f32 or f64 tensor; fails with TCC_INTERNAL for another. */
tcc_status tcc_matrices_of(const tcc_op_tensor *tensor, const char *op, tcc_matrices *out_matrices);

/* Fails with TCC_INTERNAL unless the tensor's elements have `type`'s type, its first axes are those
 * before the matrices and its last `count` ones are `dims`. */
tcc_status tcc_matrices_expect(const tcc_matrices *batch, const tcc_op_tensor *tensor,
                               tcc_dtype type, int32_t count, const int64_t *dims, const char *op);

/* Copies `count` elements of an f32 or f64 tensor from `first` on, and back. */
void tcc_matrix_widen(const tcc_op_tensor *tensor, int64_t first, int64_t count, double *to);
void tcc_matrix_narrow(const double *from, int64_t count, const tcc_op_tensor *tensor,
                       int64_t first);

/* Bytes of `count` doubles; fails where there cannot be as many. */
tcc_status tcc_matrix_room(int64_t rows, int64_t columns, int64_t copies, size_t *out_bytes);

/* Elimination with partial pivoting of a rows x columns matrix: afterwards U lies on and above the
 * diagonal, the factors of L, whose diagonal is one, below.  `pivots`, if given, gets for each step
 * the row, counted from 1, that changed places with that of the step.  A column without a pivot is
 * left as it is.  Returns whether an odd number of rows changed places. */
bool tcc_matrix_eliminate(double *a, int64_t rows, int64_t columns, int32_t *pivots, tcc_ending *ending);

/* Whether the run ends, before a step of a matrix with rows of `n` elements that are worth a look. */
bool tcc_matrix_ends(tcc_ending *ending, int64_t n);

#endif
