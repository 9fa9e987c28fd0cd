/* One set of spinning workers per process, shared by all artifacts that are loaded in it.
 *
 * Each artifact carries this file, so the artifacts must find one another: every one of them has an
 * ELF note with the distance to its `tcc_workers_slot`.  The slot of the first object in load order
 * is the one that counts; whoever needs workers first puts them there with one compare-and-swap.
 * Artifacts are linked `-z nodelete`, so neither slot nor code ever goes away. */
#define _GNU_SOURCE
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "workers.h"

enum {
    CALM_LAUNCHES = 16, /* launches alone before a run that shared the machine takes it all again */
};

__attribute__((visibility("hidden"))) _Atomic(tcc_workers *) tcc_workers_slot = NULL;

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
/* note: name "tcc", type WORKERS_VERSION, content the distance from itself to the slot */
__asm__(".pushsection .note.tcc,\"a\",%note\n"
        ".balign 4\n"
        ".long 4, 8, " TEXT(WORKERS_VERSION) "\n"
        ".asciz \"tcc\"\n"
        ".quad tcc_workers_slot - .\n"
        ".popsection\n");

enum { NOTE_HEADER = 12, NOTE_BYTES = 24 };

/* ---- finding the process's workers ------------------------------------------------------------ */

static int find_slot(struct dl_phdr_info *object, size_t size, void *out_slot) {
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_NOTE) continue;
        const char *note = (const char *)object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
        const char *end = note + object->dlpi_phdr[i].p_memsz;
        while (end - note >= NOTE_BYTES) {
            uint32_t header[3];
            memcpy(header, note, sizeof header);
            if (header[0] == 4 && header[1] == 8 && header[2] == WORKERS_VERSION &&
                memcmp(note + NOTE_HEADER, "tcc", 4) == 0) {
                int64_t distance;
                const char *content = note + NOTE_HEADER + 4;
                memcpy(&distance, content, sizeof distance);
                *(const char **)out_slot = content + distance;
                return 1;
            }
            size_t name = (header[0] + 3u) & ~(size_t)3, content = (header[1] + 3u) & ~(size_t)3;
            if (name + content > (size_t)(end - note) - NOTE_HEADER) break;
            note += NOTE_HEADER + name + content;
        }
    }
    return 0;
}

static tcc_workers *the_workers; /* cache of the slot's content; the same in all threads */

static void forget_workers(void) {
    /* in the child of a fork no worker exists, and whoever was launching is gone too; the next
     * ticket is one that no claim has seen */
    tcc_workers *workers = the_workers;
    atomic_store(&workers->started, 0);
    workers->refused = false;
    workers->ticket += 2;
    workers->open = 0;
    workers->alone_until = 0;
    atomic_store(&workers->runs, 0);
    atomic_store(&workers->busy, false);
    for (int i = 0; i < TCC_MAX_THREADS / 64; i++) atomic_store(&workers->asleep[i], 0);
}

static tcc_workers *make_workers(void) {
    tcc_workers *workers = NULL;
    if (posix_memalign((void **)&workers, LINE_PAIR, sizeof *workers)) return NULL;
    memset(workers, 0, sizeof *workers);
    workers->version = WORKERS_VERSION;
    workers->launch = tcc_workers_launch;
    workers->settle = tcc_workers_settle;
    workers->memory = (tcc_budget){.name = "the process", .source = "process_set_memory_limit"};
    (void)tcc_spin_resolve(&workers->spin); /* what is no number was refused before */
    return workers;
}

static void find_workers(void) {
    _Atomic(tcc_workers *) *slot = NULL;
    if (!dl_iterate_phdr(find_slot, &slot)) slot = &tcc_workers_slot;
    tcc_workers *found = atomic_load(slot);
    if (!found) {
        tcc_workers *made = make_workers();
        if (!made) return;
        if (atomic_compare_exchange_strong(slot, &found, made)) {
            the_workers = made;
            if (pthread_atfork(NULL, NULL, forget_workers)) made->refused = true;
            return;
        }
        free(made);
    }
    the_workers = found;
}

tcc_workers *tcc_workers_find(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_workers);
    return the_workers;
}

/* ---- a run's hold on them ------------------------------------------------------------------------ */

void tcc_crew_enter(tcc_crew *crew) {
    tcc_workers *workers = tcc_workers_find();
    *crew = (tcc_crew){.workers = workers, .calm = CALM_LAUNCHES};
    if (workers) atomic_fetch_add_explicit(&workers->runs, 1, memory_order_relaxed);
}

void tcc_crew_settle(tcc_crew *crew) {
    if (crew->owner) crew->workers->settle(crew->workers);
}

void tcc_crew_leave(tcc_crew *crew) {
    if (!crew->workers) return;
    tcc_crew_settle(crew);
    if (crew->owner) atomic_store_explicit(&crew->workers->busy, false, memory_order_release);
    atomic_fetch_sub_explicit(&crew->workers->runs, 1, memory_order_relaxed);
    *crew = (tcc_crew){0};
}

/* Threads for a launch that wants `threads`: one less for each other run, for its caller has a CPU
 * too.  Others may come and go quickly, so a run that gave way takes back only after a while. */
static int32_t fair_threads(tcc_crew *crew, int32_t threads) {
    int32_t others = atomic_load_explicit(&crew->workers->runs, memory_order_relaxed) - 1;
    if (TCC_UNLIKELY(others > 0)) {
        crew->others = others;
        crew->calm = 0;
    } else if (TCC_UNLIKELY(crew->calm < CALM_LAUNCHES)) {
        if (++crew->calm == CALM_LAUNCHES) crew->others = 0;
    }
    return threads - crew->others;
}

static bool own_workers(tcc_crew *crew) {
    tcc_workers *workers = crew->workers;
    if (!crew->owner && !atomic_load_explicit(&workers->busy, memory_order_relaxed))
        crew->owner = !atomic_exchange_explicit(&workers->busy, true, memory_order_acquire);
    return crew->owner;
}

/* Whether the workers may be counted on; for their owner. */
static bool reliable(tcc_workers *workers) {
    if (!workers->alone_until) return true;
    if (tcc_now() < workers->alone_until) return false;
    workers->alone_until = 0;
    return true;
}

void tcc_crew_launch(tcc_crew *crew, const tcc_job *job) {
    if (job->threads > 1 && crew->workers) {
        tcc_job fair = *job;
        fair.threads = fair_threads(crew, job->threads);
        if (fair.threads > job->units) fair.threads = (int32_t)job->units;
        if (fair.threads > 1 && own_workers(crew) && reliable(crew->workers)) {
            crew->workers->launch(crew->workers, &fair);
            return;
        }
    }
    tcc_crew_settle(crew);
    if (job->units > 0) job->kernel(job->buffers, job->ints, 0, job->units, job->scratch);
}
