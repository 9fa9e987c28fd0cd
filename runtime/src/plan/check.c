/* Proves a plan by one sweep over time. It keeps the live buffers in the order of their offsets. */
#include <string.h>

#include "plan.h"

typedef struct event {
    int64_t time;
    int64_t buffer; /* ~buffer: the buffer dies */
} event;

/* Deaths come before births of the same time. */
static int compare_events(const void *a, const void *b) {
    const event *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

static tcc_status wrong(int64_t buffer, const char *defect) {
    return tcc_fail(TCC_INTERNAL, "buffer %lld %s", (long long)buffer, defect);
}

static tcc_status check_offset(const tcc_life *buffers, const int64_t *offsets, int64_t number,
                               int64_t peak) {
    const tcc_life *life = &buffers[number];
    int64_t at = offsets[number];
    if (life->lower >= life->upper) return wrong(number, "has no life");
    if (at < 0 || life->size > peak || at > peak - life->size)
        return wrong(number, "is not within the arena");
    if (at % life->alignment) return wrong(number, "is not aligned");
    if (life->fixed >= 0 && at != life->fixed) return wrong(number, "is not at its fixed offset");
    if (life->over >= 0 && at != offsets[life->over])
        return wrong(number, "is not at the offset of the buffer it lies over");
    return TCC_OK;
}

/* Returns the first place among the live buffers whose offset is not below `offset`. */
static int64_t place_of(const int64_t *alive, int64_t count, const int64_t *offsets,
                        int64_t offset) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (offsets[alive[middle]] < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static tcc_status sweep(const tcc_life *buffers, const int64_t *offsets, const event *events,
                        int64_t n_events, int64_t *alive) {
    int64_t count = 0;
    for (int64_t i = 0; i < n_events; i++) {
        bool dies = events[i].buffer < 0;
        int64_t number = dies ? ~events[i].buffer : events[i].buffer, at = offsets[number];
        int64_t place = place_of(alive, count, offsets, at);
        size_t behind = (size_t)(count - place) * sizeof *alive;
        if (dies) {
            memmove(alive + place, alive + place + 1, behind - sizeof *alive);
            count--;
            continue;
        }
        if (place && offsets[alive[place - 1]] + buffers[alive[place - 1]].size > at)
            return wrong(number, "meets one that lives with it");
        if (place < count && at + buffers[number].size > offsets[alive[place]])
            return wrong(number, "meets one that lives with it");
        memmove(alive + place + 1, alive + place, behind);
        alive[place] = number;
        count++;
    }
    return TCC_OK;
}

tcc_status tcc_plan_check(const tcc_life *buffers, int64_t count, const int64_t *offsets,
                          int64_t peak) {
    for (int64_t b = 0; b < count; b++)
        TCC_RETURN_IF_ERROR(check_offset(buffers, offsets, b, peak));
    event *events = tcc_allocate((size_t)count * 2 * sizeof *events);
    int64_t *alive = tcc_allocate((size_t)count * sizeof *alive);
    tcc_status status = TCC_OUT_OF_MEMORY;
    if (events && alive) {
        int64_t n = 0;
        for (int64_t b = 0; b < count; b++) {
            if (!buffers[b].size) continue; /* a buffer without bytes overlaps none */
            events[n++] = (event){buffers[b].lower, b};
            events[n++] = (event){buffers[b].upper, ~b};
        }
        if (n) qsort(events, (size_t)n, sizeof *events, compare_events);
        status = sweep(buffers, offsets, events, n, alive);
    }
    tcc_free(events);
    tcc_free(alive);
    return status;
}
