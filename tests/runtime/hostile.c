/* Reads a file of records (size, program bytes), decodes each, and runs each that decodes on zeroed
 * inputs (strings and lists have contents) with kernels that do nothing.  Prints "<decoded> <ran>
 * <of>".  Built with sanitizers.  HOSTILE_NEEDS names a file with the kernels' needs, against which
 * launches are checked.  Collectives run on a comm that touches its buffers and moves no data.
 * With a third argument each record is tried repeatedly while the first, second, ... allocation
 * fails, until none does.  Every such failure must be reported as one, and runs after it must
 * succeed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "needs.h"
#include "tcc_comm.h"

const tcc_artifact tcc_artifact_info = {.name = "hostile"};

extern int64_t tcc_test_fail_after;

struct tcc_comm {
    const tcc_comm_table *table; /* first, as in every comm */
    int32_t size;
};

static int32_t rank_of(const tcc_comm *comm) { return comm ? 0 : -1; }
static int32_t size_of(const tcc_comm *comm) { return comm->size; }

static tcc_status touch(tcc_comm *comm, const tcc_comm_call *call, const void *send, void *receive) {
    size_t element = call->dtype.bits / 8u, block = (size_t)call->count * element;
    size_t sent = block, received = block;
    if (call->kind == TCC_COMM_ALL_TO_ALL || call->kind == TCC_COMM_REDUCE_SCATTER)
        sent *= (size_t)comm->size;
    if (call->kind == TCC_COMM_ALL_TO_ALL || call->kind == TCC_COMM_ALL_GATHER)
        received *= (size_t)comm->size;
    bool per_rank = call->kind == TCC_COMM_ALL_TO_ALL_V;
    if (per_rank || call->kind == TCC_COMM_ALL_GATHER_V) {
        sent = received = 0;
        for (int32_t i = 0; i < comm->size; i++) {
            if (per_rank || !i) sent += (size_t)call->send_counts[i] * element;
            received += (size_t)(per_rank ? call->receive_counts : call->send_counts)[i] * element;
        }
    }
    char *copy = malloc(sent + 1);
    if (!copy) return TCC_OUT_OF_MEMORY;
    memcpy(copy, send, sent);
    free(copy);
    memset(receive, 1, received);
    return TCC_OK;
}

/* Started operations.  The wait for the last one finishes all of them. */
static struct started {
    tcc_comm *comm;
    tcc_comm_call call;
    const void *send;
    void *receive;
} started[1 << 10];
static uint64_t tickets, done;

static tcc_status start(tcc_comm *comm, const tcc_comm_call *call, const void *send, void *receive,
                        uint64_t *out_ticket) {
    if (tickets - done == sizeof started / sizeof *started) return TCC_OUT_OF_MEMORY;
    started[tickets % (sizeof started / sizeof *started)] = (struct started){comm, *call, send, receive};
    *out_ticket = ++tickets;
    return TCC_OK;
}

static tcc_status wait_for(tcc_comm *comm, uint64_t ticket) {
    (void)comm;
    for (; done < ticket; done++) {
        const struct started *operation = &started[done % (sizeof started / sizeof *started)];
        TCC_RETURN_IF_ERROR(touch(operation->comm, &operation->call, operation->send, operation->receive));
    }
    return TCC_OK;
}

static tcc_status scratch(tcc_comm *comm, size_t bytes, void **out_memory) {
    static void *memory;
    (void)comm;
    if (bytes > 1 << 20) return TCC_UNSUPPORTED;
    free(memory);
    *out_memory = memory = malloc(bytes);
    return memory ? TCC_OK : TCC_OUT_OF_MEMORY;
}

static tcc_status abort_with(tcc_comm *comm, const char *reason) {
    if (!comm || !*reason) abort();
    done = tickets;
    return TCC_OK;
}

static tcc_status subgroup(tcc_comm *comm, const int32_t *ranks, int32_t n, tcc_comm **out_comm) {
    static tcc_comm subgroups[16];
    static size_t count;
    for (int32_t i = 0, is_member = 0; i < n || !is_member; i++) {
        if (i == n) abort(); /* this rank is not in the list */
        is_member |= ranks[i] == 0;
    }
    *out_comm = &subgroups[count++ % 16];
    **out_comm = (tcc_comm){comm->table, n};
    return TCC_OK;
}

/* The table of an older library without GPUs and without keepers of comms. */
static const tcc_comm_table comm_table = {
    offsetof(tcc_comm_table, device_open), TCC_COMM_VERSION, rank_of, size_of, touch, abort_with,
    tcc_last_error,
    start, wait_for, scratch, subgroup};
static tcc_comm comm = {&comm_table, 0};

/* Runs on several threads, with scratch for each of them. */
static tcc_status run_on(tcc_instance *instance, const tcc_tensor *inputs, int32_t threads) {
    void *blocks = NULL;
    tcc_allocator allocator = {&blocks, allocate};
    instance->threads_own = threads;
    tcc_status status = tcc_instance_run(instance, inputs, instance->model->program.n_inputs, NULL, 0,
                                         &allocator, NULL);
    free_all(blocks);
    int64_t room = threads * instance->model->program.scratch;
    if (status == TCC_OK && (int64_t)instance->scratch.size < room) abort();
    return status;
}

static tcc_status run(tcc_model *model, bool again) {
    tcc_instance *instance = NULL;
    comm.size = model->program.ranks > 0 ? model->program.ranks : 2;
    tcc_status status = tcc_instance_create_on(model, 0, &comm, &instance);
    if (status != TCC_OK) return status;
    tcc_tensor *inputs = make_inputs(model);
    status = run_on(instance, inputs, 1);
    if (again && status == TCC_OK) {
        status = run_on(instance, inputs, 3);
        tcc_status last = run_on(instance, inputs, 1);
        if (status != TCC_OK && last != TCC_OK) abort();
        if (status == TCC_OK) status = last;
    }
    free_inputs(model, inputs);
    tcc_instance_destroy(instance);
    return status;
}

static uint8_t *needs;
static size_t needs_bytes;

static tcc_status decode_and_run(const char *bytes, int64_t size, int64_t n_kernels, bool again,
                                 int *decoded) {
    tcc_model model;
    tcc_status status = decode(bytes, size, n_kernels, &model);
    if (status != TCC_OK) {
        if (!*tcc_last_error()) abort();
        return status;
    }
    if (needs_bytes) status = tcc_needs_read(needs, needs + needs_bytes, &model.program);
    if (status == TCC_OK) {
        ++*decoded;
        status = run(&model, again);
    } else if (!*tcc_last_error()) {
        abort();
    }
    tcc_program_free(&model.program);
    return status;
}

/* Reads the file that HOSTILE_NEEDS names, if any: a table of the kernels' needs. */
static void read_needs(void) {
    const char *path = getenv("HOSTILE_NEEDS");
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!file) return;
    uint8_t *room = malloc(1 << 16);
    size_t bytes = fread(room, 1, 1 << 16, file);
    needs = malloc(bytes); /* exact, so that a sanitizer sees reads beyond it */
    memcpy(needs, room, bytes);
    needs_bytes = bytes;
    free(room);
    fclose(file);
}

int main(int argc, char **argv) {
    read_needs();
    int decoded = 0, ran = 0, of = 0;
    int64_t size, n_kernels = argc > 2 ? atoll(argv[2]) : 0;
    FILE *file = fopen(argv[1], "rb");
    while (file && fread(&size, 8, 1, file) == 1) {
        char *bytes = malloc(size ? (size_t)size : 1); /* exact, so that a sanitizer sees reads
                                                          beyond it */
        if (!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size) return 1;
        tcc_status status = TCC_OUT_OF_MEMORY;
        for (int n = 1; argc > 3 && status == TCC_OUT_OF_MEMORY; n++, of++) {
            tcc_test_fail_after = n;
            status = decode_and_run(bytes, size, n_kernels, true, &decoded);
            if (tcc_test_fail_after <= 0 && status != TCC_OUT_OF_MEMORY) return 2;
        }
        tcc_test_fail_after = -1;
        if (argc <= 3) status = decode_and_run(bytes, size, n_kernels, false, &decoded);
        ran += status == TCC_OK;
        of++;
        free(bytes);
    }
    if (file) fclose(file);
    free(needs);
    printf("%d %d %d\n", decoded, ran, of);
    return 0;
}
