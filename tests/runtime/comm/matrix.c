/* Checks every operation, element type and reduction against the oracle: with odd counts, in place
 * or not, misaligned or not, by its function, as a plan and started.  Guard bytes surround the
 * receive buffers.  On the backend `shared` it also checks the symmetric arena, with all ranks and
 * with groups of them.
 *
 *     matrix RANKS short|long [BACKEND [nccl|rccl]]
 *
 * RANKS 0: this process is one rank of a launcher's job.  With nccl or rccl, buffers lie on
 * stand-in GPUs (on_devices.h); operations that these libraries lack are left out. */
#include <stdbool.h>

#include "on_devices.h"
#include "oracle.h"

enum { GUARD = 64, GUARD_BYTE = 0x5a };

static bool is_long;
static uint64_t cases; /* equal on all ranks: the seed, also used to choose alternatives */

typedef struct buffers {
    char *block;
    char *send, *receive;
    size_t bytes;
    bool same;
} buffers;

static const char *platform; /* NULL: buffers are in host memory */
static gpu device;
static tcc_comm_device *joined;
static void *stream;
static buffers last; /* the buffers that were made last */
static char *arena;  /* NULL: buffers come from malloc */
static size_t arena_used, arena_users;
enum { ARENA = 16 << 20 };

/* Takes a block of the arena.  All of it is free again once the last block is freed. */
static char *make_block(size_t bytes) {
    if (!arena) return malloc(bytes);
    char *block = arena + arena_used;
    arena_used += (bytes + 63) / 64 * 64;
    arena_users++;
    return arena_used <= ARENA ? block : NULL;
}

static void free_buffers(buffers *of) {
    if (!arena) free(of->block);
    if (arena && !--arena_users) arena_used = 0;
}

/* Makes buffers.  With `same`, `send_at` is the place of send in receive, or `receive_at` that of
 * receive in send. */
static buffers make_buffers(size_t send, size_t receive, bool same, ptrdiff_t send_at,
                            ptrdiff_t receive_at, bool misaligned) {
    size_t room = (same ? (send > receive ? send : receive) : send + receive) + 4 * GUARD + 2;
    buffers created = {.block = make_block(room), .bytes = room, .same = same};
    CHECK(created.block, "out of memory");
    memset(created.block, GUARD_BYTE, room);
    char *base = created.block + GUARD + (misaligned ? 1 : 0);
    /* the receive buffer comes first: ranks send different sizes, but receive at the same place */
    created.send = same ? base + send_at : base + receive + 2 * GUARD;
    created.receive = same ? base + receive_at : base;
    return last = created;
}

static void check_guards(const char *operation, const char *begin, size_t bytes) {
    for (int i = 1; i <= GUARD / 2; i++)
        CHECK((uint8_t)begin[-i] == GUARD_BYTE &&
                  (uint8_t)begin[(ptrdiff_t)bytes + i - 1] == GUARD_BYTE,
              "%s writes beside its buffer", operation);
}

/* Calls a function on elements of type `of`. */
#define CALL(name, ...)                                                                            \
    ((tcc_comm_call){.struct_size = sizeof(tcc_comm_call), .kind = TCC_COMM_##name,                \
                     .dtype = dtypes[of], __VA_ARGS__})

/* Does the call by the function of its name. */
static tcc_status call_directly(tcc_comm *comm, const tcc_comm_call *call, const void *send,
                                void *receive) {
    switch (call->kind) {
    case TCC_COMM_ALL_REDUCE:
        return tcc_comm_all_reduce(comm, send, receive, call->count, call->dtype, call->reduction);
    case TCC_COMM_REDUCE_SCATTER:
        return tcc_comm_reduce_scatter(comm, send, receive, call->count, call->dtype,
                                       call->reduction);
    case TCC_COMM_ALL_GATHER:
        return tcc_comm_all_gather(comm, send, receive, call->count, call->dtype);
    case TCC_COMM_ALL_GATHER_V:
        return tcc_comm_all_gather_v(comm, send, receive, call->send_counts, call->dtype);
    case TCC_COMM_ALL_TO_ALL:
        return tcc_comm_all_to_all(comm, send, receive, call->count, call->dtype);
    case TCC_COMM_ALL_TO_ALL_V:
        return tcc_comm_all_to_all_v(comm, send, receive, call->send_counts, call->receive_counts,
                                     call->dtype);
    default:
        return tcc_comm_broadcast(comm, send, receive, call->count, call->dtype, call->root);
    }
}

/* Does calls with parts of the block that was made last, on the device.  In every third case they
 * are recorded in a graph, which runs twice if it does not overwrite its inputs. */
static void perform_there(const tcc_comm_call *calls, const void *const *sends,
                          void *const *receives, int n) {
    uint64_t there = device.array(last.block, last.bytes);
    bool again = cases % 3 == 0, group = n > 1;
    CHECK(there, "no device memory");
    if (again) CHECK(!device.begin(stream), "it cannot be recorded");
    if (group) CHECK_OK(tcc_comm_device_group_start(joined));
    for (int i = 0; i < n; i++) {
        const char *send = sends[i];
        char *receive = receives[i];
        CHECK_OK(tcc_comm_device_start(
            joined, &calls[i], send ? (void *)(there + (uint64_t)(send - last.block)) : NULL,
            receive ? (void *)(there + (uint64_t)(receive - last.block)) : NULL, stream));
    }
    if (group) CHECK_OK(tcc_comm_device_group_end(joined));
    void *graph = again ? device.end(stream) : NULL;
    for (int i = 0; again && i < (last.same ? 1 : 2); i++)
        device.replay(graph, stream);
    int error;
    CHECK_OK(tcc_comm_device_wait(joined, device.settle, stream, &error));
    CHECK(!error && !device.read(there, last.block, last.bytes), "error %d of the driver", error);
    if (graph) device.forget(graph);
    device.give(there);
}

/* Does the call by its function, as a plan, or started and waited for, alternately. */
static void perform(tcc_comm *comm, tcc_comm_call call, const void *send, void *receive) {
    tcc_comm_plan *plan;
    uint64_t ticket;
    if (joined) {
        perform_there(&call, &send, &receive, 1);
        return;
    }
    switch (cases % 4) {
    case 0: CHECK_OK(call_directly(comm, &call, send, receive)); return;
    case 1:
        CHECK_OK(tcc_comm_start(comm, &call, send, receive, &ticket));
        CHECK_OK(tcc_comm_wait(comm, ticket));
        return;
    default:
        CHECK_OK(tcc_comm_plan_make(comm, &call, &plan));
        if (cases & 1) {
            CHECK_OK(tcc_comm_plan_start(plan, send, receive, &ticket));
            CHECK_OK(tcc_comm_wait(comm, ticket));
        } else {
            CHECK_OK(tcc_comm_plan_post(plan, send, receive));
        }
        tcc_comm_plan_free(plan);
    }
}

static void check_reduced(const char *operation, type of, tcc_comm_reduction by, int n, int64_t begin,
                          int64_t count, const char *results) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = 0, expected = reduced(of, by, cases, n, begin + i);
        memcpy(&bits, results + (size_t)i * width(of), width(of));
        CHECK(agrees(of, bits, expected),
              "%s of %s by %d, %d ranks, element %lld of %lld: %llx, not %llx", operation,
              type_names[of], (int)by, n, (long long)i, (long long)count, (unsigned long long)bits,
              (unsigned long long)expected);
    }
}

static void check_moved(const char *operation, type of, int rank, int64_t begin, int64_t count,
                        const char *results) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = 0, expected = element_bits(of, cases, rank, begin + i);
        memcpy(&bits, results + (size_t)i * width(of), width(of));
        CHECK(bits == expected, "%s of %s from rank %d, element %lld of %lld: %llx, not %llx", operation,
              type_names[of], rank, (long long)i, (long long)count, (unsigned long long)bits,
              (unsigned long long)expected);
    }
}

static void test_all_reduce(tcc_comm *comm, type of, tcc_comm_reduction by, int64_t count,
                            bool same, bool misaligned) {
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm);
    size_t bytes = (size_t)count * width(of);
    buffers at = make_buffers(bytes, bytes, same, 0, 0, misaligned);
    fill(of, cases, rank, 0, count, at.send);
    perform(comm, CALL(ALL_REDUCE, .count = count, .reduction = by), at.send, at.receive);
    check_reduced("all_reduce", of, by, size, 0, count, at.receive);
    check_guards("all_reduce", at.receive, bytes);
    if (!same) check_moved("what all_reduce sent", of, rank, 0, count, at.send);
    free_buffers(&at);
}

static void test_reduce_scatter(tcc_comm *comm, type of, tcc_comm_reduction by, int64_t count,
                                bool same, bool misaligned) {
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm);
    size_t bytes = (size_t)count * width(of);
    buffers at =
        make_buffers(bytes * (size_t)size, bytes, same, 0, (ptrdiff_t)bytes * rank, misaligned);
    fill(of, cases, rank, 0, count * size, at.send);
    perform(comm, CALL(REDUCE_SCATTER, .count = count, .reduction = by), at.send, at.receive);
    check_reduced("reduce_scatter", of, by, size, rank * count, count, at.receive);
    if (!same) check_guards("reduce_scatter", at.receive, bytes);
    free_buffers(&at);
}

static void test_all_gather(tcc_comm *comm, type of, int64_t count, bool same, bool misaligned) {
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm);
    size_t bytes = (size_t)count * width(of);
    buffers at =
        make_buffers(bytes, bytes * (size_t)size, same, (ptrdiff_t)bytes * rank, 0, misaligned);
    fill(of, cases, rank, 0, count, at.send);
    perform(comm, CALL(ALL_GATHER, .count = count), at.send, at.receive);
    for (int i = 0; i < size; i++)
        check_moved("all_gather", of, i, 0, count, at.receive + bytes * (size_t)i);
    check_guards("all_gather", at.receive, bytes * (size_t)size);
    free_buffers(&at);
}

/* Returns rank r's count: some are 0. */
static int64_t ragged(int64_t count, int a, int b) {
    return (a + 2 * b) % 3 ? count / (1 + (a + b) % 4) : 0;
}

static void test_all_gather_v(tcc_comm *comm, type of, int64_t count, bool same, bool misaligned) {
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm);
    int64_t counts[MOST_RANKS], before = 0, total = 0;
    for (int i = 0; i < size; i++) {
        counts[i] = ragged(count, i, 1);
        if (i < rank) before += counts[i];
        total += counts[i];
    }
    buffers at = make_buffers((size_t)counts[rank] * width(of), (size_t)total * width(of), same,
                              (ptrdiff_t)(before * (int64_t)width(of)), 0, misaligned);
    fill(of, cases, rank, 0, counts[rank], at.send);
    perform(comm, CALL(ALL_GATHER_V, .send_counts = counts), at.send, at.receive);
    const char *next = at.receive;
    for (int i = 0; i < size; next += (size_t)counts[i++] * width(of))
        check_moved("all_gather_v", of, i, 0, counts[i], next);
    check_guards("all_gather_v", at.receive, (size_t)total * width(of));
    free_buffers(&at);
}

static void test_all_to_all(tcc_comm *comm, type of, int64_t count, bool same, bool misaligned) {
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm);
    size_t bytes = (size_t)count * width(of);
    buffers at = make_buffers(bytes * (size_t)size, bytes * (size_t)size, same, 0, 0, misaligned);
    fill(of, cases, rank, 0, count * size, at.send);
    perform(comm, CALL(ALL_TO_ALL, .count = count), at.send, at.receive);
    for (int i = 0; i < size; i++)
        check_moved("all_to_all", of, i, rank * count, count, at.receive + bytes * (size_t)i);
    check_guards("all_to_all", at.receive, bytes * (size_t)size);
    free_buffers(&at);
}

static void test_all_to_all_v(tcc_comm *comm, type of, int64_t count, bool misaligned) {
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm);
    int64_t sent[MOST_RANKS], received[MOST_RANKS], out = 0, in = 0;
    for (int i = 0; i < size; i++) {
        out += sent[i] = ragged(count, rank, i);
        in += received[i] = ragged(count, i, rank);
    }
    buffers at =
        make_buffers((size_t)out * width(of), (size_t)in * width(of), false, 0, 0, misaligned);
    fill(of, cases, rank, 0, out, at.send);
    perform(comm, CALL(ALL_TO_ALL_V, .send_counts = sent, .receive_counts = received), at.send,
            at.receive);
    const char *next = at.receive;
    for (int i = 0; i < size; next += (size_t)received[i++] * width(of)) {
        int64_t begin = 0; /* begin of this rank's part in rank i's data */
        for (int k = 0; k < rank; k++) begin += ragged(count, i, k);
        check_moved("all_to_all_v", of, i, begin, received[i], next);
    }
    check_guards("all_to_all_v", at.receive, (size_t)in * width(of));
    free_buffers(&at);
}

static void test_broadcast(tcc_comm *comm, type of, int64_t count, bool same, bool misaligned) {
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm),
        root = (int)(cases % (uint64_t)size);
    size_t bytes = (size_t)count * width(of);
    buffers at = make_buffers(bytes, bytes, same, 0, 0, misaligned);
    fill(of, cases, rank, 0, count, at.send);
    perform(comm, CALL(BROADCAST, .count = count, .root = root), at.send, at.receive);
    check_moved("broadcast", of, root, 0, count, at.receive);
    check_guards("broadcast", at.receive, bytes);
    free_buffers(&at);
}

/* Sends around a ring in one group: every rank sends twice to the next rank and receives twice from
 * the one before. */
static void test_ring(tcc_comm *comm, type of, int64_t count, bool misaligned) {
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm);
    if (size == 1) return;
    int next = (rank + 1) % size, last_rank = (rank + size - 1) % size;
    size_t bytes = (size_t)count * width(of);
    buffers at = make_buffers(2 * bytes, 2 * bytes, false, 0, 0, misaligned);
    fill(of, cases, rank, 0, 2 * count, at.send);
    if (joined) {
        char *in = at.receive, *out = at.send;
        const tcc_comm_call calls[] = {CALL(SEND, .count = count, .root = next),
                                       CALL(RECEIVE, .count = count, .root = last_rank),
                                       CALL(SEND, .count = count, .root = next),
                                       CALL(RECEIVE, .count = count, .root = last_rank)};
        perform_there(calls, (const void *[]){out, NULL, out + bytes, NULL},
                      (void *[]){NULL, in, NULL, in + bytes}, 4);
    } else {
        CHECK_OK(tcc_comm_group_start(comm));
    }
    for (size_t part = 0; !joined && part < 2; part++) {
        CHECK_OK(tcc_comm_send(comm, at.send + part * bytes, count, dtypes[of], next));
        CHECK_OK(tcc_comm_receive(comm, at.receive + part * bytes, count, dtypes[of], last_rank));
    }
    if (!joined) CHECK_OK(tcc_comm_group_end(comm));
    check_moved("send and receive", of, last_rank, 0, 2 * count, at.receive);
    check_guards("receive", at.receive, 2 * bytes);
    free_buffers(&at);
}

static void test_pair(tcc_comm *comm, type of, int64_t count) {
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm);
    char *data = malloc((size_t)count * width(of) + 1);
    CHECK(data, "out of memory");
    if (rank == 0)
        for (int i = 1; i < size; i++) {
            fill(of, cases, i, 0, count, data);
            CHECK_OK(tcc_comm_send(comm, data, count, dtypes[of], i));
        }
    else
        CHECK_OK(tcc_comm_receive(comm, data, count, dtypes[of], 0));
    if (rank) check_moved("receive", of, rank, 0, count, data);
    free(data);
}

/* Starts several operations of different lengths and waits for them in the order `turns`.  A send
 * between them ends those before it. */
static void test_started(tcc_comm *comm, type of, int64_t count) {
    enum { SOME = 5 };
    static const int turns[][SOME] = {{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {2, 2, 0, 4, 1}};
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm);
    uint64_t tickets[SOME];
    int64_t counts[SOME];
    buffers at[SOME];
    for (int i = 0; i < SOME; i++) {
        counts[i] = count >> (3 * i % 4);
        size_t bytes = (size_t)counts[i] * width(of);
        at[i] = make_buffers(bytes, bytes * (size_t)(i % 2 ? size : 1), false, 0, 0, i & 1);
        fill(of, cases, rank, 0, counts[i], at[i].send);
        tcc_comm_call call = i % 2 ? CALL(ALL_GATHER, .count = counts[i])
                                   : CALL(ALL_REDUCE, .count = counts[i], .reduction = TCC_COMM_MAX);
        CHECK_OK(tcc_comm_start(comm, &call, at[i].send, at[i].receive, &tickets[i]));
        if (i == 3 && cases % 5 == 0) test_pair(comm, of, 9);
    }
    for (int i = 0; i < SOME; i++) {
        int index = turns[cases % 3][i];
        CHECK_OK(tcc_comm_wait(comm, tickets[index]));
        size_t bytes = (size_t)counts[index] * width(of);
        if (index % 2 == 0)
            check_reduced("all_reduce", of, TCC_COMM_MAX, size, 0, counts[index], at[index].receive);
        for (int from = 0; index % 2 && from < size; from++)
            check_moved("all_gather", of, from, 0, counts[index],
                        at[index].receive + (size_t)from * bytes);
    }
    CHECK_OK(tcc_comm_wait(comm, tickets[SOME - 1]));
    for (int i = 0; i < SOME; i++) {
        check_guards("started", at[i].receive,
                     (size_t)counts[i] * width(of) * (size_t)(i % 2 ? size : 1));
        free_buffers(&at[i]);
    }
}

static void test_case(tcc_comm *comm, type of, int64_t count, bool same, bool misaligned,
                      bool all_reductions) {
    for (int by = 0; by < (all_reductions ? 5 : 1); by++) {
        cases++;
        if (joined && by == TCC_COMM_AVG && of > F64) continue;
        test_all_reduce(comm, of, (tcc_comm_reduction)by, count, same, misaligned);
        test_reduce_scatter(comm, of, (tcc_comm_reduction)by, count, same, misaligned);
    }
    cases++;
    test_all_gather(comm, of, count, same, misaligned);
    test_all_gather_v(comm, of, count, same, misaligned);
    test_all_to_all(comm, of, count, same && !joined, misaligned);
    test_all_to_all_v(comm, of, count, misaligned);
    test_broadcast(comm, of, count, same, misaligned);
    test_ring(comm, of, count, misaligned);
    if (joined) return;
    test_pair(comm, of, count);
    test_started(comm, of, count);
    if (cases % 7 == 0) CHECK_OK(tcc_comm_barrier(comm));
}

/* Lets both halves of the ranks work at the same time, in opposite rank order. */
static void test_split(tcc_comm *comm) {
    int rank = tcc_comm_rank(comm), size = tcc_comm_size(comm), color = rank % 2;
    tcc_comm *half;
    int64_t mine = rank + 1, sum, expected = 0;
    for (int i = color; i < size; i += 2) expected += i + 1;
    CHECK_OK(tcc_comm_split(comm, color, -rank, &half));
    CHECK_OK(tcc_comm_all_reduce(half, &mine, &sum, 1, dtypes[I64], TCC_COMM_SUM));
    CHECK(sum == expected, "the half's sum is %lld, not %lld", (long long)sum, (long long)expected);
    int members = tcc_comm_size(half), last = (size - 1 - color) / 2 * 2 + color;
    CHECK(tcc_comm_rank(half) == (last - rank) / 2 && members == last / 2 + 1, "rank %d of %d",
          tcc_comm_rank(half), members);
    test_case(half, F32, 67, false, false, true);
    tcc_comm_close(half);
}

static const int64_t counts[] = {0, 1, 3, 67, 1023}; /* counts of elements */

/* Tests the arena of `keeper` with the ranks of `comm`. */
static void test_in_arena(tcc_comm *keeper, tcc_comm *comm) {
    CHECK_OK(tcc_comm_barrier(keeper)); /* no rank still uses a part that others begin with */
    for (int of = 0; of < TYPES; of++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            if (is_long || (of + (int)i) % 3 == 0)
                test_case(comm, (type)of, counts[i], (of + i) & 1, i & 2, false);
        int64_t many = (is_long ? 400000 : 70000 + of) / (int)width((type)of);
        test_case(comm, (type)of, many, of & 1, of & 2, is_long);
    }
}

static void test_symmetric(tcc_comm *comm) {
    int32_t rank = tcc_comm_rank(comm), size = tcc_comm_size(comm), n = 0, members[MOST_RANKS];
    void *memory;
    tcc_comm *group;
    tcc_status status = tcc_comm_symmetric(comm, ARENA, &memory);
    if (status == TCC_UNSUPPORTED && strcmp(tcc_comm_backend_name(comm), "shared")) return;
    CHECK_OK(status);
    arena = memory;
    test_in_arena(comm, comm);
    for (int32_t i = size - 1; i >= 0; i--) /* every second rank, from the last on */
        if (i % 2 == rank % 2) members[n++] = i;
    CHECK_OK(tcc_comm_subgroup(comm, members, n, &group));
    test_in_arena(comm, group);
    arena = NULL;
}

static void matrix(const setup *ranks) {
    tcc_comm *comm;
    tcc_comm_config config = config_of(ranks);
    CHECK_OK(tcc_comm_open(&config, &comm));
    if (platform) {
        device = open_gpu(platform);
        stream = device.stream();
        CHECK_OK(tcc_comm_device_open(comm, device.type, &joined));
    }
    for (int of = 0; of < TYPES; of++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (int way = 0; way < 4; way++)
                if (is_long || way == (of + (int)i) % 4 || counts[i] == 3)
                    test_case(comm, (type)of, counts[i], way & 1, way & 2, true);
        if (!is_long && of % 2) continue;
        /* enough for several steps of every algorithm */
        int64_t many = is_long ? (1 << 18) + 7 : (150000 + of) / (int)width((type)of);
        test_case(comm, (type)of, many, of & 1, of & 2, is_long);
    }
    if (!joined) test_split(comm);
    if (!joined) test_symmetric(comm);
    tcc_comm_device_close(joined);
    tcc_comm_close(comm);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    is_long = strcmp(argv[2], "long") == 0;
    setup ranks = {
        .size = atoi(argv[1]), .name = own_name("matrix"), .backends = argc > 3 ? argv[3] : NULL};
    platform = argc > 4 ? argv[4] : NULL;
    if (ranks.size) {
        run_ranks(ranks, matrix);
        puts("ok");
        return 0;
    }
    ranks.rank = ranks.size = -1;
    ranks.name = NULL;
    matrix(&ranks);
    puts("ok");
    return 0;
}
