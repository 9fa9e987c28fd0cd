/* A host program that uses pools, compiled with headers of any version.
 *
 *     pool_host ARTIFACT [later] with LATER a field that this version lacks is set; prints why the
 *                                   library refuses it
 *
 * With LINKED the program uses the pools of runtime files that it is linked with, and there is no
 * artifact. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tcc_pool.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, last_error());              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#ifdef LINKED
extern tcc_status tcc_pool_create(const tcc_pool_config *config, tcc_pool **out_pool);
extern void tcc_pool_destroy(tcc_pool *pool);
extern tcc_status tcc_pool_take(tcc_pool *pool, size_t bytes, void **out_memory);
extern tcc_status tcc_pool_give(tcc_pool *pool, void *memory);
extern const char *tcc_last_error(void);
extern const char tcc_artifact_info[512]; /* defined in files that this program does not use */
const char tcc_artifact_info[512] = "";

static const char *last_error(void) { return tcc_last_error(); }
static const tcc_pool_api linked = {.create = tcc_pool_create, .destroy = tcc_pool_destroy,
                                    .take = tcc_pool_take, .give = tcc_pool_give};
#else
static const tcc_api *api;
static const char *last_error(void) { return api ? api->last_error() : dlerror(); }
#endif

static int n_calls;
static int refuse(void *context, size_t missing) {
    (void)missing;
    n_calls += *(int *)context;
    return 0;
}

static void use(const tcc_pool_api *pools) {
    int increment = 1;
    tcc_pool *pool = NULL;
    void *memory = NULL, *more = NULL;
    tcc_pool_config config = {.struct_size = sizeof config, .flags = TCC_POOL_SHARED,
                              .range = 64 << 20, .limit = 8 << 20, .pressure = refuse,
                              .pressure_context = &increment};
    CHECK(pools->create(&config, &pool) == TCC_OK);
    CHECK(pools->take(pool, 6 << 20, &memory) == TCC_OK);
    memset(memory, 1, 6 << 20);
    CHECK(pools->take(pool, 6 << 20, &more) == TCC_OUT_OF_MEMORY && n_calls == 1);
    CHECK(pools->give(pool, memory) == TCC_OK);
    CHECK(pools->take(pool, 6 << 20, &more) == TCC_OK);
    pools->destroy(pool);
}

#ifndef LINKED
/* Reads the statistics of an instance into a struct of exactly this header's size. */
static void look(tcc_instance *instance) {
    tcc_memory *numbers = malloc(sizeof *numbers);
    memset(numbers, 0xAA, sizeof *numbers);
    numbers->struct_size = sizeof *numbers;
    CHECK(api->memory(instance, numbers) == TCC_OK);
    CHECK(numbers->struct_size == sizeof *numbers);
    CHECK(numbers->used >= numbers->pool_committed && numbers->process_used >= numbers->used);
#ifdef LATER
    CHECK(numbers->later == (int64_t)UINT64_C(0xAAAAAAAAAAAAAAAA));
#endif
    free(numbers);
}

static void use_instance(void) {
    tcc_model *model = NULL;
    tcc_instance *instance = NULL;
    const tcc_pool_config config = {.struct_size = sizeof config, .limit = 1 << 20};
    CHECK(api->model_get(&model) == TCC_OK);
    CHECK(api->instance_create(model, 0, &instance) == TCC_OK);
    CHECK(api->instance_set_pool(instance, &config) == TCC_OK);
    look(instance);
    api->instance_destroy(instance);
    api->model_release(model);
}
#endif

int main(int argc, char **argv) {
#ifdef LINKED
    const tcc_pool_api *pools = &linked;
#else
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    const tcc_api *(*entry)(void) = NULL;
    if (library) *(void **)&entry = dlsym(library, "tcc_artifact_api");
    CHECK(entry);
    api = entry();
    const tcc_pool_api *pools = api->pools;
#endif
#ifdef LATER
    if (argc > 2) {
        tcc_pool *pool = NULL;
        const tcc_pool_config config = {.struct_size = sizeof config, .later = 1};
        printf("%d: ", (int)pools->create(&config, &pool));
        puts(last_error());
        return pool != NULL;
    }
#endif
    (void)argc, (void)argv;
    use(pools);
#ifndef LINKED
    use_instance();
#endif
    puts("ok");
    return 0;
}
