/* Tests stamps of runs: the stamps of each launch, the contents of a full ring, and instances with
 * their own rings on several threads.  Built with sanitizers.
 *
 *     stamps FILE KERNELS THREADS
 *
 * The file is one record as for hostile.c, of the program of test_stamps.py: inputs n i64 and x
 * f32[1024], output y f32[1024].  Step 0 is a launch of 1024 tiles, which writes y[i] = x[i] + i;
 * step 1 is n launches of one tile each. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>

#include "driver.h"

const tcc_artifact tcc_artifact_info = {.name = "stamps"};

enum { SIZE = 1024, ROOM = TCC_LEAST_STAMPS, MANY = 3 * ROOM, PAIR = 2 };

static tcc_model model;
static const tcc_api *api;

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            printf("line %d: %s (%s)\n", __LINE__, #condition, tcc_last_error());                 \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static void write_tiles(void *const *b, const int64_t *n, int64_t begin, int64_t end, void *scratch) {
    (void)n, (void)scratch;
    for (int64_t u = begin; u < end; u++) ((float *)b[1])[u] = ((const float *)b[0])[u] + (float)u;
}

static tcc_instance *make_instance(void) {
    tcc_instance *instance = NULL;
    CHECK(tcc_instance_create(&model, 0, &instance) == TCC_OK);
    return instance;
}

static void run(tcc_instance *instance, int64_t trips) {
    int64_t size[1] = {SIZE};
    float x[SIZE] = {0}, y[SIZE];
    const tcc_tensor inputs[] = {{&trips, {1, 0}, 0, {0, 64, 1}, NULL, NULL, 0},
                                 {x, {1, 0}, 1, {2, 32, 1}, size, NULL, 0}};
    tcc_tensor output = {y, {1, 0}, 1, {2, 32, 1}, size, NULL, 0};
    CHECK(tcc_instance_run(instance, inputs, 2, &output, 1, NULL, NULL) == TCC_OK);
    for (int i = 0; i < SIZE; i++) CHECK(y[i] == (float)i);
}

static tcc_stamp_record *make_ring(void) {
    tcc_stamp_record *ring = malloc(ROOM * sizeof *ring);
    CHECK(ring);
    return ring;
}

static void refuses(tcc_instance *instance, tcc_stamp_record *ring) {
    uint64_t count = 7;
    CHECK(api->instance_set_stamps(NULL, ring, ROOM, &count) == TCC_INVALID_ARGUMENT);
    CHECK(api->instance_set_stamps(instance, ring, ROOM - 1, &count) == TCC_INVALID_ARGUMENT);
    CHECK(strstr(api->last_error(), "at least 8192 stamps, got 8191"));
    CHECK(api->instance_set_stamps(instance, ring, ROOM, NULL) == TCC_INVALID_ARGUMENT);
    CHECK(count == 7);
    run(instance, 1);
}

/* Checks that every execution has a stamp or more, in order, and within the run's time. */
static void stamps_all(tcc_instance *instance, tcc_stamp_record *ring, int32_t threads) {
    enum { TRIPS = 10 };
    uint64_t count = 7;
    CHECK(api->instance_set_stamps(instance, ring, ROOM, &count) == TCC_OK && count == 0);
    run(instance, TRIPS);
    CHECK(count >= TRIPS + 2 && count < ROOM);
    const tcc_stamp_record *run_record = &ring[count - 1];
    CHECK(run_record->step == -1 && run_record->execution == 0);
    int64_t ends[TRIPS + 2] = {0};
    for (uint64_t i = 0; i + 1 < count; i++) {
        const tcc_stamp_record *at = &ring[i];
        CHECK(at->execution >= 1 && at->execution <= TRIPS + 1);
        CHECK(at->step == (at->execution > 1));
        CHECK(run_record->begin <= at->begin && at->begin <= at->end && at->end <= run_record->end);
        if (threads == 1) CHECK(at->thread == run_record->thread);
        if (ends[at->execution] < at->end) ends[at->execution] = at->end;
    }
    for (int i = 2; i < TRIPS + 2; i++) CHECK(0 < ends[i - 1] && ends[i - 1] <= ends[i]);
    CHECK(api->instance_set_stamps(instance, NULL, 0, NULL) == TCC_OK);
    const uint64_t before = count;
    run(instance, 1);
    CHECK(count == before);
}

/* Checks that the newest stamps are there, and that no stamp is written behind the ring. */
static void drops_the_oldest(tcc_instance *instance, tcc_stamp_record *ring) {
    uint64_t count = 0;
    CHECK(api->instance_set_stamps(instance, ring, ROOM, &count) == TCC_OK);
    run(instance, MANY);
    CHECK(count > MANY);
    const tcc_stamp_record *run_record = &ring[(count - 1) % ROOM];
    CHECK(run_record->step == -1);
    int64_t newest = 0, oldest = INT64_MAX;
    for (uint64_t i = count - ROOM; i + 1 < count; i++) {
        const tcc_stamp_record *at = &ring[i % ROOM];
        CHECK(at->step == 1 && at->execution > newest);
        newest = at->execution;
        if (at->execution < oldest) oldest = at->execution;
    }
    CHECK(newest == MANY + 1 && oldest == MANY + 1 - (ROOM - 2));
}

static void *run_alone(void *threads) {
    tcc_instance *instance = make_instance();
    tcc_stamp_record *ring = make_ring();
    for (int i = 0; i < 3; i++) stamps_all(instance, ring, *(const int32_t *)threads);
    drops_the_oldest(instance, ring);
    tcc_instance_destroy(instance);
    free(ring);
    return NULL;
}

int main(int argc, char **argv) {
    static char bytes[1 << 20], weights[64];
    tcc_kernel kernels[64];
    int64_t size = 0;
    if (argc != 4 || !read_program(argv[1], bytes, sizeof bytes, &size)) return 2;
    for (int i = 0; i < 64; i++) kernels[i] = write_tiles;
    int32_t threads = atoi(argv[3]);
    model = (tcc_model){.threads = threads, .weights = {weights, sizeof weights, NULL, 0}};
    CHECK(tcc_program_decode(bytes, (size_t)size, kernels, atoll(argv[2]), sizeof weights, &model.program) ==
          TCC_OK);
    api = tcc_runtime_api();
    tcc_instance *instance = make_instance();
    tcc_stamp_record *ring = make_ring();
    refuses(instance, ring);
    free(ring);
    tcc_instance_destroy(instance);
    pthread_t threads_of[PAIR];
    for (int i = 0; i < PAIR; i++) CHECK(!pthread_create(&threads_of[i], NULL, run_alone, &threads));
    for (int i = 0; i < PAIR; i++) CHECK(!pthread_join(threads_of[i], NULL));
    tcc_program_free(&model.program);
    puts("ok");
    return 0;
}
