/* Tests which of several plans for one number of ranks is loaded, depending on the memory of all
 * ranks, and the errors of ranks with other files or plans.
 *
 *     plans SMALL LARGE programs that hold less and more than 1 MiB
 *     plans bytes FILE prints the bytes that a rank needs for a program and 1000 of weights */
#define _GNU_SOURCE
#include <string.h>

#include "collective.h"
#include "driver.h"

enum { ROOM = 1 << 16, PLANS = 5, N_KERNELS = 9, MOST_RANKS = 4 };
static tcc_variant plans[PLANS];
static tcc_range weights[64];
static const tcc_kernel kernels[N_KERNELS] = {[0 ... N_KERNELS - 1] = nothing};
const tcc_artifact tcc_artifact_info = {
    .abi = TCC_ABI_VERSION, .name = "many", .variants = plans, .n_variants = PLANS, .sha256 = {0xab, 0xcd}};
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

/* The message that compare.c exchanges. */
typedef struct claim {
    uint8_t sha256[32];
    uint64_t plans;
    char name[24];
} claim;

/* A comm whose other ranks send `other_claims`; a rank whose plans are 0 sends this rank's message. */
struct tcc_comm {
    const tcc_comm_table *table;
    int32_t rank, size;
};
static claim other_claims[MOST_RANKS];
static int exchanges, n_kept;
static char reason[512]; /* reason of the last abort */
static tcc_status issued;
static int32_t rank_of(const tcc_comm *comm) { return comm->rank; }
static int32_t size_of(const tcc_comm *comm) { return comm->size; }
static tcc_status keep(tcc_comm *comm) { return (void)comm, n_kept++, TCC_OK; }
static void drop(tcc_comm *comm) { (void)comm, n_kept--; }
static const char *last_error(void) { return "rank 1 did not come"; }
static tcc_status abort_comm(tcc_comm *comm, const char *text) {
    (void)comm;
    snprintf(reason, sizeof reason, "%s", text);
    return TCC_OK;
}
static tcc_status issue(tcc_comm *comm, const tcc_comm_call *call, const void *send, void *receive) {
    claim *all = receive;
    CHECK(call->kind == TCC_COMM_ALL_GATHER && call->count == sizeof(claim) && call->dtype.bits == 8);
    exchanges++;
    for (int32_t i = 0; i < comm->size; i++)
        memcpy(&all[i], i != comm->rank && other_claims[i].plans ? &other_claims[i] : send, sizeof *all);
    return issued;
}
static const tcc_comm_table table = {.struct_size = sizeof table,
                                     .version = TCC_COMM_VERSION,
                                     .rank = rank_of,
                                     .size = size_of,
                                     .issue = issue,
                                     .abort = abort_comm,
                                     .last_error = last_error,
                                     .keep = keep,
                                     .drop = drop};
static tcc_comm first = {&table, 0, 2}, second = {&table, 1, 2}, of_four = {&table, 3, 4};

static void read_plan(int number, int32_t ranks, int32_t plan, const char *path) {
    static char bytes[PLANS][ROOM];
    int64_t size = 0;
    if (!read_program(path, bytes[number], ROOM, &size)) exit(2);
    plans[number] = (tcc_variant){.target = "cpu",
                                  .ranks = ranks,
                                  .plan = plan,
                                  .program = (const uint8_t *)bytes[number],
                                  .program_end = (const uint8_t *)bytes[number] + size,
                                  .kernels = kernels,
                                  .n_kernels = N_KERNELS,
                                  .weights = weights};
}

static void allow(const char *bytes) {
    if (bytes)
        setenv("TCC_MEMORY", bytes, 1);
    else
        unsetenv("TCC_MEMORY");
    memset(other_claims, 0, sizeof other_claims);
    exchanges = 0;
    *reason = 0;
    issued = TCC_OK;
}

/* Returns the number of the variant that is loaded. */
static int32_t loaded(tcc_comm *comm) {
    tcc_model *model = NULL;
    CHECK(api->model_get_on(comm, &model) == TCC_OK);
    int32_t variant = api->model_variant(model);
    api->model_release(model);
    return variant;
}

static void by_memory(void) {
    allow(NULL);
    CHECK(loaded(NULL) == 0 && exchanges == 0);
    CHECK(loaded(&first) == 1 && exchanges == 1);
    CHECK(loaded(&of_four) == 4 && exchanges == 1); /* it has one plan */
    allow("1M"); /* less than the large state needs */
    CHECK(loaded(&first) == 2 && loaded(&second) == 2 && exchanges == 2);
    tcc_model *model = NULL;
    REFUSES(api->model_get(&model), TCC_OUT_OF_MEMORY, "on 1 rank, for weights and a run, and TCC_MEMORY");
    CHECK(strstr(api->last_error(), "allows 1048576: its plan for 2 ranks needs "));
    CHECK(!*reason && exchanges == 2);
    allow("16"); /* no plan fits */
    REFUSES(api->model_get_on(&of_four, &model), TCC_OUT_OF_MEMORY, "bytes a rank on 4 ranks");
    CHECK(strstr(api->last_error(), "no plan in the file fits; that for 4 ranks needs 4096 bytes"));
    CHECK(!strcmp(reason, api->last_error()) && exchanges == 0); /* the other ranks do not wait */
    REFUSES(api->model_get_on(&first, &model), TCC_OUT_OF_MEMORY, "bytes a rank on 2 ranks");
    CHECK(exchanges == 1);
    allow("much");
    REFUSES(api->model_get(&model), TCC_INVALID_ARGUMENT, "TCC_MEMORY");
    allow(NULL);
    CHECK(api->process_set_memory_limit(1 << 20) == TCC_OK);
    CHECK(loaded(&first) == 2);
    CHECK(api->process_set_memory_limit(0) == TCC_OK);
}

static claim says(uint8_t hash, uint64_t fitting, const char *name) {
    claim its = {.sha256 = {hash, 0xcd}, .plans = fitting};
    snprintf(its.name, sizeof its.name, "%s", name);
    return its;
}

static void by_all_ranks(void) {
    tcc_model *model = NULL;
    allow(NULL);
    other_claims[1] = says(0xab, 2, "many"); /* the second plan only */
    CHECK(loaded(&first) == 2 && !*reason);
    other_claims[1] = says(0xab, 4, "many"); /* no plan that this rank has */
    REFUSES(api->model_get_on(&first, &model), TCC_MISMATCH, "for 2 ranks (rank 0: 1 2, rank 1: 3)");
    CHECK(!strcmp(reason, api->last_error()));
    other_claims[1] = says(0x12, 3, "other");
    REFUSES(api->model_get_on(&first, &model), TCC_MISMATCH, "rank 0 has model 'many' with the hash abcd0000");
    CHECK(strstr(api->last_error(), "rank 1 model 'other' with the hash 12cd0000"));
    memset(other_claims, 0, sizeof other_claims);
    other_claims[0] = says(0x12, 3, "a name of twenty-three.");
    REFUSES(api->model_get_on(&second, &model), TCC_MISMATCH, "model 'a name of twenty-three.' with");
    allow(NULL);
    issued = TCC_TIMEOUT;
    REFUSES(api->model_get_on(&first, &model), TCC_TIMEOUT, "rank 0, while ranks compare their models: rank 1 did");
    allow(NULL);
    CHECK(loaded(&first) == 1 && n_kept == 0); /* the failed load left nothing behind */
}

static void before_runs(void) {
    tcc_model *model = NULL;
    tcc_instance *instance = NULL;
    allow(NULL);
    CHECK(api->model_get_on(&first, &model) == TCC_OK);
    CHECK(api->instance_create_on(model, 0, &first, &instance) == TCC_OK && exchanges == 2);
    CHECK(n_kept == 2); /* kept for its runs, and as the compared comm */
    api->instance_destroy(instance);
    CHECK(n_kept == 1); /* the ranks of this comm have the plan, until the model is closed */
    other_claims[1] = says(0xab, 2, "many");
    CHECK(api->instance_create_on(model, 0, &first, &instance) == TCC_OK && exchanges == 2);
    api->instance_destroy(instance);
    api->model_release(model);
    CHECK(n_kept == 0);
    allow(NULL);
    CHECK(api->model_get_on(&first, &model) == TCC_OK);
    other_claims[1] = says(0xab, 2, "many");
    REFUSES(api->instance_create_on(model, 0, &first, &instance), TCC_MISMATCH, "(rank 0: 1, rank 1: 2)");
    CHECK(!strcmp(reason, api->last_error()) && n_kept == 0);
    other_claims[1] = says(0x12, 1, "other");
    REFUSES(api->instance_create_on(model, 0, &first, &instance), TCC_MISMATCH, "different files");
    allow("1M");
    REFUSES(api->instance_create_on(model, 0, &first, &instance), TCC_OUT_OF_MEMORY, "TCC_MEMORY");
    CHECK(!strcmp(reason, api->last_error()) && n_kept == 0); /* the other ranks compare plans
                                                                 meanwhile */
    api->model_release(model);
}

/* Ranks that load before there is a comm take the plan that fits each of them. Runs compare the
 * plans. */
static void without_comm(void) {
    setenv("TCC_RANK", "1", 1), setenv("TCC_SIZE", "2", 1), setenv("TCC_RENDEZVOUS", "here", 1);
    allow("1M");
    CHECK(loaded(NULL) == 2 && exchanges == 0);
    unsetenv("TCC_RANK"), unsetenv("TCC_SIZE"), unsetenv("TCC_RENDEZVOUS");
}

static int print_bytes(const char *path) {
    uint64_t bytes = 0;
    weights[0].bytes = 1000;
    read_plan(0, 1, 0, path);
    CHECK(tcc_variant_bytes(&tcc_artifact_info, 1, 0, &bytes) == TCC_OK);
    printf("%llu\n", (unsigned long long)bytes);
    return 0;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    api = tcc_runtime_api();
    if (!strcmp(words[1], "bytes")) return print_bytes(words[2]);
    read_plan(0, 1, 0, words[2]);
    read_plan(1, 2, 0, words[2]);
    read_plan(2, 2, 1, words[1]);
    read_plan(3, 3, 0, words[2]);
    read_plan(4, 4, 0, words[1]);
    by_memory();
    by_all_ranks();
    before_runs();
    without_comm();
    puts("ok");
    return 0;
}
