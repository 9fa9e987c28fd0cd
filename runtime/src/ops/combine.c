/* Combines rows of updates into a target, for all scatter ops. */
#include "combine.h"

#include <math.h>
#include <string.h>

enum {
    AHEAD = 512,      /* bytes of updates that are prefetched at a time; the prefetch runs twice as
                         far ahead */
    MOST_FETCHED = 4, /* updates in memory for each update of this unit, at most, for prefetching
                         the whole range */
    LONG = 1 << 16,   /* bytes of updates between two checks whether the run ends */
};

/* ---- half precision: no compiler support is taken for granted --------------------------------- */

static float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static float from_half(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = (uint32_t)(bits & 0x7FFF) << 13;
    if (magnitude >= 0x0F800000) return as_float(sign | magnitude | 0x7F800000);
    return as_float(sign | 0x3F800000) * (as_float(magnitude) * 0x1p112f);
}

/* Rounds to nearest, ties to even. */
static uint16_t to_half(float value) {
    uint32_t bits, sign;
    memcpy(&bits, &value, 4);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return 0x7E00;
    if (bits >= 0x477FF000) return (uint16_t)(sign | 0x7C00);
    if (bits < 0x38800000) { /* below 2**-14, one half has the same unit in the last place as halves
                                there */
        value = fabsf(value) + 0.5f;
        memcpy(&bits, &value, 4);
        return (uint16_t)(sign | (bits & 0xFFFF));
    }
    return (uint16_t)(sign | (bits - 0x38000000 + 0xFFF + (bits >> 13 & 1)) >> 13);
}

static uint16_t to_bfloat(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return isnan(value) ? 0x7FC0 : (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* ---- one element ---------------------------------------------------------------------------------- */

/* Takes the first NaN, and of equal values the first. */
#define LARGER(a, b) (isnan(b) ? (isnan(a) ? a : b) : b > a ? b : a)
#define SMALLER(a, b) (isnan(b) ? (isnan(a) ? a : b) : b < a ? b : a)

static double combine_floats(int64_t reduction, double a, double b) {
    if (reduction == ADD) return a + b;
    if (reduction == MUL) return a * b;
    return reduction == MAX ? LARGER(a, b) : SMALLER(a, b);
}

SMALL double tcc_load_float(tcc_dtype dtype, const void *at) {
    uint16_t half;
    if (dtype.bits == 64) return *(const double *)at;
    if (dtype.bits == 32) return *(const float *)at;
    memcpy(&half, at, 2);
    return dtype.code == 4 ? as_float((uint32_t)half << 16) : from_half(half);
}

/* Rounds a sum or product of two floats once: a double holds more than twice the bits of every
 * narrower type. */
SMALL void tcc_store_float(tcc_dtype dtype, void *at, double value) {
    float single = (float)value;
    uint16_t half = 0;
    if (dtype.bits == 16) {
        half = dtype.code == 4 ? to_bfloat(single) : to_half(single);
        memcpy(at, &half, 2);
    } else if (dtype.bits == 64) {
        memcpy(at, &value, 8);
    } else {
        memcpy(at, &single, 4);
    }
}

static uint64_t load_word(uint32_t bits, const void *at) {
    return bits == 64   ? *(const uint64_t *)at
           : bits == 32 ? *(const uint32_t *)at
           : bits == 16 ? *(const uint16_t *)at
                        : *(const uint8_t *)at;
}

static void store_word(uint32_t bits, void *at, uint64_t value) {
    if (bits == 64)
        *(uint64_t *)at = value;
    else if (bits == 32)
        *(uint32_t *)at = (uint32_t)value;
    else if (bits == 16)
        *(uint16_t *)at = (uint16_t)value;
    else
        *(uint8_t *)at = (uint8_t)value;
}

/* Combines two integers of the type's bits.  Arithmetic wraps, as in the type itself. */
static uint64_t combine_words(tcc_dtype dtype, int64_t reduction, uint64_t a, uint64_t b) {
    if (reduction == ADD) return dtype.code == 6 ? (a | b) : a + b;
    if (reduction == MUL) return a * b;
    /* with the sign bit exchanged, the order of signed integers is that of unsigned ones */
    uint64_t sign = dtype.code == 0 ? UINT64_C(1) << (dtype.bits - 1) : 0;
    return ((a ^ sign) > (b ^ sign)) == (reduction == MAX) ? a : b;
}

typedef float floats __attribute__((vector_size(16)));
typedef double doubles __attribute__((vector_size(16)));
typedef int32_t words __attribute__((vector_size(16)));

/* Combines the first `count` elements of a row one by one, for any type. */
static SMALL void combine_row(const tcc_scatter *s, char *target, const char *from, int64_t count) {
    tcc_dtype dtype = s->call->inputs[2].dtype, wide = s->dtype;
    bool floating = dtype.code == 2 || dtype.code == 4;
    for (int64_t i = 0; i < count; i++, target += wide.bits / 8, from += dtype.bits / 8) {
        if (floating) {
            double a = tcc_load_float(wide, target), b = tcc_load_float(dtype, from);
            tcc_store_float(wide, target, combine_floats(s->reduction, a, b));
        } else {
            uint64_t a = load_word(dtype.bits, target), b = load_word(dtype.bits, from);
            store_word(dtype.bits, target, combine_words(dtype, s->reduction, a, b));
        }
    }
}

/* Combines rows `n` to `end - 1` of elements with a C type.  `ONE` combines a and b.  `WIDE`
 * combines vectors of the first `most` elements; where b has a NaN among them, they are combined
 * again one by one. */
#define COMBINE_ROWS(TYPE, VECTOR, most, WIDE, ONE)                                                \
    do {                                                                                           \
        TYPE *target = (TYPE *)(void *)s->target;                                                  \
        const TYPE *from = (const void *)s->from;                                                   \
        for (int64_t row = n; (most) && row < end; row++) {                                        \
            TYPE *y = target + rows->target[row];                                                  \
            const TYPE *u = from + rows->update[row];                                              \
            words nan = {0};                                                                       \
            for (int64_t i = 0; i < (most); i += 16 / (int64_t)sizeof(TYPE)) {                     \
                VECTOR a, b;                                                                       \
                memcpy(&a, y + i, sizeof a);                                                       \
                memcpy(&b, u + i, sizeof b);                                                       \
                a = WIDE;                                                                          \
                memcpy(y + i, &a, sizeof a);                                                       \
            }                                                                                      \
            if (nan[0] | nan[1] | nan[2] | nan[3])                                                 \
                combine_row(s, (char *)y, (const char *)u, most);                                  \
        }                                                                                          \
        for (; (most) < width && n < end; n++) {                                                   \
            TYPE *y = target + rows->target[n];                                                    \
            const TYPE *u = from + rows->update[n];                                                \
            int64_t i = most;                                                                      \
            do {                                                                                   \
                TYPE a = y[i], b = u[i];                                                           \
                y[i] = ONE;                                                                        \
            } while (++i < width);                                                                 \
        }                                                                                          \
    } while (0)
#define COMBINE(TYPE, ONE) COMBINE_ROWS(TYPE, TYPE, 0, a, ONE)
#define COMBINE_FLOATS(WIDE, ONE) COMBINE_ROWS(float, floats, width & ~(int64_t)3, WIDE, ONE)

/* Compilers make one instruction of each function.  The result is b where either is NaN. */
static floats larger(floats a, floats b) {
    for (int i = 0; i < 4; i++) b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
}

static floats smaller(floats a, floats b) {
    for (int i = 0; i < 4; i++) b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
}

/* Combines rows `n` to `end - 1` of a batch, for frequent types.  Returns false for other types. */
static bool combine_fast(const tcc_scatter *s, const tcc_row_batch *rows, int64_t n, int64_t end) {
    tcc_dtype dtype = s->call->inputs[2].dtype;
    bool add = s->reduction == ADD;
    int64_t width = s->width;
    if (dtype.bits == 32 && dtype.code == 2) {
        if (add)
            COMBINE_FLOATS(a + b, a + b);
        else if (s->reduction == MUL)
            COMBINE_FLOATS(a * b, a * b);
        else if (s->reduction == MAX)
            COMBINE_FLOATS((nan |= b != b, larger(b, a)), LARGER(a, b));
        else
            COMBINE_FLOATS((nan |= b != b, smaller(b, a)), SMALLER(a, b));
    } else if (add && dtype.bits == 64 && dtype.code == 2) {
        COMBINE_ROWS(double, doubles, width & ~(int64_t)1, a + b, a + b);
    } else if (add && dtype.bits == 64) {
        COMBINE(uint64_t, a + b);
    } else if (add && dtype.bits == 32) {
        COMBINE(uint32_t, a + b);
    } else {
        return false;
    }
    return true;
}

/* Prefetches a range.  Without the empty asm statement compilers remove the call, because they see
 * no effect. */
static void fetch(const char *first, const char *behind) {
    for (; first < behind; first += 64) {
        __builtin_prefetch(first);
        __asm__ volatile("");
    }
}

/* Prefetches the updates of rows `first` to `end - 1` of a batch; `first` is at least 1.  If the
 * unit takes a large part of the updates, in order, it also prefetches those between, because
 * sequential reads are fastest. */
static APART void fetch_rows(const tcc_scatter *s, const tcc_row_batch *rows, int64_t first, int64_t end) {
    size_t element = s->call->inputs[2].dtype.bits / 8u;
    int64_t width = s->width, behind = rows->update[first - 1] + width;
    if (end > rows->count) end = rows->count;
    if (first >= end) return;
    int64_t last = rows->update[end - 1] + width;
    if (last >= behind && last - behind <= MOST_FETCHED * width * (end - first)) {
        fetch(s->from + (size_t)behind * element, s->from + (size_t)last * element);
        return;
    }
    for (; first < end; first++) {
        const char *u = s->from + (size_t)rows->update[first] * element;
        fetch(u, u + (size_t)width * element);
    }
}

APART void tcc_combine(const tcc_scatter *s, tcc_row_batch *rows) {
    size_t element = s->call->inputs[2].dtype.bits / 8u, step = s->dtype.bits / 8u;
    int64_t bytes = s->width * (int64_t)element;
    int64_t some = bytes < 16 ? BATCH : bytes < AHEAD ? AHEAD / bytes : 1;
    for (int64_t first = 0, end; first < rows->count; first = end) {
        if (bytes > LONG && tcc_run_ends(s->call->ending)) break;
        end = rows->count - first < some ? rows->count : first + some;
        if (some < BATCH) fetch_rows(s, rows, first + 2 * some, end + 2 * some);
        if (s->reduction != NONE && combine_fast(s, rows, first, end)) continue;
        for (int64_t n = first; n < end; n++) {
            char *target = s->target + (size_t)rows->target[n] * step;
            const char *from = s->from + (size_t)rows->update[n] * element;
            if (s->reduction != NONE)
                combine_row(s, target, from, s->width);
            else if (s->width == 1 && element == 4)
                memcpy(target, from, 4);
            else
                memcpy(target, from, (size_t)s->width * element);
        }
    }
    rows->count = 0;
}
