/* Ranks as forked processes of a test program. */
#ifndef RANKS_H
#define RANKS_H

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tcc_comm.h"

#ifndef MOST_RANKS
#define MOST_RANKS 16
#endif

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        tcc_status status_of_call = (call);                                                        \
        CHECK(status_of_call == TCC_OK, "%s: status %d: %s", #call, (int)status_of_call,           \
              tcc_comm_last_error());                                                              \
    } while (0)

typedef struct setup {
    int32_t rank, size;
    int open_milliseconds, operation_milliseconds;
    const char *name;     /* the rendezvous */
    const char *backends; /* NULL: shared */
} setup;

static inline tcc_comm_config config_of(const setup *ranks) {
    tcc_comm_config config = TCC_COMM_CONFIG;
    config.rank = ranks->rank;
    config.size = ranks->size;
    config.rendezvous = ranks->name;
    config.backends = ranks->backends ? ranks->backends : "shared";
    config.open_milliseconds = ranks->open_milliseconds;
    config.operation_milliseconds = ranks->operation_milliseconds;
    return config;
}

/* Returns a name that no other run of tests uses. */
static inline const char *own_name(const char *of) {
    static char name[100];
    snprintf(name, sizeof name, "%s-%d", of, (int)getpid());
    return name;
}

typedef void rank_main(const setup *ranks);

static inline void start_ranks(setup ranks, rank_main *run, pid_t *pids) {
    fflush(stdout);
    pid_t parent = getpid();
    for (int32_t i = 0; i < ranks.size; i++) {
        pids[i] = fork();
        CHECK(pids[i] >= 0, "fork: %s", strerror(errno));
        if (pids[i]) continue;
        alarm(1800);                          /* a hang ends by this signal */
        prctl(PR_SET_PDEATHSIG, SIGKILL);     /* a rank whose parent was killed ends, too */
        if (getppid() != parent) _exit(1);    /* the parent had ended already */
        ranks.rank = i;
        run(&ranks);
        exit(0);
    }
}

/* Waits for all ranks. Exits with 1 where one failed. */
static inline void join_ranks(const setup *ranks, const pid_t *pids) {
    int bad = 0, status;
    for (int32_t i = 0; i < ranks->size; i++) {
        CHECK(waitpid(pids[i], &status, 0) == pids[i], "waitpid: %s", strerror(errno));
        if (status) fprintf(stderr, "rank %d of %d: status %x\n", i, ranks->size, status);
        bad |= status;
    }
    if (bad) exit(1);
}

static inline void run_ranks(setup ranks, rank_main *run) {
    pid_t pids[MOST_RANKS];
    start_ranks(ranks, run, pids);
    join_ranks(&ranks, pids);
}

#endif
