/* Declares the collectives that the ranks of a comm issue together (collective.c). */
#ifndef TCC_COLLECTIVE_H
#define TCC_COLLECTIVE_H

#include "runtime.h"
#include "tcc_comm.h"

/* Returns the table of functions that a comm begins with. */
static inline const tcc_comm_table *tcc_collective_table(const tcc_comm *comm) {
    return *(const tcc_comm_table *const *)(const void *)comm;
}
/* The lists of ranks that one group of collectives divides the job into.  The lists follow one
 * another in memory, and each has `length` ranks. */
typedef struct tcc_rank_group {
    const char *name;
    int64_t lists, length;
    const int32_t *ranks;
} tcc_rank_group;

tcc_status tcc_collective_fits(const tcc_comm *comm); /* TCC_UNSUPPORTED: the comm's library has
                                                         another version */
/* Fails unless the comm fits (tcc_collective_fits) and gives this process the rank that the model
 * is loaded for. */
tcc_status tcc_collective_suits(const tcc_comm *comm, const tcc_model *model);
/* Finds this process's rank and the number of ranks: from `comm`, else from the process's comm,
 * else from the launcher's variables.  Without all of them the process is the only rank. */
TCC_RARE tcc_status tcc_collective_place(const tcc_comm *comm, int32_t *out_rank, int32_t *out_ranks);
/* Keeps the comm in memory until tcc_collective_drop.  If the comm is closed meanwhile, it refuses
 * all calls. */
tcc_status tcc_collective_keep(tcc_comm *comm);
void tcc_collective_drop(tcc_comm *comm);
/* Returns the process's comm, or NULL.  The comm is kept for the caller, because another thread may
 * close it and open a new one. */
tcc_comm *tcc_collective_shared(void);
/* Aborts the comm with the calling thread's message, so that no other rank waits for this one. */
TCC_RARE void tcc_collective_leave(tcc_comm *comm);
/* Compares this rank's plan with the other ranks' plans, once per model and comm, and finds the
 * comms of the model's groups of ranks.
 * Where `comm` lacks such a comm it makes it together with all its ranks; a failure aborts
 * `comm`. */
tcc_status tcc_collective_groups(tcc_instance *instance, tcc_comm *comm);
/* Notes that the model is closed: the next model compares its plan again. */
void tcc_collective_forget(void);
/* Finds the comm of a run of a model with collectives.  Fails where the comm does not suit the
 * model. */
tcc_status tcc_collective_begin(tcc_run *run);
/* Ends the run's use of its comm. */
void tcc_collective_end(tcc_run *run);
/* Returns the comm's failure.  The message names the rank that failed, and the group unless `group`
 * is -1. */
tcc_status tcc_collective_failed(const tcc_run *run, int64_t group, tcc_status status) TCC_COLD;
/* Revokes the comm of a run that failed, if it has a comm: the other ranks are no longer in step
 * with the run. */
void tcc_collective_abort(const tcc_run *run);
/* A collective in progress.  The comm counts its tickets upwards; ticket 0 means that no collective
 * is in progress. */
typedef struct tcc_flight {
    uint64_t ticket;
    int64_t group; /* the group whose comm carries it out; -1: the run's comm */
    const char *send, *receive;
} tcc_flight;
/* Finds symmetric memory of `memory->size` bytes and stores its address in `memory`.  The memory
 * comes from the comm of the only group, if all collectives are of that group, else from the run's
 * comm, which the run keeps.  Fails with TCC_UNSUPPORTED where the comm has no such memory. */
tcc_status tcc_collective_memory(tcc_run *run, tcc_span *memory);
/* Starts a collective.  All earlier launches must be done. */
tcc_status tcc_collective_start(tcc_run *run, const tcc_code *code);
tcc_status tcc_collective_wait(tcc_run *run, const tcc_code *code);
tcc_status tcc_collective_none(const tcc_run *run); /* TCC_INTERNAL: a collective is in progress
                                                       when the run ends */
/* Fails where a collective in progress has a buffer in this memory. */
tcc_status tcc_collective_spares(const tcc_run *run, const tcc_span *memory);
int32_t tcc_collective_rank(const tcc_run *run); /* returns this process's rank in the run's comm */

#endif
