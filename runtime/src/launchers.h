/* launchers.c: which rank a process is, as launchers say in the environment. */
#ifndef TCC_LAUNCHERS_H
#define TCC_LAUNCHERS_H

#include "runtime.h"

/* Numbers are -1 where nothing says them. */
typedef struct tcc_launch {
    int32_t rank, size, local_rank, local_size, epoch;
    char rendezvous[201]; /* names the job; "": nothing does */
    char address[201];    /* where ranks of several hosts meet; "": at the rendezvous */
    int32_t port_offset;  /* from its port to one that the launcher does not have */
} tcc_launch;

/* What launchers and TCC's own variables say; nothing is found where no launcher says a rank and a
 * number of ranks.  TCC_INVALID_ARGUMENT: a variable is wrong, or two contradict: both are named. */
tcc_status tcc_launch_read(tcc_launch *out, bool *out_found);
/* What TCC's own variables say to a process that knows its rank: the job and the epoch. */
tcc_status tcc_launch_name(tcc_launch *out);
const char *tcc_variable(const char *name); /* NULL: it is not set, or empty */

#endif
