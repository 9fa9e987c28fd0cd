/* Tests which plan of an artifact is loaded, by a comm, the environment or neither, and which loads
 * are refused.
 *
 *     ranks PLAIN SMALL LARGE OTHER programs of one kernel: of one input and output; of a state of
 *                                      two sizes; of other ports */
#include <string.h>

#include "collective.h"
#include "driver.h"

enum { ROOM = 1 << 16, PLANS = 4, N_KERNELS = 9 };
static tcc_variant plans[PLANS];
static const tcc_range none[64];
static const tcc_kernel kernels[N_KERNELS] = {[0 ... N_KERNELS - 1] = nothing};
const tcc_artifact tcc_artifact_info = {
    .abi = TCC_ABI_VERSION, .name = "many", .variants = plans, .n_variants = PLANS};
static const tcc_api *api;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, api->last_error());         \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define REFUSES(call, status, words)                                                               \
    do {                                                                                           \
        CHECK((call) == (status));                                                                 \
        CHECK(strstr(api->last_error(), words));                                                   \
    } while (0)

/* A comm with a given rank and number of ranks. It counts its keeps, and its other ranks send the
 * same messages as this one. */
struct tcc_comm {
    const tcc_comm_table *table;
    int32_t rank, size;
};
static int n_kept;
static int32_t rank_of(const tcc_comm *comm) { return comm->rank; }
static int32_t size_of(const tcc_comm *comm) { return comm->size; }
static tcc_status keep(tcc_comm *comm) { return (void)comm, n_kept++, TCC_OK; }
static void drop(tcc_comm *comm) { (void)comm, n_kept--; }
static int exchanges;
static tcc_status issue(tcc_comm *comm, const tcc_comm_call *call, const void *send, void *receive) {
    if (call->kind != TCC_COMM_ALL_GATHER || call->dtype.bits != 8) return TCC_INTERNAL;
    for (int32_t i = 0; i < comm->size; i++)
        memcpy((char *)receive + i * call->count, send, (size_t)call->count);
    exchanges++;
    return TCC_OK;
}
static tcc_comm_table table = {.struct_size = sizeof table,
                               .version = TCC_COMM_VERSION,
                               .rank = rank_of,
                               .size = size_of,
                               .issue = issue,
                               .keep = keep,
                               .drop = drop};

static tcc_comm comm_of(int32_t rank, int32_t size) { return (tcc_comm){&table, rank, size}; }

static void read_plan(int number, int32_t ranks, const char *path) {
    static char bytes[PLANS][ROOM];
    int64_t size = 0;
    if (!read_program(path, bytes[number], ROOM, &size)) exit(2);
    plans[number] = (tcc_variant){.target = "cpu",
                                  .ranks = ranks,
                                  .program = (const uint8_t *)bytes[number],
                                  .program_end = (const uint8_t *)bytes[number] + size,
                                  .kernels = kernels,
                                  .n_kernels = N_KERNELS,
                                  .weights = none};
}

static void read_plans(const char *path, int32_t a, int32_t b, int32_t c, int32_t d) {
    const int32_t ranks[PLANS] = {a, b, c, d};
    for (int i = 0; i < PLANS; i++) read_plan(i, ranks[i], path);
}

/* Returns the number of the variant that is loaded. */
static int32_t loaded(tcc_comm *comm) {
    tcc_model *model = NULL;
    CHECK(api->model_get_on(comm, &model) == TCC_OK);
    int32_t variant = api->model_variant(model);
    api->model_release(model);
    return variant;
}

static void by_comm(void) {
    tcc_model *model = NULL;
    tcc_comm first = comm_of(0, 2), second = comm_of(1, 2), third = comm_of(3, 4);
    CHECK(loaded(NULL) == 0);
    CHECK(loaded(&first) == 1 && loaded(&second) == 1);
    CHECK(loaded(&third) == 2);
    tcc_comm three = comm_of(0, 3), beyond = comm_of(2, 2), below = comm_of(-1, 2), none_ = comm_of(0, 0);
    REFUSES(api->model_get_on(&three, &model), TCC_UNSUPPORTED, "the job has 3 ranks, and model 'many'");
    CHECK(strstr(api->last_error(), "1, 2, 4, 64: "));
    REFUSES(api->model_get_on(&none_, &model), TCC_UNSUPPORTED, "0 ranks");
    REFUSES(api->model_get_on(&beyond, &model), TCC_INVALID_ARGUMENT, "rank 2 of 2");
    REFUSES(api->model_get_on(&below, &model), TCC_INVALID_ARGUMENT, "rank -1 of 2");
    REFUSES(api->model_get_on(&first, NULL), TCC_INVALID_ARGUMENT, "no place");
    table.version++;
    REFUSES(api->model_get_on(&first, &model), TCC_UNSUPPORTED, "the comm has version");
    table.version--;
}

static void by_loaded_model(void) {
    tcc_comm first = comm_of(0, 2), second = comm_of(1, 2), four = comm_of(0, 4);
    tcc_model *model = NULL, *again = NULL;
    tcc_instance *instance = NULL;
    CHECK(api->model_get_on(&first, &model) == TCC_OK);
    CHECK(api->model_get_on(&first, &again) == TCC_OK && again == model);
    api->model_release(again);
    REFUSES(api->model_get_on(&four, &again), TCC_UNSUPPORTED, "loaded for 2 ranks, its comm has 4");
    REFUSES(api->model_get_on(&second, &again), TCC_UNSUPPORTED, "loaded for rank 0 of 2");
    table.version++;
    REFUSES(api->model_get_on(&first, &again), TCC_UNSUPPORTED, "the comm has version");
    table.version--;
    REFUSES(api->instance_create_on(model, 0, &four, &instance), TCC_UNSUPPORTED, "its comm has 4");
    REFUSES(api->instance_create_on(model, 0, &second, &instance), TCC_UNSUPPORTED, "process is rank 1");
    CHECK(exchanges == 0);
    CHECK(api->instance_create_on(model, 0, &first, &instance) == TCC_OK);
    CHECK(exchanges == 1); /* ranks compare their plans */
    api->instance_destroy(instance);
    CHECK(api->instance_create_on(model, 0, &first, &instance) == TCC_OK);
    CHECK(exchanges == 1); /* once per model and comm: a rank may make another instance alone */
    api->instance_destroy(instance);
    api->model_release(model);
    CHECK(n_kept == 0);
    CHECK(loaded(&four) == 2); /* the model has no user any more */
}

static void by_environment(void) {
    tcc_model *model = NULL;
    tcc_comm first = comm_of(0, 2);
    setenv("TCC_RANK", "3", 1), setenv("TCC_SIZE", "4", 1), setenv("TCC_RENDEZVOUS", "here", 1);
    CHECK(loaded(NULL) == 2);
    CHECK(loaded(&first) == 1); /* the variable with more information counts */
    setenv("TCC_SIZE", "5", 1);
    REFUSES(api->model_get(&model), TCC_UNSUPPORTED, "the job has 5 ranks");
    setenv("TCC_RANK", "x", 1);
    REFUSES(api->model_get(&model), TCC_INVALID_ARGUMENT, "TCC_RANK");
    unsetenv("TCC_RANK"), unsetenv("TCC_SIZE"), unsetenv("TCC_RENDEZVOUS");
}

/* An artifact with one plan runs on any comm that its collectives accept, and no variable is
 * read. */
static void without_plans(const char *path) {
    tcc_comm odd = comm_of(2, 3);
    tcc_model *model = NULL;
    tcc_instance *instance = NULL;
    read_plans(path, 1, 1, 1, 1);
    setenv("TCC_RANK", "x", 1), setenv("TCC_SIZE", "y", 1);
    CHECK(api->model_get_on(&odd, &model) == TCC_OK);
    exchanges = 0;
    CHECK(api->instance_create_on(model, 0, &odd, &instance) == TCC_OK);
    CHECK(exchanges == 0); /* ranks may have different files */
    api->instance_destroy(instance);
    api->model_release(model);
    unsetenv("TCC_RANK"), unsetenv("TCC_SIZE");
}

static void by_ports(const char *small, const char *large, const char *other) {
    tcc_model *model = NULL;
    tcc_comm two = comm_of(0, 2);
    read_plans(small, 1, 2, 4, 64);
    read_plan(0, 1, large); /* one rank has the whole state */
    CHECK(loaded(NULL) == 0 && loaded(&two) == 1);
    read_plan(2, 2, large); /* two plans for two ranks, which differ */
    REFUSES(api->model_get_on(&two, &model), TCC_CORRUPT, "different inputs or outputs");
    read_plan(2, 4, other);
    REFUSES(api->model_get_on(&two, &model), TCC_CORRUPT, "different inputs or outputs");
}

int main(int count, char **words) {
    if (count != 5) return 2;
    api = tcc_runtime_api();
    read_plans(words[1], 1, 2, 4, 64);
    by_comm();
    by_loaded_model();
    by_environment();
    read_plans(words[1], 2, 2, 2, 2);
    tcc_model *model = NULL;
    REFUSES(api->model_get(&model), TCC_UNSUPPORTED, "the job has 1 rank, and");
    without_plans(words[1]);
    by_ports(words[2], words[3], words[4]);
    puts("ok");
    return 0;
}
