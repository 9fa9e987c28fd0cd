/* Declares how a process finds its rank in the environment variables that launchers set
 * (launchers.c). */
#ifndef TCC_LAUNCHERS_H
#define TCC_LAUNCHERS_H

#include "runtime.h"

/* Numbers are -1 where no variable gives them. */
typedef struct tcc_launch {
    int32_t rank, size, local_rank, local_size, epoch;
    char rendezvous[201]; /* names the job; "": no variable does */
    char address[201];    /* where ranks of several hosts meet; "": at the rendezvous */
    int32_t port_offset;  /* distance from its port to a port that the launcher does not use */
} tcc_launch;

/* Reads the variables of launchers and TCC's own.  Sets `*out_match` to false where no launcher
 * gives a rank and a number of ranks.  Fails with TCC_INVALID_ARGUMENT where a variable is wrong or
 * two variables contradict; the message names both. */
tcc_status tcc_launch_read(tcc_launch *out, bool *out_match);
/* Reads the job's name and the epoch from TCC's own variables, for a process that knows its
 * rank. */
tcc_status tcc_launch_name(tcc_launch *out);
const char *tcc_variable(const char *name); /* NULL: the variable is not set, or empty */

#endif
