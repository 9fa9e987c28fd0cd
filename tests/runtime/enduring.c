/* A host program that loads and runs a model repeatedly under a resource limit, or while system
 * calls fail.
 *
 *     enduring ARTIFACT THREADS [LIMIT BYTES [USER]]
 *
 * ARTIFACT comes from programs.enduring.  The model is loaded, run and released four times.  If
 * failing.c is preloaded, calls fail in the first and the third time.  LIMIT is the number of a
 * resource limit, which is set to BYTES; the process becomes user USER.  A run must give the right
 * result or a status with a reason, and a release must leave no descriptor and no mapping.  Prints
 * a line for each time. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <grp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tcc.h"
#include "tcc_pool.h"

enum { COUNT = 1 << 18, TRIES = 4, WRONG = 3 };

static const tcc_api *api;

static int count_descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) return -1;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* Counts mappings of large memory, without the workers' stacks, which stay. */
static int count_mappings(void) {
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) return -1;
    while (fgets(line, sizeof line, maps)) {
        unsigned long begin, end;
        char access[8];
        if (sscanf(line, "%lx-%lx %7s", &begin, &end, access) == 3)
            count += strstr(line, "memfd") || (end - begin >= 1 << 20 && access[0] == 'r' && end - begin < 8 << 20);
    }
    fclose(maps);
    return count;
}

static tcc_status use_results(void) {
    tcc_pool *pool;
    void *memory;
    tcc_status status = api->result_pool(&pool);
    if (status == TCC_OK) status = api->pools->take(pool, 1 << 20, &memory);
    if (status != TCC_OK) return status;
    memset(memory, 1, 1 << 20);
    return api->pools->give(pool, memory);
}

static tcc_status run(tcc_instance *instance, int threads) {
    float y[4] = {0};
    int64_t count = COUNT, four = 4;
    tcc_tensor x = {.data = &count, .device = {1, 0}, .dtype = {0, 64, 1}};
    tcc_tensor out = {.data = y, .device = {1, 0}, .ndim = 1, .dtype = {2, 32, 1}, .shape = &four};
    tcc_status status = api->instance_set_threads(instance, threads);
    if (status == TCC_OK) status = api->run(instance, &x, 1, &out, 1, NULL, NULL);
    for (int i = 0; status == TCC_OK && i < 4; i++)
        if (y[i] != (float)(COUNT + i + 1)) exit(WRONG);
    return status;
}

static tcc_status attempt(int threads) {
    tcc_model *model = NULL;
    tcc_instance *instance = NULL;
    tcc_status status = api->model_get(&model);
    if (status != TCC_OK) return status;
    status = api->instance_create(model, 0, &instance);
    if (status == TCC_OK) status = run(instance, threads);
    if (status == TCC_OK) status = run(instance, threads);
    if (instance) api->instance_destroy(instance);
    if (status == TCC_OK) status = use_results();
    api->model_release(model);
    return status;
}

/* Prints a status, checks its reason, or checks the result. */
static void say(tcc_status status) {
    if (status == TCC_OK) {
        puts("right");
        return;
    }
    if (!*api->last_error()) exit(WRONG + 1);
    printf("status %d: %s\n", (int)status, api->last_error());
}

static void set_limit(char **words) {
    rlim_t bytes = strtoull(words[1], NULL, 10);
    int resource = atoi(words[0]);
    struct rlimit limit;
    if (words[2] && (setgroups(0, NULL) || setresgid((gid_t)atoi(words[2]), (gid_t)atoi(words[2]), (gid_t)-1) ||
                     setresuid((uid_t)atoi(words[2]), (uid_t)atoi(words[2]), (uid_t)atoi(words[2]))))
        exit(2);
    if (getrlimit((__rlimit_resource_t)resource, &limit)) exit(2);
    limit.rlim_cur = bytes;
    if (setrlimit((__rlimit_resource_t)resource, &limit)) exit(2);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    long *fail_at = dlsym(RTLD_DEFAULT, "fail_at"), *calls = dlsym(RTLD_DEFAULT, "fail_calls"), at = 0;
    int threads = atoi(argv[2]), before = count_descriptors(), mappings[TRIES] = {0};
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (argc > 4) set_limit(argv + 3);
    void *library = dlopen(argv[1], RTLD_NOW);
    const tcc_api *(*entry)(void) = NULL;
    if (library) *(void **)&entry = dlsym(library, "tcc_artifact_api");
    if (!entry) return printf("not loaded: %s\n", dlerror()), 0;
    api = entry();
    for (int i = 0; i < TRIES; i++) {
        bool fails = fail_at && i % 2 == 0;
        if (fails && i) *fail_at = at;
        tcc_status status = attempt(threads);
        if (fail_at && i == 0) {
            printf("calls %ld\n", *calls);
            at = *fail_at;
        }
        if (fail_at) *fail_at = *calls = 0;
        say(status);
        if (fail_at && !fails && status != TCC_OK) return WRONG + 2;
        int after = count_descriptors();
        if (after > 0 && before > 0 && after != before)
            return printf("%d descriptors, then %d\n", before, after), WRONG + 3;
        mappings[i] = count_mappings();
    }
    if (mappings[1] >= 0 && mappings[TRIES - 1] > mappings[1])
        return printf("%d mappings, then %d\n", mappings[1], mappings[TRIES - 1]), WRONG + 4;
    return 0;
}
