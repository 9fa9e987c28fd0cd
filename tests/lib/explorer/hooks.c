/* The calls that -fsanitize=thread inserts into the code under test, and its system calls. */
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include <linux/futex.h>
#include <sys/syscall.h>

#include "explorer.h"

static uint64_t add(uint64_t old, uint64_t operand) { return old + operand; }
static uint64_t subtract(uint64_t old, uint64_t operand) { return old - operand; }
static uint64_t and(uint64_t old, uint64_t operand) { return old & operand; }
static uint64_t or(uint64_t old, uint64_t operand) { return old | operand; }
static uint64_t swap(uint64_t old, uint64_t operand) { return (void)old, operand; }

void __tsan_init(void);
void __tsan_init(void) {}
void __tsan_func_entry(void *);
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void);
void __tsan_func_exit(void) {}

#define PLAIN(bytes)                                                                               \
    void __tsan_read##bytes(void *at);                                                             \
    void __tsan_read##bytes(void *at) {                                                            \
        if (is_inside() && memory_is_watched(at)) memory_plain(at, bytes, false);                        \
    }                                                                                              \
    void __tsan_write##bytes(void *at);                                                            \
    void __tsan_write##bytes(void *at) {                                                           \
        if (is_inside() && memory_is_watched(at)) memory_plain(at, bytes, true);                         \
    }
PLAIN(1) PLAIN(2) PLAIN(4) PLAIN(8) PLAIN(16)

void __tsan_read_range(void *at, size_t bytes);
void __tsan_read_range(void *at, size_t bytes) {
    if (is_inside() && memory_is_watched(at)) memory_plain(at, (int)bytes, false);
}
void __tsan_write_range(void *at, size_t bytes);
void __tsan_write_range(void *at, size_t bytes) {
    if (is_inside() && memory_is_watched(at)) memory_plain(at, (int)bytes, true);
}

#define CHANGE(bits, name, how)                                                                    \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile void *, uint##bits##_t, int);             \
    uint##bits##_t __tsan_atomic##bits##_##name(volatile void *at, uint##bits##_t operand, int o) {\
        if (is_inside()) return (uint##bits##_t)memory_change(at, bits / 8, how, operand, o);            \
        uint##bits##_t old = *(volatile uint##bits##_t *)at;                                       \
        *(volatile uint##bits##_t *)at = (uint##bits##_t)how(old, operand);                        \
        return old;                                                                                \
    }
#define EXCHANGE_IF(bits, name)                                                                    \
    int __tsan_atomic##bits##_##name(volatile void *, uint##bits##_t *, uint##bits##_t, int, int); \
    int __tsan_atomic##bits##_##name(volatile void *at, uint##bits##_t *expected,                  \
                                     uint##bits##_t value, int o, int failure) {                   \
        uint64_t compared = *expected;                                                             \
        bool same = is_inside() ? memory_exchange_if(at, bits / 8, &compared, value, o, failure)         \
                          : *(volatile uint##bits##_t *)at == compared;                            \
        if (same && !is_inside()) *(volatile uint##bits##_t *)at = value;                                \
        if (!same) *expected = is_inside() ? (uint##bits##_t)compared : *(volatile uint##bits##_t *)at;  \
        return same;                                                                               \
    }
#define ATOMIC(bits)                                                                               \
    uint##bits##_t __tsan_atomic##bits##_load(volatile void *at, int o);                           \
    uint##bits##_t __tsan_atomic##bits##_load(volatile void *at, int o) {                          \
        return is_inside() ? (uint##bits##_t)memory_load(at, bits / 8, o)                                \
                     : *(volatile uint##bits##_t *)at;                                             \
    }                                                                                              \
    void __tsan_atomic##bits##_store(volatile void *at, uint##bits##_t value, int o);              \
    void __tsan_atomic##bits##_store(volatile void *at, uint##bits##_t value, int o) {             \
        if (is_inside()) memory_store(at, bits / 8, value, o);                                           \
        else *(volatile uint##bits##_t *)at = value;                                               \
    }                                                                                              \
    CHANGE(bits, fetch_add, add) CHANGE(bits, fetch_sub, subtract) CHANGE(bits, fetch_or, or)      \
    CHANGE(bits, fetch_and, and) CHANGE(bits, exchange, swap)                                      \
    EXCHANGE_IF(bits, compare_exchange_strong) EXCHANGE_IF(bits, compare_exchange_weak)
ATOMIC(8) ATOMIC(16) ATOMIC(32) ATOMIC(64)

void __tsan_atomic_thread_fence(int o);
void __tsan_atomic_thread_fence(int o) {
    if (is_inside()) memory_fence(o);
}

/* ---- system calls: the code under test is compiled with these names
 * ------------------------------------ */

int explorer_create(pthread_t *out, const pthread_attr_t *how, void *(*body)(void *), void *with);
int explorer_create(pthread_t *out, const pthread_attr_t *how, void *(*body)(void *), void *with) {
    (void)out;
    (void)how;
    start_thread(body, with);
    return 0;
}

int explorer_sigmask(int how, const void *set, void *old);
int explorer_sigmask(int how, const void *set, void *old) { return (void)how, (void)set, (void)old, 0; }

void explorer_free(void *at);
void explorer_free(void *at) {
    if (!memory_is_watched(at)) free(at); /* every execution clears the scenarios' memory */
}

int explorer_clock(int clock, struct timespec *out);
int explorer_clock(int clock, struct timespec *out) {
    (void)clock;
    *out = (struct timespec){0, next_time()};
    return 0;
}

long explorer_syscall(long number, ...);
long explorer_syscall(long number, ...) {
    va_list arguments;
    va_start(arguments, number);
    volatile uint32_t *bell = va_arg(arguments, volatile uint32_t *);
    int operation = va_arg(arguments, int);
    uint32_t value = va_arg(arguments, uint32_t);
    va_end(arguments);
    if (number == SYS_gettid) return 0;
    demand(number == SYS_futex, "the system calls are futex and gettid");
    if (operation == FUTEX_WAIT_PRIVATE) wait_at(bell, value);
    else wake_at(bell);
    return 0;
}
