/* Processes of one host meet: rank 0 listens, the others say who they are, and each gets a memory
 * file and a pidfd of every rank. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "packet.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

enum {
    MAGIC = 0x74636331,
    SLICE = 5, /* milliseconds between two looks at the deadline and at the parent's ranks */
    MOST_VISITORS = 2 * TCC_COMM_MOST_LOCAL,
};

typedef struct hello {
    uint32_t magic, version;
    int32_t rank, size, epoch;
    uint64_t memory;
    char token[64];
    cpu_set_t cpus;
} hello;

typedef enum answer_kind { ACCEPTED, COMPLETE, REFUSED, LATER } answer_kind;

typedef struct answer {
    int32_t kind, status, cpus;
    int32_t pids[TCC_COMM_MOST_LOCAL];
    char text[512];
} answer;

typedef struct visitor {
    int connection;
    int32_t pid, rank; /* rank -1: it has not said yet */
} visitor;

/* Rank 0's side. */
typedef struct host {
    const tcc_comm_meeting *meeting;
    int listener;
    visitor visitors[MOST_VISITORS];
    int32_t n_visitors, n_arrived;
    hello hellos[TCC_COMM_MOST_LOCAL]; /* by rank */
    tcc_comm_met *met;
    bool outlived; /* a rank of a later epoch came */
} host;

void tcc_comm_part(tcc_comm_met *met) {
    tcc_packet_close(&met->memory, 1);
    tcc_packet_close(met->processes, TCC_COMM_MOST_LOCAL);
    tcc_comm_alone(met);
}

void tcc_comm_alone(tcc_comm_met *out_met) {
    *out_met = (tcc_comm_met){.memory = -1};
    for (int32_t i = 0; i < TCC_COMM_MOST_LOCAL; i++) out_met->processes[i] = -1;
}

static hello hello_of(const tcc_comm_meeting *meeting) {
    hello mine;
    memset(&mine, 0, sizeof mine);
    mine.magic = MAGIC;
    mine.version = TCC_COMM_VERSION;
    mine.rank = meeting->rank;
    mine.size = meeting->size;
    mine.epoch = meeting->epoch;
    mine.memory = meeting->memory;
    memcpy(mine.token, meeting->token, strnlen(meeting->token, sizeof mine.token));
    if (sched_getaffinity(0, sizeof mine.cpus, &mine.cpus)) CPU_ZERO(&mine.cpus);
    return mine;
}

static int own_process(void) {
    int found = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (found < 0)
        tcc_fail(TCC_SYSTEM, "a descriptor of this process (pidfd_open, Linux 5.3): %s",
                 strerror(errno));
    return found;
}

static tcc_status look_around(const tcc_comm_meeting *meeting) {
    return meeting->alive ? meeting->alive(meeting->alive_of) : TCC_OK;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

static void answer_visitor(const visitor *to, answer_kind kind, tcc_status status,
                           const char *text) {
    answer said;
    memset(&said, 0, sizeof said);
    said.kind = kind;
    said.status = status;
    snprintf(said.text, sizeof said.text, "%s", text);
    (void)tcc_packet_send(to->connection, &said, sizeof said, NULL, 0); /* it may be gone */
}

static void drop_visitor(host *host, int32_t which) {
    close(host->visitors[which].connection);
    host->visitors[which] = host->visitors[--host->n_visitors];
}

static void refuse(host *host, int32_t which, answer_kind kind, const char *text) {
    answer_visitor(&host->visitors[which], kind, TCC_INVALID_ARGUMENT, text);
    drop_visitor(host, which);
}

static bool same_token(const char *a, const char *b) {
    uint8_t difference = 0; /* in the same time wherever they differ */
    for (size_t i = 0; i < sizeof((hello *)0)->token; i++) difference |= (uint8_t)(a[i] ^ b[i]);
    return difference == 0;
}

/* A newcomer that has said who it is.  Fails where all of the meeting fails. */
static tcc_status admit(host *host, int32_t which, const hello *its, int process) {
    const hello *mine = &host->hellos[0];
    visitor *from = &host->visitors[which];
    char text[160] = "";
    answer_kind kind = REFUSED;
    tcc_status status = TCC_OK;
    if (its->magic != MAGIC || its->version != TCC_COMM_VERSION) {
        snprintf(text, sizeof text, "rank 0 has version %d of the library, this process another",
                 TCC_COMM_VERSION);
    } else if (!same_token(its->token, mine->token)) {
        snprintf(text, sizeof text, "the token is not that of rank 0 (pid %d)", (int)getpid());
    } else if (its->epoch < mine->epoch) {
        snprintf(text, sizeof text, "epoch %d is over: rank 0 (pid %d) is in epoch %d", its->epoch,
                 (int)getpid(), mine->epoch);
    } else if (its->epoch > mine->epoch) {
        kind = LATER;
        host->outlived = true;
        snprintf(text, sizeof text, "rank 0 is of an earlier epoch");
        status = tcc_fail(TCC_INVALID_ARGUMENT, "epoch %d is over: rank %d (pid %d) is in epoch %d",
                          mine->epoch, its->rank, from->pid, its->epoch);
    } else if (its->size != mine->size || its->memory != mine->memory) {
        status =
            tcc_fail(TCC_MISMATCH,
                     "rank 0 (pid %d) opens a comm of %d ranks with %llu shared bytes, rank %d "
                     "(pid %d) one of %d with %llu",
                     (int)getpid(), mine->size, (unsigned long long)mine->memory, its->rank,
                     from->pid, its->size, (unsigned long long)its->memory);
        return close(process), status;
    } else if (its->rank < 1 || its->rank >= mine->size || host->met->processes[its->rank] >= 0) {
        snprintf(text, sizeof text, "rank %d is not one of 1 to %d, or another process has it",
                 its->rank, mine->size - 1);
    }
    if (*text) {
        close(process);
        refuse(host, which, kind, text);
        return status;
    }
    from->rank = its->rank;
    host->hellos[its->rank] = *its;
    host->met->processes[its->rank] = process;
    host->met->pids[its->rank] = from->pid;
    host->n_arrived++;
    answer_visitor(from, ACCEPTED, TCC_OK, "");
    return TCC_OK;
}

enum { LIST = 128 };

/* The ranks that have not come, as in "2, 5". */
static const char *missing_ranks(const host *host, char list[LIST]) {
    size_t used = 0;
    list[0] = 0;
    for (int32_t i = 1; i < host->meeting->size && used < LIST - 16; i++)
        if (host->met->processes[i] < 0)
            used += (size_t)snprintf(list + used, LIST - used, "%s%d", used ? ", " : "", i);
    return used ? list : "none";
}

static tcc_status hear_visitor(host *host, int32_t which) {
    visitor *from = &host->visitors[which];
    hello its;
    int process = -1;
    int32_t n = 0;
    if (from->rank < 0) {
        switch (tcc_packet_take(from->connection, &its, sizeof its, &process, 1, &n)) {
        case TCC_PACKET_NONE: return TCC_OK;
        case TCC_PACKET_WHOLE:
            if (n == 1) return admit(host, which, &its, process);
            break;
        case TCC_PACKET_END: break;
        }
        drop_visitor(host, which);
        return TCC_OK;
    }
    /* nobody speaks twice: it has hung up */
    char list[LIST];
    return tcc_fail(TCC_PEER_DEAD,
                    "rank %d (pid %d) gave up or ended while ranks met; not there were: %s",
                    from->rank, from->pid, missing_ranks(host, list));
}

static void greet_visitors(host *host) {
    while (host->n_visitors < MOST_VISITORS) {
        int connection = accept4(host->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (connection < 0) return;
        visitor *newcomer = &host->visitors[host->n_visitors++];
        *newcomer = (visitor){connection, 0, -1};
        if (!tcc_packet_same_user(connection, &newcomer->pid))
            drop_visitor(host, host->n_visitors - 1);
    }
}

static tcc_status gather(host *host) {
    while (host->n_arrived < host->meeting->size) {
        struct pollfd polled[MOST_VISITORS + 1] = {{host->listener, POLLIN, 0}};
        int32_t n = host->n_visitors;
        for (int32_t i = 0; i < n; i++)
            polled[i + 1] = (struct pollfd){host->visitors[i].connection, POLLIN, 0};
        (void)poll(polled, (nfds_t)(n + 1), SLICE);
        for (int32_t i = n;
             i-- > 0;) /* a visitor that is dropped leaves its place to a later one */
            if (polled[i + 1].revents) TCC_RETURN_IF_ERROR(hear_visitor(host, i));
        if (polled[0].revents) greet_visitors(host);
        TCC_RETURN_IF_ERROR(look_around(host->meeting));
        if (tcc_comm_now() > host->meeting->deadline) {
            char list[LIST];
            return tcc_fail(TCC_TIMEOUT, "of %d ranks these did not come to '%s' in time: %s",
                            host->meeting->size, host->meeting->name, missing_ranks(host, list));
        }
    }
    return TCC_OK;
}

static tcc_status listen_at(host *host) {
    struct sockaddr_un address;
    socklen_t size = tcc_packet_address(host->meeting->name, &address);
    host->listener = tcc_packet_socket();
    if (host->listener < 0) return TCC_SYSTEM;
    while (bind(host->listener, (struct sockaddr *)&address, size)) {
        if (errno != EADDRINUSE)
            return tcc_fail(TCC_SYSTEM, "a name for a local socket: %s", strerror(errno));
        TCC_RETURN_IF_ERROR(look_around(host->meeting));
        if (tcc_comm_now() > host->meeting->deadline)
            return tcc_fail(TCC_TIMEOUT, "another process is rank 0 of '%s'", host->meeting->name);
        tcc_comm_pause(SLICE * 200000);
    }
    if (listen(host->listener, MOST_VISITORS))
        return tcc_fail(TCC_SYSTEM, "listening at a local socket: %s", strerror(errno));
    return TCC_OK;
}

/* The union of the CPUs that ranks may use. */
static int32_t count_cpus(const host *host) {
    cpu_set_t all = host->hellos[0].cpus;
    for (int32_t i = 1; i < host->meeting->size; i++) CPU_OR(&all, &all, &host->hellos[i].cpus);
    return CPU_COUNT(&all);
}

static tcc_status complete(host *host) {
    int32_t size = host->meeting->size;
    TCC_RETURN_IF_ERROR(tcc_memory_make(host->meeting->memory, &host->met->memory));
    host->met->cpus = count_cpus(host);
    answer said;
    memset(&said, 0, sizeof said);
    said.kind = COMPLETE;
    said.cpus = host->met->cpus;
    memcpy(said.pids, host->met->pids, sizeof said.pids);
    int passed[TCC_COMM_MOST_DESCRIPTORS];
    memcpy(passed, host->met->processes, (size_t)size * sizeof *passed);
    passed[size] = host->met->memory;
    for (int32_t i = 0; i < host->n_visitors; i++)
        if (host->visitors[i].rank > 0)
            TCC_RETURN_IF_ERROR(tcc_packet_send(host->visitors[i].connection, &said, sizeof said,
                                                passed, size + 1));
    return TCC_OK;
}

/* Tells the visitors that are left why the meeting failed; of which epoch a silent one is, rank 0
 * does not know. */
static void send_away(host *host, tcc_status status, const char *reason) {
    for (int32_t i = 0; i < host->n_visitors; i++) {
        bool silent = host->visitors[i].rank < 0;
        answer_visitor(&host->visitors[i], host->outlived && silent ? LATER : REFUSED, status,
                       reason);
    }
}

static tcc_status meet_as_host(const tcc_comm_meeting *meeting, tcc_comm_met *met) {
    host *self = tcc_allocate_zero(1, sizeof *self);
    if (!self) return TCC_OUT_OF_MEMORY;
    self->meeting = meeting;
    self->met = met;
    self->hellos[0] = hello_of(meeting);
    self->n_arrived = 1;
    met->pids[0] = getpid();
    self->listener = -1;
    tcc_status status = TCC_SYSTEM;
    if ((met->processes[0] = own_process()) >= 0) status = listen_at(self);
    if (status == TCC_OK) status = gather(self);
    if (status == TCC_OK) status = complete(self);
    char reason[sizeof((answer *)0)->text] = "";
    if (status != TCC_OK) snprintf(reason, sizeof reason, "%s", tcc_last_error());
    if (status != TCC_OK) send_away(self, status, reason);
    for (int32_t i = 0; i < self->n_visitors; i++) close(self->visitors[i].connection);
    if (self->listener >= 0) close(self->listener);
    tcc_free(self);
    return status == TCC_OK ? TCC_OK : tcc_fail(status, "%s", reason); /* answers may have failed */
}

/* ---- the other ranks ------------------------------------------------------------------------- */

/* What came of a look at the connection to rank 0, or of a whole visit. */
typedef enum visit { WAITING, AGAIN, DONE, FAILED } visit;

static visit hear_host(const tcc_comm_meeting *meeting, int connection, bool *accepted,
                       tcc_comm_met *met, tcc_status *out_status) {
    answer said;
    int passed[TCC_COMM_MOST_DESCRIPTORS];
    int32_t n;
    tcc_packet_state state =
        tcc_packet_take(connection, &said, sizeof said, passed, TCC_COMM_MOST_DESCRIPTORS, &n);
    if (state == TCC_PACKET_NONE) return WAITING;
    if (state == TCC_PACKET_END) {
        if (!*accepted) return AGAIN; /* it was the end of an earlier meeting */
        *out_status =
            tcc_fail(TCC_PEER_DEAD,
                     "rank 0 gave up or ended while ranks met, or this process has no room "
                     "for %d descriptors",
                     meeting->size + 1);
        return FAILED;
    }
    if (said.kind == COMPLETE && n == meeting->size + 1) {
        memcpy(met->processes, passed, (size_t)meeting->size * sizeof *passed);
        met->memory = passed[meeting->size];
        memcpy(met->pids, said.pids, sizeof met->pids);
        met->cpus = said.cpus;
        return DONE;
    }
    tcc_packet_close(passed, n);
    if (said.kind == ACCEPTED) {
        *accepted = true;
        return WAITING;
    }
    if (said.kind != REFUSED) return AGAIN;
    said.text[sizeof said.text - 1] = 0;
    *out_status = tcc_fail((tcc_status)said.status, "%s", said.text);
    return FAILED;
}

static tcc_status in_time(const tcc_comm_meeting *meeting) {
    TCC_RETURN_IF_ERROR(look_around(meeting));
    if (tcc_comm_now() <= meeting->deadline) return TCC_OK;
    return tcc_fail(TCC_TIMEOUT, "rank %d waited in vain for rank 0 and the others at '%s'",
                    meeting->rank, meeting->name);
}

/* One connection to rank 0, from the greeting to the end; TCC_OK and `*out_done` false: try again.
 */
static tcc_status call_on(const tcc_comm_meeting *meeting, int connection, int process,
                          tcc_comm_met *met, bool *out_done) {
    hello mine = hello_of(meeting);
    bool accepted = false;
    int32_t pid;
    if (!tcc_packet_same_user(connection, &pid))
        return tcc_fail(TCC_INVALID_ARGUMENT, "rank 0 of '%s' is another user's process",
                        meeting->name);
    if (tcc_packet_send(connection, &mine, sizeof mine, &process, 1) != TCC_OK) return TCC_OK;
    for (;;) {
        struct pollfd polled = {connection, POLLIN, 0};
        (void)poll(&polled, 1, SLICE);
        tcc_status status = TCC_OK;
        switch (hear_host(meeting, connection, &accepted, met, &status)) {
        case WAITING: break;
        case AGAIN: return TCC_OK;
        case DONE: *out_done = true; return TCC_OK;
        case FAILED: return status;
        }
        TCC_RETURN_IF_ERROR(in_time(meeting));
    }
}

static tcc_status visit_host(const tcc_comm_meeting *meeting, int process, tcc_comm_met *met) {
    struct sockaddr_un address;
    socklen_t size = tcc_packet_address(meeting->name, &address);
    int64_t pause = 100000; /* doubled up to SLICE */
    for (bool done = false;;) {
        int connection = tcc_packet_socket();
        if (connection < 0) return TCC_SYSTEM;
        tcc_status status = TCC_OK;
        if (connect(connection, (struct sockaddr *)&address, size) == 0)
            status = call_on(meeting, connection, process, met, &done);
        else if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR)
            status = tcc_fail(TCC_SYSTEM, "a connection to rank 0: %s", strerror(errno));
        close(connection);
        if (status != TCC_OK || done) return status;
        TCC_RETURN_IF_ERROR(in_time(meeting));
        tcc_comm_pause(pause);
        pause = pause < SLICE * 500000 ? pause * 2 : SLICE * 1000000;
    }
}

static tcc_status meet_as_visitor(const tcc_comm_meeting *meeting, tcc_comm_met *met) {
    int process = own_process();
    if (process < 0) return TCC_SYSTEM;
    tcc_status status = visit_host(meeting, process, met);
    close(process);
    return status;
}

tcc_status tcc_comm_meet(const tcc_comm_meeting *meeting, tcc_comm_met *out_met) {
    tcc_comm_alone(out_met);
    tcc_status status =
        meeting->rank == 0 ? meet_as_host(meeting, out_met) : meet_as_visitor(meeting, out_met);
    if (status != TCC_OK) tcc_comm_part(out_met);
    return status;
}
