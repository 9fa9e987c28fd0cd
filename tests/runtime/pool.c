/* Exercises pools: `modes` lists the modes. Exit code 1 means that a check failed; the message
 * names it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"

/* Replaces the C library's function: counts barriers, and can refuse them. */
static atomic_int barriers;
static bool no_barrier;

long syscall(long number, ...) {
    long a[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(arguments, long);
    va_end(arguments);
    if (number == SYS_membarrier) {
        barriers += a[0] == MEMBARRIER_CMD_PRIVATE_EXPEDITED;
        if (no_barrier) return -1;
    }
    static long (*next)(long number, ...);
    if (!next) next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static size_t drawn_size(void) {
    uint64_t shape = draw() % 20;
    if (shape == 0) return 0;
    if (shape < 12) return draw() % 4000;
    if (shape < 18) return draw() % 200000;
    return draw() % 3000000;
}

/* ---- memory that counts, checks and fails ------------------------------------------------------------ */

static struct {
    char *base;
    size_t range, committed, peak, calls, fail_at;
    unsigned char granules[1 << 16];
} fake;

static void *fake_reserve(void *context, size_t bytes) {
    CHECK(context == &fake && !fake.base && bytes % 65536 == 0 && bytes / 65536 <= sizeof fake.granules);
    if (++fake.calls == fake.fail_at) return NULL;
    void *memory = NULL;
    CHECK(posix_memalign(&memory, 2 << 20, bytes) == 0);
    memset(fake.granules, 0, sizeof fake.granules);
    fake.base = memory;
    fake.range = bytes;
    return memory;
}

static void change(char *start, size_t bytes, unsigned char before) {
    CHECK(start >= fake.base && bytes && bytes % 65536 == 0 && (start - fake.base) % 65536 == 0 &&
          bytes <= fake.range - (size_t)(start - fake.base));
    for (size_t i = 0, first = (size_t)(start - fake.base) / 65536; i < bytes / 65536; i++) {
        CHECK(fake.granules[first + i] == before);
        fake.granules[first + i] = !before;
    }
    fake.committed += before ? -bytes : bytes;
    if (fake.committed > fake.peak) fake.peak = fake.committed;
}

static int fake_commit(void *context, void *start, size_t bytes) {
    CHECK(context == &fake);
    if (++fake.calls == fake.fail_at) return -1;
    change(start, bytes, 0);
    return 0;
}

static void fake_decommit(void *context, void *start, size_t bytes) {
    CHECK(context == &fake);
    memset(start, 0xDD, bytes);
    change(start, bytes, 1);
}

static void fake_release(void *context, void *base, size_t bytes) {
    CHECK(context == &fake && base == fake.base && bytes == fake.range);
    free(base);
    fake.base = NULL;
    fake.committed = 0;
}

static const tcc_pool_memory fake_memory = {&fake, fake_reserve, fake_commit, fake_decommit,
                                            fake_release};

static void *own_allocate(void *context, size_t bytes) {
    void *memory = NULL;
    if (++fake.calls == fake.fail_at) return NULL;
    *(size_t *)context += bytes;
    return posix_memalign(&memory, 64, bytes) ? NULL : memory;
}

static void own_release(void *context, void *memory, size_t bytes) {
    *(size_t *)context -= bytes;
    free(memory);
}

/* ---- a shadow of what is live -------------------------------------------------------------------------- */

enum { MOST = 400 };
typedef struct shadow {
    unsigned char *data;
    size_t bytes;
    unsigned char mark;
} shadow;
static shadow live[MOST];
static int n_live;

static size_t rounded(size_t bytes) { return bytes ? (bytes + 63) / 64 * 64 : 64; }

static bool is_marked(const shadow *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i += bytes < 4096 ? 1 : 61)
        if (at->data[i] != at->mark) return false;
    return bytes == 0 || at->data[bytes - 1] == at->mark;
}

static void check_apart(const shadow *checked, bool has_allocator) {
    CHECK((uintptr_t)checked->data % 64 == 0);
    if (!has_allocator) {
        CHECK((char *)checked->data >= fake.base && checked->bytes <= fake.range &&
              (size_t)((char *)checked->data - fake.base) <= fake.range - checked->bytes);
        size_t first = (size_t)((char *)checked->data - fake.base) / 65536;
        for (size_t g = first; g * 65536 < (size_t)((char *)checked->data - fake.base) + checked->bytes; g++)
            CHECK(fake.granules[g]);
    }
    for (int i = 0; i < n_live; i++)
        CHECK(&live[i] == checked || checked->data + rounded(checked->bytes) <= live[i].data ||
              live[i].data + rounded(live[i].bytes) <= checked->data);
}

static void fill(shadow *at) {
    at->mark = (unsigned char)draw();
    memset(at->data, at->mark, at->bytes);
}

static void step(tcc_pool *pool, bool has_allocator) {
    uint64_t percent = draw() % 100;
    if (n_live && (percent < 40 || n_live == MOST)) {
        shadow *at = &live[draw() % (uint64_t)n_live];
        CHECK(is_marked(at, at->bytes));
        CHECK(tcc_pool_give(pool, at->data) == TCC_OK);
        if (!has_allocator) CHECK(tcc_pool_give(pool, at->data) == TCC_INVALID_ARGUMENT);
        *at = live[--n_live];
    } else if (n_live && percent < 60) {
        shadow *at = &live[draw() % (uint64_t)n_live];
        size_t bytes = draw() % 2 ? drawn_size() : at->bytes + draw() % 300;
        size_t keep = at->bytes < bytes ? at->bytes : bytes;
        void *memory = at->data;
        if (tcc_pool_resize(pool, &memory, bytes, keep) == TCC_OK) {
            at->data = memory;
            CHECK(is_marked(at, keep));
            at->bytes = bytes;
            check_apart(at, has_allocator);
            fill(at);
        } else {
            CHECK(memory == at->data && is_marked(at, at->bytes));
        }
    } else if (percent == 99) {
        tcc_pool_trim(pool);
    } else if (percent == 98 && !has_allocator) {
        char *wrong = n_live ? (char *)live[0].data + 1 : NULL;
        CHECK(tcc_pool_give(pool, wrong) == TCC_INVALID_ARGUMENT);
        CHECK(tcc_pool_give(pool, &state) == TCC_INVALID_ARGUMENT);
    } else {
        shadow taken_block = {.bytes = drawn_size()};
        void *memory = NULL;
        if (tcc_pool_take(pool, taken_block.bytes, &memory) != TCC_OK) return;
        taken_block.data = memory;
        live[n_live++] = taken_block;
        check_apart(&live[n_live - 1], has_allocator);
        fill(&live[n_live - 1]);
    }
}

static void check_statistics(tcc_pool *pool, size_t limit) {
    tcc_pool_statistics now;
    tcc_pool_statistics_of(pool, &now);
    size_t min_live = 0;
    for (int i = 0; i < n_live; i++) min_live += rounded(live[i].bytes);
    CHECK(now.blocks == (uint64_t)n_live && now.live >= min_live && now.most_live >= now.live);
    CHECK(now.live <= min_live + min_live / 3 + 64 * (size_t)n_live); /* room to grow again */
    CHECK(now.committed == fake.committed && (!limit || now.committed <= limit));
    CHECK(now.committed >= now.live || fake.base == NULL);
}

/* ---- modes --------------------------------------------------------------------------------------------- */

/* Does random takes, gives and resizes against a shadow, with a limit that is met and without,
 * shared and not. At the end all blocks are given back and no memory is held. */
static int fuzz(int argc, char **argv) {
    int steps = argc > 0 ? atoi(argv[0]) : 2000;
    for (int round = 0; round < 8; round++) {
        state = (uint64_t)round + 1;
        size_t limit = round & 1 ? 5 << 20 : 0;
        tcc_pool *pool = make_pool((tcc_pool_config){.range = (size_t)256 << 20, .limit = limit,
                                                .flags = round & 2 ? TCC_POOL_SHARED : 0,
                                                .memory = &fake_memory});
        for (int i = 0; i < steps; i++) {
            step(pool, false);
            if (i % 16 == 0) check_statistics(pool, limit);
        }
        if (round & 4 && !(round & 2)) {
            tcc_pool_reset(pool);
            n_live = 0;
            for (int i = 0; i < steps / 4; i++) step(pool, false);
        }
        while (n_live) CHECK(tcc_pool_give(pool, live[--n_live].data) == TCC_OK);
        tcc_pool_trim(pool);
        CHECK(fake.committed == 0);
        void *all = NULL; /* one free piece again */
        if (!limit) CHECK(tcc_pool_take(pool, fake.range, &all) == TCC_OK && all == fake.base);
        tcc_pool_destroy(pool);
        CHECK(!fake.base);
    }
    return 0;
}

/* Makes every system call fail once. The failure gives a status, existing blocks stay, and the next
 * call works. */
static int failures(int argc, char **argv) {
    (void)argc, (void)argv;
    size_t n_allocated = 0;
    const tcc_pool_allocator allocator = {&n_allocated, own_allocate, own_release};
    for (int kind = 0; kind < 3; kind++)
        for (size_t fail = 1;; fail++) {
            state = 7;
            fake.calls = 0;
            fake.fail_at = fail;
            tcc_pool *pool = make_pool((tcc_pool_config){.range = (size_t)64 << 20,
                                                    .flags = kind == 1 ? TCC_POOL_SHARED : 0,
                                                    .memory = &fake_memory,
                                                    .allocator = kind == 2 ? &allocator : NULL});
            for (int i = 0; i < 60; i++) step(pool, kind == 2);
            while (n_live) CHECK(tcc_pool_give(pool, live[--n_live].data) == TCC_OK);
            tcc_pool_destroy(pool);
            CHECK(n_allocated == 0 && !fake.base && fake.committed == 0);
            if (fake.calls < fail) break;
        }
    fake.fail_at = 0;
    return 0;
}

static size_t n_calls;
static tcc_pool *under_pressure;
static void *spare;
static int give_spare(void *context, size_t missing) {
    CHECK(context == &spare && missing > 0);
    n_calls++;
    if (!spare) return 0;
    CHECK(tcc_pool_give(under_pressure, spare) == TCC_OK);
    spare = NULL;
    return 1;
}

/* Returns the bytes of memory and swap; 0 where the system overcommits. */
static size_t machine_bytes(void) {
    struct sysinfo about;
    FILE *file = fopen("/proc/sys/vm/overcommit_memory", "r");
    int mode = 1;
    if (file) mode = fgetc(file) - '0', fclose(file);
    if (mode == 1 || sysinfo(&about)) return 0;
    return (size_t)(about.totalram + about.totalswap) * about.mem_unit;
}

/* Tests limits of the pool and of the process. The callback comes first, then trimming is tried,
 * and a take that does not fit changes nothing. */
static int limits(int argc, char **argv) {
    (void)argc, (void)argv;
    for (int shared = 0; shared < 2; shared++) {
        tcc_pool *pool = under_pressure =
            make_pool((tcc_pool_config){.limit = 4 << 20, .pressure = give_spare, .pressure_context = &spare,
                                   .flags = shared ? TCC_POOL_SHARED : 0});
        void *memory = NULL, *other = NULL;
        n_calls = 0;
        CHECK(tcc_pool_take(pool, 3 << 20, &memory) == TCC_OK);
        CHECK(tcc_pool_take(pool, 2 << 20, &other) == TCC_OUT_OF_MEMORY && n_calls == 1);
        CHECK(strstr(tcc_last_error(), "the pool holds") && strstr(tcc_last_error(), "its config allows"));
        CHECK(tcc_pool_take(pool, 1 << 19, &other) == TCC_OK && n_calls == 1);
        CHECK(tcc_pool_give(pool, memory) == TCC_OK);
        CHECK(tcc_pool_take(pool, 3 << 20, &spare) == TCC_OK && n_calls == 1);
        CHECK(tcc_pool_take(pool, 3 << 20, &memory) == TCC_OK && n_calls == 2 && !spare);
        CHECK(tcc_pool_resize(pool, &memory, 4 << 20, 1) == TCC_OUT_OF_MEMORY && n_calls >= 3);
        CHECK(tcc_pool_take(pool, SIZE_MAX / 2, &spare) == TCC_OUT_OF_MEMORY);
        CHECK(tcc_pool_take(pool, SIZE_MAX, &spare) == TCC_OUT_OF_MEMORY);
        tcc_pool_statistics statistics;
        tcc_pool_statistics_of(pool, &statistics);
        CHECK(statistics.failures >= 4 && statistics.blocks == 2 && statistics.most_live <= 4 << 20);
        tcc_process_budget()->limit = tcc_budget_used(tcc_process_budget());
        tcc_pool *second = make_pool((tcc_pool_config){0});
        CHECK(tcc_pool_take(second, 1, &spare) == TCC_OUT_OF_MEMORY);
        CHECK(strstr(tcc_last_error(), "the process holds"));
        tcc_process_budget()->limit = 0;
        CHECK(tcc_pool_take(second, 1, &spare) == TCC_OK);
        tcc_pool_destroy(second);
        spare = NULL;
        tcc_pool_destroy(pool);
        CHECK(tcc_budget_used(tcc_process_budget()) == 0);
    }
    size_t machine = machine_bytes();
    tcc_pool *large = make_pool((tcc_pool_config){.range = 3 * machine});
    if (machine) /* a block larger than memory is refused; otherwise the process would be killed
                    later */
        CHECK(tcc_pool_take(large, machine + machine / 4, &spare) == TCC_OUT_OF_MEMORY &&
              strstr(tcc_last_error(), "leaves it"));
    spare = NULL;
    tcc_pool_destroy(large);
    tcc_pool *none = NULL;
    tcc_pool_config wrong = {.struct_size = sizeof wrong, .flags = 64};
    CHECK(tcc_pool_create(&wrong, &none) == TCC_INVALID_ARGUMENT);
    wrong = (tcc_pool_config){.struct_size = 4};
    CHECK(tcc_pool_create(&wrong, &none) == TCC_INVALID_ARGUMENT);
    return 0;
}

/* Tests pages against a shadow that knows the pages in use. */
static int pages(int argc, char **argv) {
    (void)argc, (void)argv;
    enum { COUNT = 333 };
    bool used[COUNT] = {false};
    uint32_t n_used = 0, page = 0;
    tcc_pool *pool = make_pool((tcc_pool_config){0});
    tcc_pages *all = NULL;
    CHECK(tcc_pages_create(pool, 0, 4, &all) == TCC_INVALID_ARGUMENT);
    CHECK(tcc_pages_create(pool, SIZE_MAX - 8, 4, &all) == TCC_INVALID_ARGUMENT);
    CHECK(tcc_pages_create(pool, 1000, COUNT, &all) == TCC_OK);
    for (int i = 0; i < 20000; i++) {
        if (draw() % 3) {
            tcc_status status = tcc_pages_take(all, &page);
            CHECK(status == (n_used == COUNT ? TCC_OUT_OF_MEMORY : TCC_OK));
            if (status != TCC_OK) continue;
            CHECK(page < COUNT && !used[page]);
            memset(tcc_pages_address(all, page), (int)page & 0xFF, 1000);
            used[page] = true;
            n_used++;
        } else {
            page = (uint32_t)(draw() % (COUNT + 3));
            bool in_use = page < COUNT && used[page];
            const unsigned char *data = tcc_pages_address(all, page);
            CHECK(in_use ? data[0] == (page & 0xFF) && data[999] == data[0] : !data);
            CHECK(tcc_pages_give(all, page) == (in_use ? TCC_OK : TCC_INVALID_ARGUMENT));
            if (in_use) used[page] = false, n_used--;
        }
        CHECK(tcc_pages_free(all) == COUNT - n_used);
    }
    tcc_pages_destroy(all);
    tcc_pool_statistics statistics;
    tcc_pool_statistics_of(pool, &statistics);
    CHECK(statistics.blocks == 0);
    tcc_pool_destroy(pool);
    return 0;
}

/* ---- threads ------------------------------------------------------------------------------------------- */

static tcc_pool *common;
static _Atomic(uint64_t *) handed[64];

/* Takes, gives and hands over blocks. Each block in use holds its own address and size. */
static void *work(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    for (int i = 0; i < 4000; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        size_t bytes = seed >> 60 ? 16 + (seed >> 33) % 2500 : 100000 + (seed >> 33) % 100000;
        void *memory = NULL;
        CHECK(tcc_pool_take(common, bytes, &memory) == TCC_OK);
        uint64_t *words = memory;
        words[0] = (uint64_t)(uintptr_t)words;
        words[1] = bytes;
        ((char *)memory)[bytes - 1] = 1;
        words = atomic_exchange(&handed[seed >> 20 & 63], words);
        if (words) {
            CHECK(words[0] == (uint64_t)(uintptr_t)words);
            words[0] = 0;
            CHECK(tcc_pool_give(common, words) == TCC_OK);
        }
        if (i % 1000 == 500) tcc_pool_trim(common);
        if (i % 1000 == 700) {
            tcc_pool_statistics statistics;
            tcc_pool_statistics_of(common, &statistics);
            CHECK(statistics.blocks <= 64 + 8);
        }
    }
    return NULL;
}

static int threads(int argc, char **argv) {
    (void)argc, (void)argv;
    enum { THREADS = 4 };
    pthread_t all[THREADS];
    common = make_pool((tcc_pool_config){.flags = TCC_POOL_SHARED});
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&all[i], NULL, work, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
    for (int i = 0; i < 64; i++)
        if (handed[i]) CHECK(tcc_pool_give(common, handed[i]) == TCC_OK);
    tcc_pool_statistics statistics;
    tcc_pool_statistics_of(common, &statistics);
    CHECK(statistics.blocks == 0 && statistics.live == 0);
    tcc_pool_trim(common);
    tcc_pool_statistics_of(common, &statistics);
    CHECK(statistics.committed == 0);
    tcc_pool_destroy(common);
    return 0;
}

static uint64_t takes_of(tcc_pool *pool) {
    tcc_pool_statistics statistics;
    tcc_pool_statistics_of(pool, &statistics);
    return statistics.takes;
}

static void take_and_give(tcc_pool *pool, size_t bytes, int count) {
    void *memory[64];
    for (int i = 0; i < count; i++) CHECK(tcc_pool_take(pool, bytes, &memory[i]) == TCC_OK);
    for (int i = 0; i < count; i++) CHECK(tcc_pool_give(pool, memory[i]) == TCC_OK);
}

static atomic_bool ended;

static void *take_on(void *argument) {
    uint64_t *words = NULL;
    (void)argument;
    for (uint64_t i = 1; !atomic_load_explicit(&ended, memory_order_relaxed); i++) {
        void *memory = NULL;
        CHECK(tcc_pool_take(common, 64 + i % 4 * 64, &memory) == TCC_OK);
        if (words) {
            CHECK(*words == i - 1);
            *words = 0;
            CHECK(tcc_pool_give(common, words) == TCC_OK);
        }
        words = memory;
        *words = i;
    }
    CHECK(!words || tcc_pool_give(common, words) == TCC_OK);
    return NULL;
}

/* Empties caches repeatedly, while their threads take and give without a pause. */
static int emptied(int argc, char **argv) {
    int times = argc > 0 ? atoi(argv[0]) : 20000;
    enum { THREADS = 2 };
    pthread_t all[THREADS];
    common = make_pool((tcc_pool_config){.flags = TCC_POOL_SHARED});
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&all[i], NULL, take_on, NULL) == 0);
    for (int i = 0; i < times; i++) {
        tcc_pool_statistics statistics;
        tcc_pool_statistics_of(common, &statistics);
        CHECK(statistics.blocks <= 2 * THREADS && statistics.live <= 2 * THREADS * 256);
        if (i % 4 == 0) tcc_pool_trim(common);
    }
    atomic_store(&ended, true);
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
    tcc_pool_trim(common);
    tcc_pool_statistics statistics;
    tcc_pool_statistics_of(common, &statistics);
    CHECK(statistics.committed == 0 && statistics.blocks == 0);
    tcc_pool_destroy(common);
    return 0;
}

static sem_t done, end;

static void *take_and_wait(void *argument) {
    take_and_give(common, 1000, 4);
    CHECK(sem_post(&done) == 0);
    if (argument) CHECK(sem_wait(&end) == 0);
    return NULL;
}

/* Blocks that were given are taken again without a search. A cache passes from a thread that ends
 * to the next thread; it is emptied while its thread lives, and before memory is refused. */
static int caches(int argc, char **argv) {
    (void)argc, (void)argv;
    tcc_pool_statistics statistics;
    pthread_t thread;
    for (int shared = 0; shared < 2; shared++) {
        tcc_pool *pool = make_pool((tcc_pool_config){.flags = shared ? TCC_POOL_SHARED : 0, .limit = 8 << 20});
        for (int i = 0; i < 5; i++) take_and_give(pool, 64 << 10, 3);
        /* less than one size step smaller */
        for (int i = 0; i < 5; i++) take_and_give(pool, (64 << 10) - 1000, 3);
        CHECK(takes_of(pool) == 3);
        take_and_give(pool, (64 << 10) + 1, 1);
        take_and_give(pool, (64 << 10) + 1, 1);
        CHECK(takes_of(pool) == 5);
        void *memory = NULL;
        CHECK(tcc_pool_take(pool, 100, &memory) == TCC_OK && tcc_pool_give(pool, memory) == TCC_OK);
        CHECK(tcc_pool_give(pool, memory) == TCC_INVALID_ARGUMENT);
        for (int i = 1; i <= 64; i++) take_and_give(pool, (size_t)i << 10, 2);
        CHECK(tcc_pool_take(pool, 7 << 20, &memory) == TCC_OK && tcc_pool_give(pool, memory) == TCC_OK);
        if (!shared) {
            take_and_give(pool, 100, 2);
            uint64_t before = takes_of(pool);
            tcc_pool_reset(pool); /* no block is in use, and the cached ones stay */
            take_and_give(pool, 100, 2);
            CHECK(takes_of(pool) == before);
        }
        tcc_pool_destroy(pool);
    }
    common = make_pool((tcc_pool_config){.flags = TCC_POOL_SHARED});
    CHECK(sem_init(&done, 0, 0) == 0 && sem_init(&end, 0, 0) == 0);
    for (int i = 0; i < 40; i++) { /* more threads than caches */
        CHECK(pthread_create(&thread, NULL, take_and_wait, NULL) == 0);
        pthread_join(thread, NULL);
    }
    CHECK(takes_of(common) == 4);
    enum { AT_ONCE = 40 };
    pthread_t all[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) CHECK(pthread_create(&all[i], NULL, take_and_wait, &end) == 0);
    for (int i = 0; i < AT_ONCE + 40; i++) CHECK(sem_wait(&done) == 0);
    int before = barriers;
    tcc_pool_trim(common);
    CHECK(barriers == before + 1); /* no test would catch the execution in billions that goes wrong
                                      without the barrier */
    tcc_pool_statistics_of(common, &statistics);
    CHECK(statistics.committed == 0 && statistics.blocks == 0);
    for (int i = 0; i < AT_ONCE; i++) CHECK(sem_post(&end) == 0);
    for (int i = 0; i < AT_ONCE; i++) pthread_join(all[i], NULL);
    tcc_pool_destroy(common);
    return 0;
}

/* Where the kernel has no barrier, shared pools have no caches. */
static int alone(int argc, char **argv) {
    no_barrier = true;
    tcc_pool *pool = make_pool((tcc_pool_config){.flags = TCC_POOL_SHARED});
    for (int i = 0; i < 5; i++) take_and_give(pool, 1000, 1);
    CHECK(takes_of(pool) == 5);
    tcc_pool_destroy(pool);
    return threads(argc, argv);
}

/* The child of a fork takes and gives results, whatever threads of the parent were doing. */
static void *take_results(void *argument) {
    for (int i = 0; i < *(int *)argument; i++) {
        void *memory = NULL;
        CHECK(tcc_pool_take(common, 64 + (size_t)i % 3000, &memory) == TCC_OK);
        CHECK(tcc_pool_give(common, memory) == TCC_OK);
        if (i % 64 == 0) tcc_pool_trim(common);
    }
    return NULL;
}

static int forks(int argc, char **argv) {
    (void)argc, (void)argv;
    pthread_t other;
    int many = 40000, few = 200;
    CHECK(tcc_result_pool(&common) == TCC_OK);
    CHECK(pthread_create(&other, NULL, take_results, &many) == 0);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            take_results(&few);
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    pthread_join(other, NULL);
    return 0;
}

int main(int argc, char **argv) {
    static const mode modes[] = {{"fuzz", fuzz}, {"failures", failures}, {"limits", limits},
                                 {"pages", pages}, {"caches", caches}, {"alone", alone},
                                 {"emptied", emptied}, {"threads", threads}, {"forks", forks}};
    return run_mode(modes, sizeof modes / sizeof *modes, argc, argv);
}
