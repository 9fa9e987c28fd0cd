/* Prepares buffers for the planner: sections of time, blocks of one offset, and pairs of buffers
 * that live together. */
#include <string.h>

#include "plan.h"

static const int64_t max_buffers = INT64_C(1) << 24;
static const int64_t max_pairs = INT64_C(1) << 28;
static const int64_t most_bytes = INT64_C(1) << 62;

/* Shell's sort, because most lists are short. The gaps shrink by 5/11 (Gonnet and Baeza-Yates,
 * 1991). */
void tcc_sort_bounds(tcc_bounds *bounds, int64_t count) {
    for (int64_t gap = count / 2; gap; gap = gap == 2 ? 1 : gap * 5 / 11) {
        for (int64_t i = gap; i < count; i++) {
            tcc_bounds moved = bounds[i];
            int64_t at = i;
            for (; at >= gap; at -= gap) {
                tcc_bounds before = bounds[at - gap];
                if (before.from < moved.from ||
                    (before.from == moved.from && before.to <= moved.to))
                    break;
                bounds[at] = before;
            }
            bounds[at] = moved;
        }
    }
}

static tcc_status refuse(int64_t buffer, const char *defect) {
    return tcc_fail(TCC_INVALID_ARGUMENT, "buffer %lld: %s", (long long)buffer, defect);
}

static tcc_status check_buffer(const tcc_life *buffers, int64_t count, int64_t number) {
    const tcc_life *life = &buffers[number];
    if (life->lower >= life->upper) return refuse(number, "its upper time is not above its lower");
    if (life->size < 0) return refuse(number, "its size is negative");
    if (life->alignment <= 0 || life->alignment & (life->alignment - 1))
        return refuse(number, "its alignment is no power of two");
    if (life->size > most_bytes || life->alignment > most_bytes || life->fixed > most_bytes)
        return refuse(number, "its size, alignment or offset is above 2^62");
    if (life->fixed >= 0 && life->fixed % life->alignment)
        return refuse(number, "its fixed offset is not aligned");
    if (life->over < 0) return TCC_OK;
    if (life->over >= count || life->over == number)
        return refuse(number, "it lies over no other buffer");
    if (buffers[life->over].upper > life->lower)
        return refuse(number, "it lies over a buffer that lives when it begins");
    return TCC_OK;
}

static tcc_status set_sizes(const tcc_life *buffers, tcc_lives *lives) {
    lives->unit = INT64_MAX;
    for (int32_t b = 0; b < lives->count; b++) {
        TCC_RETURN_IF_ERROR(check_buffer(buffers, lives->count, b));
        if (buffers[b].alignment < lives->unit) lives->unit = buffers[b].alignment;
    }
    int64_t remaining = most_bytes;
    for (int32_t b = 0; b < lives->count; b++) {
        lives->sizes[b] = tcc_aligned(buffers[b].size, lives->unit);
        /* a gap before the buffer counts as taken */
        int64_t bytes = lives->sizes[b] + buffers[b].alignment;
        if (bytes > remaining) return refuse(b, "the sizes up to it sum to more than 2^62");
        remaining -= bytes;
        if (buffers[b].fixed > remaining) return refuse(b, "its fixed offset is too large");
    }
    return TCC_OK;
}

/* Follows each `over` to the first buffer of the block. Lives along a chain do not overlap, so
 * there are no cycles. */
static tcc_status set_blocks(const tcc_life *buffers, tcc_lives *lives) {
    for (int32_t b = 0; b < lives->count; b++) {
        lives->block[b] = lives->next[b] = -1;
        lives->alignment[b] = buffers[b].alignment;
        lives->fixed[b] = buffers[b].fixed < 0 ? -1 : buffers[b].fixed;
    }
    for (int32_t b = 0; b < lives->count; b++) {
        int64_t before = buffers[b].over;
        if (before < 0) continue;
        if (lives->next[before] >= 0) return refuse(b, "it lies over a buffer that another lies over");
        lives->next[before] = b;
    }
    for (int32_t b = 0; b < lives->count; b++) {
        if (buffers[b].over >= 0) continue;
        for (int32_t part = b; part >= 0; part = lives->next[part]) {
            lives->block[part] = b;
            if (buffers[part].alignment > lives->alignment[b])
                lives->alignment[b] = buffers[part].alignment;
            if (buffers[part].fixed < 0) continue;
            if (lives->fixed[b] >= 0 && lives->fixed[b] != buffers[part].fixed)
                return refuse(part, "its fixed offset is not that of the buffer it lies over");
            lives->fixed[b] = buffers[part].fixed;
        }
        if (lives->fixed[b] >= 0 && lives->fixed[b] % lives->alignment[b])
            return refuse(b, "its fixed offset is not aligned for a buffer over it");
    }
    return TCC_OK;
}

static void set_sections(const tcc_life *buffers, tcc_lives *lives, tcc_bounds *times) {
    int64_t count = lives->count;
    for (int64_t b = 0; b < count; b++) {
        times[b] = (tcc_bounds){buffers[b].lower, b};
        times[count + b] = (tcc_bounds){buffers[b].upper, count + b};
    }
    tcc_sort_bounds(times, 2 * count);
    int32_t section = 0;
    for (int64_t i = 0; i < 2 * count; i++) {
        if (i && times[i].from != times[i - 1].from) section++;
        if (times[i].to < count)
            lives->first[times[i].to] = section;
        else
            lives->last[times[i].to - count] = section;
    }
    lives->sections = section;
}

/* Counts pairs. It takes buffers in order of their first section: each meets the buffers that begin
 * while it lives. */
static int64_t count_pairs(const tcc_lives *lives, const tcc_bounds *order) {
    int64_t pairs = 0;
    for (int64_t i = 0; i < lives->count; i++) {
        int64_t b = order[i].to;
        for (int64_t j = i + 1; j < lives->count && lives->sizes[b]; j++) {
            int64_t other = order[j].to;
            if (lives->first[other] >= lives->last[b]) break;
            if (!lives->sizes[other]) continue;
            lives->starts[b + 1]++;
            lives->starts[other + 1]++;
            if (++pairs > max_pairs) return pairs;
        }
    }
    return pairs;
}

static void set_neighbours(tcc_lives *lives, const tcc_bounds *order, int64_t *ends) {
    for (int64_t i = 0; i < lives->count; i++) {
        int32_t b = (int32_t)order[i].to;
        for (int64_t j = i + 1; j < lives->count && lives->sizes[b]; j++) {
            int32_t other = (int32_t)order[j].to;
            if (lives->first[other] >= lives->last[b]) break;
            if (!lives->sizes[other]) continue;
            lives->neighbours[ends[b]++] = other;
            lives->neighbours[ends[other]++] = b;
        }
    }
}

static tcc_status meet(tcc_lives *lives, tcc_bounds *order) {
    for (int64_t b = 0; b < lives->count; b++) order[b] = (tcc_bounds){lives->first[b], b};
    tcc_sort_bounds(order, lives->count);
    int64_t pairs = count_pairs(lives, order);
    if (pairs > max_pairs)
        return tcc_fail(TCC_UNSUPPORTED, "more than %lld pairs of buffers live at one time",
                        (long long)max_pairs);
    for (int64_t b = 0; b < lives->count; b++) lives->starts[b + 1] += lives->starts[b];
    size_t bytes = (size_t)lives->count * sizeof *lives->starts;
    lives->neighbours = tcc_allocate((size_t)(2 * pairs) * sizeof *lives->neighbours);
    int64_t *ends = tcc_allocate(bytes);
    if (lives->neighbours && ends) {
        memcpy(ends, lives->starts, bytes);
        set_neighbours(lives, order, ends);
    }
    bool has_memory = lives->neighbours && ends;
    tcc_free(ends);
    return has_memory ? TCC_OK : TCC_OUT_OF_MEMORY;
}

static tcc_status fill(const tcc_life *buffers, tcc_lives *lives) {
    TCC_RETURN_IF_ERROR(set_sizes(buffers, lives));
    TCC_RETURN_IF_ERROR(set_blocks(buffers, lives));
    tcc_bounds *scratch = tcc_allocate((size_t)lives->count * 2 * sizeof *scratch);
    if (!scratch) return TCC_OUT_OF_MEMORY;
    set_sections(buffers, lives, scratch);
    tcc_status status = meet(lives, scratch);
    tcc_free(scratch);
    return status;
}

tcc_status tcc_lives_make(const tcc_life *buffers, int64_t count, tcc_lives *out_lives) {
    memset(out_lives, 0, sizeof *out_lives);
    if (count < 0 || count > max_buffers)
        return tcc_fail(TCC_UNSUPPORTED, "%lld buffers, at most %lld can be planned",
                        (long long)count, (long long)max_buffers);
    size_t n = (size_t)count;
    out_lives->count = (int32_t)count;
    out_lives->sizes = tcc_allocate_zero(4 * n + 1, sizeof(int64_t));
    out_lives->first = tcc_allocate_zero(4 * n, sizeof(int32_t));
    tcc_status status = TCC_OUT_OF_MEMORY;
    if (out_lives->sizes && out_lives->first) {
        out_lives->alignment = out_lives->sizes + n;
        out_lives->fixed = out_lives->alignment + n;
        out_lives->starts = out_lives->fixed + n;
        out_lives->last = out_lives->first + n;
        out_lives->block = out_lives->last + n;
        out_lives->next = out_lives->block + n;
        status = fill(buffers, out_lives);
    }
    if (status != TCC_OK) tcc_lives_free(out_lives);
    return status;
}

void tcc_lives_free(tcc_lives *lives) {
    tcc_free(lives->sizes);
    tcc_free(lives->first);
    tcc_free(lives->neighbours);
    memset(lives, 0, sizeof *lives);
}
