/* Lets processes of one host meet: rank 0 listens, the others identify themselves, and each gets a
 * memory file and a pidfd of every rank.
 *
 * Rank 0 sends each visitor a question with a fresh number.  The visitor greets with its own number
 * and proves that it knows the token, by a hash of both numbers and of its whole message.  Rank 0's
 * answers carry the same kind of proof.  A process without a valid proof is a stranger: rank 0
 * hangs up on it, and a rank that meets one tries again. */
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
    NEWCOMERS = 32,      /* visitors that are let in between two looks at the others */
    STRANGER = 1000,     /* milliseconds after which a visitor without a proof is a stranger */
    FULL = 50000,        /* nanoseconds to wait for ranks to take their descriptors */
};

typedef struct question {
    uint8_t number[TCC_COMM_HASH];
} question;

typedef struct hello {
    uint32_t magic, version;
    int32_t rank, size, epoch;
    uint64_t memory;
    uint8_t number[TCC_COMM_HASH]; /* fresh */
    cpu_set_t cpus;
    uint8_t proof[TCC_COMM_HASH]; /* hash of the question and all fields above */
} hello;

typedef enum answer_kind { ACCEPTED, COMPLETE, REFUSED, LATER } answer_kind;

typedef struct answer {
    int32_t kind, status, cpus;
    int32_t pids[TCC_COMM_MOST_LOCAL];
    char text[512];
    uint8_t proof[TCC_COMM_HASH]; /* hash of the question, the hello and all fields above */
} answer;

typedef struct visitor {
    int connection;
    int32_t pid, rank; /* rank -1: not proved yet */
    question question;
} visitor;

/* Rank 0's side. */
typedef struct host {
    const tcc_comm_meeting *meeting;
    int listener;
    visitor visitors[MOST_VISITORS];
    int32_t n_visitors, n_arrived;
    hello hellos[TCC_COMM_MOST_LOCAL]; /* by rank */
    tcc_comm_met *met;
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
    if (sched_getaffinity(0, sizeof mine.cpus, &mine.cpus)) CPU_ZERO(&mine.cpus);
    return mine;
}

static void begin_proof(tcc_comm_proof *proof, const tcc_comm_meeting *meeting, const char *word,
                        const question *its_question) {
    tcc_comm_proof_begin(proof, meeting->token, strlen(meeting->token));
    tcc_comm_proof_add(proof, word, strlen(word) + 1);
    tcc_comm_proof_add(proof, its_question, sizeof *its_question);
}

static void prove_hello(const tcc_comm_meeting *meeting, const question *its_question, const hello *its,
                        uint8_t out[TCC_COMM_HASH]) {
    tcc_comm_proof proof;
    begin_proof(&proof, meeting, "tcc-comm hello", its_question);
    tcc_comm_proof_add(&proof, its, offsetof(hello, proof));
    tcc_comm_proof_end(&proof, out);
}

static void prove_answer(const tcc_comm_meeting *meeting, const question *its_question, const hello *to,
                         const answer *reply, uint8_t out[TCC_COMM_HASH]) {
    tcc_comm_proof proof;
    begin_proof(&proof, meeting, "tcc-comm answer", its_question);
    tcc_comm_proof_add(&proof, to->number, sizeof to->number);
    tcc_comm_proof_add(&proof, reply, offsetof(answer, proof));
    tcc_comm_proof_end(&proof, out);
}

static int open_process(void) {
    int process = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (process < 0)
        tcc_fail(TCC_SYSTEM, "a descriptor of this process (pidfd_open, Linux 5.3): %s",
                 strerror(errno));
    return process;
}

static tcc_status look_around(const tcc_comm_meeting *meeting) {
    return meeting->alive ? meeting->alive(meeting->alive_of) : TCC_OK;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

/* Answers the visitor that has sent and proved `its`.  A user's descriptors that are sent and not
 * yet taken may not exceed the number that a process may open (`ulimit -n`); beyond it the function
 * waits until ranks have taken some. */
static tcc_status answer_visitor(const host *host, const visitor *to, const hello *its,
                                 answer *reply, const int *passed, int32_t n) {
    prove_answer(host->meeting, &to->question, its, reply, reply->proof);
    for (;;) {
        tcc_status status = tcc_packet_send(to->connection, reply, sizeof *reply, passed, n);
        bool full = status == TCC_SYSTEM && errno == ETOOMANYREFS;
        if (!full || tcc_comm_now() > host->meeting->deadline) return status;
        tcc_comm_pause(FULL);
    }
}

static void say(const host *host, const visitor *to, const hello *its, answer_kind kind,
                tcc_status status, const char *text) {
    answer reply;
    memset(&reply, 0, sizeof reply);
    reply.kind = kind;
    reply.status = status;
    snprintf(reply.text, sizeof reply.text, "%s", text);
    (void)answer_visitor(host, to, its, &reply, NULL, 0); /* the visitor may be gone */
}

static void drop_visitor(host *host, int32_t index) {
    close(host->visitors[index].connection);
    size_t later = (size_t)(--host->n_visitors - index);
    memmove(&host->visitors[index], &host->visitors[index + 1], later * sizeof(visitor));
}

static void refuse(host *host, int32_t index, const hello *its, answer_kind kind,
                   const char *text) {
    say(host, &host->visitors[index], its, kind, TCC_INVALID_ARGUMENT, text);
    drop_visitor(host, index);
}

/* Returns true if the visitor uses this library and knows the token. */
static bool is_proved(const host *host, const visitor *from, const hello *its) {
    uint8_t expected[TCC_COMM_HASH];
    prove_hello(host->meeting, &from->question, its, expected);
    return its->magic == MAGIC && tcc_comm_same_hash(expected, its->proof);
}

/* Admits a newcomer that has proved its hello.  Returns an error where the whole meeting fails. */
static tcc_status admit(host *host, int32_t index, const hello *its, int process) {
    const hello *mine = &host->hellos[0];
    visitor *from = &host->visitors[index];
    char text[160] = "";
    answer_kind kind = REFUSED;
    tcc_status status = TCC_OK;
    if (its->version != TCC_COMM_VERSION) {
        snprintf(text, sizeof text, "rank 0 has version %d of the library, this process another",
                 TCC_COMM_VERSION);
    } else if (its->epoch < mine->epoch) {
        snprintf(text, sizeof text, "epoch %d is over: rank 0 (pid %d) is in epoch %d", its->epoch,
                 (int)getpid(), mine->epoch);
    } else if (its->epoch > mine->epoch) {
        kind = LATER;
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
        close(process);
        say(host, from, its, REFUSED, status, tcc_last_error());
        return status;
    } else if (its->rank < 1 || its->rank >= mine->size || host->met->processes[its->rank] >= 0) {
        snprintf(text, sizeof text, "rank %d is not one of 1 to %d, or another process has it",
                 its->rank, mine->size - 1);
    }
    if (*text) {
        close(process);
        refuse(host, index, its, kind, text);
        return status;
    }
    from->rank = its->rank;
    host->hellos[its->rank] = *its;
    host->met->processes[its->rank] = process;
    host->met->pids[its->rank] = from->pid;
    host->n_arrived++;
    say(host, from, its, ACCEPTED, TCC_OK, "");
    return TCC_OK;
}

enum { LIST = 128 };

/* Lists the ranks that have not come, as in "2, 5". */
static const char *missing_ranks(const host *host, char list[LIST]) {
    size_t used = 0;
    list[0] = 0;
    for (int32_t i = 1; i < host->meeting->size && used < LIST - 16; i++)
        if (host->met->processes[i] < 0)
            used += (size_t)snprintf(list + used, LIST - used, "%s%d", used ? ", " : "", i);
    return used ? list : "none";
}

static tcc_status hear_visitor(host *host, int32_t index) {
    visitor *from = &host->visitors[index];
    hello its;
    int process = -1;
    int32_t n = 0;
    if (from->rank < 0) {
        switch (tcc_packet_take(from->connection, &its, sizeof its, &process, 1, &n)) {
        case TCC_PACKET_NONE: return TCC_OK;
        case TCC_PACKET_WHOLE:
            if (n == 1 && is_proved(host, from, &its)) return admit(host, index, &its, process);
            tcc_packet_close(&process, n);
            break;
        case TCC_PACKET_END: break;
        }
        drop_visitor(host, index);
        return TCC_OK;
    }
    /* a rank sends nothing more, so it has hung up */
    char list[LIST];
    return tcc_fail(TCC_PEER_DEAD,
                    "rank %d (pid %d) gave up or ended while ranks met; not there were: %s",
                    from->rank, from->pid, missing_ranks(host, list));
}

/* Makes room for a newcomer: the visitor that has been there longest without a proof goes.  If it
 * is a rank, it comes again. */
static bool make_room(host *host) {
    for (int32_t i = 0; host->n_visitors == MOST_VISITORS && i < MOST_VISITORS; i++)
        if (host->visitors[i].rank < 0) drop_visitor(host, i);
    return host->n_visitors < MOST_VISITORS;
}

static tcc_status greet_visitors(host *host) {
    for (int turn = 0; turn < NEWCOMERS; turn++) {
        int connection = accept4(host->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (connection < 0) return TCC_OK;
        tcc_packet_peer peer;
        if (!tcc_packet_same_user(connection, &peer) || !make_room(host)) {
            close(connection);
            continue;
        }
        visitor *newcomer = &host->visitors[host->n_visitors++];
        *newcomer = (visitor){.connection = connection, .pid = peer.pid, .rank = -1};
        TCC_RETURN_IF_ERROR(tcc_comm_fresh(newcomer->question.number));
        if (tcc_packet_send(connection, &newcomer->question, sizeof newcomer->question, NULL, 0))
            drop_visitor(host, host->n_visitors - 1);
    }
    return TCC_OK;
}

static tcc_status gather(host *host) {
    while (host->n_arrived < host->meeting->size) {
        struct pollfd polled[MOST_VISITORS + 1] = {{host->listener, POLLIN, 0}};
        int32_t n = host->n_visitors;
        for (int32_t i = 0; i < n; i++)
            polled[i + 1] = (struct pollfd){host->visitors[i].connection, POLLIN, 0};
        (void)poll(polled, (nfds_t)(n + 1), SLICE);
        for (int32_t i = n;
             i-- > 0;) /* backwards, because a dropped visitor's place goes to a later one */
            if (polled[i + 1].revents) TCC_RETURN_IF_ERROR(hear_visitor(host, i));
        if (polled[0].revents) TCC_RETURN_IF_ERROR(greet_visitors(host));
        TCC_RETURN_IF_ERROR(look_around(host->meeting));
        if (tcc_comm_now() > host->meeting->deadline) {
            char list[LIST];
            return tcc_fail(TCC_TIMEOUT, "of %d ranks these did not come to '%s' in time: %s%s",
                            host->meeting->size, host->meeting->name, missing_ranks(host, list),
                            *host->meeting->token ? "; is their TCC_TOKEN the same?" : "");
        }
    }
    return TCC_OK;
}

static tcc_status report_holder(const host *host, const struct sockaddr_un *address,
                                socklen_t size) {
    tcc_packet_peer peer = {0, 0};
    int connection = tcc_packet_socket();
    bool seen = connection >= 0 && !connect(connection, (const struct sockaddr *)address, size);
    if (seen) (void)tcc_packet_same_user(connection, &peer);
    if (connection >= 0) close(connection);
    if (!seen)
        return tcc_fail(TCC_TIMEOUT, "another process is rank 0 of '%s'", host->meeting->name);
    return tcc_fail(TCC_TIMEOUT, "another process (pid %d of user %u) is rank 0 of '%s'", peer.pid,
                    peer.user, host->meeting->name);
}

static tcc_status listen_at(host *host) {
    struct sockaddr_un address;
    const tcc_comm_meeting *meeting = host->meeting;
    socklen_t size = tcc_packet_address(meeting->name, meeting->token, &address);
    host->listener = tcc_packet_socket();
    if (host->listener < 0) return TCC_SYSTEM;
    while (bind(host->listener, (struct sockaddr *)&address, size)) {
        if (errno != EADDRINUSE)
            return tcc_fail(TCC_SYSTEM, "a name for a local socket: %s", strerror(errno));
        TCC_RETURN_IF_ERROR(look_around(meeting));
        if (tcc_comm_now() > meeting->deadline) return report_holder(host, &address, size);
        tcc_comm_pause(SLICE * 200000);
    }
    if (listen(host->listener, MOST_VISITORS))
        return tcc_fail(TCC_SYSTEM, "listening at a local socket: %s", strerror(errno));
    return TCC_OK;
}

/* Returns the number of CPUs that any of the ranks may use. */
static int32_t count_cpus(const host *host) {
    cpu_set_t all = host->hellos[0].cpus;
    for (int32_t i = 1; i < host->meeting->size; i++) CPU_OR(&all, &all, &host->hellos[i].cpus);
    return CPU_COUNT(&all);
}

static tcc_status complete(host *host) {
    int32_t size = host->meeting->size;
    TCC_RETURN_IF_ERROR(tcc_memory_make(host->meeting->memory, &host->met->memory));
    host->met->cpus = count_cpus(host);
    answer reply;
    memset(&reply, 0, sizeof reply);
    reply.kind = COMPLETE;
    reply.cpus = host->met->cpus;
    memcpy(reply.pids, host->met->pids, sizeof reply.pids);
    int passed[TCC_COMM_MOST_DESCRIPTORS];
    memcpy(passed, host->met->processes, (size_t)size * sizeof *passed);
    passed[size] = host->met->memory;
    for (int32_t i = 0; i < host->n_visitors; i++) {
        const visitor *to = &host->visitors[i];
        if (to->rank > 0)
            TCC_RETURN_IF_ERROR(
                answer_visitor(host, to, &host->hellos[to->rank], &reply, passed, size + 1));
    }
    return TCC_OK;
}

/* Tells the ranks that have come why the meeting failed.  Other ranks try again. */
static void send_away(const host *host, tcc_status status, const char *reason) {
    for (int32_t i = 0; i < host->n_visitors; i++) {
        const visitor *to = &host->visitors[i];
        if (to->rank > 0) say(host, to, &host->hellos[to->rank], REFUSED, status, reason);
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
    if ((met->processes[0] = open_process()) >= 0) status = listen_at(self);
    if (status == TCC_OK) status = gather(self);
    if (status == TCC_OK) status = complete(self);
    char reason[sizeof((answer *)0)->text] = "";
    if (status != TCC_OK) snprintf(reason, sizeof reason, "%s", tcc_last_error());
    if (status != TCC_OK) send_away(self, status, reason);
    for (int32_t i = 0; i < self->n_visitors; i++) close(self->visitors[i].connection);
    if (self->listener >= 0) close(self->listener);
    tcc_free(self);
    /* sending the answers may have changed the message */
    return status == TCC_OK ? TCC_OK : tcc_fail(status, "%s", reason);
}

/* ---- the other ranks ------------------------------------------------------------------------- */

/* The outcome of a look at the connection to rank 0, or of a whole visit. */
typedef enum visit { WAITING, AGAIN, DONE, FAILED } visit;

/* One rank's visits to rank 0. */
typedef struct guest {
    const tcc_comm_meeting *meeting;
    int process;
    tcc_comm_met *met;
    question question;
    hello mine;
    bool greeted, accepted; /* in this visit */
    char occupant[160];     /* description of the process in rank 0's place that is not rank 0, for
                               messages */
    int error;              /* errno of the last call */
} guest;

static visit hear_question(guest *self, int connection) {
    int32_t n;
    switch (tcc_packet_take(connection, &self->question, sizeof self->question, NULL, 0, &n)) {
    case TCC_PACKET_NONE: return WAITING;
    case TCC_PACKET_END: return AGAIN;
    case TCC_PACKET_WHOLE: break;
    }
    prove_hello(self->meeting, &self->question, &self->mine, self->mine.proof);
    self->greeted = true;
    tcc_status sent =
        tcc_packet_send(connection, &self->mine, sizeof self->mine, &self->process, 1);
    return sent == TCC_OK ? WAITING : AGAIN;
}

static visit hear_answer(guest *self, int connection, tcc_status *out_status) {
    answer reply;
    int passed[TCC_COMM_MOST_DESCRIPTORS];
    int32_t n, size = self->meeting->size;
    uint8_t expected[TCC_COMM_HASH];
    tcc_packet_state state =
        tcc_packet_take(connection, &reply, sizeof reply, passed, TCC_COMM_MOST_DESCRIPTORS, &n);
    if (state == TCC_PACKET_NONE) return WAITING;
    if (state == TCC_PACKET_END) {
        if (!self->accepted) return AGAIN; /* it was the end of an earlier meeting */
        *out_status =
            tcc_fail(TCC_PEER_DEAD,
                     "rank 0 gave up or ended while ranks met, or this process has no room "
                     "for %d descriptors",
                     size + 1);
        return FAILED;
    }
    prove_answer(self->meeting, &self->question, &self->mine, &reply, expected);
    if (!tcc_comm_same_hash(expected, reply.proof)) {
        tcc_packet_close(passed, n);
        return AGAIN;
    }
    if (reply.kind == COMPLETE && n == size + 1) {
        memcpy(self->met->processes, passed, (size_t)size * sizeof *passed);
        self->met->memory = passed[size];
        memcpy(self->met->pids, reply.pids, sizeof reply.pids);
        self->met->cpus = reply.cpus;
        return DONE;
    }
    tcc_packet_close(passed, n);
    if (reply.kind == ACCEPTED) {
        self->accepted = true;
        return WAITING;
    }
    if (reply.kind != REFUSED) return AGAIN;
    reply.text[sizeof reply.text - 1] = 0;
    *out_status = tcc_fail((tcc_status)reply.status, "%s", reply.text);
    return FAILED;
}

/* Returns why the last call reached no process. */
static const char *why(const guest *self) {
    if (!self->error) return "";
    if (self->error != ECONNREFUSED) return strerror(self->error);
    return *self->meeting->token ? "nobody listens there; is the TCC_TOKEN of all ranks the same?"
                                 : "nobody listens there";
}

static tcc_status in_time(const guest *self) {
    const tcc_comm_meeting *meeting = self->meeting;
    TCC_RETURN_IF_ERROR(look_around(meeting));
    if (tcc_comm_now() <= meeting->deadline) return TCC_OK;
    return tcc_fail(TCC_TIMEOUT, "rank %d waited in vain for rank 0 and the others at '%s'%s%s%s",
                    meeting->rank, meeting->name, self->occupant, self->error ? ": " : "",
                    why(self));
}

/* Handles one connection to rank 0, from its question to the end.  TCC_OK with `*out_done` false
 * means: try again. */
static tcc_status call_on(guest *self, int connection, bool *out_done) {
    tcc_packet_peer peer;
    bool same_user = tcc_packet_same_user(connection, &peer);
    self->greeted = self->accepted = false;
    snprintf(self->occupant, sizeof self->occupant, ": pid %d of user %u had its place%s", peer.pid,
             peer.user, same_user ? " and did not accept this rank" : "");
    if (!same_user) return TCC_OK;
    int64_t patience = tcc_comm_now() + STRANGER * INT64_C(1000000);
    TCC_RETURN_IF_ERROR(tcc_comm_fresh(self->mine.number));
    while (self->accepted || tcc_comm_now() < patience) {
        struct pollfd polled = {connection, POLLIN, 0};
        (void)poll(&polled, 1, SLICE);
        tcc_status status = TCC_OK;
        switch (self->greeted ? hear_answer(self, connection, &status)
                              : hear_question(self, connection)) {
        case WAITING: break;
        case AGAIN: return TCC_OK;
        case DONE: *out_done = true; return TCC_OK;
        case FAILED: return status;
        }
        if (self->accepted) *self->occupant = 0;
        TCC_RETURN_IF_ERROR(in_time(self));
    }
    return TCC_OK;
}

static tcc_status visit_host(guest *self) {
    struct sockaddr_un address;
    const tcc_comm_meeting *meeting = self->meeting;
    socklen_t size = tcc_packet_address(meeting->name, meeting->token, &address);
    int64_t pause = 100000; /* doubled up to SLICE */
    for (bool done = false;;) {
        int connection = tcc_packet_socket();
        if (connection < 0) return TCC_SYSTEM;
        tcc_status status = TCC_OK;
        self->error = connect(connection, (struct sockaddr *)&address, size) ? errno : 0;
        if (!self->error) status = call_on(self, connection, &done);
        close(connection);
        if (status != TCC_OK || done) return status;
        TCC_RETURN_IF_ERROR(in_time(self));
        tcc_comm_pause(pause);
        pause = pause < SLICE * 500000 ? pause * 2 : SLICE * 1000000;
    }
}

static tcc_status meet_as_visitor(const tcc_comm_meeting *meeting, tcc_comm_met *met) {
    guest self = {.meeting = meeting, .process = open_process(), .met = met};
    if (self.process < 0) return TCC_SYSTEM;
    self.mine = hello_of(meeting);
    tcc_status status = visit_host(&self);
    close(self.process);
    return status;
}

tcc_status tcc_comm_meet(const tcc_comm_meeting *meeting, tcc_comm_met *out_met) {
    tcc_comm_alone(out_met);
    tcc_status status =
        meeting->rank == 0 ? meet_as_host(meeting, out_met) : meet_as_visitor(meeting, out_met);
    if (status != TCC_OK) tcc_comm_part(out_met);
    return status;
}
