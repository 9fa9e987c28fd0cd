/* One set of spinning workers per process, shared by all artifacts that are loaded in it.
 *
 * Each artifact carries this file, so the artifacts must find one another: every one of them has an
 * ELF note with the distance to its `tcc_workers_slot`.  The slot of the first object in load order
 * is the one that counts; whoever needs workers first puts them there with one compare-and-swap.
 * Artifacts are linked `-z nodelete`, so neither slot nor code ever goes away. */
#define _GNU_SOURCE
#include <link.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "workers.h"

enum {
    CROWDED_NANOSECONDS = 20000, /* spinning where other runs could use the CPU */
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

/* ---- a worker's life ------------------------------------------------------------------------------ */

/* The word of the slot where the launch after `last` will be, or one after that. */
static uint64_t next_word(const tcc_workers *workers, uint64_t last) {
    const tcc_slot *slot = &workers->slots[(last + 1) & 1];
    return atomic_load_explicit(&slot->word, memory_order_acquire);
}

static void sleep_until_called(tcc_workers *workers, int32_t self, uint64_t last) {
    uint64_t bit = UINT64_C(1) << (self % 64);
    uint32_t bell = atomic_load(&workers->bell[self]);
    TCC_BETWEEN();
    atomic_fetch_or(&workers->asleep[self / 64], bit);
    /* A launch that goes out at this moment may miss the bit; its caller looks again as it works. */
    while (next_word(workers, last) >> WORD_TICKET <= last &&
           atomic_load(&workers->bell[self]) == bell)
        syscall(SYS_futex, &workers->bell[self], FUTEX_WAIT_PRIVATE, bell, NULL, NULL, 0);
    atomic_fetch_and(&workers->asleep[self / 64], ~bit);
}

/* Nanoseconds that a worker may spin now: the last ones make room for the callers of other runs. */
static int64_t patience(const tcc_workers *workers, int32_t self) {
    int32_t others = atomic_load_explicit(&workers->runs, memory_order_relaxed) - 1;
    int32_t started = atomic_load_explicit(&workers->started, memory_order_relaxed);
    bool crowded = others > 0 && self > started - others;
    return crowded && workers->spin > CROWDED_NANOSECONDS ? CROWDED_NANOSECONDS : workers->spin;
}

typedef struct worker_start {
    tcc_workers *workers;
    int32_t self;
    uint64_t last;
} worker_start;

static void *worker(void *argument) {
    worker_start start = *(worker_start *)argument;
    free(argument);
    tcc_workers *workers = start.workers;
    uint64_t last = start.last;
    int64_t idle_since = tcc_now();
    uint64_t word = 0;
    bool part = false; /* in a launch that others may still be at */
    tcc_ahead ahead = {0};
    for (uint32_t spins = 1;; spins++) {
        uint64_t next = next_word(workers, last);
        if (next >> WORD_TICKET > last) {
            TCC_BETWEEN();
            word = next;
            last = word >> WORD_TICKET;
            part = tcc_workers_join(workers, start.self, word);
            ahead = tcc_workers_ahead(workers, start.self, word);
            idle_since = 0;
            spins = 0;
            continue;
        }
        tcc_fetch(&ahead);
        tcc_relax();
        if (part && spins % HELP_AFTER == 0) part = tcc_workers_help(workers, start.self, word);
        if (spins % LOOK_AT_CLOCK) continue;
        if (!idle_since) idle_since = tcc_now();
        if (tcc_now() - idle_since > patience(workers, start.self)) {
            sleep_until_called(workers, start.self, last);
            idle_since = 0;
        }
    }
    return NULL;
}

/* Signals sent to the process stay with the program's own threads.  Those that a thread's own
 * instructions raise must reach a handler, or the kernel kills the process without asking it; and
 * profilers want to interrupt whoever uses the CPU. */
static void signals_to_block(sigset_t *out_set) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGPROF};
    sigfillset(out_set);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(out_set, own[i]);
}

void tcc_workers_start(tcc_workers *workers, int32_t wanted) {
    sigset_t blocked, old;
    signals_to_block(&blocked);
    pthread_sigmask(SIG_SETMASK, &blocked, &old);
    pthread_attr_t attributes;
    bool ready = pthread_attr_init(&attributes) == 0;
    if (ready) pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int32_t started = atomic_load_explicit(&workers->started, memory_order_relaxed);
    while (ready && started < wanted) {
        worker_start *start = malloc(sizeof *start);
        pthread_t thread;
        if (!start) break;
        *start = (worker_start){workers, started + 1, workers->ticket};
        if (pthread_create(&thread, &attributes, worker, start)) {
            free(start);
            break;
        }
        atomic_store_explicit(&workers->started, ++started, memory_order_relaxed);
    }
    if (started < wanted) workers->refused = true;
    if (ready) pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void tcc_workers_wake(tcc_workers *workers, int32_t threads) {
    for (int32_t group = 0; group * 64 < threads; group++) {
        uint64_t asleep = atomic_load_explicit(&workers->asleep[group], memory_order_relaxed);
        if (threads - group * 64 < 64) asleep &= (UINT64_C(1) << (threads - group * 64)) - 1;
        while (TCC_UNLIKELY(asleep != 0)) {
            int32_t self = group * 64 + __builtin_ctzll(asleep);
            asleep &= asleep - 1;
            atomic_fetch_and(&workers->asleep[group], ~(UINT64_C(1) << (self % 64)));
            atomic_fetch_add(&workers->bell[self], 1);
            syscall(SYS_futex, &workers->bell[self], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        }
    }
}
