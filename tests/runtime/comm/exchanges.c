/* Lets ranks meet over TCP on the loopback device, and makes everything fail that can fail.
 *
 *     exchanges SCENARIO */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "../../../runtime/src/comm/comm.h"
#include "scenarios.h"

enum {
    SHORT = 200,  /* milliseconds, for meetings that end in vain */
    LONG = 90000, /* milliseconds, for meetings that succeed */
    GREETING_BYTES = 120,
    CHALLENGE_BYTES = 72,
    PROMISE_BYTES = 64,
    ANSWER_BYTES = 448,
};

static char address[64];
static uint16_t port;

/* Listens at a port of an address of this host; port 0 means a free port. */
static int listener_on(uint32_t host, uint16_t its_port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(its_port)};
    at.sin_addr.s_addr = htonl(host);
    socklen_t size = sizeof at;
    const int yes = 1;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    CHECK(bind(listener, (struct sockaddr *)&at, size) == 0 && listen(listener, 1000) == 0, "listen: %s",
          strerror(errno));
    getsockname(listener, (struct sockaddr *)&at, &size);
    port = ntohs(at.sin_port);
    return listener;
}

static int listener_at(uint16_t port) { return listener_on(INADDR_LOOPBACK, port); }

/* Returns a connection; -1 where no process listens. */
static int connected_to(uint16_t to) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(to)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(connection >= 0, "socket: %s", strerror(errno));
    if (connect(connection, (struct sockaddr *)&at, sizeof at) == 0) return connection;
    close(connection);
    return -1;
}

static int connected(void) {
    for (int connection;; usleep(1000))
        if ((connection = connected_to(port)) >= 0) return connection;
}

/* ---- ranks as threads ------------------------------------------------------------------------ */

typedef struct rank {
    tcc_comm_exchange about;
    int32_t number;
    pthread_t thread;
    char blob[4096], *all;
    tcc_status status;
    char reason[512];
} rank;

static rank rank_of(int32_t number, int32_t size, size_t bytes, int milliseconds) {
    rank item = {.number = number,
                 .about = {.address = address,
                           .token = "secret",
                           .rank = number,
                           .size = size,
                           .epoch = 5,
                           .bytes = bytes,
                           .deadline = tcc_comm_now() + milliseconds * INT64_C(1000000)}};
    for (size_t i = 0; i < bytes; i++) item.blob[i] = (char)(i * 7 + (size_t)number * 31 + 1);
    return item;
}

static void *run(void *of) {
    rank *self = of;
    self->all = malloc((size_t)self->about.size * self->about.bytes + 1);
    self->status = tcc_comm_exchange_blobs(&self->about, self->blob, self->all);
    snprintf(self->reason, sizeof self->reason, "%s", tcc_last_error());
    return NULL;
}

static void start(rank *of) { pthread_create(&of->thread, NULL, run, of); }

static void join(rank *of) { pthread_join(of->thread, NULL); }

/* Ends a rank's wait for something that never comes: its deadline is now. */
static void end_in_vain(rank *of) {
    __atomic_store_n(&of->about.deadline, tcc_comm_now(), __ATOMIC_SEQ_CST);
    join(of);
}

static void run_all(rank *ranks, int n) {
    for (int i = n; i-- > 0;) start(&ranks[i]);
    for (int i = 0; i < n; i++) join(&ranks[i]);
}

/* Frees the rank's results, and checks them where it succeeded. */
static void end(rank *of, tcc_status expected, const char *first, const char *second) {
    CHECK(of->status == expected, "rank %d: status %d: %s", of->number, (int)of->status,
          of->reason);
    if (expected != TCC_OK)
        CHECK(strstr(of->reason, first) && strstr(of->reason, second),
              "rank %d: no '%s' and '%s' in %s", of->number, first, second, of->reason);
    size_t bytes = of->about.bytes;
    for (int32_t from = 0; expected == TCC_OK && from < of->about.size; from++)
        for (size_t i = 0; i < bytes; i++)
            CHECK(of->all[(size_t)from * bytes + i] == (char)(i * 7 + (size_t)from * 31 + 1),
                  "byte %zu of rank %d", i, from);
    free(of->all);
}

/* ---- scenarios ------------------------------------------------------------------------------- */

#include "names.h"
#include "relay.h"

static void agrees(void) {
    static const int sizes[] = {1, 2, 3, 9};
    static const size_t bytes[] = {0, 1, 128, 4096};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            rank ranks[9];
            for (int32_t r = 0; r < sizes[i]; r++) ranks[r] = rank_of(r, sizes[i], bytes[k], LONG);
            run_all(ranks, sizes[i]);
            for (int32_t r = 0; r < sizes[i]; r++) end(&ranks[r], TCC_OK, "", "");
        }
}

static void wrong_token(void) {
    rank ranks[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 8, LONG)};
    ranks[1].about.token = "another";
    end_as_strangers(ranks);
}

/* The explicit choice of no secret does not meet a rank with a secret. */
static void without_token(void) {
    rank ranks[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 8, LONG)};
    for (int i = 0; i < 2; i++) ranks[i].about.token = "";
    run_all(ranks, 2);
    for (int i = 0; i < 2; i++)
        end(&ranks[i], TCC_INVALID_ARGUMENT, "has no secret", "set TCC_TOKEN to the same random");
    for (int i = 0; i < 2; i++) ranks[i].about.unguarded = true;
    run_all(ranks, 2);
    for (int i = 0; i < 2; i++) end(&ranks[i], TCC_OK, "", "");
    rank mixed[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 8, LONG)};
    mixed[1].about.token = "";
    mixed[1].about.unguarded = true;
    end_as_strangers(mixed);
}

/* Rank 1 has an earlier epoch than rank 0, then a later one. */
static void stale_epoch(void) {
    rank early[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 8, LONG)};
    early[1].about.epoch = 4;
    for (int i = 0; i < 2; i++) start(&early[i]);
    join(&early[1]);
    end_in_vain(&early[0]);
    end(&early[0], TCC_TIMEOUT, "did not greet rank 0 (", ": 1");
    end(&early[1], TCC_INVALID_ARGUMENT, "epoch 4 of rank 1 (", "rank 0 (");
    rank late[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 8, LONG)};
    late[1].about.epoch = 6;
    for (int i = 0; i < 2; i++) start(&late[i]);
    join(&late[0]);
    end_in_vain(&late[1]);
    end(&late[0], TCC_INVALID_ARGUMENT, "epoch 5 of rank 0 (", "rank 1 (");
    end(&late[1], TCC_TIMEOUT, "rank 1 (", "in vain for rank 0 at '127.0.0.1:");
}

/* A rank of a later epoch ends the meeting of the earlier one, and meets its own rank 0. */
static void restarts(void) {
    rank ranks[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 8, LONG), rank_of(0, 2, 8, LONG)};
    ranks[1].about.epoch = ranks[2].about.epoch = 6;
    for (int i = 0; i < 2; i++) start(&ranks[i]);
    join(&ranks[0]);
    start(&ranks[2]);
    for (int i = 1; i < 3; i++) join(&ranks[i]);
    end(&ranks[0], TCC_INVALID_ARGUMENT, "epoch 5 of rank 0 (", "is in epoch 6");
    end(&ranks[1], TCC_OK, "", "");
    end(&ranks[2], TCC_OK, "", "");
}

static void differ(void) {
    rank sizes[] = {rank_of(0, 3, 8, LONG), rank_of(1, 2, 8, LONG)};
    run_all(sizes, 2);
    for (int i = 0; i < 2; i++)
        end(&sizes[i], TCC_MISMATCH, "of 3 ranks with 8 bytes each, rank 1 (", "one of 2 with 8");
    rank bytes[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 4000, LONG)};
    run_all(bytes, 2);
    for (int i = 0; i < 2; i++)
        end(&bytes[i], TCC_MISMATCH, "of 2 ranks with 8 bytes each, rank 1 (",
            "one of 2 with 4000");
    rank too_much = rank_of(0, 2, 8, SHORT);
    too_much.about.bytes = TCC_COMM_MOST_BLOB + 1;
    too_much.status = tcc_comm_exchange_blobs(&too_much.about, too_much.blob, NULL);
    CHECK(too_much.status == TCC_INVALID_ARGUMENT, "%s", tcc_last_error());
}

static void same_rank(void) {
    rank ranks[] = {rank_of(0, 3, 8, LONG), rank_of(1, 3, 8, LONG), rank_of(1, 3, 8, LONG)};
    int second = -1; /* the refused rank; the other is counted */
    for (int i = 0; i < 3; i++) start(&ranks[i]);
    for (int i = 1; second < 0; i = 3 - i)
        if (pthread_tryjoin_np(ranks[i].thread, NULL) == 0) second = i;
    end_in_vain(&ranks[0]);
    join(&ranks[3 - second]);
    end(&ranks[0], TCC_TIMEOUT, "did not greet rank 0 (", ": 2");
    end(&ranks[second], TCC_INVALID_ARGUMENT, "rank 1 is two processes: ", ", pid ");
    end(&ranks[3 - second], TCC_TIMEOUT, "did not greet rank 0 (", ": 2");
}

/* Silent strangers, more than there is room for, keep no rank out. */
static void silence(void) {
    rank ranks[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 8, LONG)};
    int strangers[200];
    start(&ranks[0]);
    for (int i = 0; i < 200; i++) strangers[i] = connected();
    start(&ranks[1]);
    for (int i = 0; i < 2; i++) join(&ranks[i]);
    for (int i = 0; i < 200; i++) close(strangers[i]);
    for (int i = 0; i < 2; i++) end(&ranks[i], TCC_OK, "", "");
}

/* Another process has the port. First it is silent; then it answers with another protocol. */
static void taken(void) {
    int other = listener_at(port);
    rank ranks[] = {rank_of(0, 2, 8, SHORT), rank_of(1, 2, 8, SHORT)};
    run_all(ranks, 2);
    end(&ranks[0], TCC_TIMEOUT, "another process listens at '127.0.0.1:", "where rank 0 (");
    end(&ranks[1], TCC_TIMEOUT, "rank 1 (", "in vain for rank 0 at '127.0.0.1:");
    close(other);
    other = listener_at(port);
    rank alone = rank_of(1, 2, 8, LONG);
    start(&alone);
    for (int turn = 0; turn < 3; turn++) { /* the rank comes again */
        int visitor = accept(other, NULL, NULL);
        CHECK(write(visitor, "HTTP/1.1 400 Bad Request\r\n\r\n", 28) == 28, "%s", strerror(errno));
        close(visitor);
    }
    end_in_vain(&alone);
    close(other);
    end(&alone, TCC_TIMEOUT, "rank 1 (", "127.0.0.1:");
}

/* A stranger has the port at first, and repeats messages of other ranks. The ranks meet when it
 * goes. */
static void leaves(void) {
    char bytes[1000] = "qcct";
    int other = listener_at(port);
    rank ranks[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 8, LONG)};
    for (int i = 0; i < 2; i++) start(&ranks[i]);
    for (int turn = 0; turn < 3; turn++) {
        int visitor = accept(other, NULL, NULL);
        (void)!send(visitor, bytes, CHALLENGE_BYTES + ANSWER_BYTES, MSG_NOSIGNAL);
        close(visitor);
    }
    close(other);
    for (int i = 0; i < 2; i++) join(&ranks[i]);
    for (int i = 0; i < 2; i++) end(&ranks[i], TCC_OK, "", "");
}

/* Writes the greeting of `of` as it goes over the wire. */
static size_t greeting_of_rank(rank *of, char *out, size_t room) {
    int other = listener_at(port);
    start(of);
    int visitor = accept(other, NULL, NULL);
    size_t got = 0, size = GREETING_BYTES;
    CHECK(size <= room, "a greeting of %zu bytes", size);
    for (ssize_t n; got < size && (n = read(visitor, out + got, size - got)) > 0;) got += (size_t)n;
    close(visitor);
    close(other);
    end_in_vain(of);
    free(of->all);
    return got;
}

static uint64_t draw_state = 1;

static uint64_t draw(void) {
    draw_state = draw_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return draw_state >> 33;
}

/* Changes some bytes and the length. */
static size_t mutate(const char *from, size_t size, char *out, size_t room) {
    memcpy(out, from, size);
    for (uint64_t n = draw() % 8; n-- > 0;) out[draw() % size] = (char)draw();
    uint32_t word = (uint32_t)draw() << (draw() % 32);
    if (draw() % 4 == 0) memcpy(out + 4 * (draw() % 6), &word, sizeof word);
    if (draw() % 3) return size;
    size_t length = draw() % room;
    for (size_t i = size; i < length; i++) out[i] = (char)draw();
    return length;
}

/* Sends thousands of greetings without the token, then a right one. Memory does not grow with
 * them. */
static void hostile(void) {
    enum { MANY = 4000, ROOM = 2000 };
    char greeting[512], changed[ROOM];
    rank ranks[] = {rank_of(0, 2, 8, LONG), rank_of(1, 2, 8, LONG)}, other = ranks[1];
    other.about.token = "guessed";
    size_t size = greeting_of_rank(&other, greeting, sizeof greeting);
    struct rusage before, after;
    leaks open_before = count_leaks();
    start(&ranks[0]);
    for (int i = 0; i < MANY; i++) {
        int visitor = connected();
        size_t length = mutate(greeting, size, changed, ROOM);
        (void)!send(visitor, changed, length, MSG_NOSIGNAL);
        close(visitor);
        if (i == MANY / 2) getrusage(RUSAGE_SELF, &before);
    }
    getrusage(RUSAGE_SELF, &after);
    CHECK(after.ru_maxrss - before.ru_maxrss < 1024, "%ld KiB more",
          after.ru_maxrss - before.ru_maxrss);
    start(&ranks[1]);
    for (int i = 0; i < 2; i++) join(&ranks[i]);
    for (int i = 0; i < 2; i++) end(&ranks[i], TCC_OK, "", "");
    CHECK(count_leaks().descriptors == open_before.descriptors, "descriptors are left");
}

/* Changed greetings with the token, and changed answers, give a status and do no harm. */
static void garbled(void) {
    char greeting[512], changed[1000], answer[1000];
    rank pattern = rank_of(1, 2, 8, LONG);
    size_t size = greeting_of_rank(&pattern, greeting, sizeof greeting);
    for (int i = 0; i < 100; i++) {
        rank host = rank_of(0, 3, 8, LONG);
        start(&host);
        int visitor = connected();
        size_t length = mutate(greeting, size, changed, sizeof changed);
        (void)!send(visitor, changed, length, MSG_NOSIGNAL);
        shutdown(visitor, SHUT_WR);
        while (read(visitor, answer, sizeof answer) > 0) {
        }
        close(visitor);
        end_in_vain(&host);
        CHECK(host.status != TCC_OK && *host.reason, "a meeting of one");
        free(host.all);
    }
    int other = listener_at(port);
    for (int i = 0; i < 40; i++) {
        rank guest = rank_of(1, 2, 8, LONG);
        memset(answer, 0, sizeof answer);
        memcpy(answer, i % 2 ? "acct" : "qcct", 4);
        start(&guest);
        int visitor = accept(other, NULL, NULL);
        (void)!send(visitor, changed, mutate(answer, ANSWER_BYTES, changed, 1000), MSG_NOSIGNAL);
        close(visitor);
        end_in_vain(&guest);
        free(guest.all);
    }
    close(other);
}

static const scenario scenarios[] = {
    {"agrees", agrees},
    {"wrong_token", wrong_token},
    {"without_token", without_token},
    {"stale_epoch", stale_epoch},
    {"restarts", restarts},
    {"differ", differ},
    {"same_rank", same_rank},
    {"silence", silence},
    {"taken", taken},
    {"leaves", leaves},
    {"own_name", name_of_this_host},
    {"all_addresses", all_addresses},
    {"patience", patience},
    {"both_kinds", both_kinds},
    {"slow_name", slow_name},
    {"no_name", no_name},
    {"elsewhere", elsewhere},
    {"replays", replays},
    {"altered", altered},
    {"dies", dies},
    {"hostile", hostile},
    {"garbled", garbled},
};

int main(int argc, char **argv) {
    close(listener_at(0));
    snprintf(address, sizeof address, "127.0.0.1:%d", (int)port);
    return RUN_SCENARIO(scenarios);
}
