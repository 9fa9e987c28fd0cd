/* The main function of programs that run one of several scenarios. */
#ifndef SCENARIOS_H
#define SCENARIOS_H

#include "leaks.h"
#include "ranks.h"

typedef struct scenario {
    const char *name;
    void (*run)(void);
} scenario;

/* Runs the scenario that the command line names, and checks that it leaves no descriptors.  Returns
 * the exit code.  A scenario that hangs ends by a signal. */
static inline int run_scenario(const scenario *all, size_t n, int argc, char **argv) {
    enum { MOST_SECONDS = 300 };
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGALRM);
    signal(SIGALRM, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &ending, NULL);
    alarm(MOST_SECONDS);
    for (size_t i = 0; argc == 2 && i < n; i++) {
        if (strcmp(all[i].name, argv[1])) continue;
        leaks before = count_leaks();
        all[i].run();
        CHECK(count_leaks().descriptors == before.descriptors, "descriptors are left");
        puts("ok");
        return 0;
    }
    return 2;
}

#define RUN_SCENARIO(all) run_scenario(all, sizeof(all) / sizeof *(all), argc, argv)

#endif
