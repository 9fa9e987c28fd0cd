/* The artifact's pool for results of runs, which live as long as their holders want. */
#include <pthread.h>

#include "../runtime.h"

static tcc_pool *results;

static void before_fork(void) { tcc_pool_before_fork(results); }
static void after_fork_in_parent(void) { tcc_pool_after_fork(results, false); }
static void after_fork_in_child(void) { tcc_pool_after_fork(results, true); }

static void make_results(void) {
    tcc_pool_config config = {.struct_size = sizeof config, .flags = TCC_POOL_SHARED};
    tcc_pool *made = NULL;
    if (tcc_pool_create(&config, &made) != TCC_OK) return;
    results = made;
    if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child)) {
        results = NULL;
        tcc_pool_destroy(made);
    }
}

tcc_status tcc_result_pool(tcc_pool **out_pool) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_results);
    *out_pool = results;
    if (results) return TCC_OK;
    return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (no pool for results)");
}
