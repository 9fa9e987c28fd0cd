/* NCCL without GPUs: libnccl.so.2, or librccl.so.1 with -DRCCL, over the fake driver of this
 * folder.
 *
 * Enumerators and layouts are NCCL's (nccl.h of 2.14), not those of the library under test.
 * Operations run when the driver comes to them in their stream, between processes that share a
 * file; the unique id names the file. Like NCCL's kernels, operations wait for other ranks until
 * the communicator is aborted. An error that NCCL would not survive ends the process with a
 * message. A test can make the n-th call of a function fail, and errors are reported as
 * asynchronous errors. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "oracle.h"

#define EXPORT __attribute__((visibility("default")))
#ifdef RCCL
#define DRIVER "libamdhip64.so.6"
#else
#define DRIVER "libcuda.so.1"
#endif

enum { SUCCESS, DEVICE_ERROR, SYSTEM_ERROR, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE,
       IN_PROGRESS };
enum { MOST = 8, SLOT = 1 << 16, PLACE = 1 << 12, TYPES_OF_NCCL = 10, SUICIDE = -9 };

__attribute__((format(printf, 1, 2), noreturn)) static void unforgiven(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "fake NCCL: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}
#define INSIST(condition, ...)                                                                     \
    if (!(condition)) unforgiven(__VA_ARGS__)


/* ---- settings and log ------------------------------------------------------------------------ */

static struct {
    char fail_name[64];
    int fail_after, fail_result;
    int version, looks; /* `looks` is the number of queries for which a call is in progress */
    _Atomic int error;  /* the error of all communicators */
    _Atomic int live;
    char log[1 << 16];
    size_t used;
} the = {.version = 22304, .looks = 2};

/* Makes the n-th call of a function fail; a result of -9 ends the process. */
EXPORT void fake_nccl_fail(const char *name, int nth, int result) {
    snprintf(the.fail_name, sizeof the.fail_name, "%s", name);
    the.fail_after = nth;
    the.fail_result = result;
}
EXPORT void fake_nccl_set(int version, int looks, int error) {
    the.version = version, the.looks = looks, the.error = error;
}
EXPORT int fake_nccl_live(void) { return the.live; }
/* Writes the operations since the last call of this function. */
EXPORT void fake_nccl_log(char *out, size_t room) {
    snprintf(out, room, "%s", the.log);
    the.log[the.used = 0] = 0;
}

static int failure_of(const char *name) {
    if (the.fail_after <= 0 || strcmp(name, the.fail_name) || --the.fail_after) return SUCCESS;
    if (the.fail_result == SUICIDE) raise(SIGKILL);
    return the.fail_result;
}

/* ---- shared memory of the ranks -------------------------------------------------------------- */

typedef struct rank_line {
    _Alignas(64) _Atomic uint32_t stage;
    char text[128], slot[SLOT];
} rank_line;
typedef struct channel {
    _Alignas(64) _Atomic uint32_t filled, emptied;
    uint64_t count;
    int type;
    char data[PLACE];
} channel;
typedef struct segment {
    int magic, size;
    _Atomic int joined, came[MOST];
    rank_line ranks[MOST];
    channel channels[MOST][MOST]; /* from, to */
} segment;

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { size_t size; unsigned magic, version; int blocking; } ncclConfig_t;
typedef struct ncclComm {
    int magic, rank, size;
    segment *shared;
    uint32_t stage;
    int looks; /* the queries for which the current call is in progress */
    int result;
    _Atomic int aborted, running, busy, users; /* kept: by graphs */
    char path[128];
} *ncclComm_t;
enum { ALIVE = 0x11ce, DEAD = 0xdead };

static int (*driver_guest)(void *, int (*)(void *), void (*)(void *), void *);
static int (*driver_number)(void *), (*driver_captured)(void *);
static void *(*driver_memory)(uint64_t, size_t);

static void find_driver(void) {
    if (driver_guest) return;
    void *driver = dlopen(DRIVER, RTLD_NOW | RTLD_NOLOAD);
    INSIST(driver, "%s is not in this process", DRIVER);
    *(void **)&driver_guest = dlsym(driver, "fake_guest");
    *(void **)&driver_number = dlsym(driver, "fake_number_of");
    *(void **)&driver_captured = dlsym(driver, "fake_is_captured");
    *(void **)&driver_memory = dlsym(driver, "fake_memory");
}

/* Fails unless one thread is in a live communicator, and no other call is in progress. */
static void enter(ncclComm_t comm, const char *name, bool looks) {
    INSIST(comm && comm->magic == ALIVE, "%s of a communicator that was destroyed", name);
    INSIST(!atomic_exchange(&comm->busy, 1), "%s beside another call", name);
    INSIST(looks || !comm->looks, "%s while a call is in progress", name);
}
static int leave(ncclComm_t comm, int result) {
    comm->result = result;
    comm->looks = the.looks;
    atomic_store(&comm->busy, 0);
    return the.looks ? IN_PROGRESS : result;
}

/* ---- communicators --------------------------------------------------------------------------- */

EXPORT int ncclGetVersion(int *out) { *out = the.version; return failure_of(__func__); }
EXPORT const char *ncclGetErrorString(int result) {
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error",
        "internal error", "invalid argument", "invalid usage", "remote process exited",
        "operation in progress"};
    return result < 0 || result > IN_PROGRESS ? "unknown" : texts[result];
}
EXPORT const char *ncclGetLastError(ncclComm_t comm) { (void)comm; return "said last"; }
EXPORT int ncclGetUniqueId(ncclUniqueId *out) {
    int failure = failure_of(__func__);
    if (failure) return failure;
    const char *folder = getenv("TMPDIR");
    snprintf(out->internal, sizeof out->internal, "%s/nccl-XXXXXX", folder ? folder : "/tmp");
    int file = mkstemp(out->internal), magic = ALIVE;
    INSIST(file >= 0 && ftruncate(file, sizeof(segment)) == 0, "no file %s", out->internal);
    INSIST(pwrite(file, &magic, sizeof magic, offsetof(segment, magic)) > 0, "no file");
    close(file);
    return SUCCESS;
}

EXPORT int ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                  ncclConfig_t *config) {
    find_driver();
    INSIST(config && config->magic == 0xcafebeef && config->version >= 21400 &&
               config->version <= (unsigned)the.version && config->size >= 20,
           "a config that is none");
    INSIST(config->blocking == 0, "a communicator that blocks");
    INSIST(size > 0 && size <= MOST && rank >= 0 && rank < size, "rank %d of %d", rank, size);
    int failure = failure_of(__func__);
    if (failure && failure != REMOTE) return failure;
    int file = open(id.internal, O_RDWR);
    if (file < 0) return SYSTEM_ERROR; /* The other ranks have given up. */
    ncclComm_t comm = calloc(1, sizeof *comm);
    comm->shared = mmap(NULL, sizeof(segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    INSIST(comm->shared != MAP_FAILED && comm->shared->magic == ALIVE, "an id that is none");
    INSIST(!atomic_exchange(&comm->shared->came[rank], size), "rank %d came twice", rank);
    for (int i = 0; i < MOST; i++)
        INSIST(!comm->shared->came[i] || comm->shared->came[i] == size, "ranks differ in size");
    comm->magic = ALIVE, comm->rank = rank, comm->size = size;
    snprintf(comm->path, sizeof comm->path, "%s", id.internal);
    *out = comm;
    the.live++;
    if (atomic_fetch_add(&comm->shared->joined, 1) + 1 == size) unlink(comm->path);
    leave(comm, failure);
    return IN_PROGRESS;
}

EXPORT int ncclCommGetAsyncError(ncclComm_t comm, int *out) {
    enter(comm, __func__, true);
    if (atomic_load(&comm->shared->joined) == comm->size && comm->looks) comm->looks--;
    *out = comm->looks ? IN_PROGRESS : the.error ? the.error : comm->result;
    atomic_store(&comm->busy, 0);
    return SUCCESS;
}

static int end(ncclComm_t comm) {
    for (int naps = 0; atomic_load(&comm->users); naps++) {
        INSIST(naps < 50000, "the end of a communicator waits for graphs for ever");
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    comm->magic = DEAD; /* kept in memory, so that a later use is seen */
    munmap(comm->shared, sizeof(segment));
    unlink(comm->path);
    the.live--;
    return SUCCESS;
}
EXPORT int ncclCommDestroy(ncclComm_t comm) {
    enter(comm, __func__, false);
    return end(comm);
}
EXPORT int ncclCommAbort(ncclComm_t comm) {
    enter(comm, __func__, true);
    atomic_store(&comm->aborted, 1);
    while (atomic_load(&comm->running)) sched_yield(); /* until its operations have ended */
    return end(comm);
}

/* ---- operations ------------------------------------------------------------------------------ */

enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV };
typedef struct operation {
    int kind, type, reduction, peer; /* `peer` is also the root */
    size_t count, done;              /* elements */
    const char *send;
    char *receive;
} operation;
typedef struct memory {
    uint64_t address; /* the caller's address */
    size_t bytes;
} memory;
typedef struct group {
    ncclComm_t comm;
    void *stream;
    int n;
    operation operations[128];
    memory sources[128], targets[128];
} group;
static _Thread_local group at_hand;
static _Thread_local int depth;
static _Thread_local int failed;

static size_t bytes_of(int type) {
    static const size_t bytes[TYPES_OF_NCCL] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return bytes[type];
}

static bool arrive(ncclComm_t comm) {
    comm->stage++;
    atomic_store(&comm->shared->ranks[comm->rank].stage, comm->stage);
    for (int i = 0; i < comm->size; i++)
        while ((int32_t)(atomic_load(&comm->shared->ranks[i].stage) - comm->stage) < 0) {
            if (atomic_load(&comm->aborted)) return false;
            sched_yield();
        }
    return true;
}

static void reduce(ncclComm_t comm, const operation *of, size_t at, size_t count, char *out) {
    static const type types[TYPES_OF_NCCL] = {I8, U8, I32, TYPES, I64, TYPES, F16, F32, F64, BF16};
    static const tcc_comm_reduction reductions[] = {TCC_COMM_SUM, TCC_COMM_PROD, TCC_COMM_MAX,
                                                    TCC_COMM_MIN, TCC_COMM_AVG};
    type is = types[of->type];
    tcc_comm_reduction by = reductions[of->reduction];
    for (size_t k = 0; k < count; k++) {
        uint64_t bits[MOST] = {0};
        for (int i = 0; i < comm->size; i++)
            memcpy(&bits[i], comm->shared->ranks[i].slot + (at + k) * width(is), width(is));
        uint64_t result = is <= F64 ? float_result(is, by, bits, comm->size)
                                   : integer_result(is, by, bits, comm->size);
        memcpy(out + k * width(is), &result, width(is));
    }
}

/* Waits until all ranks have the same operation; ranks that differ wait for ever, as on GPUs. */
static bool agree(ncclComm_t comm) {
    for (int i = 1; i < comm->size; i++)
        while (strcmp(comm->shared->ranks[0].text, comm->shared->ranks[i].text)) {
            if (atomic_load(&comm->aborted)) return false;
            sched_yield();
        }
    return true;
}

static bool collect(ncclComm_t comm, const operation *of) {
    rank_line *line = &comm->shared->ranks[comm->rank];
    size_t bytes = bytes_of(of->type), parts = of->kind == REDUCE_SCATTER ? (size_t)comm->size : 1;
    size_t room = SLOT / bytes / parts, self = (size_t)comm->rank;
    char *result = malloc(SLOT);
    bool good = true;
    for (size_t begin = 0; good && begin < of->count; begin += room) {
        size_t count = of->count - begin < room ? of->count - begin : room;
        snprintf(line->text, sizeof line->text, "%d %d %d %d %zu %zu", of->kind, of->type,
                 of->reduction, of->peer, of->count, begin);
        for (size_t i = 0; i < parts && (of->kind != BROADCAST || of->peer == comm->rank); i++)
            memcpy(line->slot + i * count * bytes, of->send + (i * of->count + begin) * bytes,
                   count * bytes);
        good = arrive(comm) && agree(comm);
        if (good && of->kind == ALL_REDUCE) reduce(comm, of, 0, count, result);
        if (good && of->kind == REDUCE_SCATTER) reduce(comm, of, self * count, count, result);
        for (int i = 0; good && of->kind == ALL_GATHER && i < comm->size; i++)
            memcpy(of->receive + ((size_t)i * of->count + begin) * bytes,
                   comm->shared->ranks[i].slot, count * bytes);
        if (good && of->kind == BROADCAST)
            memcpy(result, comm->shared->ranks[of->peer].slot, count * bytes);
        good = good && arrive(comm);
        if (good && of->kind != ALL_GATHER)
            memcpy(of->receive + begin * bytes, result, count * bytes);
    }
    free(result);
    return good;
}

/* Moves the next part of a message, if possible; messages of different count or type wait for ever. */
static void move(ncclComm_t comm, operation *of) {
    size_t bytes = bytes_of(of->type), remaining = (of->count - of->done) * bytes;
    size_t part = remaining < PLACE ? remaining : PLACE;
    channel *by = of->kind == SEND ? &comm->shared->channels[comm->rank][of->peer]
                                   : &comm->shared->channels[of->peer][comm->rank];
    bool full = atomic_load(&by->filled) != atomic_load(&by->emptied);
    if (of->kind == SEND && !full) {
        by->count = of->count, by->type = of->type;
        memcpy(by->data, of->send + of->done * bytes, part);
        atomic_fetch_add(&by->filled, 1);
        of->done += part / bytes;
    } else if (of->kind == RECV && full && by->count == of->count && by->type == of->type) {
        memcpy(of->receive + of->done * bytes, by->data, part);
        atomic_fetch_add(&by->emptied, 1);
        of->done += part / bytes;
    }
}

/* Exchanges messages; messages between two ranks go one after another. */
static void exchange(group *of) {
    for (bool all = false; !all && !atomic_load(&of->comm->aborted);) {
        bool waits[2][MOST] = {{false}};
        all = true;
        for (int i = 0; i < of->n; i++) {
            operation *item = &of->operations[i];
            if (item->kind < SEND || item->done == item->count) continue;
            all = false;
            bool *earlier = &waits[item->kind == SEND][item->peer];
            if (!*earlier) move(of->comm, item);
            *earlier |= item->done < item->count;
        }
        if (!all) sched_yield();
    }
}

static bool is_there(const memory *of) {
    return !of->bytes || driver_memory(of->address, of->bytes);
}

static int perform(void *object) {
    group *of = object, now = *of; /* A graph may run it again. */
    INSIST(of->comm->magic == ALIVE || of->comm->aborted, "work of a destroyed communicator");
    atomic_fetch_add(&of->comm->running, 1);
    bool good = !atomic_load(&of->comm->aborted);
    for (int i = 0; good && i < now.n; i++) {
        INSIST(is_there(&now.sources[i]) && is_there(&now.targets[i]),
               "a collective uses memory that was freed");
    }
    for (int i = 0; good && i < now.n; i++)
        if (now.operations[i].kind < SEND) good = collect(now.comm, &now.operations[i]);
    if (good) exchange(&now);
    atomic_fetch_sub(&of->comm->running, 1);
    return 0;
}
static void drop(void *object) { atomic_fetch_sub(&((group *)object)->comm->users, 1); }

static const char *memory_of(const void *address, size_t bytes, const char *name) {
    if (!bytes) return NULL;
    const char *memory = driver_memory((uint64_t)(uintptr_t)address, bytes);
    INSIST(memory, "%s: %zu bytes are not all on the device", name, bytes);
    return memory;
}

static int start(const char *name, ncclComm_t comm, void *stream, operation of, size_t sent,
                 size_t received) {
    INSIST(depth == 1, "%s at depth %d of groups", name, depth);
    INSIST(comm && comm->magic == ALIVE && !comm->aborted, "%s after the end", name);
    INSIST(of.type >= 0 && of.type < TYPES_OF_NCCL && of.reduction >= 0 && of.reduction < 5,
           "%s: type %d, reduction %d", name, of.type, of.reduction);
    INSIST(of.peer >= 0 && of.peer < comm->size, "%s: rank %d", name, of.peer);
    INSIST(driver_number(stream) >= 0, "%s: no stream", name);
    INSIST(!at_hand.n || (at_hand.comm == comm && at_hand.stream == stream),
           "%s: a group of two streams, which the fake does not know", name);
    INSIST(at_hand.n < 128, "%s: a large group", name);
    int n = snprintf(the.log + the.used, sizeof the.log - the.used,
                     "%s count=%zu type=%d op=%d peer=%d stream=%d\n", name, of.count, of.type,
                     of.reduction, of.peer, driver_number(stream));
    if (the.used + (size_t)n < sizeof the.log) the.used += (size_t)n;
    int failure = failure_of(name);
    if (failure) return failed = failure;
    size_t bytes = bytes_of(of.type);
    at_hand.sources[at_hand.n] = (memory){(uint64_t)(uintptr_t)of.send, sent * bytes};
    at_hand.targets[at_hand.n] = (memory){(uint64_t)(uintptr_t)of.receive, received * bytes};
    of.send = memory_of(of.send, sent * bytes, name);
    of.receive = (char *)(uintptr_t)memory_of(of.receive, received * bytes, name);
    at_hand.comm = comm, at_hand.stream = stream;
    if (of.count) at_hand.operations[at_hand.n++] = of;
    return SUCCESS;
}

EXPORT int ncclGroupStart(void) {
    INSIST(!depth, "groups within groups");
    depth = 1, failed = SUCCESS, at_hand.n = 0;
    return SUCCESS;
}
EXPORT int ncclGroupEnd(void) {
    INSIST(depth == 1, "the end of no group");
    depth = 0;
    int failure = failure_of(__func__);
    if (failed || !at_hand.n) return failed ? failed : failure;
    group *started = malloc(sizeof *started);
    *started = at_hand;
    enter(started->comm, __func__, false);
    bool captured = driver_captured(started->stream);
    if (captured) atomic_fetch_add(&started->comm->users, 1);
    int error = driver_guest(started->stream, perform, captured ? drop : NULL, started);
    return leave(started->comm, failure ? failure : error ? DEVICE_ERROR : SUCCESS);
}

EXPORT int ncclAllReduce(const void *send, void *receive, size_t count, int type, int reduction,
                         ncclComm_t comm, void *stream) {
    operation of = {ALL_REDUCE, type, reduction, 0, count, 0, send, receive};
    return start(__func__, comm, stream, of, count, count);
}
EXPORT int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int reduction,
                             ncclComm_t comm, void *stream) {
    operation of = {REDUCE_SCATTER, type, reduction, 0, count, 0, send, receive};
    return start(__func__, comm, stream, of, count * (size_t)comm->size, count);
}
EXPORT int ncclAllGather(const void *send, void *receive, size_t count, int type, ncclComm_t comm,
                         void *stream) {
    operation of = {ALL_GATHER, type, 0, 0, count, 0, send, receive};
    return start(__func__, comm, stream, of, count, count * (size_t)comm->size);
}
EXPORT int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root,
                         ncclComm_t comm, void *stream) {
    operation of = {BROADCAST, type, 0, root, count, 0, send, receive};
    return start(__func__, comm, stream, of, count, count);
}
EXPORT int ncclSend(const void *send, size_t count, int type, int peer, ncclComm_t comm,
                    void *stream) {
    operation of = {SEND, type, 0, peer, count, 0, send, NULL};
    return start(__func__, comm, stream, of, count, 0);
}
EXPORT int ncclRecv(void *receive, size_t count, int type, int peer, ncclComm_t comm,
                    void *stream) {
    operation of = {RECV, type, 0, peer, count, 0, NULL, receive};
    return start(__func__, comm, stream, of, 0, count);
}
