/* Runs rank 0 of ranks on several hosts: it listens, admits the ranks that prove the secret, and
 * answers them all at once. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

enum {
    STRANGERS = 64, /* visitors beyond the expected ranks */
    NEWCOMERS = 16, /* visitors that are let in between two looks at the others */
    NEW = -1,       /* in place of a rank */
    REFUSED = -2,
    TEXT = 300,
};

typedef struct visitor {
    int connection;
    int32_t rank;  /* NEW: not proved yet; REFUSED: its messages are dropped */
    size_t got;    /* bytes received of its greeting, promise and blob */
    char *message; /* the buffer for them */
    uint8_t number[TCC_COMM_HASH]; /* number of the challenge */
} visitor;

/* Rank 0's side. */
typedef struct host {
    const tcc_comm_exchange *about;
    greeting mine;
    int listener;
    char listens[TCC_PLACE_TEXT];  /* address that it listens on */
    char stranger[TCC_PLACE_TEXT]; /* address of the last visitor without a valid proof; "": none */
    visitor *visitors;             /* in order of arrival */
    int32_t n_visitors, max_visitors, n_arrived;
    struct pollfd *polled;
    char (*names)[NAME]; /* by rank; "": has not come */
    char *messages;      /* buffers for the messages of all visitors */
    char *all;
} host;

static void close_visitor(host *host, int32_t index) {
    visitor gone = host->visitors[index];
    close(gone.connection);
    size_t later = (size_t)(--host->n_visitors - index);
    memmove(&host->visitors[index], &host->visitors[index + 1], later * sizeof gone);
    /* the freed buffer serves the next visitor */
    host->visitors[host->n_visitors].message = gone.message;
}

/* Returns a greeting with the bytes as received, which the proofs cover. */
static greeting greeting_from(const visitor *from) {
    greeting its;
    memcpy(&its, from->message, sizeof its);
    return its;
}

/* Answers a visitor that has proved its greeting.  It tries only once, because the visitor may not
 * listen. */
static void refuse(const host *host, visitor *to, int32_t status, const char *text) {
    static const uint8_t nothing[TCC_COMM_HASH];
    greeting its = greeting_from(to);
    answer reply;
    memset(&reply, 0, sizeof reply);
    reply.magic = ANSWER;
    reply.status = status;
    snprintf(reply.text, sizeof reply.text, "%s", text);
    tcc_wire_prove_answer(host->about, &its, to->number, &reply, nothing, reply.proof);
    (void)!send(to->connection, &reply, sizeof reply, MSG_NOSIGNAL);
    /* the socket is closed only after all input is read, else TCP may lose this answer */
    (void)shutdown(to->connection, SHUT_WR);
    to->rank = REFUSED;
}

/* Returns true, with the reason in `text`, if a visitor that knows the secret is not let in. */
static bool is_refused(const host *host, const greeting *its, char text[TEXT]) {
    const greeting *mine = &host->mine;
    if (its->epoch < mine->epoch)
        snprintf(text, TEXT, "epoch %d of rank %d (%s) is over: rank 0 (%s) is in epoch %d",
                 its->epoch, its->rank, its->name, mine->name, mine->epoch);
    else if (its->rank < 1 || its->rank >= mine->size)
        snprintf(text, TEXT, "rank %d (%s) is not one of 1 to %d, which rank 0 (%s) waits for",
                 its->rank, its->name, mine->size - 1, mine->name);
    else if (*host->names[its->rank])
        snprintf(text, TEXT, "rank %d is two processes: %s and %s", its->rank,
                 host->names[its->rank], its->name);
    else
        return false;
    return true;
}

/* Fails the meeting where a rank of this job has contradicting settings. */
static tcc_status check_same(const host *host, const greeting *its) {
    const greeting *mine = &host->mine;
    if (its->epoch > mine->epoch)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "epoch %d of rank 0 (%s) is over: rank %d (%s) is in epoch %d", mine->epoch,
                        mine->name, its->rank, its->name, its->epoch);
    if (its->size == mine->size && its->bytes == mine->bytes) return TCC_OK;
    return tcc_fail(TCC_MISMATCH,
                    "rank 0 (%s) opens a comm of %d ranks with %u bytes each, rank %d (%s) one of "
                    "%d with %u",
                    mine->name, mine->size, mine->bytes, its->rank, its->name, its->size,
                    its->bytes);
}

/* Answers a greeting with a fresh number and this side's proof.  Hangs up on invalid greetings. */
static tcc_status ask(host *host, int32_t index) {
    visitor *from = &host->visitors[index];
    greeting its = greeting_from(from);
    challenge question;
    memset(&question, 0, sizeof question);
    question.magic = CHALLENGE;
    question.version = WIRE;
    TCC_RETURN_IF_ERROR(tcc_comm_fresh(from->number));
    memcpy(question.number, from->number, sizeof question.number);
    tcc_wire_prove_challenge(host->about, &its, from->number, question.proof);
    if (its.magic != GREETING ||
        send(from->connection, &question, sizeof question, MSG_NOSIGNAL) < (ssize_t)sizeof question) {
        close_visitor(host, index);
    } else if (its.version != WIRE) { /* tells the visitor which version this is */
        (void)shutdown(from->connection, SHUT_WR);
        from->rank = REFUSED;
    }
    return TCC_OK;
}

/* Handles a visitor's complete promise: a right proof makes its greeting valid.  Returns an error
 * where the whole meeting fails. */
static tcc_status hear_promise(host *host, int32_t index) {
    visitor *from = &host->visitors[index];
    greeting its = greeting_from(from);
    promise its_promise;
    uint8_t expected[TCC_COMM_HASH];
    char text[TEXT];
    memcpy(&its_promise, from->message + sizeof its, sizeof its_promise);
    tcc_wire_prove_promise(host->about, &its, from->number, &its_promise, expected);
    if (!tcc_comm_same_hash(expected, its_promise.proof)) {
        tcc_place_peer(from->connection, host->stranger);
        close_visitor(host, index);
        return TCC_OK;
    }
    tcc_wire_clean(its.name, sizeof its.name);
    if (is_refused(host, &its, text)) {
        refuse(host, from, TCC_INVALID_ARGUMENT, text);
        return TCC_OK;
    }
    tcc_status same = check_same(host, &its);
    if (same != TCC_OK)
        refuse(host, from, its.epoch > host->mine.epoch ? COME_AGAIN : (int32_t)same,
               tcc_last_error());
    return same;
}

/* Counts a visitor as a rank: all its messages have come. */
static void count_in(host *host, int32_t index) {
    visitor *from = &host->visitors[index];
    greeting its = greeting_from(from);
    const char *blob = from->message + sizeof its + sizeof(promise);
    promise its_promise;
    uint8_t expected[TCC_COMM_HASH];
    memcpy(&its_promise, from->message + sizeof its, sizeof its_promise);
    tcc_sha256(blob, its.bytes, expected);
    tcc_wire_clean(its.name, sizeof its.name);
    if (!tcc_comm_same_hash(expected, its_promise.blob) || *host->names[its.rank]) {
        close_visitor(host, index); /* the rank visits again */
        return;
    }
    from->rank = its.rank;
    memcpy(host->names[its.rank], its.name, NAME);
    if (its.bytes) memcpy(host->all + (size_t)its.rank * its.bytes, blob, its.bytes);
    host->n_arrived++;
}

/* Handles the next message of a visitor that is not a rank yet. */
static tcc_status hear_on(host *host, int32_t index) {
    visitor *from = &host->visitors[index];
    size_t greeted = sizeof(greeting), promised = greeted + sizeof(promise);
    size_t complete = promised + host->mine.bytes;
    size_t end = from->got < greeted ? greeted : from->got < promised ? promised : complete;
    ssize_t got = recv(from->connection, from->message + from->got, end - from->got, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return TCC_OK;
    if (got <= 0) {
        if (from->got >= greeted) tcc_place_peer(from->connection, host->stranger);
        close_visitor(host, index);
        return TCC_OK;
    }
    bool had_promised = from->got >= promised;
    from->got += (size_t)got;
    if (from->got == greeted) return ask(host, index);
    if (from->got < promised) return TCC_OK;
    if (!had_promised) {
        int32_t before = host->n_visitors;
        TCC_RETURN_IF_ERROR(hear_promise(host, index));
        if (host->n_visitors < before || from->rank == REFUSED) return TCC_OK;
    }
    if (from->got == complete) count_in(host, index);
    return TCC_OK;
}

static tcc_status hear_visitor(host *host, int32_t index) {
    visitor *from = &host->visitors[index];
    if (from->rank == NEW) return hear_on(host, index);
    char dropped[64]; /* further bytes are dropped */
    ssize_t got = recv(from->connection, dropped, sizeof dropped, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return TCC_OK;
    if (from->rank >= 0) /* a rank sends nothing more, so it has hung up */
        return tcc_fail(TCC_PEER_DEAD, "rank %d (%s) gave up or ended while ranks met rank 0 (%s)",
                        from->rank, host->names[from->rank], host->mine.name);
    if (got <= 0) close_visitor(host, index);
    return TCC_OK;
}

/* Makes room for a newcomer: the visitor that has been there longest without becoming a rank
 * goes. */
static void make_room(host *host) {
    for (int32_t i = 0; i < host->n_visitors; i++)
        if (host->visitors[i].rank < 0) {
            close_visitor(host, i);
            return;
        }
}

static void let_in(host *host) {
    for (int turn = 0; turn < NEWCOMERS; turn++) {
        int connection = accept4(host->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (connection < 0) return;
        if (host->n_visitors == host->max_visitors) make_room(host);
        visitor *newcomer = &host->visitors[host->n_visitors++];
        *newcomer = (visitor){connection, NEW, 0, newcomer->message, {0}};
    }
}

/* Lists the ranks that have not come, as in "2, 5". */
static const char *missing_ranks(const host *host, char list[TEXT]) {
    size_t used = 0;
    list[0] = 0;
    for (int32_t i = 1; i < host->about->size && used < TEXT - 16; i++)
        if (!*host->names[i])
            used += (size_t)snprintf(list + used, TEXT - used, "%s%d", used ? ", " : "", i);
    return list;
}

static tcc_status report_missing(const host *host) {
    char list[TEXT], stranger[TEXT] = "";
    if (*host->stranger)
        snprintf(stranger, TEXT, "; %s did not prove that it knows the secret: %s", host->stranger,
                 "is the TCC_TOKEN of all ranks the same?");
    return tcc_fail(TCC_TIMEOUT,
                    "of %d ranks these did not greet rank 0 (%s) at '%s' (it listened on %s): %s%s",
                    host->about->size, host->mine.name, host->about->address, host->listens,
                    missing_ranks(host, list), stranger);
}

static tcc_status gather(host *host) {
    while (host->n_arrived < host->about->size) {
        int32_t n = host->n_visitors;
        for (int32_t i = 0; i < n; i++)
            host->polled[i] = (struct pollfd){host->visitors[i].connection, POLLIN, 0};
        host->polled[n] = (struct pollfd){host->listener, POLLIN, 0};
        (void)poll(host->polled, (nfds_t)(n + 1), SLICE);
        bool newcomer = host->polled[n].revents;
        for (int32_t i = n; i-- > 0;) /* backwards, because a removal moves only visitors that were
                                         looked at */
            if (host->polled[i].revents) TCC_RETURN_IF_ERROR(hear_visitor(host, i));
        if (newcomer) let_in(host);
        if (tcc_comm_now() > host->about->deadline) return report_missing(host);
    }
    return TCC_OK;
}

static tcc_status listen_at(host *host) {
    const tcc_comm_exchange *about = host->about;
    tcc_status status = tcc_place_listen(about->address, about->port_offset, about->deadline,
                                         &host->listener, host->listens);
    if (status == TCC_OK) return TCC_OK;
    char reason[TEXT];
    snprintf(reason, sizeof reason, "%s", tcc_last_error());
    return tcc_fail(status, "%s, where rank 0 (%s) is to listen", reason, host->mine.name);
}

static tcc_status send_all(host *host) {
    size_t bytes = (size_t)host->about->size * host->about->bytes;
    uint8_t hash[TCC_COMM_HASH];
    answer reply;
    memset(&reply, 0, sizeof reply);
    reply.magic = ANSWER;
    reply.bytes = bytes;
    tcc_sha256(host->all, bytes, hash);
    for (int32_t i = 0; i < host->n_visitors; i++) {
        const visitor *to = &host->visitors[i];
        int64_t deadline = host->about->deadline;
        if (to->rank < 0) continue;
        greeting its = greeting_from(to);
        tcc_wire_prove_answer(host->about, &its, to->number, &reply, hash, reply.proof);
        int connection = to->connection;
        if (tcc_wire_move(connection, true, (char *)&reply, sizeof reply, deadline) < sizeof reply ||
            tcc_wire_move(connection, true, host->all, bytes, deadline) < bytes)
            return tcc_fail(TCC_PEER_DEAD,
                            "rank %d (%s) does not hear what rank 0 (%s) has gathered", to->rank,
                            host->names[to->rank], host->mine.name);
    }
    return TCC_OK;
}

static tcc_status make_room_for_ranks(host *host) {
    size_t size = (size_t)host->about->size, room = size + STRANGERS;
    size_t message = sizeof(greeting) + sizeof(promise) + host->about->bytes;
    host->max_visitors = (int32_t)room;
    host->visitors = tcc_allocate_zero(room, sizeof *host->visitors);
    host->polled = tcc_allocate_zero(room + 1, sizeof *host->polled);
    host->names = tcc_allocate_zero(size, sizeof *host->names);
    host->messages = tcc_allocate_zero(room, message);
    if (!host->visitors || !host->polled || !host->names || !host->messages)
        return TCC_OUT_OF_MEMORY;
    for (size_t i = 0; i < room; i++) host->visitors[i].message = host->messages + i * message;
    return TCC_OK;
}

static void leave(host *host) {
    for (int32_t i = 0; i < host->n_visitors; i++) {
        const visitor *from = &host->visitors[i];
        /* TCP drops an answer where unread input remains */
        for (int tries = 0; tries < 64; tries++)
            if (recv(from->connection, from->message, sizeof(greeting), 0) <= 0) break;
        close(from->connection);
    }
    tcc_free(host->messages);
    tcc_free(host->visitors);
    tcc_free(host->polled);
    tcc_free(host->names);
    if (host->listener >= 0) close(host->listener);
}

tcc_status tcc_wire_gather(const tcc_comm_exchange *about, char *all) {
    host self = {.about = about, .mine = tcc_wire_greeting(about), .listener = -1, .all = all};
    tcc_status status = make_room_for_ranks(&self);
    self.n_arrived = 1;
    if (status == TCC_OK) status = listen_at(&self);
    if (status == TCC_OK) status = gather(&self);
    if (status == TCC_OK) status = send_all(&self);
    char reason[1000];
    snprintf(reason, sizeof reason, "%s", tcc_last_error());
    for (int32_t i = 0; status != TCC_OK && i < self.n_visitors; i++)
        if (self.visitors[i].rank > 0) refuse(&self, &self.visitors[i], (int32_t)status, reason);
    leave(&self);
    return status == TCC_OK ? TCC_OK : tcc_fail(status, "%s", reason);
}
