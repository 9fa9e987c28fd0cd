/* Defines loops over rows of costs, which the compiler vectorises. */
#ifndef TCC_PLAN_VECTORS_H
#define TCC_PLAN_VECTORS_H

#include <stdint.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* for all functions of the file; clang vectorises at every level */
#endif

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF /* GCC obeys by its -std option: sums are equal on all machines */
#endif

#define TCC_INFINITY __builtin_inf()

static inline double tcc_size(double value) { return value < 0 ? -value : value; }

static inline void tcc_fill(double *row, double value, int64_t count) {
    for (int64_t k = 0; k < count; k++) row[k] = value;
}

/* Adds row[k] += other[k]. */
static inline void tcc_add_row(double *restrict row, const double *restrict other, int64_t count) {
    for (int64_t k = 0; k < count; k++) row[k] += other[k];
}

/* Sets row[k] to the smaller of row[k] and other[k] + cost. */
static inline void tcc_least_row(double *restrict row, const double *restrict other, double cost,
                                 int64_t count) {
    for (int64_t k = 0; k < count; k++) {
        double sum = other[k] + cost;
        row[k] = sum < row[k] ? sum : row[k];
    }
}

#endif
