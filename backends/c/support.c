/* Definitions that generated C files copy: each file gets the definitions that it uses, and those
 * that they use in turn.  No function here allocates memory. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* ---- indices: division rounds down, divisors are positive --------------------------------------- */

static int64_t floor_mod(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* ---- integers: division by zero gives 0, results wrap ------------------------------------------- */

static int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

static int64_t abs_i64(int64_t a) { return a < 0 ? (int64_t)(0 - (uint64_t)a) : a; }

/* Returns the quotient, rounded towards zero. */
static int64_t div_i64(int64_t a, int64_t b) {
    if (b == 0) return 0;
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}
static uint64_t div_u64(uint64_t a, uint64_t b) { return b == 0 ? 0 : a / b; }

/* Returns the remainder of div_i64, with the sign of the dividend. */
static int64_t rem_i64(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
static uint64_t rem_u64(uint64_t a, uint64_t b) { return b == 0 ? 0 : a % b; }

/* Returns the remainder with the sign of the divisor. */
static int64_t mod_i64(int64_t a, int64_t b) {
    const int64_t remainder = rem_i64(a, b);
    return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}
static uint64_t mod_u64(uint64_t a, uint64_t b) { return rem_u64(a, b); }

static uint64_t pow_u64(uint64_t a, uint64_t b) {
    uint64_t result = 1;
    for (; b != 0; b >>= 1) {
        if (b & 1) result *= a;
        a *= a;
    }
    return result;
}

/* Returns a power.  A negative exponent gives the real power, rounded towards zero. */
static int64_t pow_i64(int64_t a, int64_t b) {
    if (b >= 0) return (int64_t)pow_u64((uint64_t)a, (uint64_t)b);
    if (a == 1) return 1;
    return a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
}

/* Shifts by `count`.  Counts of `bits` or more give the result of shifting one by one. */
static uint64_t shift_left(uint64_t a, uint64_t count, uint64_t bits) {
    return count < bits ? a << count : 0;
}
static uint64_t shift_right_u64(uint64_t a, uint64_t count, uint64_t bits) {
    return count < bits ? a >> count : 0;
}
static int64_t shift_right_i64(int64_t a, uint64_t count, uint64_t bits) {
    if (count >= bits) count = bits - 1;
    return a < 0 ? ~(int64_t)(~(uint64_t)a >> count) : (int64_t)((uint64_t)a >> count);
}

/* Returns the value of the lowest `bits` bits. */
static int64_t unsigned_bits(int64_t a, int32_t bits) { return a & ((1 << bits) - 1); }
static int64_t signed_bits(int64_t a, int32_t bits) {
    const int64_t half = (int64_t)1 << (bits - 1);
    return (unsigned_bits(a, bits) ^ half) - half;
}

/* ---- floats ------------------------------------------------------------------------------------- */

/* Returns NaN where either argument is NaN. */
static float max_f32(float a, float b) { return a > b || a != a ? a : b; }
static float min_f32(float a, float b) { return a < b || a != a ? a : b; }
static double max_f64(double a, double b) { return a > b || a != a ? a : b; }
static double min_f64(double a, double b) { return a < b || a != a ? a : b; }

/* Returns -1 or 1; zeros and NaN return themselves. */
static double sign_f64(double a) { return a > 0 ? 1 : a < 0 ? -1 : a; }
static float sign_f32(float a) { return (float)sign_f64(a); }

/* Returns the remainder with the sign of the divisor. */
static double mod_f64(double a, double b) {
    const double remainder = fmod(a, b);
    if (remainder != remainder) return remainder;
    if (remainder == 0) return b != 0 ? copysign(0.0, b) : remainder;
    return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}
static float mod_f32(float a, float b) {
    const float remainder = fmodf(a, b);
    if (remainder != remainder) return remainder;
    if (remainder == 0) return b != 0 ? copysignf(0.0f, b) : remainder;
    return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

/* Rounds towards zero and clamps to the range; NaN gives 0. */
static double truncated(double a, double low, double high) {
    if (a != a) return 0;
    return a <= low ? low : a >= high ? high : trunc(a);
}
static int64_t to_i64(double a) {
    if (a != a) return 0;
    return a <= -0x1p63 ? INT64_MIN : a >= 0x1p63 ? INT64_MAX : (int64_t)a;
}
static uint64_t to_u64(double a) {
    if (a != a || a <= 0) return 0;
    return a >= 0x1p64 ? UINT64_MAX : (uint64_t)a;
}

/* Rounds `exact` to odd: rounding the result to f16 gives the same as rounding once. */
static float odd_f32(double exact) {
    float narrow = (float)exact;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if (exact != exact || narrow == exact || bits & 1) return narrow;
    bits += fabs((double)narrow) < fabs(exact) ? 1 : UINT32_MAX;
    memcpy(&narrow, &bits, sizeof bits);
    return narrow;
}

/* A float of few bits: sign, exponent, `fraction` bits.  `top` is the code of the largest value,
 * `over` the code for larger values and `nan` the code of NaN, all without sign.  With `one_nan`
 * NaN has one code and there is no negative zero. */
typedef struct narrow_float {
    uint32_t sign;
    int32_t fraction, bias;
    uint32_t top, over, nan;
    bool one_nan;
} narrow_float;

static float narrow_value(uint32_t code, narrow_float type) {
    const uint32_t size = code & (type.sign - 1);
    const int32_t exponent = (int32_t)(size >> type.fraction);
    int32_t fraction = (int32_t)(size & ((1u << type.fraction) - 1));
    float value;
    if (type.one_nan && code == type.nan) return NAN;
    if (size > type.top) {
        value = type.over != type.nan && size == type.over ? INFINITY : NAN;
    } else {
        if (exponent > 0) fraction += 1 << type.fraction;
        value = ldexpf((float)fraction, (exponent > 0 ? exponent : 1) - type.bias - type.fraction);
    }
    return code & type.sign ? -value : value;
}

/* Rounds to nearest, ties to the even code. */
static uint32_t narrow_bits(float value, narrow_float type) {
    const uint32_t sign = signbit(value) ? type.sign : 0;
    uint32_t code = type.over;
    int32_t exponent;
    if (isnan(value)) return type.nan | (type.nan < type.sign ? sign : 0);
    if (!isinf(value)) {
        const float size = fabsf(value);
        frexpf(size, &exponent);
        exponent += type.bias - 1;
        if (exponent < 1 || size == 0) exponent = 1;
        code = (uint32_t)nearbyintf(ldexpf(size, type.bias + type.fraction - exponent));
        code += (uint32_t)(exponent - 1) << type.fraction;
        if (code > type.top) code = type.over;
    }
    if (type.one_nan && (code == 0 || code > type.top)) return code;
    return code | sign;
}

static const narrow_float F16 = {0x8000, 10, 15, 0x7BFF, 0x7C00, 0x7E00, false};
static float f16_value(uint16_t code) { return narrow_value(code, F16); }
static uint16_t f16_bits(float value) { return (uint16_t)narrow_bits(value, F16); }

static const narrow_float BF16 = {0x8000, 7, 127, 0x7F7F, 0x7F80, 0x7FC0, false};
static float bf16_value(uint16_t code) { return narrow_value(code, BF16); }
static uint16_t bf16_bits(float value) { return (uint16_t)narrow_bits(value, BF16); }

static const narrow_float F8E4M3FN = {0x80, 3, 7, 0x7E, 0x7F, 0x7F, false};
static float f8e4m3fn_value(uint8_t code) { return narrow_value(code, F8E4M3FN); }
static uint8_t f8e4m3fn_bits(float value) { return (uint8_t)narrow_bits(value, F8E4M3FN); }

static const narrow_float F8E4M3FNUZ = {0x80, 3, 8, 0x7F, 0x80, 0x80, true};
static float f8e4m3fnuz_value(uint8_t code) { return narrow_value(code, F8E4M3FNUZ); }
static uint8_t f8e4m3fnuz_bits(float value) { return (uint8_t)narrow_bits(value, F8E4M3FNUZ); }

static const narrow_float F8E5M2 = {0x80, 2, 15, 0x7B, 0x7C, 0x7E, false};
static float f8e5m2_value(uint8_t code) { return narrow_value(code, F8E5M2); }
static uint8_t f8e5m2_bits(float value) { return (uint8_t)narrow_bits(value, F8E5M2); }

static const narrow_float F8E5M2FNUZ = {0x80, 2, 16, 0x7F, 0x80, 0x80, true};
static float f8e5m2fnuz_value(uint8_t code) { return narrow_value(code, F8E5M2FNUZ); }
static uint8_t f8e5m2fnuz_bits(float value) { return (uint8_t)narrow_bits(value, F8E5M2FNUZ); }

static const narrow_float F4E2M1 = {0x8, 1, 1, 0x7, 0x7, 0x8, false};
static float f4e2m1_value(uint8_t code) { return narrow_value(code & 15u, F4E2M1); }
static uint8_t f4e2m1_bits(float value) { return (uint8_t)narrow_bits(value, F4E2M1); }

/* Floats of 8 bits that are powers of two without a sign.  The last code is NaN; values are rounded
 * towards zero. */
static float f8e8m0_value(uint8_t code) { return code == 255 ? NAN : ldexpf(1, code - 127); }
static uint8_t f8e8m0_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint8_t)(bits >> 23);
}

/* ---- what functions of tcc's runtime are called with -------------------------------------------- */

typedef enum tcc_status {
    TCC_OK = 0,
    TCC_INVALID_ARGUMENT = 1,
    TCC_OUT_OF_MEMORY = 2,
    TCC_UNSUPPORTED = 3,
    TCC_CORRUPT = 4,
    TCC_INTERNAL = 5
} tcc_status;

/* Element type as in DLPack: code 0 int, 1 uint, 2 float, 4 bfloat, 6 bool. */
typedef struct tcc_dtype {
    uint8_t code, bits;
    uint16_t lanes;
} tcc_dtype;

/* A contiguous row-major array. */
typedef struct tcc_op_tensor {
    void *data;
    tcc_dtype dtype;
    int32_t ndim;
    const int64_t *dims;
    int64_t count;
} tcc_op_tensor;

/* Memory for temporaries, taken from the front. */
typedef struct tcc_pool {
    unsigned char *memory;
    size_t size, used;
} tcc_pool;

/* The state for ending a run early.  Runs of generated C files never end early. */
typedef struct tcc_ending tcc_ending;

typedef struct tcc_op_call {
    const tcc_op_tensor *inputs, *outputs;
    int32_t n_inputs, n_outputs;
    const int64_t *ints;
    int32_t n_ints;
    int64_t *results;
    int32_t n_results;
    tcc_pool *pool;
    const void *crew;
    int32_t threads;
    tcc_ending *ending;
} tcc_op_call;

#define TCC_UNLIKELY(x) (x)

#define TCC_RETURN_IF_ERROR(expression)                                                            \
    do {                                                                                           \
        tcc_status status_of_call = (expression);                                                  \
        if (status_of_call != TCC_OK) return status_of_call;                                       \
    } while (0)

static tcc_status tcc_fail(tcc_status status, const char *format, ...) {
    (void)format;
    return status;
}

static bool tcc_is_cancelled(const tcc_ending *ending) {
    (void)ending;
    return false;
}

static bool tcc_run_ends(const tcc_ending *ending) { return tcc_is_cancelled(ending); }

static tcc_status tcc_cancelled(const tcc_ending *ending) {
    (void)ending;
    return TCC_INTERNAL;
}

static tcc_status tcc_copy(const tcc_ending *ending, void *to, const void *from, size_t bytes) {
    (void)ending;
    if (bytes) memcpy(to, from, bytes);
    return TCC_OK;
}

/* Takes `size` bytes, aligned for every element type, until they are given back. */
static tcc_status tcc_pool_take(tcc_pool *pool, size_t size, void **out_memory) {
    const size_t rounded = (size + 15) / 16 * 16;
    if (rounded < size || rounded > pool->size - pool->used)
        return tcc_fail(TCC_OUT_OF_MEMORY, "the memory for temporaries is used up");
    *out_memory = pool->memory + pool->used;
    pool->used += rounded;
    return TCC_OK;
}

/* Gives a block back, together with all blocks taken after it.  All blocks are given back in the
 * end, so the pool need not know which block was taken last. */
static void tcc_pool_give(tcc_pool *pool, void *memory) {
    pool->used = (size_t)((unsigned char *)memory - pool->memory);
}

typedef void (*tcc_op_part)(void *context, int64_t begin, int64_t end, void *room);

/* Does all `units`, one after another. */
static tcc_status tcc_op_parallel(const tcc_op_call *call, tcc_op_part part, void *context,
                                  int64_t units, size_t room) {
    void *memory = NULL;
    if (units < 1) return TCC_OK;
    if (room) TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, room, &memory));
    part(context, 0, units, memory);
    if (room) tcc_pool_give(call->pool, memory);
    return TCC_OK;
}
