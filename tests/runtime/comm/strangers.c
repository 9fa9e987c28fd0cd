/* Lets strangers interfere where ranks of one host meet.
 *
 *     strangers SCENARIO */
#define _GNU_SOURCE
#include <pthread.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "../../../runtime/src/comm/packet.h"
#include "scenarios.h"

enum {
    SHORT = 100,  /* milliseconds, for meetings that end in vain */
    LONG = 90000, /* milliseconds, for meetings that succeed */
    OTHER_USER = 65534,
    QUESTION = 32, /* bytes of rank 0's first message */
};

static const char secret[] = "a secret of this job";

/* ---- ranks as threads ------------------------------------------------------------------------ */

typedef struct rank {
    tcc_comm_meeting meeting;
    pthread_t thread;
    tcc_comm_met met;
    tcc_status status;
    char reason[512];
} rank;

static rank rank_of(int32_t number, const char *name, const char *token, int milliseconds) {
    return (rank){.meeting = {.name = name,
                              .token = token,
                              .rank = number,
                              .size = 2,
                              .memory = 4096,
                              .deadline = tcc_comm_now() + milliseconds * INT64_C(1000000)}};
}

static void *run(void *of) {
    rank *self = of;
    self->status = tcc_comm_meet(&self->meeting, &self->met);
    snprintf(self->reason, sizeof self->reason, "%s", tcc_last_error());
    return NULL;
}

static void start(rank *of) { pthread_create(&of->thread, NULL, run, of); }

/* Waits for the rank. It must have met the other one, or report this text. */
static void end(rank *of, tcc_status expected, const char *text) {
    pthread_join(of->thread, NULL);
    CHECK(of->status == expected, "rank %d: status %d: %s", of->meeting.rank, (int)of->status,
          of->reason);
    if (expected != TCC_OK)
        CHECK(strstr(of->reason, text), "rank %d: no '%s' in %s", of->meeting.rank, text,
              of->reason);
    tcc_comm_part(&of->met);
}

static void meet(rank *ranks) {
    for (int i = 0; i < 2; i++) start(&ranks[i]);
    for (int i = 0; i < 2; i++) end(&ranks[i], TCC_OK, "");
}

/* ---- strangers ------------------------------------------------------------------------------- */

/* Changes this thread's user. The C library's function would change that of all threads. */
static void become(int user) {
    if (syscall(SYS_setresuid, -1, user, -1) == 0) return;
    fprintf(stderr, "only root can be another user\n");
    exit(77);
}

/* Listens at the meeting's address as user `user`. */
static int listener_at(const char *name, const char *token, int user) {
    struct sockaddr_un address;
    socklen_t size = tcc_packet_address(name, token, &address);
    int listener = tcc_packet_socket(), own_user = (int)geteuid();
    if (user != own_user) become(user);
    CHECK(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 100) == 0,
          "listening: %s", strerror(errno));
    if (user != own_user) become(own_user);
    return listener;
}

/* Accepts the listener's next visitor. */
static int visitor_of(int listener) {
    struct pollfd polled = {listener, POLLIN, 0};
    CHECK(poll(&polled, 1, LONG / 3) == 1, "nobody comes");
    return accept4(listener, NULL, NULL, SOCK_CLOEXEC);
}

static int connected(const char *name, const char *token) {
    struct sockaddr_un address;
    socklen_t size = tcc_packet_address(name, token, &address);
    for (int connection;; close(connection), usleep(100)) {
        connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CHECK(connection >= 0, "socket: %s", strerror(errno));
        if (connect(connection, (struct sockaddr *)&address, size) == 0) return connection;
    }
}

/* ---- scenarios ------------------------------------------------------------------------------- */

/* Without a secret another user can take the address. Ranks wait until it goes. */
static void other_user(void) {
    const char *name = own_name("other_user");
    int listener = listener_at(name, "", OTHER_USER);
    rank ranks[] = {rank_of(0, name, "", LONG), rank_of(1, name, "", LONG)};
    for (int i = 0; i < 2; i++) start(&ranks[i]);
    for (int i = 0; i < 3; i++) close(visitor_of(listener)); /* the rank comes again */
    close(listener);
    for (int i = 0; i < 2; i++) end(&ranks[i], TCC_OK, "");
}

static void other_user_stays(void) {
    const char *name = own_name("other_user_stays");
    int listener = listener_at(name, "", OTHER_USER);
    rank ranks[] = {rank_of(0, name, "", SHORT), rank_of(1, name, "", SHORT)};
    for (int i = 0; i < 2; i++) start(&ranks[i]);
    end(&ranks[0], TCC_TIMEOUT, "of user 65534) is rank 0 of 'other_user_stays-");
    end(&ranks[1], TCC_TIMEOUT, "of user 65534 had its place");
    close(listener);
}

/* Nobody can take the address of a job with a secret in advance, because the name does not show the
 * secret. */
static void hidden_name(void) {
    const char *name = own_name("hidden_name");
    struct sockaddr_un address, other_address;
    socklen_t size = tcc_packet_address(name, secret, &address);
    tcc_packet_address(name, "", &other_address);
    CHECK(memcmp(&address, &other_address, size), "the name does not depend on the secret");
    CHECK(!memmem(&address, size, secret, 8), "the name shows the secret");
    char user[32];
    snprintf(user, sizeof user, "-%u-", (unsigned)geteuid());
    CHECK(strstr(other_address.sun_path + 1, user), "no user's number in %s", other_address.sun_path + 1);
    int listeners[] = {listener_at(name, "", OTHER_USER), listener_at(name, "guess", OTHER_USER)};
    rank ranks[] = {rank_of(0, name, secret, LONG), rank_of(1, name, secret, LONG)};
    meet(ranks);
    for (int i = 0; i < 2; i++) close(listeners[i]);
}

/* More silent visitors of the same user come than there is room for. */
static void silence(void) {
    const char *name = own_name("silence");
    int strangers[200];
    rank ranks[] = {rank_of(0, name, secret, LONG), rank_of(1, name, secret, LONG)};
    start(&ranks[0]);
    for (int i = 0; i < 200; i++) strangers[i] = connected(name, secret);
    start(&ranks[1]);
    for (int i = 0; i < 2; i++) end(&ranks[i], TCC_OK, "");
    for (int i = 0; i < 200; i++) close(strangers[i]);
}

static size_t receive(int connection, char *out, size_t room) {
    ssize_t got = recv(connection, out, room, 0);
    return got > 0 ? (size_t)got : 0;
}

/* Receives rank 1's answer to `question`, and closes the descriptor that it passes. */
static size_t hello_to(int listener, const char *question, char *out, size_t room, int *visitor) {
    *visitor = visitor_of(listener);
    CHECK(send(*visitor, question, QUESTION, MSG_NOSIGNAL) == QUESTION, "%s", strerror(errno));
    size_t got = receive(*visitor, out, room); /* the kernel closes untaken descriptors */
    CHECK(got > 2 * QUESTION, "a hello of %zu bytes", got);
    return got;
}

static tcc_status say(int to, const char *bytes, size_t n) {
    int self = (int)syscall(434 /* pidfd_open */, getpid(), 0);
    tcc_status sent = tcc_packet_send(to, bytes, n, &self, 1);
    close(self);
    return sent;
}

/* A process of the same user knows the name, but not the secret. It cannot use what it hears from a
 * rank, no rank believes it, and the ranks meet when it goes. */
static void impostor(void) {
    const char *name = own_name("impostor");
    char question[QUESTION], hello[512], other[512], answer[2048] = "";
    int listener = listener_at(name, secret, (int)geteuid()), visitor;
    rank ranks[] = {rank_of(0, name, secret, LONG), rank_of(1, name, secret, LONG),
                    rank_of(2, name, secret, LONG)};
    for (int i = 0; i < 3; i++) ranks[i].meeting.size = 3;
    start(&ranks[1]);
    memset(question, 0, sizeof question);
    size_t n = hello_to(listener, question, hello, sizeof hello, &visitor);
    CHECK(!memmem(hello, n, secret, 8), "the secret is in a hello");
    /* "accepted", then the end: a rank that believes it takes the end for rank 0's */
    CHECK(send(visitor, answer, sizeof answer, MSG_NOSIGNAL) > 0, "%s", strerror(errno));
    close(visitor);
    CHECK(hello_to(listener, question, other, sizeof other, &visitor) == n, "another hello");
    CHECK(memcmp(hello, other, n), "the same question has the same answer");
    close(visitor);
    close(listener);
    start(&ranks[0]);
    for (int i = 0; i < 5; i++) { /* replays the message to rank 0, which waits for rank 2 */
        int host = connected(name, secret);
        CHECK(receive(host, other, QUESTION) == QUESTION, "no question");
        CHECK(memcmp(question, other, QUESTION), "the same question is asked again");
        memcpy(question, other, QUESTION);
        CHECK(say(host, hello, n) == TCC_OK, "%s", tcc_last_error());
        CHECK(receive(host, answer, sizeof answer) == 0, "a hello that was heard is believed");
        close(host);
    }
    start(&ranks[2]);
    for (int i = 0; i < 3; i++) end(&ranks[i], TCC_OK, "");
}

static tcc_status is_over(void *flag) {
    return atomic_load((_Atomic bool *)flag) ? tcc_fail(TCC_CANCELLED, "it is over") : TCC_OK;
}

/* An attacker that passes on rank 0's question to rank 1 gets into the meeting with the answer, but
 * not if it claims that the answer is rank 2's. */
static void altered(void) {
    const char *name = own_name("altered");
    char question[QUESTION], hello[512], answer[2048], elsewhere[100];
    _Atomic bool over = false;
    rank ranks[] = {rank_of(0, name, secret, LONG), rank_of(1, name, secret, LONG),
                    rank_of(2, name, secret, LONG), rank_of(1, elsewhere, secret, LONG)};
    rank *lost = &ranks[3];
    snprintf(elsewhere, sizeof elsewhere, "%s-elsewhere", name);
    for (int i = 0; i < 4; i++) ranks[i].meeting.size = 3;
    lost->meeting.alive = is_over;
    lost->meeting.alive_of = &over;
    int listener = listener_at(elsewhere, secret, (int)geteuid()), visitor;
    start(&ranks[0]);
    start(lost);
    int host = connected(name, secret);
    CHECK(receive(host, question, sizeof question) == QUESTION, "no question");
    size_t n = hello_to(listener, question, hello, sizeof hello, &visitor);
    CHECK(hello[8] == 1, "a hello has the rank behind magic and version");
    hello[8] = 2;
    CHECK(say(host, hello, n) == TCC_OK, "%s", tcc_last_error());
    CHECK(receive(host, answer, sizeof answer) == 0, "a message about another rank is believed");
    close(host);
    close(visitor);
    close(listener);
    atomic_store(&over, true);
    end(lost, TCC_CANCELLED, "it is over");
    for (int i = 1; i < 3; i++) start(&ranks[i]);
    for (int i = 0; i < 3; i++) end(&ranks[i], TCC_OK, "");
}

/* An attacker that passes on the messages of rank 0 and a rank has an answer of rank 0 to that
 * rank. Later visits do not accept it. */
static void replayed(void) {
    const char *name = own_name("replayed");
    char question[QUESTION], hello[512], answer[2048], elsewhere[100];
    _Atomic bool over = false;
    snprintf(elsewhere, sizeof elsewhere, "%s-elsewhere", name);
    rank ranks[] = {rank_of(0, name, secret, LONG), rank_of(1, elsewhere, secret, LONG)};
    for (int i = 0; i < 2; i++) ranks[i].meeting.size = 3;
    ranks[1].meeting.alive = is_over;
    ranks[1].meeting.alive_of = &over;
    int listener = listener_at(elsewhere, secret, (int)geteuid()), visitor;
    for (int i = 0; i < 2; i++) start(&ranks[i]);
    int host = connected(name, secret);
    CHECK(receive(host, question, sizeof question) == QUESTION, "no question");
    size_t n = hello_to(listener, question, hello, sizeof hello, &visitor);
    CHECK(say(host, hello, n) == TCC_OK, "%s", tcc_last_error());
    size_t n_answer = receive(host, answer, sizeof answer);
    CHECK(n_answer > n, "an answer of %zu bytes", n_answer);
    close(host);
    close(visitor);
    end(&ranks[0], TCC_PEER_DEAD, "rank 1 (pid ");
    CHECK(hello_to(listener, question, hello, sizeof hello, &visitor) == n, "another hello");
    CHECK(send(visitor, answer, n_answer, MSG_NOSIGNAL) > 0, "%s", strerror(errno));
    close(visitor);
    close(visitor_of(listener)); /* the rank comes again */
    close(listener);
    atomic_store(&over, true);
    end(&ranks[1], TCC_CANCELLED, "it is over");
}

/* Another user could change or cut its memory file. */
static void other_file(void) {
    int file, own_user = (int)geteuid();
    void *memory;
    become(OTHER_USER);
    CHECK(tcc_memory_make(4096, &file) == TCC_OK, "%s", tcc_last_error());
    become(own_user);
    tcc_status status = tcc_memory_map(file, 4096, &memory);
    CHECK(status == TCC_SYSTEM && strstr(tcc_last_error(), "this user owns"), "status %d: %s",
          (int)status, tcc_last_error());
    close(file);
    CHECK(tcc_memory_make(4096, &file) == TCC_OK, "%s", tcc_last_error());
    CHECK(tcc_memory_map(file, 4096, &memory) == TCC_OK, "%s", tcc_last_error());
    munmap(memory, 4096);
    close(file);
}

static const scenario scenarios[] = {
    {"other_user", other_user},   {"other_user_stays", other_user_stays},
    {"hidden_name", hidden_name}, {"silence", silence},
    {"impostor", impostor},       {"altered", altered},
    {"replayed", replayed},       {"other_file", other_file},
};

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_DFL);
    return RUN_SCENARIO(scenarios);
}
