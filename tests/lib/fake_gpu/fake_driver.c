/* A GPU driver without a GPU: libcuda.so.1, or libamdhip64.so.6 with -DHIP.
 *
 * Device memory belongs to this process, but its addresses carry a tag that makes them invalid on
 * the host, and every range is checked against the allocations. Work on a stream runs only when
 * somebody waits for it, so that a forgotten wait shows. An image names the library of its kernels
 * (text after "FAKE:"); a kernel is a C function of that library. Every call is logged. A test can
 * make the n-th call of a function fail. An emulator can take images and launches instead:
 * fake_emulator.h. */
#define _GNU_SOURCE
#include "fake_books.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- work ------------------------------------------------------------------------------------------ */

enum { TO_DEVICE, TO_HOST, ON_DEVICE, FILL, LAUNCH, WAIT, GIVE, GUEST, GRAPH };
typedef void (*kernel)(void **params, unsigned grid, unsigned threads);
#include "fake_emulator.h"
typedef struct function {
    struct function *next;
    kernel code;
    char name[64];
    int shared, params;
    unsigned maps; /* a bit for each parameter that is a tensor map */
    long emulated; /* the emulator's number; 0 means that `code` is a C function */
} function;
typedef struct work {
    struct work *next;
    int kind;
    uint64_t target, source;
    size_t bytes;
    unsigned grid, threads;
    function *code;
    uint64_t values[64];
    long emulated; /* the emulator's number of a launch */
    struct stream *stream; /* the stream to wait for */
    long until;
    struct work *list;
    int (*guest)(void *of); /* work of another library; `drop` is called when a graph loses it */
    void (*drop)(void *of);
    void *of;
} work;
typedef struct stream {
    work *first, **last;
    long done, queued;
    bool capturing;
    int number;
    int error;
    struct stream *origin; /* the capturing stream that this stream has joined */
    long joined, added;    /* the work added since, and the part that the origin has waited for */
} stream;
typedef struct event { stream *stream; long at; bool captured; } event;
static stream legacy = {.last = &legacy.first};
static stream *all[256] = {&legacy};

static stream *stream_of(void *handle) { return handle ? handle : &legacy; }
static int number_of(void *handle) { return handle ? ((stream *)handle)->number : 0; }
static void run_until(stream *stream, long until);

static int perform_launch(work *item) {
    if (item->emulated) return emulator.perform(item->emulated);
    void *params[64];
    uint64_t values[64];
    for (int i = 0; i < item->code->params; i++) {
        values[i] = item->values[i];
        if (is_tagged(values[i])) {
            if (!is_live(values[i], 1)) return ILLEGAL_ADDRESS;
            values[i] &= ~TAG_MASK;
        }
        params[i] = &values[i];
    }
    item->code->code(params, item->grid, item->threads);
    return 0;
}

static int perform(work *item) {
    bool target = is_live(item->target, item->bytes), source = is_live(item->source, item->bytes);
    switch (item->kind) {
    case TO_DEVICE:
        if (!target || is_tagged(item->source)) return ILLEGAL_ADDRESS;
        memcpy(real(item->target), (void *)item->source, item->bytes);
        return 0;
    case TO_HOST:
        if (!source || is_tagged(item->target)) return ILLEGAL_ADDRESS;
        memcpy((void *)item->target, real(item->source), item->bytes);
        return 0;
    case ON_DEVICE:
        if (!target || !source) return ILLEGAL_ADDRESS;
        memcpy(real(item->target), real(item->source), item->bytes);
        return 0;
    case FILL:
        if (!target) return ILLEGAL_ADDRESS;
        memset(real(item->target), (int)item->source, item->bytes);
        return 0;
    case LAUNCH: return perform_launch(item);
    case WAIT: run_until(item->stream, item->until); return 0;
    case GIVE: return give((void *)item->target);
    case GUEST: return item->guest(item->of);
    default:
        for (work *part = item->list; part; part = part->next) {
            int error = perform(part);
            if (error) return error;
        }
        return 0;
    }
}

static void run_until(stream *stream, long until) {
    while (stream->first && stream->done < until) {
        work *item = stream->first;
        stream->first = item->next;
        if (!stream->first) stream->last = &stream->first;
        stream->done++;
        if (!stream->error) stream->error = perform(item);
        free(item);
    }
}

/* While a stream is captured, memory cannot be allocated or freed, and waits are forbidden. */
static bool is_capturing(void) {
    for (int i = 0; i < 256; i++)
        if (all[i] && all[i]->capturing) return true;
    return false;
}
#define NOT_IN_CAPTURE                                                                             \
    if (is_capturing()) return CAPTURE_FORBIDS

static void run_all(void) {
    for (int i = 0; i < 256; i++)
        if (all[i]) run_until(all[i], all[i]->queued);
}

static int add(void *handle, work item) {
    stream *stream = stream_of(handle);
    work *queued = malloc(sizeof *queued);
    stream->added++;
    if (stream->origin) stream = stream->origin; /* The order of calls is a valid order. */
    *queued = item;
    queued->next = NULL;
    *stream->last = queued;
    stream->last = &queued->next;
    stream->queued++;
    return 0;
}

static int settle(stream *stream) {
    if (stream->capturing) return CAPTURE_FORBIDS;
    run_until(stream, stream->queued);
    int error = stream->error;
    stream->error = 0;
    return error;
}

/* ---- the interface ------------------------------------------------------------------------------- */

#ifdef HIP
#define NAME(cuda, hip) hip
#else
#define NAME(cuda, hip) cuda
#endif

#ifdef HIP
EXPORT int hipSetDevice(int ordinal) { CALLED("%d", ordinal); the.current = ordinal; return 0; }
EXPORT int hipGetDevice(int *out) { CALLED(" "); *out = the.current; return 0; }
#ifndef ROCM5
EXPORT int hipGetDevicePropertiesR0600(char *properties, int ordinal) {
    CALLED("%d", ordinal);
    memset(properties, 0x7F, 1472);
    strcpy(properties + 1160, the.arch);
    return 0;
}
#endif
EXPORT int hipGetDeviceProperties(char *properties, int ordinal) {
    CALLED("%d", ordinal);
    memset(properties, 0x7F, 792);
    strcpy(properties + 396, the.arch);
    return 0;
}
static bool has_context(void) { return the.current >= 0 && the.current < the.devices; }
#else
EXPORT int cuDevicePrimaryCtxRetain(void **out, int device) {
    CALLED("%d", device);
    the.contexts++;
    the.retained = device - 40; /* only one device at a time */
    *out = &the;
    return 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { CALLED("%d", device); the.contexts--; return 0; }
EXPORT int cuCtxPushCurrent_v2(void *context) {
    CALLED(" ");
    if (context != &the) return INVALID_CONTEXT;
    the.pushed++;
    return 0;
}
EXPORT int cuCtxPopCurrent_v2(void **out) { CALLED(" "); the.pushed--; *out = &the; return 0; }
EXPORT int cuCtxGetCurrent(void **out) { CALLED(" "); *out = the.pushed ? &the : NULL; return 0; }
EXPORT int cuCtxGetDevice(int *out) {
    CALLED(" ");
    if (!the.pushed) abort(); /* a sanitizer shows each call that the driver refuses */
    *out = the.retained;
    return 0;
}
EXPORT int cuFuncSetAttribute(void *code, int attribute, int value) {
    CALLED("%s %d %d", ((function *)code)->name, attribute, value);
    if (attribute == 8) ((function *)code)->shared = value;
    return 0;
}
static bool has_context(void) { return the.pushed > 0; }
#endif

#define NEEDS_CONTEXT                                                                              \
    if (!has_context()) return INVALID_CONTEXT

/* Starts slowly and with helper processes, like real drivers. */
EXPORT int NAME(cuInit, hipInit)(unsigned flags) {
    CALLED("%u", flags);
    pid_t child = the.forks ? fork() : 0;
    if (the.forks && child == 0) _exit(0);
    if (child > 0) waitpid(child, NULL, 0);
    if (the.held_by) while (read(the.held_by, &(char){0}, 1) < 0) {}
    return 0;
}
EXPORT int NAME(cuDeviceGetCount, hipGetDeviceCount)(int *out) { CALLED(" "); *out = the.devices; return 0; }
EXPORT int NAME(cuDeviceGet, hipDeviceGet)(int *out, int ordinal) { CALLED("%d", ordinal); *out = ordinal + 40; return 0; }
EXPORT int NAME(cuDeviceGetName, hipDeviceGetName)(char *name, int room, int device) {
    CALLED("%d", device);
    snprintf(name, (size_t)room, "Fake GPU");
    return 0;
}
EXPORT int NAME(cuDeviceGetAttribute, hipDeviceGetAttribute)(int *out, int attribute, int device) {
    CALLED("%d %d", attribute, device);
    *out = attribute == 75 ? the.major : attribute == 76 ? the.minor : 0;
    if (attribute == NAME(97, 74)) *out = the.shared;
#ifndef HIP
    if (attribute == 16) *out = the.processors;
#endif
    if (attribute == NAME(115, 88)) *out = the.pools;
    return 0;
}
EXPORT int NAME(cuMemGetInfo_v2, hipMemGetInfo)(size_t *out_free, size_t *out_total) {
    CALLED(" ");
    NEEDS_CONTEXT;
    *out_free = the.total - the.allocated, *out_total = the.total;
    return 0;
}

#include "fake_maps.h"

typedef struct module { void *library; function *functions; long emulated; } module;
/* For an invalid image the driver writes details to the caller's log, which is option 5 of 5 and 6. */
EXPORT int NAME(cuModuleLoadDataEx, hipModuleLoadDataEx)(module **out, const char *image,
                                                         unsigned count, int *options,
                                                         void **values) {
    CALLED("%.900s", image);
    NEEDS_CONTEXT;
    if (count != 2 || options[0] != 5 || options[1] != 6) return INVALID_VALUE;
    long emulated = emulator.load ? emulator.load(image) : 0;
    if (!emulated && strncmp(image, "FAKE:", 5)) {
        snprintf(values[0], (size_t)values[1], "fatal : this is %.4s\nline 2", image);
        return INVALID_IMAGE;
    }
    module *created = calloc(1, sizeof *created);
    created->emulated = emulated;
    if (emulated) {
        the.modules++;
        *out = created;
        return 0;
    }
    created->library = dlopen(image + 5, RTLD_NOW | RTLD_LOCAL);
    if (!created->library) return INVALID_IMAGE;
    the.modules++;
    *out = created;
    return 0;
}
EXPORT int NAME(cuModuleUnload, hipModuleUnload)(module *module) {
    CALLED(" ");
    NEEDS_CONTEXT;
    while (module->functions) {
        function *next = module->functions->next;
        free(module->functions);
        module->functions = next;
    }
    free(module);
    the.modules--;
    return 0;
}
static int find_emulated(function **out, module *module, const char *name) {
    function *created = calloc(1, sizeof *created);
    created->emulated = emulator.find(module->emulated, name);
    snprintf(created->name, sizeof created->name, "%s", name);
    created->shared = NAME(48 << 10, 1 << 20);
    created->next = module->functions;
    module->functions = created;
    *out = created;
    return created->emulated ? 0 : NOT_FOUND;
}
EXPORT int NAME(cuModuleGetFunction, hipModuleGetFunction)(function **out, module *module,
                                                           const char *name) {
    CALLED("%s", name);
    NEEDS_CONTEXT;
    char count[80];
    if (module->emulated) return find_emulated(out, module, name);
    snprintf(count, sizeof count, "%s_params", name);
    void *code = dlsym(module->library, name);
    int *params = dlsym(module->library, count);
    if (!code || !params) return NOT_FOUND;
    function *created = calloc(1, sizeof *created);
    snprintf(count, sizeof count, "%s_maps", name);
    unsigned *maps = dlsym(module->library, count);
    created->maps = maps ? *maps : 0;
    memcpy(&created->code, &code, sizeof code);
    snprintf(created->name, sizeof created->name, "%s", name);
    created->params = *params;
    created->shared = NAME(48 << 10, 1 << 20);
    created->next = module->functions;
    module->functions = created;
    *out = created;
    return 0;
}
EXPORT int NAME(cuLaunchKernel, hipModuleLaunchKernel)(function *code, unsigned gx, unsigned gy,
                                                       unsigned gz, unsigned bx, unsigned by,
                                                       unsigned bz, unsigned shared, void *stream,
                                                       void **params, void **extra) {
    char text[512] = "";
    work item = {.kind = LAUNCH, .grid = gx, .threads = bx, .code = code};
    for (int i = 0; i < code->params; i++) {
        memcpy(&item.values[i], params[i], 8);
        uint64_t value = item.values[i];
        size_t used = strlen(text);
        if (code->maps >> i & 1) {
            uint64_t map[16];
            memcpy(map, params[i], sizeof map);
            int aligned = !((uintptr_t)params[i] % 128), wrong = (int)(map[1] >> 21 & 1);
            snprintf(text + used, sizeof text - used, " map:%d:%d", aligned, wrong);
        } else if (is_tagged(value)) snprintf(text + used, sizeof text - used, " ptr");
        else snprintf(text + used, sizeof text - used, " %lld", (long long)value);
    }
    CALLED("%s grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%d%s", code->name, gx, gy, gz, bx, by,
           bz, shared, number_of(stream), text);
    NEEDS_CONTEXT;
    if ((int)shared > code->shared || extra) return INVALID_VALUE;
    if (code->emulated) {
        item.emulated = emulator.launch(code->emulated, gx, bx, shared, params);
        if (!item.emulated) return INVALID_VALUE;
    }
    return add(stream, item);
}

EXPORT int NAME(cuMemAlloc_v2, hipMalloc)(void **out, size_t bytes) {
    CALLED("%zu", bytes);
    NEEDS_CONTEXT;
    NOT_IN_CAPTURE;
    return take(out, bytes);
}
EXPORT int NAME(cuMemFree_v2, hipFree)(void *memory) {
    CALLED(" ");
    NEEDS_CONTEXT;
    NOT_IN_CAPTURE;
    run_all();
    return give(memory);
}
#ifndef OLD
EXPORT int NAME(cuMemAllocAsync, hipMallocAsync)(void **out, size_t bytes, void *stream) {
    CALLED("%zu stream=%d", bytes, number_of(stream));
    NEEDS_CONTEXT;
    return take(out, bytes);
}
EXPORT int NAME(cuMemFreeAsync, hipFreeAsync)(void *memory, void *stream) {
    CALLED("stream=%d", number_of(stream));
    NEEDS_CONTEXT;
    return add(stream, (work){.kind = GIVE, .target = (uint64_t)memory});
}
#endif
EXPORT int NAME(cuMemHostAlloc, hipHostMalloc)(void **out, size_t bytes, unsigned flags) {
    CALLED("%zu %u", bytes, flags);
    NEEDS_CONTEXT;
    NOT_IN_CAPTURE;
    *out = malloc(bytes);
    the.hosts++;
    return 0;
}
EXPORT int NAME(cuMemFreeHost, hipHostFree)(void *memory) {
    CALLED(" ");
    free(memory);
    the.hosts--;
    return 0;
}

static int transfer(int kind, void *target, const void *source, size_t bytes, void *stream) {
    NEEDS_CONTEXT;
    if (kind != TO_HOST && !is_live((uint64_t)target, bytes)) return INVALID_VALUE;
    if (kind != TO_DEVICE && !is_live((uint64_t)source, bytes)) return INVALID_VALUE;
    if (stream_of(stream)->capturing && kind != ON_DEVICE) return CAPTURE_FORBIDS;
    return add(stream, (work){.kind = kind, .target = (uint64_t)target, .source = (uint64_t)source,
                              .bytes = bytes});
}
EXPORT int NAME(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)(void *target, const void *source,
                                                          size_t bytes, void *stream) {
    CALLED("%zu stream=%d", bytes, number_of(stream));
    return transfer(TO_DEVICE, target, source, bytes, stream);
}
EXPORT int NAME(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)(void *target, const void *source,
                                                          size_t bytes, void *stream) {
    CALLED("%zu stream=%d", bytes, number_of(stream));
    return transfer(TO_HOST, target, source, bytes, stream);
}
EXPORT int NAME(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)(void *target, const void *source,
                                                          size_t bytes, void *stream) {
    CALLED("%zu stream=%d", bytes, number_of(stream));
    return transfer(ON_DEVICE, target, source, bytes, stream);
}
EXPORT int NAME(cuMemsetD8Async, hipMemsetD8Async)(void *target, unsigned char value, size_t bytes,
                                                   void *stream) {
    CALLED("%u %zu stream=%d", value, bytes, number_of(stream));
    NEEDS_CONTEXT;
    if (!is_live((uint64_t)target, bytes)) return INVALID_VALUE;
    return add(stream, (work){.kind = FILL, .target = (uint64_t)target, .source = value,
                              .bytes = bytes});
}

EXPORT int NAME(cuStreamCreate, hipStreamCreateWithFlags)(stream **out, unsigned flags) {
    static int numbers;
    CALLED("%u", flags);
    NEEDS_CONTEXT;
    stream *created = calloc(1, sizeof *created);
    created->last = &created->first;
    created->number = ++numbers;
    int free_place = 1;
    while (all[free_place]) free_place++;
    all[free_place] = created;
    the.streams++;
    *out = created;
    return 0;
}
EXPORT int NAME(cuStreamDestroy_v2, hipStreamDestroy)(stream *stream) {
    CALLED("%d", stream->number);
    run_until(stream, stream->queued);
    for (int i = 1; i < 256; i++)
        if (all[i] == stream) all[i] = NULL;
    the.streams--;
    return 0; /* kept, because events may still name it */
}
EXPORT int NAME(cuStreamSynchronize, hipStreamSynchronize)(void *handle) {
    CALLED("stream=%d", number_of(handle));
    NEEDS_CONTEXT;
    return settle(stream_of(handle));
}
EXPORT int NAME(cuStreamIsCapturing, hipStreamIsCapturing)(void *handle, int *out) {
    CALLED("stream=%d", number_of(handle));
    NEEDS_CONTEXT;
    *out = stream_of(handle)->capturing;
    return 0;
}
EXPORT int NAME(cuStreamWaitEvent, hipStreamWaitEvent)(void *handle, event *event, unsigned flags) {
    CALLED("stream=%d of=%d flags=%u", number_of(handle), event->stream->number, flags);
    stream *waits = stream_of(handle), *of = event->stream;
    if (event->captured && of->capturing && !waits->capturing) { /* the stream joins the capture */
        waits->capturing = true;
        waits->origin = of->origin ? of->origin : of;
        waits->joined = waits->added - 1;
        return 0;
    }
    if (of->origin && of->origin == waits) of->joined = event->at;
    if (waits->capturing && event->captured) return 0;
    if (stream_of(handle)->capturing != event->captured)
        return event->captured ? CAPTURED_EVENT : NOT_OF_CAPTURE;
    if (event->stream == stream_of(handle)) return 0;
    return add(handle, (work){.kind = WAIT, .stream = event->stream, .until = event->at});
}
EXPORT int NAME(cuEventCreate, hipEventCreateWithFlags)(event **out, unsigned flags) {
    CALLED("%u", flags);
    *out = calloc(1, sizeof **out);
    (*out)->stream = &legacy;
    the.events++;
    return 0;
}
EXPORT int NAME(cuEventDestroy_v2, hipEventDestroy)(event *event) {
    CALLED(" ");
    free(event);
    the.events--;
    return 0;
}
EXPORT int NAME(cuEventRecord, hipEventRecord)(event *event, void *handle) {
    CALLED("stream=%d", number_of(handle));
    event->stream = stream_of(handle);
    event->captured = event->stream->capturing;
    event->at = event->stream->origin ? event->stream->added : event->stream->queued;
    return 0;
}
EXPORT int NAME(cuEventSynchronize, hipEventSynchronize)(event *event) {
    CALLED("of=%d", event->stream->number);
    NOT_IN_CAPTURE;
    if (event->captured) return CAPTURED_EVENT;
    run_until(event->stream, event->at);
    return 0;
}

#include "fake_graphs.h"

static const char *text_of(int error) {
    switch (error) {
    case NO_MEMORY: return "out of memory";
    case ILLEGAL_ADDRESS: return "an illegal memory access was encountered";
    default: return "something failed";
    }
}
EXPORT int NAME(cuGetErrorName, hipDrvGetErrorName)(int error, const char **out) {
    *out = error == ILLEGAL_ADDRESS ? "ERROR_ILLEGAL_ADDRESS" : "ERROR_FAKE";
    return 0;
}
EXPORT int NAME(cuGetErrorString, hipDrvGetErrorString)(int error, const char **out) {
    *out = text_of(error);
    return 0;
}

#include "fake_arrays.h"
