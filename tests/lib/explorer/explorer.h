/* An explorer of the executions that C11's memory model allows for the code of the runtime's
 * workers.
 *
 * The sources under test are compiled with -fsanitize=thread, which turns every access to memory
 * into a call; hooks.c defines these calls. Threads are coroutines of one process (search.c).
 * memory.c decides which values an atomic access may see, and whether two plain accesses race.
 * scenarios.c has small uses of the workers and their invariants. */
#ifndef EXPLORER_H
#define EXPLORER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_THREADS = 6, MOST_PLACES = 64 };

/* A thread's knowledge: the time of the oldest message of each place that it may still read, and
 * the last step of each thread that happened before. */
typedef struct view {
    uint32_t times[MOST_PLACES];
    uint32_t steps[MOST_THREADS];
} view;

typedef struct knowledge {
    view now;      /* the events before the thread's next step */
    view acquired; /* also those after an acquire fence */
    view released; /* the events before the last release fence */
} knowledge;

/* ---- memory.c: an operational form of C11's model ------------------------------------------------- */

/* Registers the watched memory, which holds all atomic objects and the plain objects under test. */
void memory_watch(void *start, size_t bytes);
bool memory_is_watched(const volatile void *at);
void memory_begin(void); /* Begins a new execution. */
uint64_t memory_hash(void);

uint64_t memory_load(volatile void *at, int bytes, int order);
void memory_store(volatile void *at, int bytes, uint64_t value, int order);
typedef uint64_t (*change)(uint64_t old, uint64_t operand);
uint64_t memory_change(volatile void *at, int bytes, change how, uint64_t operand, int order);
bool memory_exchange_if(volatile void *at, int bytes, uint64_t *expected, uint64_t value, int order,
                        int failure_order);
void memory_fence(int order);
void memory_plain(const volatile void *at, int bytes, bool write);
/* Returns the newest value, which is the value that the kernel sees. */
uint64_t memory_newest(volatile void *at, int bytes);

/* ---- search.c: threads, choices, executions --------------------------------------------------------- */

bool is_inside(void); /* Returns true inside of an execution. */
int current_thread(void);
knowledge *current_knowledge(void);
/* Adds an event to the current thread's history; returns a hash of the history. */
uint64_t remember(uint64_t number);
/* Marks a step that other threads can see: another thread may run first. */
void before_step(void);
/* Notes that the current thread has learned or done something, so that its next look is not idle. */
void note_progress(void);
/* Notes a message of the current thread, for which other threads may be waiting. */
void note_message(void);
/* Returns 0 to count - 1; a choice other than 0 costs one of the execution's deviations. */
int choose(int count);
void start_thread(void *(*body)(void *), void *argument);
void spin_turn(void);
void wait_at(volatile uint32_t *bell, uint32_t value);
void wake_at(volatile uint32_t *bell);
int64_t next_time(void);
void trace(const char *text, const volatile void *at, uint64_t value);
/* Checks an invariant of the current execution; prints its steps and ends the process if it fails. */
void demand(bool holds, const char *text);

/* ---- scenarios.c ------------------------------------------------------------------------------------ */

typedef struct scenario {
    const char *name;
    int callers;
    void (*caller)(int number);
    int64_t spin; /* nanoseconds; a look at the clock takes a thousand */
    int cpus;     /* the CPUs that all runs share */
} scenario;

extern const scenario scenarios[];
extern const int n_scenarios;
/* Sets the watched memory to its initial state. */
void prepare_scenarios(void);
void begin_scenario(const scenario *begun);
/* Checks the invariants after all callers have ended and the workers found nothing more to do. */
void end_scenario(void);
void print_place(const volatile void *at);

#endif
