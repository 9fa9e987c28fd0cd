/* Carries out operations of a comm by NCCL functions. NCCL has no all_to_all and no uneven counts:
 * groups of sends and receives replace them. */
#include <string.h>

#include "nccl.h"

/* ncclDataType_t and ncclRedOp_t. */
static const int types[TCC_COMM_TYPES] = {
    [TCC_COMM_I8] = 0,  [TCC_COMM_U8] = 1,  [TCC_COMM_I32] = 2, [TCC_COMM_I64] = 4,
    [TCC_COMM_F16] = 6, [TCC_COMM_F32] = 7, [TCC_COMM_F64] = 8, [TCC_COMM_BF16] = 9,
};
static const int reductions[] = {
    [TCC_COMM_SUM] = 0, [TCC_COMM_PROD] = 1, [TCC_COMM_MAX] = 2,
    [TCC_COMM_MIN] = 3, [TCC_COMM_AVG] = 4,
};

tcc_status tcc_nccl_check(const tcc_nccl *nccl, const tcc_comm_work *work) {
    char text[TCC_COMM_TEXT];
    const char *why = NULL;
    bool reduces = work->call.kind == TCC_COMM_ALL_REDUCE ||
                   work->call.kind == TCC_COMM_REDUCE_SCATTER;
    if (work->call.kind == TCC_COMM_BARRIER)
        why = "it is no operation of GPUs; the comm's is for the host";
    if (reduces && work->call.reduction == TCC_COMM_AVG && work->type > TCC_COMM_F64)
        why = "the library's sums of integers wrap around before they are divided";
    if (work->call.kind == TCC_COMM_ALL_TO_ALL && work->call.count && work->send == work->receive)
        why = "it cannot be done in place";
    if (!why) return TCC_OK;
    return tcc_fail(TCC_UNSUPPORTED, "%s by %s: %s", tcc_comm_text(&work->descriptor, text),
                    nccl->name, why);
}

typedef struct issue {
    const tcc_nccl *nccl;
    void *comm, *stream;
    int32_t rank, size;
    const char *call; /* the function that failed */
    int result;
} issue;

/* Keeps the first failure. */
static void note(issue *to, int result, const char *call) {
    bool failed = to->result != TCC_NCCL_SUCCESS && to->result != TCC_NCCL_IN_PROGRESS;
    if (failed || result == TCC_NCCL_SUCCESS) return;
    to->result = result;
    to->call = call;
}

#define NOTE(to, name, ...) note(to, (to)->nccl->name(__VA_ARGS__), "nccl" #name)

static void send_to(issue *to, const tcc_comm_work *work, const char *data, int64_t count,
                    int32_t peer) {
    if (count)
        NOTE(to, Send, data, (size_t)count, types[work->type], peer, to->comm, to->stream);
}

static void receive_from(issue *to, const tcc_comm_work *work, char *data, int64_t count,
                         int32_t peer) {
    if (count)
        NOTE(to, Recv, data, (size_t)count, types[work->type], peer, to->comm, to->stream);
}

static void gather_parts(issue *to, const tcc_comm_work *work) {
    const int64_t *counts = work->call.send_counts;
    char *part = work->receive;
    for (int32_t i = 0; i < to->size; i++) {
        if (i != to->rank || part != work->send) { /* in place, this rank's part is there already */
            send_to(to, work, work->send, counts[to->rank], i);
            receive_from(to, work, part, counts[i], i);
        }
        part += (size_t)counts[i] * work->element;
    }
}

static void exchange_parts(issue *to, const tcc_comm_work *work) {
    const tcc_comm_call *call = &work->call;
    const char *from = work->send;
    char *part = work->receive;
    for (int32_t i = 0; i < to->size; i++) {
        int64_t sent = call->send_counts ? call->send_counts[i] : call->count;
        int64_t received = call->send_counts ? call->receive_counts[i] : call->count;
        send_to(to, work, from, sent, i);
        receive_from(to, work, part, received, i);
        from += (size_t)sent * work->element;
        part += (size_t)received * work->element;
    }
}

static void issue_one(issue *to, const tcc_comm_work *work) {
    const tcc_comm_call *call = &work->call;
    size_t count = (size_t)call->count;
    int type = types[work->type], reduction = reductions[call->reduction];
    switch (call->kind) {
    case TCC_COMM_ALL_REDUCE:
        NOTE(to, AllReduce, work->send, work->receive, count, type, reduction, to->comm,
             to->stream);
        return;
    case TCC_COMM_REDUCE_SCATTER:
        NOTE(to, ReduceScatter, work->send, work->receive, count, type, reduction, to->comm,
             to->stream);
        return;
    case TCC_COMM_ALL_GATHER:
        NOTE(to, AllGather, work->send, work->receive, count, type, to->comm, to->stream);
        return;
    case TCC_COMM_BROADCAST: /* only the root's buffer is read */
        NOTE(to, Broadcast, work->send ? work->send : work->receive, work->receive, count, type,
             call->root, to->comm, to->stream);
        return;
    case TCC_COMM_ALL_GATHER_V: gather_parts(to, work); return;
    case TCC_COMM_SEND: send_to(to, work, work->send, call->count, call->root); return;
    case TCC_COMM_RECEIVE: receive_from(to, work, work->receive, call->count, call->root); return;
    default: exchange_parts(to, work);
    }
}

int tcc_nccl_issue(const tcc_nccl *nccl, void *comm, int32_t rank, int32_t size,
                   const tcc_nccl_work *works, int32_t n, const char **out_call) {
    issue to = {.nccl = nccl, .comm = comm, .rank = rank, .size = size, .call = "ncclGroupEnd"};
    NOTE(&to, GroupStart);
    for (int32_t i = 0; i < n; i++) {
        to.stream = works[i].stream;
        issue_one(&to, &works[i].work);
    }
    NOTE(&to, GroupEnd); /* also after a failure, because it ends the group */
    *out_call = to.call;
    return to.result;
}
