/* Prints the size of a worker's stack in bytes. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "workers.h"

const tcc_artifact tcc_artifact_info = {.name = "stacks"};

static pthread_t caller;
static _Atomic size_t stack_bytes;

static void look(void *const *b, const int64_t *n, int64_t begin, int64_t end, void *scratch) {
    (void)b, (void)n, (void)begin, (void)end, (void)scratch;
    pthread_attr_t attributes;
    size_t size = 0;
    if (pthread_equal(pthread_self(), caller)) {
        while (!stack_bytes) sched_yield(); /* until the worker has begun */
        return;
    }
    if (!pthread_getattr_np(pthread_self(), &attributes)) pthread_attr_getstacksize(&attributes, &size);
    pthread_attr_destroy(&attributes);
    stack_bytes = size;
}

int main(void) {
    tcc_crew crew;
    caller = pthread_self();
    tcc_job job = {look, NULL, NULL, 2, NULL, 0, 2, NULL, 0};
    tcc_crew_enter(&crew);
    tcc_crew_launch(&crew, &job);
    tcc_crew_settle(&crew);
    tcc_crew_leave(&crew);
    printf("%zu\n", stack_bytes);
    return 0;
}
