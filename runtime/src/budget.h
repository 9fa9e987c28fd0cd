/* Declares budgets: how many bytes a process, an instance or a pool may take (budget.c), and how
 * many bytes the system has left for them (groups.c). */
#ifndef TCC_BUDGET_H
#define TCC_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tcc.h"

#define TCC_BUDGET __attribute__((cold)) /* rare: compiled for its size */

/* Counts the bytes in use within one limit.  Every take also counts in the budget around it.  The
 * outermost budget is the process's.  It may add three quarters of the memory that the machine and
 * the control groups have left; it asks the system at each take, except that some megabytes may be
 * taken between two answers.  Any number of threads may use a budget. */
typedef struct tcc_budget {
    size_t limit; /* 0: no limit of its own */
    size_t used, peak;
    struct tcc_budget *parent; /* NULL: the parent is the process's budget */
    const char *name, *source; /* for messages: the budget's owner, and who set the limit */
    size_t absent; /* process only: bytes of `used` that may have no pages yet */
    size_t unseen; /* process only: bytes that may be taken before the system is asked again */
} tcc_budget;

/* Takes `bytes` bytes.  Returns false, and takes nothing, where a limit is reached.  Bytes that are
 * taken count as absent (without pages) until tcc_budget_settle. */
TCC_BUDGET bool tcc_budget_take(tcc_budget *budget, size_t bytes);
/* Gives back `bytes` bytes.  They must be settled. */
TCC_BUDGET void tcc_budget_give(tcc_budget *budget, size_t bytes);
/* Notes that `bytes` of the bytes in use have pages now (settle), or may have lost their pages
 * (expect). */
TCC_BUDGET void tcc_budget_settle(tcc_budget *budget, size_t bytes);
TCC_BUDGET void tcc_budget_expect(tcc_budget *budget, size_t bytes);
size_t tcc_budget_used(const tcc_budget *budget);
/* Returns how many bytes a take may ask for now. */
TCC_BUDGET size_t tcc_budget_left(const tcc_budget *budget);
/* Returns TCC_OUT_OF_MEMORY, and sets the reason why a budget or the system refused `bytes` more
 * bytes. */
TCC_BUDGET tcc_status tcc_budget_refuse(const tcc_budget *budget, size_t bytes);
/* Returns the budget that all artifacts of the process share. */
tcc_budget *tcc_process_budget(void);

/* Describes the machine or the control group that has the fewest bytes left.  `remaining` is its limit
 * minus the bytes that it uses; pages of files that the system can take back count as left. */
typedef struct tcc_room {
    int64_t remaining, limit, used;
    const char *holder; /* for messages: the machine's or the group's name */
} tcc_room;
TCC_BUDGET void tcc_memory_room(tcc_room *out);

#endif
