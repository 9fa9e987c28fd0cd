/* Threads as coroutines, and all executions within a budget of deviations.
 *
 * Without deviations, an execution runs one thread until it is idle, then the next thread, and
 * every load sees the newest message. A deviation is a switch to another thread before a step, a
 * load of an older message, a store behind newer messages, or a spurious wake-up. The search runs
 * every execution with at most `budget` deviations: it runs again from the start with one choice
 * changed (as in "Bounding delays in concurrency testing", Emmi et al., POPL 2011). A thread's
 * actions follow from what it has seen. So an execution is cut off if all threads have seen, and
 * all places hold, the same as in an earlier execution that had at least as much budget left.
 *
 * Arguments: scenario, budget, and the number of bits of an index into the table of states. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "explorer.h"

enum {
    STACK = 1 << 16,
    MOST_CHOICES = 1 << 14,
    MOST_TRACE = 1 << 13,
    MOST_TURNS = 200, /* turns of idle threads without a write */
    LAST_TURNS = 6,   /* turns of idle workers after the callers have ended */
};

typedef enum { READY, IDLE, WAITS, ENDED } condition;

typedef struct thread {
    condition is;
    bool progress; /* since the last turn of the thread's loop */
    volatile uint32_t *bell;
    void *(*body)(void *);
    void *argument;
    uint64_t history;
    knowledge knows;
    ucontext_t context;
    char *stack;
} thread;

typedef struct option {
    uint16_t choice, count, spent; /* `spent` is the number of deviations before this choice */
} option;

typedef struct event {
    int thread;
    const char *text;
    const volatile void *at;
    uint64_t value;
} event;

static thread threads[MOST_THREADS];
static int n_threads, n_callers, running, turns_left;
static int order[MOST_THREADS]; /* the order in which threads run when the running thread is idle */
static ucontext_t outside;
static option options[MOST_CHOICES];
static int n_options, depth, budget, spent;
/* indexed by the state's low bits */
static struct { uint64_t state; uint16_t spent; bool used; } *table;
static uint64_t table_size;
static event events[MOST_TRACE];
static int n_events;
static int64_t clock_time;
static uint64_t executions, states;
static bool inside;

static uint64_t mix(uint64_t a, uint64_t b) {
    a = (a ^ b ^ a >> 31) * UINT64_C(0xD6E8FEB86659FD93);
    return (a ^ a >> 32) * UINT64_C(0x9E3779B97F4A7C15);
}

bool is_inside(void) { return inside; }
int current_thread(void) { return running; }
knowledge *current_knowledge(void) { return &threads[running].knows; }
void note_progress(void) { threads[running].progress = true; }
uint64_t remember(uint64_t number) {
    return threads[running].history = mix(threads[running].history, number);
}

void trace(const char *text, const volatile void *at, uint64_t value) {
    if (inside && n_events < MOST_TRACE) events[n_events++] = (event){running, text, at, value};
}

void demand(bool holds, const char *text) {
    if (holds) return;
    for (int i = 0; i < n_events; i++) {
        printf("thread %d %s ", events[i].thread, events[i].text);
        if (events[i].at) print_place(events[i].at);
        printf(" %#llx\n", (unsigned long long)events[i].value);
    }
    printf("thread %d: does not hold: %s\nafter %llu executions, %d deviations\n", running, text,
           (unsigned long long)executions, spent);
    fflush(stdout);
    _Exit(1);
}

/* ---- choices ---------------------------------------------------------------------------------------- */

static uint64_t state_now(void) {
    uint64_t state = mix(memory_hash(), (uint64_t)running + ((uint64_t)clock_time << 8));
    for (int i = 0; i < n_threads; i++) {
        const thread *state_of = &threads[i];
        state += mix(mix(state_of->history, (uint64_t)i),
                     (uint64_t)order[i] << 8 | (uint64_t)state_of->is << 1 | state_of->progress);
    }
    return mix(state, (uint64_t)turns_left);
}

/* Returns true if an earlier execution was in this state with at least as much budget left. */
static bool was_here(void) {
    uint64_t state = state_now();
    for (uint64_t i = state; ; i++) {
        if (!table[i % table_size].used) {
            if (states < table_size / 2) {
                table[i % table_size].used = true;
                table[i % table_size].state = state;
                table[i % table_size].spent = (uint16_t)spent;
                states++;
            }
            return false;
        }
        if (table[i % table_size].state != state) continue;
        if (table[i % table_size].spent <= spent) return true;
        table[i % table_size].spent = (uint16_t)spent;
        return false;
    }
}

static void end_execution(void) { setcontext(&outside); }

int choose(int count) {
    if (count <= 1 || spent >= budget) return 0;
    if (depth == n_options) {
        demand(n_options < MOST_CHOICES, "an execution has room for its choices");
        options[n_options++] = (option){0, (uint16_t)count, (uint16_t)spent};
    }
    demand(options[depth].count == count, "an execution repeats itself");
    int choice = options[depth++].choice;
    spent += choice > 0;
    return choice;
}

/* ---- threads ----------------------------------------------------------------------------------------- */

static void to_front(int number) {
    int place = 0;
    while (order[place] != number) place++;
    memmove(order + 1, order, (size_t)place * sizeof *order);
    order[0] = number;
}

static void run_thread(int number) {
    int before = running;
    if (number == before) return;
    running = number;
    swapcontext(&threads[before].context, &threads[number].context);
}

/* Runs the first thread that can run, because the current thread cannot. If all threads are idle,
 * they take another turn. The execution ends when the callers have ended and the workers found
 * nothing to do. */
static void run_next(void) {
    for (;;) {
        bool idle = false, callers = false;
        for (int i = 0; i < n_threads; i++) {
            if (threads[order[i]].is == READY) {
                run_thread(order[i]);
                return;
            }
            idle |= threads[i].is == IDLE;
            callers |= i < n_callers && threads[i].is != ENDED;
        }
        if (!callers && (!idle || turns_left < MOST_TURNS - LAST_TURNS)) end_execution();
        demand(idle, "a caller goes on: all threads wait");
        demand(turns_left-- > 0, "a caller goes on: all threads only look");
        for (int i = 0; i < n_threads; i++)
            if (threads[i].is == IDLE) threads[i].is = READY;
    }
}

void before_step(void) {
    if (depth == n_options && was_here()) end_execution();
    int able[MOST_THREADS], count = 1;
    able[0] = running;
    for (int i = 0; i < n_threads; i++) {
        condition is = threads[order[i]].is;
        if (order[i] != running && (is == READY || is == WAITS)) able[count++] = order[i];
    }
    int number = able[choose(count)];
    if (number == running) return;
    trace("is passed", NULL, (uint64_t)number);
    threads[number].is = READY;
    to_front(number);
    run_thread(number);
}

void note_message(void) {
    threads[running].progress = true;
    turns_left = MOST_TURNS;
    for (int i = 0; i < n_threads; i++)
        if (threads[i].is == IDLE) threads[i].is = READY;
}

void spin_turn(void) {
    bool progress = threads[running].progress;
    threads[running].progress = false;
    if (progress) return;
    threads[running].is = IDLE;
    run_next();
}

void wait_at(volatile uint32_t *bell, uint32_t value) {
    before_step();
    if (memory_newest(bell, 4) != value) return;
    trace("waits at", bell, value);
    remember(value);
    threads[running].is = WAITS;
    threads[running].bell = bell;
    run_next();
}

void wake_at(volatile uint32_t *bell) {
    before_step();
    for (int i = 0; i < n_threads; i++)
        if (threads[i].is == WAITS && threads[i].bell == bell) threads[i].is = READY;
}

int64_t next_time(void) {
    clock_time += 1000;
    remember((uint64_t)clock_time);
    return clock_time;
}

static void body_of_thread(void) {
    thread *self = &threads[running];
    self->body(self->argument);
    self = &threads[running];
    self->is = ENDED;
    note_message();
    run_next();
}

void start_thread(void *(*body)(void *), void *argument) {
    demand(n_threads < MOST_THREADS, "an execution has room for its threads");
    int number = n_threads++;
    thread *started = &threads[number];
    if (!started->stack) started->stack = malloc(STACK);
    started->is = READY;
    started->progress = true;
    started->body = body;
    started->argument = argument;
    started->history = 1;
    memset(&started->knows, 0, sizeof started->knows);
    if (inside) {
        current_knowledge()->now.steps[running]++;
        started->knows.now = started->knows.acquired = current_knowledge()->now;
        started->history = remember(3);
    }
    order[number] = number;
    getcontext(&started->context);
    started->context.uc_stack.ss_sp = started->stack;
    started->context.uc_stack.ss_size = STACK;
    started->context.uc_link = NULL;
    makecontext(&started->context, body_of_thread, 0);
}

/* ---- executions --------------------------------------------------------------------------------------- */

static const scenario *the_scenario;

static void *caller(void *number) {
    the_scenario->caller((int)(intptr_t)number);
    return NULL;
}

static void execute(void) {
    executions++;
    n_threads = depth = spent = n_events = 0;
    clock_time = 0;
    turns_left = MOST_TURNS;
    memory_begin();
    begin_scenario(the_scenario);
    for (int i = 0; i < the_scenario->callers; i++) start_thread(caller, (void *)(intptr_t)i);
    volatile bool started = false;
    getcontext(&outside);
    if (!started) {
        started = true;
        inside = true;
        running = 0;
        setcontext(&threads[0].context);
    }
    inside = false;
}

static bool callers_ended(void) {
    for (int i = 0; i < n_callers; i++)
        if (threads[i].is != ENDED) return false;
    return true;
}

static void explore(void) {
    memset(table, 0, table_size * sizeof *table);
    executions = states = 0;
    n_callers = the_scenario->callers;
    n_options = 0;
    do {
        execute();
        if (callers_ended()) end_scenario(); /* otherwise it was cut off */
        while (n_options && options[n_options - 1].choice + 1 == options[n_options - 1].count)
            n_options--;
        if (n_options) options[n_options - 1].choice++;
    } while (n_options);
    printf("%s, %d deviations: %llu executions, %llu states\n", the_scenario->name, budget,
           (unsigned long long)executions, (unsigned long long)states);
    fflush(stdout);
}

static void note_signal(int signal) {
    (void)signal;
    demand(false, "pointers are seen with what they point to");
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    signal(SIGSEGV, note_signal);
    table_size = UINT64_C(1) << atoi(argv[3]);
    table = malloc(table_size * sizeof *table);
    prepare_scenarios();
    for (int i = 0; i < n_scenarios; i++) {
        the_scenario = &scenarios[i];
        if (strcmp(argv[1], the_scenario->name) != 0) continue;
        for (budget = 0; budget <= atoi(argv[2]); budget++) explore();
        return 0;
    }
    return 2;
}
