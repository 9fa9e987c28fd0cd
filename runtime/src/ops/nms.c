/* non_max_suppression_count: inputs (boxes f32 [B,N,4], scores f32 [B,C,N], and of most boxes per
 *     class i64, IoU threshold f32, score threshold f32 those that are set), ints (boxes are centre
 *     and size; bits that tell which of the three are set, the first lowest), results (count)
 * non_max_suppression: inputs and ints as above, outputs (selected i64 [count,3])
 *
 * Rows are (batch, class, box), by falling score inside a class.  The defaults are 0, 0,
 * -infinity. */
#include <math.h>
#include <string.h>

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

enum {
    BESIDE = 16, /* chosen boxes that a candidate is compared with at once */
    LOOKS = 64,  /* candidates between two checks whether the run ends */
};

/* BESIDE boxes, by side.  Unused places hold boxes of no size, which overlap no box. */
typedef struct boxes {
    float y1[BESIDE], x1[BESIDE], y2[BESIDE], x2[BESIDE], area[BESIDE];
} boxes;

/* Returns true if a box overlaps any of these by more than the threshold. */
static bool overlaps(const boxes *b, box a, float area, float threshold) {
    int any = 0;
    for (int i = 0; i < BESIDE; i++) {
        float height = smaller(a.y2, b->y2[i]) - larger(a.y1, b->y1[i]);
        float width = smaller(a.x2, b->x2[i]) - larger(a.x1, b->x1[i]);
        float both = height * width;
        int apart = (height <= 0) | (width <= 0) | (b->area[i] <= 0);
        any |= !apart & (both / (area + b->area[i] - both) > threshold);
    }
    return any != 0 && !(area <= 0);
}

typedef struct suppression {
    const tcc_op_tensor *all_boxes, *all_scores;
    int64_t boxes, limit;
    float iou, score;
    bool centre;
    int64_t *box_numbers; /* `limit` box numbers for every class of every batch */
    int64_t *counts; /* by class of every batch: how many are chosen */
    tcc_ending *ending;
} suppression;

/* Returns the bytes that choosing among `s->boxes` boxes needs. */
static size_t room_of(const suppression *s) {
    size_t block_bytes = (size_t)(s->limit / BESIDE + 1) * sizeof(boxes);
    return (size_t)s->boxes * 2 * sizeof(tcc_keyed) + block_bytes;
}

static void put_box(boxes *blocks, int64_t number, box box, float area) {
    boxes *b = &blocks[number / BESIDE];
    int64_t at = number % BESIDE;
    if (at == 0) memset(b, 0, sizeof *b);
    b->y1[at] = box.y1;
    b->x1[at] = box.x1;
    b->y2[at] = box.y2;
    b->x2[at] = box.x2;
    b->area[at] = area;
}

/* Chooses boxes of one class of one batch; returns how many. */
static int64_t choose(const suppression *s, const float *data, const float *scores, int64_t *box_numbers,
                      void *room) {
    static const tcc_dtype f32 = {2, 32, 1};
    tcc_keyed *items = room;
    boxes *blocks = (boxes *)(void *)(items + 2 * s->boxes);
    int64_t candidates = 0, count = 0;
    for (int64_t i = 0, look; (look = tcc_next_look(s->ending, i, s->boxes)) > i;)
        for (; i < look; i++)
            if (scores[i] > s->score)
                tcc_order_load(f32, &scores[i], 1, UINT64_MAX, i, &items[candidates++]);
    tcc_order_sort(items, items + s->boxes, candidates, s->ending);
    for (int64_t i = 0; i < candidates && count < s->limit && !tcc_ends_at(s->ending, i, LOOKS); i++) {
        box candidate = load_box(data + items[i].index * 4, s->centre);
        float area = (candidate.y2 - candidate.y1) * (candidate.x2 - candidate.x1);
        bool keep = true;
        for (int64_t block = 0; block * BESIDE < count && keep; block++)
            keep = !overlaps(&blocks[block], candidate, area, s->iou);
        if (!keep) continue;
        put_box(blocks, count, candidate, area);
        box_numbers[count++] = items[i].index;
    }
    return count;
}

/* A unit is a class of a batch. */
static void choose_classes(void *context, int64_t begin, int64_t end, void *room) {
    const suppression *s = context;
    int64_t classes = s->all_scores->dims[1];
    for (int64_t line = begin; line < end; line++) {
        const float *data = (const float *)s->all_boxes->data + line / classes * s->boxes * 4;
        const float *scores = (const float *)s->all_scores->data + line * s->boxes;
        s->counts[line] = choose(s, data, scores, s->box_numbers + line * s->limit, room);
    }
}

static bool fits(const tcc_op_call *call) {
    const tcc_op_tensor *boxes = &call->inputs[0], *scores = &call->inputs[1];
    for (int32_t i = 0; i < 2; i++)
        if (call->inputs[i].ndim != 3 || call->inputs[i].dtype.code != 2 ||
            call->inputs[i].dtype.bits != 32)
            return false;
    return boxes->dims[2] == 4 && boxes->dims[0] == scores->dims[0] &&
           boxes->dims[1] == scores->dims[2];
}

/* Reads the next limit into `value` if `bit` says that it is present. */
static tcc_status read_limit(const tcc_op_call *call, int32_t bit, int32_t *next, tcc_dtype dtype,
                             void *value) {
    if (!(call->ints[1] >> bit & 1)) return TCC_OK;
    const tcc_op_tensor *limit = &call->inputs[(*next)++];
    if (limit->count != 1 || limit->dtype.code != dtype.code || limit->dtype.bits != dtype.bits)
        return tcc_fail(TCC_INTERNAL, "non-max suppression: a limit does not fit");
    memcpy(value, limit->data, dtype.bits / 8u);
    return TCC_OK;
}

static tcc_status prepare(const tcc_op_call *call, suppression *out) {
    static const tcc_dtype i64 = {0, 64, 1}, f32 = {2, 32, 1};
    int64_t limits = call->n_ints == 2 ? call->ints[1] : 0;
    int32_t next = 2, expected = 2 + (limits & 1) + (limits >> 1 & 1) + (limits >> 2 & 1);
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, expected, call->n_outputs, 2, call->n_results,
                                      "non-max suppression"));
    if (!fits(call))
        return tcc_fail(TCC_INVALID_ARGUMENT, "non-max suppression: boxes [B,N,4] and scores "
                                              "[B,C,N] do not fit each other");
    int64_t limit = 0;
    *out = (suppression){.boxes = call->inputs[0].dims[1], .score = -INFINITY, .ending = call->ending,
                         .centre = call->ints[0] != 0};
    TCC_RETURN_IF_ERROR(read_limit(call, 0, &next, i64, &limit));
    TCC_RETURN_IF_ERROR(read_limit(call, 1, &next, f32, &out->iou));
    TCC_RETURN_IF_ERROR(read_limit(call, 2, &next, f32, &out->score));
    out->limit = limit < 0 ? 0 : limit < out->boxes ? limit : out->boxes;
    out->all_boxes = &call->inputs[0];
    out->all_scores = &call->inputs[1];
    int64_t lines = out->all_boxes->dims[0] * out->all_scores->dims[1], words;
    if (out->boxes <= INT64_MAX / 256 &&
        !__builtin_mul_overflow(lines, 8 * (out->limit + 1), &words))
        return TCC_OK;
    return tcc_fail(TCC_OUT_OF_MEMORY, "non-max suppression: too many boxes");
}

/* Goes through all batches and classes.  Writes rows while there is room, and counts all rows. */
static tcc_status suppress(tcc_op_call *call, int64_t *row, int64_t room, int64_t *out_count) {
    suppression s;
    TCC_RETURN_IF_ERROR(prepare(call, &s));
    int64_t classes = s.all_scores->dims[1], lines = s.all_boxes->dims[0] * classes;
    void *memory = NULL;
    size_t bytes = (size_t)(lines * (s.limit + 1)) * sizeof(int64_t);
    TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, bytes, &memory));
    s.counts = memory;
    s.box_numbers = s.counts + lines;
    TCC_RETURN_IF_ERROR(tcc_op_parallel(call, choose_classes, &s, lines, room_of(&s)));
    int64_t count = 0;
    for (int64_t line = 0; line < lines; count += s.counts[line++])
        for (int64_t i = 0; i < s.counts[line] && count + i < room; i++, row += 3) {
            row[0] = line / classes;
            row[1] = line % classes;
            row[2] = s.box_numbers[line * s.limit + i];
        }
    tcc_pool_give(call->pool, memory);
    *out_count = count;
    return TCC_OK;
}

tcc_status tcc_op_nms_count(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, call->n_inputs, 0, 2, 1, "non-max suppression"));
    return suppress(call, NULL, 0, &call->results[0]);
}

tcc_status tcc_op_nms(tcc_op_call *call) {
    int64_t count = 0;
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, call->n_inputs, 1, 2, 0, "non-max suppression"));
    const tcc_op_tensor *rows = &call->outputs[0];
    if (rows->ndim != 2 || rows->dims[1] != 3 || rows->dtype.code != 0 || rows->dtype.bits != 64)
        return tcc_fail(TCC_INTERNAL, "non-max suppression: results do not fit");
    TCC_RETURN_IF_ERROR(suppress(call, rows->data, rows->dims[0], &count));
    if (count == rows->dims[0]) return TCC_OK;
    return tcc_fail(TCC_INTERNAL, "non-max suppression: another count than before");
}
