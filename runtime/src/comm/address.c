/* Finds hosts' addresses by name, listens on them and calls them, each by a deadline. */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "address.h"

enum { SLICE = 5 /* milliseconds between two looks at a deadline */ };

/* ---- texts ----------------------------------------------------------------------------------- */

int32_t tcc_comm_address_port(const char *address) {
    const char *colon = strrchr(address, ':');
    size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
    if (!digits || digits > 5 || colon[1 + digits] || colon == address) return 0;
    long port = strtol(colon + 1, NULL, 10);
    return port <= 65535 ? (int32_t)port : 0;
}

/* The two parts of "host:port". */
typedef struct destination {
    char name[sizeof((tcc_comm_settings *)0)->address], port[12];
} destination;

static tcc_status divide(const char *address, int32_t port_offset, destination *out) {
    int32_t port = tcc_comm_address_port(address);
    if (!port || port + port_offset > 65535)
        return tcc_fail(TCC_INVALID_ARGUMENT,
                        "ranks of several hosts meet at HOST:PORT, and '%s' is none: set "
                        "TCC_RENDEZVOUS",
                        address);
    size_t length = (size_t)(strrchr(address, ':') - address);
    bool framed = length > 2 && *address == '[' && address[length - 1] == ']';
    snprintf(out->name, sizeof out->name, "%.*s", (int)length - 2 * framed, address + framed);
    snprintf(out->port, sizeof out->port, "%d", port + port_offset);
    return TCC_OK;
}

void tcc_place_text(const tcc_place *place, char text[TCC_PLACE_TEXT]) {
    char name[64] = "?", port[12] = "?";
    const struct sockaddr *at = (const struct sockaddr *)&place->at;
    (void)getnameinfo(at, place->bytes, name, sizeof name, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    /* an IPv4 address in IPv6 form */
    const char *old = strncmp(name, "::ffff:", 7) == 0 ? name + 7 : name;
    bool framed = old == name && at->sa_family == AF_INET6;
    snprintf(text, TCC_PLACE_TEXT, "%s%s%s:%s", framed ? "[" : "", old, framed ? "]" : "", port);
}

void tcc_place_peer(int connection, char text[TCC_PLACE_TEXT]) {
    tcc_place peer = {.bytes = sizeof peer.at};
    snprintf(text, TCC_PLACE_TEXT, "an unknown address");
    if (!getpeername(connection, (struct sockaddr *)&peer.at, &peer.bytes))
        tcc_place_text(&peer, text);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void keep(const struct addrinfo *list, tcc_places *out) {
    for (; list && out->n < TCC_MOST_PLACES; list = list->ai_next) {
        tcc_place *place = &out->all[out->n++];
        memcpy(&place->at, list->ai_addr, list->ai_addrlen);
        place->bytes = list->ai_addrlen;
    }
}

/* Looks the host up.  Returns getaddrinfo's code and frees its list. */
static int look_up(const destination *to, int flags, tcc_places *out) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | flags};
    struct addrinfo *list = NULL;
    int code = getaddrinfo(to->name, to->port, &hints, &list);
    out->n = 0;
    if (code) return code;
    keep(list, out);
    freeaddrinfo(list);
    return 0;
}

/* A look-up in a thread of its own, because the C library may wait for name servers as long as it
 * likes.  The last of the two that is done with it, the thread or its caller, frees it. */
typedef struct search {
    destination to;
    tcc_places places;
    int code;
    enum { RUNNING, DONE, LEFT } _Atomic state;
} search;

static void *run_search(void *of) {
    search *self = of;
    self->code = look_up(&self->to, 0, &self->places);
    if (atomic_exchange(&self->state, DONE) == LEFT) tcc_free(self);
    return NULL;
}

/* Starts the thread with all signals blocked: signals stay with the program's threads. */
static int start_thread(search *self) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, run_search, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) pthread_detach(thread);
    return error;
}

static tcc_status search_in_time(const destination *to, int64_t deadline, tcc_places *out) {
    search *self = tcc_allocate_zero(1, sizeof *self);
    if (!self) return TCC_OUT_OF_MEMORY;
    self->to = *to;
    int error = start_thread(self);
    if (error) {
        snprintf(out->reason, sizeof out->reason, "a thread for its look-up: %s", strerror(error));
        tcc_free(self);
        return TCC_OK;
    }
    while (atomic_load(&self->state) == RUNNING && tcc_comm_now() <= deadline)
        tcc_comm_pause(1000000);
    if (atomic_exchange(&self->state, LEFT) == RUNNING) {
        snprintf(out->reason, sizeof out->reason, "its look-up took until the deadline");
        return TCC_OK;
    }
    if (self->code)
        snprintf(out->reason, sizeof out->reason, "%s", gai_strerror(self->code));
    else
        *out = self->places;
    tcc_free(self);
    return TCC_OK;
}

tcc_status tcc_places_find(const char *address, int32_t port_offset, int64_t deadline,
                           tcc_places *out) {
    destination to;
    memset(out, 0, sizeof *out);
    TCC_RETURN_IF_ERROR(divide(address, port_offset, &to));
    if (look_up(&to, AI_NUMERICHOST, out) == 0) return TCC_OK;
    return search_in_time(&to, deadline, out);
}

/* ---- sockets --------------------------------------------------------------------------------- */

static int make_socket(const tcc_place *place) {
    return socket(place->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Finds every address of this host.  IPv6's accepts both kinds; IPv4's is used alone where there is
 * no IPv6. */
static tcc_status find_all(const destination *to, tcc_places *out) {
    static const char *const names[] = {"::", "0.0.0.0"};
    int32_t n = 0;
    for (int i = 0; i < 2; i++) {
        destination any = *to;
        tcc_places some;
        strcpy(any.name, names[i]);
        if (look_up(&any, AI_NUMERICHOST, &some) == 0 && some.n) out->all[n++] = some.all[0];
    }
    out->n = n;
    return TCC_OK;
}

static tcc_status find_first(const char *address, int32_t port_offset, int64_t deadline,
                             tcc_places *out, bool *out_all) {
    destination to;
    TCC_RETURN_IF_ERROR(divide(address, port_offset, &to));
    bool is_number = look_up(&to, AI_NUMERICHOST, out) == 0;
    *out_all = !is_number && strcmp(to.name, "localhost") != 0;
    if (is_number) return TCC_OK;
    /* a host's own name may have an address that others cannot reach: 127.0.1.1 on Debian */
    return *out_all ? find_all(&to, out) : tcc_places_find(address, port_offset, deadline, out);
}

/* Returns a listening socket; -1 with errno set. */
static int listen_on(const tcc_place *place) {
    const int yes = 1, no = 0;
    int connection = make_socket(place);
    if (connection < 0) return -1;
    /* an earlier meeting's connections may linger */
    (void)setsockopt(connection, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (place->at.ss_family == AF_INET6)
        (void)setsockopt(connection, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    if (!bind(connection, (const struct sockaddr *)&place->at, place->bytes) && !listen(connection, SOMAXCONN))
        return connection;
    int error = errno;
    close(connection);
    errno = error;
    return -1;
}

tcc_status tcc_place_listen(const char *address, int32_t port_offset, int64_t deadline,
                            int *out_listener, char text[TCC_PLACE_TEXT]) {
    tcc_places places = {.n = 0};
    bool all;
    TCC_RETURN_IF_ERROR(find_first(address, port_offset, deadline, &places, &all));
    if (!places.n)
        return tcc_fail(TCC_INVALID_ARGUMENT, "no address is known for '%s': %s", address,
                        places.reason);
    for (int32_t i = 0; i < places.n;) {
        *out_listener = listen_on(&places.all[i]);
        tcc_place_text(&places.all[i], text);
        if (all)
            snprintf(text, TCC_PLACE_TEXT, "port %d of every address",
                     tcc_comm_address_port(address) + port_offset);
        if (*out_listener >= 0) return TCC_OK;
        if (errno != EADDRINUSE) {
            i++;
        } else if (tcc_comm_now() > deadline) {
            return tcc_fail(TCC_TIMEOUT, "another process listens at '%s' (%s)", address, text);
        } else {
            tcc_comm_pause(SLICE * 1000000);
        }
    }
    return tcc_fail(TCC_SYSTEM, "nobody can listen at '%s' (%s) on this host: %s", address, text,
                    strerror(errno));
}

/* Returns true if a connection in progress is made before the deadline. */
static bool is_made(int connection, int64_t deadline) {
    struct pollfd polled = {connection, POLLOUT, 0};
    while (poll(&polled, 1, SLICE) <= 0)
        if (tcc_comm_now() > deadline) {
            errno = ETIMEDOUT;
            return false;
        }
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &size)) return false;
    errno = error;
    return !error;
}

int tcc_place_call(const tcc_place *place, int64_t deadline) {
    int connection = make_socket(place);
    if (connection < 0) return -1;
    if (connect(connection, (const struct sockaddr *)&place->at, place->bytes) == 0) return connection;
    if (errno == EINPROGRESS && is_made(connection, deadline)) return connection;
    int error = errno;
    close(connection);
    errno = error;
    return -1;
}
