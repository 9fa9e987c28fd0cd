/* Declares the messages between ranks of several hosts.  One paragraph per file. */
#ifndef TCC_COMM_WIRE_H
#define TCC_COMM_WIRE_H

#include "address.h"

/* ---- wire.c: messages and their proofs ------------------------------------------------------- */

enum {
    WIRE = 2, /* the version of the messages below */
    GREETING = 0x74636368,
    CHALLENGE = 0x74636371,
    ANSWER = 0x74636361,
    COME_AGAIN = -1, /* in place of a status: rank 0 has an earlier epoch */
    SLICE = 5,       /* milliseconds between two looks at the deadline */
    NAME = 64,
};

typedef struct greeting {
    uint32_t magic, version;
    int32_t rank, size, epoch;
    uint32_t bytes; /* bytes of the blob */
    char name[NAME];
    uint8_t number[TCC_COMM_HASH]; /* fresh */
} greeting;

typedef struct challenge {
    uint32_t magic, version;
    uint8_t number[TCC_COMM_HASH]; /* fresh */
    uint8_t proof[TCC_COMM_HASH];
} challenge;

typedef struct promise {
    uint8_t blob[TCC_COMM_HASH]; /* hash of the blob, which follows */
    uint8_t proof[TCC_COMM_HASH];
} promise;

typedef struct answer {
    uint32_t magic;
    int32_t status;
    uint64_t bytes; /* bytes of all blobs, which follow where the status is TCC_OK */
    char text[400];
    uint8_t proof[TCC_COMM_HASH];
} answer;

greeting tcc_wire_greeting(const tcc_comm_exchange *about);
/* Compute the proofs of messages.  Each is a hash of the secret, a word for the kind of message,
 * the greeting and the number of its challenge, and the whole message. */
void tcc_wire_prove_challenge(const tcc_comm_exchange *about, const greeting *its,
                              const uint8_t number[TCC_COMM_HASH], uint8_t out[TCC_COMM_HASH]);
void tcc_wire_prove_promise(const tcc_comm_exchange *about, const greeting *its,
                            const uint8_t number[TCC_COMM_HASH], const promise *promised,
                            uint8_t out[TCC_COMM_HASH]);
/* Computes the proof of an answer.  `hash` is the hash of all blobs, or zeros without blobs. */
void tcc_wire_prove_answer(const tcc_comm_exchange *about, const greeting *its,
                           const uint8_t number[TCC_COMM_HASH], const answer *reply,
                           const uint8_t hash[TCC_COMM_HASH], uint8_t out[TCC_COMM_HASH]);
/* Moves all bytes, or as many as possible before the deadline or the connection's end.  Returns how
 * many. */
size_t tcc_wire_move(int connection, bool sends, char *bytes, size_t n, int64_t deadline);
/* Replaces unprintable bytes of a text that came from another process. */
void tcc_wire_clean(char *text, size_t room);

/* ---- gather.c, visit.c: the two sides -------------------------------------------------------- */

/* The two sides of the exchange: gather is rank 0's, with this rank's own blob in `all`; visit is
 * the other ranks'.  Afterwards `all` has the blobs of all ranks. */
tcc_status tcc_wire_gather(const tcc_comm_exchange *about, char *all);
tcc_status tcc_wire_visit(const tcc_comm_exchange *about, const void *blob, char *all);

#endif
