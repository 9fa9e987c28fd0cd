/* Counts n-grams.
 *
 * tf_idf: inputs (x [c] or [n, c], pool [t], counts i64, places i64, weights f32), outputs (y f32
 *         [..., columns]), ints (mode: 0 TF, 1 IDF, 2 TFIDF; least, most, skips)
 *
 * Tokens are i32, i64 or handles, those of the pool i64 or handles.  `counts[n]` is where (n +
 * 1)-grams begin in the pool, `places[g]` the column of the g-th n-gram, `weights[g]` its weight
 * (none: 1).  The tokens of an n-gram stand 1 to skips + 1 places apart, single ones anywhere. */
#include <string.h>

#include "order.h"

typedef struct gram {
    int64_t start, size; /* range in the pool; size 0: the slot is free */
    int64_t number;
} gram;

typedef struct counter {
    const int64_t *pool, *places;
    int64_t n_places, columns;
    gram *slots;
    int64_t n_slots;
} counter;

static tcc_status misfit(void) { return tcc_fail(TCC_INTERNAL, "tf_idf: operands do not fit"); }

static uint64_t hash(const int64_t *tokens, int64_t size, int64_t step) {
    uint64_t state = (uint64_t)size;
    for (int64_t i = 0; i < size; i++) {
        state = (state ^ (uint64_t)tokens[i * step]) * UINT64_C(0x9E3779B97F4A7C15);
        state ^= state >> 29;
    }
    return state ^ state >> 32;
}

static gram *find(const counter *c, const int64_t *tokens, int64_t size, int64_t step) {
    uint64_t mask = (uint64_t)c->n_slots - 1;
    for (uint64_t at = hash(tokens, size, step) & mask;; at = (at + 1) & mask) {
        gram *slot = &c->slots[at];
        bool same = slot->size == size;
        for (int64_t i = 0; same && i < size; i++)
            same = c->pool[slot->start + i] == tokens[i * step];
        if (slot->size == 0 || same) return slot;
    }
}

/* Enters all n-grams of the pool into a hash table by their tokens. */
static tcc_status fill(const tcc_op_call *call, counter *c) {
    const tcc_op_tensor *counts = &call->inputs[2];
    const int64_t *begins = counts->data;
    int64_t tokens = call->inputs[1].count, number = 0, room = 16;
    void *memory = NULL;
    while (room < 2 * c->n_places + 2) room *= 2;
    TCC_RETURN_IF_ERROR(tcc_heap_take(call->heap, (size_t)room * sizeof(gram), &memory));
    memset(memory, 0, (size_t)room * sizeof(gram));
    c->slots = memory;
    c->n_slots = room;
    for (int64_t g = 0; g < c->n_places; g++)
        if (c->places[g] < 0 || c->places[g] >= c->columns) return misfit();
    for (int64_t size = 1; size <= counts->count; size++) {
        int64_t start = begins[size - 1], end = size < counts->count ? begins[size] : tokens;
        if (start < 0 || start > end || end > tokens) return misfit();
        for (; start + size <= end; start += size, number++) {
            if (number >= c->n_places) return misfit();
            if (size < call->ints[1] || size > call->ints[2]) continue;
            *find(c, c->pool + start, size, 1) = (gram){start, size, number};
        }
    }
    return TCC_OK;
}

static void count_row(const tcc_op_call *call, const counter *c, const int64_t *row, int64_t length,
                      float *out_counts) {
    memset(out_counts, 0, (size_t)c->columns * sizeof(float));
    int64_t max_size = call->ints[2] < call->inputs[2].count ? call->ints[2] : call->inputs[2].count;
    for (int64_t size = call->ints[1]; size <= max_size && size <= length; size++)
        for (int64_t step = 1; step == 1 || (size > 1 && step - 1 <= call->ints[3]); step++) {
            if (size > 1 && step > (length - 1) / (size - 1)) break;
            for (int64_t start = 0; start + (size - 1) * step < length; start++) {
                const gram *match = find(c, row + start, size, step);
                if (match->size) out_counts[c->places[match->number]] += 1;
            }
        }
}

/* Weighs the counts.  A weight belongs to a column; where n-grams share a column, the last weight
 * counts. */
static void weigh(const float *weights, bool only_whether, int64_t columns, float *counts) {
    for (int64_t i = 0; i < columns; i++)
        counts[i] = (only_whether && counts[i] > 0 ? 1.0f : counts[i]) * weights[i];
}

static tcc_status column_weights(const tcc_op_call *call, const counter *c, float **out_weights) {
    void *memory = NULL;
    const float *weights = call->inputs[4].data;
    TCC_RETURN_IF_ERROR(tcc_heap_take(call->heap, (size_t)c->columns * sizeof(float), &memory));
    *out_weights = memory;
    for (int64_t i = 0; i < c->columns; i++) (*out_weights)[i] = 1;
    for (int64_t g = 0; g < call->inputs[4].count && g < c->n_places; g++)
        (*out_weights)[c->places[g]] = weights[g];
    return TCC_OK;
}

static tcc_status widened(const tcc_op_call *call, const int64_t **out_tokens) {
    const tcc_op_tensor *x = &call->inputs[0];
    void *memory = NULL;
    *out_tokens = x->data;
    if (x->dtype.bits == 64) return TCC_OK;
    if (x->dtype.bits != 32) return misfit();
    TCC_RETURN_IF_ERROR(tcc_heap_take(call->heap, (size_t)x->count * sizeof(int64_t), &memory));
    for (int64_t i = 0; i < x->count; i++)
        ((int64_t *)memory)[i] = ((const int32_t *)x->data)[i];
    *out_tokens = memory;
    return TCC_OK;
}

tcc_status tcc_op_tf_idf(tcc_op_call *call) {
    const int64_t *tokens = NULL;
    float *weights = NULL;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 5, 1, 4, 0, "tf_idf"));
    TCC_RETURN_IF_ERROR(tcc_op_expect_types(call, "..iiff", "tf_idf"));
    const tcc_op_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    if (x->ndim < 1 || x->ndim > 2 || y->ndim != x->ndim || call->inputs[1].dtype.bits != 64 ||
        call->ints[1] < 1 || (x->ndim == 2 && y->dims[0] != x->dims[0]))
        return misfit();
    counter c = {.pool = call->inputs[1].data,
                 .places = call->inputs[3].data,
                 .n_places = call->inputs[3].count,
                 .columns = y->dims[y->ndim - 1]};
    int64_t length = x->dims[x->ndim - 1], rows = x->ndim == 2 ? x->dims[0] : 1;
    TCC_RETURN_IF_ERROR(fill(call, &c));
    TCC_RETURN_IF_ERROR(widened(call, &tokens));
    if (call->ints[0] != 0) TCC_RETURN_IF_ERROR(column_weights(call, &c, &weights));
    for (int64_t row = 0; row < rows && c.columns && !tcc_run_ends(call->ending); row++) {
        float *counts = (float *)y->data + row * c.columns;
        count_row(call, &c, tokens + row * length, length, counts);
        if (weights) weigh(weights, call->ints[0] == 1, c.columns, counts);
    }
    return TCC_OK;
}
