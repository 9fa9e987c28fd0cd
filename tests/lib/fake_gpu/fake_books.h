/* The fake driver's state: its settings, its log, and the memory of its device. */
#ifndef FAKE_BOOKS_H
#define FAKE_BOOKS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define TAG UINT64_C(0x5A00000000000000)
#define TAG_MASK UINT64_C(0xFFFF800000000000) /* enough bits to differ from a kernel's random seed */
enum { INVALID_VALUE = 1, NO_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_IMAGE = 200,
       NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, CAPTURE_FORBIDS = 900, UNJOINED = 904, NOT_OF_CAPTURE = 905,
       CAPTURED_EVENT = 907 };

/* ---- settings and log -------------------------------------------------------------------------- */

static struct {
    char log[1 << 18];
    size_t used;
    char fail_name[64];
    int fail_after, fail_error;
    int major, minor, devices, shared, pools;
    char arch[64];
    size_t total, allocated, max_allocated;
    int contexts, pushed, processors, version;
    int modules, streams, events, graphs, executables, hosts, current, retained;
    /* at the start: fork a helper process, or wait for a byte from this file (0: none) */
    int forks, held_by;
} the = {.processors = 2, .version = 12040, .major = 9, .devices = 2, .shared = 232448, .pools = 1, .arch = "gfx942:sramecc+:xnack-",
         .total = 1 << 30};

EXPORT const char *fake_log(void) { return the.log; }
EXPORT void fake_clear(void) { the.used = 0; the.log[0] = 0; }
EXPORT void fake_device(int major, int minor, const char *arch, size_t total, int shared, int pools,
                        int devices) {
    the.major = major, the.minor = minor, the.total = total, the.shared = shared;
    the.pools = pools, the.devices = devices;
    strncpy(the.arch, arch, sizeof the.arch - 1);
}
EXPORT void fake_fail(const char *name, int nth, int error) {
    strncpy(the.fail_name, name, sizeof the.fail_name - 1);
    the.fail_after = nth;
    the.fail_error = error;
}
EXPORT void fake_start(int forks, int held_by) { the.forks = forks, the.held_by = held_by; }
EXPORT size_t fake_max_allocated(void) { return the.max_allocated; }

typedef struct allocation {
    struct allocation *next;
    char *memory;
    size_t bytes;
} allocation;
static allocation *allocations;

EXPORT void fake_live(char *text, size_t room) {
    int arrays = 0;
    for (allocation *a = allocations; a; a = a->next) arrays++;
    snprintf(text, room,
             "arrays=%d modules=%d streams=%d events=%d graphs=%d executables=%d hosts=%d "
             "contexts=%d pushed=%d",
             arrays, the.modules, the.streams, the.events, the.graphs, the.executables, the.hosts,
             the.contexts, the.pushed);
}

/* Logs a call, and returns the error with which it must fail. */
__attribute__((format(printf, 2, 3))) static int called(const char *name, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int n = snprintf(the.log + the.used, sizeof the.log - the.used, "%s %s\n", name, text);
    if (the.used + (size_t)n < sizeof the.log) the.used += (size_t)n;
    if (the.fail_after > 0 && !strcmp(name, the.fail_name) && --the.fail_after == 0)
        return the.fail_error;
    return 0;
}

#define CALLED(...)                                                                                \
    do {                                                                                           \
        int error_of_call = called(__func__, __VA_ARGS__);                                         \
        if (error_of_call) return error_of_call;                                                   \
    } while (0)

/* ---- memory ---------------------------------------------------------------------------------------- */

static bool is_tagged(uint64_t address) { return (address & TAG_MASK) == TAG; }
static char *real(uint64_t address) { return (char *)(address & ~TAG_MASK); }

static bool is_live(uint64_t address, size_t bytes) {
    if (!is_tagged(address)) return false;
    for (allocation *a = allocations; a; a = a->next)
        if (real(address) >= a->memory && real(address) + bytes <= a->memory + a->bytes) return true;
    return false;
}

static int take(void **out, size_t bytes) {
    if (bytes == 0) return INVALID_VALUE;
    if (the.allocated + bytes > the.total) return NO_MEMORY;
    allocation *record = malloc(sizeof *record);
    record->memory = aligned_alloc(512, (bytes + 511) / 512 * 512);
    memset(record->memory, 0xA5, bytes); /* so that no code can rely on zeros */
    record->bytes = bytes;
    record->next = allocations;
    allocations = record;
    the.allocated += bytes;
    if (the.allocated > the.max_allocated) the.max_allocated = the.allocated;
    *out = (void *)((uint64_t)(uintptr_t)record->memory | TAG);
    return 0;
}

static int give(void *address) {
    for (allocation **a = &allocations; *a; a = &(*a)->next) {
        allocation *record = *a;
        if (record->memory != real((uint64_t)address)) continue;
        *a = record->next;
        the.allocated -= record->bytes;
        free(record->memory);
        free(record);
        return 0;
    }
    return INVALID_VALUE;
}

#endif
