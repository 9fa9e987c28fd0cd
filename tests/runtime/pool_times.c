/* Measures the memory and time of pools: see the modes. */
#define _GNU_SOURCE
#include <time.h>

#include "pool.h"

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Replays a trace from stdin with the lines `take ID BYTES`, `resize ID BYTES`, `give ID`.  Prints
 * the most bytes committed and the most bytes asked for at a time. */
static int trace(int argc, char **argv) {
    (void)argc, (void)argv;
    enum { IDS = 1 << 16 };
    static void *at[IDS];
    static size_t sizes[IDS];
    char word[16];
    unsigned id;
    size_t bytes, live_bytes = 0, peak = 0;
    tcc_pool *pool = make_pool((tcc_pool_config){.range = (size_t)16 << 30});
    while (scanf("%15s %u", word, &id) == 2) {
        CHECK(id < IDS);
        if (word[0] != 'g') CHECK(scanf("%zu", &bytes) == 1);
        if (word[0] == 't') {
            CHECK(!at[id] && tcc_pool_take(pool, bytes, &at[id]) == TCC_OK);
        } else if (word[0] == 'r') {
            size_t keep = sizes[id] < bytes ? sizes[id] : bytes;
            CHECK(tcc_pool_resize(pool, &at[id], bytes, keep) == TCC_OK);
        } else {
            CHECK(tcc_pool_give(pool, at[id]) == TCC_OK);
            at[id] = NULL;
            bytes = 0;
        }
        live_bytes += bytes - sizes[id];
        sizes[id] = bytes;
        if (live_bytes > peak) peak = live_bytes;
    }
    tcc_pool_statistics statistics;
    tcc_pool_statistics_of(pool, &statistics);
    printf("%llu %zu\n", (unsigned long long)statistics.most_committed, peak);
    tcc_pool_destroy(pool);
    return 0;
}

static int by_time(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static uint32_t small_size(void) { return (uint32_t)(64 + draw() % 2000); }
static uint32_t mixed_size(void) { return draw() % 8 ? small_size() : (uint32_t)(4096 + draw() % 60000); }
static uint32_t large_size(void) { return (uint32_t)(65536 + draw() % 983040); }

/* Times a take and a give among 300 blocks.  Prints nanoseconds by size, p50 and p99.9 of batches
 * of 20, for a pool of one thread, a shared pool, and malloc, or for those that are named. */
static int speed(int argc, char **argv) {
    enum { BATCHES = 20000, BATCH = 20, HELD = 300 };
    static const struct {
        const char *name;
        uint32_t (*size)(void);
    } mixes[] = {{"small", small_size}, {"mixed", mixed_size}, {"large", large_size}};
    static const char *const kinds[] = {"own", "shared", "malloc"};
    static int64_t times[BATCHES];
    static void *blocks[HELD];
    static uint32_t sizes[1 << 16];
    for (size_t mix = 0; mix < 3; mix++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) sizes[i] = mixes[mix].size();
        for (int kind = 0; kind < 3; kind++) {
            if (argc > 0 && strcmp(argv[0], kinds[kind])) continue;
            tcc_pool *pool = make_pool((tcc_pool_config){.flags = kind == 1 ? TCC_POOL_SHARED : 0});
            uint32_t next = 0;
            memset(blocks, 0, sizeof blocks);
            for (int batch = -2000; batch < BATCHES; batch++) {
                int64_t start = now();
                for (int i = 0; i < BATCH; i++) {
                    uint32_t size = sizes[next++ & 0xFFFF];
                    void **slot = &blocks[size * 7919u % HELD];
                    if (kind == 2) {
                        free(*slot);
                        *slot = malloc(size);
                    } else {
                        if (*slot) (void)tcc_pool_give(pool, *slot);
                        (void)tcc_pool_take(pool, size, slot);
                    }
                }
                if (batch >= 0) times[batch] = now() - start;
            }
            qsort(times, BATCHES, sizeof *times, by_time);
            printf("%s %s %.1f %.1f\n", mixes[mix].name, kinds[kind],
                   (double)times[BATCHES / 2] / BATCH, (double)times[BATCHES / 1000 * 999] / BATCH);
            for (int i = 0; kind == 2 && i < HELD; i++) free(blocks[i]);
            tcc_pool_destroy(pool);
        }
    }
    return 0;
}

/* Memory that always exists.  It counts the calls that commit and decommit it. */
static long n_calls;

static void *reserve(void *context, size_t bytes) {
    (void)context;
    void *memory = NULL;
    return posix_memalign(&memory, 2 << 20, bytes) ? NULL : memory;
}

static int commit(void *context, void *start, size_t bytes) {
    (void)context, (void)start, (void)bytes;
    n_calls++;
    return 0;
}

static void decommit(void *context, void *start, size_t bytes) { (void)commit(context, start, bytes); }

static void release(void *context, void *base, size_t bytes) {
    (void)context, (void)bytes;
    free(base);
}

/* Takes and gives blocks of large sizes among 300.  Prints how many takes and gives there were
 * after a warm-up, and how many calls for memory they made. */
static int calls(int argc, char **argv) {
    (void)argc, (void)argv;
    enum { BEFORE = 40000, PAIRS = 80000, HELD = 300 };
    static const tcc_pool_memory memory = {NULL, reserve, commit, decommit, release};
    static void *blocks[HELD];
    tcc_pool *pool = make_pool((tcc_pool_config){.range = (size_t)512 << 20, .memory = &memory});
    for (int i = 0; i < BEFORE + PAIRS; i++) {
        if (i == BEFORE) n_calls = 0;
        void **slot = &blocks[draw() % HELD];
        if (*slot) CHECK(tcc_pool_give(pool, *slot) == TCC_OK);
        CHECK(tcc_pool_take(pool, large_size(), slot) == TCC_OK);
    }
    printf("%d %ld\n", PAIRS, n_calls);
    tcc_pool_destroy(pool);
    return 0;
}

int main(int argc, char **argv) {
    static const mode modes[] = {{"trace", trace}, {"speed", speed}, {"calls", calls}};
    return run_mode(modes, sizeof modes / sizeof *modes, argc, argv);
}
