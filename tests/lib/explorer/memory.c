/* C11's memory model as a machine, after "A promising semantics for relaxed-memory concurrency"
 * (Kang et al., POPL 2017), without promises. So it lacks executions in which a load sees a store
 * that depends on the load, or that its own thread makes later, like RC11.
 *
 * A place is a list of messages in modification order. A load takes any message that is not older
 * than the thread's view of the place. A store puts its message anywhere behind that view. A read-
 * modify-write puts its message directly behind the message that it read, and no other message
 * comes between. An acquire joins the message's view to the thread's, a release puts the thread's
 * view into the message. Sequentially consistent accesses count as acquire and release only, so the
 * machine allows more executions. Fences are exact. A weak compare-and-swap fails only if the
 * values differ. */
#include <string.h>

#include "explorer.h"

enum { STEP = 1 << 12, MOST_MESSAGES = 4096, MOST_WATCHED = 1 << 18 };

typedef struct message {
    struct message *next; /* in modification order */
    uint64_t value, id;
    uint32_t time;
    bool is_read; /* A read-modify-write has read it; its message stays directly behind this message. */
    view seen;
} message;

typedef struct place {
    const volatile void *at;
    message *first;
    uint64_t hash;
} place;

typedef struct shadow {
    uint32_t execution;
    int32_t writer; /* -1 means no writer */
    uint32_t write, reads[MOST_THREADS];
} shadow;

static place places[MOST_PLACES];
static int n_places;
static message messages[MOST_MESSAGES];
static int n_messages;
static view fence_view; /* the view of sequentially consistent fences */
static const char *watched;
static size_t watched_bytes;
static shadow shadows[MOST_WATCHED];
static uint32_t execution;

static uint64_t mix(uint64_t a, uint64_t b) {
    a = (a ^ b) * UINT64_C(0x9E3779B97F4A7C15);
    return (a ^ a >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
}

void memory_watch(void *start, size_t bytes) {
    watched = start;
    watched_bytes = bytes;
    demand(bytes <= MOST_WATCHED, "the watched memory fits its shadow");
}

bool memory_is_watched(const volatile void *at) {
    return (uintptr_t)at - (uintptr_t)watched < watched_bytes;
}

void memory_begin(void) {
    n_places = 0;
    n_messages = 0;
    memset(&fence_view, 0, sizeof fence_view);
    execution++;
}

uint64_t memory_hash(void) {
    uint64_t hash = 0;
    for (int i = 0; i < n_places; i++) hash += places[i].hash;
    return hash;
}

static void join(view *into, const view *from) {
    for (int i = 0; i < n_places; i++)
        if (into->times[i] < from->times[i]) into->times[i] = from->times[i];
    for (int i = 0; i < MOST_THREADS; i++)
        if (into->steps[i] < from->steps[i]) into->steps[i] = from->steps[i];
}

static uint64_t raw(const volatile void *at, int bytes) {
    uint64_t value = 0;
    /* All machines that run this are little-endian. */
    memcpy(&value, (const void *)at, (size_t)bytes);
    return value;
}

static message *make_message(void) {
    demand(n_messages < MOST_MESSAGES, "an execution has room for its messages");
    message *item = &messages[n_messages++];
    *item = (message){0};
    return item;
}

static int place_of(const volatile void *at, int bytes) {
    for (int i = 0; i < n_places; i++)
        if (places[i].at == at) return i;
    demand(n_places < MOST_PLACES, "an execution has room for its places");
    message *start = make_message();
    start->value = raw(at, bytes);
    start->id = mix((uintptr_t)at, 1);
    places[n_places] = (place){at, start, 0};
    return n_places++;
}

static message *last_of(const place *where) {
    message *last = where->first;
    while (last->next) last = last->next;
    return last;
}

static bool acquires(int order) {
    return order == memory_order_acquire || order == memory_order_consume ||
           order == memory_order_acq_rel || order == memory_order_seq_cst;
}

static bool releases(int order) {
    return order == memory_order_release || order == memory_order_acq_rel ||
           order == memory_order_seq_cst;
}

static void see(int index, message *read, int order) {
    knowledge *knows = current_knowledge();
    if (read->time > knows->now.times[index]) note_progress();
    if (read->time > knows->now.times[index]) knows->now.times[index] = read->time;
    join(&knows->acquired, &read->seen);
    if (acquires(order)) join(&knows->now, &read->seen);
    join(&knows->acquired, &knows->now);
    remember(read->id);
}

/* Inserts a message behind `before`. */
static void write_behind(int index, message *before, uint64_t value, int order,
                         const message *read) {
    place *where = &places[index];
    knowledge *knows = current_knowledge();
    message *written = make_message();
    written->value = value;
    written->time = before->next ? (before->time + before->next->time) / 2 : before->time + STEP;
    demand(written->time != before->time, "there is a time between two messages");
    written->next = before->next;
    before->next = written;
    knows->now.times[index] = written->time;
    knows->now.steps[current_thread()]++;
    join(&knows->acquired, &knows->now);
    written->seen = releases(order) ? knows->now : knows->released;
    written->seen.times[index] = written->time;
    if (read) join(&written->seen, &read->seen);
    written->id = remember(mix((uintptr_t)where->at, value));
    where->hash = (uintptr_t)where->at;
    for (const message *item = where->first; item; item = item->next)
        where->hash = mix(where->hash, item->id);
    note_message();
    trace("  writes", where->at, value);
}

/* Copies the newest message to memory, for plain reads after the execution. */
static void settle_raw(int index, int bytes) {
    uint64_t newest = last_of(&places[index])->value;
    memcpy((void *)places[index].at, &newest, (size_t)bytes);
}

/* Returns a message that the thread may see and that `passes` accepts; by default the newest. */
static message *pick(int index, bool (*passes)(const message *, const uint64_t *),
                     const uint64_t *operand) {
    message *able[32];
    int count = 0;
    for (message *item = places[index].first; item; item = item->next)
        if (item->time >= current_knowledge()->now.times[index] && passes(item, operand)) {
            demand(count < 32, "a place has room for its messages");
            able[count++] = item;
        }
    return able[count - 1 - choose(count)];
}

static bool any(const message *item, const uint64_t *operand) {
    (void)item;
    (void)operand;
    return true;
}

static bool is_free(const message *item, const uint64_t *operand) {
    (void)operand;
    return !item->is_read;
}

static bool differs_or_is_free(const message *item, const uint64_t *expected) {
    return item->value != *expected || !item->is_read;
}

uint64_t memory_load(volatile void *at, int bytes, int order) {
    int index = place_of(at, bytes);
    before_step();
    message *read = pick(index, any, NULL);
    trace("  reads", at, read->value);
    see(index, read, order);
    return read->value;
}

void memory_store(volatile void *at, int bytes, uint64_t value, int order) {
    int index = place_of(at, bytes);
    before_step();
    write_behind(index, pick(index, is_free, NULL), value, order, NULL);
    settle_raw(index, bytes);
}

static uint64_t replace(int index, int bytes, message *read, uint64_t value, int order) {
    see(index, read, order);
    read->is_read = true;
    write_behind(index, read, value, order, read);
    settle_raw(index, bytes);
    return read->value;
}

uint64_t memory_change(volatile void *at, int bytes, change how, uint64_t operand, int order) {
    int index = place_of(at, bytes);
    before_step();
    message *read = pick(index, is_free, NULL);
    uint64_t mask = bytes == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * bytes) - 1;
    return replace(index, bytes, read, how(read->value, operand) & mask, order);
}

bool memory_exchange_if(volatile void *at, int bytes, uint64_t *expected, uint64_t value, int order,
                        int failure_order) {
    int index = place_of(at, bytes);
    before_step();
    message *read = pick(index, differs_or_is_free, expected);
    if (read->value == *expected) {
        replace(index, bytes, read, value, order);
        return true;
    }
    trace("  finds", at, read->value);
    see(index, read, failure_order);
    *expected = read->value;
    return false;
}

void memory_fence(int order) {
    knowledge *knows = current_knowledge();
    before_step();
    if (acquires(order)) knows->now = knows->acquired;
    if (order == memory_order_seq_cst) {
        join(&knows->now, &fence_view);
        join(&fence_view, &knows->now);
        join(&knows->acquired, &knows->now);
    }
    if (releases(order)) {
        knows->now.steps[current_thread()]++;
        knows->released = knows->now;
    }
    remember(mix((uint64_t)order, 7));
}

uint64_t memory_newest(volatile void *at, int bytes) {
    return last_of(&places[place_of(at, bytes)])->value;
}

/* Two accesses race if one is a write and neither happened before the other. */
void memory_plain(const volatile void *at, int bytes, bool write) {
    const view *now = &current_knowledge()->now;
    int self = current_thread();
    for (int i = 0; i < bytes; i++) {
        shadow *of = &shadows[(const volatile char *)at + i - watched];
        if (of->execution != execution) *of = (shadow){.execution = execution, .writer = -1};
        bool ordered = of->writer < 0 || of->writer == self || of->write <= now->steps[of->writer];
        for (int other = 0; write && other < MOST_THREADS; other++)
            if (other != self && of->reads[other] > now->steps[other]) ordered = false;
        if (!ordered) trace(write ? "  plain write" : "  plain read", at, 0);
        demand(ordered, "two plain accesses do not race");
        /* An unreleased step counts as a step that no other thread can have seen. */
        if (write) {
            of->writer = self;
            of->write = now->steps[self] + 1;
        } else {
            of->reads[self] = now->steps[self] + 1;
        }
    }
}
