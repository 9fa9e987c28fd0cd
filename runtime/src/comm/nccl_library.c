/* Finds NCCL and RCCL.  Names, values and layouts are from the public interface of NCCL 2.14
 * (nccl.h), which RCCL shares and later versions keep. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>

#include "nccl.h"

enum { OLDEST = 21400 };

typedef struct library {
    const char *name, *variable, *files[3], *remedy;
    int32_t device_type; /* DLPack's */
} library;

static const library libraries[] = {
    {"NCCL", "TCC_NCCL_LIBRARY", {"libnccl.so.2", "libnccl.so"}, "the wheel nvidia-nccl-cu12", 2},
    {"RCCL", "TCC_RCCL_LIBRARY", {"librccl.so.1", "librccl.so"}, "ROCm", 10},
};
enum { LIBRARIES = sizeof libraries / sizeof *libraries };

#define ROW(name) {"nccl" #name, offsetof(tcc_nccl, name)}
static const tcc_comm_function functions[] = {
    ROW(GetVersion),        ROW(GetUniqueId),    ROW(CommInitRankConfig), ROW(CommDestroy),
    ROW(CommAbort),         ROW(GetErrorString), ROW(GetLastError),       ROW(AllReduce),
    ROW(CommGetAsyncError), ROW(ReduceScatter),  ROW(AllGather),          ROW(Broadcast),
    ROW(Send),              ROW(Recv),           ROW(GroupStart),         ROW(GroupEnd),
};

typedef struct loaded_library {
    tcc_nccl nccl;
    bool usable;
    char file[256], reason[512];
} loaded_library;

static loaded_library all[LIBRARIES];

/* Loads the named file only, if a variable names one; else a library in the process, else any. */
static void *load(const library *row, loaded_library *out) {
    const char *path = secure_getenv(row->variable);
    if (path && *path) {
        void *loaded = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!loaded) snprintf(out->reason, sizeof out->reason, "%s: %s", row->variable, dlerror());
        snprintf(out->file, sizeof out->file, "%s", path);
        return loaded;
    }
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; row->files[i]; i++) {
            int mode = RTLD_NOW | RTLD_LOCAL | (turn ? 0 : RTLD_NOLOAD);
            void *loaded = dlopen(row->files[i], mode);
            snprintf(out->file, sizeof out->file, "%s", row->files[i]);
            if (loaded) return loaded;
        }
    snprintf(out->reason, sizeof out->reason,
             "%s is not found (%s): install %s, or set %s to the library's path", row->name,
             row->files[0], row->remedy, row->variable);
    return NULL;
}

static bool fill(void *loaded, loaded_library *out) {
    size_t n = sizeof functions / sizeof *functions;
    const char *lacks = tcc_comm_fill(loaded, functions, n, &out->nccl);
    if (lacks)
        snprintf(out->reason, sizeof out->reason, "%s has no %s: version 2.14 is needed", out->file,
                 lacks);
    return !lacks;
}

static void find_library(const library *row, loaded_library *out) {
    void *loaded = load(row, out); /* never unloaded, because its threads may run */
    if (!loaded || !fill(loaded, out)) return;
    out->nccl.name = row->name;
    out->nccl.file = out->file;
    int result = out->nccl.GetVersion(&out->nccl.version), version = out->nccl.version;
    out->usable = !result && version >= OLDEST;
    if (!out->usable)
        snprintf(out->reason, sizeof out->reason, "%s is of version %d.%d.%d, 2.14 is needed",
                 out->file, version / 10000, version / 100 % 100, version % 100);
}

static void find(void) {
    for (int i = 0; i < LIBRARIES; i++) find_library(&libraries[i], &all[i]);
}

const tcc_nccl *tcc_nccl_library(int32_t device_type) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    for (int i = 0; i < LIBRARIES; i++) {
        if (libraries[i].device_type != device_type) continue;
        if (all[i].usable) return &all[i].nccl;
        tcc_fail(TCC_UNSUPPORTED, "%s", all[i].reason);
        return NULL;
    }
    tcc_fail(TCC_INVALID_ARGUMENT, "device type %d: expected 2 (CUDA) or 10 (ROCm)", device_type);
    return NULL;
}
