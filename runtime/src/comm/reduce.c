/* Reduces in rank order: f16 and bf16 in f32, averages of small integers in 64 bits. */
#include <string.h>

#include "comm.h"

typedef float f32;
typedef double f64;
typedef int8_t i8;
typedef uint8_t u8;
typedef int32_t i32;
typedef int64_t i64;

/* Defines a type that may be read at any address, whatever type the memory has elsewhere. */
#define LOOSE(type) typedef type __attribute__((aligned(1), may_alias)) loose_##type
typedef uint16_t u16;
LOOSE(f32);
LOOSE(f64);
LOOSE(i8);
LOOSE(u8);
LOOSE(i32);
LOOSE(i64);
LOOSE(u16);

typedef struct reduce_loops {
    void (*pair[TCC_COMM_TYPES][4])(void *out, const void *a, const void *b, int64_t count);
    void (*widen[TCC_COMM_TYPES])(void *out, const void *values, int64_t count);
    void (*narrow[TCC_COMM_TYPES])(void *out, const void *values, int64_t count);
    void (*divide[TCC_COMM_TYPES])(void *values, int64_t divisor, int64_t count);
} reduce_loops;

/* ---- conversions, without branches so that loops over them become vector code ---------------- */

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float widened_bf16(uint16_t half) { return float_of((uint32_t)half << 16); }

/* Rounds to nearest, ties to even.  NaNs stay NaNs and become quiet. */
static inline uint16_t narrowed_bf16(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

/* Widens a half.  Exponents move by 127 - 15.  A subnormal is a multiple of 2^-24 below 2^-14,
 * computed as the difference of two normal numbers, so that flushing of subnormals changes
 * nothing. */
static inline float widened_f16(uint16_t half) {
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t normal = bits + (112u << 23), special = bits + (224u << 23);
    uint32_t small = bits_of(float_of(bits + (113u << 23)) - float_of(113u << 23));
    uint32_t magnitude = bits < 1u << 23 ? small : bits >= 31u << 23 ? special : normal;
    return float_of(magnitude | sign);
}

/* Rounds to nearest, ties to even; from 65520 on the result is infinity.  Below 2^-14 a sum with
 * 0.5, whose last bit is 2^-24, does the rounding. */
static inline uint16_t narrowed_f16(float value) {
    uint32_t bits = bits_of(value) & 0x7fffffff, sign = bits_of(value) >> 16 & 0x8000;
    uint32_t normal = (bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t small = bits_of(float_of(bits) + 0.5f) - bits_of(0.5f);
    uint32_t nan = 0x7e00 | (bits >> 13 & 0x3ff);
    uint32_t magnitude = bits < 0x38800000 ? small : normal;
    magnitude = bits >= 0x477ff000 ? 0x7c00 : magnitude;
    magnitude = bits > 0x7f800000 ? nan : magnitude;
    return (uint16_t)(magnitude | sign);
}

#define LOOPS any_cpu
#define TARGET
#include "reduce_loops.h"

#if defined(__x86_64__)
#define LOOPS avx2
#define TARGET __attribute__((target("avx2")))
#include "reduce_loops.h"
#define LOOPS avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#include "reduce_loops.h"
#endif

static const reduce_loops *loops_of_this_cpu(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &avx512;
    if (__builtin_cpu_supports("avx2")) return &avx2;
#endif
    return &any_cpu;
}

/* ---- reductions ------------------------------------------------------------------------------ */

enum { BLOCK = 512 }; /* elements of accumulators, few enough for the first-level cache */

static tcc_comm_type accumulator_of(tcc_comm_type type, tcc_comm_reduction reduction) {
    if (type == TCC_COMM_F16 || type == TCC_COMM_BF16) return TCC_COMM_F32;
    bool narrow = type == TCC_COMM_I8 || type == TCC_COMM_U8 || type == TCC_COMM_I32;
    return narrow && reduction == TCC_COMM_AVG ? TCC_COMM_I64 : type;
}

typedef struct reduce_work {
    const reduce_loops *loops;
    tcc_comm_type type, accumulator;
    int step; /* operation of the loops; an average is first a sum */
    bool average;
    size_t bytes; /* bytes of an element */
} reduce_work;

/* `total` and `wide` have room for a block of accumulators. */
static void reduce_block(const reduce_work *work, void *out, const void *const *inputs, int32_t n,
                         int64_t begin, int64_t count, void *total, void *wide) {
    const reduce_loops *loops = work->loops;
    bool widens = work->accumulator != work->type;
    size_t offset = (size_t)begin * work->bytes;
    const void *first = (const char *)inputs[0] + offset;
    if (widens) loops->widen[work->type](total, first, count);
    for (int32_t i = 1; i < n; i++) {
        const void *next = (const char *)inputs[i] + offset;
        if (widens) loops->widen[work->type](wide, next, count);
        loops->pair[work->accumulator][work->step](total, i == 1 && !widens ? first : total,
                                                   widens ? wide : next, count);
    }
    if (work->average) loops->divide[work->accumulator](total, n, count);
    if (widens)
        loops->narrow[work->type]((char *)out + offset, total, count);
    else
        memcpy((char *)out + offset, total, (size_t)count * work->bytes);
}

void tcc_comm_reduce(void *out, const void *const *inputs, int32_t n, int64_t count,
                     tcc_comm_type type, tcc_comm_reduction reduction) {
    size_t bytes = tcc_comm_type_bytes(type);
    if (n == 1) {
        if (count > 0) memmove(out, inputs[0], (size_t)count * bytes);
        return;
    }
    const reduce_loops *loops = loops_of_this_cpu();
    reduce_work work = {loops,
                        type,
                        accumulator_of(type, reduction),
                        reduction == TCC_COMM_AVG ? TCC_COMM_SUM : (int)reduction,
                        reduction == TCC_COMM_AVG,
                        bytes};
    if (n == 2 && work.accumulator == type && !work.average) {
        loops->pair[type][work.step](out, inputs[0], inputs[1], count);
        return;
    }
    _Alignas(64) char total[BLOCK * 8], wide[BLOCK * 8];
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int64_t remaining = count - begin;
        reduce_block(&work, out, inputs, n, begin, remaining < BLOCK ? remaining : BLOCK, total, wide);
    }
}
