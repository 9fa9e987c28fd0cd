/* Makes ranks on stand-in GPUs fail, one scenario per run. Every rank must get a status that names
 * the rank and the operation, in time, and nothing may be left behind.
 *
 *     device_faults SCENARIO */
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "on_devices.h"

static const tcc_dtype f32 = {2, 32, 1}, i32 = {0, 32, 1};
enum { COUNT = 100 };

#define CHECK_FAILS(call, expected, text)                                                          \
    do {                                                                                           \
        tcc_status status_of_call = (call);                                                        \
        CHECK(status_of_call == (expected) && strstr(tcc_comm_last_error(), text),                 \
              "%s: status %d: %s, not %d: ...%s...", #call, (int)status_of_call,                   \
              tcc_comm_last_error(), (int)(expected), text);                                       \
    } while (0)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- a rank with its GPU --------------------------------------------------------------------- */

typedef struct rank {
    tcc_comm *comm;
    gpu gpu;
    tcc_comm_device *device;
    void *stream;
    uint64_t data, result; /* COUNT f32 each */
} rank;

/* Returns a setting of fake_nccl.c from the process's library. */
static void *setting(const char *name) {
    void *library = dlopen(getenv("TCC_NCCL_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    CHECK(library, "%s", dlerror());
    return symbol_of(library, name);
}
static void fail(const char *name, int nth, int result) {
    ((void (*)(const char *, int, int))setting("fake_nccl_fail"))(name, nth, result);
}
static void set(int version, int looks, int error) {
    ((void (*)(int, int, int))setting("fake_nccl_set"))(version, looks, error);
}
static int live(void) { return ((int (*)(void))setting("fake_nccl_live"))(); }

static rank open_rank(const setup *ranks) {
    rank self = {.gpu = open_gpu("nccl")};
    float values[COUNT];
    tcc_comm_config config = config_of(ranks);
    CHECK_OK(tcc_comm_open(&config, &self.comm));
    self.stream = self.gpu.stream();
    for (int i = 0; i < COUNT; i++) values[i] = (float)(i + ranks->rank);
    self.data = self.gpu.array(values, sizeof values);
    self.result = self.gpu.array(NULL, sizeof values);
    return self;
}

static rank join_rank(const setup *ranks) {
    rank self = open_rank(ranks);
    CHECK_OK(tcc_comm_device_open(self.comm, 2, &self.device));
    return self;
}

static void close_rank(rank *of) {
    tcc_comm_device_close(of->device);
    tcc_comm_close(of->comm);
    CHECK(live() == 0, "%d communicators are left", live());
}

static tcc_status start_sum(const rank *of, int64_t count) {
    const tcc_comm_call call = {.struct_size = sizeof call, .kind = TCC_COMM_ALL_REDUCE,
                                .dtype = f32, .count = count};
    return tcc_comm_device_start(of->device, &call, (void *)of->data, (void *)of->result,
                                 of->stream);
}

static tcc_status await(const rank *of) {
    int error = 0;
    tcc_status status = tcc_comm_device_wait(of->device, of->gpu.settle, of->stream, &error);
    CHECK(!error, "error %d of the driver", error);
    return status;
}

static tcc_status sum(const rank *of, int64_t count) {
    tcc_status status = start_sum(of, count);
    return status == TCC_OK ? await(of) : status;
}

static void check_sum(const rank *of) {
    int n = tcc_comm_size(of->comm);
    float sums[COUNT];
    CHECK_OK(sum(of, COUNT));
    CHECK(!of->gpu.read(of->result, sums, sizeof sums), "no result");
    for (int i = 0; i < COUNT; i++)
        CHECK(sums[i] == (float)(n * i + n * (n - 1) / 2), "sum %d is %f", i, (double)sums[i]);
}

/* Checks that a revoked comm stays revoked and can be left. */
static void check_revoked(rank *of, tcc_status status, const char *text) {
    CHECK_FAILS(sum(of, COUNT), status, text);
    CHECK_FAILS(tcc_comm_barrier(of->comm), status, text);
    tcc_comm_device *again;
    CHECK_FAILS(tcc_comm_device_open(of->comm, 2, &again), status, text);
    close_rank(of);
}

/* ---- ranks that fail ------------------------------------------------------------------------- */

static void dies_in_operation(const setup *ranks) {
    rank self = join_rank(ranks);
    check_sum(&self);
    CHECK_OK(tcc_comm_barrier(self.comm)); /* all ranks have done it */
    if (ranks->rank == 1) raise(SIGKILL);
    double began = now();
    CHECK_FAILS(sum(&self, COUNT), TCC_PEER_DEAD, "rank 1 (pid");
    CHECK(now() - began < 2, "it took %f s", now() - began);
    check_revoked(&self, TCC_PEER_DEAD, "rank 1 (pid");
}

/* A rank dies while no other rank waits for the stream through the comm. */
static void dies_unwatched(const setup *ranks) {
    rank self = join_rank(ranks);
    CHECK_OK(tcc_comm_barrier(self.comm));
    if (ranks->rank == 1) raise(SIGKILL);
    tcc_status status = start_sum(&self, COUNT);
    CHECK(status == TCC_OK || status == TCC_PEER_DEAD, "status %d", (int)status);
    CHECK(!self.gpu.settle(self.stream), "an error of the driver");
    check_revoked(&self, TCC_PEER_DEAD, "rank 1 (pid");
}

static void dies_opening(const setup *ranks) {
    rank self = open_rank(ranks);
    if (ranks->rank == 1) fail("ncclCommInitRankConfig", 1, -9);
    CHECK_FAILS(tcc_comm_device_open(self.comm, 2, &self.device), TCC_PEER_DEAD, "rank 1 (pid");
    CHECK(!self.device, "a device that was not opened");
    close_rank(&self);
}

static void comes_late(const setup *ranks) {
    rank self = join_rank(ranks);
    if (ranks->rank == 1) {
        while (tcc_comm_error(self.comm) == TCC_OK) usleep(1000);
    } else {
        CHECK_FAILS(sum(&self, COUNT), TCC_TIMEOUT, "waited 300 ms in vain for its GPU");
        CHECK(strstr(tcc_comm_last_error(), "all_reduce of 100 f32 by sum"), "no operation: %s",
              tcc_comm_last_error());
    }
    check_revoked(&self, TCC_TIMEOUT, "all_reduce of 100 f32 by sum");
}

static void differ(const setup *ranks) {
    rank self = join_rank(ranks);
    CHECK_FAILS(sum(&self, COUNT - ranks->rank), TCC_TIMEOUT, "ms in vain for its GPU");
    check_revoked(&self, TCC_TIMEOUT, "all_reduce of");
}

static void aborts(const setup *ranks) {
    rank self = join_rank(ranks);
    CHECK_OK(tcc_comm_barrier(self.comm)); /* all have joined */
    if (ranks->rank == 1) CHECK_OK(tcc_comm_abort(self.comm, "enough"));
    CHECK_FAILS(sum(&self, COUNT), TCC_CANCELLED, "enough");
    check_revoked(&self, TCC_CANCELLED, "enough");
}

/* The library itself finds an error later. */
static void errs_later(const setup *ranks) {
    rank self = join_rank(ranks);
    CHECK_OK(tcc_comm_barrier(self.comm));
    if (ranks->rank == 1) set(22304, 2, 6);
    tcc_status status = sum(&self, COUNT);
    CHECK(status == TCC_PEER_DEAD || (ranks->rank && status == TCC_OK), "status %d", (int)status);
    while (tcc_comm_error(self.comm) == TCC_OK) usleep(1000);
    check_revoked(&self, TCC_PEER_DEAD, "rank 1: ");
}

/* Makes each function of the library fail on one rank, at its first and second call. */
static void fails_at(const setup *ranks, const char *name, int nth) {
    static const char *const opening[] = {"ncclGetUniqueId", "ncclCommInitRankConfig"};
    bool opens = strcmp(name, opening[0]) == 0 || strcmp(name, opening[1]) == 0;
    rank self = open_rank(ranks);
    int32_t bad = strcmp(name, opening[0]) ? 1 : 0; /* only rank 0 makes the id */
    char prefix[40];
    snprintf(prefix, sizeof prefix, "rank %d: ", bad);
    if (ranks->rank == bad) fail(name, nth, 2);
    tcc_status status = tcc_comm_device_open(self.comm, 2, &self.device);
    if (opens) {
        CHECK(status == TCC_SYSTEM && strstr(tcc_comm_last_error(), prefix), "status %d: %s",
              (int)status, tcc_comm_last_error());
        CHECK(strstr(tcc_comm_last_error(), name), "no function: %s", tcc_comm_last_error());
        fail("", 0, 0);
        if (strcmp(name, opening[0]) == 0) /* no rank had begun, so the comm stays usable */
            CHECK_OK(tcc_comm_device_open(self.comm, 2, &self.device));
        close_rank(&self);
        return;
    }
    CHECK_OK(status);
    if (nth == 2) check_sum(&self);
    CHECK_OK(tcc_comm_barrier(self.comm));
    CHECK_FAILS(sum(&self, COUNT), TCC_SYSTEM, prefix);
    CHECK(strstr(tcc_comm_last_error(), name) && strstr(tcc_comm_last_error(), "100 f32 by sum"),
          "neither function nor operation: %s", tcc_comm_last_error());
    fail("", 0, 0);
    check_revoked(&self, TCC_SYSTEM, "unhandled system error: said last");
    self = join_rank(&(setup){.rank = ranks->rank, .size = ranks->size, .name = name});
    check_sum(&self); /* the next device works */
    close_rank(&self);
}

static void fails_somewhere(const setup *ranks) {
    static const char *const names[] = {"ncclGetUniqueId", "ncclCommInitRankConfig",
                                        "ncclAllReduce", "ncclGroupEnd"};
    for (int i = 0; i < 4; i++)
        for (int nth = 1; nth <= (i < 2 ? 1 : 2); nth++) {
            char name[100];
            setup setting = *ranks;
            snprintf(name, sizeof name, "%s-%d-%d", ranks->name, i, nth);
            setting.name = name;
            fails_at(&setting, names[i], nth);
        }
}

static void lacks_a_library(const setup *ranks) {
    if (ranks->rank == 1) setenv("TCC_NCCL_LIBRARY", "/no/libnccl.so.2", 1);
    rank self = open_rank(ranks);
    CHECK_FAILS(tcc_comm_device_open(self.comm, 2, &self.device), TCC_UNSUPPORTED,
                "rank 1: TCC_NCCL_LIBRARY: /no/libnccl.so.2");
    CHECK_OK(tcc_comm_barrier(self.comm));
    CHECK_FAILS(tcc_comm_device_open(self.comm, 10, &self.device), TCC_UNSUPPORTED,
                "rank 0: RCCL is not found (librccl.so.1): install ROCm, or set TCC_RCCL_LIBRARY");
    CHECK_FAILS(tcc_comm_device_open(self.comm, 1, &self.device), TCC_UNSUPPORTED,
                "device type 1: expected 2 (CUDA) or 10 (ROCm)");
    tcc_comm_close(self.comm);
}

static void old_version(const setup *ranks) {
    set(21399, 2, 0);
    rank self = open_rank(ranks);
    CHECK_FAILS(tcc_comm_device_open(self.comm, 2, &self.device), TCC_UNSUPPORTED,
                "is of version 2.13.99, 2.14 is needed");
    close_rank(&self);
}

static void versions_differ(const setup *ranks) {
    set(ranks->rank ? 22000 : 22304, 2, 0);
    rank self = open_rank(ranks);
    CHECK_FAILS(tcc_comm_device_open(self.comm, 2, &self.device), TCC_MISMATCH,
                "rank 0 has version 22304 of the library for device type 2, rank 1 version 22000");
    close_rank(&self);
}

/* ---- what a rank does wrong by itself -------------------------------------------------------- */

#define CALL(...) (&(tcc_comm_call){.struct_size = sizeof(tcc_comm_call), __VA_ARGS__})
#define START(...)                                                                                 \
    tcc_comm_device_start(self.device, CALL(__VA_ARGS__), (void *)self.data,                       \
                          (void *)self.result, self.stream)

static void wrong_arguments(const setup *ranks) {
    rank self = join_rank(ranks);
    tcc_comm_device *device;
    CHECK_FAILS(START(.kind = TCC_COMM_BARRIER), TCC_UNSUPPORTED,
                "barrier by NCCL: it is no operation of GPUs");
    CHECK_FAILS(START(.kind = TCC_COMM_ALL_REDUCE, .dtype = i32, .count = 1,
                      .reduction = TCC_COMM_AVG),
                TCC_UNSUPPORTED, "all_reduce of 1 i32 by avg by NCCL");
    CHECK_FAILS(START(.kind = TCC_COMM_REDUCE_SCATTER, .dtype = {1, 8, 1}, .count = 1,
                      .reduction = TCC_COMM_AVG),
                TCC_UNSUPPORTED, "reduce_scatter of 1 u8 by avg by NCCL");
    CHECK_FAILS(tcc_comm_device_start(self.device,
                                      CALL(.kind = TCC_COMM_ALL_TO_ALL, .dtype = f32, .count = 1),
                                      (void *)self.data, (void *)self.data, self.stream),
                TCC_UNSUPPORTED, "it cannot be done in place");
    CHECK_FAILS(START(.kind = TCC_COMM_ALL_REDUCE, .dtype = {2, 8, 1}, .count = 1), TCC_UNSUPPORTED,
                "collectives take f16");
    CHECK_FAILS(START(.kind = TCC_COMM_SEND, .dtype = f32, .count = 1, .root = 9),
                TCC_INVALID_ARGUMENT, "rank 9 of a comm");
    CHECK_FAILS(tcc_comm_device_open(self.comm, 10, &device), TCC_INVALID_ARGUMENT,
                "a device of type 2 already, not 10");
    CHECK_FAILS(tcc_comm_device_group_end(self.device), TCC_INVALID_ARGUMENT, "no group is open");
    CHECK_OK(tcc_comm_device_group_start(self.device));
    CHECK_FAILS(tcc_comm_device_group_start(self.device), TCC_INVALID_ARGUMENT, "open already");
    CHECK_OK(tcc_comm_device_group_end(self.device));
    int error;
    CHECK_FAILS(tcc_comm_device_wait(self.device, NULL, NULL, &error), TCC_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(tcc_comm_device_start(NULL, NULL, NULL, NULL, NULL), TCC_INVALID_ARGUMENT, "NULL");
    check_sum(&self); /* the comm is unchanged */
    close_rank(&self);
}

/* A device outlives its comm, and each comm has one device. */
static void outlives(const setup *ranks) {
    rank self = join_rank(ranks);
    tcc_comm_device *same;
    CHECK_OK(tcc_comm_device_open(self.comm, 2, &same));
    CHECK(same == self.device, "another device");
    tcc_comm *part;
    tcc_comm_device *device;
    CHECK_OK(tcc_comm_split(self.comm, ranks->rank % 2, 0, &part));
    CHECK_OK(tcc_comm_device_open(part, 2, &device));
    CHECK(device != self.device && live() == 2, "%d communicators", live());
    check_sum(&self);
    tcc_comm_device_close(device);
    tcc_comm_close(part);
    CHECK_OK(tcc_comm_barrier(self.comm)); /* all ranks have finished */
    tcc_comm_close(self.comm);
    CHECK_FAILS(sum(&self, COUNT), TCC_INVALID_ARGUMENT, "the device's comm is closed");
    tcc_comm_device_close(self.device);
    CHECK(live() == 1, "%d communicators are left", live());
    tcc_comm_device_close(same);
    tcc_comm_device_close(NULL);
    CHECK(live() == 0, "%d communicators are left", live());
}

static void forks(const setup *ranks) {
    rank self = join_rank(ranks);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        CHECK_FAILS(start_sum(&self, COUNT), TCC_INVALID_ARGUMENT, "this process was forked");
        tcc_comm_device_close(self.device);
        tcc_comm_close(self.comm);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: status %x", status);
    check_sum(&self);
    close_rank(&self);
}

/* Operations in a graph end before the communicator does. */
static void records(const setup *ranks) {
    rank self = join_rank(ranks);
    CHECK(!self.gpu.begin(self.stream), "it cannot be recorded");
    CHECK_OK(start_sum(&self, COUNT));
    void *graph = self.gpu.end(self.stream);
    for (int i = 0; i < 3; i++) CHECK(!self.gpu.replay(graph, self.stream), "no replay");
    CHECK_OK(await(&self));
    CHECK_OK(tcc_comm_barrier(self.comm));
    if (ranks->rank == 1) raise(SIGKILL);
    CHECK(!self.gpu.replay(graph, self.stream), "no replay");
    CHECK_FAILS(await(&self), TCC_PEER_DEAD, "rank 1 (pid");
    self.gpu.forget(graph); /* the watching thread waits for this */
    check_revoked(&self, TCC_PEER_DEAD, "rank 1 (pid");
}

/* ---- threads --------------------------------------------------------------------------------- */

static void *open_and_end_groups(void *of) {
    tcc_comm_device *device = ((rank *)of)->device;
    for (bool opens = true;; opens = !opens) {
        tcc_status status =
            opens ? tcc_comm_device_group_start(device) : tcc_comm_device_group_end(device);
        CHECK(status == TCC_OK || status == TCC_INVALID_ARGUMENT, "status %d", (int)status);
        if (status == TCC_OK) continue;
        if (strstr(tcc_comm_last_error(), "two threads of rank 0")) return NULL;
    }
}

static void two_threads(const setup *ranks) {
    rank self = join_rank(ranks);
    check_sum(&self);
    CHECK_OK(tcc_comm_barrier(self.comm)); /* the other rank has its sum too */
    pthread_t threads[2];
    for (int i = 0; ranks->rank == 0 && i < 2; i++)
        pthread_create(&threads[i], NULL, open_and_end_groups, &self);
    for (int i = 0; ranks->rank == 0 && i < 2; i++) pthread_join(threads[i], NULL);
    while (tcc_comm_error(self.comm) == TCC_OK) usleep(1000);
    check_revoked(&self, TCC_INVALID_ARGUMENT, "two threads of rank 0");
}

/* ---- scenarios ------------------------------------------------------------------------------- */

typedef struct scenario {
    const char *name;
    rank_main *run;
    int size, dies; /* -1: none */
    int milliseconds; /* deadline of operations; 0: a long one */
} scenario;

static const scenario scenarios[] = {
    {"dies_in_operation", dies_in_operation, 3, 1, 0},
    {"dies_unwatched", dies_unwatched, 2, 1, 0},
    {"dies_opening", dies_opening, 3, 1, 0},
    {"comes_late", comes_late, 3, -1, 300},
    {"differ", differ, 2, -1, 300},
    {"aborts", aborts, 3, -1, 0},
    {"errs_later", errs_later, 2, -1, 0},
    {"fails_somewhere", fails_somewhere, 2, -1, 0},
    {"lacks_a_library", lacks_a_library, 2, -1, 0},
    {"old_version", old_version, 1, -1, 0},
    {"versions_differ", versions_differ, 2, -1, 0},
    {"wrong_arguments", wrong_arguments, 2, -1, 0},
    {"outlives", outlives, 4, -1, 0},
    {"forks", forks, 2, -1, 0},
    {"records", records, 2, 1, 0},
    {"two_threads", two_threads, 2, -1, 0},
};

int main(int argc, char **argv) {
    for (size_t i = 0; argc == 2 && i < sizeof scenarios / sizeof *scenarios; i++) {
        const scenario *selected = &scenarios[i];
        if (strcmp(selected->name, argv[1])) continue;
        setup ranks = {.size = selected->size, .name = own_name(selected->name),
                       .operation_milliseconds = selected->milliseconds};
        pid_t pids[MOST_RANKS];
        int status, bad = 0;
        start_ranks(ranks, selected->run, pids);
        for (int k = 0; k < ranks.size; k++) {
            waitpid(pids[k], &status, 0);
            bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
            bad |= k == selected->dies ? !killed : status != 0;
        }
        puts(bad ? "failed" : "ok");
        return bad;
    }
    fprintf(stderr, "device_faults SCENARIO\n");
    return 2;
}
