/* One spinning set of workers per process, shared by all artifacts that are loaded in it.
 *
 * Each artifact carries this file, so the artifacts must find one another: every one of them has an
 * ELF note with the distance to its `tcc_workers_slot`.  The slot of the first object in load order
 * is the one that counts; whoever needs workers first puts them there with one compare-and-swap.
 * Artifacts are linked `-z nodelete`, so neither slot nor code ever goes away.
 *
 * A launch splits units 0..n into one range per thread.  A thread takes half of what is left of its
 * own range at a time (so its data stays in its cache), then helps with the others.  The caller
 * never waits for a worker that has not started: workers check in and out of a job through `word`,
 * and the caller closes the job before it waits for those that are in.  A sleeping or descheduled
 * worker so costs nothing but its share of the speed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

enum { WORKERS_VERSION = 1, SPIN_NANOSECONDS = 2000000, YIELD_AFTER = 1024 };

/* word = launches << 32 | thread limit << 16 | closed << 15 | workers inside */
#define WORD_CLOSED UINT64_C(0x8000)
#define WORD_INSIDE UINT64_C(0x7FFF)

typedef struct unit_range {
    _Alignas(64) _Atomic int64_t cursor;
    int64_t end, least;
} unit_range;

/* Version 1 of the shared object; a later layout gets a note type of its own. */
typedef struct tcc_workers {
    uint32_t version;
    void (*launch)(struct tcc_workers *workers, const tcc_job *job);
    int32_t started; /* workers alive; written by the owner of `busy` */
    bool refused;    /* the system gave no more threads: do not ask at every launch */
    _Alignas(64) atomic_bool busy;
    _Alignas(64) _Atomic uint64_t word;
    tcc_job job;
    _Alignas(64) _Atomic uint64_t asleep[TCC_MAX_THREADS / 64];
    _Atomic uint32_t bell[TCC_MAX_THREADS];
    unit_range ranges[TCC_MAX_THREADS];
} tcc_workers;

__attribute__((visibility("hidden"))) _Atomic(tcc_workers *) tcc_workers_slot = NULL;

/* note: name "tcc", type 1, content the distance from itself to the slot */
__asm__(".pushsection .note.tcc,\"a\",%note\n"
        ".balign 4\n"
        ".long 4, 8, 1\n"
        ".asciz \"tcc\"\n"
        ".quad tcc_workers_slot - .\n"
        ".popsection\n");

enum { NOTE_HEADER = 12, NOTE_TYPE = 1, NOTE_BYTES = 24 };

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

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
            if (header[0] == 4 && header[1] == 8 && header[2] == NOTE_TYPE &&
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

static void launch_with_workers(tcc_workers *workers, const tcc_job *job);

static tcc_workers *the_workers; /* cache of the slot's content; the same in all threads */

static void forget_workers(void) {
    /* in the child of a fork no worker exists, and whoever was launching is gone too */
    tcc_workers *workers = the_workers;
    workers->started = 0;
    workers->refused = false;
    atomic_store(&workers->busy, false);
    atomic_store(&workers->word, WORD_CLOSED);
    for (int i = 0; i < TCC_MAX_THREADS / 64; i++) atomic_store(&workers->asleep[i], 0);
}

static tcc_workers *make_workers(void) {
    tcc_workers *workers = NULL;
    if (posix_memalign((void **)&workers, 64, sizeof *workers)) return NULL;
    memset(workers, 0, sizeof *workers);
    workers->version = WORKERS_VERSION;
    workers->launch = launch_with_workers;
    atomic_store(&workers->word, WORD_CLOSED);
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

int32_t tcc_threads_resolve(int32_t wanted) {
    if (wanted <= 0) {
        const char *text = getenv("TCC_NUM_THREADS");
        long number = text ? strtol(text, NULL, 10) : 0;
        cpu_set_t set;
        if (number > 0)
            wanted = number < TCC_MAX_THREADS ? (int32_t)number : TCC_MAX_THREADS;
        else if (sched_getaffinity(0, sizeof set, &set) == 0)
            wanted = CPU_COUNT(&set);
        else /* more CPUs than the mask has room for */
            wanted = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    }
    return wanted < 1 ? 1 : wanted > TCC_MAX_THREADS ? TCC_MAX_THREADS : wanted;
}

/* ---- doing the work ----------------------------------------------------------------------------- */

static bool claim(unit_range *range, int64_t *out_begin, int64_t *out_end) {
    int64_t begin = atomic_load_explicit(&range->cursor, memory_order_relaxed);
    for (;;) {
        int64_t left = range->end - begin;
        if (left <= 0) return false;
        int64_t take = left / 2 > range->least ? left / 2 : range->least;
        if (take > left) take = left;
        if (atomic_compare_exchange_weak_explicit(&range->cursor, &begin, begin + take,
                                                  memory_order_relaxed, memory_order_relaxed)) {
            *out_begin = begin;
            *out_end = begin + take;
            return true;
        }
    }
}

static void work(tcc_workers *workers, int32_t self) {
    const tcc_job *job = &workers->job;
    void *scratch = job->scratch ? job->scratch + (size_t)self * job->scratch_stride : NULL;
    for (int32_t i = 0, owner = self; i < job->threads; i++) {
        int64_t begin, end;
        while (claim(&workers->ranges[owner], &begin, &end))
            job->kernel(job->buffers, job->ints, begin, end, scratch);
        if (++owner == job->threads) owner = 0;
    }
}

static bool is_open_for(uint64_t word, uint64_t last, int32_t self) {
    return !(word & WORD_CLOSED) && word >> 32 != last && (uint64_t)self < (word >> 16 & 0xFFFF);
}

static void sleep_until_called(tcc_workers *workers, int32_t self, uint64_t last) {
    uint64_t bit = UINT64_C(1) << (self % 64);
    uint32_t bell = atomic_load(&workers->bell[self]);
    atomic_fetch_or(&workers->asleep[self / 64], bit);
    /* a launch stores `word`, then reads `asleep`: one of the two sees the other */
    while (!is_open_for(atomic_load(&workers->word), last, self) &&
           atomic_load(&workers->bell[self]) == bell)
        syscall(SYS_futex, &workers->bell[self], FUTEX_WAIT_PRIVATE, bell, NULL, NULL, 0);
    atomic_fetch_and(&workers->asleep[self / 64], ~bit);
}

typedef struct worker_start {
    tcc_workers *workers;
    int32_t self;
} worker_start;

static void *worker(void *argument) {
    worker_start start = *(worker_start *)argument;
    free(argument);
    tcc_workers *workers = start.workers;
    uint64_t last = 0;
    int64_t idle_since = now();
    for (uint32_t spins = 1;; spins++) {
        uint64_t word = atomic_load_explicit(&workers->word, memory_order_acquire);
        if (is_open_for(word, last, start.self)) {
            if (!atomic_compare_exchange_weak_explicit(&workers->word, &word, word + 1,
                                                       memory_order_acq_rel, memory_order_relaxed))
                continue;
            last = word >> 32;
            work(workers, start.self);
            atomic_fetch_sub_explicit(&workers->word, 1, memory_order_release);
            idle_since = now();
            continue;
        }
        relax();
        if (spins % 256 == 0 && now() - idle_since > SPIN_NANOSECONDS) {
            sleep_until_called(workers, start.self, last);
            idle_since = now();
        }
    }
    return NULL;
}

/* Only the owner of `busy` calls this. */
static void start_workers(tcc_workers *workers, int32_t wanted) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals stay with the program's own threads */
    pthread_attr_t attributes;
    bool ready = pthread_attr_init(&attributes) == 0;
    if (ready) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (ready && workers->started < wanted) {
        worker_start *start = malloc(sizeof *start);
        pthread_t thread;
        if (!start) break;
        *start = (worker_start){workers, workers->started + 1};
        if (pthread_create(&thread, &attributes, worker, start)) {
            free(start);
            break;
        }
        workers->started++;
    }
    if (workers->started < wanted) workers->refused = true;
    if (ready) pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void wake(tcc_workers *workers, int32_t threads) {
    for (int32_t group = 0; group * 64 < threads; group++) {
        uint64_t asleep = atomic_load(&workers->asleep[group]);
        if (threads - group * 64 < 64) asleep &= (UINT64_C(1) << (threads - group * 64)) - 1;
        while (TCC_UNLIKELY(asleep != 0)) {
            int32_t self = group * 64 + __builtin_ctzll(asleep);
            asleep &= asleep - 1;
            atomic_fetch_add(&workers->bell[self], 1);
            syscall(SYS_futex, &workers->bell[self], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        }
    }
}

static void launch_with_workers(tcc_workers *workers, const tcc_job *job) {
    workers->job = *job;
    int32_t threads = job->threads;
    if (threads > job->units) threads = (int32_t)job->units;
    if (TCC_UNLIKELY(workers->started < threads - 1)) {
        if (!workers->refused) start_workers(workers, threads - 1);
        if (threads > workers->started + 1) threads = workers->started + 1;
    }
    workers->job.threads = threads;
    int64_t share = job->units / threads, rest = job->units % threads, begin = 0;
    for (int32_t i = 0; i < threads; i++) {
        unit_range *range = &workers->ranges[i];
        int64_t count = share + (i < rest);
        atomic_store_explicit(&range->cursor, begin, memory_order_relaxed);
        range->end = begin += count;
        range->least = count / 16 ? count / 16 : 1;
    }
    uint64_t launches = (atomic_load_explicit(&workers->word, memory_order_relaxed) >> 32) + 1;
    if (launches >> 32) launches = 1; /* 0 is what a new worker has seen */
    atomic_store(&workers->word, launches << 32 | (uint64_t)threads << 16);
    wake(workers, threads);
    work(workers, 0);
    atomic_fetch_or_explicit(&workers->word, WORD_CLOSED, memory_order_acq_rel);
    for (uint32_t spins = 1;
         atomic_load_explicit(&workers->word, memory_order_acquire) & WORD_INSIDE; spins++) {
        relax();
        if (spins % YIELD_AFTER == 0) sched_yield(); /* a worker may wait for this very CPU */
    }
}

void tcc_threads_launch(const tcc_job *job) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (job->threads > 1 && job->units > 1) {
        pthread_once(&once, find_workers);
        tcc_workers *workers = the_workers;
        if (workers && !atomic_load_explicit(&workers->busy, memory_order_relaxed) &&
            !atomic_exchange_explicit(&workers->busy, true, memory_order_acquire)) {
            workers->launch(workers, job);
            atomic_store_explicit(&workers->busy, false, memory_order_release);
            return;
        }
    }
    if (job->units > 0) job->kernel(job->buffers, job->ints, 0, job->units, job->scratch);
}
