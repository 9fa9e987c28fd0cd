/* An explorer of the executions that C11's memory model allows for the code of the runtime's workers.
 *
 * The sources under test are compiled with -fsanitize=thread, which turns every access to memory
 * into a call; here these calls are the explorer's (hooks.c).  Threads are coroutines of one process
 * (search.c).  memory.c decides which values an atomic access may see and whether two plain accesses
 * race.  scenarios.c has small uses of the workers and what must hold of them. */
#ifndef EXPLORER_H
#define EXPLORER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_THREADS = 6, MOST_PLACES = 64 };

/* What a thread knows: of each place the time of the newest message that it may not look behind, and
 * of each thread the last of its steps that happened before. */
typedef struct view {
    uint32_t times[MOST_PLACES];
    uint32_t steps[MOST_THREADS];
} view;

typedef struct knowledge {
    view now;      /* what has happened before the thread's next step */
    view acquired; /* and after an acquire fence */
    view released; /* at the last release fence */
} knowledge;

/* ---- memory.c: an operational form of C11's model ------------------------------------------------- */

/* The memory that is watched: all atomic objects, and plain ones, lie in it. */
void memory_watch(void *start, size_t bytes);
bool memory_is_watched(const volatile void *at);
void memory_begin(void); /* a new execution */
uint64_t memory_hash(void);

uint64_t memory_load(volatile void *at, int bytes, int order);
void memory_store(volatile void *at, int bytes, uint64_t value, int order);
typedef uint64_t (*change)(uint64_t old, uint64_t operand);
uint64_t memory_change(volatile void *at, int bytes, change how, uint64_t operand, int order);
bool memory_exchange_if(volatile void *at, int bytes, uint64_t *expected, uint64_t value, int order,
                        int failure_order);
void memory_fence(int order);
void memory_plain(const volatile void *at, int bytes, bool write);
/* The newest value, which is the one that the kernel sees. */
uint64_t memory_newest(volatile void *at, int bytes);

/* ---- search.c: threads, choices, executions --------------------------------------------------------- */

bool is_inside(void); /* of an execution */
int current_thread(void);
knowledge *current_knowledge(void);
/* Adds something to what the current thread has done; returns a number for all of that. */
uint64_t remember(uint64_t what);
/* A step that others can see: another thread may come first. */
void before_step(void);
/* The current thread learned or did something, so that looking again is no idle turn. */
void note_progress(void);
/* Others may have been waiting for the current thread's message. */
void note_message(void);
/* 0 to count - 1; all but 0 take one from the execution's budget of deviations. */
int choose(int count);
void start_thread(void *(*body)(void *), void *argument);
void spin_turn(void);
void wait_at(volatile uint32_t *bell, uint32_t value);
void wake_at(volatile uint32_t *bell);
int64_t next_time(void);
void trace(const char *what, const volatile void *at, uint64_t value);
/* What must hold, of the execution in progress; prints its steps and ends the process if not. */
void demand(bool holds, const char *what);

/* ---- scenarios.c ------------------------------------------------------------------------------------ */

typedef struct scenario {
    const char *name;
    int callers;
    void (*caller)(int number);
    int64_t spin; /* nanoseconds, of which a look at the clock takes a thousand */
    int cpus;     /* that all runs share */
} scenario;

extern const scenario scenarios[];
extern const int n_scenarios;
/* The watched memory as an execution finds it. */
void prepare_scenarios(void);
void begin_scenario(const scenario *which);
/* What must hold when all callers have ended and the workers found nothing more to do. */
void end_scenario(void);
void print_place(const volatile void *at);

#endif
