/* Runs the other ranks on several hosts: each visits rank 0, at all addresses of its host in
 * turn. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "wire.h"

enum {
    PAUSE = 100,     /* milliseconds at most between two visits */
    PATIENCE = 1000, /* milliseconds for a peer without proof, at first; doubled up to eight
                        times */
};

/* One rank's visits to rank 0. */
typedef struct guest {
    const tcc_comm_exchange *about;
    greeting mine;
    const void *blob;
    char *all;
    tcc_places places;
    int64_t looked_up; /* time of the look-up; 0: not yet */
    char round[400];   /* outcome of this round's visits */
    char last_round[400]; /* outcome of the last complete round, for messages */
    char stranger[200]; /* a peer of any visit that answered without proof; "": none */
    bool done;
} guest;

static void note(guest *self, const tcc_place *place, const char *event, bool answered) {
    size_t used = strlen(self->round);
    char text[TCC_PLACE_TEXT];
    tcc_place_text(place, text);
    snprintf(self->round + used, sizeof self->round - used, "; %s: %s", text, event);
    if (answered) snprintf(self->stranger, sizeof self->stranger, "; %s: %s", text, event);
}

static tcc_status in_time(const guest *self) {
    if (tcc_comm_now() <= self->about->deadline) return TCC_OK;
    /* rank 0, whose deadline is the same, may have left since */
    const char *before = strstr(self->last_round, self->stranger) ? "" : self->stranger;
    return tcc_fail(TCC_TIMEOUT, "rank %d (%s) waited in vain for rank 0 at '%s'%s%s",
                    self->about->rank, self->mine.name, self->about->address, before, self->last_round);
}

/* Greets the listener. Returns NULL where its challenge proves the secret, else a description of
 * the listener. */
static const char *greet(guest *self, int connection, int64_t deadline, challenge *heard) {
    uint8_t expected[TCC_COMM_HASH];
    char *into = (char *)heard;
    memset(heard, 0, sizeof *heard);
    if (tcc_wire_move(connection, true, (char *)&self->mine, sizeof self->mine, deadline) <
        sizeof self->mine)
        return "it hangs up";
    size_t got = tcc_wire_move(connection, false, into, sizeof heard->magic, deadline);
    if (got < sizeof heard->magic) return "it does not answer";
    if (heard->magic == GREETING) return "nobody listens"; /* TCP may connect a socket to itself */
    if (heard->magic != CHALLENGE) return "what answers is not rank 0 of this library";
    got += tcc_wire_move(connection, false, into + got, sizeof *heard - got, deadline);
    if (got < sizeof *heard) return "it hangs up";
    if (heard->version != WIRE) return "rank 0 has another version of the library";
    tcc_wire_prove_challenge(self->about, &self->mine, heard->number, expected);
    if (tcc_comm_same_hash(expected, heard->proof)) return NULL;
    return "it did not prove that it knows the secret: is the TCC_TOKEN of all ranks the same?";
}

static bool send_blob(const guest *self, int connection, const challenge *heard) {
    size_t bytes = self->about->bytes;
    int64_t deadline = self->about->deadline;
    promise its;
    tcc_sha256(self->blob, bytes, its.blob);
    tcc_wire_prove_promise(self->about, &self->mine, heard->number, &its, its.proof);
    return tcc_wire_move(connection, true, (char *)&its, sizeof its, deadline) == sizeof its &&
           tcc_wire_move(connection, true, (char *)(uintptr_t)self->blob, bytes, deadline) == bytes;
}

/* Reads rank 0's answer. An answer without a valid proof is ignored: the rank visits again. */
static tcc_status hear_answer(guest *self, int connection, const challenge *heard) {
    size_t bytes = (size_t)self->about->size * self->about->bytes;
    int64_t deadline = self->about->deadline;
    answer reply;
    uint8_t expected[TCC_COMM_HASH], hash[TCC_COMM_HASH] = {0};
    if (tcc_wire_move(connection, false, (char *)&reply, sizeof reply, deadline) < sizeof reply)
        return TCC_OK;
    bool has_all = reply.status == TCC_OK && reply.bytes == bytes;
    if (has_all) {
        if (tcc_wire_move(connection, false, self->all, bytes, deadline) < bytes) return TCC_OK;
        tcc_sha256(self->all, bytes, hash);
    }
    tcc_wire_prove_answer(self->about, &self->mine, heard->number, &reply, hash, expected);
    if (!tcc_comm_same_hash(expected, reply.proof) || reply.status == COME_AGAIN) return TCC_OK;
    self->done = has_all;
    if (has_all) return TCC_OK;
    tcc_wire_clean(reply.text, sizeof reply.text);
    bool is_known = reply.status > TCC_OK && reply.status <= TCC_SYSTEM;
    return tcc_fail(is_known ? (tcc_status)reply.status : TCC_SYSTEM, "%s", reply.text);
}

static tcc_status visit_place(guest *self, const tcc_place *place, int64_t patience) {
    int64_t deadline = tcc_comm_now() + patience;
    if (deadline > self->about->deadline) deadline = self->about->deadline;
    TCC_RETURN_IF_ERROR(tcc_comm_fresh(self->mine.number));
    int connection = tcc_place_call(place, deadline);
    if (connection < 0) {
        note(self, place, strerror(errno), false);
        return TCC_OK;
    }
    challenge heard;
    tcc_status status = TCC_OK;
    const char *wrong = greet(self, connection, deadline, &heard);
    if (!wrong && send_blob(self, connection, &heard))
        status = hear_answer(self, connection, &heard);
    if (status == TCC_OK && !self->done) {
        bool late = tcc_comm_now() > self->about->deadline;
        const char *event = late ? "rank 0 waits for others" : "rank 0 hung up";
        note(self, place, wrong ? wrong : event, wrong && heard.magic);
    }
    close(connection);
    return status;
}

/* Visits all addresses of rank 0's host in turn. */
static tcc_status visit_all(guest *self, int64_t patience) {
    const tcc_comm_exchange *about = self->about;
    int64_t now = tcc_comm_now();
    *self->round = 0;
    if (!self->places.n || now - self->looked_up > PATIENCE * INT64_C(1000000)) {
        TCC_RETURN_IF_ERROR(
            tcc_places_find(about->address, about->port_offset, about->deadline, &self->places));
        self->looked_up = tcc_comm_now();
    }
    if (!self->places.n)
        snprintf(self->round, sizeof self->round, "; no address of it is known: %s",
                 self->places.reason);
    int32_t visited = 0;
    while (visited < self->places.n && !self->done) {
        TCC_RETURN_IF_ERROR(visit_place(self, &self->places.all[visited++], patience));
        if (tcc_comm_now() > about->deadline) break;
    }
    if (visited == self->places.n || !*self->last_round)
        memcpy(self->last_round, self->round, sizeof self->last_round);
    return TCC_OK;
}

tcc_status tcc_wire_visit(const tcc_comm_exchange *about, const void *blob, char *all) {
    guest self = {.about = about, .mine = tcc_wire_greeting(about), .blob = blob, .all = all};
    int64_t patience = PATIENCE, pause = SLICE;
    for (;;) {
        TCC_RETURN_IF_ERROR(visit_all(&self, patience * 1000000));
        if (self.done) return TCC_OK;
        TCC_RETURN_IF_ERROR(in_time(&self));
        tcc_comm_pause(pause * 1000000);
        patience = patience < 8 * PATIENCE ? 2 * patience : patience;
        pause = 2 * pause < PAUSE ? 2 * pause : PAUSE;
    }
}
