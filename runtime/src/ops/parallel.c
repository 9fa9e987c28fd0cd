/* Runs parts of one op on the run's threads. */
#include "order.h"

enum { CHUNK = 64 }; /* units between two checks whether the run ends, at first */

typedef struct parts {
    tcc_op_part part;
    void *context;
    tcc_ending *ending;
} parts;

static void run_chunk(const void *of, int64_t begin, int64_t end, void *room) {
    const parts *parts = of;
    parts->part(parts->context, begin, end, room);
}

static void run_part(void *const *buffers, const int64_t *ints, int64_t begin, int64_t end,
                     void *scratch) {
    const parts *parts = buffers[0];
    const tcc_chunked work = {run_chunk, parts};
    int64_t chunk = CHUNK;
    (void)ints;
    tcc_by_chunks(parts->ending, &work, begin, end, scratch, &chunk);
}

tcc_status tcc_op_parallel(const tcc_op_call *call, tcc_op_part part, void *context, int64_t units,
                           size_t room) {
    if (units <= 0) return TCC_OK;
    int64_t threads = call->crew && call->threads < units ? call->threads : units;
    if (!call->crew) threads = 1;
    void *memory = NULL;
    size_t stride = (room + 127) & ~(size_t)127;
    if (room) TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, stride * (size_t)threads, &memory));
    parts parts = {part, context, call->ending};
    void *const buffers[] = {&parts};
    if (threads == 1) {
        run_part(buffers, NULL, 0, units, memory);
    } else {
        tcc_job job = {.kernel = run_part, .buffers = buffers, .units = units, .scratch = memory,
                       .scratch_stride = stride, .threads = (int32_t)threads};
        tcc_crew_launch(call->crew, &job);
        tcc_crew_settle(call->crew);
    }
    if (room) tcc_pool_give(call->pool, memory);
    return tcc_has_ended(call->ending) ? tcc_cancelled(call->ending) : TCC_OK;
}
