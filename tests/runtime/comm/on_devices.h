/* Buffers on stand-in GPUs, with the driver of tests/runtime/gpu and fake_nccl.c.
 *
 * FAKE_DRIVER is the driver's file, TCC_NCCL_LIBRARY or TCC_RCCL_LIBRARY the library's. */
#ifndef ON_DEVICES_H
#define ON_DEVICES_H

#include <dlfcn.h>

#include "ranks.h"

typedef struct gpu {
    int32_t type; /* DLPack's */
    uint64_t (*array)(const void *data, size_t bytes);
    int (*read)(uint64_t address, void *data, size_t bytes);
    int (*give)(uint64_t address);
    void *(*stream)(void);
    int (*settle)(void *stream);
    int (*begin)(void *stream); /* records the stream until `end` */
    void *(*end)(void *stream);
    int (*replay)(void *graph, void *stream);
    void (*forget)(void *graph);
} gpu;

static inline void *symbol_of(void *library, const char *name) {
    void *symbol = dlsym(library, name);
    CHECK(symbol, "no %s", name);
    return symbol;
}

/* Loads the driver. It must be in the process before the library looks for it. */
static inline gpu open_gpu(const char *platform) {
    const char *path = getenv("FAKE_DRIVER");
    CHECK(path, "FAKE_DRIVER is not set");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library, "%s", dlerror());
    gpu opened = {.type = strcmp(platform, "rccl") ? 2 : 10};
    *(void **)&opened.array = symbol_of(library, "fake_array");
    *(void **)&opened.read = symbol_of(library, "fake_read");
    *(void **)&opened.give = symbol_of(library, "fake_give");
    *(void **)&opened.stream = symbol_of(library, "fake_stream");
    *(void **)&opened.settle = symbol_of(library, "fake_settle");
    *(void **)&opened.begin = symbol_of(library, "fake_begin");
    *(void **)&opened.end = symbol_of(library, "fake_end");
    *(void **)&opened.replay = symbol_of(library, "fake_replay");
    *(void **)&opened.forget = symbol_of(library, "fake_forget");
    return opened;
}

#endif
