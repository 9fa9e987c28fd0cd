/* running: inputs (x), outputs (y), ints (axis, exclusive, reverse, product).
 *
 * At each place along the axis, y is the sum (or product) of x from the first element up to that
 * place, or with `reverse` from the last element.  `exclusive` leaves out the element at the place.
 * Element types are i32, i64, u32, u64, f32 and f64; integers wrap.  Sums are taken one element
 * after the other. */
#include <string.h>

#include "order.h"

enum {
    LINES = 4,     /* lines of contiguous elements that are summed together, because each addition
                      waits for the one before */
    LANES = 16,    /* bytes of neighbouring lines that one instruction sums */
    COLUMNS = 64,  /* neighbouring lines of a unit are a multiple of these */
    NARROW = 256,  /* bytes of a row whose sums are kept in registers from row to row */
    WIDEST = 4096, /* neighbouring lines that are summed together: their last sums stay in a near
                      cache */
    PLACES = 1 << 16, /* elements between two checks whether the run ends */
    NEAR = 1 << 14,   /* bytes of narrow rows that are summed before the next rows: vector after
                         vector reads them, so they and their sums stay in the nearest cache */
};

/* The bits of 1.0. */
#define ONE32 UINT64_C(0x3F800000)
#define ONE64 UINT64_C(0x3FF0000000000000)

typedef struct running {
    const char *x;
    char *y;
    tcc_axis axis;
    tcc_dtype dtype;
    bool exclusive, reverse, product;
    int64_t columns; /* neighbouring lines of a unit */
    uint64_t first; /* the element that a line starts with */
    tcc_ending *ending;
} running;

/* Computes places `begin` to `end - 1` of `COUNT` lines of contiguous elements, one line after
 * another, from element `from` on.  `carry` holds the lines' sums so far. */
#define RUN_LINES(TYPE, OPERATOR, COUNT)                                                           \
    do {                                                                                           \
        TYPE total[COUNT];                                                                         \
        for (int l = 0; l < (COUNT); l++) memcpy(&total[l], &carry[l], sizeof(TYPE));              \
        for (int64_t i = begin; i < end; i++, x += step, y += step)                                \
            for (int l = 0; l < (COUNT); l++) {                                                    \
                TYPE before = total[l];                                                            \
                total[l] = before OPERATOR x[l * size];                                            \
                y[l * size] = r->exclusive ? before : total[l];                                    \
            }                                                                                      \
        for (int l = 0; l < (COUNT); l++) memcpy(&carry[l], &total[l], sizeof(TYPE));              \
    } while (0)

/* Computes rows `begin` to `end - 1` of `COUNT` neighbouring elements of type KIND, a number or a
 * vector, from line `c` on.  The sums stay in registers. */
#define RUN_KEPT(KIND, OPERATOR, COUNT)                                                            \
    do {                                                                                           \
        KIND total[COUNT];                                                                         \
        const char *source = (const char *)(x + c);                                                \
        char *target = (char *)(y + c);                                                            \
        int64_t distance = step * (int64_t)sizeof(*x);                                             \
        for (int l = 0; l < (COUNT); l++) {                                                        \
            total[l] = (KIND){0} + first;                                                          \
            if (begin) total[l] = ((const KIND *)(target - distance))[l];                          \
            if (begin && exclusive)                                                                \
                total[l] = total[l] OPERATOR((const KIND *)(source - distance))[l];                \
        }                                                                                          \
        for (int64_t i = begin; i < end; i++, source += distance, target += distance) {            \
            if (exclusive) {                                                                       \
                _Pragma("GCC unroll 4") for (int l = 0; l < (COUNT); l++)                          \
                    ((KIND *)target)[l] = total[l];                                                \
            }                                                                                      \
            _Pragma("GCC unroll 4") for (int l = 0; l < (COUNT); l++)                              \
                total[l] = total[l] OPERATOR((const KIND *)source)[l];                             \
            if (!exclusive) {                                                                      \
                _Pragma("GCC unroll 4") for (int l = 0; l < (COUNT); l++)                          \
                    ((KIND *)target)[l] = total[l];                                                \
            }                                                                                      \
        }                                                                                          \
        c += (COUNT) * (int64_t)(sizeof(KIND) / sizeof(*x));                                       \
    } while (0)

/* Computes the same rows of `count` neighbouring lines that fill at most NARROW bytes. */
#define RUN_NARROW(TYPE, OPERATOR)                                                                 \
    do {                                                                                           \
        typedef TYPE lanes                                                                         \
            __attribute__((vector_size(LANES), aligned(sizeof(TYPE)), may_alias));                 \
        int64_t width = LANES / (int64_t)sizeof(TYPE), c = 0;                                      \
        bool exclusive = r->exclusive;                                                             \
        TYPE first;                                                                                \
        memcpy(&first, &carry[0], sizeof(TYPE));                                                   \
        while (c + 4 * width <= count) RUN_KEPT(lanes, OPERATOR, 4);                               \
        if (c + 2 * width <= count) RUN_KEPT(lanes, OPERATOR, 2);                                  \
        if (c + width <= count) RUN_KEPT(lanes, OPERATOR, 1);                                      \
        if (c + 2 <= count) RUN_KEPT(TYPE, OPERATOR, 2);                                           \
        if (c < count) RUN_KEPT(TYPE, OPERATOR, 1);                                                \
    } while (0)

/* Computes the same rows of `count` neighbouring lines: a row of sums is the row before it plus the
 * new elements. */
#define RUN_COLUMNS(TYPE, OPERATOR)                                                                \
    do {                                                                                           \
        TYPE first;                                                                                \
        memcpy(&first, &carry[0], sizeof(TYPE));                                                   \
        for (int64_t c = 0; !begin && c < count; c++)                                              \
            y[c] = r->exclusive ? first : first OPERATOR x[c];                                     \
        if (begin) x -= step, y -= step;                                                           \
        for (int64_t i = begin ? begin : 1; i < end; i++, x += step, y += step) {                  \
            const TYPE *term = r->exclusive ? x : x + step;                                        \
            typedef TYPE lanes                                                                     \
                __attribute__((vector_size(LANES), aligned(sizeof(TYPE)), may_alias));             \
            const lanes *last = (const lanes *)y, *terms = (const lanes *)term;                    \
            lanes *next = (lanes *)(y + step);                                                     \
            int64_t width = LANES / (int64_t)sizeof(TYPE), c = 0;                                  \
            for (; c + 4 * width <= count; c += 4 * width, last += 4, terms += 4, next += 4) {     \
                lanes s0 = last[0] OPERATOR terms[0], s1 = last[1] OPERATOR terms[1];              \
                lanes s2 = last[2] OPERATOR terms[2], s3 = last[3] OPERATOR terms[3];              \
                next[0] = s0, next[1] = s1, next[2] = s2, next[3] = s3;                            \
            }                                                                                      \
            for (; c < count; c++) y[c + step] = y[c] OPERATOR term[c];                            \
        }                                                                                          \
    } while (0)

#define RUN_SHAPE(TYPE, OPERATOR)                                                                  \
    do {                                                                                           \
        if (r->axis.inner > 1 && count * (int64_t)sizeof(TYPE) <= NARROW)                          \
            RUN_NARROW(TYPE, OPERATOR);                                                            \
        else if (r->axis.inner > 1)                                                                \
            RUN_COLUMNS(TYPE, OPERATOR);                                                           \
        else if (count == LINES)                                                                   \
            RUN_LINES(TYPE, OPERATOR, LINES);                                                      \
        else                                                                                       \
            RUN_LINES(TYPE, OPERATOR, 1);                                                          \
    } while (0)

#define RUN_TYPE(TYPE)                                                                             \
    do {                                                                                           \
        const TYPE *x = (const TYPE *)(const void *)r->x + from;                                   \
        TYPE *y = (TYPE *)(void *)r->y + from;                                                     \
        if (r->reverse) x += (size - 1) * inner, y += (size - 1) * inner;                          \
        x += begin * step, y += begin * step;                                                      \
        if (r->product)                                                                            \
            RUN_SHAPE(TYPE, *);                                                                    \
        else                                                                                       \
            RUN_SHAPE(TYPE, +);                                                                    \
    } while (0)

static void run_places(const running *r, int64_t from, int64_t count, int64_t begin, int64_t end,
                       uint64_t carry[LINES]) {
    int64_t size = r->axis.size, inner = r->axis.inner, step = r->reverse ? -inner : inner;
    if (r->dtype.code == 2 && r->dtype.bits == 32)
        RUN_TYPE(float);
    else if (r->dtype.code == 2)
        RUN_TYPE(double);
    else if (r->dtype.bits == 32)
        RUN_TYPE(uint32_t);
    else
        RUN_TYPE(uint64_t);
}

/* Computes `count` lines from element `from` on: neighbouring lines, or where a line's elements are
 * contiguous, LINES lines that follow each other, or a single line. */
static void run_lines(const running *r, int64_t from, int64_t count) {
    int64_t size = r->axis.size, row = count * r->dtype.bits / 8;
    int64_t block_lines = r->axis.inner > 1 && row <= NARROW ? NEAR / row : PLACES / count;
    uint64_t carry[LINES];
    for (int l = 0; l < LINES; l++) carry[l] = r->first;
    for (int64_t begin = 0, end; begin < size && !(begin && tcc_run_ends(r->ending)); begin = end) {
        end = size - begin < block_lines ? size : begin + block_lines;
        run_places(r, from, count, begin, end, carry);
    }
}

/* Computes lines of contiguous elements; a unit is LINES lines. */
static void run_rows(void *context, int64_t begin, int64_t end, void *room) {
    const running *r = context;
    (void)room;
    for (int64_t line = begin * LINES; line < end * LINES && line < r->axis.outer;) {
        int64_t count = line + LINES <= r->axis.outer ? LINES : 1;
        run_lines(r, line * r->axis.size, count);
        line += count;
    }
}

/* Returns the neighbouring lines of a unit.  Rows of few lines are slow to read, so there are no
 * more units than threads, except that no unit has more than WIDEST lines. */
static int64_t unit_columns(const tcc_axis *axis, int64_t threads) {
    int64_t parts = (threads + axis->outer - 1) / axis->outer;
    int64_t columns = (axis->inner + parts * COLUMNS - 1) / (parts * COLUMNS) * COLUMNS;
    return columns < WIDEST ? columns : WIDEST;
}

/* Computes neighbouring lines; a unit is `columns` lines, or the remaining ones. */
static void run_columns(void *context, int64_t begin, int64_t end, void *room) {
    const running *r = context;
    int64_t inner = r->axis.inner, units = (inner + r->columns - 1) / r->columns;
    (void)room;
    for (int64_t unit = begin; unit < end;) {
        int64_t first = unit % units * r->columns, wide = inner - first;
        int64_t mine = (end - unit) * r->columns;
        if (wide > mine) wide = mine;
        if (wide > WIDEST) wide = WIDEST / r->columns * r->columns;
        run_lines(r, unit / units * r->axis.size * inner + first, wide);
        unit += (wide + r->columns - 1) / r->columns;
    }
}

tcc_status tcc_op_running(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 1, 4, 0, "running sum"));
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    bool wide = x->dtype.bits == 32 || x->dtype.bits == 64;
    if (!wide || x->dtype.code > 2 || y->count != x->count || y->dtype.bits != x->dtype.bits)
        return tcc_fail(TCC_INTERNAL, "running sum: operands do not fit");
    running r = {.x = x->data, .y = y->data, .dtype = x->dtype, .exclusive = call->ints[1] != 0,
                 .reverse = call->ints[2] != 0, .product = call->ints[3] != 0, .ending = call->ending};
    if (r.product) r.first = x->dtype.code != 2 ? 1 : x->dtype.bits == 64 ? ONE64 : ONE32;
    TCC_RETURN_IF_ERROR(tcc_axis_split(x, call->ints[0], &r.axis));
    if (x->count == 0) return TCC_OK;
    if (r.axis.inner == 1)
        return tcc_op_parallel(call, run_rows, &r, (r.axis.outer + LINES - 1) / LINES, 0);
    r.columns = unit_columns(&r.axis, call->crew && call->threads > 1 ? call->threads : 1);
    int64_t units = r.axis.outer * ((r.axis.inner + r.columns - 1) / r.columns);
    return tcc_op_parallel(call, run_columns, &r, units, 0);
}
