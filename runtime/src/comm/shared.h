/* The backend `shared`: one segment of memory for the ranks of one host.  One paragraph per file.
 *
 * Every rank has a line in the segment.  Its stage counts up: an operation is one or more steps, in
 * each of which a rank writes to its own slot, counts its stage up, waits until all others have the
 * same stage, and reads their slots.  An operation that has begun has counted up for its first step.
 * Slots are double: a rank that counts up for the next step has read all of this one, so that the
 * step after the next may write over it. */
#ifndef TCC_COMM_SHARED_H
#define TCC_COMM_SHARED_H

#include "comm.h"

enum {
    TCC_SHARED_MOST_SPIN = 1000000, /* nanoseconds */
    TCC_SHARED_LINE = 128,       /* two cache lines, which processors fetch together */
    TCC_SHARED_SLOT = 256 << 10, /* bytes of one slot */
    TCC_SHARED_CHUNK = 32 << 10, /* bytes of one place of a channel */
    TCC_SHARED_PLACES = 2,       /* of a channel */
    TCC_SHARED_ANY = -1,         /* a sleeper that any rank may wake */
};

/* What one rank says to the others. */
typedef struct tcc_shared_rank {
    _Alignas(TCC_SHARED_LINE) _Atomic uint32_t stage;
    _Atomic uint32_t closed;
    tcc_comm_descriptor descriptors[2];              /* of its operations, in turns */
    _Alignas(TCC_SHARED_LINE) _Atomic uint32_t bell; /* counted up to wake it: it sleeps on this */
    _Atomic int32_t awaited;                         /* the rank that it waits for as it sleeps */
    _Atomic uint32_t turn;    /* odd while it shrinks the comm: another number for each attempt */
    _Atomic uint64_t without; /* the ranks that it leaves out then, as bits */
} tcc_shared_rank;

/* Messages from one rank to another: places are filled and taken in turns. */
typedef struct tcc_shared_channel {
    _Alignas(TCC_SHARED_LINE) _Atomic uint32_t filled;
    _Alignas(TCC_SHARED_LINE) _Atomic uint32_t taken;
    struct tcc_shared_place {
        _Alignas(TCC_SHARED_LINE) int64_t count; /* of the whole message */
        uint32_t type, bytes;                    /* in this place */
        char data[TCC_SHARED_CHUNK];
    } places[TCC_SHARED_PLACES];
} tcc_shared_channel;

typedef struct tcc_shared_segment {
    _Alignas(TCC_SHARED_LINE) _Atomic uint64_t asleep; /* a bit for each rank */
    _Alignas(TCC_SHARED_LINE) _Atomic uint32_t
        revoked; /* 0, 1 while the reason is written, or 2 + status */
    char reason[512];
    _Atomic uint32_t decided; /* of a comm that was shrunk: whether it is made */
    tcc_shared_rank ranks[]; /* then all slots, then all channels */
} tcc_shared_segment;

typedef struct tcc_shared tcc_shared;

/* How an operation is done: in slices, all of which take so many steps.  In a slice's first step
 * every rank fills its slot; in each it reads when all have come. */
typedef struct tcc_shared_method {
    int steps;
    int64_t bytes; /* of a slice */
    void (*fill)(tcc_shared *shared, const tcc_comm_work *work);
    tcc_status (*read)(tcc_shared *shared, const tcc_comm_work *work);
} tcc_shared_method;

/* Symmetric memory: all ranks' parts, one behind another. */
typedef struct tcc_shared_arena {
    char *memory;
    size_t bytes; /* of one part */
} tcc_shared_arena;

struct tcc_shared {
    tcc_shared_segment *segment;
    size_t bytes;
    char *slots;                  /* two of each rank */
    tcc_shared_channel *channels; /* [from][to] */
    int32_t rank, size;
    tcc_comm_met met;
    char name[256];            /* of the meeting */
    uint64_t pending;          /* ranks whose part of a transfer is outstanding, as bits */
    uint32_t stage;            /* of this rank */
    uint32_t operations;       /* parity chooses the descriptor */
    uint32_t slices;           /* parity chooses the slot */
    int64_t spin;              /* nanoseconds before it sleeps; 0 where ranks share CPUs */
    int64_t deadline;          /* of the operation at hand: counted from its last progress */
    int64_t patience;          /* nanoseconds */
    struct tcc_shared *parent; /* that it is made from, while it opens */
    tcc_status (*alive)(struct tcc_shared *self); /* asked while it opens; NULL: nothing to ask */
    uint32_t turn, entered;    /* of the attempt at hand to shrink it, and of the first */
    uint64_t without;          /* the ranks that are left out there, as bits */
    int32_t refused_by;        /* the rank that shrank the comm without this one; -1: none */
    const tcc_comm_work *work; /* at hand */
    tcc_comm_work begun;       /* the collective at hand, by this method */
    const tcc_shared_method *method;
    int64_t slice, length, begin; /* elements: of a slice, of all slices, before the one at hand */
    int round;                    /* steps of the slice at hand that are done */
    bool agreed;                  /* all ranks have been seen to do this work */
    bool past;                    /* what this rank receives goes past the caches */
    tcc_shared_arena arenas[TCC_COMM_ARENAS];
    const tcc_shared_arena *arena; /* of the collective at hand; NULL: none */
    const int32_t *members;        /* the parts of it that ranks have; NULL: those of their numbers */
};

/* ---- wait.c: what ranks wait for, and how that fails ----------------------------------------- */

/* Whether what is waited for is there; `awaited` is then the first rank that it still needs. */
typedef bool tcc_shared_ready(tcc_shared *shared, void *what, int32_t *awaited);

/* Returns when `ready`, or the error that revoked the comm, or revokes it: a rank that is needed
 * has ended or closed the comm, or the deadline has passed. */
tcc_status tcc_shared_wait(tcc_shared *shared, tcc_shared_ready *ready, void *what);
/* After a change that others may wait for: wakes those that sleep until this rank has made it. */
void tcc_shared_ring(tcc_shared *shared);
/* Counts this rank's stage up. */
void tcc_shared_publish(tcc_shared *shared);
/* Whether all others' stages are the same. */
bool tcc_shared_arrived(tcc_shared *shared);
/* Waits until they are. */
tcc_status tcc_shared_arrive(tcc_shared *shared);
/* The first error counts; all ranks' operations return it. */
void tcc_shared_revoke(tcc_shared *shared, tcc_status status, const char *format, ...)
    TCC_PRINTF(3, 4) TCC_COLD;
/* TCC_OK, or the error that revoked the comm, with its reason as the thread's message. */
tcc_status tcc_shared_state(tcc_shared *shared);
/* Also looks whether all ranks' processes live; those that have closed the comm may end. */
tcc_status tcc_shared_alive(tcc_shared *shared);

/* The ranks whose processes have ended or that have closed the comm, as bits; without this one. */
uint64_t tcc_shared_gone(const tcc_shared *shared);

/* ---- agree.c: ranks that are left of a comm agree on who they are ---------------------------- */

/* Begins to shrink, without the ranks that are `excluded` here. */
void tcc_shared_enter(tcc_shared *shared, const bool *excluded);
/* Returns when all ranks that are not `shared->without` have said the same of it, in one turn.  Fails
 * at the deadline, or where another rank leaves this one out. */
tcc_status tcc_shared_agree(tcc_shared *shared, int64_t deadline);
/* The next turn, for what was agreed on has failed: the others of this turn learn it. */
void tcc_shared_again(tcc_shared *shared);
/* Ends shrinking, well or not. */
void tcc_shared_depart(tcc_shared *shared);
/* While those that agreed meet: fails where one of them is gone, or is in another turn. */
tcc_status tcc_shared_gathers(void *shared);
/* Whether the comm `made` is made, which this rank thinks by `status`, the outcome of its waiting for
 * all of them: TCC_OK on all ranks or on none. */
tcc_status tcc_shared_decide(tcc_shared *made, tcc_status status);

/* ---- move.c: bytes and elements of the operation at hand ------------------------------------- */

/* Copies between memory of this rank, or from another's. */
void tcc_shared_copy(void *to, const void *from, int64_t count, size_t element);
/* The same to what a rank receives. */
void tcc_shared_hand(const tcc_shared *shared, void *to, const void *from, int64_t count,
                     size_t element);
/* Reduces `count` elements of all ranks' `inputs` to `slot`, unless it is NULL, and to the `n`
 * places `outs` where ranks receive. */
void tcc_shared_reduce(const tcc_shared *shared, const tcc_comm_work *work,
                       const char *const *inputs, int64_t count, char *slot, char *const *outs,
                       int32_t n);
/* Elements before a rank's part of `count`, at a border of cache lines. */
int64_t tcc_shared_part(const tcc_shared *shared, const tcc_comm_work *work, int64_t count,
                        int32_t rank);
/* What a rank pays for steps, and for bytes that it moves: nanoseconds. */
int64_t tcc_shared_price(const tcc_shared *shared, int64_t steps, int64_t bytes);

/* ---- in_place.c: collectives in symmetric memory --------------------------------------------- */

/* Finds the arena that has the buffers, and says so in the work's descriptor.  Returns the method
 * that needs no slots, or NULL where one with slots, which has so many steps, takes less time. */
const tcc_shared_method *tcc_shared_in_place(tcc_comm *comm, tcc_comm_work *work, int64_t steps);

/* ---- collect.c: collectives ------------------------------------------------------------------ */

tcc_status tcc_shared_begin(tcc_comm *comm, const tcc_comm_work *work);
tcc_status tcc_shared_advance(tcc_comm *comm, bool wait, bool *out_done);

/* ---- channel.c: sends and receives ----------------------------------------------------------- */

tcc_status tcc_shared_transfer(tcc_comm *comm, const tcc_comm_work *works, int32_t n);

#endif
