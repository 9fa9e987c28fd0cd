/* One set of spinning workers per process, shared by all artifacts that are loaded in it.
 *
 * Each artifact carries this file, so the artifacts must find one another: every one of them has an
 * ELF note with the distance to its `tcc_workers_slot`.  The slot of the first object in load order
 * is the one that counts; whoever needs workers first puts them there with one compare-and-swap.
 * Artifacts are linked `-z nodelete`, so neither slot nor code ever goes away. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "workers.h"

enum {
    CALM_LAUNCHES = 16, /* launches with a larger share before a run takes that share */
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

/* ---- finding the process's workers ------------------------------------------------------------ */

static tcc_workers *the_workers; /* caches the slot's content; the same in all threads */

/* Resets the workers in the child of a fork, where no worker and no launching thread exists any
 * more.  The next ticket of each team is one that no claim has seen. */
static void forget_workers(void) {
    tcc_workers *workers = the_workers;
    workers->forks++;
    atomic_store(&workers->load, 0);
    atomic_store(&workers->started, 0);
    atomic_store(&workers->refused, false);
    for (int i = 0; i < TCC_MAX_THREADS; i++) atomic_store(&workers->posts[i].post, POST_NOBODY);
    for (int i = 0; i < MOST_TEAMS; i++) {
        tcc_team *team = atomic_load(&workers->teams[i]);
        if (!team) break;
        team->ticket += 2;
        team->open = 0;
        team->narrow_for = 0;
        team->width = 0;
        team->used.at = 0;
        team->pause = NULL;
        team->manned = team->reached = 1;
        atomic_store(&team->busy, false);
    }
}

static void *allocate_shared(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, LINE_PAIR, bytes)) return NULL;
    return memset(memory, 0, bytes);
}

static tcc_workers *make_workers(void) {
    tcc_workers *workers = allocate_shared(sizeof *workers);
    if (!workers) return NULL;
    workers->version = WORKERS_VERSION;
    workers->launch = tcc_workers_launch;
    workers->settle = tcc_workers_settle;
    workers->memory = (tcc_budget){.name = "the process", .source = "process_set_memory_limit"};
    /* a variable that is no number was refused before */
    (void)tcc_threads_resolve(0, &workers->cpus);
    (void)tcc_spin_resolve(&workers->spin);
    return workers;
}

static void find_workers(void) {
    _Atomic(tcc_workers *) *slot = tcc_note_slot(WORKERS_VERSION);
    if (!slot) slot = &tcc_workers_slot;
    tcc_workers *workers = atomic_load(slot);
    if (!workers) {
        tcc_workers *created = make_workers();
        if (!created) return;
        if (atomic_compare_exchange_strong(slot, &workers, created)) {
            the_workers = created;
            if (pthread_atfork(NULL, NULL, forget_workers)) created->refused = true;
            return;
        }
        free(created);
    }
    the_workers = workers;
}

tcc_workers *tcc_workers_find(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_workers);
    return the_workers;
}

/* ---- a run's hold on them ------------------------------------------------------------------------ */

void tcc_crew_enter(tcc_crew *crew) {
    tcc_workers *workers = tcc_workers_find();
    *crew = (tcc_crew){.workers = workers, .asks = 1, .share = 1};
    if (!workers) return;
    crew->forks = workers->forks;
    atomic_fetch_add_explicit(&workers->load, LOAD_RUN, memory_order_relaxed);
}

void tcc_crew_settle(tcc_crew *crew) {
    if (crew->team) crew->workers->settle(crew->team);
}

void tcc_crew_leave(tcc_crew *crew) {
    tcc_workers *workers = crew->workers;
    if (!workers) return;
    if (crew->team) crew->team->pause = NULL; /* its answer would come too late now */
    tcc_crew_settle(crew);
    if (crew->team) {
        atomic_store_explicit(&workers->warm, (int32_t)crew->team->number, memory_order_relaxed);
        atomic_store_explicit(&crew->team->busy, false, memory_order_release);
    }
    uint64_t load = LOAD_RUN + LOAD_ASKED * (uint64_t)(crew->asks - 1);
    if (crew->forks == workers->forks)
        atomic_fetch_sub_explicit(&workers->load, load, memory_order_relaxed);
    *crew = (tcc_crew){0};
}

/* Returns the threads for a run, in proportion to what it and the other runs ask for.  A caller
 * always has a CPU. */
static int32_t share_of(const tcc_crew *crew) {
    tcc_load load = tcc_load_of(crew->workers);
    int64_t all = load.runs + load.requested, asks = crew->asks;
    int64_t cpus = crew->workers->cpus > asks ? crew->workers->cpus : asks;
    return (int32_t)(all <= cpus ? asks : (asks * cpus + all - 1) / all);
}

/* Returns the threads for a launch that wants `threads`.  Other runs may come and go quickly, so a
 * run that gave threads up takes them back only after CALM_LAUNCHES launches. */
static int32_t fair_threads(tcc_crew *crew, int32_t threads) {
    if (TCC_UNLIKELY(threads > crew->asks)) {
        uint64_t more = (uint64_t)(threads - crew->asks);
        atomic_fetch_add_explicit(&crew->workers->load, LOAD_ASKED * more, memory_order_relaxed);
        crew->asks = threads;
        crew->share = share_of(crew);
        crew->calm = 0;
    }
    int32_t share = share_of(crew);
    crew->calm = share > crew->share ? crew->calm + 1 : 0;
    if (TCC_UNLIKELY(share < crew->share || crew->calm == CALM_LAUNCHES)) {
        crew->share = share;
        if (crew->team) tcc_team_trim(crew->team, share);
    }
    return threads < crew->share ? threads : crew->share;
}

static bool caller_team(tcc_crew *crew, tcc_team *team) {
    if (atomic_load_explicit(&team->busy, memory_order_relaxed) ||
        atomic_exchange_explicit(&team->busy, true, memory_order_acquire))
        return false;
    crew->team = team;
    team->pause = crew->pause;
    team->pause_of = crew->pause_of;
    tcc_team_trim(team, crew->share);
    return true;
}

/* Returns the team with that number, and makes it if it does not exist; NULL without memory for
 * it. */
static tcc_team *team_at(tcc_workers *workers, int32_t number) {
    _Atomic(tcc_team *) *place = &workers->teams[number];
    tcc_team *team = atomic_load_explicit(place, memory_order_acquire);
    if (team) return team;
    tcc_team *created = allocate_shared(sizeof *created);
    if (!created) return NULL;
    created->workers = workers;
    created->number = (uint32_t)number;
    created->manned = created->reached = 1;
    if (atomic_compare_exchange_strong_explicit(place, &team, created, memory_order_release,
                                                memory_order_relaxed))
        return created;
    free(created);
    return team_at(workers, number);
}

/* Takes a free team for the run if it has none.  Tries the team that was left last first, because
 * its workers still spin.  Returns false if the run has no team. */
static bool has_team(tcc_crew *crew) {
    if (crew->team) return true;
    int32_t warm = atomic_load_explicit(&crew->workers->warm, memory_order_relaxed);
    for (int32_t i = -1; i < MOST_TEAMS; i++) {
        tcc_team *team = team_at(crew->workers, i < 0 ? warm : i);
        if (!team) return false;
        if (caller_team(crew, team)) return true;
    }
    return false;
}

void tcc_crew_launch(tcc_crew *crew, const tcc_job *job) {
    if (job->threads > 1 && crew->workers) {
        tcc_job fair = *job;
        fair.threads = fair_threads(crew, job->threads);
        if (fair.threads > job->units) fair.threads = (int32_t)job->units;
        int32_t width = fair.threads > 1 && has_team(crew) ? tcc_team_width(crew->team) : 1;
        if (fair.threads > width) fair.threads = width;
        if (fair.threads > 1) {
            crew->workers->launch(crew->team, &fair);
            return;
        }
    }
    tcc_crew_settle(crew);
    if (job->units > 0) job->kernel(job->buffers, job->ints, 0, job->units, job->scratch);
}
