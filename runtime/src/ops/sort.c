/* sort: inputs (x), outputs (values, indices i64) or (indices), ints (axis, descending).  top_k:
 * inputs (x), outputs (values, indices i64), ints (axis, largest, sorted); k is the outputs' size
 * along the axis.  Among equal elements the lower index comes first, both ways.
 *
 * A line of x along the axis is loaded by itself where its elements are contiguous; otherwise
 * neighbouring lines are loaded together.  Long lines of which few elements are kept are searched
 * in segments, whose first elements are then merged. */
#include <string.h>

#include "order.h"

enum {
    SEGMENT = 1 << 14,     /* elements of a segment: enough work for a thread */
    BLOCK = 64,            /* elements that are compared together */
    FEW = 16,              /* up to this many kept items are always in order */
    TOGETHER = 64,         /* bytes by which neighbouring lines are loaded: a cache line */
    LOADED_MOST = 1 << 20, /* bytes of lines that are loaded together, at most */
    LOOKS = 1 << 12,       /* blocks between two checks whether the run ends */
};

typedef struct lines {
    const tcc_op_tensor *source;
    tcc_axis axis;
    size_t element;
    char *values; /* may be NULL */
    int64_t *indices;
    int64_t limit; /* size of the results along the axis; at least 1 */
    bool descending;
    int64_t together; /* lines that are loaded together; they have no segments */
    int64_t segments; /* segments of a line */
    tcc_keyed *items; /* `limit` items for every segment of every line; NULL: one segment */
    tcc_ending *ending;
} lines;

static uint64_t flip_of(const lines *lines) { return lines->descending ? UINT64_MAX : 0; }

/* Returns true if an element of a block may come before `bound`.  A NaN always may. */
#define MAY_PASS(TYPE)                                                                             \
    do {                                                                                           \
        const TYPE *x = elements, last = *(const TYPE *)bound;                                     \
        int any = 0;                                                                               \
        if (descending)                                                                            \
            for (int i = 0; i < BLOCK; i++) any |= !(x[i] <= last);                                \
        else                                                                                       \
            for (int i = 0; i < BLOCK; i++) any |= !(x[i] >= last);                                \
        return any != 0;                                                                           \
    } while (0)

static bool block_may_pass(tcc_dtype dtype, const void *elements, const void *bound,
                           bool descending) {
    if (dtype.code == 2 && dtype.bits == 32) MAY_PASS(float);
    if (dtype.code == 0 && dtype.bits == 32) MAY_PASS(int32_t);
    if (dtype.code == 0 && dtype.bits == 64) MAY_PASS(int64_t);
    return true;
}

/* Returns the room for candidates.  More than `limit` of them are collected before they are
 * searched. */
static int64_t candidates_of(const lines *lines, int64_t size) {
    int64_t n_items = lines->limit > size / 4 ? size : 4 * lines->limit;
    return n_items + BLOCK;
}

/* Inserts an item into `n_items` ordered items.  The last one falls off if there are `limit`. */
static void insert(tcc_keyed *items, int64_t n_items, int64_t limit, tcc_keyed item) {
    int64_t at = n_items < limit ? n_items : limit - 1;
    for (; at > 0 && item.key < items[at - 1].key; at--) items[at] = items[at - 1];
    items[at] = item;
}

/* Does the work of `keep_first` for few items, which are always in order. */
static int64_t keep_few(const lines *lines, const char *elements, int64_t first, int64_t size,
                        tcc_keyed *items) {
    tcc_dtype dtype = lines->source->dtype;
    int64_t n_items = 0, limit = lines->limit;
    tcc_keyed block[BLOCK];
    for (int64_t at = 0; at < size && !tcc_ends_at(lines->ending, at / BLOCK, LOOKS); at += BLOCK) {
        int64_t count = size - at < BLOCK ? size - at : BLOCK, i = 0;
        const char *here = elements + (size_t)at * lines->element;
        if (n_items == limit && count == BLOCK) {
            const char *last = elements + (size_t)(items[limit - 1].index - first) * lines->element;
            if (!block_may_pass(dtype, here, last, lines->descending)) continue;
        }
        tcc_order_load(dtype, here, count, flip_of(lines), first + at, block);
        for (; i < count && n_items < limit; i++) insert(items, n_items++, limit, block[i]);
        for (; i < count; i++)
            if (block[i].key < items[limit - 1].key) insert(items, n_items, limit, block[i]);
    }
    return n_items;
}

/* Finds the items that come first among `size` contiguous elements, which are numbered from `first`
 * on; equal elements are ordered by index.  `items` has room for `candidates_of(size)`.  Returns
 * how many it found. */
static int64_t keep_first(const lines *lines, const char *elements, int64_t first, int64_t size,
                          tcc_keyed *items) {
    if (lines->limit <= FEW) return keep_few(lines, elements, first, size, items);
    tcc_dtype dtype = lines->source->dtype;
    int64_t room = candidates_of(lines, size), n_items = 0;
    uint64_t bound = UINT64_MAX;
    const char *last = NULL; /* the element whose key is `bound` */
    tcc_keyed block[BLOCK];
    for (int64_t at = 0; at < size && !tcc_ends_at(lines->ending, at / BLOCK, LOOKS); at += BLOCK) {
        int64_t count = size - at < BLOCK ? size - at : BLOCK;
        const char *here = elements + (size_t)at * lines->element;
        if (last && count == BLOCK && !block_may_pass(dtype, here, last, lines->descending)) continue;
        tcc_order_load(dtype, here, count, flip_of(lines), first + at, block);
        for (int64_t i = 0; i < count; i++) {
            items[n_items] = block[i];
            n_items += !last || block[i].key < bound;
        }
        if (n_items + BLOCK < room || n_items <= lines->limit) continue;
        bound = tcc_order_keep(items, n_items, lines->limit, lines->ending);
        n_items = lines->limit;
        if (tcc_has_ended(lines->ending)) return n_items;
        int64_t of_bound = 0;
        while (items[of_bound].key != bound) of_bound++;
        last = elements + (size_t)(items[of_bound].index - first) * lines->element;
    }
    if (n_items <= lines->limit) return n_items;
    tcc_order_keep(items, n_items, lines->limit, lines->ending);
    return lines->limit;
}

/* Writes the results of one line, whose contiguous elements are `elements`. */
static void store_line(const lines *lines, int64_t outer, int64_t inner, const char *elements,
                       const tcc_keyed *items) {
    int64_t step = lines->axis.inner, to = outer * lines->limit * step + inner;
    int64_t look;
    for (int64_t i = 0; (look = tcc_next_look(lines->ending, i, lines->limit)) > i;)
        for (; i < look; i++) lines->indices[to + i * step] = items[i].index;
    if (!lines->values) return;
    for (int64_t i = 0; i < look; i++) {
        if (tcc_ends_at(lines->ending, i, LOOKS * BLOCK)) return;
        const char *from = elements + (size_t)items[i].index * lines->element;
        char *target = lines->values + (size_t)(to + i * step) * lines->element;
        if (lines->element == 4)
            memcpy(target, from, 4);
        else if (lines->element == 8)
            memcpy(target, from, 8);
        else
            memcpy(target, from, lines->element);
    }
}

/* Returns the number of items that ordering or choosing in one line needs. */
static int64_t items_of(const lines *lines) {
    int64_t size = lines->axis.size;
    if (lines->limit == size) return 2 * size;
    int64_t n_candidates = candidates_of(lines, size);
    return n_candidates > 2 * lines->limit ? n_candidates : 2 * lines->limit;
}

static void order_line(const lines *lines, int64_t outer, int64_t inner, const char *elements,
                       tcc_keyed *items) {
    if (lines->limit == lines->axis.size)
        tcc_order_load_line(lines->source->dtype, elements, lines->axis.size, flip_of(lines), items,
                            lines->ending);
    else
        keep_first(lines, elements, 0, lines->axis.size, items);
    if (tcc_has_ended(lines->ending)) return;
    tcc_order_sort(items, items + lines->limit, lines->limit, lines->ending);
    store_line(lines, outer, inner, elements, items);
}

/* Copies `count` neighbouring lines, one after another. */
static void gather_lines(const lines *lines, int64_t outer, int64_t inner, int64_t count,
                         char *loaded) {
    int64_t size = lines->axis.size;
    size_t element = lines->element;
    const char *from = (const char *)lines->source->data +
                       (size_t)(outer * size * lines->axis.inner + inner) * element;
    for (int64_t i = 0; i < size && !tcc_ends_at(lines->ending, i, LOOKS);
         i++, from += (size_t)lines->axis.inner * element)
        for (int64_t line = 0; line < count; line++) {
            char *to = loaded + (size_t)(line * size + i) * element;
            if (element == 4)
                memcpy(to, from + 4 * line, 4);
            else
                memcpy(to, from + element * (size_t)line, element);
        }
}

/* Orders lines; a unit is `together` lines that differ in their inner index. */
static void order_full_lines(void *context, int64_t begin, int64_t end, void *room) {
    const lines *lines = context;
    int64_t inner_units = (lines->axis.inner + lines->together - 1) / lines->together;
    tcc_keyed *items = room;
    char *loaded = (char *)(items + items_of(lines));
    size_t line_bytes = (size_t)lines->axis.size * lines->element;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t outer = unit / inner_units, inner = unit % inner_units * lines->together;
        int64_t count = lines->axis.inner - inner;
        const char *base = (const char *)lines->source->data + (size_t)outer * line_bytes;
        if (count > lines->together) count = lines->together;
        if (lines->axis.inner > 1) {
            gather_lines(lines, outer, inner, count, loaded);
            base = loaded;
        }
        for (int64_t line = 0; line < count; line++)
            order_line(lines, outer, inner + line, base + (size_t)line * line_bytes, items);
    }
}

static int64_t segment_start(const lines *lines, int64_t segment) {
    return lines->axis.size / lines->segments * segment;
}

static int64_t segment_end(const lines *lines, int64_t segment) {
    return segment + 1 == lines->segments ? lines->axis.size : segment_start(lines, segment + 1);
}

static void look_through_segments(void *context, int64_t begin, int64_t end, void *room) {
    const lines *lines = context;
    tcc_keyed *items = room;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t line = unit / lines->segments, segment = unit % lines->segments;
        int64_t first = segment_start(lines, segment);
        const char *elements = (const char *)lines->source->data +
                               (size_t)(line * lines->axis.size + first) * lines->element;
        keep_first(lines, elements, first, segment_end(lines, segment) - first, items);
        memcpy(lines->items + unit * lines->limit, items, (size_t)lines->limit * sizeof *items);
    }
}

static void join_segments(void *context, int64_t begin, int64_t end, void *room) {
    const lines *lines = context;
    for (int64_t line = begin; line < end; line++) {
        tcc_keyed *items = lines->items + line * lines->segments * lines->limit;
        tcc_order_keep(items, lines->segments * lines->limit, lines->limit, lines->ending);
        tcc_order_sort(items, room, lines->limit, lines->ending);
        const char *elements = (const char *)lines->source->data +
                               (size_t)(line * lines->axis.size) * lines->element;
        store_line(lines, line, 0, elements, items);
    }
}

/* Returns the segments per line that give all threads enough work.  A segment holds far more
 * elements than are kept. */
static int64_t segments_of(const tcc_op_call *call, const lines *lines) {
    int64_t size = lines->axis.size, min_size = 8 * lines->limit > SEGMENT ? 8 * lines->limit : SEGMENT;
    int64_t lines_all = lines->axis.outer * lines->axis.inner;
    int64_t target = call->crew ? 4 * (int64_t)call->threads / lines_all : 1;
    int64_t n_segments = size / min_size < target ? size / min_size : target;
    if (lines->axis.inner > 1 || n_segments < 2) return 1;
    return n_segments > call->threads ? n_segments / call->threads * call->threads : n_segments;
}

static tcc_status order_segments(tcc_op_call *call, lines *lines) {
    void *memory = NULL;
    int64_t segments = lines->axis.outer * lines->segments;
    int64_t longest = lines->axis.size - segment_start(lines, lines->segments - 1);
    size_t bytes = (size_t)(segments * lines->limit) * sizeof(tcc_keyed);
    TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, bytes, &memory));
    lines->items = memory;
    size_t room = (size_t)candidates_of(lines, longest) * sizeof(tcc_keyed);
    TCC_RETURN_IF_ERROR(tcc_op_parallel(call, look_through_segments, lines, segments, room));
    room = (size_t)lines->limit * sizeof(tcc_keyed);
    TCC_RETURN_IF_ERROR(tcc_op_parallel(call, join_segments, lines, lines->axis.outer, room));
    tcc_pool_give(call->pool, memory);
    return TCC_OK;
}

static tcc_status order_lines(tcc_op_call *call, lines *lines) {
    int64_t size = lines->axis.size, outer = lines->axis.outer, inner = lines->axis.inner;
    if (size > INT64_MAX / 256) return tcc_fail(TCC_OUT_OF_MEMORY, "sort: too many elements");
    if (outer * inner * lines->limit == 0) return TCC_OK;
    lines->segments = segments_of(call, lines);
    if (lines->segments > 1) return order_segments(call, lines);
    int64_t line_bytes = size * (int64_t)lines->element;
    int64_t fit = LOADED_MOST / line_bytes, n_together = TOGETHER / (int64_t)lines->element;
    lines->together = fit < 1 ? 1 : fit < n_together ? fit : n_together;
    if (lines->together > inner) lines->together = inner;
    int64_t units = outer * ((inner + lines->together - 1) / lines->together);
    size_t room = (size_t)items_of(lines) * sizeof(tcc_keyed);
    if (inner > 1) room += (size_t)(lines->together * line_bytes);
    return tcc_op_parallel(call, order_full_lines, lines, units, room);
}

static tcc_status check_indices(const tcc_op_tensor *indices, int64_t expected, const char *op) {
    if (indices->dtype.code == 0 && indices->dtype.bits == 64 && indices->count == expected)
        return TCC_OK;
    return tcc_fail(TCC_INTERNAL, "%s: results do not fit", op);
}

tcc_status tcc_op_sort(tcc_op_call *call) {
    bool with_values = call->n_outputs == 2;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, with_values ? 2 : 1, 2, 0, "sort"));
    const tcc_op_tensor *x = &call->inputs[0], *indices = &call->outputs[with_values];
    TCC_RETURN_IF_ERROR(tcc_order_check(x->dtype, "sort"));
    lines lines = {.source = x, .element = x->dtype.bits / 8u, .descending = call->ints[1] != 0,
                   .ending = call->ending};
    TCC_RETURN_IF_ERROR(tcc_axis_split(x, call->ints[0], &lines.axis));
    TCC_RETURN_IF_ERROR(check_indices(indices, x->count, "sort"));
    if (with_values && (call->outputs[0].count != x->count ||
                        call->outputs[0].dtype.bits != x->dtype.bits))
        return tcc_fail(TCC_INTERNAL, "sort: results do not fit");
    lines.values = with_values ? call->outputs[0].data : NULL;
    lines.indices = indices->data;
    lines.limit = lines.axis.size;
    return order_lines(call, &lines);
}

tcc_status tcc_op_top_k(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 1, 2, 3, 0, "top-k"));
    const tcc_op_tensor *x = &call->inputs[0], *values = &call->outputs[0];
    TCC_RETURN_IF_ERROR(tcc_order_check(x->dtype, "top-k"));
    lines lines = {.source = x, .element = x->dtype.bits / 8u, .descending = call->ints[1] != 0,
                   .ending = call->ending};
    tcc_axis result;
    TCC_RETURN_IF_ERROR(tcc_axis_split(x, call->ints[0], &lines.axis));
    TCC_RETURN_IF_ERROR(tcc_axis_split(values, call->ints[0], &result));
    TCC_RETURN_IF_ERROR(check_indices(&call->outputs[1], values->count, "top-k"));
    if (result.outer != lines.axis.outer || result.inner != lines.axis.inner ||
        values->dtype.bits != x->dtype.bits)
        return tcc_fail(TCC_INTERNAL, "top-k: results do not fit");
    if (result.size > lines.axis.size)
        return tcc_fail(TCC_INVALID_ARGUMENT, "top-k: k is %lld, but the axis has %lld elements",
                        (long long)result.size, (long long)lines.axis.size);
    lines.values = values->data;
    lines.indices = call->outputs[1].data;
    lines.limit = result.size; /* `sorted` needs no extra work, because results are always in
                                  order */
    return order_lines(call, &lines);
}
