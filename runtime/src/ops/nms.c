/* non_max_suppression: inputs (boxes f32 [B,N,4], scores f32 [B,C,N], max boxes per class i64 [1],
 * iou threshold f32 [1], score threshold f32 [1] or absent), outputs (selected i64 [rows,3]),
 * ints (boxes are centre and size), results (count).
 *
 * `rows` is room for B * C * min(max boxes, N); `count` rows of (batch, class, box) are written. */
#include "order.h"

typedef struct box {
    float y1, x1, y2, x2;
} box;

static float smaller(float a, float b) { return a < b ? a : b; }
static float larger(float a, float b) { return a > b ? a : b; }

static box load_box(const float *data, bool centre) {
    if (centre)
        return (box){data[1] - data[3] / 2, data[0] - data[2] / 2, data[1] + data[3] / 2,
                     data[0] + data[2] / 2};
    return (box){smaller(data[0], data[2]), smaller(data[1], data[3]), larger(data[0], data[2]),
                 larger(data[1], data[3])};
}

static bool overlaps(box a, box b, float threshold) {
    float height = smaller(a.y2, b.y2) - larger(a.y1, b.y1);
    float width = smaller(a.x2, b.x2) - larger(a.x1, b.x1);
    if (height <= 0 || width <= 0) return false;
    float area_a = (a.y2 - a.y1) * (a.x2 - a.x1), area_b = (b.y2 - b.y1) * (b.x2 - b.x1);
    if (area_a <= 0 || area_b <= 0) return false;
    float both = height * width;
    return both / (area_a + area_b - both) > threshold;
}

typedef struct suppression {
    int64_t boxes, most;
    float iou, score;
    bool with_score, centre;
    tcc_keyed *items, *room;
    int64_t *chosen;
} suppression;

/* Chooses boxes of one class of one batch; the indices are left in `chosen`. */
static int64_t choose(const suppression *s, const float *boxes, const float *scores) {
    static const tcc_dtype f32 = {2, 32, 1};
    int64_t candidates = 0, chosen = 0;
    for (int64_t i = 0; i < s->boxes; i++) {
        if (s->with_score && !(scores[i] > s->score)) continue;
        s->items[candidates++] = (tcc_keyed){~tcc_order_key(f32, &scores[i]), i};
    }
    tcc_order_sort(s->items, s->room, candidates);
    for (int64_t i = 0; i < candidates && chosen < s->most; i++) {
        box candidate = load_box(boxes + s->items[i].index * 4, s->centre);
        bool keep = true;
        for (int64_t c = 0; c < chosen && keep; c++)
            keep = !overlaps(candidate, load_box(boxes + s->chosen[c] * 4, s->centre), s->iou);
        if (keep) s->chosen[chosen++] = s->items[i].index;
    }
    return chosen;
}

static bool fits(const tcc_op_call *call) {
    const tcc_op_tensor *boxes = &call->inputs[0], *scores = &call->inputs[1];
    if (boxes->ndim != 3 || scores->ndim != 3 || boxes->dims[2] != 4) return false;
    if (boxes->dims[0] != scores->dims[0] || boxes->dims[1] != scores->dims[2]) return false;
    for (int32_t i = 0; i < call->n_inputs; i++) {
        tcc_dtype dtype = call->inputs[i].dtype;
        if (dtype.code != (i == 2 ? 0 : 2) || dtype.bits != (i == 2 ? 64 : 32)) return false;
        if (i >= 2 && call->inputs[i].count != 1) return false;
    }
    const tcc_op_tensor *rows = &call->outputs[0];
    return rows->ndim == 2 && rows->dims[1] == 3 && rows->dtype.code == 0 && rows->dtype.bits == 64;
}

tcc_status tcc_op_nms(tcc_op_call *call) {
    bool with_score = call->n_inputs == 5;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, with_score ? 5 : 4, 1, 1, 1, "non-max suppression"));
    if (!fits(call))
        return tcc_fail(TCC_INVALID_ARGUMENT, "non-max suppression: boxes [B,N,4] and scores "
                                              "[B,C,N] do not fit each other");
    const tcc_op_tensor *boxes = &call->inputs[0], *scores = &call->inputs[1];
    int64_t n = boxes->dims[1], most = *(const int64_t *)call->inputs[2].data;
    suppression s = {.boxes = n, .most = most < 0 ? 0 : most < n ? most : n,
                     .iou = *(const float *)call->inputs[3].data, .with_score = with_score,
                     .score = with_score ? *(const float *)call->inputs[4].data : 0,
                     .centre = call->ints[0] != 0};
    if (n > INT64_MAX / 64) return tcc_fail(TCC_OUT_OF_MEMORY, "non-max suppression: too many boxes");
    void *memory = NULL;
    size_t bytes = (size_t)n * (2 * sizeof(tcc_keyed) + sizeof(int64_t));
    TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, bytes, &memory));
    s.items = memory;
    s.room = s.items + n;
    s.chosen = (int64_t *)(s.room + n);
    int64_t *row = call->outputs[0].data, count = 0, classes = scores->dims[1];
    for (int64_t line = 0; line < boxes->dims[0] * classes; line++) {
        const float *of_batch = (const float *)boxes->data + line / classes * n * 4;
        int64_t chosen = choose(&s, of_batch, (const float *)scores->data + line * n);
        if (chosen > call->outputs[0].dims[0] - count)
            return tcc_fail(TCC_INTERNAL, "non-max suppression: results do not fit");
        for (int64_t i = 0; i < chosen; i++, count++, row += 3) {
            row[0] = line / classes;
            row[1] = line % classes;
            row[2] = s.chosen[i];
        }
    }
    tcc_pool_give(call->pool, memory);
    call->results[0] = count;
    return TCC_OK;
}
