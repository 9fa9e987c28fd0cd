/* Checks calls, and describes them in messages. */
#include <string.h>

#include "../sized.h"
#include "comm.h"

typedef struct type_row {
    const char *name;
    tcc_dtype dtype;
} type_row;

static const type_row types[TCC_COMM_TYPES] = {
    [TCC_COMM_F16] = {"f16", {2, 16, 1}}, [TCC_COMM_BF16] = {"bf16", {4, 16, 1}},
    [TCC_COMM_F32] = {"f32", {2, 32, 1}}, [TCC_COMM_F64] = {"f64", {2, 64, 1}},
    [TCC_COMM_I8] = {"i8", {0, 8, 1}},    [TCC_COMM_U8] = {"u8", {1, 8, 1}},
    [TCC_COMM_I32] = {"i32", {0, 32, 1}}, [TCC_COMM_I64] = {"i64", {0, 64, 1}},
};

enum { REDUCES = 1, SENDS_ALL = 2, RECEIVES_ALL = 4, HAS_ROOT = 8, COUNTS = 16, TRANSFERS = 32 };

typedef struct kind_row {
    const char *name;
    int traits; /* SENDS_ALL: `send` has one part for each rank; RECEIVES_ALL: `receive` has */
} kind_row;

static const kind_row kinds[] = {
    [TCC_COMM_BARRIER] = {"barrier", 0},
    [TCC_COMM_ALL_REDUCE] = {"all_reduce", REDUCES},
    [TCC_COMM_REDUCE_SCATTER] = {"reduce_scatter", REDUCES | SENDS_ALL},
    [TCC_COMM_ALL_GATHER] = {"all_gather", RECEIVES_ALL},
    [TCC_COMM_ALL_GATHER_V] = {"all_gather_v", RECEIVES_ALL | COUNTS},
    [TCC_COMM_ALL_TO_ALL] = {"all_to_all", SENDS_ALL | RECEIVES_ALL},
    [TCC_COMM_ALL_TO_ALL_V] = {"all_to_all_v", SENDS_ALL | RECEIVES_ALL | COUNTS},
    [TCC_COMM_BROADCAST] = {"broadcast", HAS_ROOT},
    [TCC_COMM_SEND] = {"send", HAS_ROOT | TRANSFERS},
    [TCC_COMM_RECEIVE] = {"receive", HAS_ROOT | TRANSFERS},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const char *const reductions[] = {"sum", "prod", "min", "max", "avg"};
enum { REDUCTIONS = sizeof reductions / sizeof *reductions };

size_t tcc_comm_type_bytes(tcc_comm_type type) { return types[type].dtype.bits / 8; }

bool tcc_comm_is_transfer(tcc_comm_kind kind) { return (kinds[kind].traits & TRANSFERS) != 0; }

int64_t tcc_comm_elements_before(const int64_t *counts, int32_t peer) {
    int64_t before = 0;
    for (int32_t i = 0; i < peer; i++) before += counts[i];
    return before;
}

const char *tcc_comm_text(const tcc_comm_descriptor *descriptor, char text[TCC_COMM_TEXT]) {
    /* the descriptor may come from another process */
    if (descriptor->kind >= KINDS || descriptor->type >= TCC_COMM_TYPES ||
        descriptor->reduction >= REDUCTIONS) {
        snprintf(text, TCC_COMM_TEXT, "an unknown operation");
        return text;
    }
    const kind_row *kind = &kinds[descriptor->kind];
    char count[64] = "", by[32] = "", root[32] = "", place[64] = "";
    if (descriptor->kind == TCC_COMM_ALL_GATHER_V)
        snprintf(count, sizeof count, " of %s with counts of hash %016llx",
                 types[descriptor->type].name, (unsigned long long)descriptor->count);
    else if (descriptor->kind == TCC_COMM_ALL_TO_ALL_V)
        snprintf(count, sizeof count, " of %s", types[descriptor->type].name);
    else if (descriptor->kind != TCC_COMM_BARRIER)
        snprintf(count, sizeof count, " of %lld %s", (long long)descriptor->count,
                 types[descriptor->type].name);
    if (kind->traits & REDUCES)
        snprintf(by, sizeof by, " by %s", reductions[descriptor->reduction]);
    if (kind->traits & HAS_ROOT)
        snprintf(root, sizeof root, " %s rank %d",
                 descriptor->kind == TCC_COMM_SEND ? "to" : "from", descriptor->root);
    if (descriptor->place)
        snprintf(place, sizeof place, " in the symmetric arena (place %llx)",
                 (unsigned long long)descriptor->where);
    snprintf(text, TCC_COMM_TEXT, "%s%s%s%s%s", kind->name, count, by, root, place);
    return text;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static tcc_status find_type(tcc_dtype dtype, tcc_comm_type *out_type) {
    for (int i = 0; i < TCC_COMM_TYPES; i++)
        if (memcmp(&types[i].dtype, &dtype, sizeof dtype) == 0) {
            *out_type = (tcc_comm_type)i;
            return TCC_OK;
        }
    return tcc_fail(TCC_UNSUPPORTED,
                    "element type (code %d, %d bits, %d lanes): collectives take f16, bf16, f32, "
                    "f64, i8, u8, i32 and i64",
                    dtype.code, dtype.bits, dtype.lanes);
}

/* Returns the elements of a buffer: `parts` times the count, or the sum of counts; -1 where the
 * number is no valid size. */
static int64_t total_elements(int64_t count, const int64_t *counts, int32_t parts, size_t element) {
    int64_t total = 0, limit = INT64_MAX / (int64_t)element;
    for (int32_t i = 0; i < parts; i++) {
        int64_t part = counts ? counts[i] : count;
        if (part < 0 || part > limit - total) return -1;
        total += part;
    }
    return total;
}

static tcc_status check_counts(const tcc_comm_call *call, int32_t size, size_t element,
                               int64_t *out_send, int64_t *out_receive) {
    int traits = kinds[call->kind].traits;
    bool counted = traits & COUNTS, both = call->kind == TCC_COMM_ALL_TO_ALL_V;
    if (counted && (!call->send_counts || (both && !call->receive_counts)))
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s: the counts are NULL", kinds[call->kind].name);
    const int64_t *sent = counted ? call->send_counts : NULL;
    const int64_t *received = both ? call->receive_counts : sent;
    *out_send = total_elements(call->count, sent, traits & SENDS_ALL ? size : 1, element);
    *out_receive = total_elements(call->count, received, traits & RECEIVES_ALL ? size : 1, element);
    if (*out_send < 0 || *out_receive < 0)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "%s: a count is negative, or there are more bytes than a size can hold",
                        kinds[call->kind].name);
    return TCC_OK;
}

static int64_t hash_of(const int64_t *counts, int32_t n) {
    uint64_t state = UINT64_C(0xcbf29ce484222325);
    for (int32_t i = 0; i < n; i++) {
        state = (state ^ (uint64_t)counts[i]) * UINT64_C(0x9e3779b97f4a7c15);
        state ^= state >> 29;
    }
    return (int64_t)state;
}

/* Reads a call of any version. A call of this version takes the fast path. */
static tcc_status read_call(const tcc_comm_call *caller_call, tcc_comm_call *out_call) {
    static const tcc_sized kind = {
        "tcc_comm_call", sizeof *caller_call, TCC_END(tcc_comm_call, count),
        TCC_ENDS(tcc_comm_call, count) | TCC_ENDS(tcc_comm_call, send_counts) |
            TCC_ENDS(tcc_comm_call, receive_counts)};
    if (TCC_UNLIKELY(!caller_call || caller_call->struct_size != sizeof *caller_call))
        return tcc_sized_read(&kind, caller_call, out_call);
    *out_call = *caller_call;
    return TCC_OK;
}

tcc_status tcc_comm_check_call(const tcc_comm_call *caller_call, int32_t rank, int32_t size,
                               tcc_comm_work *out_work) {
    tcc_comm_work work = {.type = TCC_COMM_U8};
    TCC_RETURN_IF_ERROR(read_call(caller_call, &work.call));
    const tcc_comm_call *call = &work.call;
    if ((uint32_t)call->kind >= KINDS || (uint32_t)call->reduction >= REDUCTIONS)
        return tcc_fail(TCC_INVALID_ARGUMENT, "no operation %d, or no reduction %d",
                        (int)call->kind, (int)call->reduction);
    int traits = kinds[call->kind].traits;
    if (call->kind == TCC_COMM_BARRIER)
        work.call.count = 0;
    else
        TCC_RETURN_IF_ERROR(find_type(call->dtype, &work.type));
    if (traits & HAS_ROOT && (call->root < 0 || call->root >= size))
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s: rank %d of a comm of %d ranks",
                        kinds[call->kind].name, call->root, size);
    if (traits & TRANSFERS && call->root == rank)
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s: the peer is the calling rank %d",
                        kinds[call->kind].name, rank);
    work.element = tcc_comm_type_bytes(work.type);
    int64_t sent, received;
    TCC_RETURN_IF_ERROR(check_counts(&work.call, size, work.element, &sent, &received));
    if (traits & COUNTS) work.call.count = 0;
    if (!(traits & COUNTS)) work.call.send_counts = NULL;
    if (call->kind != TCC_COMM_ALL_TO_ALL_V) work.call.receive_counts = NULL;
    work.descriptor = (tcc_comm_descriptor){
        .kind = (uint8_t)call->kind,
        .type = (uint8_t)work.type,
        .reduction = traits & REDUCES ? (uint8_t)call->reduction : 0,
        .root = traits & HAS_ROOT ? call->root : 0,
        .count = call->kind == TCC_COMM_ALL_GATHER_V ? hash_of(call->send_counts, size)
                                                     : work.call.count,
    };
    *out_work = work;
    return TCC_OK;
}

/* Returns the offset in bytes from the send buffer at which `receive` may lie; -1 if nowhere. */
static int64_t same_place(const tcc_comm_work *work, int32_t rank) {
    int64_t element = (int64_t)work->element;
    switch (work->call.kind) {
    case TCC_COMM_ALL_REDUCE:
    case TCC_COMM_ALL_TO_ALL:
    case TCC_COMM_BROADCAST: return 0;
    case TCC_COMM_REDUCE_SCATTER: return rank * work->call.count * element;
    case TCC_COMM_ALL_GATHER: return -rank * work->call.count * element;
    case TCC_COMM_ALL_GATHER_V:
        return -tcc_comm_elements_before(work->call.send_counts, rank) * element;
    default: return INT64_MIN;
    }
}

tcc_status tcc_comm_check_buffers(tcc_comm_work *work, int32_t rank, int32_t size, const void *send,
                                  void *receive) {
    const tcc_comm_call *call = &work->call;
    int64_t sent, received;
    TCC_RETURN_IF_ERROR(check_counts(call, size, work->element, &sent, &received));
    if (call->kind == TCC_COMM_ALL_GATHER_V) sent = call->send_counts[rank];
    bool sends =
        call->kind != TCC_COMM_RECEIVE && (call->kind != TCC_COMM_BROADCAST || call->root == rank);
    if (!sends) sent = 0;
    if (call->kind == TCC_COMM_SEND) received = 0;
    if ((sent > 0 && !send) || (received > 0 && !receive))
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s: a buffer is NULL", kinds[call->kind].name);
    uintptr_t from = (uintptr_t)send, to = (uintptr_t)receive;
    size_t send_bytes = (size_t)sent * work->element, bytes = (size_t)received * work->element;
    bool apart = from + send_bytes <= to || to + bytes <= from || !send_bytes || !bytes;
    if (!apart && (int64_t)(to - from) != same_place(work, rank))
        return tcc_fail(TCC_INVALID_ARGUMENT, "%s: the send and receive buffers overlap",
                        kinds[call->kind].name);
    work->send = sends ? send : NULL;
    work->receive = receive;
    work->sent = send_bytes;
    work->received = bytes;
    return TCC_OK;
}
