/* running: inputs (x), outputs (y), ints (axis, exclusive, reverse, product).
 *
 * y is, at each place along the axis, the sum (or product) of x from the first element, or with
 * `reverse` from the last one, up to it; `exclusive` leaves the element itself out.  Element types
 * are i32, i64, u32, u64, f32 and f64; integers wrap.  Sums are taken one element after the other. */
#include "order.h"

enum {
    COLUMNS = 64, /* neighbouring lines that are summed side by side */
    LINES = 4,    /* lines of side by side elements whose sums wait for each other's additions */
};

typedef struct running {
    const char *x;
    char *y;
    tcc_axis axis;
    tcc_dtype dtype;
    bool exclusive, reverse, product;
} running;

/* `LANES` lines from element `from` on, whose elements are `STEP` apart and which begin `BESIDE`
 * after each other. */
#define RUN_LINES(TYPE, OPERATOR, FIRST, LANES, STEP, BESIDE)                                      \
    do {                                                                                           \
        TYPE total[LANES];                                                                         \
        int64_t step = r->reverse ? -(STEP) : (STEP), beside = (BESIDE);                           \
        const TYPE *x = (const TYPE *)(const void *)r->x + from;                                   \
        TYPE *y = (TYPE *)(void *)r->y + from;                                                     \
        if (r->reverse) x += (size - 1) * (STEP), y += (size - 1) * (STEP);                        \
        for (int l = 0; l < (LANES); l++) total[l] = FIRST;                                        \
        for (int64_t i = 0; i < size; i++, x += step, y += step) {                                 \
            if ((LANES) <= LINES) {                                                                \
                for (int l = 0; l < (LANES); l++) {                                                \
                    TYPE before = total[l];                                                        \
                    total[l] = before OPERATOR x[l * beside];                                      \
                    y[l * beside] = r->exclusive ? before : total[l];                              \
                }                                                                                  \
                continue;                                                                          \
            }                                                                                      \
            TYPE value[LANES]; /* apart from x and y, so that loops over lanes become vectors */    \
            for (int l = 0; l < (LANES); l++) value[l] = x[l * beside];                            \
            if (r->exclusive)                                                                      \
                for (int l = 0; l < (LANES); l++) y[l * beside] = total[l];                        \
            for (int l = 0; l < (LANES); l++) total[l] = total[l] OPERATOR value[l];               \
            if (!r->exclusive)                                                                     \
                for (int l = 0; l < (LANES); l++) y[l * beside] = total[l];                        \
        }                                                                                          \
    } while (0)

#define RUN_SHAPE(TYPE, OPERATOR, FIRST)                                                           \
    do {                                                                                           \
        if (lanes == COLUMNS)                                                                      \
            RUN_LINES(TYPE, OPERATOR, FIRST, COLUMNS, r->axis.inner, 1);                           \
        else if (lanes == LINES)                                                                   \
            RUN_LINES(TYPE, OPERATOR, FIRST, LINES, 1, size);                                      \
        else                                                                                       \
            RUN_LINES(TYPE, OPERATOR, FIRST, 1, r->axis.inner, 0);                                 \
    } while (0)

#define RUN_TYPE(TYPE)                                                                             \
    do {                                                                                           \
        if (r->product)                                                                            \
            RUN_SHAPE(TYPE, *, 1);                                                                 \
        else                                                                                       \
            RUN_SHAPE(TYPE, +, 0);                                                                 \
    } while (0)

/* `lanes` lines, COLUMNS neighbouring ones, LINES that follow each other, or one. */
static void run_lines(const running *r, int64_t from, int64_t lanes) {
    int64_t size = r->axis.size;
    if (r->dtype.code == 2 && r->dtype.bits == 32)
        RUN_TYPE(float);
    else if (r->dtype.code == 2)
        RUN_TYPE(double);
    else if (r->dtype.bits == 32)
        RUN_TYPE(uint32_t);
    else
        RUN_TYPE(uint64_t);
}

/* Lines of side by side elements: a unit is LINES of them. */
static void run_rows(void *context, int64_t begin, int64_t end, void *room) {
    const running *r = context;
    (void)room;
    for (int64_t line = begin * LINES; line < end * LINES && line < r->axis.outer;) {
        int64_t lanes = line + LINES <= r->axis.outer ? LINES : 1;
        run_lines(r, line * r->axis.size, lanes);
        line += lanes;
    }
}

/* Neighbouring lines: a unit is COLUMNS of them. */
static void run_columns(void *context, int64_t begin, int64_t end, void *room) {
    const running *r = context;
    int64_t inner = r->axis.inner, units = (inner + COLUMNS - 1) / COLUMNS;
    (void)room;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t column = unit % units * COLUMNS, base = unit / units * r->axis.size * inner;
        if (column + COLUMNS <= inner)
            run_lines(r, base + column, COLUMNS);
        else
            for (; column < inner; column++) run_lines(r, base + column, 1);
    }
}

tcc_status tcc_op_running(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 1, 4, 0, "running sum"));
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    bool wide = x->dtype.bits == 32 || x->dtype.bits == 64;
    if (!wide || x->dtype.code > 2 || y->count != x->count || y->dtype.bits != x->dtype.bits)
        return tcc_fail(TCC_INTERNAL, "running sum: operands do not fit");
    running r = {.x = x->data, .y = y->data, .dtype = x->dtype, .exclusive = call->ints[1] != 0,
                 .reverse = call->ints[2] != 0, .product = call->ints[3] != 0};
    TCC_RETURN_IF_ERROR(tcc_axis_split(x, call->ints[0], &r.axis));
    if (x->count == 0) return TCC_OK;
    if (r.axis.inner == 1)
        return tcc_op_parallel(call, run_rows, &r, (r.axis.outer + LINES - 1) / LINES, 0);
    int64_t units = r.axis.outer * ((r.axis.inner + COLUMNS - 1) / COLUMNS);
    return tcc_op_parallel(call, run_columns, &r, units, 0);
}
