/* Ranks of several hosts tell one another where they are, over TCP: rank 0 listens, the others
 * greet it with their blobs, and every rank gets those of all.  Greetings may come from anyone: a
 * visitor costs a greeting and a blob of memory, which are there before, and nobody is waited for. */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm.h"

enum {
    GREETING = 0x74636367,
    ANSWER = 0x74636361,
    SLICE = 5,       /* milliseconds between two looks at the deadline */
    STRANGERS = 16,  /* visitors beside the ranks that are expected */
    COME_AGAIN = -1, /* instead of a status: rank 0 is of an earlier epoch */
    NEW = -1,        /* instead of a rank */
    REFUSED = -2,
    NAME = 64,
};

typedef struct greeting {
    uint32_t magic, version;
    int32_t rank, size, epoch;
    uint32_t bytes; /* of the blob, which follows */
    char token[64], name[NAME];
} greeting;

typedef struct answer {
    uint32_t magic;
    int32_t status;
    uint64_t bytes; /* of all blobs, which follow where the status is TCC_OK */
    char text[400];
} answer;

typedef struct visitor {
    int connection;
    int32_t rank; /* NEW: it has not greeted yet; REFUSED: what it says is not kept */
    size_t got;   /* bytes of its greeting and blob */
    char *message;
} visitor;

/* Rank 0's side. */
typedef struct host {
    const tcc_comm_exchange *about;
    greeting mine;
    int listener;
    visitor *visitors; /* in the order of their coming */
    int32_t n_visitors, most_visitors, n_arrived;
    struct pollfd *polled;
    char (*names)[NAME]; /* by rank; "" has not come */
    char *messages;      /* of all visitors */
    char *all;
} host;

static greeting greeting_of(const tcc_comm_exchange *about) {
    greeting mine;
    char machine[40] = "";
    memset(&mine, 0, sizeof mine);
    mine.magic = GREETING;
    mine.version = TCC_COMM_VERSION;
    mine.rank = about->rank;
    mine.size = about->size;
    mine.epoch = about->epoch;
    mine.bytes = (uint32_t)about->bytes;
    memcpy(mine.token, about->token, strnlen(about->token, sizeof mine.token));
    (void)gethostname(machine, sizeof machine - 1);
    snprintf(mine.name, sizeof mine.name, "%s, pid %d", machine, (int)getpid());
    return mine;
}

/* Makes a text of what came from elsewhere. */
static void clean(char *text, size_t room) {
    text[room - 1] = 0;
    for (; *text; text++)
        if (*text < ' ' || *text > '~') *text = '?';
}

/* ---- addresses and sockets ------------------------------------------------------------------- */

int32_t tcc_comm_address_port(const char *address) {
    const char *colon = strrchr(address, ':');
    size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    if (!digits || digits > 5 || colon[1 + digits] || colon == address) return 0;
    long port = strtol(colon + 1, NULL, 10);
    return port <= 65535 ? (int32_t)port : 0;
}

/* Resolves "host:port" or "[host]:port"; the caller frees the list.  `*out_list` is NULL where the
 * name is not known yet. */
static tcc_status resolve(const tcc_comm_exchange *about, struct addrinfo **out_list) {
    char machine[sizeof((tcc_comm_settings *)0)->address];
    snprintf(machine, sizeof machine, "%s", about->address);
    char *name = machine;
    int32_t port = tcc_comm_address_port(about->address);
    if (!port || port + about->port_offset > 65535)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "ranks of several hosts meet at HOST:PORT, and '%s' is none: set "
                        "TCC_RENDEZVOUS",
                        about->address);
    char *colon = strrchr(machine, ':');
    *colon = 0;
    if (*name == '[' && colon[-1] == ']') {
        colon[-1] = 0;
        name++;
    }
    char digits[12];
    snprintf(digits, sizeof digits, "%d", port + about->port_offset);
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    if (getaddrinfo(name, digits, &hints, out_list)) *out_list = NULL;
    return TCC_OK;
}

static int make_socket(const struct addrinfo *at) {
    int made = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0) tcc_fail(TCC_SYSTEM, "a socket: %s", strerror(errno));
    return made;
}

/* Moves all bytes, or as many as there are before the deadline or the connection's end. */
static size_t move(int connection, bool send_them, char *bytes, size_t n, int64_t deadline) {
    size_t done = 0;
    while (done < n && tcc_comm_now() <= deadline) {
        struct pollfd polled = {connection, send_them ? POLLOUT : POLLIN, 0};
        if (poll(&polled, 1, SLICE) <= 0) continue;
        ssize_t moved = send_them ? send(connection, bytes + done, n - done, MSG_NOSIGNAL)
                                  : recv(connection, bytes + done, n - done, 0);
        if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR)) break;
        if (moved > 0) done += (size_t)moved;
    }
    return done;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

static void close_visitor(host *host, int32_t which) {
    visitor gone = host->visitors[which];
    close(gone.connection);
    size_t later = (size_t)(--host->n_visitors - which);
    memmove(&host->visitors[which], &host->visitors[which + 1], later * sizeof gone);
    host->visitors[host->n_visitors].message = gone.message; /* for the next one */
}

/* One try, for a visitor may not listen. */
static void refuse(visitor *to, int32_t status, const char *text) {
    answer said;
    memset(&said, 0, sizeof said);
    said.magic = ANSWER;
    said.status = status;
    snprintf(said.text, sizeof said.text, "%s", text);
    (void)!send(to->connection, &said, sizeof said, MSG_NOSIGNAL);
    /* it is closed when all is read, else TCP may lose this answer */
    (void)shutdown(to->connection, SHUT_WR);
    to->rank = REFUSED;
}

static bool same_token(const char *a, const char *b) {
    uint8_t difference = 0; /* in the same time wherever they differ */
    for (size_t i = 0; i < sizeof((greeting *)0)->token; i++) difference |= (uint8_t)(a[i] ^ b[i]);
    return difference == 0;
}

enum { TEXT = 300 };

/* Why a visitor is not let in; false where it is. */
static bool is_refused(const host *host, const greeting *its, char text[TEXT]) {
    const greeting *mine = &host->mine;
    if (its->magic != GREETING || its->version != TCC_COMM_VERSION)
        snprintf(text, TEXT, "rank 0 (%s) has version %d of the library, this process (%s) another",
                 mine->name, TCC_COMM_VERSION, its->name);
    else if (!same_token(its->token, mine->token))
        snprintf(text, TEXT, "the token of rank %d (%s) is not that of rank 0 (%s)", its->rank,
                 its->name, mine->name);
    else if (its->epoch < mine->epoch)
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

/* What ends the meeting: a rank of this job that has another idea of it. */
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

/* A visitor whose greeting is there; its blob may be under way.  Fails where all of the meeting
 * does. */
static tcc_status greeted(host *host, int32_t which) {
    visitor *from = &host->visitors[which];
    greeting its;
    char text[TEXT];
    memcpy(&its, from->message, sizeof its);
    clean(its.name, sizeof its.name);
    if (is_refused(host, &its, text)) {
        refuse(from, TCC_INVALID_ARGUMENT, text);
        return TCC_OK;
    }
    tcc_status same = check_same(host, &its);
    if (same != TCC_OK) {
        refuse(from, its.epoch > host->mine.epoch ? COME_AGAIN : (int32_t)same, tcc_last_error());
        return same;
    }
    if (from->got < sizeof its + its.bytes) return TCC_OK;
    from->rank = its.rank;
    memcpy(host->names[its.rank], its.name, NAME);
    memcpy(host->all + (size_t)its.rank * its.bytes, from->message + sizeof its, its.bytes);
    host->n_arrived++;
    return TCC_OK;
}

static tcc_status hear_visitor(host *host, int32_t which) {
    visitor *from = &host->visitors[which];
    size_t whole = sizeof(greeting) + host->mine.bytes;
    bool is_new = from->rank == NEW;
    size_t at = is_new ? from->got : 0;
    ssize_t got = recv(from->connection, from->message + at, whole - at, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return TCC_OK;
    if (from->rank >= 0) /* nobody speaks twice: it has hung up */
        return tcc_fail(TCC_PEER_DEAD, "rank %d (%s) gave up or ended while ranks met rank 0 (%s)",
                        from->rank, host->names[from->rank], host->mine.name);
    if (got <= 0)
        close_visitor(host, which);
    else if (is_new && (from->got += (size_t)got) >= sizeof(greeting))
        return greeted(host, which);
    return TCC_OK;
}

/* Whoever has been there longest and is no rank makes room for a newcomer. */
static void make_room(host *host) {
    for (int32_t i = 0; i < host->n_visitors; i++)
        if (host->visitors[i].rank < 0) {
            close_visitor(host, i);
            return;
        }
}

static void let_in(host *host) {
    for (int turn = 0; turn < STRANGERS; turn++) {
        int connection = accept4(host->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (connection < 0) return;
        if (host->n_visitors == host->most_visitors) make_room(host);
        visitor *newcomer = &host->visitors[host->n_visitors++];
        *newcomer = (visitor){connection, NEW, 0, newcomer->message};
    }
}

/* The ranks that have not come, as in "2, 5". */
static const char *missing_ranks(const host *host, char list[TEXT]) {
    size_t used = 0;
    list[0] = 0;
    for (int32_t i = 1; i < host->about->size && used < TEXT - 16; i++)
        if (!*host->names[i])
            used += (size_t)snprintf(list + used, TEXT - used, "%s%d", used ? ", " : "", i);
    return list;
}

static tcc_status gather(host *host) {
    while (host->n_arrived < host->about->size) {
        int32_t n = host->n_visitors;
        for (int32_t i = 0; i < n; i++)
            host->polled[i] = (struct pollfd){host->visitors[i].connection, POLLIN, 0};
        host->polled[n] = (struct pollfd){host->listener, POLLIN, 0};
        (void)poll(host->polled, (nfds_t)(n + 1), SLICE);
        bool newcomer = host->polled[n].revents;
        for (int32_t i = n; i-- > 0;) /* who leaves moves only those that were looked at */
            if (host->polled[i].revents) TCC_RETURN_IF_ERROR(hear_visitor(host, i));
        if (newcomer) let_in(host);
        if (tcc_comm_now() > host->about->deadline) {
            char list[TEXT];
            return tcc_fail(TCC_TIMEOUT, "of %d ranks these did not greet rank 0 (%s) at '%s': %s",
                            host->about->size, host->mine.name, host->about->address,
                            missing_ranks(host, list));
        }
    }
    return TCC_OK;
}

static tcc_status bind_at(host *host, const struct addrinfo *at) {
    const int yes = 1;
    host->listener = make_socket(at);
    if (host->listener < 0) return TCC_SYSTEM;
    /* an earlier meeting's connections may linger */
    (void)setsockopt(host->listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    while (bind(host->listener, at->ai_addr, at->ai_addrlen) || listen(host->listener, SOMAXCONN)) {
        if (errno != EADDRINUSE)
            return tcc_fail(TCC_SYSTEM, "rank 0 (%s) cannot listen at '%s': %s", host->mine.name,
                            host->about->address, strerror(errno));
        if (tcc_comm_now() > host->about->deadline)
            return tcc_fail(TCC_TIMEOUT,
                            "another process listens at '%s', where rank 0 (%s) is to listen",
                            host->about->address, host->mine.name);
        tcc_comm_pause(SLICE * 1000000);
    }
    return TCC_OK;
}

static tcc_status listen_at(host *host) {
    struct addrinfo *list;
    TCC_RETURN_IF_ERROR(resolve(host->about, &list));
    if (!list)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "no address is known for '%s', where rank 0 (%s) is to listen",
                        host->about->address, host->mine.name);
    tcc_status status = bind_at(host, list);
    freeaddrinfo(list);
    return status;
}

static tcc_status send_all(host *host) {
    size_t bytes = (size_t)host->about->size * host->about->bytes;
    answer said;
    memset(&said, 0, sizeof said);
    said.magic = ANSWER;
    said.bytes = bytes;
    for (int32_t i = 0; i < host->n_visitors; i++) {
        const visitor *to = &host->visitors[i];
        int64_t deadline = host->about->deadline;
        if (to->rank < 0) continue;
        if (move(to->connection, true, (char *)&said, sizeof said, deadline) < sizeof said ||
            move(to->connection, true, host->all, bytes, deadline) < bytes)
            return tcc_fail(TCC_PEER_DEAD,
                            "rank %d (%s) does not hear what rank 0 (%s) has gathered", to->rank,
                            host->names[to->rank], host->mine.name);
    }
    return TCC_OK;
}

static tcc_status make_room_for_ranks(host *host) {
    size_t size = (size_t)host->about->size, most = size + STRANGERS;
    size_t message = sizeof(greeting) + host->about->bytes;
    host->most_visitors = (int32_t)most;
    host->visitors = tcc_allocate_zero(most, sizeof *host->visitors);
    host->polled = tcc_allocate_zero(most + 1, sizeof *host->polled);
    host->names = tcc_allocate_zero(size, sizeof *host->names);
    host->messages = tcc_allocate_zero(most, message);
    if (!host->visitors || !host->polled || !host->names || !host->messages)
        return TCC_OUT_OF_MEMORY;
    for (size_t i = 0; i < most; i++) host->visitors[i].message = host->messages + i * message;
    return TCC_OK;
}

static void leave(host *host) {
    for (int32_t i = 0; i < host->n_visitors; i++) {
        const visitor *from = &host->visitors[i];
        /* TCP forgets an answer where more is to be read */
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

static tcc_status exchange_as_host(const tcc_comm_exchange *about, char *all) {
    host self = {.about = about, .mine = greeting_of(about), .listener = -1, .all = all};
    tcc_status status = make_room_for_ranks(&self);
    self.n_arrived = 1;
    if (status == TCC_OK) status = listen_at(&self);
    if (status == TCC_OK) status = gather(&self);
    if (status == TCC_OK) status = send_all(&self);
    char reason[sizeof((answer *)0)->text];
    snprintf(reason, sizeof reason, "%s", tcc_last_error());
    for (int32_t i = 0; status != TCC_OK && i < self.n_visitors; i++)
        if (self.visitors[i].rank > 0) refuse(&self.visitors[i], (int32_t)status, reason);
    leave(&self);
    return status == TCC_OK ? TCC_OK : tcc_fail(status, "%s", reason);
}

/* ---- the other ranks ------------------------------------------------------------------------- */

static tcc_status in_time(const tcc_comm_exchange *about, const greeting *mine) {
    if (tcc_comm_now() <= about->deadline) return TCC_OK;
    return tcc_fail(TCC_TIMEOUT, "rank %d (%s) waited in vain for rank 0 at '%s'", about->rank,
                    mine->name, about->address);
}

/* Whether a connection is made before the deadline. */
static bool is_connected(const tcc_comm_exchange *about, int connection,
                         const struct addrinfo *at) {
    if (connect(connection, at->ai_addr, at->ai_addrlen) == 0) return true;
    if (errno != EINPROGRESS) return false;
    struct pollfd polled = {connection, POLLOUT, 0};
    while (poll(&polled, 1, SLICE) <= 0)
        if (tcc_comm_now() > about->deadline) return false;
    int error = 0;
    socklen_t size = sizeof error;
    return !getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &size) && !error;
}

/* A visit that was answered; `*out_done` is false where it was not. */
static tcc_status hear_host(const tcc_comm_exchange *about, const greeting *mine, int connection,
                            char *all, bool *out_done) {
    answer said;
    size_t bytes = (size_t)about->size * about->bytes;
    int64_t deadline = about->deadline;
    size_t got = move(connection, false, (char *)&said, sizeof said.magic, deadline);
    if (got == sizeof said.magic && said.magic != ANSWER) {
        if (said.magic == GREETING) return TCC_OK; /* where none listens, TCP may find itself */
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "what answers rank %d (%s) at '%s' is not rank 0 of this library",
                        about->rank, mine->name, about->address);
    }
    got += move(connection, false, (char *)&said + got, sizeof said - got, deadline);
    if (got < sizeof said || said.status == COME_AGAIN) return TCC_OK;
    if (said.status == TCC_OK && said.bytes == bytes) {
        *out_done = move(connection, false, all, bytes, deadline) == bytes;
        return TCC_OK;
    }
    clean(said.text, sizeof said.text);
    bool known = said.status > TCC_OK && said.status <= TCC_SYSTEM;
    return tcc_fail(known ? (tcc_status)said.status : TCC_SYSTEM, "%s", said.text);
}

static tcc_status visit_host(const tcc_comm_exchange *about, const greeting *mine, char *message,
                             const struct addrinfo *at, char *all, bool *out_done) {
    size_t bytes = sizeof *mine + about->bytes;
    int connection = make_socket(at);
    if (connection < 0) return TCC_SYSTEM;
    tcc_status status = TCC_OK;
    if (is_connected(about, connection, at) &&
        move(connection, true, message, bytes, about->deadline) >= sizeof *mine)
        status = hear_host(about, mine, connection, all, out_done);
    close(connection);
    return status;
}

static tcc_status exchange_as_visitor(const tcc_comm_exchange *about, const void *blob, char *all) {
    greeting mine = greeting_of(about);
    char *message = tcc_allocate(sizeof mine + about->bytes);
    if (!message) return TCC_OUT_OF_MEMORY;
    memcpy(message, &mine, sizeof mine);
    if (about->bytes) memcpy(message + sizeof mine, blob, about->bytes);
    tcc_status status = TCC_OK;
    for (bool done = false; status == TCC_OK && !done;) {
        struct addrinfo *list = NULL;
        status = resolve(about, &list);
        for (struct addrinfo *at = list; at && status == TCC_OK && !done; at = at->ai_next)
            status = visit_host(about, &mine, message, at, all, &done);
        if (list) freeaddrinfo(list);
        if (status != TCC_OK || done) break;
        status = in_time(about, &mine);
        tcc_comm_pause(SLICE * 1000000);
    }
    tcc_free(message);
    return status;
}

tcc_comm_exchange tcc_comm_exchange_of(const tcc_comm_settings *settings, int64_t deadline,
                                       size_t bytes) {
    return (tcc_comm_exchange){
        .address = settings->address,
        .port_offset = settings->port_offset,
        .token = settings->token,
        .rank = settings->rank,
        .size = settings->size,
        .epoch = settings->epoch,
        .deadline = deadline,
        .bytes = bytes,
    };
}

tcc_status tcc_comm_exchange_blobs(const tcc_comm_exchange *about, const void *blob,
                                   void *out_all) {
    if (about->bytes > TCC_COMM_MOST_BLOB || about->size < 1 || about->rank >= about->size)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "an exchange of %zu bytes by rank %d of %d: at most %d", about->bytes,
                        about->rank, about->size, (int)TCC_COMM_MOST_BLOB);
    char *all = out_all;
    if (about->bytes) memcpy(all + (size_t)about->rank * about->bytes, blob, about->bytes);
    if (about->size == 1) return TCC_OK;
    return about->rank == 0 ? exchange_as_host(about, all) : exchange_as_visitor(about, blob, all);
}
