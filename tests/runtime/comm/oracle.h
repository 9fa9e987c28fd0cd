/* Computes values and reductions by scalar code that shares nothing with the library: floats in the
 * stated precision, one rank after another; integers in 128 bits. */
#ifndef ORACLE_H
#define ORACLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "tcc_comm.h"

typedef enum type { F16, BF16, F32, F64, I8, U8, I32, I64, TYPES } type;

static const tcc_dtype dtypes[TYPES] = {{2, 16, 1}, {4, 16, 1}, {2, 32, 1}, {2, 64, 1},
                                        {0, 8, 1},  {1, 8, 1},  {0, 32, 1}, {0, 64, 1}};
static const char *const type_names[TYPES] = {"f16", "bf16", "f32", "f64",
                                              "i8",  "u8",   "i32", "i64"};

static inline size_t width(type of) { return dtypes[of].bits / 8; }

static inline uint64_t scramble(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Returns the bits of an element.  Floats mostly have exponents near 0; now and then they have any
 * bits that are no NaN. */
static inline uint64_t element_bits(type of, uint64_t seed, int32_t rank, int64_t index) {
    uint64_t x = scramble(seed * 1000003 + (uint64_t)rank * 7919 + (uint64_t)index * 104729 + 1);
    bool wild = x % 61 == 0;
    x = scramble(x);
    switch (of) {
    case F16:
        if (!wild) x = (x & 0x83ff) | (13 + x % 5) << 10;
        return (x & 0x7c00) == 0x7c00 ? x & 0xfc00 : x & 0xffff;
    case BF16:
        if (!wild) x = (x & 0x807f) | (125 + x % 5) << 7;
        return (x & 0x7f80) == 0x7f80 ? x & 0xff80 : x & 0xffff;
    case F32:
        if (!wild) x = (x & 0x807fffff) | (124 + x % 7) << 23;
        return (x & 0x7f800000) == 0x7f800000 ? x & 0xff800000 : x & 0xffffffff;
    case F64:
        if (!wild) x = (x & UINT64_C(0x800fffffffffffff)) | (1020 + x % 7) << 52;
        if ((x >> 52 & 0x7ff) == 0x7ff) x &= UINT64_C(0xfff0000000000000);
        return x;
    default: return width(of) == 8 ? x : x & ((UINT64_C(1) << 8 * width(of)) - 1);
    }
}

static inline void fill(type of, uint64_t seed, int32_t rank, int64_t begin, int64_t count,
                        char *out) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = element_bits(of, seed, rank, begin + i);
        memcpy(out + (size_t)i * width(of), &bits, width(of));
    }
}

static inline double float_of(type of, uint64_t bits) {
    if (of == F64) {
        double value;
        memcpy(&value, &bits, 8);
        return value;
    }
    if (of == F16) {
        int exponent = (int)(bits >> 10 & 31);
        double fraction = (double)(bits & 1023);
        double size = exponent == 31 ? (fraction != 0 ? NAN : INFINITY)
                      : exponent     ? (1024 + fraction) * (double)(1 << exponent) * 0x1p-25
                                     : fraction * 0x1p-24;
        return bits & 0x8000 ? -size : size;
    }
    uint32_t word = (uint32_t)(of == BF16 ? bits << 16 : bits);
    float value;
    memcpy(&value, &word, 4);
    return value;
}

/* Returns the nearest f16 or bf16, ties to even.  It bisects all finite values in order of size,
 * then tries the neighbours. */
static inline uint64_t nearest(type of, float value) {
    uint64_t sign = signbit(value) ? 0x8000 : 0, top = of == F16 ? 0x7c00 : 0x7f80;
    if (isnan(value)) return sign | top | 1;
    double size = fabs((double)value);
    uint64_t low = 0, high = top; /* float_of(low) <= size */
    if (isinf(value)) return sign | top;
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        if (float_of(of, middle) <= size)
            low = middle;
        else
            high = middle;
    }
    /* above the largest value, the next step has the same size */
    double below = float_of(of, low), step = below - float_of(of, low - 1);
    double above = high == top ? below + step : float_of(of, high);
    if (size - below < above - size) return sign | low;
    if (size - below > above - size) return sign | high;
    return sign | (low & 1 ? high : low);
}

static inline uint64_t float_result(type of, tcc_comm_reduction by, const uint64_t *bits, int n) {
    bool wide = of == F64;
    volatile double total = float_of(of, bits[0]);
    for (int i = 1; i < n; i++) {
        double next = float_of(of, bits[i]), old = total;
        if (by == TCC_COMM_SUM || by == TCC_COMM_AVG)
            total = wide ? old + next : (float)old + (float)next;
        else if (by == TCC_COMM_PROD)
            total = wide ? old * next : (float)old * (float)next;
        else if (isnan(old) || isnan(next))
            total = NAN;
        else if (by == TCC_COMM_MIN)
            total = next < old ? next : old;
        else
            total = next > old ? next : old;
    }
    if (by == TCC_COMM_AVG && n > 1) total = wide ? total / n : (float)total / (float)n;
    if (of == F16 || of == BF16) return n == 1 ? bits[0] : nearest(of, (float)total);
    uint64_t result = 0;
    double value = total;
    float narrow = (float)value;
    memcpy(&result, wide ? (void *)&value : (void *)&narrow, wide ? 8 : 4);
    return result;
}

static inline __int128 integer_of(type of, uint64_t bits) {
    if (of == U8) return (uint8_t)bits;
    if (of == I8) return (int8_t)bits;
    return of == I32 ? (__int128)(int32_t)bits : (__int128)(int64_t)bits;
}

static inline uint64_t integer_result(type of, tcc_comm_reduction by, const uint64_t *bits, int n) {
    __int128 total = integer_of(of, bits[0]);
    for (int i = 1; i < n; i++) {
        __int128 next = integer_of(of, bits[i]);
        if (by == TCC_COMM_SUM || by == TCC_COMM_AVG)
            total += next;
        else if (by == TCC_COMM_PROD)
            total = integer_of(of, (uint64_t)total * (uint64_t)next);
        else if (by == TCC_COMM_MIN)
            total = next < total ? next : total;
        else
            total = next > total ? next : total;
    }
    if (by == TCC_COMM_AVG) total = (of == I64 ? (int64_t)total : total) / n;
    return width(of) == 8 ? (uint64_t)total
                          : (uint64_t)total & ((UINT64_C(1) << 8 * width(of)) - 1);
}

/* Reduces the elements `index` of `n` ranks' data with this seed. */
static inline uint64_t reduced(type of, tcc_comm_reduction by, uint64_t seed, int n,
                               int64_t index) {
    uint64_t bits[64] = {0};
    for (int i = 0; i < n; i++) bits[i] = element_bits(of, seed, i, index);
    return of <= F64 ? float_result(of, by, bits, n) : integer_result(of, by, bits, n);
}

/* Returns true for equal bits, or two NaNs. */
static inline bool agrees(type of, uint64_t a, uint64_t b) {
    return a == b || (of <= F64 && isnan(float_of(of, a)) && isnan(float_of(of, b)));
}

#endif
