/* Lets two threads of rank 0 call one comm.  Both must get TCC_INVALID_ARGUMENT, and the comm must
 * fail on all ranks.  Also closes a comm in the middle of another thread's calls; the close must
 * wait for the current call.
 *
 *     crossed RANKS [BACKEND]
 *
 * With 0 ranks the process is a rank that a launcher started. */
#include <pthread.h>

#include "ranks.h"

static const tcc_dtype i32 = {0, 32, 1};
static int32_t x[64], y[64];
static const tcc_comm_call sum = {.struct_size = sizeof sum, .kind = TCC_COMM_ALL_REDUCE,
                                  .dtype = {0, 32, 1}, .count = 8};

/* ---- what the second thread calls ------------------------------------------------------------- */

static tcc_status reduces(tcc_comm *comm) {
    return tcc_comm_all_reduce(comm, x, y, 8, i32, TCC_COMM_SUM);
}

static tcc_status starts(tcc_comm *comm) {
    uint64_t ticket;
    tcc_status status = tcc_comm_start(comm, &sum, x, y, &ticket);
    return status == TCC_OK ? tcc_comm_wait(comm, ticket) : status;
}

static tcc_status waits(tcc_comm *comm) { return tcc_comm_wait(comm, 99); }

static tcc_status plans(tcc_comm *comm) {
    tcc_comm_plan *plan;
    tcc_status status = tcc_comm_plan_make(comm, &sum, &plan);
    if (status != TCC_OK) return status;
    status = tcc_comm_plan_post(plan, x, y);
    tcc_comm_plan_free(plan);
    return status;
}

static tcc_status starts_plan(tcc_comm *comm) {
    uint64_t ticket;
    tcc_comm_plan *plan;
    tcc_status status = tcc_comm_plan_make(comm, &sum, &plan);
    if (status != TCC_OK) return status;
    status = tcc_comm_plan_start(plan, x, y, &ticket);
    if (status == TCC_OK) status = tcc_comm_wait(comm, ticket);
    tcc_comm_plan_free(plan);
    return status;
}

static tcc_status groups(tcc_comm *comm) {
    tcc_status status = tcc_comm_group_start(comm);
    return status == TCC_OK ? tcc_comm_group_end(comm) : status;
}

static tcc_status splits(tcc_comm *comm) {
    tcc_comm *part;
    tcc_status status = tcc_comm_split(comm, 0, 0, &part);
    if (status == TCC_OK) tcc_comm_close(part);
    return status;
}

static tcc_status finds_subgroup(tcc_comm *comm) {
    tcc_comm *part;
    const int32_t self = 0;
    return tcc_comm_subgroup(comm, &self, 1, &part);
}

static tcc_status takes_scratch(tcc_comm *comm) {
    void *memory;
    return tcc_comm_scratch(comm, 8, &memory);
}

static tcc_status keeps_memory(tcc_comm *comm) {
    tcc_comm_memory *memory;
    return tcc_comm_memory_keep(comm, x, &memory);
}

static tcc_status opens_device(tcc_comm *comm) {
    tcc_comm_device *device;
    return tcc_comm_device_open(comm, 2, &device);
}

typedef tcc_status way(tcc_comm *comm);
static way *const ways[] = {reduces, starts, waits, plans, starts_plan, groups, splits,
                            finds_subgroup, takes_scratch, keeps_memory, opens_device};
enum { WAYS = sizeof ways / sizeof *ways };

/* ---- two threads ------------------------------------------------------------------------------- */

typedef struct caller {
    tcc_comm *comm;
    way *calls;
    _Atomic int *ready;
} caller;

/* Calls until the other thread is found.  With other ranks the first call finds it, because they do
 * not come.  Without other ranks it takes a call that happens to meet it. */
static void *call(void *of) {
    const caller *self = of;
    for (++*self->ready; *self->ready < 2;) usleep(10);
    for (;;) {
        tcc_status status = self->calls(self->comm);
        const char *reason = tcc_comm_last_error();
        if (status == TCC_INVALID_ARGUMENT && strstr(reason, "two threads of rank 0")) return NULL;
        CHECK(status == TCC_OK || status == TCC_INVALID_ARGUMENT || status == TCC_UNSUPPORTED,
              "status %d: %s", (int)status, reason);
    }
}

static void cross(const setup *ranks, tcc_comm *world, way *second) {
    tcc_comm *comm;
    CHECK_OK(tcc_comm_split(world, 0, 0, &comm));
    if (tcc_comm_rank(world) == 0) {
        pthread_t threads[2];
        _Atomic int ready = 0;
        caller callers[] = {{comm, tcc_comm_barrier, &ready}, {comm, second, &ready}};
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, call, &callers[i]);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    }
    CHECK_OK(tcc_comm_barrier(world));
    (void)tcc_comm_group_end(comm); /* a group may be open, whose operations wait */
    tcc_status status = tcc_comm_barrier(comm);
    const char *reason = tcc_comm_last_error();
    int told = !ranks->backends || tcc_comm_rank(world) == 0;
    /* data that rank 0 sent before the second thread came may complete an operation of an engine */
    if (!told && status == TCC_OK) {
        status = tcc_comm_barrier(comm);
        reason = tcc_comm_last_error();
    }
    if (told)
        CHECK(status == TCC_INVALID_ARGUMENT && strstr(reason, "two threads of rank 0"),
              "status %d: %s", (int)status, reason);
    else
        CHECK(status == TCC_TIMEOUT || status == TCC_INVALID_ARGUMENT || status == TCC_MISMATCH,
              "status %d: %s", (int)status, reason);
    tcc_comm_close(comm);
    /* otherwise the other ranks waited in vain */
    if (!ranks->backends) CHECK_OK(tcc_comm_barrier(world));
}

static void *call_until_closed(void *of) {
    const caller *self = of;
    tcc_status status;
    do {
        status = self->calls(self->comm);
        ++*self->ready;
    } while (status == TCC_OK);
    CHECK(status == TCC_INVALID_ARGUMENT && strstr(tcc_comm_last_error(), "the comm is closed"),
          "status %d: %s", (int)status, tcc_comm_last_error());
    return NULL;
}

/* Rank 0 closes the comm while another of its threads makes one call after another. */
static void close_in_midst(tcc_comm *world) {
    tcc_comm *comm;
    CHECK_OK(tcc_comm_split(world, 0, 0, &comm));
    if (tcc_comm_rank(world) == 0) {
        pthread_t thread;
        _Atomic int ready = 0;
        caller other_caller = {comm, tcc_comm_barrier, &ready};
        CHECK_OK(tcc_comm_keep(comm));
        pthread_create(&thread, NULL, call_until_closed, &other_caller);
        while (ready < 100) usleep(10);
        tcc_comm_close(comm);
        pthread_join(thread, NULL);
        tcc_comm_drop(comm);
    } else {
        while (tcc_comm_barrier(comm) == TCC_OK) continue;
        tcc_comm_close(comm);
    }
    CHECK_OK(tcc_comm_barrier(world));
}

static void run(const setup *ranks) {
    tcc_comm *world;
    tcc_comm_config config = config_of(ranks);
    CHECK_OK(tcc_comm_open(&config, &world));
    if (!ranks->backends) close_in_midst(world);
    for (int i = 0; i < (ranks->backends ? 1 : WAYS); i++) cross(ranks, world, ways[i]);
    tcc_comm_close(world);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    setup ranks = {.size = atoi(argv[1]), .name = own_name("crossed"),
                   .backends = argc > 2 ? argv[2] : NULL,
                   .operation_milliseconds = argc > 2 ? 4000 : 60000};
    if (ranks.size) {
        run_ranks(ranks, run);
    } else {
        ranks.rank = ranks.size = -1;
        ranks.name = NULL;
        run(&ranks);
    }
    puts("ok");
    return 0;
}
