/* Encodes and proves the messages between ranks of several hosts. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

greeting tcc_wire_greeting(const tcc_comm_exchange *about) {
    greeting mine;
    char machine[40] = "";
    memset(&mine, 0, sizeof mine);
    mine.magic = GREETING;
    mine.version = WIRE;
    mine.rank = about->rank;
    mine.size = about->size;
    mine.epoch = about->epoch;
    mine.bytes = (uint32_t)about->bytes;
    (void)gethostname(machine, sizeof machine - 1);
    snprintf(mine.name, sizeof mine.name, "%s, pid %d", machine, (int)getpid());
    return mine;
}

void tcc_wire_clean(char *text, size_t room) {
    text[room - 1] = 0;
    for (; *text; text++)
        if (*text < ' ' || *text > '~') *text = '?';
}

static void prove(const tcc_comm_exchange *about, const char *word, const greeting *its,
                  const uint8_t number[TCC_COMM_HASH], const void *bytes, size_t n,
                  const uint8_t hash[TCC_COMM_HASH], uint8_t out[TCC_COMM_HASH]) {
    tcc_comm_proof proof;
    tcc_comm_proof_begin(&proof, about->token, strlen(about->token));
    tcc_comm_proof_add(&proof, word, strlen(word) + 1);
    tcc_comm_proof_add(&proof, its, sizeof *its);
    tcc_comm_proof_add(&proof, number, TCC_COMM_HASH);
    tcc_comm_proof_add(&proof, bytes, n);
    if (hash) tcc_comm_proof_add(&proof, hash, TCC_COMM_HASH);
    tcc_comm_proof_end(&proof, out);
}

void tcc_wire_prove_challenge(const tcc_comm_exchange *about, const greeting *its,
                            const uint8_t number[TCC_COMM_HASH], uint8_t out[TCC_COMM_HASH]) {
    prove(about, "tcc-comm challenge", its, number, NULL, 0, NULL, out);
}

void tcc_wire_prove_promise(const tcc_comm_exchange *about, const greeting *its,
                          const uint8_t number[TCC_COMM_HASH], const promise *promised,
                          uint8_t out[TCC_COMM_HASH]) {
    prove(about, "tcc-comm promise", its, number, promised, offsetof(promise, proof), NULL, out);
}

void tcc_wire_prove_answer(const tcc_comm_exchange *about, const greeting *its,
                         const uint8_t number[TCC_COMM_HASH], const answer *reply,
                         const uint8_t hash[TCC_COMM_HASH], uint8_t out[TCC_COMM_HASH]) {
    prove(about, "tcc-comm reply", its, number, reply, offsetof(answer, proof), hash, out);
}

size_t tcc_wire_move(int connection, bool sends, char *bytes, size_t n, int64_t deadline) {
    size_t done = 0;
    while (done < n && tcc_comm_now() <= deadline) {
        struct pollfd polled = {connection, sends ? POLLOUT : POLLIN, 0};
        if (poll(&polled, 1, SLICE) <= 0) continue;
        ssize_t moved = sends ? send(connection, bytes + done, n - done, MSG_NOSIGNAL)
                                  : recv(connection, bytes + done, n - done, 0);
        if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR)) break;
        if (moved > 0) done += (size_t)moved;
    }
    return done;
}
