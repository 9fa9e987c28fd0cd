/* Ends endless runs from another thread, at moments that depend on the run's progress and at random
 * moments.  Instances must be right afterwards, and other runs meanwhile.  Built with sanitizers.
 *
 *     cancel FILE KERNELS THREADS ROUNDS CASE
 *
 * The file is one record as for hostile.c, of a program of test_cancel.py: inputs n i64 and x
 * f32[1024] (or of any size, for CASE `op`), one output y f32[1024].  y[i] = x[i] + i after a run
 * of n >= 1024. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

const tcc_artifact tcc_artifact_info = {.name = "cancel"};

enum { SIZE = 1024 };
static const int64_t endless = INT64_C(1) << 50;

static tcc_model model;
static int rounds;
static int64_t sorted_size;
static _Atomic int64_t begun; /* units of endless kernels that have begun */
static atomic_bool all_done;

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            printf("line %d: %s (%s)\n", __LINE__, #condition, tcc_last_error());                 \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

/* Sets y[u % SIZE] = x[u % SIZE] + u % SIZE.  The writes are atomic, because several units of a
 * launch write the same value. */
static void write_units(void *const *b, const int64_t *n, int64_t begin, int64_t end, void *scratch) {
    const float *x = b[0];
    (void)n, (void)scratch;
    for (int64_t u = begin; u < end; u++) {
        float value = x[u % SIZE] + (float)(u % SIZE);
        uint32_t bits;
        memcpy(&bits, &value, 4);
        __atomic_store_n((uint32_t *)b[1] + u % SIZE, bits, __ATOMIC_RELAXED);
        if (n[0] == endless) atomic_fetch_add_explicit(&begun, 1, memory_order_relaxed);
    }
}

typedef struct job {
    tcc_instance *instance;
    int64_t n;
    float shift;
    tcc_status status;
    char message[256];
    float y[SIZE];
} job;

static tcc_instance *make_instance(void) {
    tcc_instance *instance = NULL;
    CHECK(tcc_instance_create(&model, 0, &instance) == TCC_OK);
    return instance;
}

static void *run(void *argument) {
    job *j = argument;
    int64_t size[1] = {SIZE};
    float x[SIZE];
    for (int i = 0; i < SIZE; i++) x[i] = j->shift;
    memset(j->y, 0, sizeof j->y);
    const tcc_tensor inputs[] = {{&j->n, {1, 0}, 0, {0, 64, 1}, NULL, NULL, 0},
                                 {x, {1, 0}, 1, {2, 32, 1}, size, NULL, 0}};
    tcc_tensor output = {j->y, {1, 0}, 1, {2, 32, 1}, size, NULL, 0};
    j->status = tcc_instance_run(j->instance, inputs, 2, &output, 1, NULL, NULL);
    snprintf(j->message, sizeof j->message, "%s", j->status ? tcc_last_error() : "");
    return NULL;
}

static void expect_right(tcc_instance *instance, float shift) {
    job j = {.instance = instance, .n = SIZE, .shift = shift};
    run(&j);
    CHECK(j.status == TCC_OK);
    for (int i = 0; i < SIZE; i++) CHECK(j.y[i] == shift + (float)i);
}

/* Does runs that are not cancelled, meanwhile. */
static void *run_other_threads(void *argument) {
    tcc_instance *instance = make_instance();
    for (int shift = 1; !atomic_load(&all_done); shift = shift % 100 + 1) expect_right(instance, (float)shift);
    tcc_instance_destroy(instance);
    return argument;
}

static void wait_until_begun(int64_t units) {
    while (atomic_load(&begun) < units) sched_yield();
}

static void end_endless(const tcc_api *api, tcc_instance *instance, bool by_number) {
    job j = {.instance = instance, .n = endless, .shift = 1};
    pthread_t thread;
    uint64_t number = api->instance_next_run(instance);
    int64_t before = atomic_load(&begun);
    CHECK(api->instance_cancel(instance) == TCC_INVALID_ARGUMENT);
    CHECK(!pthread_create(&thread, NULL, run, &j));
    wait_until_begun(before + 1);
    CHECK((by_number ? api->instance_cancel_run(instance, number) : api->instance_cancel(instance)) == TCC_OK);
    CHECK(!pthread_join(thread, NULL));
    CHECK(j.status == TCC_CANCELLED && !strcmp(j.message, "the run was cancelled"));
    CHECK(api->instance_next_run(instance) == number + 1);
    CHECK(api->instance_cancel_run(instance, number) == TCC_OK); /* the run is over */
    expect_right(instance, 3);
}

static int ends(void *context) { return ++*(int *)context == 2; }

/* Cancels runs that have not begun, runs that are over, and none; then ends a run by its poll. */
static void end_by_number(const tcc_api *api, tcc_instance *instance) {
    uint64_t next = api->instance_next_run(instance);
    job j = {.instance = instance, .n = endless};
    int64_t before = atomic_load(&begun);
    int polls = 0;
    CHECK(api->instance_cancel_run(instance, 0) == TCC_INVALID_ARGUMENT);
    CHECK(api->instance_cancel_run(instance, next + 1) == TCC_INVALID_ARGUMENT);
    CHECK(api->instance_cancel_run(instance, next) == TCC_OK);
    run(&j);
    CHECK(j.status == TCC_CANCELLED && atomic_load(&begun) == before);
    expect_right(instance, 5);
    CHECK(api->instance_set_poll(instance, ends, &polls) == TCC_OK);
    run(&j);
    CHECK(j.status == TCC_CANCELLED && polls == 2 && !strcmp(j.message, "the caller ended the run"));
    CHECK(api->instance_set_poll(instance, NULL, NULL) == TCC_OK);
    expect_right(instance, 6);
    CHECK(api->instance_cancel(NULL) == TCC_INVALID_ARGUMENT && api->instance_next_run(NULL) == 0);
    CHECK(api->instance_cancel_run(NULL, 1) == TCC_INVALID_ARGUMENT);
}

/* ---- a function of the host, ended at any moment ------------------------------------------------------ */

typedef struct sorting {
    tcc_instance *instance;
    const float *x;
    tcc_status status;
} sorting;

static int take(void *context, int32_t output, const tcc_tensor *tensor, void **out_data) {
    static char room[2][8 << 20]; /* static is safe: only one run at a time uses it */
    (void)context, (void)tensor;
    *out_data = room[output];
    return 0;
}

static void *sort(void *argument) {
    sorting *s = argument;
    int64_t size[1] = {sorted_size};
    const tcc_tensor input = {(void *)(uintptr_t)s->x, {1, 0}, 1, {2, 32, 1}, size, NULL, 0};
    const tcc_allocator allocator = {NULL, take};
    tcc_tensor outputs[2] = {{.ndim = 1, .dtype = {2, 32, 1}, .shape = size, .device = {1, 0}},
                             {.ndim = 1, .dtype = {0, 64, 1}, .shape = size, .device = {1, 0}}};
    s->status = tcc_instance_run(s->instance, &input, 1, outputs, 2, &allocator, NULL);
    const float *values = outputs[0].data;
    for (int64_t i = 1; s->status == TCC_OK && i < sorted_size; i++) CHECK(values[i - 1] >= values[i]);
    return NULL;
}

static void end_sorts(const tcc_api *api) {
    tcc_instance *instance = make_instance();
    float *x = malloc((size_t)sorted_size * sizeof *x);
    uint32_t state = 1;
    int ended = 0;
    for (int64_t i = 0; i < sorted_size; i++) x[i] = (float)((state = state * 1664525u + 1013904223u) >> 8);
    for (int round = 0; round < rounds; round++) {
        sorting s = {instance, x, TCC_INTERNAL};
        pthread_t thread;
        uint64_t number = api->instance_next_run(instance);
        CHECK(!pthread_create(&thread, NULL, sort, &s));
        for (int turn = 0; turn < round * 20; turn++) sched_yield();
        CHECK(api->instance_cancel_run(instance, number) == TCC_OK);
        CHECK(!pthread_join(thread, NULL));
        CHECK(s.status == TCC_CANCELLED || s.status == TCC_OK);
        ended += s.status == TCC_CANCELLED;
    }
    sorting complete = {instance, x, TCC_INTERNAL};
    sort(&complete);
    CHECK(ended && complete.status == TCC_OK);
    free(x);
    tcc_instance_destroy(instance);
}

int main(int argc, char **argv) {
    static char bytes[1 << 20], weights[64];
    tcc_kernel kernels[64];
    int64_t size = 0;
    if (argc != 6 || !read_program(argv[1], bytes, sizeof bytes, &size)) return 2;
    for (int i = 0; i < 64; i++) kernels[i] = write_units;
    model = (tcc_model){.threads = atoi(argv[3]), .weights = {weights, sizeof weights, NULL, 0}};
    CHECK(tcc_program_decode(bytes, (size_t)size, kernels, atoll(argv[2]), sizeof weights, &model.program) ==
          TCC_OK);
    const tcc_api *api = tcc_runtime_api();
    rounds = atoi(argv[4]);
    if (!strcmp(argv[5], "op")) {
        sorted_size = 1 << 16;
        end_sorts(api);
    } else {
        tcc_instance *instance = make_instance();
        pthread_t other;
        CHECK(!pthread_create(&other, NULL, run_other_threads, NULL));
        for (int i = 0; i < rounds; i++) end_endless(api, instance, i % 2);
        end_by_number(api, instance);
        atomic_store(&all_done, true);
        CHECK(!pthread_join(other, NULL));
        tcc_instance_destroy(instance);
    }
    tcc_program_free(&model.program);
    puts("ok");
    return 0;
}
