/* How many bytes a process, an instance or a pool may take (budget.c), and what the system has left for
 * them (groups.c). */
#ifndef TCC_BUDGET_H
#define TCC_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tcc.h"

#define TCC_BUDGET __attribute__((cold)) /* rare: compiled for its size */

/* Bytes in use within a limit, and within the budget around it.  The outermost is the process's, which
 * may add three quarters of what the machine and the control groups have left: it asks the system at
 * each take, but for some megabytes between two answers.  For any number of threads. */
typedef struct tcc_budget {
    size_t limit; /* 0: none of its own */
    size_t used, most;
    struct tcc_budget *parent; /* NULL: the process's */
    const char *name, *source; /* in messages: whose it is, and who set the limit */
    size_t absent; /* of the process: bytes of `used` that may have no pages yet */
    size_t unseen; /* of the process: bytes that may be taken before the system is asked again */
} tcc_budget;

/* False, and nothing is taken, where a limit is reached.  What is taken is absent until it is settled. */
TCC_BUDGET bool tcc_budget_take(tcc_budget *budget, size_t bytes);
/* What is given back was settled before. */
TCC_BUDGET void tcc_budget_give(tcc_budget *budget, size_t bytes);
/* So many of the bytes in use have pages now; or may have lost theirs. */
TCC_BUDGET void tcc_budget_settle(tcc_budget *budget, size_t bytes);
TCC_BUDGET void tcc_budget_expect(tcc_budget *budget, size_t bytes);
size_t tcc_budget_used(const tcc_budget *budget);
/* Bytes that a take may ask for now. */
TCC_BUDGET size_t tcc_budget_left(const tcc_budget *budget);
/* TCC_OUT_OF_MEMORY and the reason why `bytes` more were refused, by a budget or by the system. */
TCC_BUDGET tcc_status tcc_budget_refuse(const tcc_budget *budget, size_t bytes);
/* That of all artifacts of the process. */
tcc_budget *tcc_process_budget(void);

/* Bytes that the machine or the control group which has fewest left can still give: its limit without
 * what it uses, with the pages of files that the system takes back where memory is short. */
typedef struct tcc_room {
    int64_t left, limit, used;
    const char *whose; /* in messages */
} tcc_room;
TCC_BUDGET void tcc_memory_room(tcc_room *out);

#endif
