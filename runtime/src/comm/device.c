/* Opens the GPUs of a comm's ranks. The ranks meet by an operation of the comm. A thread of each
 * rank watches the comm and the library, so that no operation waits on a GPU for a rank that
 * failed.
 *
 * The library's communicator does not block: its calls are short and are made with the lock held.
 * Only the watching thread aborts it, and makes it unreachable first. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "nccl.h"

enum {
    PERIOD = 10000000, /* nanoseconds between two looks of the watching thread */
    LOOKS = 256,       /* looks at a call in progress before it sleeps between looks */
    NAP = 100000       /* nanoseconds */
};

struct tcc_comm_device {
    const tcc_nccl *nccl;
    int32_t device_type, rank, size;
    int64_t patience; /* nanoseconds */
    uint32_t forks;   /* the process's fork count when the device was opened */
    pthread_t watcher;
    bool watched, grouping;
    tcc_nccl_work *works; /* works of the open group */
    int32_t n, room;
    _Atomic uint32_t turn; /* word of the thread in a call: see turn.c */
    /* guards the fields below */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t users;     /* the comm, while it is open, and the openers of the device */
    tcc_comm *comm;    /* NULL: closed */
    void *handle;      /* the library's communicator; NULL: unreachable */
    void *doomed;      /* to be aborted */
    tcc_status status; /* the failure; TCC_OK: none */
    char reason[512];
    int64_t waiting; /* time since when a caller waits for a stream; 0: no caller waits */
    char doing[TCC_COMM_TEXT];
    const char *call; /* the library function in progress; NULL: none */
};

/* ---- failure --------------------------------------------------------------------------------- */

/* Fails the device; the first failure counts. The caller holds the lock. */
static void retire(tcc_comm_device *device, tcc_status status, const char *reason) {
    if (device->status != TCC_OK) return;
    device->status = status;
    snprintf(device->reason, sizeof device->reason, "%s", reason);
    device->doomed = device->handle;
    device->handle = NULL;
    pthread_cond_signal(&device->changed);
}

/* Fails the device and tells all ranks the reason. The caller holds the lock. */
TCC_PRINTF(3, 4)
static void fail_all(tcc_comm_device *device, tcc_status status, const char *format, ...) {
    char reason[sizeof device->reason];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    if (device->status != TCC_OK) return;
    tcc_status first = TCC_OK;
    if (device->comm) {
        tcc_comm_revoke(device->comm, status, reason);
        first = device->comm->backend->error(device->comm); /* the first error may be another
                                                               rank's */
    }
    if (first != TCC_OK)
        retire(device, first, tcc_last_error());
    else
        retire(device, status, reason);
}

static tcc_status status_of(int result) {
    switch (result) {
    case TCC_NCCL_DEVICE_FAILED: return TCC_DEVICE;
    case TCC_NCCL_INVALID_ARGUMENT:
    case TCC_NCCL_INVALID_USAGE: return TCC_INVALID_ARGUMENT;
    case TCC_NCCL_REMOTE: return TCC_PEER_DEAD;
    default: return TCC_SYSTEM;
    }
}

/* Fails the device by a result of the library. The caller holds the lock. */
static void fail_by(tcc_comm_device *device, int result, const char *call) {
    const tcc_nccl *nccl = device->nccl;
    if (device->status != TCC_OK) return;
    const char *hint = result == TCC_NCCL_INVALID_USAGE
                           ? "; does each rank have a GPU of its own (TCC_DEVICE, visible devices)?"
                           : "";
    const char *more = nccl->GetLastError(device->handle);
    fail_all(device, status_of(result), "rank %d: %s in %s: %s%s%.200s%s", device->rank, call,
           device->doing, nccl->GetErrorString(result), more && *more ? ": " : "",
           more ? more : "", hint);
}

/* Returns the device's status. The caller holds the lock. */
static tcc_status state(const tcc_comm_device *device) {
    if (device->status != TCC_OK) return tcc_fail(device->status, "%s", device->reason);
    if (device->comm) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT, "the device's comm is closed");
}

/* Evaluates a call that returned `result`. The caller has held the lock since before the call. The
 * watching thread may see the failure of a call in progress first, so the device stores the call's
 * name for that report. */
static tcc_status check_result(tcc_comm_device *device, int result, const char *call) {
    device->call = result == TCC_NCCL_IN_PROGRESS ? call : NULL;
    if (result != TCC_NCCL_SUCCESS && result != TCC_NCCL_IN_PROGRESS)
        fail_by(device, result, call);
    return state(device);
}

static tcc_status usable(const tcc_comm_device *device) {
    if (!device) return tcc_fail(TCC_INVALID_ARGUMENT, "the device is NULL");
    if (device->forks == tcc_comm_forks()) return TCC_OK;
    return tcc_fail(TCC_INVALID_ARGUMENT,
                    "this process was forked from rank %d, to which the device belongs",
                    device->rank);
}

/* Fails the device after two threads met in it: the progress of both is unknown. */
TCC_COLD static tcc_status fail_crossed(tcc_comm_device *device) {
    pthread_mutex_lock(&device->lock);
    fail_all(device, TCC_INVALID_ARGUMENT,
             "two threads of rank %d were in calls of its device at once: it serves one at a time",
             device->rank);
    tcc_status status = tcc_fail(TCC_INVALID_ARGUMENT, "%s", device->reason);
    pthread_mutex_unlock(&device->lock);
    return status;
}

static tcc_status enter(tcc_comm_device *device) {
    TCC_RETURN_IF_ERROR(usable(device));
    return tcc_turn_ask(&device->turn) == TCC_TURN_OWN ? TCC_OK : fail_crossed(device);
}

static tcc_status leave(tcc_comm_device *device, tcc_status status) {
    bool crossed = atomic_exchange(&device->turn, 0) & TCC_TURN_CROSSED;
    return crossed ? fail_crossed(device) : status;
}

/* ---- the watching thread --------------------------------------------------------------------- */

/* Checks for an error of the library that came since. The caller holds the lock. */
static void look_at_library(tcc_comm_device *device) {
    int result = TCC_NCCL_SUCCESS, failed;
    if (!device->handle) return;
    failed = device->nccl->CommGetAsyncError(device->handle, &result);
    if (failed) result = failed;
    if (result != TCC_NCCL_SUCCESS && result != TCC_NCCL_IN_PROGRESS)
        fail_by(device, result, device->call ? device->call : "an error");
}

static void look_around(tcc_comm_device *device) {
    tcc_status status = device->comm->backend->error(device->comm);
    if (status != TCC_OK) retire(device, status, tcc_last_error());
    look_at_library(device);
    if (device->waiting && tcc_comm_now() - device->waiting > device->patience)
        fail_all(device, TCC_TIMEOUT,
                 "rank %d waited %lld ms in vain for its GPU; the last operation is %s",
                 device->rank, (long long)(device->patience / 1000000), device->doing);
}

static void *watch(void *of) {
    tcc_comm_device *device = of;
    pthread_mutex_lock(&device->lock);
    while (device->comm && !device->doomed) {
        look_around(device);
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t next = until.tv_nsec + PERIOD;
        until.tv_sec += next / 1000000000;
        until.tv_nsec = next % 1000000000;
        if (!device->doomed) pthread_cond_timedwait(&device->changed, &device->lock, &until);
    }
    void *doomed = device->doomed;
    pthread_mutex_unlock(&device->lock);
    /* CommAbort waits for graphs with operations, which their owners drop when a run fails */
    if (doomed) (void)device->nccl->CommAbort(doomed);
    return NULL;
}

/* Starts the watching thread with signals blocked: they are for the program's threads. */
static int start_watching(tcc_comm_device *device) {
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    int error = pthread_create(&device->watcher, NULL, watch, device);
    device->watched = !error;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* The message that ranks exchange before they open. */
typedef struct hello {
    int32_t status, device_type, version;
    tcc_nccl_id id; /* rank 0's */
    char reason[240];
} hello;

static void introduce(const tcc_comm *comm, int32_t device_type, hello *out) {
    const tcc_nccl *nccl = tcc_nccl_library(device_type);
    *out = (hello){.status = TCC_OK, .device_type = device_type};
    if (!nccl) {
        out->status = TCC_UNSUPPORTED;
        snprintf(out->reason, sizeof out->reason, "%s", tcc_last_error());
        return;
    }
    out->version = nccl->version;
    int result = comm->rank ? 0 : nccl->GetUniqueId(&out->id);
    if (!result) return;
    out->status = (int32_t)status_of(result);
    snprintf(out->reason, sizeof out->reason, "ncclGetUniqueId: %s", nccl->GetErrorString(result));
}

static tcc_status agree(const hello *all, int32_t size) {
    for (int32_t i = 0; i < size; i++)
        if (all[i].status)
            return tcc_fail((tcc_status)all[i].status, "rank %d: %.*s", i,
                            (int)sizeof all[i].reason, all[i].reason);
    for (int32_t i = 1; i < size; i++)
        if (all[i].device_type != all[0].device_type || all[i].version != all[0].version)
            return tcc_fail(TCC_MISMATCH,
                            "ranks differ: rank 0 has version %d of the library for device type "
                            "%d, rank %d version %d for %d",
                            all[0].version, all[0].device_type, i, all[i].version,
                            all[i].device_type);
    return TCC_OK;
}

/* Gives all ranks the id, or the news that one of them cannot open. */
static tcc_status meet(tcc_comm *comm, int32_t device_type, tcc_nccl_id *out_id) {
    hello own_hello, *all = tcc_allocate_zero((size_t)comm->size, sizeof *all);
    if (!all) return TCC_OUT_OF_MEMORY;
    introduce(comm, device_type, &own_hello);
    const tcc_comm_call call = {.struct_size = sizeof call, .kind = TCC_COMM_ALL_GATHER,
                                .dtype = {1, 8, 1}, .count = sizeof own_hello};
    tcc_status status = tcc_comm_perform(comm, &call, &own_hello, all);
    if (status == TCC_OK) status = agree(all, comm->size);
    if (status == TCC_OK) *out_id = all[0].id;
    tcc_free(all);
    return status;
}

/* Waits while a call is in progress, and revokes the comm where the call fails or takes too long.
 * `result` is TCC_NCCL_SUCCESS or TCC_NCCL_IN_PROGRESS, because `check_result` has handled failures. */
static tcc_status settle(tcc_comm_device *device, int result, const char *call, int64_t patience) {
    int64_t deadline = tcc_comm_now() + patience;
    for (int looks = 0; result == TCC_NCCL_IN_PROGRESS; looks++) {
        if (looks < LOOKS)
            sched_yield();
        else
            tcc_comm_pause(NAP);
        pthread_mutex_lock(&device->lock);
        tcc_status status = state(device);
        if (status == TCC_OK) {
            int failed = device->nccl->CommGetAsyncError(device->handle, &result);
            if (failed) result = failed;
            if (result == TCC_NCCL_IN_PROGRESS && tcc_comm_now() > deadline)
                fail_all(device, TCC_TIMEOUT, "rank %d waited %lld ms in vain for %s in %s",
                       device->rank, (long long)(patience / 1000000), call, device->doing);
            status = check_result(device, result, call);
        }
        pthread_mutex_unlock(&device->lock);
        TCC_RETURN_IF_ERROR(status);
    }
    return TCC_OK;
}

static void destroy(tcc_comm_device *device) {
    pthread_cond_destroy(&device->changed);
    pthread_mutex_destroy(&device->lock);
    tcc_free(device->works);
    tcc_free(device);
}

static tcc_comm_device *make(tcc_comm *comm, int32_t device_type) {
    tcc_comm_device *device = tcc_allocate_zero(1, sizeof *device);
    if (!device) return NULL;
    device->nccl = tcc_nccl_library(device_type);
    device->device_type = device_type;
    device->rank = comm->rank;
    device->size = comm->size;
    device->patience = comm->settings.operation_milliseconds * INT64_C(1000000);
    device->forks = comm->forks;
    device->comm = comm;
    device->users = 1;
    snprintf(device->doing, sizeof device->doing, "opening");
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->changed, &clock);
    pthread_condattr_destroy(&clock);
    return device;
}

/* Connects the ranks. The watching thread runs first: it ends a call that waits for a failed
 * rank. */
static tcc_status connect_ranks(tcc_comm_device *device, tcc_nccl_id id) {
    enum { MAGIC = (int)0xcafebeef, LAYOUT = 21400 };
    tcc_nccl_config config = {sizeof config, (uint32_t)MAGIC, LAYOUT, 0};
    int error = start_watching(device), result = TCC_NCCL_SUCCESS;
    pthread_mutex_lock(&device->lock);
    if (error)
        fail_all(device, TCC_SYSTEM, "rank %d: no thread to watch its GPU: %s", device->rank,
                 strerror(error));
    tcc_status status = state(device);
    if (status == TCC_OK)
        result = device->nccl->CommInitRankConfig(&device->handle, device->size, id, device->rank,
                                                  &config);
    if (status == TCC_OK) status = check_result(device, result, "ncclCommInitRankConfig");
    int64_t patience = device->comm->settings.open_milliseconds * INT64_C(1000000);
    pthread_mutex_unlock(&device->lock);
    TCC_RETURN_IF_ERROR(status);
    return settle(device, result, "ncclCommInitRankConfig", patience);
}

/* Ends one use. The last use takes the communicator down, after the watching thread has ended. */
static void end_use(tcc_comm_device *device, bool by_comm) {
    pthread_mutex_lock(&device->lock);
    if (by_comm) {
        device->comm = NULL;
        pthread_cond_signal(&device->changed);
    }
    bool last = --device->users == 0;
    pthread_mutex_unlock(&device->lock);
    if (!last) return;
    if (device->watched) pthread_join(device->watcher, NULL);
    if (device->handle) (void)device->nccl->CommDestroy(device->handle);
    destroy(device);
}

static tcc_status open_first(tcc_comm *comm, int32_t device_type) {
    tcc_nccl_id id;
    TCC_RETURN_IF_ERROR(meet(comm, device_type, &id));
    tcc_comm_device *device = make(comm, device_type);
    if (!device) return TCC_OUT_OF_MEMORY;
    tcc_status status = connect_ranks(device, id);
    if (status == TCC_OK)
        comm->device = device;
    else
        end_use(device, true);
    return status;
}

/* Does nothing in a fork's child, which has neither the thread nor the GPU. */
void tcc_comm_device_close(tcc_comm_device *device) {
    if (device && device->forks == tcc_comm_forks()) end_use(device, false);
}

static tcc_status find_device(tcc_comm *comm, int32_t device_type, tcc_comm_device **out_device) {
    if (!out_device) return tcc_fail(TCC_INVALID_ARGUMENT, "device_open: out_device is NULL");
    *out_device = NULL;
    if (!comm->device) TCC_RETURN_IF_ERROR(open_first(comm, device_type));
    tcc_comm_device *device = comm->device;
    if (device->device_type != device_type)
        return tcc_fail(TCC_INVALID_ARGUMENT, "the comm has a device of type %d already, not %d",
                        device->device_type, device_type);
    pthread_mutex_lock(&device->lock);
    tcc_status status = state(device);
    if (status == TCC_OK) device->users++;
    pthread_mutex_unlock(&device->lock);
    if (status == TCC_OK) *out_device = device;
    return status;
}

tcc_status tcc_comm_device_open(tcc_comm *comm, int32_t device_type,
                                tcc_comm_device **out_device) {
    TCC_RETURN_IF_ERROR(tcc_comm_enter(comm));
    tcc_status status = tcc_comm_leave(comm, find_device(comm, device_type, out_device));
    if (status == TCC_OK || !out_device) return status;
    tcc_comm_device_close(*out_device); /* two threads met in the call */
    *out_device = NULL;
    return status;
}

void tcc_comm_device_leave(tcc_comm *comm) {
    if (comm->device && comm->device->forks == tcc_comm_forks()) end_use(comm->device, true);
    comm->device = NULL;
}

/* ---- operations ------------------------------------------------------------------------------ */

static tcc_status issue(tcc_comm_device *device, const tcc_nccl_work *works, int32_t n) {
    int result = TCC_NCCL_SUCCESS;
    const char *call = "";
    pthread_mutex_lock(&device->lock);
    if (device->comm && atomic_load(&device->comm->dropped)) look_around(device);
    tcc_status status = state(device);
    if (status == TCC_OK) {
        (void)tcc_comm_text(&works->work.descriptor, device->doing);
        result = tcc_nccl_issue(device->nccl, device->handle, device->rank, device->size, works, n,
                                &call);
        status = check_result(device, result, call);
    }
    pthread_mutex_unlock(&device->lock);
    return status != TCC_OK ? status : settle(device, result, call, device->patience);
}

static tcc_status append(tcc_comm_device *device, const tcc_nccl_work *work) {
    if (device->n == device->room) {
        int32_t room = device->room ? 2 * device->room : 16;
        tcc_nccl_work *more = tcc_allocate((size_t)room * sizeof *more);
        if (!more) return TCC_OUT_OF_MEMORY;
        if (device->n) memcpy(more, device->works, (size_t)device->n * sizeof *more);
        tcc_free(device->works);
        device->works = more;
        device->room = room;
    }
    device->works[device->n++] = *work;
    return TCC_OK;
}

static tcc_status start(tcc_comm_device *device, const tcc_comm_call *call, const void *send,
                        void *receive, void *stream) {
    tcc_nccl_work item = {.stream = stream};
    TCC_RETURN_IF_ERROR(tcc_comm_check_call(call, device->rank, device->size, &item.work));
    TCC_RETURN_IF_ERROR(
        tcc_comm_check_buffers(&item.work, device->rank, device->size, send, receive));
    TCC_RETURN_IF_ERROR(tcc_nccl_check(device->nccl, &item.work));
    return device->grouping ? append(device, &item) : issue(device, &item, 1);
}

tcc_status tcc_comm_device_start(tcc_comm_device *device, const tcc_comm_call *call,
                                 const void *send, void *receive, void *stream) {
    TCC_RETURN_IF_ERROR(enter(device));
    return leave(device, start(device, call, send, receive, stream));
}

static tcc_status open_group(tcc_comm_device *device) {
    if (device->grouping) return tcc_fail(TCC_INVALID_ARGUMENT, "a group is open already");
    device->grouping = true;
    device->n = 0;
    return TCC_OK;
}

tcc_status tcc_comm_device_group_start(tcc_comm_device *device) {
    TCC_RETURN_IF_ERROR(enter(device));
    return leave(device, open_group(device));
}

static tcc_status issue_group(tcc_comm_device *device) {
    if (!device->grouping) return tcc_fail(TCC_INVALID_ARGUMENT, "no group is open");
    device->grouping = false;
    return device->n ? issue(device, device->works, device->n) : TCC_OK;
}

tcc_status tcc_comm_device_group_end(tcc_comm_device *device) {
    TCC_RETURN_IF_ERROR(enter(device));
    return leave(device, issue_group(device));
}

/* Takes no turn, because `wait` may wait for a device of another group of the model, which may be
 * this one. */
tcc_status tcc_comm_device_wait(tcc_comm_device *device, int (*wait)(void *of), void *of,
                                int *out_result) {
    TCC_RETURN_IF_ERROR(usable(device));
    if (!wait || !out_result)
        return tcc_fail(TCC_INVALID_ARGUMENT, "device_wait: a pointer is NULL");
    pthread_mutex_lock(&device->lock);
    device->waiting = tcc_comm_now();
    pthread_mutex_unlock(&device->lock);
    *out_result = wait(of);
    pthread_mutex_lock(&device->lock);
    device->waiting = 0;
    /* a failure leaves unspecified results, here or where it ended the operation */
    if (device->comm)
        look_around(device);
    else
        look_at_library(device);
    tcc_status status = device->status ? tcc_fail(device->status, "%s", device->reason) : TCC_OK;
    pthread_mutex_unlock(&device->lock);
    return status;
}
