/* roi_align:    inputs (x [B,C,H,W], regions [R,4] as x1 y1 x2 y2, batches i64 [R]),
 *               outputs (y [R,C,h,w]), ints (maximum, sampling ratio, half pixel, scale)
 * max_roi_pool: inputs (x [B,C,H,W], regions [R,5] as batch x1 y1 x2 y2), outputs (y [R,C,h,w]),
 *               ints (scale)
 *
 * x, regions and y are all f32 or all f64; `scale` is the bits of a double.  roi_align computes in
 * double and averages, or takes the maximum if `maximum` is 1; ratio 0 takes as many samples as a
 * cell has pixels.  A batch outside x, or a region that is not finite or reaches beyond 2^31, ends
 * the run. */
#include <math.h>
#include <string.h>

#include "order.h"

static double load(const tcc_op_tensor *x, int64_t at) {
    return x->dtype.bits == 64 ? ((const double *)x->data)[at] : (double)((const float *)x->data)[at];
}

static void store(const tcc_op_tensor *y, int64_t at, double value) {
    if (y->dtype.bits == 64)
        ((double *)y->data)[at] = value;
    else
        ((float *)y->data)[at] = (float)value;
}

static bool same_type(tcc_dtype a, tcc_dtype b) { return memcmp(&a, &b, sizeof a) == 0; }

/* Returns true if x, regions of `width` numbers and y fit each other. */
static bool fits(const tcc_op_call *call, int64_t width) {
    const tcc_op_tensor *x = &call->inputs[0], *regions = &call->inputs[1], *y = &call->outputs[0];
    bool types = x->dtype.code == 2 && (x->dtype.bits == 32 || x->dtype.bits == 64) &&
                 same_type(x->dtype, regions->dtype) && same_type(x->dtype, y->dtype);
    return types && x->ndim == 4 && regions->ndim == 2 && y->ndim == 4 &&
           regions->dims[1] == width && y->dims[0] == regions->dims[0] && y->dims[1] == x->dims[1];
}

static double scale_of(int64_t bits) {
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

typedef struct region {
    double x1, y1, x2, y2;
} region;

/* Reads the region whose numbers start at `at`, times `scale`. */
static tcc_status read_region(const tcc_op_tensor *regions, int64_t at, double scale,
                              region *out_region) {
    double corners[4];
    for (int i = 0; i < 4; i++) {
        corners[i] = load(regions, at + i) * scale;
        if (!(fabs(corners[i]) <= 2147483648.0))
            return tcc_fail(TCC_INVALID_ARGUMENT, "region: coordinate %g is not finite or too large",
                            corners[i]);
    }
    *out_region = (region){corners[0], corners[1], corners[2], corners[3]};
    return TCC_OK;
}

static tcc_status check_batch(double batch, int64_t batches) {
    if (batch >= 0 && batch < (double)batches) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT, "region: batch %g of %lld", batch, (long long)batches);
}

/* ---- roi_align ----------------------------------------------------------------------------------- */

/* Samples along one axis: `count` in each of `cells` cells of `length` pixels from `start`. */
typedef struct samples {
    double start, length;
    int64_t cells, count, size; /* size: the axis's size in x */
} samples;

/* The two neighbours of a sample and their weights. */
typedef struct corner {
    int64_t low, high;
    double low_weight, high_weight;
} corner;

static samples sample_axis(double low, double high, bool half_pixel, int64_t ratio, int64_t cells,
                           int64_t size) {
    double length = high - low;
    if (!half_pixel && length < 1) length = 1;
    double adaptive = ceil(length / (double)cells);
    int64_t count = ratio ? ratio : adaptive > 0 ? (int64_t)adaptive : 0;
    return (samples){low, length, cells, count, size};
}

static double position(const samples *s, int64_t cell, int64_t i) {
    double part = ((double)i + 0.5) / (double)s->count;
    return s->start + ((double)cell + part) * s->length / (double)s->cells;
}

/* Finds a sample's neighbours.  Returns false if it has none in x. */
static bool find_corner(const samples *s, int64_t cell, int64_t i, corner *out_corner) {
    double at = position(s, cell, i);
    if (at < -1 || at > (double)s->size || s->size == 0) return false;
    if (at < 0) at = 0;
    int64_t low = (int64_t)at < s->size - 1 ? (int64_t)at : s->size - 1;
    double fraction = low == s->size - 1 ? 0 : at - (double)low;
    *out_corner = (corner){low, low + 1 < s->size ? low + 1 : low, 1 - fraction, fraction};
    return true;
}

/* Finds the samples [first, end) of a cell that can have neighbours.  Positions are monotonic, so
 * two binary searches suffice, and a region far larger than x costs no more than x. */
static void find_span(const samples *s, int64_t cell, int64_t *out_first, int64_t *out_end) {
    bool rising = s->length >= 0;
    double bounds[2] = {rising ? -1 : (double)s->size, rising ? (double)s->size : -1};
    int64_t ends[2];
    for (int side = 0; side < 2; side++) {
        int64_t low = 0, high = s->count;
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            double at = position(s, cell, middle);
            bool before = rising ? at < bounds[side] : at > bounds[side];
            if (before || (side == 1 && at == bounds[side]))
                low = middle + 1;
            else
                high = middle;
        }
        ends[side] = low;
    }
    *out_first = ends[0];
    *out_end = ends[1];
}

typedef struct pooling {
    const tcc_op_tensor *x;
    bool maximum;
    double value; /* the sum or maximum so far */
    bool any;
} pooling;

static void take(pooling *p, double value) {
    if (!p->maximum)
        p->value += value;
    else if (!p->any || value > p->value || isnan(value))
        p->value = isnan(p->value) ? p->value : value;
    p->any = true;
}

static void take_sample(pooling *p, int64_t plane, corner row, corner column) {
    int64_t width = p->x->dims[3];
    int64_t low = plane + row.low * width, high = plane + row.high * width;
    take(p, load(p->x, low + column.low) * row.low_weight * column.low_weight);
    take(p, load(p->x, low + column.high) * row.low_weight * column.high_weight);
    take(p, load(p->x, high + column.low) * row.high_weight * column.low_weight);
    take(p, load(p->x, high + column.high) * row.high_weight * column.high_weight);
}

/* Returns the value of one cell for the plane of x that starts at `plane`. */
static double align_cell(pooling p, int64_t plane, const samples *rows, int64_t row,
                         const samples *columns, int64_t column) {
    int64_t top, bottom, left, right;
    find_span(rows, row, &top, &bottom);
    find_span(columns, column, &left, &right);
    double all = (double)rows->count * (double)columns->count;
    corner vertical, horizontal;
    for (int64_t i = top; i < bottom; i++)
        for (int64_t j = left; j < right; j++)
            if (find_corner(rows, row, i, &vertical) && find_corner(columns, column, j, &horizontal))
                take_sample(&p, plane, vertical, horizontal);
    bool outside = (double)(bottom - top) * (double)(right - left) < all;
    if (p.maximum && outside) take(&p, 0); /* samples outside x count as zeros */
    return p.maximum || all == 0 ? p.value : p.value / all;
}

tcc_status tcc_op_roi_align(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 3, 1, 4, 0, "roi_align"));
    const tcc_op_tensor *x = &call->inputs[0], *regions = &call->inputs[1];
    const tcc_op_tensor *batches = &call->inputs[2], *y = &call->outputs[0];
    bool indices = batches->dtype.code == 0 && batches->dtype.bits == 64 &&
                   batches->count == regions->dims[0];
    if (!fits(call, 4) || !indices || call->ints[1] < 0 || call->ints[1] > INT32_MAX)
        return tcc_fail(TCC_INTERNAL, "roi_align: operands do not fit");
    if (y->count == 0) return TCC_OK;
    bool half_pixel = call->ints[2] != 0;
    double scale = scale_of(call->ints[3]), shift = half_pixel ? 0.5 : 0;
    int64_t channels = x->dims[1], height = x->dims[2], width = x->dims[3], at = 0;
    for (int64_t r = 0; r < y->dims[0]; r++) {
        int64_t batch = ((const int64_t *)batches->data)[r];
        region box;
        TCC_RETURN_IF_ERROR(check_batch((double)batch, x->dims[0]));
        TCC_RETURN_IF_ERROR(read_region(regions, 4 * r, scale, &box));
        samples rows = sample_axis(box.y1 - shift, box.y2 - shift, half_pixel, call->ints[1],
                                   y->dims[2], height);
        samples columns = sample_axis(box.x1 - shift, box.x2 - shift, half_pixel, call->ints[1],
                                      y->dims[3], width);
        for (int64_t c = 0; c < channels; c++) {
            int64_t plane = (batch * channels + c) * height * width;
            for (int64_t i = 0; i < y->dims[2] && !tcc_run_ends(call->ending); i++)
                for (int64_t j = 0; j < y->dims[3]; j++, at++) {
                    pooling start = {x, call->ints[0] != 0, 0, false};
                    store(y, at, align_cell(start, plane, &rows, i, &columns, j));
                }
        }
    }
    return TCC_OK;
}

/* ---- max_roi_pool -------------------------------------------------------------------------------- */

static int64_t clamp(double value, int64_t size) {
    return value < 0 ? 0 : value > (double)size ? size : (int64_t)value;
}

/* Computes the pixels [first, end) of cell `cell` of `cells` over the pixels low to high inclusive,
 * clipped to the axis. */
static void pixels_of(double low, double high, int64_t cell, int64_t cells, int64_t size,
                      int64_t *out_first, int64_t *out_end) {
    double pixels = high - low + 1 > 1 ? high - low + 1 : 1;
    float step = (float)pixels / (float)cells; /* single precision, as in existing
                                                  implementations */
    *out_first = clamp(floorf((float)cell * step) + low, size);
    *out_end = clamp(ceilf((float)(cell + 1) * step) + low, size);
}

/* Returns the pixel nearest to a scaled coordinate, which is first rounded to the regions' type. */
static double nearest(const tcc_op_tensor *regions, double value) {
    return round(regions->dtype.bits == 64 ? value : (double)(float)value);
}

static double pool_cell(const tcc_op_tensor *x, int64_t plane, const int64_t rows[2],
                        const int64_t columns[2]) {
    pooling p = {x, true, 0, false};
    for (int64_t row = rows[0]; row < rows[1]; row++)
        for (int64_t column = columns[0]; column < columns[1]; column++)
            take(&p, load(x, plane + row * x->dims[3] + column));
    return p.value;
}

tcc_status tcc_op_max_roi_pool(tcc_op_call *call) {
    TCC_RETURN_IF_ERROR(tcc_op_expect(call, 2, 1, 1, 0, "max_roi_pool"));
    if (!fits(call, 5)) return tcc_fail(TCC_INTERNAL, "max_roi_pool: operands do not fit");
    const tcc_op_tensor *x = &call->inputs[0], *regions = &call->inputs[1], *y = &call->outputs[0];
    int64_t channels = x->dims[1], height = x->dims[2], width = x->dims[3], at = 0;
    for (int64_t r = 0; r < y->dims[0]; r++) {
        double batch = load(regions, 5 * r);
        region box;
        TCC_RETURN_IF_ERROR(check_batch(batch, x->dims[0]));
        TCC_RETURN_IF_ERROR(read_region(regions, 5 * r + 1, scale_of(call->ints[0]), &box));
        box = (region){nearest(regions, box.x1), nearest(regions, box.y1),
                       nearest(regions, box.x2), nearest(regions, box.y2)};
        for (int64_t c = 0; c < channels; c++) {
            int64_t plane = ((int64_t)batch * channels + c) * height * width;
            for (int64_t i = 0; i < y->dims[2] && !tcc_run_ends(call->ending); i++)
                for (int64_t j = 0; j < y->dims[3]; j++, at++) {
                    int64_t rows[2], columns[2];
                    pixels_of(box.y1, box.y2, i, y->dims[2], height, rows, rows + 1);
                    pixels_of(box.x1, box.x2, j, y->dims[3], width, columns, columns + 1);
                    store(y, at, pool_cell(x, plane, rows, columns));
                }
        }
    }
    return TCC_OK;
}
