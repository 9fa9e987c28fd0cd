/* Defines the loops of reduce.c for one set of vector instructions. It is included with LOOPS, the
 * name of the table that it defines, and TARGET, the attribute that names the instructions.
 *
 * Pointers need no alignment, and an output may be the input at the same place. */

#define NAME(part) JOINED(part, LOOPS)
#define JOINED(part, set) JOINED_AGAIN(part, set)
#define JOINED_AGAIN(part, set) part##_##set

#define PAIR(name, loose, result)                                                                  \
    TARGET static void NAME(name)(void *out_values, const void *left, const void *right,           \
                                  int64_t count) {                                                 \
        loose *out = out_values;                                                                   \
        const loose *a = left, *b = right;                                                         \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < count; i++) out[i] = (result);                \
    }
#define FLOAT_PAIRS(type)                                                                          \
    PAIR(sum_##type, loose_##type, a[i] + b[i])                                                    \
    PAIR(prod_##type, loose_##type, a[i] * b[i])                                                   \
    PAIR(min_##type, loose_##type, b[i] < a[i] || b[i] != b[i] ? b[i] : a[i])                      \
    PAIR(max_##type, loose_##type, b[i] > a[i] || b[i] != b[i] ? b[i] : a[i])
/* Computes in an unsigned type of at least 32 bits, because signed overflow is undefined. */
#define INTEGER_PAIRS(type, wide)                                                                  \
    PAIR(sum_##type, loose_##type, (type)((wide)a[i] + (wide)b[i]))                                \
    PAIR(prod_##type, loose_##type, (type)((wide)a[i] * (wide)b[i]))                               \
    PAIR(min_##type, loose_##type, b[i] < a[i] ? b[i] : a[i])                                      \
    PAIR(max_##type, loose_##type, b[i] > a[i] ? b[i] : a[i])

FLOAT_PAIRS(f32)
FLOAT_PAIRS(f64)
INTEGER_PAIRS(i8, uint32_t)
INTEGER_PAIRS(u8, uint32_t)
INTEGER_PAIRS(i32, uint32_t)
INTEGER_PAIRS(i64, uint64_t)

#define CONVERT(name, from, to, result)                                                            \
    TARGET static void NAME(name)(void *out_values, const void *values, int64_t count) {           \
        to *out = out_values;                                                                      \
        const from *in = values;                                                                   \
        for (int64_t i = 0; i < count; i++) out[i] = (result);                                     \
    }
CONVERT(widen_f16, loose_u16, f32, widened_f16(in[i]))
CONVERT(widen_bf16, loose_u16, f32, widened_bf16(in[i]))
CONVERT(widen_i8, loose_i8, i64, in[i])
CONVERT(widen_u8, loose_u8, i64, in[i])
CONVERT(widen_i32, loose_i32, i64, in[i])
CONVERT(narrow_f16, f32, loose_u16, narrowed_f16(in[i]))
CONVERT(narrow_bf16, f32, loose_u16, narrowed_bf16(in[i]))
CONVERT(narrow_i8, i64, loose_i8, (i8)in[i])
CONVERT(narrow_u8, i64, loose_u8, (u8)in[i])
CONVERT(narrow_i32, i64, loose_i32, (i32)in[i])

#define DIVIDE(type)                                                                               \
    TARGET static void NAME(divide_##type)(void *values, int64_t divisor, int64_t count) {         \
        loose_##type *out = values;                                                                \
        for (int64_t i = 0; i < count; i++) out[i] /= (type)divisor;                               \
    }
DIVIDE(f32)
DIVIDE(f64)
DIVIDE(i64)

#define ALL(type)                                                                                  \
    { NAME(sum_##type), NAME(prod_##type), NAME(min_##type), NAME(max_##type) }
static const reduce_loops LOOPS = {
    .pair = {[TCC_COMM_F32] = ALL(f32), [TCC_COMM_F64] = ALL(f64), [TCC_COMM_I8] = ALL(i8),
             [TCC_COMM_U8] = ALL(u8), [TCC_COMM_I32] = ALL(i32), [TCC_COMM_I64] = ALL(i64)},
    .widen = {[TCC_COMM_F16] = NAME(widen_f16), [TCC_COMM_BF16] = NAME(widen_bf16),
              [TCC_COMM_I8] = NAME(widen_i8), [TCC_COMM_U8] = NAME(widen_u8),
              [TCC_COMM_I32] = NAME(widen_i32)},
    .narrow = {[TCC_COMM_F16] = NAME(narrow_f16), [TCC_COMM_BF16] = NAME(narrow_bf16),
               [TCC_COMM_I8] = NAME(narrow_i8), [TCC_COMM_U8] = NAME(narrow_u8),
               [TCC_COMM_I32] = NAME(narrow_i32)},
    .divide = {[TCC_COMM_F32] = NAME(divide_f32), [TCC_COMM_F64] = NAME(divide_f64),
               [TCC_COMM_I64] = NAME(divide_i64)},
};

#undef NAME
#undef JOINED
#undef JOINED_AGAIN
#undef PAIR
#undef FLOAT_PAIRS
#undef INTEGER_PAIRS
#undef CONVERT
#undef DIVIDE
#undef ALL
#undef LOOPS
#undef TARGET
