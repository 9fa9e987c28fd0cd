/* Holds the artifact's pool for results of runs, which live as long as their owners want. */
#include <pthread.h>

#include "../runtime.h"

static tcc_pool *results;            /* NULL: there was no memory for it yet */
static _Thread_local tcc_pool *forking_pool; /* the forking thread's pool, between before_fork and
                                                after_fork */

/* Locks the pool. Threads that begin at the same time may register these handlers twice, so a
 * second call does nothing. */
static void before_fork(void) {
    if (forking_pool) return;
    forking_pool = __atomic_load_n(&results, __ATOMIC_ACQUIRE);
    if (forking_pool) tcc_pool_before_fork(forking_pool);
}

static void after_fork(bool child) {
    if (forking_pool) tcc_pool_after_fork(forking_pool, child);
    forking_pool = NULL;
}

static void after_fork_in_parent(void) { after_fork(false); }
static void after_fork_in_child(void) { after_fork(true); }

TCC_RARE static bool guard_forks(void) {
    static bool guarded;
    if (__atomic_load_n(&guarded, __ATOMIC_ACQUIRE)) return true;
    if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child)) return false;
    __atomic_store_n(&guarded, true, __ATOMIC_RELEASE);
    return true;
}

/* Makes the pool. If two threads do so at the same time, the second drops its own. */
TCC_COLD static tcc_pool *make_results(void) {
    tcc_pool_config config = {.struct_size = sizeof config, .flags = TCC_POOL_SHARED};
    tcc_pool *pool = NULL, *other = NULL;
    if (!guard_forks() || tcc_pool_create(&config, &pool) != TCC_OK) return NULL;
    if (__atomic_compare_exchange_n(&results, &other, pool, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return pool;
    tcc_pool_destroy(pool);
    return other;
}

tcc_status tcc_result_pool(tcc_pool **out_pool) {
    *out_pool = __atomic_load_n(&results, __ATOMIC_ACQUIRE);
    if (!*out_pool) *out_pool = make_results();
    if (*out_pool) return TCC_OK;
    return tcc_fail(TCC_OUT_OF_MEMORY, "out of memory (no pool for results)");
}
