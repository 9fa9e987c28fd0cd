/* Parts of one op on the run's threads. */
#include "order.h"

typedef struct parts {
    tcc_op_part part;
    void *context;
} parts;

static void run_part(void *const *buffers, const int64_t *ints, int64_t begin, int64_t end,
                     void *scratch) {
    const parts *parts = buffers[0];
    (void)ints;
    parts->part(parts->context, begin, end, scratch);
}

tcc_status tcc_op_parallel(const tcc_op_call *call, tcc_op_part part, void *context, int64_t units,
                           size_t room) {
    if (units <= 0) return TCC_OK;
    int64_t threads = call->crew && call->threads < units ? call->threads : units;
    if (!call->crew) threads = 1;
    void *memory = NULL;
    size_t stride = (room + 127) & ~(size_t)127;
    if (room) TCC_RETURN_IF_ERROR(tcc_pool_take(call->pool, stride * (size_t)threads, &memory));
    if (threads == 1) {
        part(context, 0, units, memory);
    } else {
        parts parts = {part, context};
        void *const buffers[] = {&parts};
        tcc_job job = {.kernel = run_part, .buffers = buffers, .units = units, .scratch = memory,
                       .scratch_stride = stride, .threads = (int32_t)threads};
        tcc_crew_launch(call->crew, &job);
        tcc_crew_settle(call->crew);
    }
    if (room) tcc_pool_give(call->pool, memory);
    return TCC_OK;
}
