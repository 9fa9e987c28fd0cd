/* Implements the backend `plugin`: an engine from a shared object. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "../sized.h"
#include "engine.h"

static tcc_comm_engine the_engine; /* its name is NULL until one is found */
static char reason[512];

static bool is_complete(const tcc_comm_engine *engine) {
    return engine->name && engine->open && engine->split && engine->close && engine->all_gather &&
           engine->all_to_all && engine->broadcast && engine->send && engine->receive &&
           engine->test;
}

static void find(void) {
    const char *file = secure_getenv("TCC_COMM_PLUGIN"), *symbol = "tcc_comm_plugin_get";
    if (!file || !*file) {
        snprintf(reason, sizeof reason, "TCC_COMM_PLUGIN names no file");
        return;
    }
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(reason, sizeof reason, "TCC_COMM_PLUGIN: %s", dlerror());
        return;
    }
    const tcc_comm_engine *(*get)(uint32_t) = NULL;
    void *function = dlsym(library, symbol);
    memcpy(&get, &function, sizeof get);
    const tcc_comm_engine *engine = get ? get(TCC_COMM_PLUGIN_VERSION) : NULL;
    if (!get)
        snprintf(reason, sizeof reason, "TCC_COMM_PLUGIN=%s has no function %s", file, symbol);
    else if (!engine || engine->version != TCC_COMM_PLUGIN_VERSION)
        snprintf(reason, sizeof reason, "TCC_COMM_PLUGIN=%s has no engine of version %d", file,
                 TCC_COMM_PLUGIN_VERSION);
    else if (!TCC_HAS(engine, test)) /* `leave`, the field after `test`, may be NULL */
        snprintf(reason, sizeof reason,
                 "TCC_COMM_PLUGIN=%s: its tcc_comm_engine has %u bytes, and needs %zu of the %zu "
                 "that this library knows",
                 file, engine->struct_size, TCC_END(tcc_comm_engine, test), sizeof *engine);
    else if (!is_complete(engine))
        snprintf(reason, sizeof reason, "TCC_COMM_PLUGIN=%s: a function of its engine is NULL",
                 file);
    else
        memcpy(&the_engine, engine,
               engine->struct_size < sizeof the_engine ? engine->struct_size : sizeof the_engine);
}

static const char *unfit(const tcc_comm_settings *settings) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)settings;
    pthread_once(&once, find);
    return the_engine.name ? NULL : reason;
}

static tcc_status open_comm(tcc_comm *comm, const tcc_comm_settings *settings) {
    (void)settings; /* the comm uses them */
    return tcc_engine_open(comm, &the_engine);
}

const tcc_comm_backend tcc_comm_backend_plugin = {
    .name = "plugin", .unfit = unfit, .open = open_comm, TCC_ENGINE_FUNCTIONS};
